//! How two boxes stand to each other.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::seconds::{Seconds, of_micros, to_micros};

/// This box and its peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HaStatus {
    /// The name of this box.
    pub r#box: String,
    /// Whether it has the marker address, and so serves.
    pub active: bool,
    /// The marker address.
    pub marker: String,
    /// Networks that it carries: their programs are attached, their links have carriers, and a next hop answers if they have backends.
    pub carried: u16,
    /// Connections to backends that its process carries for shared VIPs: copied ones, and those of services with `http`. They end with
    /// this box.
    pub connections: u32,
    /// Connections that the process of the peer carried, and that ended with it or when it left the service to this box, since the process
    /// of this box began.
    pub lost_connections: u64,
    /// The name of the other box.
    pub peer: String,
    /// Whether that says to be the active one; null while it says nothing.
    pub peer_active: Option<bool>,
    /// Networks that it carries; null while it says nothing.
    pub peer_carried: Option<u16>,
    /// What its process carries, as `connections`; null while it says nothing.
    pub peer_connections: Option<u32>,
    /// Where it is reached on the sync network.
    pub sync: String,
    /// The session by which the peer gets the flows of this box.
    pub sending: SendingStatus,
    /// The session by which this box gets the flows of the peer.
    pub receiving: ReceivingStatus,
    /// What the peer has and this box does not: flows that refer to it have no replica here.
    pub only_there: Vec<String>,
    /// What this box has and the peer does not.
    pub only_here: Vec<String>,
    /// The backends that the checks of the peer find down, and those of this box find up, but for those that operators have set; none while
    /// the peer says nothing.
    pub down_only_there: Vec<String>,
    /// The backends that the checks of this box find down, and those of the peer do not; none while it says nothing.
    pub down_only_here: Vec<String>,
}

/// A session between the boxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionStatus {
    /// For how long it is open; null if it is not.
    #[schemars(with = "Option<Seconds>")]
    pub since_seconds: Option<u64>,
    /// The version of lb at the other end.
    pub peer_version: Option<String>,
    /// Whether all flows have come since it was opened.
    pub complete: bool,
    /// Why it is not open, or the last one ended.
    pub error: Option<String>,
}

/// What is sent to the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SendingStatus {
    /// The session.
    pub session: SessionStatus,
    /// Flows that were sent in it, each as often as it was.
    pub flows: u64,
    /// Ends of flows.
    pub ends: u64,
    /// CPU time of the last pass over all flows.
    #[serde(
        rename = "pass_seconds",
        serialize_with = "of_micros",
        deserialize_with = "to_micros"
    )]
    #[schemars(with = "Seconds")]
    pub pass_us: u64,
}

/// What comes from the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReceivingStatus {
    /// The session.
    pub session: SessionStatus,
    /// Flows that stand ready, each as often as it came.
    pub ready: u64,
    /// Flows of which this box has forwarded a later packet.
    pub later: u64,
    /// Flows that refer to what this box does not have.
    pub unknown: u64,
    /// Flows that wait for room, or for an entry that a CPU changes.
    pub waiting: u64,
    /// Flows that are over.
    pub ended: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        let status = SendingStatus {
            pass_us: 1_234_567,
            ..SendingStatus::default()
        };
        let text = serde_json::to_string(&status).unwrap();
        assert!(text.contains(r#""pass_seconds":1.234567"#), "{text}");
        let read: SendingStatus = serde_json::from_str(&text).unwrap();
        assert_eq!(read, status);
    }
}
