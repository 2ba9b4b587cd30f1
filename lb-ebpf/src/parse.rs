//! parse: the XDP frame as a `Packet`.

use aya_ebpf::programs::XdpContext;
use lb_common::wire::{Packet, Wire};

/// The frame's bytes, read once: a pointer that is read again after a helper call has no checked
/// range.
pub(crate) struct Xdp {
    start: usize,
    end: usize,
}

impl Xdp {
    #[inline(always)]
    pub(crate) fn new(ctx: &XdpContext) -> Self {
        Self {
            start: ctx.data(),
            end: ctx.data_end(),
        }
    }
}

impl Packet for Xdp {
    #[inline(always)]
    fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline(always)]
    fn header<T: Wire>(&self, offset: usize) -> Option<&T> {
        let at = self.start + offset;
        if at + size_of::<T>() > self.end {
            return None;
        }
        // SAFETY: the bytes are inside the frame (checked above), which lives as long as the
        // program runs and is not moved by it; `Wire` allows any bytes at any alignment.
        Some(unsafe { &*(at as *const T) })
    }
}
