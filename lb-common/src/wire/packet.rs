//! `Packet`: the one way to a frame's bytes, in the kernel and on the host.

use core::cell::Cell;

use super::checksum::sum;

/// A header type that may be laid over any bytes.
///
/// # Safety
///
/// The type must be `repr(C)` or `repr(transparent)`, have alignment one, no padding, and be valid
/// for every bit pattern; it must be mutated only through `Cell`s.
pub unsafe trait Wire: Sized {}

/// A frame whose headers can be borrowed, all at once, and written through `Cell`s.
pub trait Packet {
    /// Bytes from the first to the last byte of the frame.
    fn len(&self) -> usize;

    /// Whether the frame has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The header at `offset`, or `None` if the frame ends before its end.
    fn header<T: Wire>(&self, offset: usize) -> Option<&T>;

    /// The sum of the `N` bytes at `offset` as 16-bit words, with the carries in its upper bits; `N` is
    /// a multiple of four.
    fn sum<const N: usize>(&self, offset: usize) -> Option<u64> {
        let block: &Block<N> = self.header(offset)?;
        Some(sum(&block.0.get()))
    }
}

/// Bytes that are only added up.
#[derive(Debug)]
#[repr(transparent)]
pub struct Block<const N: usize>(Cell<[u8; N]>);

// SAFETY: transparent over a cell of bytes, for which every bit pattern is valid.
unsafe impl<const N: usize> Wire for Block<N> {}

/// A frame in memory: the host's twin of the XDP frame.
#[derive(Debug)]
pub struct Slice<'a>(&'a [Cell<u8>]);

impl<'a> Slice<'a> {
    /// Borrows `bytes` for reading and rewriting.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self(Cell::from_mut(bytes).as_slice_of_cells())
    }
}

impl Packet for Slice<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn header<T: Wire>(&self, offset: usize) -> Option<&T> {
        const { assert!(align_of::<T>() == 1) };
        let end = offset.checked_add(size_of::<T>())?;
        let bytes = self.0.get(offset..end)?;
        // SAFETY: `bytes` is exactly `size_of::<T>()` cells long, `T` has alignment one (asserted
        // above) and `Wire` promises that any bytes are a valid `T` that only changes in cells.
        Some(unsafe { &*bytes.as_ptr().cast::<T>() })
    }
}
