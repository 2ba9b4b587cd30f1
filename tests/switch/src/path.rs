//! The XDP programs around the load balancer in the bench.
//!
//! ```text
//!  client -- `wire` | `generate`, `back` -- eth0 [ lb, `bare`, `nat` ] eth1 -- `sink` | `wire` -- server
//! ```
//!
//! Maps of one value are written while no frame is on its way; counters are read then, too.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![deny(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod bare;
mod datagram;
mod frame;
mod generate;
mod nat;
mod packet;
mod segment;
mod segment6;
mod sink;
mod vary;
mod wire;

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    macros::xdp,
    programs::XdpContext,
};

use crate::{datagram::Datagram, packet::Packet, segment::Segment, segment6::Segment6};

/// What a program costs that does nothing.
#[xdp]
pub fn empty(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_TX
}

/// Makes the next segment of a stream and sends it out of the interface that it is run for.
#[xdp]
pub fn generate(ctx: XdpContext) -> u32 {
    make::<Segment>(&ctx)
}

/// The same of a stream of UDP.
#[xdp]
pub fn generate_udp(ctx: XdpContext) -> u32 {
    make::<Datagram>(&ctx)
}

/// The same of a stream by IPv6.
#[xdp]
pub fn generate6(ctx: XdpContext) -> u32 {
    make::<Segment6>(&ctx)
}

/// Makes the next segment, and checks it as the sink would: what a segment costs without a path.
#[xdp]
pub fn dry(ctx: XdpContext) -> u32 {
    make_and_check::<Segment>(&ctx)
}

/// The same of a stream of UDP.
#[xdp]
pub fn dry_udp(ctx: XdpContext) -> u32 {
    make_and_check::<Datagram>(&ctx)
}

/// The same of a stream by IPv6.
#[xdp]
pub fn dry6(ctx: XdpContext) -> u32 {
    make_and_check::<Segment6>(&ctx)
}

/// On a port of the wire behind the load balancer: checks and counts packets of a stream, and answers those that
/// open a connection. What else comes is passed on.
#[xdp]
pub fn sink(ctx: XdpContext) -> u32 {
    if let Some(action) = sink::sink::<Segment>(&ctx) {
        return action;
    }
    match apart(path_sink_udp(ctx.ctx), || path_sink6(ctx.ctx)) {
        OTHER => wire::pass(&ctx),
        action => action,
    }
}

/// On the port of the wire where the stream begins: checks and counts the answers of the sink.
#[xdp]
pub fn back(ctx: XdpContext) -> u32 {
    if let Some(action) = sink::back::<Segment>(&ctx) {
        return action;
    }
    match apart(path_back_udp(ctx.ctx), || path_back6(ctx.ctx)) {
        OTHER => wire::pass(&ctx),
        action => action,
    }
}

/// No packet of a stream of this kind.
const OTHER: u32 = xdp_action::XDP_ABORTED;

#[inline(always)]
fn apart(first: u32, second: impl FnOnce() -> u32) -> u32 {
    match first {
        OTHER => second(),
        action => action,
    }
}

// Each has a stack of its own: the headers of all three would be too much for one. Only a function whose name the linker
// keeps has the context as its argument, and not what was read of it.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn path_sink_udp(ctx: *mut xdp_md) -> u32 {
    sink::sink::<Datagram>(&XdpContext::new(ctx)).unwrap_or(OTHER)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn path_sink6(ctx: *mut xdp_md) -> u32 {
    sink::sink::<Segment6>(&XdpContext::new(ctx)).unwrap_or(OTHER)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn path_back_udp(ctx: *mut xdp_md) -> u32 {
    sink::back::<Datagram>(&XdpContext::new(ctx)).unwrap_or(OTHER)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn path_back6(ctx: *mut xdp_md) -> u32 {
    sink::back::<Segment6>(&XdpContext::new(ctx)).unwrap_or(OTHER)
}

#[inline(always)]
fn make<P: Packet>(ctx: &XdpContext) -> u32 {
    generate::generate::<P>(ctx).map_or(xdp_action::XDP_ABORTED, |_flow| xdp_action::XDP_TX)
}

#[inline(always)]
fn make_and_check<P: Packet>(ctx: &XdpContext) -> u32 {
    if generate::generate::<P>(ctx).is_none() {
        return xdp_action::XDP_ABORTED;
    }
    sink::check_own::<P>(ctx);
    xdp_action::XDP_DROP
}

/// On any port of the wire: to the port opposite.
#[xdp]
pub fn wire(ctx: XdpContext) -> u32 {
    wire::pass(&ctx)
}

/// In the load balancer's place: other MAC addresses, and out of the other NIC.
#[xdp]
pub fn bare(ctx: XdpContext) -> u32 {
    bare::bare(&ctx).unwrap_or(xdp_action::XDP_DROP)
}

/// In the load balancer's place: the least that a NAT does.
#[xdp]
pub fn nat(ctx: XdpContext) -> u32 {
    nat::translate(&ctx).unwrap_or(xdp_action::XDP_DROP)
}
