//! A backend that does not answer a bound flow, or refuses it, is followed by another one of its pool.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    conntrack::FlowState,
    maps::{flow::FlowKey, hello::HELLO_IS_PLAIN},
    verdict::{DropReason, HELLO_UNANSWERED, Verdict},
};

use super::{
    backend_syn::is_of,
    bind::{lb_note_binding, lb_syn},
    name,
    plain::lb_note_plain,
    refusal::ClientReset,
    slot::ClaimedSlot,
};
use crate::{
    count,
    flow::{entry::Entry, half_open, index, snat::release},
    lookup,
    maps::BACKENDS,
    new_flow::redispatch,
    subprogram::{Outcome, whole},
};

/// The segment, which is its client's hello or its backend's refusal, becomes the SYN to the next backend of the flow with this
/// id; without another one userspace has the hello, or the client of a service without names a reset. How it ended, as
/// [`Outcome`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_go_on(ctx: *mut xdp_md, flow_id: u32) -> u32 {
    Outcome::of(go_on(&XdpContext::new(ctx), flow_id)).raw()
}

#[inline(always)]
fn go_on(ctx: &XdpContext, flow_id: u32) -> Result<Verdict, DropReason> {
    let entry = Entry::at(flow_id).ok_or(DropReason::RecordMissing)?;
    let word = entry.word();
    if !word.is_binding() || word.is_held() {
        return Err(DropReason::FlowRace);
    }
    let key = entry.key(word);
    let key = whole(&key);
    let mut slot = ClaimedSlot::claim(key)?;
    let end = match is_of(&entry, word, slot.head()) {
        true => {
            let route = next(flow_id, key, slot.index);
            leave(ctx, &entry, word, key, route, &mut slot)
        }
        // The client of a service without names may send nothing more.
        false if entry.attempt().is_refused() => refuse(ctx, &entry, word),
        // Any other sends it again.
        false => Err(DropReason::HellosFull),
    };
    slot.leave();
    end
}

/// The segment, which is a backend's refusal, becomes the reset to the client of a service without names.
#[inline(always)]
fn refuse(ctx: &XdpContext, entry: &Entry, word: FlowState) -> Result<Verdict, DropReason> {
    let reset = ClientReset::of(entry, word).ok_or(DropReason::HellosFull)?;
    reset.end(ctx, entry, word)
}

/// The id of the backend that the flow goes to next, or 0.
#[inline(always)]
fn next(flow_id: u32, key: &FlowKey, slot: u32) -> u32 {
    let Some(service) = lookup::record(key) else {
        return 0;
    };
    if !service.is_of_cell() {
        return redispatch::lb_next_backend(flow_id, service.pool);
    }
    match name::route(slot, &service) {
        Ok(route) => redispatch::lb_next_backend(flow_id, route.pool),
        Err(_) => 0,
    }
}

/// Leaves the flow's backend, for the one with the id `next` or for userspace.
#[inline(always)]
fn leave(
    ctx: &XdpContext,
    entry: &Entry,
    word: FlowState,
    key: &FlowKey,
    next: u32,
    slot: &mut ClaimedSlot,
) -> Result<Verdict, DropReason> {
    let index = slot.index;
    let is_plain = slot.head().flags & HELLO_IS_PLAIN != 0;
    let publish = |entry: &Entry, claimed: FlowState| {
        match is_plain {
            true => lb_note_plain(entry.id, claimed.generation(), index),
            false => lb_note_binding(entry.id, claimed.generation(), index),
        };
        claimed.bind()
    };
    if let Some(backend) = BACKENDS.get(next).filter(|_| next != 0) {
        if !redispatch::redispatch(entry, word, (next, backend), publish) {
            return Err(DropReason::FlowRace);
        }
        let sent = lb_syn(ctx.ctx, key.network.into(), entry.id, index);
        return Outcome::from_raw(sent).result();
    }
    let is_refused = entry.attempt().is_refused();
    if is_plain {
        if is_refused {
            return refuse(ctx, entry, word);
        }
        let held = word.hold();
        if !entry.swap(word, held) {
            return Err(DropReason::FlowRace);
        }
        entry.repeat(entry.attempt().repeated());
        // Or it was ended meanwhile.
        let _released = entry.swap(held, word);
        let sent = lb_syn(ctx.ctx, key.network.into(), entry.id, index);
        return Outcome::from_raw(sent).result();
    }
    if !half_open::end(entry, word, word.close()) {
        return Err(DropReason::FlowRace);
    }
    index::remove_closed(key);
    release(entry.id);
    count::note(key.network, HELLO_UNANSWERED);
    slot.submit()?;
    match is_refused {
        true => Err(DropReason::RefusedByBackend),
        false => Ok(Verdict::Consumed),
    }
}
