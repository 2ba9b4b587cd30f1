//! Ports of a network's flows that are lent to sockets of its cell, so that the data plane can
//! take a connection over where it stands.
//!
//! A port is taken by one swap of its word, and is `LOCAL` from then on. As long as this process lives it
//! marks the port as in use from time to time. One whose socket is gone is put back a moment later, so that
//! what a backend sent last meets the cell and no other flow; one whose process was killed is not marked any
//! more, and ends after a while as an idle flow does.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddrV4,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_common::{
    addr::{Be16, Be32, Mac},
    conntrack::{FlowState, State},
    maps::{
        flow::{Flow, FlowKey},
        splice::Splice,
    },
    traffic::Traffic,
};

use crate::{
    dataplane::{
        counts::CountTable,
        flows::{FlowOwners, FlowTable, UsageTable, coarse_now},
        ids::FreeIds,
        maps::Maps,
        splices::{BackendSynAck, NoSplice, SpliceTable},
    },
    flows::idle::{age, ticks},
    model::snat::{SnatFlowId, SnatSlot},
    proxy::{
        connections::Leg,
        fair_share::{Resource, Shares, Spent, TakenShare},
    },
};

/// How often this process marks its ports as in use.
pub(crate) const LEASE_HEARTBEAT: Duration = Duration::from_secs(20);
/// How often ports are put back that were left a moment ago.
pub(crate) const PUT_BACK_INTERVAL: Duration = Duration::from_millis(500);
/// How long a port is still the cell's when its socket is gone: what comes late of its backend, as the SYN-ACK of
/// one that was given up, is answered there with a reset.
const LATE_SEGMENT_TIME: Duration = Duration::from_secs(1);
/// Of how many ports of flows sockets may have one.
const OF_PORTS: usize = 2;
/// Ids that are tried until one is free and has rested.
const ATTEMPTS: usize = 8;
/// How long a backend's end of a connection rests (TIME_WAIT on Linux).
const TIME_WAIT: Duration = Duration::from_secs(60);

/// The tables of flows, mapped once for all networks.
#[derive(Clone)]
pub struct Tables(Arc<Mapped>);

struct Mapped {
    table: FlowTable,
    splices: SpliceTable,
    usage: UsageTable,
    counts: Option<CountTable>,
}

impl Tables {
    /// Those that are pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If one of them cannot be mapped.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self(Arc::new(Mapped {
            table: FlowTable::open(folder)?,
            splices: SpliceTable::open(folder)?.with_names()?,
            usage: UsageTable::open(folder)?,
            counts: CountTable::open(folder)?,
        })))
    }
}

/// The flows of a network, as far as sockets may have them.
#[derive(Clone)]
pub struct PortLeases(Arc<NetworkLeases>);

impl std::fmt::Debug for PortLeases {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Leases").finish_non_exhaustive()
    }
}

struct NetworkLeases {
    network: Arc<str>,
    shares: Shares,
    maps: Mutex<Maps>,
    tables: Tables,
    lent: Mutex<Lent>,
}

/// Ports that this process has.
#[derive(Debug, Default)]
struct Lent {
    /// The flows of those that sockets have.
    ids: BTreeSet<u32>,
    /// Those that they have left, the oldest first.
    left: VecDeque<Left>,
}

/// A port that its socket has left.
#[derive(Debug)]
struct Left {
    id: u32,
    slot: u16,
    word: FlowState,
    /// The word of an entry that has been left.
    over: FlowState,
    since: Instant,
    /// Of what its client's network may have.
    _part: Option<TakenShare>,
}

impl Lent {
    /// Takes out what was left so long ago that nothing comes there any more.
    fn take_left(&mut self, now: Instant) -> Vec<Left> {
        let is_late = |left: &Left| now.saturating_duration_since(left.since) >= LATE_SEGMENT_TIME;
        let count = self.left.partition_point(is_late);
        self.left.drain(..count).collect()
    }
}

/// For which connection a port is to be had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Purpose {
    /// The client's side.
    pub(crate) key: FlowKey,
    /// Id of its service.
    pub(crate) service: u16,
    /// Id and address of its backend.
    pub(crate) backend: (u32, SocketAddrV4),
    /// The largest segments that its client takes, if it may be handed over: the backend gets that MSS.
    pub(crate) mss: Option<u16>,
}

/// A port that a socket has. Dropped, it is put back a moment later, unless it is a flow's by then.
#[derive(Debug)]
pub(crate) struct PortLease {
    leases: PortLeases,
    /// The flow that it is of.
    pub(crate) id: u32,
    slot: u16,
    word: FlowState,
    flow: Flow,
    /// Address and port.
    pub(crate) source: SocketAddrV4,
    /// Since when what the client sends is dropped.
    held: Option<Instant>,
    /// Whether the backend's end rests now that the connection is over.
    backend_rests: bool,
    /// Of what its client's network may have.
    part: Option<TakenShare>,
}

/// The flow has changed: the data plane or another thread has done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

/// Why there is no splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// As for [`Lost`].
    Lost,
    /// There are as many as may be.
    NoRoom,
}

impl PortLeases {
    /// Forgets the names of the flows of all networks that are over.
    ///
    /// # Errors
    ///
    /// If the map of names cannot be read.
    pub(in crate::proxy) fn forget_names(&self) -> Result<()> {
        self.mapped().splices.forget_names()
    }

    /// Those of `network`, on these maps, of which `tables` are some; divided among the networks of clients.
    pub fn new(network: &str, tables: Tables, maps: Maps, shares: Shares) -> Self {
        Self(Arc::new(NetworkLeases {
            network: network.into(),
            shares,
            maps: Mutex::new(maps),
            tables,
            lent: Mutex::default(),
        }))
    }

    fn mapped(&self) -> &Mapped {
        &self.0.tables.0
    }

    fn maps(&self) -> MutexGuard<'_, Maps> {
        self.0.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, Lent> {
        self.0.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks all ports as in use.
    pub(crate) fn say(&self) {
        let now = now();
        for &id in &self.lent().ids {
            self.mapped().table.touch(id, now);
        }
    }

    /// Puts back the ports that were left a moment ago.
    pub(crate) fn put_back(&self) {
        let all = self.lent().take_left(Instant::now());
        for Left {
            id,
            slot,
            word,
            over,
            ..
        } in all
        {
            // What has changed it has ended it, as after a process was stopped for minutes.
            if self.mapped().table.swap(id, word, over) {
                self.give_back(id, slot);
            }
        }
    }

    /// Lends a port of the address in this slot, which is one of `slots`, if one is free.
    ///
    /// # Errors
    ///
    /// If sockets have as many as they may, or those of clients of the same network do.
    pub(crate) fn lend(
        &self,
        slot: &SnatSlot,
        slots: &[SnatSlot],
        purpose: &Purpose,
    ) -> Result<Option<PortLease>, Spent> {
        let ports = slots.iter().map(|slot| usize::from(slot.snat.ports));
        let resource = Resource::FlowPorts(Arc::clone(&self.0.network));
        let most = ports.sum::<usize>() / OF_PORTS;
        let part = self.0.shares.take(resource, purpose.key.network, most)?;
        let mut lease = self.lend_any(slot, purpose);
        if let Some(lease) = &mut lease {
            lease.part = Some(part);
        }
        Ok(lease)
    }

    fn lend_any(&self, slot: &SnatSlot, purpose: &Purpose) -> Option<PortLease> {
        let queue = self.maps().free_ids(slot.slot);
        let mut queue = queue.ok().flatten()?;
        for attempt in 0..ATTEMPTS {
            // An error is a queue without free ids.
            let id = queue.pop().ok()?;
            let is_last = attempt + 1 == ATTEMPTS;
            if let Some(lease) = self.claim(SnatFlowId { id, slot }, purpose, &mut queue, is_last) {
                return Some(lease);
            }
        }
        None
    }

    fn claim(
        &self,
        SnatFlowId { id, slot }: SnatFlowId<'_>,
        purpose: &Purpose,
        queue: &mut FreeIds,
        is_last: bool,
    ) -> Option<PortLease> {
        let table = &self.mapped().table;
        let (word, port) = (table.word(id)?, table.port(id)?);
        let before = word
            .claimable()
            .then(|| table.fields(id, [word; 2]))
            .flatten();
        if !is_last && before.is_some_and(|flow| rests(word, &flow, purpose.backend.1)) {
            put_back(queue, id);
            return None;
        }
        if !word.claimable() {
            return None;
        }
        // In one step: a process that is killed in between leaves a port that expires as an idle flow does.
        let lent = word.claim(false).lend();
        if !table.swap(id, word, lent) {
            if table.word(id).is_some_and(|now| was_silenced(word, now)) {
                put_back(queue, id);
            }
            return None;
        }
        if let Some(flow) = before.filter(|_| word.has_flow()) {
            if let Some(counts) = &self.mapped().counts {
                counts.hand_in(word, &flow);
            }
            // A word that is left leads nowhere.
            let _left = self.maps().flow_lines.remove(&flow.key(word.is_udp()), id);
        }
        let flow = Flow {
            snat_port: port,
            ..record(purpose)
        };
        table.fill(id, &flow);
        self.lent().ids.insert(id);
        Some(PortLease {
            leases: self.clone(),
            id,
            slot: slot.slot,
            word: lent,
            flow,
            source: SocketAddrV4::new(slot.record.into(), port.get()),
            held: None,
            backend_rests: false,
            part: None,
        })
    }

    fn give_back(&self, id: u32, slot: u16) {
        let queue = self.maps().free_ids(slot);
        if let Ok(Some(mut queue)) = queue {
            put_back(&mut queue, id);
        }
    }
}

/// The tail of the queue: an id there waits longest.
fn put_back(queue: &mut FreeIds, id: u32) {
    // It has room for every id. One that is lost all the same is found by the next start.
    let _full = queue.push(id);
}

/// Whether it is our own expiry, and no other claim, that has changed a word: the id is still the one that
/// was taken from the queue.
fn was_silenced(before: FlowState, now: FlowState) -> bool {
    let was_over = matches!(before.state(), State::Closed | State::Ended);
    was_over && now != before && (now == before.end() || now == before.forget())
}

/// Whether the backend's end of the last connection from this port may still be there.
fn rests(word: FlowState, flow: &Flow, backend: SocketAddrV4) -> bool {
    let same =
        (flow.backend, flow.backend_port) == (Be32::from(*backend.ip()), Be16::new(backend.port()));
    word.backend_closed_first() && same && age(now(), flow.last_seen) < ticks(TIME_WAIT)
}

fn record(purpose: &Purpose) -> Flow {
    let Purpose {
        key,
        service,
        backend: (backend_id, backend),
        mss: _,
    } = *purpose;
    Flow {
        client: key.client,
        vip: key.vip,
        client_port: key.client_port,
        vip_port: key.vip_port,
        network: key.network,
        backend: (*backend.ip()).into(),
        backend_port: Be16::new(backend.port()),
        backend_id: u16::try_from(backend_id).unwrap_or_default(),
        service,
        last_seen: now(),
        ..Flow::default()
    }
}

impl PortLease {
    /// Gives the port back at once: only this process has seen it.
    pub(crate) fn give_back(mut self) {
        if self.change(self.word.withdraw()).is_ok() {
            self.leases.give_back(self.id, self.slot);
        }
    }

    /// The connection is over, and the backend has closed its side first: its end rests, so the port is given
    /// to a flow to this backend only where there is no other.
    pub(crate) const fn backend_rests(&mut self) {
        self.backend_rests = true;
    }

    /// From now on what the client sends is dropped, and nothing of its socket leaves the cell.
    ///
    /// # Errors
    ///
    /// If the flow is not this socket's any more, or the index is full.
    pub(super) fn hold(&mut self) -> Result<(), Lost> {
        self.held = Some(Instant::now());
        self.change(self.word.hold())?;
        let key = self.flow.key(false);
        let indexed = self.leases.maps().flow_lines.insert(&key, self.id);
        indexed.map_err(|_| Lost)
    }

    /// The connection is the sockets' again.
    pub(super) fn let_go(&mut self) {
        let key = self.flow.key(false);
        // A word that is left leads nowhere.
        let _left = self.leases.maps().flow_lines.remove(&key, self.id);
        // What has changed it has ended it.
        let _lost = self.change(self.word.release());
        self.say_held();
    }

    /// What the backend sends goes to the client from now on, by this splice. The client expects the first of
    /// `numbers` next and the backend the second, both in the backend's numbers. The leg says when the backend was sought, and
    /// which name was requested.
    ///
    /// # Errors
    ///
    /// If the flow is not this socket's any more, or there is no room for another splice.
    pub(super) fn splice(
        &mut self,
        splice: &Splice,
        client_mac: Mac,
        numbers: [u32; 2],
        leg: &Leg,
    ) -> Result<(), Refused> {
        let [ack_request, ack_reply] = numbers;
        self.flow.traffic_reply = Traffic::unanswered_since(leg.since()).raw();
        self.flow.client_mac = client_mac;
        self.flow.ack_request = Be32::new(ack_request);
        self.flow.ack_reply = Be32::new(ack_reply);
        let shared = self.leases.mapped();
        shared.table.fill(self.id, &self.flow);
        let name = leg.name.as_deref().unwrap_or_default().as_bytes();
        let written = shared.splices.set(self.id, self.word, splice, name);
        written.map_err(|NoSplice| Refused::NoRoom)?;
        let spliced = self.change(self.word.splice());
        spliced.map_err(|Lost| Refused::Lost)?;
        self.count(1);
        Ok(())
    }

    /// Takes that back.
    pub(super) fn unsplice(&mut self) {
        if self.change(self.word.unsplice()).is_ok() {
            self.count(-1);
        }
    }

    /// What the client sends goes to the backend from now on: the connection is the data plane's.
    ///
    /// # Errors
    ///
    /// If the flow has ended meanwhile.
    pub(super) fn release(&mut self) -> Result<(), Lost> {
        // A reset of the backend may have closed it, and a FIN have left its mark.
        for _ in 0..ATTEMPTS {
            let Some(word) = self.now() else {
                return Err(Lost);
            };
            self.word = word;
            if self.change(word.release()).is_ok() {
                self.say_held();
                return Ok(());
            }
        }
        Err(Lost)
    }

    /// For the log: how long a client was held.
    fn say_held(&mut self) {
        if let Some(held) = self.held.take() {
            let microseconds = held.elapsed().as_micros();
            tracing::debug!(
                microseconds,
                "the client's segments were held during the hand-over"
            );
        }
    }

    /// What the data plane has noted of the backend's SYN-ACK.
    pub(crate) fn backend_syn_ack(&self) -> BackendSynAck {
        self.leases.mapped().splices.backend_syn_ack(self.id)
    }

    /// The flow's word, as it was changed last.
    pub(crate) const fn word(&self) -> FlowState {
        self.word
    }

    /// Whether the backend has what our socket sent it, or the flow is over.
    pub(super) fn is_done(&self) -> bool {
        self.now().is_none() || self.leases.mapped().splices.is_drained(self.id, self.word)
    }

    /// The word, if the flow is still ours and lives.
    fn now(&self) -> Option<FlowState> {
        let word = self.leases.mapped().table.word(self.id)?;
        let is_ours = word.generation() == self.word.generation() && word.in_use();
        is_ours.then_some(word)
    }

    fn change(&mut self, next: FlowState) -> Result<(), Lost> {
        if !self.leases.mapped().table.swap(self.id, self.word, next) {
            return Err(Lost);
        }
        self.word = next;
        Ok(())
    }

    fn count(&self, amount: i32) {
        let usage = &self.leases.mapped().usage;
        usage.count(self.id, &FlowOwners::from(&self.flow), amount);
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        let mut lent = self.leases.lent();
        lent.ids.remove(&self.id);
        if self.word.is_local() {
            lent.left.push_back(Left {
                id: self.id,
                slot: self.slot,
                word: self.word,
                over: match self.backend_rests {
                    true => self.word.end_resting(),
                    false => self.word.end(),
                },
                since: Instant::now(),
                _part: self.part.take(),
            });
        }
    }
}

/// The data plane's time; it can always be read.
fn now() -> u32 {
    coarse_now().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_ours_still_where_its_flow_was_silenced() {
        let closed = FlowState::default().claim(false).publish().close();
        assert!(was_silenced(closed, closed.end()) && was_silenced(closed, closed.forget()));
        assert!(!was_silenced(closed, closed.claim(false)));
        let ended = closed.end();
        assert!(was_silenced(ended, ended.forget()) && !was_silenced(ended, ended));
    }

    #[test]
    fn a_port_is_left_for_a_moment_before_it_is_put_back() {
        let word = FlowState::default().claim(false).lend();
        let start = Instant::now();
        let left = |id: u32, after| Left {
            id,
            slot: 0,
            word,
            over: word.end(),
            since: start + after,
            _part: None,
        };
        let all = [
            left(1, Duration::ZERO),
            left(2, LATE_SEGMENT_TIME / 2),
            left(3, LATE_SEGMENT_TIME),
        ];
        let mut lent = Lent {
            left: all.into(),
            ..Lent::default()
        };
        let mut taken = |now| -> Vec<u32> {
            let left = lent.take_left(now);
            left.iter().map(|left| left.id).collect()
        };
        assert_eq!(taken(start + LATE_SEGMENT_TIME / 2), [0; 0]);
        assert_eq!(taken(start + LATE_SEGMENT_TIME * 3 / 2), [1, 2]);
        assert_eq!(taken(start + LATE_SEGMENT_TIME * 3 / 2), [0; 0]);
        assert_eq!(taken(start + LATE_SEGMENT_TIME * 2), [3]);
    }

    #[test]
    fn a_port_rests_where_the_same_backend_has_closed_first() {
        let backend: SocketAddrV4 = "10.0.0.1:443".parse().unwrap();
        let flow = record(&Purpose {
            key: FlowKey::default(),
            service: 1,
            backend: (7, backend),
            mss: None,
        });
        assert_eq!((flow.backend_id, flow.service), (7, 1));
        // The flags of a backend that has sent a FIN, and the first one.
        let first = FlowState::from_raw(1 << 7 | 1 << 3);
        assert!(first.backend_closed_first() && rests(first, &flow, backend));
        assert!(!rests(FlowState::default(), &flow, backend));
        let other = SocketAddrV4::new(*backend.ip(), 444);
        assert!(!rests(first, &flow, other));
        let long_ago = Flow {
            last_seen: flow.last_seen.wrapping_sub(ticks(TIME_WAIT)),
            ..flow
        };
        assert!(!rests(first, &long_ago, backend));
    }
}
