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

#[cfg(test)]
mod tests {
    use super::{super::samples::overview, *};

    /// The overview of the samples, whose network `blue` has these counts, and drops.
    fn look(flows: u64, connects: u64, connect_us: u64, dropped: u64) -> Overview {
        let mut overview = overview();
        overview.rates = None;
        overview.status.status.networks[0].counts = Some(FlowCounts {
            flows,
            connects,
            connect_us,
            bytes_reply: 10 * flows,
            ..FlowCounts::default()
        });
        overview.drops = vec![DropLine {
            hook: "nic",
            network: "blue".to_owned(),
            reason: "denied",
            dropped,
            refused: 1,
            since_last: None,
            help: "",
            samples: Vec::new(),
        }];
        overview
    }

    #[test]
    fn rates_are_of_what_came_between_two_looks() {
        let begin = Instant::now();
        let mut watch = Watch::default();
        let mut first = look(100, 10, 5000, 7);
        watch.follow(&mut first, begin);
        assert_eq!((first.rates, first.drops[0].since_last), (None, None));
        let mut second = look(150, 14, 13_000, 11);
        watch.follow(&mut second, begin + Duration::from_secs(2));
        assert_eq!(second.drops[0].since_last, Some(4));
        let rates = second.rates.unwrap();
        assert_eq!(rates.seconds, Seconds::from_millis(2000));
        let blue = FlowRate {
            flows: 25.0,
            bytes_reply: 250.0,
            dropped: 2.0,
            connect_seconds: Some(0.002),
            ..FlowRate::default()
        };
        assert_eq!(rates.networks, [("blue".to_owned(), blue)].into());
    }

    #[test]
    fn what_begins_anew_has_no_rate_below_none() {
        let begin = Instant::now();
        let mut watch = Watch::default();
        watch.follow(&mut look(100, 10, 5000, 7), begin);
        let mut second = look(1, 0, 0, 2);
        watch.follow(&mut second, begin + Duration::from_secs(1));
        let rates = second.rates.unwrap();
        let blue = rates.networks["blue"];
        assert_eq!((blue.flows, blue.connect_seconds), (0.0, None));
        // The one answer is in it.
        assert_eq!(second.drops[0].since_last, Some(3));
    }

    #[test]
    fn looks_that_are_far_apart_or_at_once_make_no_rates() {
        for passed in [Duration::ZERO, MAX_INTERVAL + Duration::from_secs(1)] {
            let begin = Instant::now();
            let mut watch = Watch::default();
            watch.follow(&mut look(1, 0, 0, 0), begin);
            let mut second = look(2, 0, 0, 0);
            watch.follow(&mut second, begin + passed);
            assert_eq!(second.rates, None, "{passed:?}");
        }
    }
}
