//! The checks of a configuration: which backends are to be checked, and what is known of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_common::maps::vip_offer::VipOffer;
use tokio::{
    sync::mpsc::{self, Sender, UnboundedReceiver},
    time,
};

use super::{
    backend_weights::{BackendStatus, Layers},
    cell_peers::{self, Heard},
    persisted_state::State,
    service_verdict::CheckedStatus,
};
use crate::{
    api::{LastCheck, Override},
    config::{Config, Network, Pool},
    health::{
        CheckOutcome, CheckTarget, Checker, Commons, HealthVerdict, Report, Standing, join, turns,
    },
    model::{
        names::backend_name,
        registry::{Ids, Kind},
    },
    network::neighbour::Side,
};

/// How long flows wait for checks that do not end.
const FIRST_CHECKS_TIMEOUT: Duration = Duration::from_secs(4);

/// The threads that check, and where every backend stands.
pub struct Checks {
    /// Checks as they end.
    pub reports: UnboundedReceiver<Report>,
    /// Where threads send them, and what else they share.
    commons: Commons,
    /// One for each network, by its name.
    checkers: BTreeMap<String, Checker>,
    /// Where each backend stands, by its name in the registry.
    backends: BTreeMap<String, CheckedBackend>,
    /// The names of those that are checked, and where, by their ids.
    names: BTreeMap<u32, (String, SocketAddr)>,
    /// What became of backends that were suspected.
    responses: Vec<Response>,
    /// The peers whose answers the cells let in.
    pub heard: Heard,
    /// Where the backends stood before those of a change that is not made yet were checked.
    before: Option<BTreeMap<String, CheckedBackend>>,
    /// What [`Self::wait`] saw change, of each backend from the first verdict to the last one.
    unnoted: BTreeMap<String, VerdictChange>,
    /// Whether a backend has agreed to something else than before, or there are other backends.
    has_agreement: bool,
}

/// Where a backend stands.
#[derive(Clone, Debug, Default)]
pub struct CheckedBackend {
    /// What its checks have found.
    pub standing: Standing,
    /// The latest one, and when it ended.
    pub last: Option<(Report, Instant)>,
    /// When the first check ended of those that have failed in a row.
    failing_since: Option<Instant>,
    /// Where it is checked.
    address: Option<SocketAddr>,
    /// Whether it was not up yet where it is checked now, which is elsewhere than before.
    has_moved: bool,
    /// When its verdict changed.
    pub since: Option<Instant>,
    /// When it came back.
    back: Option<Instant>,
    /// How often its verdict changed while this process runs.
    pub transitions: u64,
    /// Whether it has left a client without an answer, and since then its checks.
    pub is_unresponsive: bool,
    /// What it has agreed to with the latest connection of a check.
    agreed: Option<VipOffer>,
}

/// How the backends are that the data plane has, by their ids.
pub struct LiveBackends<'a> {
    /// Whether one has new flows now.
    pub serves: &'a dyn Fn(u32) -> bool,
    /// Whether the next hop of one does not answer.
    pub is_silent: &'a dyn Fn(u32) -> bool,
}

/// A backend that has left a client and then a check without an answer, or answers again. No verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The backend's name in the registry.
    pub backend: String,
    /// Whether there is none.
    pub is_missing: bool,
    /// The check, in words.
    pub words: String,
}

/// A verdict that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictChange {
    /// The backend's name in the registry.
    pub backend: String,
    /// What it was.
    pub from: HealthVerdict,
    /// What it is.
    pub to: HealthVerdict,
    /// The check that decided it, in words.
    pub words: String,
}

impl VerdictChange {
    /// Whether the first check of a backend found it up.
    fn is_first_up(&self) -> bool {
        (self.from, self.to) == (HealthVerdict::Unknown, HealthVerdict::Up)
    }
}

impl Default for Checks {
    fn default() -> Self {
        let (sender, reports) = mpsc::unbounded_channel();
        let commons = Commons {
            reports: sender,
            turns: turns(),
        };
        Self {
            reports,
            commons,
            checkers: BTreeMap::new(),
            backends: BTreeMap::new(),
            names: BTreeMap::new(),
            responses: Vec::new(),
            heard: Heard::default(),
            before: None,
            unnoted: BTreeMap::new(),
            has_agreement: false,
        }
    }
}

impl Checks {
    /// Takes over what an earlier process knew.
    pub fn adopt(&mut self, state: &State) {
        for (name, standing) in &state.standings {
            let backend = CheckedBackend {
                standing: standing.clone(),
                ..CheckedBackend::default()
            };
            self.backends.insert(name.clone(), backend);
        }
    }

    /// Starts the thread that checks the backends of a network, which has the NIC with this index, and has
    /// the neighbours resolved again that are silent.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(
        &mut self,
        network: &str,
        side: Side,
        nic: u32,
        neighbours: Sender<IpAddr>,
    ) -> Result<()> {
        let commons = self.commons.clone();
        let checker = Checker::start(side, nic, network, commons, neighbours)?;
        self.checkers.insert(network.to_owned(), checker);
        Ok(())
    }

    /// From now on the NIC of a network is the one with this index.
    pub fn follow(&self, network: &str, nic: u32) {
        if let Some(checker) = self.checkers.get(network) {
            checker.follow(nic);
        }
    }

    /// From now on the backends of `config` are checked, and no others. `serves`: whether the backend with an
    /// id has new flows now. A backend whose answers the cell would not let in is not checked: else it would
    /// seem dead. Backends of several pools that are checked alike are checked once.
    pub fn set(&mut self, config: &Config, ids: &Ids, serves: impl Fn(u32) -> bool) {
        let unheard = self.heard.set(config, ids);
        self.has_agreement = true;
        // What is known of a backend counts before what is presumed of another one that is checked alike.
        let mut targets: BTreeMap<&str, [Vec<CheckTarget>; 2]> = BTreeMap::new();
        self.names.clear();
        for pool in &config.pools {
            let (Some(health), Some(network)) = (&pool.health, config.network(&pool.network))
            else {
                continue;
            };
            for backend in &pool.backends {
                let address = cell_peers::address(health, backend);
                let Some(source) = source(network, address.ip()) else {
                    continue;
                };
                if unheard.contains(&(pool.network.as_str(), address)) {
                    continue;
                }
                let name = backend_name(pool, backend);
                let Some(id) = ids.get(Kind::Backend, &name) else {
                    continue;
                };
                let known = self.backends.entry(name.clone()).or_default();
                known.move_to(address);
                let is_new = known.standing.verdict == HealthVerdict::Unknown;
                if is_new && serves(id) && !known.has_moved {
                    known.standing = Standing::presumed_up(health.fall);
                }
                let of_network = targets.entry(&pool.network).or_default();
                of_network[usize::from(is_new)].push(CheckTarget {
                    backend: id,
                    also: Vec::new(),
                    address,
                    send_proxy_header: expects_header(pool, address.port(), backend.port),
                    source,
                    next_hop: network.next_hop(address.ip()),
                    health: health.clone(),
                    saved: known.standing.clone(),
                });
                self.names.insert(id, (name, address));
            }
        }
        let names: BTreeSet<&String> = self.names.values().map(|(name, _)| name).collect();
        self.backends.retain(|name, _| names.contains(name));
        for (network, checker) in &self.checkers {
            let targets = targets.remove(network.as_str()).unwrap_or_default();
            checker.set(join(targets.into_iter().flatten()));
        }
    }

    /// Has a backend of a network checked at once: it has left a client without an answer.
    pub fn suspect(&self, network: &str, backend: u32) {
        if let Some(checker) = self.checkers.get(network) {
            checker.suspect(backend);
        }
    }

    /// Checks no backend any more until they are [set](Self::set) again: the next process does.
    pub fn rest(&self) {
        for checker in self.checkers.values() {
            checker.set(Vec::new());
        }
    }

    /// From now on backends are checked for a change that may not be made.
    pub fn begin_trial(&mut self) {
        self.before = Some(self.backends.clone());
    }

    /// The change is made: its backends stay.
    pub fn finish_trial(&mut self) {
        self.before = None;
    }

    /// The change is not made: what was known of backends that it does not have is known again. Returns
    /// whether there was one.
    pub fn undo_trial(&mut self) -> bool {
        let before = self.before.take();
        let was_begun = before.is_some();
        for (name, backend) in before.into_iter().flatten() {
            let is_elsewhere = |now: &CheckedBackend| now.address != backend.address;
            if self.backends.get(&name).is_none_or(is_elsewhere) {
                self.backends.insert(name, backend);
            }
        }
        was_begun
    }

    /// Takes a report in; returns the change of the verdict, if it made one.
    pub fn note(&mut self, report: Report) -> Option<VerdictChange> {
        // It may have been taken out of the file while the check was on its way.
        let (name, address) = self.names.get(&report.backend)?;
        // Or checked elsewhere meanwhile.
        if report.address != *address {
            return None;
        }
        let backend = self.backends.get_mut(name)?;
        let from = backend.standing.verdict;
        let to = report.standing.verdict;
        backend.standing = report.standing.clone();
        let words = report.outcome.words().to_owned();
        let now = Instant::now();
        backend.has_moved &= to != HealthVerdict::Up;
        backend.failing_since = match report.outcome {
            CheckOutcome::Good(_) => None,
            CheckOutcome::NotReady(_) | CheckOutcome::Dead(_) => {
                backend.failing_since.or(Some(now))
            }
        };
        let was_unresponsive = backend.is_unresponsive;
        backend.is_unresponsive = to == HealthVerdict::Up
            && match report.outcome {
                CheckOutcome::Good(_) | CheckOutcome::NotReady(_) => false,
                CheckOutcome::Dead(_) => was_unresponsive || report.is_suspected,
            };
        if to == HealthVerdict::Up && backend.is_unresponsive != was_unresponsive {
            self.responses.push(Response {
                backend: name.to_owned(),
                is_missing: backend.is_unresponsive,
                words: words.clone(),
            });
        }
        if report.agreed.is_some() && report.agreed != backend.agreed {
            backend.agreed = report.agreed;
            self.has_agreement = true;
        }
        backend.last = Some((report, now));
        if from == to {
            return None;
        }
        backend.since = Some(now);
        backend.transitions += 1;
        backend.back = (to == HealthVerdict::Up && from != HealthVerdict::Unknown).then_some(now);
        Some(VerdictChange {
            backend: name.to_owned(),
            from,
            to,
            words,
        })
    }

    /// Waits until every backend was checked once, and is up where it has moved to, or has had its time: a client that
    /// connects then is not refused because no backend was checked yet.
    pub async fn wait(&mut self) {
        self.wait_for_checks().await;
        for backend in self.backends.values_mut() {
            backend.has_moved = false;
        }
    }

    async fn wait_for_checks(&mut self) {
        let deadline = time::Instant::now() + FIRST_CHECKS_TIMEOUT;
        while self.are_pending() {
            match time::timeout_at(deadline, self.reports.recv()).await {
                Ok(Some(report)) => {
                    if let Some(change) = self.note(report) {
                        let known = self.unnoted.entry(change.backend.clone());
                        let known = known.or_insert_with(|| change.clone());
                        *known = VerdictChange {
                            from: known.from,
                            ..change
                        };
                    }
                }
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Takes what [`Self::wait`] saw change, but for first checks that found a backend up.
    pub fn take_unnoted(&mut self) -> Vec<VerdictChange> {
        let changes = mem::take(&mut self.unnoted).into_values();
        let is_news = |change: &VerdictChange| !change.is_first_up() && change.from != change.to;
        changes.filter(is_news).collect()
    }

    /// Takes what became of backends that were suspected.
    pub fn take_responses(&mut self) -> Vec<Response> {
        mem::take(&mut self.responses)
    }

    /// Whether there is something new to be read of what backends [agree to](Self::agreed); asked once.
    pub(super) fn take_agreement(&mut self) -> bool {
        mem::take(&mut self.has_agreement)
    }

    /// What a backend has agreed to with the latest connection of a check.
    pub(super) fn agreed(&self, name: &str) -> Option<VipOffer> {
        self.backends.get(name)?.agreed
    }

    /// How many backends wait for their first check.
    pub fn pending(&self) -> usize {
        let pending = self
            .backends
            .values()
            .filter(|backend| backend.is_pending());
        pending.count()
    }

    /// Whether a backend waits for its first check.
    pub fn are_pending(&self) -> bool {
        self.backends.values().any(CheckedBackend::is_pending)
    }

    /// Whether one of this pool does: the status of the pool may be another in a moment.
    pub fn are_pending_of(&self, pool: &Pool) -> bool {
        let names = pool.backends.iter().map(|one| backend_name(pool, one));
        let mut known = names.filter_map(|name| self.backends.get(&name));
        known.any(CheckedBackend::is_pending)
    }

    /// What the checks of each backend of a pool have found.
    pub(super) fn statuses(&self, pool: &Pool) -> Vec<CheckedStatus> {
        let backends = pool.backends.iter().filter_map(|backend| {
            let name = backend_name(pool, backend);
            let known = self.backends.get(&name)?;
            Some(known.status(name, backend.name.clone()))
        });
        backends.collect()
    }

    /// Since when the checks of a backend have failed that answers; none if they do not, or it does not.
    pub(super) fn failing_since(&self, name: &str) -> Option<Instant> {
        let known = self.backends.get(name)?;
        known.failing_since.filter(|_| known.answers())
    }

    /// Where a backend stands that is checked.
    pub fn of(&self, name: &str) -> Option<&CheckedBackend> {
        self.backends.get(name)
    }

    /// The status of the backends of `config`, by their checks, their next hops and these overrides. A backend
    /// that has new flows now and was never checked stays in until its first check.
    pub fn layers(
        &self,
        config: &Config,
        ids: &Ids,
        live: &LiveBackends<'_>,
        overrides: &BTreeMap<String, Override>,
    ) -> Layers {
        let now = Instant::now();
        Layers::new(config, |pool, backend| {
            let name = backend_name(pool, backend);
            let known = self.backends.get(&name);
            let verdict = known
                .map(|known| known.standing.verdict)
                .unwrap_or_default();
            let id = ids.get(Kind::Backend, &name);
            let stays = pool.health.is_some()
                && verdict == HealthVerdict::Unknown
                && id.is_some_and(live.serves);
            let back = known.and_then(|known| known.back);
            BackendStatus {
                verdict: if stays { HealthVerdict::Up } else { verdict },
                overridden: overrides.get(&name).copied(),
                back_for: back.map(|back| now - back),
                is_silent: id.is_some_and(live.is_silent)
                    || known.is_some_and(|known| known.is_unresponsive),
            }
        })
    }

    /// The names of the backends that are down.
    pub fn down(&self) -> BTreeSet<String> {
        let backends = self.backends.iter();
        let down = backends.filter(|(_, backend)| backend.standing.verdict.is_down());
        down.map(|(name, _)| name.clone()).collect()
    }

    /// Whether its checks find the backend with this name up.
    pub fn is_up(&self, name: &str) -> bool {
        let known = self.backends.get(name);
        known.is_some_and(|backend| backend.standing.verdict == HealthVerdict::Up)
    }

    /// What is to be kept over a restart.
    pub fn standings(&self) -> BTreeMap<String, Standing> {
        let backends = self.backends.iter();
        backends
            .map(|(name, backend)| (name.clone(), backend.standing.clone()))
            .collect()
    }
}

impl CheckedBackend {
    fn is_pending(&self) -> bool {
        self.standing.verdict == HealthVerdict::Unknown || self.has_moved
    }

    /// It is checked at this address from now on. What was found at another port says nothing of it: its first check
    /// there decides.
    fn move_to(&mut self, address: SocketAddr) {
        let before = self.address.replace(address);
        if before.is_none_or(|before| before == address) {
            return;
        }
        self.has_moved = true;
        self.failing_since = None;
        self.agreed = None;
        self.standing = Standing {
            flaps: self.standing.flaps,
            ..Standing::default()
        };
    }

    /// Whether the latest check was answered.
    pub(super) fn answers(&self) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| last.is_answered)
    }

    fn status(&self, name: String, backend: String) -> CheckedStatus {
        let last = self.last.as_ref();
        let good = last.filter(|(report, _)| matches!(report.outcome, CheckOutcome::Good(_)));
        CheckedStatus {
            name,
            backend,
            verdict: self.standing.verdict,
            answers: self.answers(),
            good_from: good.and_then(|(report, at)| at.checked_sub(report.took)),
            words: last.map_or_else(String::new, |(last, _)| last.outcome.words().to_owned()),
        }
    }

    /// The latest check, for the admin socket.
    pub fn last_check(&self) -> Option<LastCheck> {
        let (report, at) = self.last.as_ref()?;
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Some(LastCheck {
            outcome: report.outcome.clone(),
            took_ms: ms(report.took),
            age_ms: ms(at.elapsed()),
        })
    }
}

/// Whether the server at a checked port expects a header of the PROXY protocol: another port than the
/// backend's is another server's.
fn expects_header(pool: &Pool, asked: u16, port: u16) -> bool {
    pool.proxy_protocol.is_some() && asked == port
}

/// Where the checks of a backend come from: the address of its family that this box has for them, which stays with it in
/// every role, else the first SNAT address.
fn source(network: &Network, backend: IpAddr) -> Option<IpAddr> {
    let snats = network.snat.iter().map(|snat| snat.address);
    let mut sources = network.checks_from.iter().copied().chain(snats);
    sources.find(|address| address.is_ipv6() == backend.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Snat};

    const ONE: &str = "p/10.0.0.1:1@mgmt/10.0.0.1";

    fn config(health: &str) -> Config {
        let text = format!(
            "
version: 1
networks: {{ mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }} }}
pools:
  p: {{ network: mgmt, {health}backends: [\"10.0.0.1:1\", \"10.0.0.2:1\"] }}
"
        );
        config::parse("f", &text).unwrap()
    }

    fn ids(config: &Config) -> Ids {
        let mut ids = Ids::default();
        for (id, backend) in (1..).zip(&config.pools[0].backends) {
            ids.insert(Kind::Backend, &backend_name(&config.pools[0], backend), id);
        }
        ids
    }

    /// The same of what was probed elsewhere.
    fn report_of(address: &str, backend: u32, verdict: HealthVerdict) -> Report {
        Report {
            address: address.parse().unwrap(),
            ..report(backend, verdict)
        }
    }

    fn report(backend: u32, verdict: HealthVerdict) -> Report {
        Report {
            backend,
            address: SocketAddr::from(([10, 0, 0, u8::try_from(backend).unwrap()], 1)),
            is_suspected: false,
            outcome: CheckOutcome::Good("200 OK".to_owned()),
            is_answered: true,
            took: Duration::from_millis(3),
            agreed: None,
            changed: true,
            standing: Standing {
                verdict,
                ..Standing::default()
            },
        }
    }

    /// The status of the first backend of the first pool.
    fn first(layers: &Layers, config: &Config) -> BackendStatus {
        let shares = layers.shares(&config.pools[0]).backends;
        shares[0].status
    }

    fn verdict(checks: &Checks, config: &Config, serves: bool) -> HealthVerdict {
        let live = LiveBackends {
            serves: &|_| serves,
            is_silent: &|_| false,
        };
        let layers = checks.layers(config, &ids(config), &live, &BTreeMap::new());
        first(&layers, config).verdict
    }

    #[test]
    fn a_report_changes_the_verdict_once() {
        let config = config("health: { tcp: {} }, ");
        let mut checks = Checks::default();
        checks.set(&config, &ids(&config), |_| false);
        assert!(checks.are_pending());
        assert!(checks.are_pending_of(&config.pools[0]));
        let other = Pool {
            name: "q".to_owned(),
            ..config.pools[0].clone()
        };
        assert!(!checks.are_pending_of(&other), "it is not asked");
        let turn = VerdictChange {
            backend: ONE.to_owned(),
            from: HealthVerdict::Unknown,
            to: HealthVerdict::Up,
            words: "200 OK".to_owned(),
        };
        assert_eq!(checks.note(report(1, HealthVerdict::Up)), Some(turn));
        assert_eq!(checks.note(report(1, HealthVerdict::Up)), None);
        assert_eq!(
            checks.note(report(7, HealthVerdict::Up)),
            None,
            "no backend has this id"
        );
        assert!(checks.are_pending(), "the other one");
        checks.note(report(2, HealthVerdict::Dead));
        assert!(!checks.are_pending());
        assert!(!checks.are_pending_of(&config.pools[0]));
        let one = checks.of(ONE).unwrap();
        assert_eq!((one.transitions, one.back), (1, None), "it was never away");
        checks.note(report(1, HealthVerdict::Dead));
        checks.note(report(1, HealthVerdict::Up));
        let one = checks.of(ONE).unwrap();
        assert_eq!(one.transitions, 3);
        assert!(one.back.is_some());
        assert_eq!(one.last_check().unwrap().took_ms, 3);
    }

    /// A pool that begins to be checked keeps its backends until their first check.
    #[test]
    fn who_serves_stays_until_its_first_check() {
        let config = config("health: { tcp: {}, fall: 4 }, ");
        let mut checks = Checks::default();
        assert_eq!(verdict(&checks, &config, true), HealthVerdict::Up);
        assert_eq!(verdict(&checks, &config, false), HealthVerdict::Unknown);
        checks.set(&config, &ids(&config), |id| id == 1);
        let standing = &checks.of(ONE).unwrap().standing;
        assert_eq!((standing.verdict, standing.against), (HealthVerdict::Up, 3));
        assert!(checks.are_pending(), "the other one did not serve");
    }

    #[test]
    fn only_the_backends_own_port_expects_a_header() {
        let told = config("proxy_protocol: v2, ");
        let asked = |config: &Config, port| expects_header(&config.pools[0], port, 1);
        assert!(asked(&told, 1) && !asked(&told, 2));
        assert!(!asked(&config(""), 1));
    }

    #[test]
    fn a_check_comes_from_an_address_of_the_backends_family() {
        let mut network = config("").networks.remove(0);
        let [ipv4, ipv6] = ["10.0.0.9", "2001:db8::9"].map(|text| text.parse().unwrap());
        assert_eq!(source(&network, "10.0.0.1".parse().unwrap()), Some(ipv4));
        let backend = "2001:db8::1".parse().unwrap();
        assert_eq!(source(&network, backend), None);
        let other = network.snat[0];
        network.snat.push(Snat {
            address: ipv6,
            ..other
        });
        assert_eq!(source(&network, backend), Some(ipv6));
        let stays: IpAddr = "10.0.0.8".parse().unwrap();
        network.checks_from = vec![stays];
        assert_eq!(source(&network, "10.0.0.1".parse().unwrap()), Some(stays));
        assert_eq!(source(&network, backend), Some(ipv6), "of IPv6 it has none");
    }

    /// A change that is tried and refused.
    #[test]
    fn what_is_remembered_is_as_it_was() {
        let tried = config("health: { tcp: {} }, ");
        let mut before = tried.clone();
        before.pools[0].name = "q".to_owned();
        let mut all = ids(&tried);
        all.insert(Kind::Backend, "q/10.0.0.1:1@mgmt/10.0.0.1", 7);
        let mut checks = Checks::default();
        checks.set(&before, &all, |_| false);
        checks.note(report_of("10.0.0.1:1", 7, HealthVerdict::Dead));
        checks.begin_trial();
        checks.set(&tried, &all, |_| false);
        assert_eq!(
            checks.note(report_of("10.0.0.1:1", 7, HealthVerdict::Up)),
            None
        );
        assert!(checks.undo_trial());
        checks.set(&before, &all, |_| true);
        let names: Vec<_> = checks.standings().into_keys().collect();
        assert_eq!(names, ["q/10.0.0.1:1@mgmt/10.0.0.1"]);
        assert_eq!(
            checks
                .note(report_of("10.0.0.1:1", 7, HealthVerdict::Up))
                .map(|turn| turn.from),
            Some(HealthVerdict::Dead)
        );
        assert_eq!(checks.note(report(1, HealthVerdict::Up)), None);
    }

    /// While a reload waits for it, for instance.
    #[tokio::test]
    async fn what_changes_while_it_is_waited_for_is_one_change() {
        let config = config("health: { tcp: {} }, ");
        let mut checks = Checks::default();
        checks.set(&config, &ids(&config), |_| false);
        let send = |backend, verdict| {
            let reports = checks.commons.reports.clone();
            reports.send(report(backend, verdict)).unwrap();
        };
        send(1, HealthVerdict::Dead);
        send(1, HealthVerdict::Up);
        send(2, HealthVerdict::Dead);
        checks.wait().await;
        let changes = checks.take_unnoted().into_iter();
        let changes: Vec<_> = changes
            .map(|change| (change.from, change.to, change.backend))
            .collect();
        let two = "p/10.0.0.2:1@mgmt/10.0.0.2".to_owned();
        assert_eq!(
            changes,
            [(HealthVerdict::Unknown, HealthVerdict::Dead, two)]
        );
    }

    /// The same backend, at another port: what was found at the old one says nothing of it.
    #[test]
    fn a_backend_that_moves_waits_until_it_is_up_there() {
        let at = |port: u16| {
            let mut config = config("health: { tcp: {} }, ");
            config.pools[0].backends.truncate(1);
            config.pools[0].backends[0].name = "one".to_owned();
            config.pools[0].backends[0].port = port;
            config
        };
        let [old, new] = [1, 2].map(at);
        let ids = ids(&old);
        let mut checks = Checks::default();
        let bad = |verdict| Report {
            outcome: CheckOutcome::Dead("connection refused".to_owned()),
            ..report_of("10.0.0.1:2", 1, verdict)
        };
        checks.set(&old, &ids, |_| false);
        checks.note(report(1, HealthVerdict::Up));
        assert!(!checks.are_pending());

        checks.begin_trial();
        checks.set(&new, &ids, |_| true);
        assert!(checks.are_pending());
        let (_, standing) = checks.standings().pop_first().unwrap();
        assert_eq!(standing, Standing::default(), "its first check decides");
        checks.note(report(1, HealthVerdict::Up));
        assert!(checks.are_pending(), "a late one of the old port");
        checks.note(bad(HealthVerdict::Dead));
        assert!(checks.are_pending(), "until it is up, or its time is over");
        checks.note(report_of("10.0.0.1:2", 1, HealthVerdict::Dead));
        assert!(checks.are_pending(), "one good check is not enough");
        // The change is not made.
        assert!(checks.undo_trial());
        checks.set(&old, &ids, |_| true);
        assert!(!checks.are_pending());
        let (_, standing) = checks.standings().pop_first().unwrap();
        assert_eq!(standing.verdict, HealthVerdict::Up);

        checks.begin_trial();
        checks.set(&new, &ids, |_| true);
        checks.note(report_of("10.0.0.1:2", 1, HealthVerdict::Up));
        assert!(!checks.are_pending());
        checks.set(&new, &ids, |_| true);
        checks.finish_trial();
        assert!(!checks.are_pending(), "it is there already");
    }

    #[test]
    fn a_suspected_backend_without_an_answer_has_no_share_until_it_answers() {
        let config = config("health: { tcp: {} }, ");
        let mut checks = Checks::default();
        checks.set(&config, &ids(&config), |_| false);
        let is_silent = |checks: &Checks| {
            let live = LiveBackends {
                serves: &|_| true,
                is_silent: &|_| false,
            };
            let layers = checks.layers(&config, &ids(&config), &live, &BTreeMap::new());
            first(&layers, &config).is_silent
        };
        let dead = |is_suspected| Report {
            outcome: CheckOutcome::Dead("no connection".to_owned()),
            is_suspected,
            ..report(1, HealthVerdict::Up)
        };
        checks.note(report(1, HealthVerdict::Up));
        checks.note(dead(false));
        assert!(!is_silent(&checks), "a check by its schedule");
        assert_eq!(checks.take_responses(), []);
        checks.note(dead(true));
        checks.note(dead(false));
        assert!(is_silent(&checks));
        checks.note(report(1, HealthVerdict::Up));
        assert!(!is_silent(&checks));
        let responses = checks.take_responses().into_iter();
        let missing: Vec<bool> = responses.map(|response| response.is_missing).collect();
        assert_eq!(missing, [true, false]);
        checks.note(dead(true));
        checks.note(report(1, HealthVerdict::Dead));
        assert!(!is_silent(&checks), "the verdict says it");
    }

    #[test]
    fn what_is_known_outlives_the_process_and_not_the_backend() {
        let checked = config("health: { tcp: {} }, ");
        let mut checks = Checks::default();
        let mut state = State::default();
        let dead = Standing {
            verdict: HealthVerdict::Dead,
            ..Standing::default()
        };
        state.standings.insert(ONE.to_owned(), dead.clone());
        state
            .standings
            .insert("old/x@mgmt/10.0.0.7".to_owned(), dead);
        checks.adopt(&state);
        assert_eq!(verdict(&checks, &checked, true), HealthVerdict::Dead);
        checks.set(&checked, &ids(&checked), |_| false);
        let names = |checks: &Checks| checks.standings().into_keys().collect::<Vec<_>>();
        assert_eq!(names(&checks), [ONE, "p/10.0.0.2:1@mgmt/10.0.0.2"]);
        let unchecked = config("");
        checks.set(&unchecked, &ids(&unchecked), |_| true);
        assert_eq!(names(&checks), [""; 0]);
    }
}
