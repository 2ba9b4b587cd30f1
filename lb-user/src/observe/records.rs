//! What the questions answer, as it stands in JSON.

use std::collections::BTreeMap;

use lb_common::maps::{
    backend_answers::BackendAnswers,
    counts::{
        BYTES_REPLY, BYTES_REQUEST, CONNECT_US, CONNECTS, FAILED, FIRST_BYTE_US, FIRST_BYTES,
        FLOWS, PACKETS_REPLY, PACKETS_REQUEST, REPEATED, Record,
    },
};
use schemars::JsonSchema;
use serde::Serialize;

use super::SampledPacket;
use crate::{
    api::FlowLine,
    config::SecondSegment,
    model::seconds::{self, Seconds},
};

/// `lb status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Status {
    /// Name of the instance.
    pub instance: String,
    /// Version of this program.
    pub lb_version: &'static str,
    /// Networks in the order of the file.
    pub networks: Vec<NetworkStatus>,
    /// Packets by verdict, per hook.
    pub verdicts: BTreeMap<&'static str, Verdicts>,
    /// SNAT addresses, also those that only finish their flows.
    pub snat: Vec<SnatStatus>,
    /// Flow ids of all of them.
    pub flows: FlowIds,
}

/// The mode of a network whose interface is not there.
pub const MISSING: &str = "missing";

/// The mode of a network whose interface is in another network namespace than the process that looks.
pub const ELSEWHERE: &str = "elsewhere";

/// One network of `lb status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct NetworkStatus {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// Its NIC.
    pub interface: String,
    /// The VLAN id of its frames, if they are tagged.
    pub vlan: Option<u16>,
    /// Whether the NIC has a carrier: without one no backend is reached, and no failed check counts.
    pub carrier: bool,
    /// `native`, `generic` or `detached`, or `missing`; `elsewhere`: not known, because the interface is in another
    /// network namespace, and no control plane reports it.
    pub mode: &'static str,
    /// Whether the NIC is a veth whose other end has no XDP program: what leaves by the NIC that it came in by, such as
    /// answers and one-arm traffic, is late there or lost. Not of an end that this process may not look at.
    pub peer_without_program: bool,
    /// Whether everything is dropped, because its control plane was stopped.
    pub stopped: bool,
    /// Bytes of the largest IP packet that it carries.
    pub mtu: u16,
    /// Most bytes of data in a TCP segment to or from it; with IPv6 20 less.
    pub mss: u16,
    /// The namespace of its cell; none where the addresses are the host's own.
    pub cell: Option<String>,
    /// Flows of its clients in full use: established connections, and answered UDP flows.
    pub flows: u32,
    /// The most that they may have at a time, if there is a limit.
    pub max_flows: Option<u32>,
    /// What has been counted of them; null if the data plane is older and does not count.
    pub counts: Option<FlowCounts>,
    /// What they have, and may have, of the SNAT ports of each network that they have backends on.
    pub quotas: Vec<QuotaStatus>,
    /// The ring of its clients' half-open TCP flows.
    pub half_open: RingStatus,
    /// The ring of their UDP flows.
    pub udp_flows: RingStatus,
    /// Flows of its clients that had to take a SNAT port whose last connection may still rest in
    /// TIME_WAIT at the backend.
    pub unrested: u64,
    /// Beginnings and ends of their flows that are missing in the flow log, because they came faster
    /// than it is written.
    pub unreported: u64,
    /// Their ClientHellos to shared VIPs with `late_binding`, by what XDP has made of them; none of those that there are
    /// none of.
    pub hellos: BTreeMap<&'static str, u64>,
    /// When its backends get the second segment of such a hello: `at_once` or `on_ack`, as configured; `on_ack` where the
    /// interface has no room among those that frames are copied to, or where the programs run in generic mode.
    pub second_segment: SecondSegment,
    /// "Too big" from their side whose MTU was raised to 1280 bytes before it went to a backend: so many
    /// packets met a path of less, which only `mss` can serve.
    pub icmp_floor: u64,
}

/// Flows on SNAT addresses of one family in a network, in `lb status`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct QuotaStatus {
    /// The network of the backends, and of the SNAT addresses.
    pub backends: String,
    /// Whether these are of IPv6.
    pub ipv6: bool,
    /// Their ports, for all networks together.
    pub ports: u32,
    /// How many networks share them.
    pub networks: u32,
    /// Flows in full use.
    pub flows: u32,
    /// The most that there may be at a time, if there is a limit but that of the network.
    pub most: Option<u32>,
}

/// A ring of `lb status`.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct RingStatus {
    /// Its places.
    pub places: u32,
    /// How many flows ever took one.
    pub taken: u64,
    /// How long the flow in the oldest place has waited for a packet: what a half-open flow has until
    /// a newer one takes its place, if they go on coming as they did. None while there is room, or
    /// when nothing in the ring is half-open.
    pub lifetime_seconds: Option<Seconds>,
    /// Whether SYNs are answered by cookies where services leave that to XDP: connections have left the ring within a second a
    /// moment ago, or as many SYNs have come as would have pushed them out. Never of UDP.
    pub flooded: bool,
}

/// One SNAT address of `lb status`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SnatStatus {
    /// Its network.
    pub network: String,
    /// The address.
    pub address: String,
    /// Its first port.
    pub first_port: u16,
    /// Its last port.
    pub last_port: u16,
    /// Whether it is configured no more and only finishes its flows.
    pub draining: bool,
    /// Whether it is the other box's: no new flow of this one has it.
    pub peer: bool,
    /// Its flow ids.
    pub flows: FlowIds,
}

impl SnatStatus {
    /// What new flows have of it, in words.
    pub const fn state(&self) -> &'static str {
        match (self.draining, self.peer) {
            (true, _) => "draining",
            (false, true) => "peer",
            (false, false) => "in use",
        }
    }

    /// The ports that a new flow may take, in words.
    pub fn free(&self) -> String {
        match self.peer {
            true => "-".to_owned(),
            false => self.flows.free.to_string(),
        }
    }
}

/// Packets of one hook, by verdict.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct Verdicts {
    /// Handed to the host untouched.
    pub passed: u64,
    /// Sent back out of the same NIC.
    pub transmitted: u64,
    /// Redirected to another NIC.
    pub forwarded: u64,
    /// Redirected into a cell.
    pub delivered: u64,
    /// Ended here, as it should: a ClientHello behind a SYN cookie, whose bytes the process got, or the ACK before it.
    pub consumed: u64,
    /// Dropped.
    pub dropped: u64,
    /// Answered with a refusal.
    pub refused: u64,
    /// All of them: every packet that the hook has seen.
    pub total: u64,
}

/// The flow table's occupancy.
#[derive(Clone, Copy, Debug, Default, Serialize, JsonSchema)]
pub struct FlowIds {
    /// Ids, one per port.
    pub capacity: u32,
    /// Ids that a new flow may take.
    pub free: u32,
    /// Ids of flows.
    pub live: u32,
}

impl FlowIds {
    /// Those of several SNAT addresses together.
    pub fn sum(all: impl Iterator<Item = Self>) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            capacity: sum.capacity + one.capacity,
            free: sum.free + one.free,
            live: sum.live + one.live,
        })
    }
}

/// What has been counted of a network's clients, a service or a backend. No number falls, also over restarts of the
/// control plane; all begin with 0 when the data plane is made anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FlowCounts {
    /// Flows that have begun; of a backend also those that went on to another one.
    pub flows: u64,
    /// Bytes from clients: of frames, and of data where the process copies.
    pub bytes_request: u64,
    /// Frames from clients; not of connections that the process copies.
    pub packets_request: u64,
    /// Bytes from backends, likewise.
    pub bytes_reply: u64,
    /// Frames from backends, likewise.
    pub packets_reply: u64,
    /// Connections that no backend has answered, or that one has refused; of a backend, those that it has.
    pub failed: u64,
    /// SYNs that clients have repeated because there was no answer.
    pub repeated_syns: u64,
    /// Connections that a backend has answered.
    pub connects: u64,
    /// How long all of these took, from the SYN to the SYN-ACK; to the microsecond.
    #[serde(rename = "connect_seconds", serialize_with = "seconds::of_micros")]
    #[schemars(with = "Seconds")]
    pub connect_us: u64,
    /// Connections of shared VIPs of which the backend's first byte has come.
    pub first_bytes: u64,
    /// How long all of these took, from when the backend was sought; to the microsecond.
    #[serde(rename = "first_byte_seconds", serialize_with = "seconds::of_micros")]
    #[schemars(with = "Seconds")]
    pub first_byte_us: u64,
}

impl From<&Record> for FlowCounts {
    fn from(record: &Record) -> Self {
        let number = |place: usize| record.get(place).copied().unwrap_or_default();
        Self {
            flows: number(FLOWS),
            bytes_request: number(BYTES_REQUEST),
            packets_request: number(PACKETS_REQUEST),
            bytes_reply: number(BYTES_REPLY),
            packets_reply: number(PACKETS_REPLY),
            failed: number(FAILED),
            repeated_syns: number(REPEATED),
            connects: number(CONNECTS),
            connect_us: number(CONNECT_US),
            first_bytes: number(FIRST_BYTES),
            first_byte_us: number(FIRST_BYTE_US),
        }
    }
}

/// One line of `lb services`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ServiceLine {
    /// Its name.
    pub name: String,
    /// The network that it listens on.
    pub network: String,
    /// VIP, port and protocol.
    pub listen: String,
    /// Its pool; those that it may be, if the requested name decides.
    pub pools: Vec<String>,
    /// Flows in full use, of all that it listens on: established connections, and answered UDP flows.
    pub flows: u32,
    /// What has been counted, of all that it listens on; null if the data plane is older and does not count.
    pub counts: Option<FlowCounts>,
}

/// One line of `lb backends`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct BackendLine {
    /// Its id, if it has one yet.
    pub id: Option<u32>,
    /// Its name.
    pub name: String,
    /// Its pool; those that it may be, if the requested name decides.
    pub pool: String,
    /// Address and port.
    pub address: String,
    /// Its share of new flows as configured; 0 if it is configured no more.
    pub weight: u16,
    /// The part of the pool's new flows that it gets, in percent: by the table that the data plane goes by, and by the
    /// next hops that it knows.
    #[schemars(range(min = 0, max = 100))]
    pub share: f64,
    /// MAC of its next hop, if it is known.
    pub next_hop: Option<String>,
    /// How it has answered SYNs since its id was given; null if the data plane is older and does not count that.
    pub syns: Option<SynCounts>,
    /// What has been counted since its id was given; null if the data plane is older and does not count.
    pub counts: Option<FlowCounts>,
}

/// How a backend has answered SYNs. Each number begins anew after 2^32 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SynCounts {
    /// SYNs that were repeated because it had not answered.
    pub unanswered: u32,
    /// SYNs that it refused by a RST.
    pub refused: u32,
    /// Connections that went on to another backend for that.
    pub redispatched: u32,
}

impl From<BackendAnswers> for SynCounts {
    fn from(answers: BackendAnswers) -> Self {
        let BackendAnswers {
            unanswered,
            refused,
            redispatched,
            ..
        } = answers;
        Self {
            unanswered,
            refused,
            redispatched,
        }
    }
}

/// One line of `lb who`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct WhoLine {
    /// Whether it still has the port.
    pub live: bool,
    /// The flow.
    #[serde(flatten)]
    pub flow: FlowLine,
}

/// One line of `lb drops`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DropLine {
    /// `nic` or `cell`.
    pub hook: &'static str,
    /// Network, or `-` for frames of none.
    pub network: String,
    /// The reason's label.
    pub reason: &'static str,
    /// Dropped packets.
    pub dropped: u64,
    /// Packets that were answered with a refusal for this reason.
    pub refused: u64,
    /// Both together since the last look; none if there was none.
    pub since_last: Option<u64>,
    /// What it means.
    pub help: &'static str,
    /// The latest packet of this network for this reason, if it was one of this hook.
    pub samples: Vec<SampleLine>,
}

impl DropLine {
    /// Packets that were not served.
    #[must_use]
    pub const fn unserved(&self) -> u64 {
        self.dropped.saturating_add(self.refused)
    }
}

/// A packet of `lb drops`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SampleLine {
    /// How long ago it came.
    pub age_seconds: Seconds,
    /// Bytes of its frame.
    pub length: u32,
    /// The service that listens where it went, or came from, if there is one now.
    pub service: Option<String>,
    /// What it was.
    #[serde(flatten)]
    pub packet: SampledPacket,
}
