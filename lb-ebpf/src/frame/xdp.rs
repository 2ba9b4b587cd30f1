//! The XDP frame as a `Packet`.

use core::ptr;

use aya_ebpf::{helpers::bpf_csum_diff, programs::XdpContext};
use lb_common::wire::{
    Block, Packet, Wire,
    header::{Ethernet, Ipv4, Ipv6},
};

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

    /// The headers of a frame of IPv4, which has no tag any more.
    #[inline(always)]
    pub(crate) fn ipv4(&self) -> Option<(&Ethernet, &Ipv4)> {
        Some((self.header(0)?, self.header(size_of::<Ethernet>())?))
    }

    /// The same of IPv6.
    #[inline(always)]
    pub(crate) fn ipv6(&self) -> Option<(&Ethernet, &Ipv6)> {
        Some((self.header(0)?, self.header(size_of::<Ethernet>())?))
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
    #[inline(always)]
    fn sum<const N: usize>(&self, offset: usize) -> Option<u64> {
        let block: &Block<N> = self.header(offset)?;
        let bytes = ptr::from_ref(block).cast_mut().cast();
        // SAFETY: `bytes` points to N bytes of the frame, which the helper only reads; nothing is
        // taken off the sum, so the other pointer may be null.
        let sum = unsafe { bpf_csum_diff(ptr::null_mut(), 0, bytes, N as u32, 0) };
        Some(u64::from(sum as u32))
    }
}
