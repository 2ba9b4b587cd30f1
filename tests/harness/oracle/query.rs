//! The answers of `lb ... -o json`, as far as tests read them.
//!
//! Fields that no test reads are left out; what is here must be there, so a renamed field is a
//! failure.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// The version of the answers' form.
const VERSION: u64 = 1;

/// What an answer has under `key`, a list.
///
/// # Errors
///
/// When it is no answer of this version, or its form has changed.
pub fn list<T: DeserializeOwned>(answer: &str, key: &str) -> Result<Vec<T>> {
    let mut answer: Map<String, Value> = serde_json::from_str(answer)?;
    let version = answer.get("version").and_then(Value::as_u64);
    ensure!(version == Some(VERSION), "version {version:?}");
    let list = answer.remove(key);
    let list = list.with_context(|| format!("{key} is missing"))?;
    Ok(serde_json::from_value(list)?)
}

/// `lb status`.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The instance that answered.
    pub instance: String,
    /// Version of the product.
    pub lb_version: String,
    /// The networks of the running configuration.
    pub networks: Vec<Network>,
    /// Packets by verdict since the first start, per hook.
    pub verdicts: Hooks,
    /// SNAT addresses, also those that only finish their flows.
    pub snat: Vec<Snat>,
    /// How the flow table is used.
    pub flows: FlowUse,
}

/// One SNAT address of `lb status`.
#[derive(Clone, Debug, Deserialize)]
pub struct Snat {
    /// Its network.
    pub network: String,
    /// The address.
    pub address: String,
    /// Whether it only finishes its flows.
    pub draining: bool,
    /// How its part of the flow table is used.
    pub flows: FlowUse,
}

/// One network of `lb status`.
#[derive(Clone, Debug, Deserialize)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// `tenant`, `mgmt` or `uplink`.
    pub role: String,
    /// The NIC.
    pub interface: String,
    /// Whether the NIC has a carrier.
    pub carrier: bool,
    /// `native`, `generic` or `detached`; `missing` without a NIC.
    pub mode: String,
    /// Whether it is a veth whose other end has no XDP program.
    pub peer_without_program: bool,
    /// Whether everything is dropped until the next start.
    pub stopped: bool,
    /// Bytes of the largest packet.
    pub mtu: u16,
    /// Most bytes of data in a TCP segment.
    pub mss: u16,
    /// The name of its cell.
    pub cell: Option<String>,
    /// Live flows of its clients.
    pub flows: u64,
    /// What they have of the SNAT ports of each network that they have backends on.
    pub quotas: Vec<Quota>,
    /// Ids that were given to its clients' flows before they had rested.
    pub unrested: u64,
    /// What XDP has made of its clients' hellos.
    pub hellos: BTreeMap<String, u64>,
    /// When its backends get the second segment of one.
    pub second_segment: String,
    /// ICMP errors of its clients' side whose MTU was raised for the backend.
    pub icmp_floor: u64,
    /// The places of its clients' half-open flows.
    pub half_open: Ring,
    /// The places of their UDP flows.
    pub udp_flows: Ring,
}

/// Flows on SNAT addresses of one family in a network, in `lb status`.
#[derive(Clone, Debug, Deserialize)]
pub struct Quota {
    /// The network of the backends, and of the SNAT addresses.
    pub backends: String,
    /// Whether these are of IPv6.
    pub ipv6: bool,
    /// Flows in full use.
    pub flows: u64,
    /// The most that there may be.
    pub most: Option<u64>,
}

/// One ring of `lb status`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Ring {
    /// Its places.
    pub places: u64,
    /// How many flows ever took one.
    pub taken: u64,
    /// How long its oldest flow has waited, when it is full.
    pub lifetime_seconds: Option<f64>,
    /// Whether SYNs are answered by cookies for its sake.
    pub flooded: bool,
}

/// Verdicts of both programs.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct Hooks {
    /// Packets that arrived at NICs.
    pub nic: Verdicts,
    /// Packets that came out of cells.
    pub cell: Verdicts,
}

/// Packets by verdict.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct Verdicts {
    /// Left to the kernel.
    pub passed: u64,
    /// Sent out of the NIC they came from.
    pub transmitted: u64,
    /// Redirected to another NIC.
    pub forwarded: u64,
    /// Redirected into a cell.
    pub delivered: u64,
    /// Ended in the data plane as it should.
    pub consumed: u64,
    /// Dropped, with a reason.
    pub dropped: u64,
    /// Answered with a refusal, with a reason.
    pub refused: u64,
    /// All of them, as the product adds them up.
    pub total: u64,
}

impl Verdicts {
    /// All of them, added up here.
    pub fn sum(&self) -> u64 {
        let Self {
            passed,
            transmitted,
            forwarded,
            delivered,
            consumed,
            dropped,
            refused,
            total: _,
        } = self;
        passed + transmitted + forwarded + delivered + consumed + dropped + refused
    }
}

/// How the flow table is used.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
pub struct FlowUse {
    /// Ids there are.
    pub capacity: u64,
    /// Ids that wait for a flow.
    pub free: u64,
    /// Ids that a flow holds.
    pub live: u64,
}

/// One line of `lb services`.
#[derive(Clone, Debug, Deserialize)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Where it listens: `192.168.203.110:6443/tcp`.
    pub listen: String,
    /// The pools behind it.
    pub pools: Vec<String>,
    /// What is counted of it.
    pub counts: Option<FlowCounts>,
}

/// What is counted of a service or a backend.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct FlowCounts {
    /// Flows that have begun.
    pub flows: u64,
    /// Bytes from clients.
    pub bytes_request: u64,
    /// Frames from clients.
    pub packets_request: u64,
    /// Bytes from backends.
    pub bytes_reply: u64,
    /// Frames from backends.
    pub packets_reply: u64,
    /// Connections that were not answered, or refused.
    pub failed: u64,
    /// SYNs that were repeated.
    pub repeated_syns: u64,
    /// Connections that were answered.
    pub connects: u64,
    /// Seconds of all of these.
    pub connect_seconds: f64,
    /// Connections of shared VIPs with a first byte.
    pub first_bytes: u64,
    /// Seconds of all of these.
    pub first_byte_seconds: f64,
}

/// One line of `lb backends`.
#[derive(Clone, Debug, Deserialize)]
pub struct Backend {
    /// `address:port`.
    pub address: String,
    /// The pool it is in.
    pub pool: String,
    /// The part of the pool's new flows that it gets, in percent.
    pub share: f64,
    /// MAC of the next hop, once it is known.
    pub next_hop: Option<String>,
    /// Its verdict, and what overrules it: `dead, unreachable`.
    pub state: String,
    /// How it has answered SYNs.
    pub syns: SynCounts,
    /// What is counted of it.
    pub counts: Option<FlowCounts>,
}

/// How a backend has answered SYNs.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct SynCounts {
    /// SYNs that were repeated because it had not answered.
    pub unanswered: u32,
    /// SYNs that it refused.
    pub refused: u32,
    /// Connections that went on to another backend.
    pub redispatched: u32,
}

/// One line of `lb flows`.
#[derive(Clone, Debug, Deserialize)]
pub struct Flow {
    /// Network of the client.
    pub network: String,
    /// `address:port` of the client.
    pub client: String,
    /// `address:port` that the client connected to.
    pub vip: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// `address:port` of the backend.
    pub backend: String,
    /// `address:port` that the backend sees.
    pub snat: String,
    /// Its state in words.
    pub state: String,
    /// The service that it belongs to.
    pub service: String,
    /// Bytes from the client.
    pub bytes_request: u64,
    /// Bytes from the backend.
    pub bytes_reply: u64,
    /// Seconds since its last packet.
    pub idle_seconds: u64,
    /// Seconds until it is ended for being idle.
    pub expires_in_seconds: Option<u64>,
    /// The name that the client requested, if that decided where it went.
    pub name: Option<String>,
}

/// One line of `lb who`.
#[derive(Clone, Debug, Deserialize)]
pub struct Who {
    /// Whether it still has the port.
    pub live: bool,
    /// The flow that has the port, or had it last.
    #[serde(flatten)]
    pub flow: Flow,
}

/// One line of `lb drops`.
#[derive(Clone, Debug, Deserialize)]
pub struct Drop {
    /// `nic` or `cell`.
    pub hook: String,
    /// The network, or `-` for frames of none.
    pub network: String,
    /// The reason as a label.
    pub reason: String,
    /// How many were dropped.
    pub dropped: u64,
    /// How many were answered with a refusal.
    pub refused: u64,
    /// What it means, for an operator.
    pub help: String,
    /// The latest of them.
    pub samples: Vec<Sample>,
}

/// One packet of `lb drops`.
#[derive(Clone, Debug, Deserialize)]
pub struct Sample {
    /// How long ago it came.
    pub age_seconds: f64,
    /// Bytes of its frame.
    pub length: u64,
    /// `tcp`, `udp` and so on.
    pub protocol: String,
    /// Its sender, with the port.
    pub source: Option<String>,
    /// Its receiver, with the port.
    pub destination: Option<String>,
    /// The flags of a TCP segment: `SYN|ACK`.
    pub flags: Option<String>,
}

/// A line of `lb backends`; its health is there while a control plane runs.
#[derive(Clone, Debug, Deserialize)]
pub struct BackendLine {
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// What the control plane knows.
    pub health: Option<BackendHealth>,
}

/// A backend of `lb backends`, while a control plane runs.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct BackendHealth {
    /// Its pool, of the line.
    #[serde(skip)]
    pub pool: String,
    /// Its name, of the line.
    #[serde(skip)]
    pub name: String,
    /// Whether it is configured no more.
    pub retired: bool,
    /// `up`, `not_ready`, `dead` or `unknown`.
    pub verdict: String,
    /// Its weight as checks, ramp and operator leave it.
    pub effective_weight: f64,
    /// How often its verdict changed.
    pub transitions: u64,
}

/// An event of `lb events`.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Its number.
    pub number: u64,
    /// Its kind.
    pub kind: String,
    /// `error`, `warning` or `notice`.
    pub severity: String,
    /// What it happened to.
    pub object: String,
    /// What happened.
    pub words: String,
    /// The process that ordered it.
    pub by: Option<String>,
}
