//! A SYN becomes the SYN-ACK to its sender, and nothing is kept of it.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::flow::FlowKey,
    syn_cookie::{Cookie, answer::SynAck, offer},
    verdict::{DropReason, Verdict},
    wire::{
        L4, Packet,
        header::{Ethernet, Ipv4, Tcp},
    },
};

use super::{
    cookie,
    vip_offer::{self, lb_agreed},
};
use crate::{
    emit,
    flow::{
        entry::now,
        rewrite::{is_noted, lb_complete},
    },
    frame::xdp::Xdp,
    lookup::NetworkRef,
    reject::judge::{SHORTEST, cut},
    subprogram::{Outcome, SynBits, whole},
};

/// Where the TCP header is.
const TCP_AT: usize = size_of::<Ethernet>() + size_of::<Ipv4>();

/// Answers the SYN, which is plain TCP, to this service from the network `id`: how that ended, as [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_answer(ctx: *mut xdp_md, id: u32, service: u32) -> u32 {
    Outcome::of(answer(&XdpContext::new(ctx), id as u16, service)).raw()
}

#[inline(always)]
fn answer(ctx: &XdpContext, id: u16, service: u32) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let most = network.mss;
    let offered = lb_agreed(service, lb_offer(ctx.ctx, most.into()));
    let options = SynBits::from_raw(offered).options();
    let options = options.ok_or(DropReason::Malformed)?;
    let is_open = is_noted(lb_complete(ctx.ctx, 1), &network);
    let xdp = Xdp::new(ctx);
    let (_, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let tcp: &Tcp = xdp.header(TCP_AT).ok_or(DropReason::Malformed)?;
    let (client, vip) = (ip.source.get(), ip.destination.get());
    let key = FlowKey::new(client, vip, L4::Tcp(tcp), id);
    let key = whole(&key);
    let isn = tcp.sequence.get().get();
    let cookie = Cookie::new(cookie::keys()?, key.packed(), isn, options.offer, now());
    let answer = SynAck {
        cookie,
        options,
        mss: vip_offer::of(service).announced(most),
    };
    answer
        .write(&xdp, key, is_open)
        .ok_or(DropReason::Malformed)?;
    // What the kernel sums up must end where the segment does.
    let shortest = if is_open { 0 } else { SHORTEST };
    let wanted = answer.frame_bytes().max(shortest);
    cut(ctx, xdp.len(), wanted).ok_or(DropReason::Malformed)?;
    emit::back(ctx, &network)
}

/// [`offer::read`] of a SYN from a network that carries segments of `most` bytes, as [`SynBits`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_offer(ctx: *mut xdp_md, most: u32) -> u64 {
    SynBits::of(offer::read(&Xdp::new(&XdpContext::new(ctx)), most as u16)).raw()
}
