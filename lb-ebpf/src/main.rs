//! The XDP programs of `lb`: `lb_nic` on every network's interface, `lb_cell` on the outer end of
//! every cell, `lb_emit` on copies of frames; and the programs that userspace runs on its queues of free ids, `lb_fill` and
//! `lb_turn`.
//!
//! A packet: parse -> conntrack -> rewrite -> emit; where conntrack knows no flow, lookup ->
//! policy -> select -> allocate come in between. Each word is a module or a file; every decision that needs no map is
//! in `lb-common`.
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

mod cell;
mod count;
mod counts;
mod door;
mod drop_sample;
mod emit;
mod flow;
mod frame;
mod ip;
mod lookup;
mod maps;
mod new_flow;
mod pipeline;
mod reject;
mod stopped;
mod subprogram;
mod syn_cookie;

use aya_ebpf::{
    macros::{classifier, xdp},
    programs::{TcContext, XdpContext},
};

/// On a network's interface: every frame that a tenant, a backend or the host's peers send us.
#[xdp]
pub fn lb_nic(ctx: XdpContext) -> u32 {
    pipeline::nic(&ctx)
}

/// On the outer end of a cell: every frame that the cell's kernel sends.
#[xdp]
pub fn lb_cell(ctx: XdpContext) -> u32 {
    cell::cell(&ctx)
}

/// In a map of devices: every frame that this sends there.
#[xdp(map = "devmap")]
pub fn lb_emit(ctx: XdpContext) -> u32 {
    syn_cookie::emit(&ctx)
}

/// Run by userspace: free ids into the queue of their SNAT address.
#[classifier]
fn lb_fill(mut ctx: TcContext) -> i32 {
    flow::free_ids::fill(&mut ctx).cast_signed()
}

/// Run by userspace: the queue of free ids of a SNAT address turned around.
#[classifier]
fn lb_turn(mut ctx: TcContext) -> i32 {
    flow::free_ids::turn(&mut ctx).cast_signed()
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // A path to here is an endless loop, which the verifier refuses: no panic can be loaded.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
