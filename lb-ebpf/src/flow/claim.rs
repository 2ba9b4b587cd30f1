//! An id for a new flow: that of the flow whose place in the ring it takes, or a free one of a queue.
//!
//! A function of each step for the verifier, as `lb_refuse`: it walks the attempts once, and not once for each way to
//! them.

use lb_common::{
    addr::{Be16, Be32},
    conntrack::{FlowState, State},
    maglev,
    maps::{
        flow::{FlowKey, TIME_SHIFT},
        half_open::place,
        network::{MAX_SNAT_PER_NETWORK, Network},
    },
    verdict::{DropReason, UNRESTED},
};

use crate::{
    count,
    flow::{
        entry::{Entry, NewFlow, now},
        half_open::{self, Slot},
        index::unindex,
        snat::{release, snat_page},
    },
    maps::{FREE_IDS, HASH_KEY},
    subprogram,
};

/// Ids that are tried before a new flow is refused; each miss is an id that another flow has, or
/// one that rests, or an address without free ids.
const ATTEMPTS: u32 = 8;
const _: () = assert!(MAX_SNAT_PER_NETWORK.is_power_of_two());
/// No flow has this id.
const NONE: u32 = 0;
/// How long an end of a connection rests in TIME_WAIT on Linux: 60 s, in units of coarse time.
const TIME_WAIT: u32 = (60_000_000_000u64 >> TIME_SHIFT) as u32;

/// Claims an id of one of a network's SNAT addresses: its entry, and the word of the claim. With which one it
/// begins is a secret: a client that could choose would use up one address, whose ids all networks share.
#[inline(always)]
pub(crate) fn claim(
    network: u16,
    (first, addresses): (u32, u32),
    key: &FlowKey,
    udp: bool,
    flow: &NewFlow,
) -> Result<(Entry, FlowState), DropReason> {
    let hash = HASH_KEY.get(0).map_or(0, |secret| secret.tuple(key));
    let start = maglev::index(hash, addresses);
    let networks = u32::from(key.network) << 16 | u32::from(network);
    let range = start << 16 | first << 8 | addresses;
    let port = u32::from(udp) << 16 | u32::from(flow.backend_port.raw());
    let (id, word) = claimed(lb_claim(networks, range, flow.backend.raw(), port))?;
    let entry = Entry::at(id).ok_or(DropReason::RecordMissing)?;
    Ok((entry, word))
}

/// A claimed id, and above it its entry's word, as one number.
#[inline(always)]
const fn number(id: u32, word: FlowState) -> u64 {
    (word.raw() as u64) << 32 | id as u64
}

/// What such a number, or one that is only a reason, stands for: the word of a claim is not 0.
#[inline(always)]
fn claimed(number: u64) -> Result<(u32, FlowState), DropReason> {
    match (number >> 32) as u32 {
        0 => Err(subprogram::reason(number as u32)),
        word => Ok((number as u32, FlowState::from_raw(word))),
    }
}

/// Claims an id for a flow between `networks` (the client's and the backend's) to this backend and port (the
/// lowest bit above that: UDP), which takes the next place of its ring; `range` is the SNAT address to begin with, the
/// first one, and how many there are. Returns a [`number`], or why there is none.
///
/// The id is that of the flow that has to leave the place, so that a flood turns its own ids round and leaves those of
/// the queue alone; or else one of the queue. If that has none, the other flow keeps its place.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_claim(networks: u32, range: u32, backend: u32, port: u32) -> u64 {
    let Some(turn) = Slot::take((networks >> 16) as u16, port >> 16 != 0) else {
        return lb_take_free(networks, range, backend, port);
    };
    let mut said = lb_take_over(turn.oldest, networks, range, backend, port);
    if said == MISSED {
        said = lb_take_free(networks, range, backend, port);
        if claimed(said).is_ok() {
            half_open::lb_recycle(turn.oldest);
        }
    }
    turn.give(match claimed(said) {
        Ok((id, word)) => place(id, word.generation()),
        Err(_) => turn.oldest,
    });
    said
}

/// What [`lb_take_over`] and [`lb_take`] return where there is nothing to claim.
const MISSED: u64 = 0;
/// What [`lb_take`] returns for an id that rests.
const IN_TIME_WAIT: u64 = 1;

/// Claims the id of the flow with the place `oldest`, if that has to leave, and the new flow may have its id; as
/// [`lb_claim`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_take_over(oldest: u64, networks: u32, range: u32, backend: u32, port: u32) -> u64 {
    let Some((entry, word)) = half_open::leaving(oldest) else {
        return MISSED;
    };
    if lb_has_id(networks, range, entry.id) == 0 || rests(&entry, word, backend, port) {
        return MISSED;
    }
    let claimed = word.claim(port >> 16 != 0);
    if !half_open::end(&entry, word, claimed) {
        return MISSED;
    }
    unindex(&entry, word);
    number(entry.id, claimed)
}

/// 1 if the id is one of these SNAT addresses of the backend's network, else 0: a ring is one for all networks of
/// backends and both families, and an address may be draining.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_has_id(networks: u32, range: u32, id: u32) -> u32 {
    let (first, addresses) = (range >> 8 & 0xff, range & 0xff);
    let (Ok(network), Some(page)) = (crate::lookup::network_by_id(networks as u16), snat_page(id))
    else {
        return 0;
    };
    // All places: a loop up to `addresses` the compiler counts down, which the verifier does not follow.
    for offset in 0..MAX_SNAT_PER_NETWORK as u32 {
        if slot(network, first + offset) == Some(u32::from(page.slot)) && offset < addresses {
            return 1;
        }
    }
    0
}

/// The slot of a network's SNAT address at this place.
#[inline(always)]
fn slot(network: &Network, place: u32) -> Option<u32> {
    // The mask is for the verifier, and clears no bit.
    let place = place as usize & (MAX_SNAT_PER_NETWORK - 1);
    network.snat_slots.get(place).copied().map(u32::from)
}

/// Claims an id of a queue; as [`lb_claim`]. Of those that rest the first one is kept, which is the oldest, and taken
/// if there is no other; it is in no queue for these few instructions.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_take_free(networks: u32, range: u32, backend: u32, port: u32) -> u64 {
    let (start, first, addresses) = (range >> 16, range >> 8 & 0xff, range & 0xff);
    let Ok(network) = crate::lookup::network_by_id(networks as u16) else {
        return DropReason::RecordMissing as u64;
    };
    let (mut empty, mut kept, mut said) = (0, NONE, MISSED);
    for _ in 0..ATTEMPTS {
        if empty >= addresses {
            break;
        }
        let mut offset = start + empty;
        if offset >= addresses {
            offset -= addresses;
        }
        let queue = slot(network, first + offset).and_then(|slot| FREE_IDS.get(slot));
        match queue.map(|queue| queue.pop()) {
            Some(Ok(Some(id))) => match lb_take(id, backend, port, NO_REST) {
                IN_TIME_WAIT if kept == NONE => kept = id,
                IN_TIME_WAIT => release(id),
                MISSED => {}
                taken => {
                    said = taken;
                    break;
                }
            },
            Some(Err(_)) => {}
            _ => empty += 1,
        }
    }
    if kept != NONE {
        if said == MISSED {
            said = lb_take(kept, backend, port, ANY);
            if said != MISSED {
                count::note((networks >> 16) as u16, UNRESTED);
            }
        } else {
            release(kept);
        }
    }
    match said {
        MISSED => DropReason::SnatExhausted as u64,
        taken => taken,
    }
}

/// What [`lb_take`] is to take.
const ANY: u32 = 0;
const NO_REST: u32 = 1;

/// Claims an id that was taken from its queue; [`IN_TIME_WAIT`] if it is left alone for that, [`MISSED`] if it is another
/// flow's.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_take(id: u32, backend: u32, port: u32, what: u32) -> u64 {
    let Some(entry) = Entry::at(id) else {
        return MISSED;
    };
    let word = entry.word();
    if what == NO_REST && rests(&entry, word, backend, port) {
        return IN_TIME_WAIT;
    }
    let claimed = word.claim(port >> 16 != 0);
    if word.claimable() && entry.swap(word, claimed) {
        unindex(&entry, word);
        return number(id, claimed);
    }
    if was_silenced(&entry, word) {
        release(id);
    }
    MISSED
}

/// Whether userspace, and no other claim, has changed an entry since its word was read: it must not
/// translate any more, and its id is still the one that was taken from the queue.
#[inline(always)]
fn was_silenced(entry: &Entry, word: FlowState) -> bool {
    let now = entry.word();
    matches!(word.state(), State::Closed | State::Ended)
        && (now == word.end() || now == word.forget())
}

/// Whether the backend's end of the id's last connection may still rest in TIME_WAIT, and would not
/// take a new connection from the same port. For another backend it is another tuple.
#[inline(always)]
fn rests(entry: &Entry, word: FlowState, backend: u32, port: u32) -> bool {
    word.backend_closed_first()
        && entry.backend() == (Be32::from_raw(backend), Be16::from_raw(port as u16))
        && now().wrapping_sub(entry.last_seen()) < TIME_WAIT
}
