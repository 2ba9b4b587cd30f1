//! What operators have set for backends, as the boxes of a group tell each other: what they set at the active box holds at both. Pure.

use std::mem;

use serde::{Deserialize, Serialize};

use super::message::SyncMessage;
use crate::api::{Override, Overrides};

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

/// The messages that say them all.
pub(super) fn messages(overrides: &Overrides) -> impl Iterator<Item = SyncMessage> {
    let one = |(name, change): (&String, &Override)| {
        let record = match change {
            Override::Drain => OverrideRecord::Drain,
            Override::Disable => OverrideRecord::Disable,
            Override::Weight { weight } => OverrideRecord::Weight(*weight),
            Override::Enable => return None,
        };
        Some(SyncMessage::Override(name.clone(), record))
    };
    let all = overrides.iter().filter_map(one);
    all.chain([SyncMessage::Overrides])
}

/// Those of the peer, which come one by one.
#[derive(Debug, Default)]
pub(super) struct PeerOverrides {
    some: Overrides,
    all: Option<Overrides>,
}

impl PeerOverrides {
    /// One has come.
    pub(super) fn add(&mut self, name: String, record: OverrideRecord) {
        let change = match record {
            OverrideRecord::Drain => Override::Drain,
            OverrideRecord::Disable => Override::Disable,
            OverrideRecord::Weight(weight) => Override::Weight { weight },
        };
        self.some.insert(name, change);
    }

    /// The last one has come.
    pub(super) fn finish(&mut self) {
        self.all = Some(mem::take(&mut self.some));
    }

    /// All of them, if they have come since they were taken last.
    pub(super) const fn take(&mut self) -> Option<Overrides> {
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
        let mut theirs: Overrides = (1..)
            .map(|number: u8| format!("kas/{number}"))
            .zip(set)
            .collect();
        let mut ours = PeerOverrides::default();
        let mut come = |overrides: &Overrides| {
            for message in messages(overrides) {
                assert_eq!(ours.take(), None, "the last one has not come");
                match message {
                    SyncMessage::Override(name, record) => ours.add(name, record),
                    _ => ours.finish(),
                }
            }
            ours.take()
        };
        assert_eq!(come(&theirs).as_ref(), Some(&theirs));
        theirs.remove("kas/1");
        assert_eq!(come(&theirs).as_ref(), Some(&theirs));
        assert_eq!(come(&Overrides::new()), Some(Overrides::new()));
    }
}
