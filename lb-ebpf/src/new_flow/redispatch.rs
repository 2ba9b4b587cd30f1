//! A connection that its backend does not answer, or refuses, goes to another one when the client's SYN comes again:
//! the same id, so the same SNAT port, with the next generation. What the earlier backend still sends is no reply of
//! the flow any more.
//!
//! Subprograms, called from the way in: conntrack finds the flow anew behind them.

use lb_common::{
    conntrack::{FlowState, State},
    maps::{backend::Backend, event::REDISPATCHED},
};

use super::{affinity, select};
use crate::{
    flow::{
        backend_answers,
        entry::Entry,
        events, half_open,
        traffic::{self, HandedIn},
    },
    lookup,
    maps::BACKENDS,
};

/// No backend has this id.
const NONE: u32 = 0;

/// After the repeated SYN of the flow with this id: it has another backend then, if there is one. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_redispatch(id: u32) -> u32 {
    let Some((entry, word)) = unanswered(id) else {
        return 0;
    };
    let attempt = entry.attempt();
    if !attempt.is_refused() {
        backend_answers::unanswered(&entry);
        traffic::repeated(&entry);
    }
    let next = lb_candidate(id);
    match BACKENDS.get(next) {
        Some(backend) if next != NONE => {
            let publish = |_: &Entry, claimed: FlowState| claimed.publish();
            if redispatch(&entry, word, (next, backend), publish) {
                affinity::lb_remember(id);
            }
        }
        _ => entry.repeat(attempt.repeated()),
    }
    0
}

/// After a RST of its backend to the SYN of the flow with this id. Returns 1 if the client is not to have it, because
/// there is another backend for its next SYN; else 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_refused(id: u32) -> u32 {
    let Some((entry, _)) = unanswered(id) else {
        return 0;
    };
    let attempt = entry.attempt();
    if !attempt.is_refused() {
        backend_answers::refused(&entry);
    }
    let is_last = lb_candidate(id) == NONE;
    entry.set_attempt(match is_last {
        true => attempt.last(),
        false => attempt.refused(),
    });
    u32::from(!is_last)
}

#[inline(always)]
fn unanswered(id: u32) -> Option<(Entry, FlowState)> {
    let entry = Entry::at(id)?;
    let word = entry.word();
    (matches!(word.state(), State::New) && !word.is_udp()).then_some((entry, word))
}

/// The id of the backend that the flow with this id goes to next, or [`NONE`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_candidate(id: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return NONE;
    };
    let key = entry.key(entry.word());
    let Some(service) = lookup::record(&key) else {
        return NONE;
    };
    if service.is_of_cell() {
        return NONE;
    }
    let next = lb_next_backend(id, service.pool);
    match lookup::is_current(&key, &service) {
        true => next,
        false => NONE,
    }
}

/// The id of the backend of this pool that the flow with this id goes to after its present one; 0 if there is none.
/// A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_next_backend(id: u32, pool: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return NONE;
    };
    let attempt = entry.attempt();
    if !attempt.may_go_on() {
        return NONE;
    }
    let key = entry.key(entry.word());
    select::next(pool, &key, entry.backend_id(), attempt).unwrap_or(NONE)
}

/// Has a flow begin anew with this backend, unless its word has changed; `publish` makes that of the flow. Whether it has.
#[inline(always)]
pub(crate) fn redispatch(
    entry: &Entry,
    word: FlowState,
    (id, backend): (u32, &Backend),
    publish: impl Fn(&Entry, FlowState) -> FlowState,
) -> bool {
    let claimed = word.claim(false);
    if !entry.swap(word, claimed) {
        return false;
    }
    backend_answers::redispatched(entry);
    let (network, _) = entry.owners();
    events::report(entry, word.close(), REDISPATCHED, network);
    traffic::lb_hand_in(entry.id, HandedIn::Backend as u32);
    entry.redispatch(id, backend);
    half_open::enter(network, entry.id, claimed);
    let published = publish(entry, claimed);
    let has_begun = entry.swap(claimed, published);
    if has_begun {
        events::began(entry, published);
    }
    has_begun
}
