//! What clusters of Kubernetes say, taken in as it changes. It is applied as a reload is, but of what was applied, and not of
//! the file; an API that does not answer changes nothing.

mod difference;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use super::{
    control_loop::Control,
    discovery::{MergedConfig, merged},
    running::Running,
};
use crate::{
    api::{ClusterStatus, Severity},
    config::{Backend, Config, Pool},
    health::HealthVerdict,
    model::names::backend_name,
    sources::kubernetes::{KeptClusters, Kubernetes, StatusOutcome},
};

/// How long an API may not answer before that is news: one that starts anew takes a few seconds.
const UNANSWERED_TIME: Duration = Duration::from_secs(5);
/// The clusters, and what was said of them.
pub struct Discovered {
    pub(super) kubernetes: Kubernetes,
    /// As it is on the disk.
    kept: KeptClusters,
    /// What was logged as refused, as held and as not answering.
    refused: BTreeSet<String>,
    held: BTreeSet<String>,
    unanswered: BTreeSet<String>,
    /// What was logged of the status of Services, by the words for each.
    statuses: BTreeMap<String, StatusOutcome>,
    /// Why the last change was not applied: it is tried again.
    failed: Option<String>,
}

impl Discovered {
    /// None is followed yet.
    pub(super) fn new(kept: KeptClusters) -> Self {
        Self {
            kubernetes: Kubernetes::default(),
            kept,
            refused: BTreeSet::new(),
            held: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            statuses: BTreeMap::new(),
            failed: None,
        }
    }

    /// Returns when clusters have changed.
    pub(crate) async fn changed(&self) {
        self.kubernetes.changed().await;
    }
}

/// A configuration that is started, with what an earlier process knew of clusters, or else what it had of them in what was
/// `applied`.
pub(crate) fn started(config: &Config, applied: Option<&Config>, kept: &KeptClusters) -> Config {
    let before = applied.unwrap_or(config);
    merged(config, before, |wanted| kept.nodes(wanted), |_, _| true).config
}

impl Control {
    /// A configuration with what clusters have now.
    pub(super) fn merged(&self, config: &Config) -> MergedConfig {
        let found = |wanted: &_| self.discovered.kubernetes.nodes(wanted);
        let serves = |pool: &Pool, backend: &Backend| serves(&self.running, pool, backend);
        merged(config, self.running.config(), found, serves)
    }

    /// The same, and what is to be known of it is logged.
    pub(super) fn with_discovered(&mut self, config: &Config) -> Config {
        let MergedConfig {
            config,
            refused,
            held,
        } = self.merged(config);
        let said = mem::replace(&mut self.discovered.refused, refused);
        let new: Vec<String> = self.discovered.refused.difference(&said).cloned().collect();
        for words in new {
            tracing::warn!("discovery: refused: {words}");
            self.event("discovery", Severity::Warning, "backend refused", &words);
        }
        let said = mem::replace(&mut self.discovered.held, held);
        let new: Vec<String> = self.discovered.held.difference(&said).cloned().collect();
        for words in new {
            tracing::warn!("discovery: {words}");
            self.event("discovery", Severity::Warning, "backends held", &words);
        }
        config
    }

    /// Follows the clusters of what is applied.
    pub(super) fn follow_clusters(&mut self) {
        self.let_clusters_write();
        let clusters = &self.running.config().kubernetes;
        let mut kept = self.discovered.kept.clone();
        if let Err(error) = self.discovered.kubernetes.follow(clusters, &mut kept) {
            tracing::error!("follow clusters of Kubernetes: {error:#}; backends stay as they are");
        }
    }

    /// How far what is known of the clusters is what there is.
    pub(super) fn clusters(&self) -> BTreeMap<String, ClusterStatus> {
        let unanswered = self.discovered.kubernetes.unanswered();
        let clusters = self.running.config().kubernetes.iter().map(|cluster| {
            let trouble = unanswered.iter().find(|one| one.cluster == cluster.name);
            let status = ClusterStatus {
                age_seconds: trouble.map_or(0, |trouble| trouble.age.as_secs()),
                unanswered: trouble.map(|trouble| trouble.words.clone()),
            };
            (cluster.name.clone(), status)
        });
        clusters.collect()
    }

    /// Nothing is written for a reload that may be undone.
    fn let_clusters_write(&self) {
        let is_confirmed = self.state.unconfirmed.is_none();
        self.discovered.kubernetes.let_write(is_confirmed);
    }

    /// Brings what is applied to what clusters have now. Nothing changes while a reload waits to be confirmed: what it goes
    /// back to must be what it began with.
    pub async fn take_discovered(&mut self) {
        self.note_statuses();
        if self.state.unconfirmed.is_some() {
            return;
        }
        let before = self.running.config().clone();
        let config = self.with_discovered(&before);
        self.keep_discovered();
        if config == before {
            self.discovered.failed = None;
            return;
        }
        match self.apply(&config).await {
            Ok(()) => {
                self.discovered.failed = None;
                let words = difference::words(&before, &config);
                tracing::info!("discovery: {words}");
                self.event("discovery", Severity::Notice, "configuration", &words);
            }
            Err(error) => {
                let words = format!("{error:#}");
                if self.discovered.failed.as_ref() != Some(&words) {
                    tracing::error!(
                        "apply what clusters of Kubernetes have: {words}; trying again"
                    );
                    self.event("discovery", Severity::Error, "configuration", &words);
                }
                self.discovered.failed = Some(words);
            }
        }
    }

    /// Does again what waits for checks, or has failed, and notes which clusters do not answer.
    pub(super) async fn tick_discovered(&mut self) {
        self.let_clusters_write();
        if !self.discovered.held.is_empty() || self.discovered.failed.is_some() {
            self.take_discovered().await;
        }
        let mut unanswered = self.discovered.kubernetes.unanswered();
        unanswered.retain(|one| one.age >= UNANSWERED_TIME);
        let now: BTreeSet<String> = unanswered
            .iter()
            .map(|one| one.cluster.to_owned())
            .collect();
        let mut news = Vec::new();
        for one in &unanswered {
            if !self.discovered.unanswered.contains(one.cluster) {
                news.push((one.cluster.to_owned(), Some(one.words.clone())));
            }
        }
        let answers = self.discovered.unanswered.difference(&now);
        news.extend(answers.map(|cluster| (cluster.clone(), None)));
        self.discovered.unanswered = now;
        for (cluster, why) in news {
            self.note_answer(&cluster, why);
        }
    }

    fn note_answer(&mut self, cluster: &str, why: Option<String>) {
        let object = format!("cluster {cluster}");
        let (severity, words) = match why {
            Some(why) => (
                Severity::Warning,
                format!("its API does not answer: {why}; backends stay as they are"),
            ),
            None => (Severity::Notice, "its API answers again".to_owned()),
        };
        self.note_discovery(severity, &object, &words);
    }

    /// Logs what has become of the status of Services that are to have VIPs there.
    fn note_statuses(&mut self) {
        let all = self.discovered.kubernetes.statuses().into_iter();
        let now = all.map(|(cluster, service, outcome)| {
            (format!("service {service} of {cluster}"), outcome)
        });
        let before = mem::replace(&mut self.discovered.statuses, now.collect());
        let now = self.discovered.statuses.clone();
        for (object, outcome) in now {
            if before.get(&object) != Some(&outcome) {
                self.note_status(&object, &outcome);
            }
        }
    }

    fn note_status(&mut self, object: &str, outcome: &StatusOutcome) {
        let (severity, words) = match outcome {
            StatusOutcome::Has | StatusOutcome::Planned(_) => return,
            StatusOutcome::Written(vips) => {
                let vips: Vec<String> = vips.iter().map(ToString::to_string).collect();
                let words = format!("its status has {} now", vips.join(", "));
                (Severity::Notice, words)
            }
            StatusOutcome::Left(why) => {
                let words = format!("its status is left as it is: {why}");
                (Severity::Warning, words)
            }
            StatusOutcome::Failed(why) => {
                let words = format!("its status cannot be written: {why}; trying again");
                (Severity::Warning, words)
            }
        };
        self.note_discovery(severity, object, &words);
    }

    /// An event and a line of the log.
    fn note_discovery(&mut self, severity: Severity, object: &str, words: &str) {
        match severity {
            Severity::Notice => tracing::info!("discovery: {object}: {words}"),
            _ => tracing::warn!("discovery: {object}: {words}"),
        }
        self.event("discovery", severity, object, words);
    }

    fn keep_discovered(&mut self) {
        let known = self.discovered.kubernetes.to_keep();
        if known == self.discovered.kept {
            return;
        }
        match known.save(&self.running.pins().state()) {
            Ok(()) => self.discovered.kept = known,
            Err(error) => {
                tracing::error!("keep what clusters of Kubernetes have: {error:#}; trying again")
            }
        }
    }
}

/// Whether a backend is up, or not checked.
fn serves(running: &Running, pool: &Pool, backend: &Backend) -> bool {
    let checked = running.checks.of(&backend_name(pool, backend));
    checked.is_none_or(|checked| checked.standing.verdict == HealthVerdict::Up)
}
