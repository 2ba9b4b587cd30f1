//! While a network is stopped, only what is the host's own passes.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::{flow::FlowKey, network::NETWORK_HOST},
    verdict::{DropReason, Verdict},
    wire::parse_ipv4,
};

use crate::{frame::xdp::Xdp, lookup, subprogram::Outcome};

/// The end of a packet to one of our addresses in the stopped network `id`, which has these `flags`, as
/// [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_stopped(ctx: *mut xdp_md, id: u32, flags: u32) -> u32 {
    let is_host = flags & u32::from(NETWORK_HOST) != 0;
    let is_ours = !is_host || is_declared(&XdpContext::new(ctx), id as u16).is_some();
    Outcome::of(match is_ours {
        true => Err(DropReason::Stopped),
        false => Ok(Verdict::Passed),
    })
    .raw()
}

/// Whether a packet to an address of the host is for a service, or for a port of a flow.
#[inline(always)]
fn is_declared(ctx: &XdpContext, id: u16) -> Option<()> {
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4()?;
    let frame = parse_ipv4(&xdp, ethernet, ip).ok()?;
    let (_, port) = frame.l4.ports();
    let address = lookup::address(id, ip.destination.get())?;
    let is_declared = address.is_of_flow(port.get())
        || lookup::service(&FlowKey::of_request(&frame, id)).is_some();
    is_declared.then_some(())
}
