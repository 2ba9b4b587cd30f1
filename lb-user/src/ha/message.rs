//! What boxes say to each other: messages of one direction, from the box that has flows to the one that keeps replicas of them. Pure.
//!
//! Both say [`BoxHello`] first, and then speak the newest version that both know. Behind it the sender names its objects and passes over its
//! flows, again and again: in the first pass it sends all of them, and in each later one what has changed since.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::{
    decisions::OverrideRecord,
    dictionary::ObjectNumber,
    record::{EndRecord, FlowRecord},
};

/// The newest version of the messages that this build speaks, and the oldest.
pub const VERSIONS: [u16; 2] = [1, 1];

/// The first message of both ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxHello {
    /// The newest version of messages that it speaks.
    pub newest: u16,
    /// The oldest one.
    pub oldest: u16,
    /// Its name among the boxes.
    pub name: String,
    /// The version of `lb`, for people.
    pub build: String,
}

impl BoxHello {
    /// Of this build, on the box with this name.
    pub fn ours(name: &str) -> Self {
        let [newest, oldest] = VERSIONS;
        Self {
            newest,
            oldest,
            name: name.to_owned(),
            build: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// What a box says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxState {
    /// Whether it is the active one.
    pub is_active: bool,
    /// What it carries.
    pub load: BoxLoad,
}

/// What a box carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoxLoad {
    /// Networks that it carries.
    pub networks: u16,
    /// Connections of shared VIPs that its process carries, and that end with it.
    pub connections: u32,
}

/// What follows, in version 1. New kinds come at the end, and only in a new version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncMessage {
    /// An object that flows may refer to.
    Object(ObjectNumber),
    /// The pass that begins sends all flows. Where the sender is the active box, this is how old its table is, in units of coarse
    /// time: a replica that was seen since then, and does not come, has ended.
    All(Option<u32>),
    /// A pass begins.
    Pass {
        /// The coarse time of the sender, in which the times of flows are.
        now: u32,
        /// What the sender is.
        state: BoxState,
    },
    /// A flow, as it is now.
    Flow(Box<FlowRecord>),
    /// A flow is over.
    End(EndRecord),
    /// The end of a pass: all has come that was there when it began.
    Passed,
    /// What operators have set for the backend with this name, one of all that they have set.
    Override(String, OverrideRecord),
    /// The VIP that was chosen for the hosted cluster with this name, one of all.
    Vip(String, IpAddr),
    /// The checks of the sender find the backend with this name down, one of all that they do.
    Down(String),
    /// The last of these has come: of others there are none.
    Decided,
}

/// The version that both speak.
///
/// # Errors
///
/// If there is none; in words for the operator.
pub fn agreed(ours: &BoxHello, theirs: &BoxHello) -> Result<u16> {
    let newest = ours.newest.min(theirs.newest);
    ensure!(
        newest >= ours.oldest.max(theirs.oldest),
        "box {} has lb {} and speaks the versions {} to {} of the synchronisation, this one has lb {} and speaks {} to {}: upgrade the \
         older one",
        theirs.name,
        theirs.build,
        theirs.oldest,
        theirs.newest,
        ours.build,
        ours.oldest,
        ours.newest,
    );
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_speak_the_newest_version_that_both_know() {
        for (ours, theirs, wanted) in [
            ([1, 1], [1, 1], Some(1)),
            ([1, 3], [2, 5], Some(3)),
            ([2, 5], [1, 3], Some(3)),
            ([3, 5], [1, 2], None),
            ([1, 2], [3, 5], None),
        ] {
            let [ours, theirs] = [ours, theirs].map(|[oldest, newest]| BoxHello {
                newest,
                oldest,
                ..BoxHello::ours("lb1")
            });
            assert_eq!(agreed(&ours, &theirs).ok(), wanted);
        }
    }
}
