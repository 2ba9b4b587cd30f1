//! allocate: a flow id, which is also the SNAT port, for a new flow; and back into its queue.

use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use lb_common::{
    conntrack::{State, Word},
    maglev,
    maps::{
        flow::{FlowKey, TIME_SHIFT},
        network::Network,
        snat::{PAGE, SnatPage},
    },
    verdict::{DropReason, UNRESTED},
};

use crate::{
    count, end,
    entry::{Entry, NewFlow, now},
    maps::{FLOW_INDEX, FREE_IDS, SNAT_PAGES},
    ring,
};

/// Ids that are tried before a new flow is refused; each miss is an id that somebody else won, or
/// an address without free ids. Twice as many cost the verifier ten times as much.
const ATTEMPTS: u32 = 8;
/// The attempt that takes an id even if it has not rested.
const LAST_ATTEMPT: u32 = ATTEMPTS - 1;
/// How long an end of a connection rests in TIME_WAIT on Linux: 60 s, in units of coarse time.
const TIME_WAIT: u32 = (60_000_000_000u64 >> TIME_SHIFT) as u32;

/// Claims an id in the backend's `network`, writes the flow and makes it findable.
#[inline(always)]
pub(crate) fn allocate(
    network: &Network,
    key: &FlowKey,
    udp: bool,
    flow: &NewFlow,
) -> Result<Entry, DropReason> {
    let (entry, claimed) = claim(network, key, udp, flow)?;
    entry.fill(key, flow);
    let published = claimed.publish();
    if !entry.swap(claimed, published) {
        return Err(DropReason::FlowRace);
    }
    match index(&entry, key) {
        Ok(()) => {
            end::began(&entry, published);
            ring::enter(&entry, key.network, udp, published.generation());
            Ok(entry)
        }
        Err(reason) => {
            if entry.swap(published, published.withdraw()) {
                release(entry.id);
            }
            Err(reason)
        }
    }
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

#[inline(always)]
fn claim(
    network: &Network,
    key: &FlowKey,
    udp: bool,
    flow: &NewFlow,
) -> Result<(Entry, Word), DropReason> {
    let addresses = network.snat_count;
    let start = maglev::index(maglev::hash(key).rotate_left(16), addresses);
    let mut empty = 0;
    for attempt in 0..ATTEMPTS {
        if empty >= addresses {
            break;
        }
        let mut offset = start + empty;
        if offset >= addresses {
            offset -= addresses;
        }
        let slot = network.snat_slots.get(offset as usize).copied();
        let queue = slot.and_then(|slot| FREE_IDS.get(u32::from(slot)));
        match queue.map(|queue| queue.pop()) {
            Some(Ok(Some(id))) => {
                let entry = Entry::at(id).ok_or(DropReason::RecordMissing)?;
                let word = entry.word();
                if rests(&entry, word, flow) {
                    if attempt < LAST_ATTEMPT {
                        release(id);
                        continue;
                    }
                    count::note(key.network, UNRESTED);
                }
                let claimed = word.claim(udp);
                if word.claimable() && entry.swap(word, claimed) {
                    forget(&entry, word);
                    return Ok((entry, claimed));
                }
            }
            Some(Err(_)) => {}
            _ => empty += 1,
        }
    }
    Err(DropReason::SnatExhausted)
}

/// Whether the backend's end of the id's last connection may still rest in TIME_WAIT, and would not
/// take a new connection from the same port. For another backend it is another tuple.
#[inline(always)]
fn rests(entry: &Entry, word: Word, flow: &NewFlow) -> bool {
    word.backend_closed_first()
        && entry.backend() == (flow.backend, flow.backend_port)
        && now().wrapping_sub(entry.last_seen()) < TIME_WAIT
}

/// Takes the earlier flow of a newly claimed entry out of the request index.
///
/// Race: between look-up and removal another CPU may have given this key a new id (the same client
/// port was opened again); its index word is then lost, and put back by the flow's first reply.
#[inline(always)]
fn forget(entry: &Entry, word: Word) {
    if word.has_flow() {
        let key = entry.key(word);
        // SAFETY: the value is a plain integer.
        if unsafe { FLOW_INDEX.get(&key) } == Some(&entry.id) {
            let _gone: Result<(), i64> = FLOW_INDEX.remove(&key).map_err(Into::into);
        }
    }
}

/// Makes a published flow findable by its requests.
///
/// Two CPUs may create the same flow at once; the second finds the first one's live entry, gives
/// its own up and drops the packet, which the client repeats.
#[inline(always)]
fn index(entry: &Entry, key: &FlowKey) -> Result<(), DropReason> {
    if FLOW_INDEX
        .insert(key, &entry.id, u64::from(BPF_NOEXIST))
        .is_ok()
    {
        return Ok(());
    }
    // SAFETY: the value is a plain integer.
    let other = unsafe { FLOW_INDEX.get(key) }.and_then(|&id| Entry::at(id));
    if let Some(other) = other {
        let word = other.word();
        let live = word.translates() && !matches!(word.state(), State::Closed);
        if live && other.key(word) == *key {
            return Err(DropReason::FlowRace);
        }
    }
    FLOW_INDEX
        .insert(key, &entry.id, u64::from(BPF_ANY))
        .map_err(|_| DropReason::FlowTableFull)?;
    // Another CPU may have done the same for the same key: only one id stands there.
    // SAFETY: the value is a plain integer.
    if unsafe { FLOW_INDEX.get(key) } == Some(&entry.id) {
        Ok(())
    } else {
        Err(DropReason::FlowRace)
    }
}

/// Puts a flow back into the request index if it was lost; see [`forget`].
#[inline(always)]
pub(crate) fn reindex(entry: &Entry, key: &FlowKey) {
    // An error says that the flow is there, or that the table is full: nothing to do either way.
    let _there: Result<(), i64> = FLOW_INDEX
        .insert(key, &entry.id, u64::from(BPF_NOEXIST))
        .map_err(Into::into);
}
