//! What a running control plane does between changes: it takes in what checks find, what the operator orders,
//! and what time does.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    backend_weights::Layers,
    beginning::Beginning,
    checks::VerdictChange,
    discovered::{Discovered, KeptDiscovery},
    mend::Mending,
    nic_watch::NicState,
    persisted_state::{State, Uptime},
    promotion::RoleState,
    running::Running,
    service_verdict::ServiceVerdicts,
};
use crate::{
    api::{Override, Severity, StaleReason, Staleness},
    config::{Config, OnDead},
    events::history::{Happened, History},
    flows::evict::selector::EvictSelector,
    health::{HealthVerdict, Report},
    metrics::report::ReloadCounts,
    model::registry::Kind,
    network::namespace,
    sources::file::File,
};

/// How often [`Control::tick`] is to be called.
pub const TICK_INTERVAL: Duration = Duration::from_millis(250);

/// A control plane between changes.
pub struct Control {
    /// What runs.
    pub running: Running,
    pub(super) state: State,
    /// As it is on the disk.
    pub(crate) saved: State,
    /// Why it is not kept there.
    unkept: Unkept,
    pub(crate) history: History,
    pub(super) generation: u64,
    pub(super) applied_at: Instant,
    /// Why the file is not what is applied.
    pub(super) stale: Option<Stale>,
    /// Pools with too few backends up.
    pub(super) below: BTreeSet<String>,
    /// Whether backends are down, or the services behind them.
    pub(super) services: ServiceVerdicts,
    /// Network and address of the next hops that were logged as silent.
    pub(super) silent_next_hops: BTreeSet<(u16, IpAddr)>,
    pub(super) file: File,
    pub(crate) discovered: Discovered,
    pub(super) nics: NicState,
    pub(super) mending: Mending,
    pub(super) role: RoleState,
    /// What became of reloads.
    pub(super) reloads: ReloadCounts,
    /// How long what waits to be confirmed may wait once another process applies it, if that is yet to come.
    pub(super) handed_on: Option<Duration>,
}

/// Why the state is not kept: it is tried again four times a second, and logged once.
#[derive(Debug, Default)]
struct Unkept(Option<String>);

impl Unkept {
    /// What is to be logged of an attempt, if that is news.
    fn note(&mut self, stored: &Result<()>) -> Option<String> {
        let error = stored.as_ref().err().map(|error| format!("{error:#}"));
        if error == self.0 {
            return None;
        }
        self.0.clone_from(&error);
        Some(match error {
            Some(error) => format!(
                "overrides of backends and verdicts of checks are not kept over a restart: {error}"
            ),
            None => "overrides of backends and verdicts of checks are kept again".to_owned(),
        })
    }
}

/// Why a change was not made.
#[derive(Debug)]
pub enum Refusal {
    /// The configuration is wrong: its problems, a line each.
    Config(Vec<String>),
    /// The host, or the running data plane, refuses.
    Host(anyhow::Error),
}

impl Refusal {
    /// The reasons, a line each.
    pub fn reasons(&self) -> Vec<String> {
        match self {
            Self::Config(problems) => problems.clone(),
            Self::Host(error) => vec![format!("{error:#}")],
        }
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Self::Host(error)
    }
}

/// Why the file is not what is applied.
#[derive(Clone, Debug)]
pub(super) struct Stale {
    pub(super) reason: StaleReason,
    /// With everything that is to be known of it.
    pub(super) words: String,
    /// Since when.
    since: Instant,
}

impl Stale {
    /// From now on.
    pub(super) fn new(reason: StaleReason, words: String) -> Self {
        Self {
            reason,
            words,
            since: Instant::now(),
        }
    }

    /// As it is reported.
    pub(super) fn staleness(&self) -> Staleness {
        Staleness {
            reason: self.reason,
            age_seconds: self.since.elapsed().as_secs(),
        }
    }
}

impl Control {
    /// Takes over what was started with `file`, and what an earlier process has left in `state`, and what it knew of
    /// `clusters`. `before` is what was applied until now.
    pub(crate) fn new(
        running: Running,
        state: State,
        file: File,
        before: &Config,
        beginning: Beginning,
        clusters: KeptDiscovery,
    ) -> Self {
        let mut history = History::open(running.pins());
        history.follow(running.config().syslog.as_ref());
        let mut control = Self {
            file,
            discovered: Discovered::new(clusters),
            running,
            services: ServiceVerdicts::adopt(&state.services_down),
            below: state.services_down.clone(),
            saved: state.clone(),
            state: State {
                namespace: namespace::own(),
                ..state
            },
            unkept: Unkept::default(),
            history,
            generation: 1,
            applied_at: Instant::now(),
            stale: None,
            silent_next_hops: BTreeSet::new(),
            nics: NicState::default(),
            mending: Mending::default(),
            role: RoleState::default(),
            reloads: ReloadCounts::default(),
            handed_on: None,
        };
        control.note_beginning(beginning);
        control.note_first_checks();
        control.finish_cuts();
        control.cut_dead();
        control.note_pools();
        control.note_missing();
        control.follow(before);
        control.follow_clusters();
        control
    }

    /// How it is, in a line.
    pub fn summary(&self) -> String {
        let config = self.running.config();
        let (networks, services) = (config.networks.len(), config.services.len());
        let stale = match &self.stale {
            Some(stale) => format!("; the file is not what is applied: {}", stale.words),
            None => String::new(),
        };
        let role = match config.ha {
            Some(_) => format!(", {}", self.role()),
            None => String::new(),
        };
        format!("{networks} networks, {services} services{role}{stale}")
    }

    /// The status of all backends now.
    pub(super) fn layers(&self) -> Layers {
        let config = self.running.config();
        self.running.layers(config, &self.state.overrides)
    }

    /// Takes in the checks that have ended: all verdicts that they change cost one sweep over pools and flows.
    ///
    /// # Errors
    ///
    /// If the kernel refuses what follows from them.
    pub fn take_reports(&mut self, reports: impl Iterator<Item = Report>) -> Result<()> {
        let checks = &mut self.running.checks;
        let changes: Vec<VerdictChange> =
            reports.filter_map(|report| checks.note(report)).collect();
        let responses = checks.take_responses();
        let is_news = !responses.is_empty();
        self.note_responses(responses);
        if changes.is_empty() {
            return if is_news { self.share() } else { Ok(()) };
        }
        let has_died = changes
            .iter()
            .any(|change| change.to == HealthVerdict::Dead);
        self.note_verdicts(changes);
        let shared = self.share();
        // Also where no share changes: of several first checks it may be the last one.
        self.note_pools();
        if has_died {
            self.cut_dead();
        }
        let config = self.running.config().clone();
        self.follow(&config);
        shared
    }

    /// Notes what changed while the data plane waited for first checks.
    pub(super) fn note_first_checks(&mut self) {
        let changes = self.running.checks.take_unnoted();
        self.note_verdicts(changes);
    }

    fn on_dead(&self, backend: &str) -> Option<OnDead> {
        let (pool, _) = backend.split_once('/')?;
        let pool = self.running.config().pool(pool)?;
        pool.health.as_ref().map(|health| health.on_dead)
    }

    /// Does what is due.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub async fn tick(&mut self) -> Result<()> {
        self.running.tidy();
        self.tick_role();
        self.end_fence();
        self.follow_active_box().await;
        self.tick_nics().await;
        self.tick_mending();
        self.running.offer_found();
        self.look_at_answers();
        if self.settle_services() {
            self.note_pools();
        }
        let shared = match self.running.is_share_due() {
            true => self.share(),
            false => Ok(()),
        };
        let over = self.state.drains.take_over();
        if !over.is_empty() {
            for name in &over {
                let object = format!("backend {name}");
                let words = "its drain_timeout is over: the flows that are left get a reset";
                self.event("drain", Severity::Notice, &object, words);
            }
            let drained = self.backend_ids(over.iter().map(String::as_str));
            self.running.ending.cut(EvictSelector {
                drained,
                ..EvictSelector::default()
            });
        }
        let unconfirmed = self.state.unconfirmed.as_ref().map(|one| one.until);
        if unconfirmed.is_some_and(Uptime::is_over) {
            self.roll_back().await;
        }
        // What changes while a reload waits to be confirmed is seen afterwards.
        self.tick_discovered().await;
        let watches = self.running.config().watch && self.state.unconfirmed.is_none();
        if watches && self.file.has_changed() {
            self.reload_watched().await;
        }
        self.save();
        shared
    }

    /// Brings the pools' tables to the status of their backends now.
    pub(super) fn share(&mut self) -> Result<()> {
        let layers = self.layers();
        let before = self.running.serving().clone();
        let changed = self.running.share(&layers);
        if self.running.serving() != &before {
            // One that was believed in all the same, as long as too few were up.
            self.cut_dead();
        }
        if !changed?.is_empty() {
            self.note_pools();
        }
        Ok(())
    }

    /// Logs which pools have too few backends up now, and which have enough again. A pool that waits for its
    /// first checks is left out, and one of which it is not known yet whether its service is down.
    pub(super) fn note_pools(&mut self) {
        let layers = self.layers();
        let pools = self.running.config().pools.iter();
        // An empty pool waits for its backends; that is no failure.
        let pools = pools
            .filter(|pool| !pool.backends.is_empty() && !self.running.checks.are_pending_of(pool))
            .filter(|pool| !self.services.is_open(&pool.name));
        let below: Vec<(String, bool)> = pools
            .map(|pool| (pool.name.clone(), layers.shares(pool).below))
            .collect();
        for (pool, below) in below {
            self.note_below(&pool, below);
        }
    }

    /// Logs once when a pool has too few backends up, and when it has enough again.
    fn note_below(&mut self, pool: &str, below: bool) {
        if below == self.below.contains(pool) {
            return;
        }
        let (severity, words) = if below {
            self.below.insert(pool.to_owned());
            tracing::error!(pool, "too few backends are up");
            (Severity::Error, "too few backends are up")
        } else {
            self.below.remove(pool);
            tracing::info!(pool, "enough backends are up again");
            (Severity::Notice, "enough backends are up again")
        };
        self.event("health", severity, &format!("pool {pool}"), words);
    }

    /// The ids of these backends, by their names in the registry.
    pub(super) fn backend_ids<'n>(&self, names: impl Iterator<Item = &'n str>) -> BTreeSet<u32> {
        let ids = self.running.ids();
        names
            .filter_map(|name| ids.get(Kind::Backend, name))
            .collect()
    }

    /// Ends the flows of dead backends that get no new ones, as far as the pool's `on_dead` has it.
    fn cut_dead(&mut self) {
        if !self.role().serves() {
            // What the active box thinks of its backends is what counts for its flows.
            return;
        }
        let ids = self.running.ids();
        let mut cut = EvictSelector::default();
        for (name, standing) in self.running.checks.standings() {
            let id = ids.get(Kind::Backend, &name);
            let id = id.filter(|id| !self.running.serves(*id));
            let Some(id) = id.filter(|_| standing.verdict == HealthVerdict::Dead) else {
                continue;
            };
            match self.on_dead(&name) {
                Some(OnDead::Reset) => cut.backends.insert(id),
                Some(OnDead::Reselect | OnDead::Drain) => cut.unanswered.insert(id),
                Some(OnDead::None) | None => false,
            };
        }
        self.running.ending.cut(cut);
    }

    /// What a killed process may not have come to: the flows of backends that are disabled, or have drained,
    /// end.
    fn finish_cuts(&mut self) {
        let overrides = self.state.overrides.iter();
        let disabled = overrides.filter(|(_, said)| **said == Override::Disable);
        let cut = EvictSelector {
            disabled: self.backend_ids(disabled.map(|(name, _)| name.as_str())),
            drained: self.backend_ids(self.state.drains.over()),
            ..EvictSelector::default()
        };
        self.running.ending.cut(cut);
    }

    /// Keeps drains and what is on the disk up to date; `before` is the configuration until now.
    pub(super) fn follow(&mut self, before: &Config) {
        let layers = self.layers();
        let config = self.running.config();
        let ids = self.running.ids();
        let configured: BTreeSet<u32> = config
            .pools
            .iter()
            .flat_map(|pool| {
                let names = pool.backends.iter();
                names.map(move |backend| crate::model::names::backend_name(pool, backend))
            })
            .filter_map(|name| ids.get(Kind::Backend, &name))
            .collect();
        let retired = ids.of(Kind::Backend);
        let retired = retired.filter(|(_, id)| !configured.contains(id));
        let retired: Vec<&str> = retired.map(|(name, _)| name).collect();
        if self.state.unconfirmed.is_none() {
            // Without an id it is not configured, and has no flow any more.
            let overrides = &mut self.state.overrides;
            overrides.retain(|name, _| ids.get(Kind::Backend, name).is_some());
        }
        let drains = &mut self.state.drains;
        drains.follow(config, &layers, retired.into_iter(), before);
        self.save();
    }

    /// Writes what must outlive the process, if it has changed.
    pub(crate) fn save(&mut self) {
        self.state.standings = self.running.checks.standings();
        self.state.services_down = self.services.down();
        let stored = self.store();
        if let Some(words) = self.unkept.note(&stored) {
            let severity = match &stored {
                Ok(()) => {
                    tracing::info!("{words}");
                    Severity::Notice
                }
                Err(_) => {
                    tracing::error!("{words}");
                    Severity::Error
                }
            };
            self.event("state", severity, "files", &words);
        }
    }

    /// As [`Self::save`].
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(super) fn store(&mut self) -> Result<()> {
        if self.state != self.saved {
            self.state.save(self.running.pins())?;
            self.saved = self.state.clone();
        }
        Ok(())
    }

    /// Notes what happened by itself.
    pub(crate) fn event(&mut self, kind: &str, severity: Severity, object: &str, words: &str) {
        self.history.push(Happened {
            kind,
            severity,
            object,
            words,
            by: None,
        });
    }

    /// Notes and logs what was ordered, by the operator or signal that is named.
    pub(super) fn event_by(&mut self, kind: &str, object: &str, words: &str, by: Option<String>) {
        tracing::info!(by, "{kind}: {object}: {words}");
        self.history.push(Happened {
            kind,
            severity: Severity::Notice,
            object,
            words,
            by,
        });
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn what_is_not_kept_is_said_once() {
        let mut unkept = Unkept::default();
        let full = || Err(anyhow!("no room"));
        assert_eq!(unkept.note(&Ok(())), None);
        let said = unkept.note(&full()).unwrap();
        assert_eq!(
            said,
            "overrides of backends and verdicts of checks are not kept over a restart: no room"
        );
        assert_eq!(unkept.note(&full()), None);
        assert!(
            unkept.note(&Err(anyhow!("gone"))).is_some(),
            "another reason"
        );
        let said = unkept.note(&Ok(())).unwrap();
        assert_eq!(
            said,
            "overrides of backends and verdicts of checks are kept again"
        );
        assert_eq!(unkept.note(&Ok(())), None);
        assert!(unkept.note(&full()).is_some(), "it is full again");
    }
}
