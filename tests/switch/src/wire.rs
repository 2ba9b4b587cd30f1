//! From one port of the wire to the other; where there is no other one, to the host's own stack.

use aya_ebpf::{bindings::xdp_action, btf_maps::HashMap, macros::btf_map, programs::XdpContext};

use crate::frame::redirect;

/// Interface index of a port to that of the port opposite.
#[btf_map]
static OPPOSITE: HashMap<u32, u32, 16> = HashMap::new();

#[inline(always)]
pub(crate) fn pass(ctx: &XdpContext) -> u32 {
    let port = ctx.ingress_ifindex() as u32;
    // SAFETY: no process writes while frames are on their way, so the value does not change under us.
    let opposite = unsafe { OPPOSITE.get(&port) };
    opposite.map_or(xdp_action::XDP_PASS, |&port| redirect(port))
}
