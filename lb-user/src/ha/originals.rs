//! The flows of this box, as its peer is sent them: a pass over the table, in pieces.

use std::{collections::HashMap, net::SocketAddr, path::Path};

use anyhow::Result;
use lb_common::{
    conntrack::{FlowState, State},
    maps::snat::{FLOWS_PER_ADDRESS, base},
};

use super::{
    frame::MessageFrame,
    message::{BoxState, SyncMessage},
    record::{Described, EndRecord, FlowRecord, SnatEnd},
    sent::{Due, SentFlows},
    view::{HaView, offset},
};
use crate::{
    config::Snat,
    dataplane::{
        flows::{FlowTable, coarse_now},
        labels::Labels,
        replicas::is_served,
        splices::SpliceTable,
    },
    model::snat::SnatSlot,
};

/// Ids that are looked at in one go.
const PIECE: u32 = 512;

/// The flows, and what the peer has been sent of them.
pub struct Originals {
    table: FlowTable,
    splices: SpliceTable,
    labels: Labels,
    /// By the ids of SNAT addresses.
    sent: HashMap<u32, (Snat, SentFlows)>,
    pass: Pass,
    /// Flows and ends that were sent.
    pub(super) counts: SentCounts,
}

/// The pass that is being made.
#[derive(Clone, Copy, Debug, Default)]
struct Pass {
    /// The coarse time at its begin.
    now: u32,
    is_active: bool,
    /// Whether it is the first one of its session.
    is_first: bool,
}

/// How much was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentCounts {
    /// Flows, each as often as it was sent.
    pub flows: u64,
    /// Ends.
    pub ends: u64,
}

/// Where a pass is.
#[derive(Clone, Copy, Debug)]
pub(super) struct PassPlace {
    /// Id of the SNAT address.
    pub(super) address: u32,
    pub(super) slot: SnatSlot,
    /// The next id of a flow.
    pub(super) next: u32,
}

impl Originals {
    /// Opens the maps that are pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If a pin is missing or the kernel refuses a mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            table: FlowTable::open(folder)?,
            splices: SpliceTable::open(folder)?.with_names()?,
            labels: Labels::open(folder)?,
            sent: HashMap::new(),
            pass: Pass::default(),
            counts: SentCounts::default(),
        })
    }

    /// Labels may stand for other addresses since.
    pub(super) fn forget_labels(&self) {
        self.labels.forget();
    }

    /// A pass begins, which sends all in the first one of a session.
    ///
    /// # Errors
    ///
    /// If the clock cannot be read.
    pub(super) fn begin(&mut self, state: BoxState, is_first: bool) -> Result<SyncMessage> {
        let is_active = state.is_active;
        // What has ended since this box became active is said by the first pass from then on.
        let is_first = is_first || is_active && !self.pass.is_active;
        self.pass = Pass {
            now: coarse_now()?,
            is_active,
            is_first,
        };
        Ok(SyncMessage::Pass {
            now: self.pass.now,
            state,
        })
    }

    /// Adds to `frame` what is due of the next ids of an address; false behind its last one.
    pub(super) fn piece(
        &mut self,
        place: &mut PassPlace,
        frame: &mut MessageFrame,
    ) -> Result<bool> {
        let ids = place.slot.flow_ids();
        let end = ids.end.min(place.next + PIECE);
        while place.next < end && !frame.is_full() {
            let id = place.next;
            place.next += 1;
            if let Some(message) = self.due(place, id) {
                match message {
                    SyncMessage::End(..) => self.counts.ends += 1,
                    _ => self.counts.flows += 1,
                }
                frame.push(&message)?;
            }
        }
        Ok(place.next < ids.end)
    }

    fn due(&mut self, place: &PassPlace, id: u32) -> Option<SyncMessage> {
        let glance = self.table.glance(id)?;
        let snat = place.slot.snat;
        let nothing = || (snat, SentFlows::new(usize::from(FLOWS_PER_ADDRESS)));
        let (known, sent) = self.sent.entry(place.address).or_insert_with(nothing);
        if *known != snat {
            (*known, *sent) = nothing();
        }
        let offset = offset(&place.slot, id);
        let is_cut = !self.pass.is_active && glance.word.state() == State::Ended;
        let due = match sent.look(offset, glance.word, glance.last_seen) {
            // What this box does to flows that its peer serves is its own.
            Due::End if is_cut => Due::Nothing,
            // The peer may have a replica of it from another session.
            Due::Nothing if self.is_end_of_before(glance.word) => Due::End,
            due => due,
        };
        let end = SnatEnd {
            address: place.address,
            port: self.table.port(id)?.get(),
        };
        match due {
            Due::Nothing => None,
            Due::End => self.end(id, end).map(SyncMessage::End),
            Due::Flow => {
                let record = self.record(id, end);
                if record.is_none()
                    && let Some((_, sent)) = self.sent.get_mut(&place.address)
                {
                    sent.forget(offset);
                }
                record.map(|record| SyncMessage::Flow(Box::new(record)))
            }
        }
    }

    /// Whether the first pass of an active box is to say that the flow with this word is over.
    fn is_end_of_before(&self, word: FlowState) -> bool {
        let Pass {
            is_active,
            is_first,
            ..
        } = self.pass;
        is_active && is_first && word.claimable() && word.has_flow()
    }

    /// The end of the flow that an id had last. The active box knows that it is over now; a standby, when it has forwarded a packet of
    /// it.
    fn end(&self, id: u32, snat: SnatEnd) -> Option<EndRecord> {
        let (_, flow) = self.table.flow(id)?;
        let vip = self.labels.address(flow.vip)?;
        Some(EndRecord {
            snat,
            client: SocketAddr::new(self.labels.client(id, &flow)?, flow.client_port.get()),
            vip: SocketAddr::new(vip, flow.vip_port.get()),
            since: match self.pass.is_active {
                true => self.pass.now,
                false => flow.last_seen,
            },
        })
    }

    /// The flow with an id, if it is one that the peer may have. A standby sends what it has forwarded itself: the rest is its peer's.
    fn record(&self, id: u32, snat: SnatEnd) -> Option<FlowRecord> {
        let (word, flow) = self.table.flow(id)?;
        if !word.is_replicated() || !self.pass.is_active && !is_served(&flow) {
            return None;
        }
        let numbers = match word.is_spliced() {
            true => Some(self.splices.numbers(id, word)?),
            false => None,
        };
        FlowRecord::of(&Described {
            word,
            flow: &flow,
            client: self.labels.client(id, &flow)?,
            snat,
            numbers,
            name: self.splices.name(id, word).unwrap_or_default(),
            address: &|address| self.labels.address(address),
        })
    }
}

/// The places where the passes over the SNAT addresses of a view begin.
pub(super) fn places(view: &HaView) -> impl Iterator<Item = PassPlace> {
    view.addresses().map(|(address, slot)| PassPlace {
        address,
        next: base(slot.slot),
        slot,
    })
}
