//! What comes in a second, by two looks at what only rises.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::Serialize;

use super::overview::Overview;
use crate::{
    model::seconds::Seconds,
    observe::{DropLine, FlowCounts},
};

/// How far two looks may be apart: a mean of more says nothing of now.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// What has come between two looks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct FlowRates {
    /// How far they were apart.
    pub seconds: Seconds,
    /// By the name of a network.
    pub networks: BTreeMap<String, FlowRate>,
    /// By the name of a service.
    pub services: BTreeMap<String, FlowRate>,
    /// By `POOL/BACKEND`.
    pub backends: BTreeMap<String, FlowRate>,
}

/// What has come, a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct FlowRate {
    /// Flows that began.
    pub flows: f64,
    /// Bytes from clients.
    pub bytes_request: f64,
    /// Bytes from backends.
    pub bytes_reply: f64,
    /// Connections that no backend has answered, or that one has refused.
    pub failed: f64,
    /// Frames that were dropped or refused; of networks only.
    pub dropped: f64,
    /// How long connects took, on average; null if none was answered.
    #[schemars(with = "Option<Seconds>")]
    pub connect_seconds: Option<f64>,
}

/// The look before.
#[derive(Debug, Default)]
pub struct Watch(Option<Look>);

#[derive(Debug)]
struct Look {
    when: Instant,
    counts: HashMap<(Subject, String), FlowCounts>,
    /// By hook, network and reason.
    drops: HashMap<(&'static str, String, &'static str), u64>,
}

/// What counts are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Subject {
    Network,
    Service,
    Backend,
}

impl Watch {
    /// Notes in an overview of `when` what came since the one before, and makes it the one before.
    pub fn follow(&mut self, overview: &mut Overview, when: Instant) {
        let now = Look::of(overview, when);
        if let Some(last) = &self.0 {
            let passed = when.saturating_duration_since(last.when);
            if !passed.is_zero() && passed <= MAX_INTERVAL {
                for line in &mut overview.drops {
                    line.since_last = Some(last.new_drops(line));
                }
                overview.rates = Some(now.rates(last, passed, &overview.drops));
            }
        }
        self.0 = Some(now);
    }
}

impl Look {
    fn of(overview: &Overview, when: Instant) -> Self {
        let networks = overview.status.status.networks.iter();
        let networks = networks.map(|one| (Subject::Network, one.name.clone(), one.counts));
        let services = overview.services.iter().map(|one| &one.line);
        let services = services.map(|one| (Subject::Service, one.name.clone(), one.counts));
        let backends = overview.backends.iter().map(|one| &one.line);
        let backends = backends.map(|one| {
            (
                Subject::Backend,
                format!("{}/{}", one.pool, one.name),
                one.counts,
            )
        });
        let counts = networks.chain(services).chain(backends);
        let drops = overview.drops.iter();
        Self {
            when,
            counts: counts
                .filter_map(|(subject, name, counts)| Some(((subject, name), counts?)))
                .collect(),
            drops: drops
                .map(|line| {
                    let key = (line.hook, line.network.clone(), line.reason);
                    (key, line.unserved())
                })
                .collect(),
        }
    }

    /// Packets of a line that came after this look. A network that was removed and comes back begins at zero.
    fn new_drops(&self, line: &DropLine) -> u64 {
        let before = self
            .drops
            .get(&(line.hook, line.network.clone(), line.reason));
        let now = line.unserved();
        now.checked_sub(before.copied().unwrap_or_default())
            .unwrap_or(now)
    }

    fn rates(&self, last: &Self, passed: Duration, drops: &[DropLine]) -> FlowRates {
        let mut rates = FlowRates {
            seconds: Seconds::from_millis(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)),
            ..FlowRates::default()
        };
        for ((subject, name), now) in &self.counts {
            let Some(before) = last.counts.get(&(*subject, name.clone())) else {
                continue;
            };
            let of_subject = match subject {
                Subject::Network => &mut rates.networks,
                Subject::Service => &mut rates.services,
                Subject::Backend => &mut rates.backends,
            };
            of_subject.insert(name.clone(), FlowRate::of(before, now, passed));
        }
        for line in drops {
            if let Some(rate) = rates.networks.get_mut(&line.network) {
                let new = line.since_last.unwrap_or_default();
                rate.dropped += new as f64 / passed.as_secs_f64();
            }
        }
        rates
    }
}

impl FlowRate {
    /// Counts of an object that has another id now are lower than before: nothing is known of what came between.
    fn of(before: &FlowCounts, now: &FlowCounts, passed: Duration) -> Self {
        let new = |count: fn(&FlowCounts) -> u64| count(now).saturating_sub(count(before));
        let rate = |count| new(count) as f64 / passed.as_secs_f64();
        let connects = new(|counts| counts.connects);
        let micros = new(|counts| counts.connect_us) as f64;
        Self {
            flows: rate(|counts| counts.flows),
            bytes_request: rate(|counts| counts.bytes_request),
            bytes_reply: rate(|counts| counts.bytes_reply),
            failed: rate(|counts| counts.failed),
            dropped: 0.0,
            connect_seconds: (connects > 0).then(|| micros / connects as f64 / 1_000_000.0),
        }
    }
}
