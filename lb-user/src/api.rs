//! What goes over the admin socket, as it stands in JSON.

pub mod ha;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Display, Formatter},
    path::PathBuf,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    health::{CheckOutcome, HealthVerdict},
    model::seconds::Seconds,
};

/// A request to the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// What a reload of this file would change. The path is absolute.
    Plan {
        /// The configuration file.
        file: PathBuf,
    },
    /// Applies a file: this one, or the one that the process was started with.
    Reload {
        /// The configuration file, absolute.
        file: Option<PathBuf>,
        /// Goes back to what was before after so many seconds, at most [`MAX_CONFIRM_SECONDS`],
        /// unless [`Self::Confirm`] comes.
        confirm_seconds: Option<u64>,
    },
    /// What was applied stays.
    Confirm,
    /// Where the configuration and every backend stand.
    Health,
    /// Overrides the file and the checks for a backend.
    Backend {
        /// Its name in the file, as `POOL/BACKEND`, or `BACKEND` where that is one backend only.
        name: String,
        /// What it shall be.
        change: Override,
    },
    /// The same for all backends of a node, in one sweep.
    Node {
        /// A name that one of them has in the file, or an address of theirs.
        name: String,
        /// What they shall be; not a weight.
        change: Override,
    },
    /// Ends flows, with a reset to both ends.
    Kill(Filter),
    /// The connections of shared VIPs, which the flow table does not have.
    Legs(Filter),
    /// The names that shared VIPs have refused.
    RefusedNames,
    /// How this box and its peer stand to each other.
    Ha,
    /// Has a box of a pair look for its marker now, and take the role that follows.
    FollowMarker,
    /// What has happened since the event with this number.
    Events {
        /// Events after this one; 0 for all that are kept.
        after: u64,
    },
}

/// The longest time that a change may wait for its confirmation: a day.
pub const MAX_CONFIRM_SECONDS: u64 = 24 * 60 * 60;

impl Request {
    /// Whether it changes nothing, whatever comes of it.
    pub fn is_look(&self) -> bool {
        match self {
            Self::Plan { .. }
            | Self::Health
            | Self::Legs(_)
            | Self::RefusedNames
            | Self::Ha
            | Self::Events { .. } => true,
            Self::FollowMarker
            | Self::Reload { .. }
            | Self::Confirm
            | Self::Backend { .. }
            | Self::Node { .. }
            | Self::Kill(_) => false,
        }
    }

    /// Whether it can mean something at all. Names are looked up by the control loop, which carries it out.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Plan { file }
            | Self::Reload {
                file: Some(file), ..
            } if !file.is_absolute() => {
                return Err(format!("{}: the path is not absolute", file.display()));
            }
            _ => {}
        }
        match self {
            Self::Reload {
                confirm_seconds: Some(seconds),
                ..
            } if !(1..=MAX_CONFIRM_SECONDS).contains(seconds) => Err(format!(
                "found {seconds} seconds to confirm in, expected 1 to {MAX_CONFIRM_SECONDS}"
            )),
            Self::Backend {
                change: Override::Weight { weight },
                ..
            } if !(1..=256).contains(weight) => Err(format!(
                "found the weight {weight}, expected 1 to 256 (`drain` takes a backend out)"
            )),
            Self::Node {
                change: Override::Weight { .. },
                ..
            } => Err("a node has no weight: `lb backend weight` sets that of a backend".to_owned()),
            Self::Kill(filter) => filter.check_kill(),
            _ => Ok(()),
        }
    }
}

/// An operator's override of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "override", rename_all = "snake_case", deny_unknown_fields)]
pub enum Override {
    /// No new flows; old ones have the pool's drain time.
    Drain,
    /// No new flows, and old ones end at once.
    Disable,
    /// As the file and the checks have it: the override is gone.
    Enable,
    /// Another weight, 1 to 256.
    Weight {
        /// The weight.
        weight: u16,
    },
}

/// The operators' overrides of backends, by their names in the registry.
pub type Overrides = BTreeMap<String, Override>;

/// Which flows; all that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Of clients in this network.
    pub network: Option<String>,
    /// Of this service.
    pub service: Option<String>,
    /// To a backend of this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// To this backend, named as in [`Request::Backend`].
    pub backend: Option<String>,
    /// Of clients in this prefix or with this address.
    pub client: Option<String>,
    /// With this SNAT address and port, as a backend sees them.
    pub snat: Option<String>,
    /// Every flow there is: a field of its own, because leaving all else out may be a mistake.
    #[serde(default)]
    pub all: bool,
}

impl Filter {
    /// Whether it leaves no flow out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            network,
            service,
            pool,
            backend,
            client,
            snat,
            all: _,
        } = self;
        [network, service, pool, backend, client, snat]
            .iter()
            .all(|part| part.is_none())
    }

    /// Whether flows may be ended that are chosen like this.
    fn check_kill(&self) -> Result<(), String> {
        match (self.is_empty(), self.all) {
            (true, false) => Err(
                "nothing says which flows: name a network, service, backend, \
                                  client or SNAT port, or say that all are meant"
                    .to_owned(),
            ),
            (false, true) => Err("all flows are meant, and only some of them".to_owned()),
            _ => Ok(()),
        }
    }
}

/// What comes of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// It is done; the report, a line each.
    Done {
        /// For people.
        lines: Vec<String>,
    },
    /// It is refused, or failed; nothing was changed unless the lines report a change.
    Refused {
        /// Whether the configuration or the question is wrong, and not the host.
        usage: bool,
        /// Every reason, a line each.
        reasons: Vec<String>,
    },
    /// To [`Request::Plan`], and to a reload that was applied.
    Changes(Changes),
    /// To a reload that only a process can carry out that takes over with this file.
    NewProcess {
        /// What changes then.
        changes: Changes,
        /// The configuration file, absolute.
        file: PathBuf,
        /// The process that it takes over from.
        process: u32,
        /// The unit of the supervisor whose reload starts it, if this one is a unit's.
        unit: Option<String>,
    },
    /// To [`Request::Health`].
    Health(ControlStatus),
    /// To [`Request::Legs`], in the order in which they began.
    Legs {
        /// The connections.
        legs: Vec<FlowLine>,
    },
    /// To [`Request::RefusedNames`], by service, the latest first.
    RefusedNames {
        /// The names.
        names: Vec<RefusedName>,
    },
    /// To [`Request::Ha`] and [`Request::FollowMarker`].
    Ha(Box<ha::HaStatus>),
    /// To [`Request::Events`], oldest first.
    Events {
        /// The events.
        events: Vec<Event>,
    },
}

/// What a change does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// What changes in the configuration, in the words of the file.
    #[serde(default)]
    pub keys: Vec<String>,
    /// The map operations in their order, a line each; none if nothing changes.
    pub operations: Vec<String>,
    /// Flows that end with it, as `service api-a: every flow`.
    pub ends: Vec<String>,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// Until when it must be confirmed, in seconds from now.
    pub confirm_seconds: Option<u64>,
}

impl Changes {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.operations.is_empty()
    }
}

/// Where the control plane stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlStatus {
    /// The configuration.
    pub config: ConfigStatus,
    /// Every backend of every pool, in the order of the file; then those that only finish flows.
    pub backends: Vec<BackendHealth>,
    /// What became of the clients of each shared VIP, by the names of their services.
    pub shared: BTreeMap<String, ServiceStats>,
    /// What the clients of each network have of what shared VIPs divide among them.
    #[serde(default)]
    pub divided: BTreeMap<String, ShareUse>,
    /// What something has taken away or changed, and could not be mended yet: of what, and why.
    #[serde(default)]
    pub wrong: BTreeMap<String, String>,
    /// The clusters of Kubernetes, by name.
    #[serde(default)]
    pub kubernetes: BTreeMap<String, ClusterStatus>,
    /// The network namespace of the control plane, as the inode of its file (namespaces(7)); 0 if it does not
    /// report one.
    #[serde(default)]
    pub namespace: u64,
    /// The interfaces of the networks that have theirs, in the network namespace of the control plane.
    #[serde(default)]
    pub interfaces: BTreeMap<String, InterfaceStatus>,
}

impl ControlStatus {
    /// How many backends of each pool take new flows, without those that stand by.
    #[must_use]
    pub fn pools(&self) -> BTreeMap<&str, UpCount> {
        let mut pools = BTreeMap::<&str, UpCount>::new();
        let counted = |backend: &&BackendHealth| !backend.retired && !backend.stands_by();
        for backend in self.backends.iter().filter(counted) {
            let count = pools.entry(&backend.pool).or_default();
            count.of += 1;
            count.up += usize::from(backend.is_up());
        }
        pools
    }

    /// The pools whose services are down, though their backends answer.
    #[must_use]
    pub fn services_down(&self) -> BTreeSet<&str> {
        let down = self.backends.iter().filter(|one| one.service_down);
        down.map(|backend| backend.pool.as_str()).collect()
    }
}

/// How many of some backends take new flows; `2/3` as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpCount {
    /// So many do.
    pub up: usize,
    /// Of so many.
    pub of: usize,
}

impl Display for UpCount {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.up, self.of)
    }
}

/// How far what is known of a cluster of Kubernetes is what there is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterStatus {
    /// How old what is known may be: 0 while the API answers, else since it does not, or since the control plane began.
    #[schemars(with = "Seconds")]
    pub age_seconds: u64,
    /// Why the API does not answer; null while it does.
    pub unanswered: Option<String>,
}

/// An interface, as the control plane knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// `native` or `generic`.
    pub mode: String,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// The ids of the backends of the network whose next hop does not answer.
    #[serde(default)]
    pub unreachable: BTreeSet<u32>,
}

/// Where the configuration stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfigStatus {
    /// The file that is read on a reload.
    pub file: PathBuf,
    /// Number of the applied configuration: 1 at the start of the process, one more with each reload.
    pub generation: u64,
    /// Since it was applied.
    #[schemars(with = "Seconds")]
    pub age_seconds: u64,
    /// Until it must be confirmed, if it must.
    #[schemars(with = "Option<Seconds>")]
    pub confirm_seconds: Option<u64>,
    /// Why the file as it is now is not what is applied; none if the last reload was.
    pub stale: Option<String>,
    /// The same in short, and since when; none also of a control plane that does not report it.
    #[serde(default)]
    pub staleness: Option<Staleness>,
}

/// What has come between the file and what is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Staleness {
    /// What it was.
    pub reason: StaleReason,
    /// Seconds since then.
    #[schemars(with = "Seconds")]
    pub age_seconds: u64,
}

/// Why the file is not what is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StaleReason {
    /// The last reload was refused.
    Refused,
    /// The last reload was not confirmed, and what was before it cannot be applied yet.
    RollbackFailed,
    /// The file could not be used at the start.
    StartedWithout,
    /// The last reload was not confirmed, and taken back.
    Unconfirmed,
}

impl StaleReason {
    /// In words, as `the last reload was refused`.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Refused => "the last reload was refused",
            Self::RollbackFailed => "the last reload was not confirmed, and cannot be taken back",
            Self::StartedWithout => "the file could not be used at the start",
            Self::Unconfirmed => "the last reload was not confirmed, and taken back",
        }
    }
}

/// Where a backend stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendHealth {
    /// Its id.
    pub id: u32,
    /// Its pool.
    pub pool: String,
    /// Its name.
    pub name: String,
    /// Whether it is checked at all.
    pub checked: bool,
    /// The verdict of the checks.
    pub verdict: HealthVerdict,
    /// Its weight as checks, ramp and operator leave it, in hundredths; 0: it gets no new flows.
    #[serde(alias = "share")]
    pub effective_weight: u32,
    /// The operator's override.
    pub overridden: Option<Override>,
    /// The latest check.
    pub last: Option<LastCheck>,
    /// Seconds since the verdict changed, if it did while this process runs.
    pub since_seconds: Option<u64>,
    /// How often it changed while this process runs.
    pub transitions: u64,
    /// Seconds until its flows end, if it drains and they do.
    pub drain_seconds: Option<u64>,
    /// Whether it is configured no more, and only finishes its flows.
    pub retired: bool,
    /// Whether it gets new flows only as long as too few of the others are up; a control plane of before reports none.
    #[serde(default)]
    pub backup: bool,
    /// Whether it gets no new flows because it has left clients without a SYN-ACK, and its check, too, if it has one; a
    /// control plane of before reports none.
    #[serde(default)]
    pub unresponsive: bool,
    /// Whether it fails with all others of its pool, and answers: the service behind them is down, and not the node; a
    /// control plane of before reports none.
    #[serde(default)]
    pub service_down: bool,
}

impl BackendHealth {
    /// Whether it takes new flows: it is good, and has a share. A pool below `min_up` that refuses new flows leaves none
    /// to those that are good.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_good() && self.effective_weight > 0
    }

    /// Whether it could take new flows: found up, or not checked at all, and not taken out by the operator.
    #[must_use]
    pub fn is_good(&self) -> bool {
        let is_known_good = !self.checked || self.verdict == HealthVerdict::Up;
        !self.retired && !self.is_out() && is_known_good
    }

    /// Whether it is a backup that could take new flows, and needs not.
    #[must_use]
    pub fn stands_by(&self) -> bool {
        self.backup && self.is_good() && self.effective_weight == 0
    }

    /// Whether the operator has taken it out.
    #[must_use]
    pub const fn is_out(&self) -> bool {
        matches!(self.overridden, Some(Override::Drain | Override::Disable))
    }
}

/// The latest check of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastCheck {
    /// How it ended.
    pub outcome: CheckOutcome,
    /// How long it took.
    pub took_ms: u64,
    /// How long ago it ended.
    pub age_ms: u64,
}

/// The kinds of events.
pub const EVENT_KINDS: [&str; 15] = [
    "confirm",
    "discovery",
    "drain",
    "ha",
    "health",
    "interface",
    "kill",
    "mend",
    "metrics",
    "neighbour",
    "override",
    "process",
    "reload",
    "rollback",
    "state",
];

/// How grave an event is, from the worst on.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Something does not serve, or an order was not carried out.
    Error,
    /// A part of something does not serve.
    Warning,
    /// Something serves again, or an order was carried out.
    #[default]
    Notice,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number, one more with each; a number that is left out is an event that was not read in time.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub time_ms: u64,
    /// What kind: [`EVENT_KINDS`].
    pub kind: String,
    /// How grave it is.
    #[serde(default)]
    pub severity: Severity,
    /// What it happened to, as `backend kas-a/10.32.96.105:30918`.
    pub object: String,
    /// What happened, for people.
    pub words: String,
    /// The process that requested it: user id and process id, if one did.
    pub by: Option<String>,
}

/// A name that a shared VIP has refused: one line of `lb drops --names`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedName {
    /// The service.
    pub service: String,
    /// The network of its clients.
    pub network: String,
    /// The name, its first 255 bytes, with each byte that is in no name as `\xNN`; null: none was requested, or none
    /// could be read.
    pub name: Option<String>,
    /// Why, as in `shared` of `lb status`.
    pub reason: String,
    /// How often, since it is kept.
    pub count: u64,
    /// The client that requested it last.
    pub client: String,
    /// Seconds since then.
    #[schemars(with = "Seconds")]
    pub age_seconds: u64,
}

/// What became of the connections of a service since the process began, and of the requests on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServiceStats {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Those that were taken to a backend, or had a request that was.
    pub routed: u64,
    /// Of those the ones that the data plane carries.
    #[serde(default)]
    pub handed_over: u64,
    /// Connections that the data plane has opened itself, whichever process ran: none of the others.
    #[serde(default)]
    pub bound: u64,
    /// Those that this process copies instead, by the reason.
    #[serde(default)]
    pub copied: BTreeMap<String, u64>,
    /// Those, or requests, that were taken to another one than the first, which did not answer.
    pub redispatched: u64,
    /// Hellos with an encrypted one in them.
    pub ech: u64,
    /// Those that were refused, by the reason; not those that had a request.
    pub refused: BTreeMap<String, u64>,
    /// Requests, where each is routed by its Host.
    #[serde(default, skip_serializing_if = "Requests::is_empty")]
    pub requests: Requests,
    /// Of those that were refused, and of such requests, the names that go nowhere, or not for their client.
    pub unrouted_names: BTreeMap<String, u64>,
}

/// What became of the requests of a service, but for those that were redirected to HTTPS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Requests {
    /// Those that a backend has answered.
    pub routed: u64,
    /// Those that were refused, by the reason.
    pub refused: BTreeMap<String, u64>,
}

impl Requests {
    /// Whether there were none, as where connections are not HTTP.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.routed == 0 && self.refused.is_empty()
    }
}

/// What clients of a network have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShareUse {
    /// Sockets of shared VIPs.
    pub descriptors: usize,
    /// Ports of flows that sockets have, or had a moment ago.
    pub flow_ports: usize,
    /// Ports of connections that are never handed over.
    pub leg_ports: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, String> {
        let request: Request = serde_json::from_str(text).map_err(|error| error.to_string())?;
        request.check().map(|()| request)
    }

    #[test]
    fn a_request_is_a_command_and_what_belongs_to_it() {
        assert_eq!(read(r#"{"command":"confirm"}"#), Ok(Request::Confirm));
        assert_eq!(
            read(r#"{"command":"reload"}"#),
            Ok(Request::Reload {
                file: None,
                confirm_seconds: None
            })
        );
        assert_eq!(
            read(r#"{"command":"kill","client":"10.0.0.0/8"}"#),
            Ok(Request::Kill(Filter {
                client: Some("10.0.0.0/8".to_owned()),
                ..Filter::default()
            }))
        );
        assert_eq!(
            read(
                r#"{"command":"backend","name":"p/a","change":{"override":"weight","weight":256}}"#
            ),
            Ok(Request::Backend {
                name: "p/a".to_owned(),
                change: Override::Weight { weight: 256 },
            })
        );
        assert_eq!(
            read(r#"{"command":"node","name":"fd00::1","change":{"override":"drain"}}"#),
            Ok(Request::Node {
                name: "fd00::1".to_owned(),
                change: Override::Drain,
            })
        );
    }

    #[test]
    fn of_a_pool_that_refuses_new_flows_no_backend_counts_as_up() {
        let backend = |verdict, effective_weight| BackendHealth {
            id: 1,
            pool: "kas-a".to_owned(),
            name: "node-1".to_owned(),
            checked: true,
            verdict,
            effective_weight,
            overridden: None,
            last: None,
            since_seconds: None,
            transitions: 0,
            drain_seconds: None,
            retired: false,
            backup: false,
            unresponsive: false,
            service_down: false,
        };
        // The first step of a slow start is a share.
        assert!(backend(HealthVerdict::Up, 5).is_up());
        // Below `min_up`: with `refuse` no backend has one, with `all` the dead ones do.
        assert!(!backend(HealthVerdict::Up, 0).is_up());
        assert!(!backend(HealthVerdict::Dead, 100).is_up());
    }

    #[test]
    fn what_is_misspelt_is_not_left_out() {
        for text in [
            r#"{"command":"kill","all":true,"sevice":"a"}"#,
            r#"{"command":"reload","confirm":30}"#,
            r#"{"command":"backend","name":"a","change":{"override":"weight","weight":1,"x":1}}"#,
            r#"{"command":"events"}"#,
            r#"{"command":"stop"}"#,
            r#"{}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_can_mean_nothing_is_refused() {
        for (text, words) in [
            (r#"{"command":"plan","file":"lb.yaml"}"#, "not absolute"),
            (r#"{"command":"reload","file":"lb.yaml"}"#, "not absolute"),
            (
                r#"{"command":"reload","confirm_seconds":0}"#,
                "expected 1 to 86400",
            ),
            (
                r#"{"command":"reload","confirm_seconds":18446744073709551615}"#,
                "expected 1 to 86400",
            ),
            (
                r#"{"command":"backend","name":"a","change":{"override":"weight","weight":0}}"#,
                "expected 1 to 256",
            ),
            (
                r#"{"command":"backend","name":"a","change":{"override":"weight","weight":257}}"#,
                "expected 1 to 256",
            ),
            (
                r#"{"command":"node","name":"a","change":{"override":"weight","weight":1}}"#,
                "a node has no weight",
            ),
            (r#"{"command":"kill"}"#, "nothing says which flows"),
            (
                r#"{"command":"kill","all":true,"service":"a"}"#,
                "only some of them",
            ),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
        assert!(read(r#"{"command":"kill","all":true}"#).is_ok());
        assert!(read(r#"{"command":"plan","file":"/lb.yaml"}"#).is_ok());
    }
}

/// One line of `lb flows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowLine {
    /// Network of the client.
    pub network: String,
    /// Its service.
    pub service: String,
    /// `tcp` or `udp`.
    pub protocol: Cow<'static, str>,
    /// Client address and port.
    pub client: String,
    /// VIP and port.
    pub vip: String,
    /// SNAT address and port.
    pub snat: String,
    /// Backend address and port.
    pub backend: String,
    /// `new`, `replied`, `established`, `half_closed` or, of `lb who`, `closed` or `ended`.
    pub state: Cow<'static, str>,
    /// The name that the client requested, if that decided where it went.
    pub name: Option<String>,
    /// Bytes of frames from the client; of a connection of a shared VIP, of what is in them.
    pub bytes_request: u64,
    /// Bytes of frames to the client.
    pub bytes_reply: u64,
    /// Since the last packet.
    #[schemars(with = "Seconds")]
    pub idle_seconds: u64,
    /// Until it is ended for being idle; none for one that is not, or is closed.
    #[schemars(with = "Option<Seconds>")]
    pub expires_in_seconds: Option<u64>,
}
