//! What clusters of Kubernetes say, taken in as it changes. It is applied as a reload is, but of what was applied, and not of
//! the file; an API that does not answer changes nothing.

mod difference;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::IpAddr,
    path::Path,
    time::Duration,
};

use super::{
    control_loop::Control,
    discovery::{MergedConfig, merged},
    hosted::{VipChoices, WithHosted, with_hosted},
    running::Running,
};
use crate::{
    api::{ClusterStatus, Severity},
    config::{Backend, Config, KubernetesCluster, LoadBalancer, Pool},
    health::HealthVerdict,
    model::names::backend_name,
    sources::kubernetes::{KeptClusters, KnownClusters, Kubernetes, StatusOutcome},
};

/// How long an API may not answer before that is news: one that starts anew takes a few seconds.
const UNANSWERED_TIME: Duration = Duration::from_secs(5);
/// The clusters, and what was said of them.
pub struct Discovered {
    pub(super) kubernetes: Kubernetes,
    /// As it is on the disk.
    kept: KeptDiscovery,
    /// The VIPs of hosted clusters.
    vips: VipChoices,
    /// What was logged as refused, as held and as not answering.
    refused: BTreeSet<(&'static str, String)>,
    held: BTreeSet<String>,
    unanswered: BTreeSet<String>,
    /// What was logged of the status of Services, by the words for each.
    statuses: BTreeMap<String, StatusOutcome>,
    /// Why the last change was not applied: it is tried again.
    failed: Option<String>,
}

impl Discovered {
    /// None is followed yet.
    pub(super) fn new(kept: KeptDiscovery) -> Self {
        Self {
            kubernetes: Kubernetes::default(),
            vips: kept.vips.clone(),
            kept,
            refused: BTreeSet::new(),
            held: BTreeSet::new(),
            unanswered: BTreeSet::new(),
            statuses: BTreeMap::new(),
            failed: None,
        }
    }

    /// The VIPs that were chosen for hosted clusters.
    pub(super) const fn chosen_vips(&self) -> &BTreeMap<String, IpAddr> {
        self.vips.all()
    }

    /// The active box has chosen these; whether any is new.
    pub(super) fn take_in_vips(&mut self, theirs: &BTreeMap<String, IpAddr>) -> bool {
        self.vips.take_in(theirs)
    }

    /// Returns when clusters have changed.
    pub(crate) async fn changed(&self) {
        self.kubernetes.changed().await;
    }
}

/// What earlier processes knew of clusters, and chose for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeptDiscovery {
    clusters: KeptClusters,
    vips: VipChoices,
}

impl KeptDiscovery {
    /// What is in a state folder.
    pub(crate) fn load(folder: &Path) -> Self {
        Self {
            clusters: KeptClusters::load(folder),
            vips: VipChoices::load(folder),
        }
    }
}

/// A configuration with what is known of clusters.
#[derive(Debug)]
pub(super) struct WithDiscovered {
    pub(super) config: Config,
    vips: VipChoices,
    /// What was left out: of what kind it is, and a line.
    pub(super) refused: BTreeSet<(&'static str, String)>,
    /// What stays though its cluster has it no more, a line each.
    held: BTreeSet<String>,
}

/// Puts what is `known` of clusters into a configuration: hosted clusters, and then the backends of all pools. `before` is
/// what was applied.
pub(super) fn with_known(
    config: &Config,
    before: &Config,
    vips: &VipChoices,
    known: &impl KnownClusters,
    serves: impl Fn(&Pool, &Backend) -> bool,
) -> WithDiscovered {
    let hosted = |hub: &_| known.hosted(hub);
    let WithHosted {
        config,
        vips,
        refused: hosted_refused,
        mut held,
    } = with_hosted(config, before, vips, hosted, &serves);
    let nodes = |wanted: &_| known.nodes(wanted);
    let MergedConfig {
        config,
        refused,
        held: pools_held,
    } = merged(&config, before, nodes, &serves);
    held.extend(pools_held);
    let hosted_refused = hosted_refused
        .into_iter()
        .map(|one| ("hosted cluster refused", one));
    let refused = refused.into_iter().map(|one| ("backend refused", one));
    WithDiscovered {
        config,
        vips,
        refused: hosted_refused.chain(refused).collect(),
        held,
    }
}

/// A configuration that is started, with what an earlier process knew of clusters, or else what it had of them in what was
/// `applied`.
pub(crate) fn started(config: &Config, applied: Option<&Config>, kept: &KeptDiscovery) -> Config {
    let before = applied.unwrap_or(config);
    with_known(config, before, &kept.vips, &kept.clusters, |_, _| true).config
}

impl Control {
    /// A configuration with what clusters have now.
    pub(super) fn merged(&self, config: &Config) -> WithDiscovered {
        let Discovered {
            kubernetes, vips, ..
        } = &self.discovered;
        let serves = |pool: &Pool, backend: &Backend| serves(&self.running, pool, backend);
        with_known(config, self.running.config(), vips, kubernetes, serves)
    }

    /// The same, and what is to be known of it is logged.
    pub(super) fn with_discovered(&mut self, config: &Config) -> Config {
        let WithDiscovered {
            config,
            vips,
            refused,
            held,
        } = self.merged(config);
        self.discovered.vips = vips;
        let said = mem::replace(&mut self.discovered.refused, refused);
        let new: Vec<_> = self.discovered.refused.difference(&said).cloned().collect();
        for (object, words) in new {
            tracing::warn!("discovery: {object}: {words}");
            self.event("discovery", Severity::Warning, object, &words);
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
        let clusters = followed(self.running.config());
        let mut kept = self.discovered.kept.clusters.clone();
        if let Err(error) = self.discovered.kubernetes.follow(&clusters, &mut kept) {
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
        let folder = self.running.pins().state();
        let kept = &mut self.discovered.kept;
        let known = self.discovered.kubernetes.to_keep();
        if known != kept.clusters {
            match known.save(&folder) {
                Ok(()) => kept.clusters = known,
                Err(error) => tracing::error!(
                    "keep what clusters of Kubernetes have: {error:#}; trying again"
                ),
            }
        }
        let vips = &self.discovered.vips;
        if *vips != kept.vips {
            match vips.save(&folder) {
                Ok(()) => kept.vips.clone_from(vips),
                Err(error) => {
                    tracing::error!("keep the VIPs of hosted clusters: {error:#}; trying again")
                }
            }
        }
    }
}

/// The clusters of a configuration, with the Services of hosted clusters that wait for a VIP: those that the file does not
/// have.
fn followed(config: &Config) -> Vec<KubernetesCluster> {
    let clusters = config.kubernetes.iter().map(|cluster| {
        let mut cluster = cluster.clone();
        let hosted = config.hosted.iter().filter(|one| one.hub == cluster.name);
        let wanted = hosted.flat_map(|one| {
            let services = one.load_balancers.iter().cloned();
            services.map(|service| LoadBalancer {
                service,
                vip: one.vip,
            })
        });
        let is_new = |one: &LoadBalancer| {
            let mut in_file = cluster.load_balancers.iter();
            in_file.all(|other| other.service != one.service)
        };
        let new: Vec<LoadBalancer> = wanted.filter(is_new).collect();
        cluster.load_balancers.extend(new);
        cluster
    });
    clusters.collect()
}

/// Whether a backend is up, or not checked.
fn serves(running: &Running, pool: &Pool, backend: &Backend) -> bool {
    let checked = running.checks.of(&backend_name(pool, backend));
    checked.is_none_or(|checked| checked.standing.verdict == HealthVerdict::Up)
}
