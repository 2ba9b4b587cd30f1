//! The least that anything between two NICs has to do.

use aya_ebpf::{btf_maps::HashMap, macros::btf_map, programs::XdpContext};

use crate::frame::{header, redirect};

/// Where frames of a NIC go.
#[repr(C)]
pub struct Crossing {
    /// Destination and source address, in the order of the frame.
    addresses: [u32; 3],
    /// Interface index of the other NIC.
    port: u32,
}

/// Interface index of a NIC to where its frames go.
#[btf_map]
static CROSSINGS: HashMap<u32, Crossing, 16> = HashMap::new();

#[inline(always)]
pub(crate) fn bare(ctx: &XdpContext) -> Option<u32> {
    let nic = ctx.ingress_ifindex() as u32;
    // SAFETY: no process writes while frames are on their way, so the value does not change under us.
    let crossing = unsafe { CROSSINGS.get(&nic) }?;
    let frame = header::<[u32; 3]>(ctx)?;
    // SAFETY: `header` checked the bounds; an unaligned write needs nothing else.
    unsafe { frame.write_unaligned(crossing.addresses) };
    Some(redirect(crossing.port))
}
