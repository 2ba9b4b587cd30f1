//! What a flow's packets add to its entry, and where that goes when another flow takes the entry.
//!
//! Subprograms but for the packets themselves: the rest is once in a flow.

use lb_common::{
    maps::counts::{
        BOUND, BYTES_REPLY, BYTES_REQUEST, CONNECT_US, CONNECTS, FAILED, FIRST_BYTE_US,
        FIRST_BYTES, FLOWS, PACKETS_REPLY, PACKETS_REQUEST, REPEATED, ServiceNumber, bucket,
    },
    traffic::{Amount, Spilled, spill_place},
};

use crate::{
    counts::{CountOwners, CpuRecord, note_service},
    flow::entry::{Entry, monotonic_us},
    maps::SPILLED,
    subprogram::Earlier,
};

/// Counts a packet of the client.
#[inline(always)]
pub(crate) fn count_request(entry: &Entry, bytes: u64) {
    let traffic = entry.traffic_request().plus(bytes);
    entry.set_traffic_request(traffic);
    entry.touch();
    if traffic.is_full() {
        lb_spill(entry.id);
    }
}

/// Counts a packet of the backend.
#[inline(always)]
pub(crate) fn count_reply(entry: &Entry, bytes: u64) {
    let traffic = entry.traffic_reply().begun().plus(bytes);
    entry.set_traffic_reply(traffic);
    entry.touch_reply();
    if traffic.is_full() {
        lb_spill(entry.id);
    }
}

/// The flow of this id has its first reply: how long that took. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_answered(id: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    let waiting = entry.traffic_reply();
    if !waiting.is_unanswered() {
        return 0;
    }
    entry.set_traffic_reply(waiting.begun());
    let us = waiting.waited(monotonic_us());
    let owners = owners(&entry);
    owners.each(|counts, _| {
        counts.add(CONNECTS, 1);
        counts.add(CONNECT_US, us);
    });
    note_service(owners.service, ServiceNumber::connected(bucket(us)));
    0
}

/// The flow of this id has been bound, and is counted with its owners: by a name, if `named` is 1. It waits for the backend's first
/// data, as one that was handed over. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_bound(id: u32, named: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    owners(&entry).each(|counts, _| {
        counts.add(FLOWS, 1);
        counts.add(BOUND, named.into());
    });
    let waiting = entry.traffic_reply();
    lb_answered(id);
    entry.set_traffic_reply(waiting);
    0
}

/// The flow of this id, which was to be bound, has no backend: it is counted with its owners as one that has failed. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_unbound(id: u32) -> u32 {
    if let Some(entry) = Entry::at(id) {
        owners(&entry).each(|counts, _| {
            counts.add(FLOWS, 1);
            counts.add(FAILED, 1);
        });
    }
    0
}

/// As [`count_reply`], for a flow that was handed over: it waits for the first data, of which this segment has `payload`
/// bytes.
#[inline(always)]
pub(crate) fn count_spliced_reply(entry: &Entry, bytes: u64, payload: u16) {
    let waiting = entry.traffic_reply();
    if waiting.is_unanswered() {
        if payload > 0 {
            lb_note_first_byte(entry.id);
        } else if let Some(waiting) = waiting.wait(bytes) {
            entry.set_traffic_reply(waiting);
            entry.touch_reply();
            return;
        }
    }
    count_reply(entry, bytes);
}

/// The first data of the backend have come, for the flow with this id, which was handed over. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_note_first_byte(id: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    let us = entry.traffic_reply().waited(monotonic_us());
    let owners = owners(&entry);
    owners.each(|counts, _| {
        counts.add(FIRST_BYTES, 1);
        counts.add(FIRST_BYTE_US, us);
    });
    note_service(owners.service, ServiceNumber::first_byte(bucket(us)));
    0
}

/// The backend has closed the flow: has it ever answered?
#[inline(always)]
pub(crate) fn note_refusal(entry: &Entry) {
    if entry.traffic_reply().is_unanswered() {
        lb_note_failed(entry.id);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_note_failed(id: u32) -> u32 {
    if let Some(entry) = Entry::at(id) {
        owners(&entry).each(|counts, _| counts.add(FAILED, 1));
    }
    0
}

/// The client has repeated the SYN of the flow.
#[inline(always)]
pub(crate) fn repeated(entry: &Entry) {
    owners(entry).each(|counts, _| counts.add(REPEATED, 1));
}

/// The owners that an entry is one flow more for, when it is handed in.
#[derive(Clone, Copy)]
pub(crate) enum HandedIn {
    /// All of them: the flow is over.
    All = 3,
    /// The backend: the connection goes on with another one.
    Backend = 2,
    /// None: a connection with a splice has been counted when that was made, by the process or by [`lb_bound`].
    None = 0,
}

/// Hands what an entry that has just been claimed has of an earlier flow to the owners of that.
#[inline(always)]
pub(crate) fn hand_in(entry: &Entry, earlier: Earlier) {
    let flows = match earlier.is_spliced() {
        true => HandedIn::None,
        false => HandedIn::All,
    };
    if earlier != Earlier::NONE {
        lb_hand_in(entry.id, flows as u32);
    }
}

/// Hands in an entry that is claimed; `flows` is one of [`HandedIn`]. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_hand_in(id: u32, flows: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    let (request, reply) = (entry.traffic_request(), entry.traffic_reply());
    let (sent, received) = (request.amount(), reply.amount());
    if sent.packets == 0 && received.packets == 0 {
        return 0;
    }
    let failed = u64::from(reply.is_unanswered());
    let (first, backend) = (u64::from(flows & 1), u64::from(flows >> 1 & 1));
    owners(&entry).each(|counts, is_backend| {
        let flows = if is_backend { backend } else { first };
        counts.add(FLOWS, flows);
        counts.add(FAILED, failed & flows);
        add(counts, sent, received);
    });
    0
}

/// Takes what is full out of the entry with this id. Returns 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_spill(id: u32) -> u32 {
    let Some(entry) = Entry::at(id) else {
        return 0;
    };
    let ((sent, request), (received, reply)) = (
        entry.traffic_request().spill(),
        entry.traffic_reply().spill(),
    );
    if sent != Amount::default() {
        entry.set_traffic_request(request);
    }
    if received != Amount::default() {
        entry.set_traffic_reply(reply);
    }
    owners(&entry).each(|counts, _| add(counts, sent, received));
    note_spilled(&entry, sent, received);
    0
}

#[inline(always)]
fn add(counts: CpuRecord, sent: Amount, received: Amount) {
    counts.add(BYTES_REQUEST, sent.bytes);
    counts.add(PACKETS_REQUEST, sent.packets);
    counts.add(BYTES_REPLY, received.bytes);
    counts.add(PACKETS_REPLY, received.packets);
}

/// Adds to what the flow has spilled.
#[inline(always)]
fn note_spilled(entry: &Entry, sent: Amount, received: Amount) {
    let Some(place) = SPILLED.get_ptr_mut(spill_place(entry.id)) else {
        return;
    };
    let generation = entry.word().generation();
    // SAFETY: a live value of an array map. Of two CPUs that write it at the same moment one may lose its amount.
    let before = unsafe { place.read() };
    let of_flow = match before.id == entry.id && before.generation == generation {
        true => before,
        false => Spilled {
            id: entry.id,
            generation,
            ..Spilled::default()
        },
    };
    // SAFETY: the same.
    unsafe { place.write(of_flow.plus(sent, received)) };
}

#[inline(always)]
fn owners(entry: &Entry) -> CountOwners {
    let (network, service) = entry.owners();
    CountOwners {
        network,
        service,
        backend: entry.backend_id(),
    }
}
