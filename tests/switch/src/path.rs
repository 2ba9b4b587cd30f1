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
mod frame;
mod generate;
mod nat;
mod segment;
mod sink;
mod vary;
mod wire;

use aya_ebpf::{bindings::xdp_action, macros::xdp, programs::XdpContext};

/// What a program costs that does nothing.
#[xdp]
pub fn empty(_ctx: XdpContext) -> u32 {
    xdp_action::XDP_TX
}

/// Makes the next segment of a stream and sends it out of the interface that it is run for.
#[xdp]
pub fn generate(ctx: XdpContext) -> u32 {
    generate::generate(&ctx).map_or(xdp_action::XDP_ABORTED, |_flow| xdp_action::XDP_TX)
}

/// Makes the next segment, and checks it as the sink would: what a segment costs without a path.
#[xdp]
pub fn dry(ctx: XdpContext) -> u32 {
    if generate::generate(&ctx).is_none() {
        return xdp_action::XDP_ABORTED;
    }
    sink::check_own(&ctx);
    xdp_action::XDP_DROP
}

/// On a port of the wire behind the load balancer: checks and counts segments of a stream, and answers those that
/// open a connection. What else comes is passed on.
#[xdp]
pub fn sink(ctx: XdpContext) -> u32 {
    sink::sink(&ctx).unwrap_or_else(|| wire::pass(&ctx))
}

/// On the port of the wire where the stream begins: checks and counts the answers of the sink.
#[xdp]
pub fn back(ctx: XdpContext) -> u32 {
    sink::back(&ctx).unwrap_or_else(|| wire::pass(&ctx))
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
