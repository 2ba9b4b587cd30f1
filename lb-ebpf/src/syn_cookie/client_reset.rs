//! A client leaves before the backend of its flow has answered.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::flow::FlowKey,
    verdict::{DropReason, Verdict},
    wire::{L4, parse_ipv4},
};

use super::{
    backend_syn::{BackendSyn, awaited, is_of},
    bind::forget,
    slot::ClaimedSlot,
};
use crate::{
    emit,
    flow::{entry::Entry, index},
    frame::xdp::Xdp,
    lookup::NetworkRef,
    subprogram::{Outcome, whole},
};

/// Whether the flow with this tuple waits for the answer of its backend.
#[inline(always)]
pub(super) fn is_awaited(key: &FlowKey) -> bool {
    let entry = Entry::at(index::find(key));
    entry.is_some_and(|entry| entry.word().is_binding())
}

/// A reset of a client in the network `id` whose flow waits. Right behind the hello (RFC 5961 section 3) it ends the flow, and
/// goes to the backend. How it ended, as [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_client_reset(ctx: *mut xdp_md, id: u32) -> u32 {
    Outcome::of(reset(&XdpContext::new(ctx), id as u16)).raw()
}

#[inline(always)]
fn reset(ctx: &XdpContext, id: u16) -> Result<Verdict, DropReason> {
    let network = NetworkRef::of(id)?;
    let xdp = Xdp::new(ctx);
    let (ethernet, ip) = xdp.ipv4().ok_or(DropReason::Malformed)?;
    let frame = parse_ipv4(&xdp, ethernet, ip)?;
    let L4::Tcp(tcp) = frame.l4 else {
        return Err(DropReason::UnsupportedProtocol);
    };
    let sequence = tcp.sequence.get().get();
    let key = FlowKey::of_request(&frame, id);
    let key = whole(&key);
    let mut slot = ClaimedSlot::claim(key)?;
    let segment = end(key, sequence, &network, &mut slot);
    slot.leave();
    let segment = segment.ok_or(DropReason::NoFlow)?;
    segment.write(ctx).ok_or(DropReason::Malformed)?;
    emit::out(ctx, &segment.to)
}

/// Ends the flow; what its backend gets.
#[inline(always)]
fn end(
    key: &FlowKey,
    sequence: u32,
    network: &NetworkRef,
    slot: &mut ClaimedSlot,
) -> Option<BackendSyn> {
    let entry = Entry::at(index::find(key))?;
    let word = entry.word();
    let head = slot.head();
    let behind = head.isn.wrapping_add(1).wrapping_add(head.bytes());
    let is_free = word.is_binding() && !word.is_held() && entry.key(word) == *key;
    if !is_free || sequence != behind || !is_of(&entry, word, head) {
        return None;
    }
    let syn = BackendSyn::new(&entry, head, network).ok()?;
    let awaited = awaited(&entry, word);
    forget(&entry, word, key).then(|| syn.reset(awaited))
}
