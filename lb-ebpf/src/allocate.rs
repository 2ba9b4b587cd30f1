//! allocate: a flow id, which is also the SNAT port, for a new flow; and back into its queue.

use aya_ebpf::bindings::BPF_NOEXIST;
use lb_common::{
    addr::{Be16, Be32},
    conntrack::{State, Word},
    maglev,
    maps::{
        flow::{FlowKey, TIME_SHIFT},
        network::{MAX_SNAT_PER_NETWORK, Network},
        snat::{PAGE, SnatPage},
    },
    verdict::{DropReason, UNRESTED},
};

use crate::{
    atomic, count, emit, end,
    entry::{Entry, NewFlow, now},
    family::Family,
    maps::{FLOW_INDEX, FREE_IDS, SNAT_PAGES},
    ring,
};

/// Ids that are tried before a new flow is refused; each miss is an id that somebody else won, or
/// an address without free ids. Twice as many cost the verifier six times as much.
const ATTEMPTS: u32 = 8;
/// The attempt that takes an id even if it has not rested.
const LAST_ATTEMPT: u32 = ATTEMPTS - 1;
const _: () = assert!(MAX_SNAT_PER_NETWORK.is_power_of_two());
/// Swaps that are tried to withdraw a flow that replies change; one that stays is half-open, and expires.
const SWAPS: u32 = 4;
/// What the index says of a tuple while its word is being removed; id 0 is no flow's.
const FORGOTTEN: u32 = 0;
/// How long an end of a connection rests in TIME_WAIT on Linux: 60 s, in units of coarse time.
const TIME_WAIT: u32 = (60_000_000_000u64 >> TIME_SHIFT) as u32;

/// Claims an id in the backend's `network`, writes the flow of the packet with this header and makes it
/// findable. Gives its entry, and that entry's generation.
#[inline(always)]
pub(crate) fn allocate<I: Family>(
    (id, network): (u16, &Network),
    client: &I,
    key: &FlowKey,
    udp: bool,
    flow: &NewFlow,
) -> Result<(Entry, u32), DropReason> {
    let snat = network.snat(I::IS_IPV6);
    let (entry, claimed) = claim(id, snat, key, udp, flow)?;
    entry.fill(key, flow);
    client.note_client(entry.id);
    let published = claimed.publish();
    if !entry.swap(claimed, published) {
        return Err(DropReason::FlowRace);
    }
    match index(&entry, key) {
        Ok(()) => {
            end::began(&entry, published);
            ring::enter(&entry, key.network, udp, published.generation());
            Ok((entry, published.generation()))
        }
        Err(reason) => {
            if withdraw(&entry, published) {
                release(entry.id);
            }
            Err(reason)
        }
    }
}

/// Takes a published flow back; false if it is over already, and everything given back.
///
/// Race: a late reply to the id's earlier flow may change the word of a UDP flow meanwhile.
#[inline(always)]
fn withdraw(entry: &Entry, published: Word) -> bool {
    let mut word = published;
    for _ in 0..SWAPS {
        if entry.swap(word, word.withdraw()) {
            return true;
        }
        word = entry.word();
        if word.generation() != published.generation() || word.claimable() {
            return false;
        }
    }
    false
}

/// The SNAT page of a flow id.
#[inline(always)]
pub(crate) fn snat_page(id: u32) -> Option<&'static SnatPage> {
    SNAT_PAGES.get(id / PAGE)
}

/// Puts the id of an entry that is free or closed at the tail of its queue.
#[inline(always)]
pub(crate) fn release(id: u32) {
    if let Some(queue) = snat_page(id).and_then(|page| FREE_IDS.get(u32::from(page.slot))) {
        // The queue has room for every id of its address, and an id is in it at most once. A busy
        // lock (only from NMI context) would lose the id.
        let _lost: Result<(), i32> = queue.push(&id, 0);
    }
}

/// Claims an id of one of a network's SNAT addresses: its entry, and the word that says so.
#[inline(always)]
fn claim(
    network: u16,
    (first, addresses): (u32, u32),
    key: &FlowKey,
    udp: bool,
    flow: &NewFlow,
) -> Result<(Entry, Word), DropReason> {
    let start = maglev::index(maglev::hash(key).rotate_left(16), addresses);
    let networks = u32::from(key.network) << 16 | u32::from(network);
    let range = start << 16 | first << 8 | addresses;
    let port = u32::from(udp) << 16 | u32::from(flow.backend_port.raw());
    let claimed = lb_claim(networks, range, flow.backend.raw(), port);
    if claimed >> 32 == 0 {
        return Err(count::reason(claimed as u32));
    }
    let entry = Entry::at(claimed as u32).ok_or(DropReason::RecordMissing)?;
    Ok((entry, Word::from_raw((claimed >> 32) as u32)))
}

/// Claims an id for a flow between `networks` (the client's and the backend's) to this backend and port (the
/// lowest bit above that: UDP); `range` is the SNAT address to begin with, the first one, and how many there are.
/// Returns the id, and in the upper half its entry's word; or why there is none. A function of its own for the
/// verifier, as `lb_refuse`: it walks the attempts once, and not once for each way to them.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_claim(networks: u32, range: u32, backend: u32, port: u32) -> u64 {
    let (start, first, addresses) = (range >> 16, range >> 8 & 0xff, range & 0xff);
    let backend = (Be32::from_raw(backend), Be16::from_raw(port as u16));
    let client_network = (networks >> 16) as u16;
    let claimed = emit::network(networks as u16).and_then(|network| {
        let range = (start, first, addresses);
        claim_of(network, range, client_network, backend, port >> 16 != 0)
    });
    match claimed {
        Ok((id, word)) => u64::from(word.raw()) << 32 | u64::from(id),
        Err(reason) => reason as u64,
    }
}

#[inline(always)]
fn claim_of(
    network: &Network,
    (start, first, addresses): (u32, u32, u32),
    client_network: u16,
    backend: (Be32, Be16),
    udp: bool,
) -> Result<(u32, Word), DropReason> {
    let mut empty = 0;
    for attempt in 0..ATTEMPTS {
        if empty >= addresses {
            break;
        }
        let mut offset = start + empty;
        if offset >= addresses {
            offset -= addresses;
        }
        // The mask is for the verifier, and clears no bit.
        let place = (first + offset) as usize & (MAX_SNAT_PER_NETWORK - 1);
        let slot = network.snat_slots.get(place).copied();
        let queue = slot.and_then(|slot| FREE_IDS.get(u32::from(slot)));
        match queue.map(|queue| queue.pop()) {
            Some(Ok(Some(id))) => {
                let entry = Entry::at(id).ok_or(DropReason::RecordMissing)?;
                let word = entry.word();
                if rests(&entry, word, backend) {
                    if attempt < LAST_ATTEMPT {
                        release(id);
                        continue;
                    }
                    count::note(client_network, UNRESTED);
                }
                let claimed = word.claim(udp);
                if word.claimable() && entry.swap(word, claimed) {
                    forget(&entry, word);
                    return Ok((id, claimed));
                }
                if was_silenced(&entry, word) {
                    release(id);
                }
            }
            Some(Err(_)) => {}
            _ => empty += 1,
        }
    }
    Err(DropReason::SnatExhausted)
}

/// Whether userspace, and no other claim, has changed an entry since its word was read: it must not
/// translate any more, and its id is still the one that was taken from the queue.
#[inline(always)]
fn was_silenced(entry: &Entry, word: Word) -> bool {
    let now = entry.word();
    matches!(word.state(), State::Closed | State::Ended)
        && (now == word.end() || now == word.forget())
}

/// Whether the backend's end of the id's last connection may still rest in TIME_WAIT, and would not
/// take a new connection from the same port. For another backend it is another tuple.
#[inline(always)]
fn rests(entry: &Entry, word: Word, backend: (Be32, Be16)) -> bool {
    word.backend_closed_first()
        && entry.backend() == backend
        && now().wrapping_sub(entry.last_seen()) < TIME_WAIT
}

/// Takes the earlier flow of a newly claimed entry out of the request index.
///
/// Another CPU may give this key a new id at the same time (the same client port is opened again).
/// Both swap the index word, so one of them wins: who finds it forgotten drops its packet, and who
/// finds another id there leaves it alone.
#[inline(always)]
fn forget(entry: &Entry, word: Word) {
    if word.has_flow() {
        forget_key(entry, &entry.key(word));
    }
}

/// The same for the flow of this key, if it is over but still translates: its client has opened its port
/// again, and not to a flow.
#[inline(always)]
pub(crate) fn forget_over(key: &FlowKey) {
    // SAFETY: the value is a plain integer; the entry's tuple is verified below.
    let found = unsafe { FLOW_INDEX.get(key) };
    if let Some(entry) = found.and_then(|&id| Entry::at(id)) {
        let word = entry.word();
        if matches!(word.state(), State::Closed) && entry.key(word) == *key {
            forget_key(&entry, key);
        }
    }
}

#[inline(always)]
fn forget_key(entry: &Entry, key: &FlowKey) {
    if let Some(place) = FLOW_INDEX.get_ptr_mut(key)
        && swap_place(place, entry.id, FORGOTTEN)
    {
        let _gone: Result<(), i64> = FLOW_INDEX.remove(key).map_err(Into::into);
    }
}

/// Makes a published flow findable by its requests.
///
/// Two CPUs may create the same flow at once; the second finds the first one's live entry, or the
/// index word changed by it, gives its own up and drops the packet, which the client repeats.
#[inline(always)]
fn index(entry: &Entry, key: &FlowKey) -> Result<(), DropReason> {
    if FLOW_INDEX
        .insert(key, &entry.id, u64::from(BPF_NOEXIST))
        .is_ok()
    {
        return Ok(());
    }
    // None where the table is full, or the word was removed at this moment.
    let place = FLOW_INDEX
        .get_ptr_mut(key)
        .ok_or(DropReason::FlowTableFull)?;
    // SAFETY: a live value of the map, which other CPUs change by atomic operations only.
    let id = unsafe { place.read_volatile() };
    let other = Entry::at(id).ok_or(DropReason::RecordMissing)?;
    let word = other.word();
    let live = word.translates() && !matches!(word.state(), State::Closed);
    if id == FORGOTTEN || live && other.key(word) == *key || !swap_place(place, id, entry.id) {
        return Err(DropReason::FlowRace);
    }
    Ok(())
}

/// Changes an index word if it still is `old`.
///
/// A removed word's memory is the map's, and may be another key's word by now: `old` tells, unless
/// that key's new flow has taken this very id within these few instructions. Then two flows are lost
/// from the index, and their clients begin anew.
#[inline(always)]
fn swap_place(place: *mut u32, old: u32, new: u32) -> bool {
    // SAFETY: a value of the hash map: memory that is never freed, aligned to eight bytes.
    unsafe { atomic::compare_and_swap(place, old, new) }
}

/// Puts a flow back into the request index if it was lost; see [`swap_place`].
#[inline(always)]
pub(crate) fn reindex(entry: &Entry, key: &FlowKey) {
    // An error says that the flow is there, or that the table is full: nothing to do either way.
    let _there: Result<(), i64> = FLOW_INDEX
        .insert(key, &entry.id, u64::from(BPF_NOEXIST))
        .map_err(Into::into);
}
