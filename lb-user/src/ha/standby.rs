//! The flows of the peer on this box: each message of it becomes what it means for the table here.

use std::{collections::HashMap, mem, path::Path};

use anyhow::{Result, ensure};
use lb_common::maps::snat::FLOWS_PER_ADDRESS;

use super::{
    clock::PeerClock,
    decisions::PeerDecisions,
    dictionary::{Dictionary, ObjectNumber},
    message::{BoxState, SyncMessage},
    record::{EndRecord, FlowRecord, SnatEnd},
    view::{HaView, offset},
};
use crate::{
    dataplane::{
        flows::coarse_now,
        labels::Labels,
        maps::Maps,
        replicas::{Placed, Replicas},
        snat_ports::SnatPorts,
    },
    model::{
        registry::{Ids, Kind},
        snat::SnatSlot,
    },
};

/// Most flows that wait for the end of a pass to be placed again: a CPU changes their entries.
const MAX_AGAIN: usize = 1024;

/// What the peer has, and where it stands here.
pub struct Standby {
    replicas: Replicas,
    labels: Labels,
    ports: SnatPorts,
    /// The names of this box.
    ours: HaView,
    /// Those that replicas may refer to.
    usable: Ids,
    /// The objects of the peer.
    theirs: HashMap<(u8, u32), ObjectNumber>,
    dictionary: Dictionary,
    /// The SNAT addresses of the peer's ids.
    slots: HashMap<u32, Option<SnatSlot>>,
    clock: PeerClock,
    /// What the peer was when its pass began.
    pub(super) peer: BoxState,
    /// What has come since the peer began to send all it has.
    seen: Option<Seen>,
    /// What a CPU has changed at that moment, or had no room: it is tried again at the end of each pass.
    again: Vec<SyncMessage>,
    /// Whether the objects of one of both have changed.
    differs: bool,
    /// Whether a flow was refused for an IPv6 address that no object here has.
    lacks_labels: bool,
    pub(super) decisions: PeerDecisions,
    pub(super) counts: PlacedCounts,
}

/// What has become of the peer's flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacedCounts {
    /// Stand ready, each as often as it came.
    pub ready: u64,
    /// This box has forwarded a later packet of the port, or of the client by another one.
    pub later: u64,
    /// Refer to what this box does not have.
    pub unknown: u64,
    /// Wait for room, or for an entry that a CPU changes.
    pub waiting: u64,
    /// Are over.
    pub ended: u64,
}

/// The ids of flows that have come, by the slots of their SNAT addresses.
struct Seen {
    /// When the peer's table began, by the time here.
    since: u32,
    ids: HashMap<u16, Vec<bool>>,
}

impl Standby {
    /// Opens the maps that are pinned in `folder`, of which `maps` are.
    ///
    /// # Errors
    ///
    /// If a pin is missing or the kernel refuses a mapping.
    pub fn open(folder: &Path, maps: Maps, ours: HaView) -> Result<Self> {
        Ok(Self {
            replicas: Replicas::open(folder, maps)?,
            labels: Labels::open(folder)?,
            ports: SnatPorts::open(folder)?,
            usable: ours.usable(),
            ours,
            theirs: HashMap::new(),
            dictionary: Dictionary::default(),
            slots: HashMap::new(),
            clock: PeerClock::default(),
            peer: BoxState::default(),
            seen: None,
            again: Vec::new(),
            differs: true,
            lacks_labels: false,
            decisions: PeerDecisions::default(),
            counts: PlacedCounts::default(),
        })
    }

    /// Forgets what another session has said.
    pub(super) fn begin_anew(&mut self) {
        self.theirs.clear();
        self.dictionary = Dictionary::default();
        self.slots.clear();
        self.clock = PeerClock::default();
        self.seen = None;
        self.again.clear();
        self.decisions = PeerDecisions::default();
        self.counts = PlacedCounts::default();
        self.differs = true;
    }

    /// The peer's objects that this box does not have, and those of this box that the peer does not have, if they may be others than
    /// before.
    pub(super) fn new_differences(&mut self) -> Option<[Vec<String>; 2]> {
        if !mem::take(&mut self.differs) {
            return None;
        }
        let words = |kind: Kind, name: &str| format!("{} {name}", kind.label());
        let only_there = self.dictionary.unknown();
        let only_there = only_there.map(|(kind, unknown)| words(kind, &unknown.name));
        let here = self.dictionary.only_here(&self.usable);
        let here = here.into_iter().map(|(kind, name)| words(kind, name));
        Some([only_there.collect(), here.collect()])
    }

    /// This box has other names now; false if the peer has to send all flows again, because some of them were refused that refer to what
    /// is known now.
    pub(super) fn set_names(&mut self, ours: &HaView) -> bool {
        if ours.ids == self.ours.ids {
            return true;
        }
        self.ours = ours.clone();
        self.usable = ours.usable();
        self.differs = true;
        self.slots.clear();
        self.labels.forget();
        self.replicas.forget_queues();
        let before = mem::take(&mut self.dictionary);
        for named in self.theirs.values() {
            self.dictionary.add(named.clone(), &self.usable);
        }
        !mem::take(&mut self.lacks_labels) && !before.has_refused(&self.usable)
    }

    /// Does what a message means; true at the end of a pass.
    ///
    /// # Errors
    ///
    /// If it makes no sense, or the clock cannot be read.
    pub(super) fn take(&mut self, message: SyncMessage) -> Result<bool> {
        match message {
            SyncMessage::Pass { now, state } => {
                self.clock.note(now, coarse_now()?);
                self.peer = state;
            }
            SyncMessage::Object(named) => {
                // It may be another SNAT address with an id of before.
                self.slots.clear();
                self.differs = true;
                self.dictionary.add(named.clone(), &self.usable);
                self.theirs.insert((named.kind, named.id), named);
            }
            SyncMessage::All(age) => {
                let now = coarse_now()?;
                self.seen = age.map(|age| Seen {
                    since: now.wrapping_sub(age),
                    ids: HashMap::new(),
                });
            }
            SyncMessage::Flow(_) | SyncMessage::End(_) => self.change(message)?,
            SyncMessage::Override(name, record) => self.decisions.add_override(name, record),
            SyncMessage::Vip(name, vip) => self.decisions.add_vip(name, vip),
            SyncMessage::Down(name) => self.decisions.add_down(name),
            SyncMessage::Decided => self.decisions.finish(),
            SyncMessage::Passed => {
                self.replicas.forget_queues();
                for message in mem::take(&mut self.again) {
                    self.change(message)?;
                }
                if let Some(seen) = self.seen.take() {
                    self.end_missing(&seen);
                    let addresses = self.ours.addresses();
                    addresses.for_each(|(_, slot)| self.replicas.take_out(slot.slot));
                }
                self.counts.waiting = u64::try_from(self.again.len())?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Has a flow of the peer begin or end here, or waits for that.
    fn change(&mut self, message: SyncMessage) -> Result<()> {
        // What comes later of a port is what counts.
        let of = port(&message);
        self.again.retain(|waiting| port(waiting) != of);
        let is_done = match &message {
            SyncMessage::Flow(record) => self.place(record)?,
            SyncMessage::End(end) => self.end(end),
            _ => true,
        };
        if !is_done {
            ensure!(
                self.again.len() < MAX_AGAIN,
                "more than {MAX_AGAIN} flows find no place: all are to come again"
            );
            self.again.push(message);
        }
        Ok(())
    }

    /// Whether it has become of a flow what is to become of it.
    fn place(&mut self, record: &FlowRecord) -> Result<bool> {
        let found = self.id(record.snat);
        let hash = |client| self.labels.hash(client);
        let replica = record.replica(&mut self.dictionary, &self.usable, hash, self.clock)?;
        if let (Some(seen), Some((slot, id))) = (&mut self.seen, &found) {
            // The peer has its flow, whatever it is here.
            seen.note(slot, *id);
        }
        let (Some((_, id)), Some(replica)) = (found, replica) else {
            self.counts.unknown += 1;
            let ends = [record.vip.ip(), record.to.ip()];
            self.lacks_labels |= ends
                .iter()
                .any(|end| self.usable.stands_for(*end).is_none());
            return Ok(true);
        };
        match self.replicas.place(id, &replica) {
            Placed::Ready => self.counts.ready += 1,
            Placed::Later | Placed::Taken => self.counts.later += 1,
            Placed::Busy => return Ok(false),
        }
        Ok(true)
    }

    /// The same of the end of one.
    fn end(&mut self, end: &EndRecord) -> bool {
        let hash = |client| self.labels.hash(client);
        let client = end.client_end(&self.usable, hash);
        let (Some((_, id)), Some(client)) = (self.id(end.snat), client) else {
            return true;
        };
        let is_done = self.replicas.end(id, &client, self.clock.here(end.since));
        self.counts.ended += u64::from(is_done);
        is_done
    }

    /// Ends the replicas that have not come, though the peer had their flows.
    fn end_missing(&mut self, seen: &Seen) {
        let known = self.dictionary.known(Kind::Snat);
        let addresses = self.ours.addresses();
        for (_, slot) in addresses.filter(|(address, _)| known.contains(address)) {
            for id in slot.flow_ids() {
                if !seen.has(&slot, id) && self.replicas.end_missing(id, seen.since) {
                    self.counts.ended += 1;
                }
            }
        }
    }

    /// The SNAT address of a port of the peer's, and the flow id of the port here.
    fn id(&mut self, end: SnatEnd) -> Option<(SnatSlot, u32)> {
        let (dictionary, ours) = (&mut self.dictionary, &self.ours);
        let slot = self.slots.entry(end.address).or_insert_with(|| {
            let id = dictionary.id(Kind::Snat, end.address)?;
            ours.address(id)
        });
        let slot = (*slot)?;
        Some((slot, self.ports.flow_id(&slot.address(), end.port)?))
    }
}

/// The port that a message is of.
fn port(message: &SyncMessage) -> Option<SnatEnd> {
    match message {
        SyncMessage::Flow(record) => Some(record.snat),
        SyncMessage::End(end) => Some(end.snat),
        _ => None,
    }
}

impl Seen {
    fn note(&mut self, slot: &SnatSlot, id: u32) {
        let nothing = || vec![false; usize::from(FLOWS_PER_ADDRESS)];
        let ids = self.ids.entry(slot.slot).or_insert_with(nothing);
        if let Some(seen) = ids.get_mut(offset(slot, id)) {
            *seen = true;
        }
    }

    fn has(&self, slot: &SnatSlot, id: u32) -> bool {
        let ids = self.ids.get(&slot.slot);
        ids.and_then(|ids| ids.get(offset(slot, id)).copied())
            .unwrap_or_default()
    }
}
