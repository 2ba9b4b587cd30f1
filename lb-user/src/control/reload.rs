//! Another file, or the same one anew. A file that is wrong changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context as _;

use super::{
    change::Change,
    confirm::Unconfirmed,
    control_loop::{Control, Refusal, Stale},
    ended_count::EndedPart,
    fixed_at_start::moved_networks,
    persisted_state::Uptime,
    running::Running,
};
use crate::{
    api::{Changes, Severity, StaleReason},
    config::{self, Config, Limits, Loaded, Pool, Warning, time_text},
    events::history::Happened,
    flows::evict::selector::EvictSelector,
    model::{names::backend_name, registry::Kind},
    sources::file::File,
};

/// How long after a rollback that failed it is tried again.
const ROLLBACK_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The message for a configuration that the operator has not confirmed.
const UNCONFIRMED: &str =
    "the last reload was not confirmed in time: the configuration of before runs again";
/// The message for a start with another file.
const OTHER_FILE: &str = "this start has another file than the reload that waited to be confirmed: \
                          nothing waits any more";

impl Control {
    /// What a reload of `file` would change.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it.
    pub fn plan(&mut self, file: &Path) -> Result<Changes, Refusal> {
        let Loaded {
            config, warnings, ..
        } = load(file).1?;
        let config = self.merged(&config).config;
        let mut changes = self.foresee(&config, &warnings)?;
        let moves = moved_networks(self.running.config(), &config);
        if !moves.is_empty() {
            changes.warnings.push(format!(
                "{}: `lb reload` starts a new process, which takes over",
                moves.join(", ")
            ));
        }
        Ok(changes)
    }

    /// What a configuration would change, in this process or in one that takes over.
    pub(super) fn foresee(
        &mut self,
        config: &Config,
        warnings: &[Warning],
    ) -> anyhow::Result<Changes> {
        let running = self.running.config().clone();
        let layers = self.running.layers(config, &self.state.overrides);
        let change = match moved_networks(&running, config).is_empty() {
            true => self.running.prepare(config, &layers)?,
            false => self.running.foresee(config, &layers)?,
        };
        Ok(Changes {
            keys: config::difference(&running, config).context("compare the configurations")?,
            operations: change.operations(),
            ends: self.running.count_ended(ends(&change, &self.running)),
            warnings: said(warnings, &running, config),
            confirm_seconds: None,
        })
    }

    /// Reads a file; none: the one of the last time.
    pub(super) fn read(&self, file: Option<&Path>) -> (File, Result<Loaded, Refusal>) {
        load(file.unwrap_or_else(|| self.file.path()))
    }

    /// Applies a file; none: the one of the last time. With `confirm`, what was before comes back after that
    /// time unless [`Self::confirm`] is called. `by` is the operator or signal that requested it.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it; then nothing is changed, unless the host refused a step: then
    /// what was before is applied again.
    pub async fn reload(
        &mut self,
        file: Option<PathBuf>,
        confirm: Option<Duration>,
        by: Option<String>,
    ) -> Result<Changes, Refusal> {
        let (file, loaded) = self.read(file.as_deref());
        self.reload_loaded(file, loaded, confirm, by).await
    }

    /// As [`Self::reload`], of a file that was read.
    pub(super) async fn reload_loaded(
        &mut self,
        file: File,
        loaded: Result<Loaded, Refusal>,
        confirm: Option<Duration>,
        by: Option<String>,
    ) -> Result<Changes, Refusal> {
        let path = file.path().display().to_string();
        let result = self.try_reload(loaded, confirm).await;
        self.running.end_checks();
        let object = format!("file {path}");
        match &result {
            Ok(changes) => {
                let words = format!(
                    "applied as generation {}: {} operations",
                    self.generation,
                    changes.operations.len()
                );
                self.reloads.applied += 1;
                self.event_by("reload", &object, &words, by);
                self.file = file;
            }
            Err(refusal) => {
                let reasons = refusal.reasons();
                let words = format!("refused: {}", reasons.join("; "));
                tracing::error!(by, "reload: {object}: {words}; what was applied goes on");
                self.reloads.refused += 1;
                self.history.push(Happened {
                    kind: "reload",
                    severity: Severity::Error,
                    object: &object,
                    words: &words,
                    by,
                });
                if file.path() == self.file.path() {
                    self.file = file;
                    self.stale = Some(Stale::new(StaleReason::Refused, words));
                }
            }
        }
        result
    }

    async fn try_reload(
        &mut self,
        loaded: Result<Loaded, Refusal>,
        confirm: Option<Duration>,
    ) -> Result<Changes, Refusal> {
        self.forget_unstarted();
        if let Some(unconfirmed) = &self.state.unconfirmed {
            let words = format!(
                "the reload before waits to be confirmed, for {} more: `lb confirm` first",
                time_text(Duration::from_secs(unconfirmed.until.left().as_secs()))
            );
            return Err(Refusal::Host(anyhow::Error::msg(words)));
        }
        let Loaded {
            config, warnings, ..
        } = loaded?;
        let warnings = said(&warnings, self.running.config(), &config);
        let config = self.with_discovered(&config);
        let before = self.running.config().clone();
        if confirm.is_some() {
            self.running.check_way_back(&config)?;
        }
        let change = self.prepare(&config).await?;
        if let Some(time) = confirm {
            // Before anything is changed: also a process that is killed in the middle of it goes back.
            self.await_confirmation(time, &before, &config)?;
        }
        match self.carry_out(change).await {
            Ok(changes) => {
                self.stale = None;
                Ok(Changes {
                    warnings,
                    confirm_seconds: confirm.map(|time| time.as_secs()),
                    ..changes
                })
            }
            Err(error) => {
                self.state.unconfirmed = None;
                self.running.end_checks();
                if let Err(error) = self.apply(&before).await {
                    tracing::error!(
                        "apply the configuration of before again, after a failed reload: {error:#}; `lb reload` \
                         tries again"
                    );
                }
                self.save();
                Err(error.into())
            }
        }
    }

    /// From now on what is applied next must be confirmed.
    pub(super) fn await_confirmation(
        &mut self,
        time: Duration,
        before: &Config,
        after: &Config,
    ) -> anyhow::Result<()> {
        self.state.unconfirmed = Some(Unconfirmed {
            until: Uptime::now().after(time),
            before: before.clone().into(),
            after: after.clone().into(),
            file: Some(self.file.path().to_owned()),
        });
        self.store().map_err(|error| {
            self.state.unconfirmed = None;
            error.context("write that the reload waits to be confirmed; nothing is changed")
        })
    }

    /// Finds out whether a configuration can be applied. Where a pool would have no backend to send new flows
    /// to because one was not checked yet, or a backend has another port, they are checked first, and flows go on
    /// as before.
    async fn prepare(&mut self, config: &Config) -> anyhow::Result<Change> {
        self.running.ending.finish_policy().await?;
        let layers = self.running.layers(config, &self.state.overrides);
        let change = self.running.prepare(config, &layers)?;
        if !change.waits(self.running.config(), &layers) {
            return Ok(change);
        }
        self.running.begin_checks(&change)?;
        self.running.checks.wait().await;
        self.note_first_checks();
        let layers = self.running.layers(config, &self.state.overrides);
        self.running.prepare(config, &layers)
    }

    async fn carry_out(&mut self, change: Change) -> anyhow::Result<Changes> {
        let before = self.running.config().clone();
        let changes = Changes {
            operations: change.operations(),
            ends: self.running.count_ended(ends(&change, &self.running)),
            ..Changes::default()
        };
        self.running.change(change).await?;
        let keys = config::difference(&before, self.running.config());
        self.generation += 1;
        self.applied_at = Instant::now();
        self.history.follow(self.running.config().syslog.as_ref());
        self.follow(&before);
        self.follow_clusters();
        self.note_pools();
        Ok(Changes {
            keys: keys.unwrap_or_default(),
            ..changes
        })
    }

    /// Applies a configuration that was applied before.
    pub(crate) async fn apply(&mut self, config: &Config) -> anyhow::Result<()> {
        let applied = match self.prepare(config).await {
            Ok(change) => self.carry_out(change).await.map(drop),
            Err(error) => Err(error),
        };
        self.running.end_checks();
        applied
    }

    /// What was applied stays.
    ///
    /// # Errors
    ///
    /// If nothing waits to be confirmed, or it cannot be written that it stays.
    pub fn confirm(&mut self, by: Option<String>) -> Result<(), Refusal> {
        let Some(unconfirmed) = self.state.unconfirmed.take() else {
            let words = "nothing waits to be confirmed".to_owned();
            return Err(Refusal::Config(vec![words]));
        };
        if let Err(error) = self.store() {
            self.state.unconfirmed = Some(unconfirmed);
            return Err(error
                .context("write that the reload is confirmed; it still waits")
                .into());
        }
        self.event_by("confirm", "configuration", "confirmed: it stays", by);
        Ok(())
    }

    /// Takes back a change that the operator has not confirmed in time. What cannot be undone now is tried
    /// again.
    pub(super) async fn roll_back(&mut self) {
        self.forget_unstarted();
        let Some(unconfirmed) = self.state.unconfirmed.clone() else {
            return;
        };
        if unconfirmed.needs_process(self.running.config()) {
            // One is started, see `Control::goes_back_by_process`.
            return;
        }
        let applied = match unconfirmed.before.config() {
            Ok(before) => self.apply(&before).await,
            Err(problems) => Err(anyhow::Error::msg(problems)),
        };
        match applied {
            Ok(()) => self.went_back(),
            Err(error) => {
                let words = format!(
                    "the last reload was not confirmed, and the configuration of before cannot be applied, trying \
                     again: {error:#}"
                );
                tracing::error!("{words}");
                self.event("rollback", Severity::Error, "configuration", &words);
                self.stale = Some(Stale::new(StaleReason::RollbackFailed, words));
                let until = Uptime::now().after(ROLLBACK_RETRY_INTERVAL);
                self.state.unconfirmed = Some(Unconfirmed {
                    until,
                    ..unconfirmed
                });
            }
        }
    }

    /// Notes that what was before an unconfirmed reload runs again.
    pub fn went_back(&mut self) {
        let before = self.state.unconfirmed.take().and_then(|one| one.file);
        tracing::error!("{UNCONFIRMED}");
        self.reloads.rolled_back += 1;
        self.event("rollback", Severity::Error, "configuration", UNCONFIRMED);
        let mut words = UNCONFIRMED.to_owned();
        if let Some(before) = before.filter(|before| before != self.file.path()) {
            words = format!(
                "{words} (the unconfirmed file is {})",
                self.file.path().display()
            );
            self.file = File::read(&before).0;
        }
        self.stale = Some(Stale::new(StaleReason::Unconfirmed, words));
        self.save();
    }

    /// Another file was started than the one that waited to be confirmed, if one did.
    pub fn started_another(&mut self) {
        if self.state.unconfirmed.take().is_some() {
            tracing::warn!("{OTHER_FILE}");
            self.event("confirm", Severity::Warning, "configuration", OTHER_FILE);
            self.save();
        }
    }

    /// Logs that the file of the start cannot be used, and that something else runs.
    pub fn started_without(&mut self, reason: &str) {
        let words = reason.lines().collect::<Vec<_>>().join("; ");
        tracing::error!("{words}; what was applied goes on");
        let object = format!("file {}", self.file.path().display());
        let happened = format!("refused at the start: {words}; what was applied goes on");
        self.event("reload", Severity::Error, &object, &happened);
        self.stale = Some(Stale::new(StaleReason::StartedWithout, words));
    }

    /// The files have changed, and are to be applied when they do.
    pub(super) async fn reload_watched(&mut self) {
        // What came of it has been logged.
        let _said = self.reload(None, None, None).await;
    }
}

fn load(path: &Path) -> (File, Result<Loaded, Refusal>) {
    let (file, loaded) = File::read(path);
    let loaded = loaded.map_err(|problems| {
        let lines = problems.to_string();
        Refusal::Config(lines.lines().map(str::to_owned).collect())
    });
    (file, loaded)
}

/// The flows that end with a change, and those that end some time after it.
fn ends(change: &Change, running: &Running) -> Vec<EndedPart> {
    let mut ends = change.ends().to_vec();
    for (name, timeout) in gone_backends(running.config(), change.config()) {
        let until = match timeout {
            Some(timeout) => format!("those that it has end after {}", time_text(timeout)),
            None => "those that it has go on".to_owned(),
        };
        let id = running.applied.ids.get(Kind::Backend, &name);
        ends.push(EndedPart {
            words: format!("backend {name}: no new flows, and {until}"),
            flows: EvictSelector {
                backends: id.into_iter().collect(),
                ..EvictSelector::default()
            },
            of: None,
        });
    }
    ends
}

/// The backends that are configured no more, with the time that their flows have.
fn gone_backends(before: &Config, after: &Config) -> BTreeMap<String, Option<Duration>> {
    let pools = after.pools.iter();
    let after: HashMap<&str, &Pool> = pools.map(|pool| (&*pool.name, pool)).collect();
    let names = |pool: &Pool| -> BTreeSet<String> {
        let backends = pool.backends.iter();
        backends.map(|one| backend_name(pool, one)).collect()
    };
    let mut gone = BTreeMap::new();
    for pool in &before.pools {
        let now = after.get(&*pool.name);
        // Most pools are as they were.
        if now == Some(&pool) {
            continue;
        }
        let stay = now.map(|pool| names(pool)).unwrap_or_default();
        let names = names(pool).into_iter().filter(|name| !stay.contains(name));
        gone.extend(names.map(|name| (name, pool.drain_timeout)));
    }
    gone
}

/// What is to be known of a file, and what a reload does not do.
fn said(warnings: &[Warning], before: &Config, after: &Config) -> Vec<String> {
    let mut warnings: Vec<String> = warnings.iter().map(Warning::to_string).collect();
    let sizes = |limits: &Limits| (limits.snat_addresses, limits.handed_over);
    if sizes(&before.limits) != sizes(&after.limits) {
        warnings.push(
            "limits: the maps of flows stay as large as they are; once this process has stopped, `lb run --migrate` makes them \
             larger and keeps their flows; `lb down` and a new start make them smaller"
                .to_owned(),
        );
    }
    if (&before.flow_log, &before.http_log) != (&after.flow_log, &after.http_log) {
        warnings.push(
            "log.flows: another file is written to after a new start of `lb run`, which loses no flow"
                .to_owned(),
        );
    }
    warnings
}
