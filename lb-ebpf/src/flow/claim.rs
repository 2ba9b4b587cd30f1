//! An id for a new flow: that of the flow whose place in the ring it takes, or a free one of a queue.
//!
//! Each step is a subprogram: the verifier walks the attempts once, and not once for each way to them.

use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use lb_common::{
    addr::Be32,
    conntrack::{FlowState, State},
    maglev,
    maps::{
        addr6,
        flow::{FlowKey, TIME_SHIFT},
        half_open::place,
        network::{MAX_SNAT_PER_NETWORK, Network, SnatPlaces},
        snat::base,
    },
    verdict::{DropReason, UNRESTED},
};

use crate::{
    count,
    flow::{
        entry::{Entry, NewFlow, now},
        half_open::{self, Slot},
        snat::{release, snat_page},
    },
    lookup,
    maps::FREE_IDS,
    subprogram::{BackendPort, Claimed, Earlier, Pair, SnatRange},
};

/// Ids that are tried before a new flow is refused; each miss is an id that another flow has, or
/// one that rests, or an address without free ids.
const ATTEMPTS: u32 = 8;
const _: () = assert!(MAX_SNAT_PER_NETWORK.is_power_of_two());
/// No flow has this id.
const NONE: u32 = 0;
/// How long an end of a connection rests in TIME_WAIT on Linux: 60 s, in units of coarse time.
const TIME_WAIT: u32 = (60_000_000_000u64 >> TIME_SHIFT) as u32;

/// Claims an id of one of the SNAT addresses of the network with this id, which has them at these places: its entry,
/// the word of the claim, and what the entry has of an earlier flow.
#[inline(always)]
pub(crate) fn claim(
    network: u16,
    places: SnatPlaces,
    key: &FlowKey,
    udp: bool,
    flow: &NewFlow,
) -> Result<(Entry, FlowState, Earlier), DropReason> {
    let networks = Pair::new(key.network, network).raw();
    let range = SnatRange::new(places).raw();
    let port = BackendPort::new(flow.backend_port, udp, flow.is_shown).raw();
    let claimed = Claimed::from_raw(lb_claim(networks, range, flow.backend.raw(), port));
    let (id, word) = claimed.result()?;
    let entry = Entry::at(id).ok_or(DropReason::RecordMissing)?;
    Ok((entry, word, claimed.earlier()))
}

/// Claims an id for a flow between `networks` (a [`Pair`]: the client's and the backend's) to this backend and `port`
/// (a [`BackendPort`]), which takes the next place of its ring; `range` is a [`SnatRange`]. Returns [`Claimed`].
///
/// The id is that of the flow that has to leave the place, so that a flood turns its own ids round and leaves those of
/// the queue alone; or else one of the queue. If that has none, the other flow keeps its place. A client behind a cookie is no
/// flood: it gets an id of the queue, since a backend would take its SYN for one of the flow that has left.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_claim(networks: u32, range: u32, backend: u32, port: u32) -> u64 {
    let client = Pair::from_raw(networks).high();
    let Some(turn) = Slot::take(client, BackendPort::from_raw(port).is_udp()) else {
        return lb_take_free(networks, range, backend, port);
    };
    let mut claimed = Claimed::MISSED;
    if !BackendPort::from_raw(port).is_shown() {
        let taken = lb_take_over(turn.oldest, networks, range, backend, port);
        claimed = Claimed::from_raw(taken);
    }
    if claimed == Claimed::MISSED {
        claimed = Claimed::from_raw(lb_take_free(networks, range, backend, port));
        if claimed.result().is_ok() {
            half_open::lb_recycle(turn.oldest);
        }
    }
    turn.give(match claimed.result() {
        Ok((id, word)) => place(id, word.generation()),
        Err(_) => turn.oldest,
    });
    claimed.raw()
}

/// Claims the id of the flow with the place `oldest`, if that has to leave, and the new flow may have its id; as
/// [`lb_claim`], or [`Claimed::MISSED`].
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_take_over(oldest: u64, networks: u32, range: u32, backend: u32, port: u32) -> u64 {
    let Some((entry, word)) = half_open::leaving(oldest) else {
        return Claimed::MISSED.raw();
    };
    let port = BackendPort::from_raw(port);
    if lb_has_id(networks, range, entry.id) == 0 || in_time_wait(&entry, word, backend, port) {
        return Claimed::MISSED.raw();
    }
    let claimed = word.claim(port.is_udp());
    if !half_open::evict(&entry, word, claimed) {
        return Claimed::MISSED.raw();
    }
    Claimed::of(entry.id, word, claimed).raw()
}

/// 1 if the id is one of these SNAT addresses of the backend's network, else 0: a ring is one for all networks of
/// backends and both families, and an address may be draining.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_has_id(networks: u32, range: u32, id: u32) -> u32 {
    let range = SnatRange::from_raw(range);
    let network = Pair::from_raw(networks).low();
    let (Ok(network), Some(page)) = (lookup::network_by_id(network), snat_page(id)) else {
        return 0;
    };
    let is_ipv6 = addr6::index(page.address).is_some();
    (network.has_slot(page.slot) && is_ipv6 == range.is_ipv6()).into()
}

/// The slot of a network's SNAT address at this place.
#[inline(always)]
fn slot(network: &Network, place: u32) -> Option<u16> {
    // The mask is for the verifier, and clears no bit.
    let place = place as usize & (MAX_SNAT_PER_NETWORK - 1);
    network
        .snat_slots
        .as_flattened()
        .get(place)
        .copied()
        .map(u16::from)
}

/// Claims an id of a queue; as [`lb_claim`]. The search begins with any of the addresses: a client that could choose would
/// use up one of them, whose ids all networks share. Of those that rest the first one is kept, which is the oldest, and taken
/// if there is no other; it is in no queue for these few instructions.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_take_free(networks: u32, range: u32, backend: u32, port: u32) -> u64 {
    let range = SnatRange::from_raw(range);
    let (first, addresses) = (range.first(), range.addresses());
    // SAFETY: no pointers.
    let start = maglev::index(unsafe { bpf_get_prandom_u32() }, addresses);
    let networks = Pair::from_raw(networks);
    let Ok(network) = lookup::network_by_id(networks.low()) else {
        return Claimed::refused(DropReason::RecordMissing).raw();
    };
    let (mut empty, mut kept, mut claimed) = (0, NONE, Claimed::MISSED);
    for _ in 0..ATTEMPTS {
        if empty >= addresses {
            break;
        }
        let mut offset = start + empty;
        if offset >= addresses {
            offset -= addresses;
        }
        let slot = slot(network, first + offset).unwrap_or_default();
        let popped = FREE_IDS.get(slot.into()).map(|queue| queue.pop());
        let id = |above| base(slot) + u32::from(above);
        match popped.map(|popped| popped.map(|above| above.map(id))) {
            Some(Ok(Some(id))) => match Claimed::from_raw(lb_take(id, backend, port, NO_REST)) {
                Claimed::IN_TIME_WAIT if kept == NONE => kept = id,
                Claimed::IN_TIME_WAIT => release(id),
                Claimed::MISSED => {}
                taken => {
                    claimed = taken;
                    break;
                }
            },
            Some(Err(_)) => {}
            _ => empty += 1,
        }
    }
    if kept != NONE {
        if claimed == Claimed::MISSED {
            claimed = Claimed::from_raw(lb_take(kept, backend, port, ANY));
            if claimed != Claimed::MISSED {
                count::note(networks.high(), UNRESTED);
            }
        } else {
            release(kept);
        }
    }
    match claimed {
        Claimed::MISSED => Claimed::refused(DropReason::SnatExhausted).raw(),
        taken => taken.raw(),
    }
}

/// What [`lb_take`] is to take.
const ANY: u32 = 0;
const NO_REST: u32 = 1;

/// Claims an id that was taken from its queue, as [`Claimed`]: missed if it is another flow's.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_take(id: u32, backend: u32, port: u32, what: u32) -> u64 {
    let Some(entry) = Entry::at(id) else {
        return Claimed::MISSED.raw();
    };
    let (word, port) = (entry.word(), BackendPort::from_raw(port));
    if what == NO_REST && in_time_wait(&entry, word, backend, port) {
        return Claimed::IN_TIME_WAIT.raw();
    }
    let claimed = word.claim(port.is_udp());
    if word.claimable() && entry.swap(word, claimed) {
        return Claimed::of(id, word, claimed).raw();
    }
    if was_silenced(&entry, word) {
        release(id);
    }
    Claimed::MISSED.raw()
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
fn in_time_wait(entry: &Entry, word: FlowState, backend: u32, port: BackendPort) -> bool {
    word.backend_closed_first()
        && entry.backend() == (Be32::from_raw(backend), port.port())
        && now().wrapping_sub(entry.last_seen()) < TIME_WAIT
}
