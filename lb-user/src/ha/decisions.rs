//! What was decided at a box, as the boxes of a group tell each other: what operators and the active one have decided holds at both, and
//! the verdicts of checks are compared. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

use super::message::SyncMessage;
use crate::api::{Override, Overrides};

/// What follows neither from the file nor from what a box sees by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// What operators have set for backends.
    pub overrides: Overrides,
    /// The VIPs that were chosen for hosted clusters, by their names in words.
    pub vips: BTreeMap<String, IpAddr>,
    /// The backends that its checks find down. Each box goes by its own: they come the way that its flows go.
    pub down: BTreeSet<String>,
}

/// An [`Override`], as postcard can read it: without a tag, and without that of what has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OverrideRecord {
    /// No new flows.
    Drain,
    /// No flows.
    Disable,
    /// Another weight.
    Weight(u16),
}

impl Decisions {
    /// The messages that say them all.
    pub(super) fn messages(&self) -> impl Iterator<Item = SyncMessage> {
        let overrides = self.overrides.iter().filter_map(|(name, change)| {
            let record = match change {
                Override::Drain => OverrideRecord::Drain,
                Override::Disable => OverrideRecord::Disable,
                Override::Weight { weight } => OverrideRecord::Weight(*weight),
                Override::Enable => return None,
            };
            Some(SyncMessage::Override(name.clone(), record))
        });
        let vips = self.vips.iter();
        let vips = vips.map(|(name, vip)| SyncMessage::Vip(name.clone(), *vip));
        let down = self.down.iter().cloned().map(SyncMessage::Down);
        let all = overrides.chain(vips).chain(down);
        all.chain([SyncMessage::Decided])
    }
}

/// Those of the peer, which come one by one.
#[derive(Debug, Default)]
pub(super) struct PeerDecisions {
    some: Decisions,
    all: Option<Decisions>,
}

impl PeerDecisions {
    /// What operators have set for a backend has come.
    pub(super) fn add_override(&mut self, name: String, record: OverrideRecord) {
        let change = match record {
            OverrideRecord::Drain => Override::Drain,
            OverrideRecord::Disable => Override::Disable,
            OverrideRecord::Weight(weight) => Override::Weight { weight },
        };
        self.some.overrides.insert(name, change);
    }

    /// The VIP of a hosted cluster has come.
    pub(super) fn add_vip(&mut self, name: String, vip: IpAddr) {
        self.some.vips.insert(name, vip);
    }

    /// A backend that is down has come.
    pub(super) fn add_down(&mut self, name: String) {
        self.some.down.insert(name);
    }

    /// The last one has come.
    pub(super) fn finish(&mut self) {
        self.all = Some(mem::take(&mut self.some));
    }

    /// All of them, if they have come since they were taken last.
    pub(super) const fn take(&mut self) -> Option<Decisions> {
        self.all.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_are_the_same_on_the_other_box() {
        let set = [
            Override::Drain,
            Override::Disable,
            Override::Weight { weight: 256 },
        ];
        let name = |number: u8| format!("kas/{number}");
        let vip = |number: u8| (name(number), IpAddr::from([192, 168, 203, number]));
        let mut theirs = Decisions {
            overrides: (1..).map(name).zip(set).collect(),
            vips: (1..4).map(vip).collect(),
            down: (2..4).map(name).collect(),
        };
        let mut ours = PeerDecisions::default();
        let mut come = |decisions: &Decisions| {
            for message in decisions.messages() {
                assert_eq!(ours.take(), None, "the last one has not come");
                match message {
                    SyncMessage::Override(name, record) => ours.add_override(name, record),
                    SyncMessage::Vip(name, vip) => ours.add_vip(name, vip),
                    SyncMessage::Down(name) => ours.add_down(name),
                    _ => ours.finish(),
                }
            }
            ours.take()
        };
        assert_eq!(come(&theirs).as_ref(), Some(&theirs));
        theirs.overrides.remove("kas/1");
        theirs.vips.remove("kas/2");
        theirs.down.remove("kas/3");
        assert_eq!(come(&theirs).as_ref(), Some(&theirs));
        assert_eq!(come(&Decisions::default()), Some(Decisions::default()));
    }
}
