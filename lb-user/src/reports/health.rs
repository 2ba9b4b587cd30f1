//! `lb health -o json`, and the first lines of `lb status`: whether everything serves.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{ConfigStatus, ControlStatus, Staleness, UpCount},
    model::ago::ago_seconds,
    observe::{ELSEWHERE, MISSING, NetworkStatus},
};

/// How the instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Everything serves.
    Ok,
    /// Something does not: see the problems.
    Degraded,
    /// The instance is not up, or no control plane reports.
    Unknown,
}

/// How the instance is, and what is wrong with it.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Summary {
    /// In a word.
    pub state: State,
    /// What does not serve, or why nothing is known, a line each.
    pub problems: Vec<String>,
    /// Backends that take new flows, of all pools.
    pub backends_up: usize,
    /// Backends that are configured.
    pub backends: usize,
    /// Those of them that the operator has drained or disabled.
    pub backends_out: usize,
    /// Why the file is not what runs; null if it is, or nothing is known.
    pub stale: Option<String>,
}

impl Summary {
    /// Of these networks and pools.
    pub fn new<'p>(
        networks: &[NetworkStatus],
        pools: impl IntoIterator<Item = &'p str>,
        control: &Result<ControlStatus, String>,
    ) -> Self {
        let networks = networks.iter().filter_map(network_problem);
        let control = match control {
            Ok(control) => control,
            Err(why) => return Self::unknown([why.clone()].into_iter().chain(networks)),
        };
        let counts = control.pools();
        let down = pools.into_iter().filter_map(|pool| {
            let count = counts.get(pool).copied().unwrap_or_default();
            (count.up == 0).then(|| pool_problem(pool, count, control))
        });
        let wrong = control
            .wrong
            .iter()
            .map(|(object, why)| format!("{object}: {why}"));
        let problems: Vec<String> = networks.chain(down).chain(wrong).collect();
        Self {
            state: match problems.is_empty() {
                true => State::Ok,
                false => State::Degraded,
            },
            problems,
            backends_up: counts.values().map(|count| count.up).sum(),
            backends: counts.values().map(|count| count.of).sum(),
            backends_out: control.backends.iter().filter(|one| one.is_out()).count(),
            stale: stale(&control.config),
        }
    }

    /// With the reason first.
    pub fn unknown(problems: impl IntoIterator<Item = String>) -> Self {
        Self {
            state: State::Unknown,
            problems: problems.into_iter().collect(),
            backends_up: 0,
            backends: 0,
            backends_out: 0,
            stale: None,
        }
    }

    /// In one line.
    pub fn line(&self) -> String {
        let problems = self.problems.join("; ");
        let stale = self.stale.as_ref();
        let stale = stale.map(|why| format!("; configuration is stale: {why}"));
        let stale = stale.unwrap_or_default();
        let backends = self.counted();
        match self.state {
            State::Ok => format!("ok: {backends}{stale}"),
            State::Degraded => format!("degraded: {problems}; {backends}{stale}"),
            State::Unknown => format!("unknown: {problems}"),
        }
    }

    /// With a line for each problem.
    pub fn lines(&self) -> Vec<String> {
        let backends = self.counted();
        let (first, problems) = match (self.state, self.problems.split_first()) {
            (State::Degraded, _) => (format!("degraded: {backends}"), self.problems.as_slice()),
            (State::Unknown, Some((why, others))) => (format!("unknown: {why}"), others),
            // What is stale has a line of its own in `lb status`.
            _ => (format!("ok: {backends}"), &[][..]),
        };
        let problems = problems.iter().map(|problem| format!("  {problem}"));
        std::iter::once(first).chain(problems).collect()
    }

    fn counted(&self) -> String {
        let (up, of) = (self.backends_up, self.backends);
        let out = match self.backends_out {
            0 => String::new(),
            out => format!(", {out} drained or disabled"),
        };
        format!("{up} of {of} backends up{out}")
    }
}

/// Why the file is not what runs, in short, and how long ago that was.
fn stale(config: &ConfigStatus) -> Option<String> {
    let stale = config.stale.as_ref()?;
    Some(match config.staleness {
        Some(Staleness {
            reason,
            age_seconds,
        }) => {
            format!("{} ({} ago)", reason.words(), ago_seconds(age_seconds))
        }
        // Of a control plane of before: as `lb status` has it.
        None => stale.clone(),
    })
}

/// Why a pool takes no new flows.
fn pool_problem(pool: &str, count: UpCount, control: &ControlStatus) -> String {
    let of_pool = control.backends.iter().filter(|one| one.pool == pool);
    let answering = of_pool.clone().filter(|one| one.service_down).count();
    if answering > 0 {
        return format!(
            "pool {pool}: service down: {count} backends up, though {answering} answer"
        );
    }
    let good = of_pool.filter(|one| one.is_good()).count();
    if good == 0 {
        return format!("pool {pool}: {count} backends up");
    }
    let good = UpCount {
        up: good,
        of: count.of,
    };
    format!("pool {pool}: {good} backends up, less than min_up: new clients are refused")
}

/// Why a network carries nothing.
pub(super) fn network_problem(network: &NetworkStatus) -> Option<String> {
    let NetworkStatus {
        name, interface, ..
    } = network;
    let problem = match network {
        NetworkStatus { mode: MISSING, .. } => format!("no interface {interface}"),
        NetworkStatus {
            mode: ELSEWHERE, ..
        } => format!("interface {interface} is in another network namespace than this command"),
        NetworkStatus {
            mode: "detached", ..
        } => format!("no program on {interface}"),
        NetworkStatus { stopped: true, .. } => "stopped (on_stop: drop)".to_owned(),
        NetworkStatus { carrier: false, .. } => format!("no carrier on {interface}"),
        _ => return None,
    };
    Some(format!("network {name}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::{
        super::samples::{self, backend, control},
        *,
    };
    use crate::{
        api::{BackendHealth, Override, StaleReason},
        health::HealthVerdict,
    };

    fn network(change: impl Fn(&mut NetworkStatus)) -> NetworkStatus {
        let mut network = samples::network("tenant-a");
        change(&mut network);
        network
    }

    #[test]
    fn a_pool_that_serves_with_some_of_its_backends_is_well() {
        let backends = vec![
            backend(1, "p", HealthVerdict::Up),
            backend(1, "p", HealthVerdict::Dead),
            BackendHealth {
                checked: false,
                ..backend(1, "q", HealthVerdict::Unknown)
            },
        ];
        let found = Summary::new(&[network(|_| {})], ["p", "q"], &Ok(control(backends)));
        assert_eq!(found.line(), "ok: 2 of 3 backends up");
        assert_eq!(found.lines(), ["ok: 2 of 3 backends up"]);
    }

    #[test]
    fn a_pool_without_a_backend_that_is_up_is_named() {
        let drained = BackendHealth {
            overridden: Some(Override::Drain),
            ..backend(1, "q", HealthVerdict::Up)
        };
        let retired = BackendHealth {
            retired: true,
            ..backend(1, "r", HealthVerdict::Up)
        };
        let backends = vec![
            backend(1, "p", HealthVerdict::Dead),
            backend(1, "p", HealthVerdict::Unknown),
            backend(1, "p", HealthVerdict::NotReady),
            drained,
            retired,
        ];
        let found = Summary::new(&[], ["p", "q", "r"], &Ok(control(backends)));
        assert_eq!(
            found.lines(),
            [
                "degraded: 0 of 4 backends up, 1 drained or disabled",
                "  pool p: 0/3 backends up",
                "  pool q: 0/1 backends up",
                "  pool r: 0/0 backends up",
            ]
        );
        assert_eq!(
            found.line(),
            "degraded: pool p: 0/3 backends up; pool q: 0/1 backends up; pool r: 0/0 backends up; \
             0 of 4 backends up, 1 drained or disabled"
        );
        // They fail together, but for one that does not answer.
        let mut backends = [1, 2, 3].map(|id| BackendHealth {
            service_down: id < 3,
            ..backend(id, "p", HealthVerdict::Dead)
        });
        backends[0].verdict = HealthVerdict::NotReady;
        let found = Summary::new(&[], ["p"], &Ok(control(backends.into())));
        assert_eq!(
            found.problems,
            ["pool p: service down: 0/3 backends up, though 2 answer"]
        );
        // With a share in none of them, below `min_up`.
        let refused = BackendHealth {
            effective_weight: 0,
            ..backend(1, "p", HealthVerdict::Up)
        };
        let backends = vec![refused, backend(1, "p", HealthVerdict::Dead)];
        let found = Summary::new(&[], ["p"], &Ok(control(backends)));
        assert_eq!(
            found.line(),
            "degraded: pool p: 1/2 backends up, less than min_up: new clients are refused; \
             0 of 2 backends up"
        );
    }

    #[test]
    fn what_carries_nothing_is_named_once() {
        let networks = [
            network(|network| {
                network.mode = MISSING;
                network.carrier = false;
            }),
            network(|network| network.carrier = false),
            network(|network| network.stopped = true),
            network(|network| network.mode = "detached"),
            network(|network| {
                network.mode = ELSEWHERE;
                network.carrier = false;
            }),
        ];
        let mut control = control(Vec::new());
        let why = "the program is another one's".to_owned();
        control.wrong.insert("interface eth0".to_owned(), why);
        assert_eq!(
            Summary::new(&networks, [], &Ok(control)).problems,
            [
                "network tenant-a: no interface eth0",
                "network tenant-a: no carrier on eth0",
                "network tenant-a: stopped (on_stop: drop)",
                "network tenant-a: no program on eth0",
                "network tenant-a: interface eth0 is in another network namespace than this command",
                "interface eth0: the program is another one's",
            ]
        );
    }

    #[test]
    fn a_stale_configuration_is_in_the_line() {
        let stale = |staleness| {
            let mut control = control(vec![backend(1, "p", HealthVerdict::Up)]);
            control.config.stale = Some("refused: lb.yaml:7: x".to_owned());
            control.config.staleness = staleness;
            Summary::new(&[], ["p"], &Ok(control))
        };
        let found = stale(Some(Staleness {
            reason: StaleReason::Refused,
            age_seconds: 305,
        }));
        let ok = "ok: 1 of 1 backends up";
        assert_eq!(
            found.line(),
            format!("{ok}; configuration is stale: the last reload was refused (5m5s ago)")
        );
        // It stands behind that in `lb status`.
        assert_eq!(found.lines(), [ok]);
        let before = stale(None);
        assert!(before.line().ends_with("is stale: refused: lb.yaml:7: x"));
        let fresh = control(vec![backend(1, "p", HealthVerdict::Up)]);
        assert_eq!(Summary::new(&[], ["p"], &Ok(fresh)).line(), ok);
    }

    #[test]
    fn without_a_control_plane_the_reason_stands_first() {
        let missing = network(|network| network.mode = MISSING);
        let silent = Err("no control plane runs".to_owned());
        let found = Summary::new(&[missing], [], &silent);
        let network = "network tenant-a: no interface eth0";
        assert_eq!(
            found.line(),
            format!("unknown: no control plane runs; {network}")
        );
        assert_eq!(
            found.lines(),
            [
                "unknown: no control plane runs".to_owned(),
                format!("  {network}")
            ]
        );
    }
}
