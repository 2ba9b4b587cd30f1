//! What clusters of Kubernetes would say to a configuration: they are asked once, and nothing is applied or written.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{discovered::with_known, hosted::VipChoices};
use crate::{
    config::{Config, LoadBalancer},
    sources::kubernetes::{KeptClusters, Kubernetes, StatusOutcome},
};

/// Between two looks at what there is.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What there is for a configuration.
#[derive(Debug)]
pub(crate) struct DryRun {
    /// Why each cluster does not answer; none: it does.
    pub(crate) clusters: BTreeMap<String, Option<String>>,
    /// The backends that each pool would have beside those of the file.
    pub(crate) pools: BTreeMap<String, Vec<(String, SocketAddr)>>,
    /// The VIP of each hosted cluster, by its words.
    pub(crate) hosted: BTreeMap<String, IpAddr>,
    /// The file with all of it written out.
    pub(crate) expanded: io::Result<String>,
    /// What would be left out, a line each.
    pub(crate) refused: BTreeSet<String>,
    /// By cluster and Service, what would become of each status.
    pub(crate) statuses: BTreeMap<(String, String), DryStatus>,
}

/// What would become of the status of a Service.
#[derive(Debug)]
pub(crate) enum DryStatus {
    /// There is no such Service.
    Missing,
    /// It has what is wanted.
    Stays,
    /// It would be written.
    IsWritten(Vec<IpAddr>),
    /// It would be left as it is, for this reason.
    IsLeft(String),
}

/// Asks the clusters of a configuration, for at most `limit`.
///
/// # Errors
///
/// If the thread for it cannot be started.
pub(crate) fn dry_run(config: &Config, limit: Duration) -> Result<DryRun> {
    let mut kubernetes = Kubernetes::default();
    kubernetes.follow(&config.kubernetes, &mut KeptClusters::default())?;
    let begun = Instant::now();
    while begun.elapsed() < limit && !is_whole(config, &kubernetes) {
        thread::sleep(LOOK_INTERVAL);
    }
    let unanswered = kubernetes.unanswered();
    let clusters = config.kubernetes.iter().map(|cluster| {
        let name = &cluster.name;
        let trouble = unanswered.iter().find(|one| one.cluster == name);
        let words = match trouble {
            Some(trouble) => Some(trouble.words.clone()),
            None if kubernetes.knows(name) => None,
            None => Some("no answer".to_owned()),
        };
        (name.clone(), words)
    });
    let vips = VipChoices::default();
    let merged = with_known(config, config, &vips, &kubernetes, |_, _| true);
    let hosted = merged.config.hosted.iter();
    let hosted = hosted.map(|one| (one.to_string(), one.vip)).collect();
    let pools = merged
        .config
        .pools
        .iter()
        .filter(|pool| !pool.discover.is_empty());
    let pools = pools.map(|pool| {
        let found = pool.backends.iter().filter(|one| one.discovered.is_some());
        let found = found.map(|one| (one.name.clone(), SocketAddr::new(one.address, one.port)));
        (pool.name.clone(), found.collect())
    });
    Ok(DryRun {
        clusters: clusters.collect(),
        pools: pools.collect(),
        hosted,
        refused: merged.refused.into_iter().map(|(_, words)| words).collect(),
        expanded: merged.config.expanded(),
        statuses: statuses(config, &kubernetes),
    })
}

/// Whether all that is asked for is known, or will not be: a cluster is as soon as its lists are there, and the status of a
/// Service that it has was judged.
fn is_whole(config: &Config, kubernetes: &Kubernetes) -> bool {
    let statuses = kubernetes.statuses();
    config.kubernetes.iter().all(|cluster| {
        let judged = |one: &LoadBalancer| {
            let mut of_cluster = statuses.iter().filter(|(name, ..)| *name == cluster.name);
            of_cluster.any(|(_, service, _)| *service == one.service)
                || !kubernetes.has_service(&cluster.name, &one.service)
        };
        let without_hosted = cluster.hosted_clusters.is_empty();
        kubernetes.knows(&cluster.name)
            && (without_hosted || kubernetes.knows_hosted(&cluster.name))
            && cluster.load_balancers.iter().all(judged)
    })
}

fn statuses(config: &Config, kubernetes: &Kubernetes) -> BTreeMap<(String, String), DryStatus> {
    let wanted = config.kubernetes.iter().flat_map(|cluster| {
        let services = cluster.load_balancers.iter();
        services.map(|one| (cluster.name.clone(), one.service.to_string()))
    });
    let mut statuses: BTreeMap<_, _> = wanted.map(|one| (one, DryStatus::Missing)).collect();
    for (cluster, service, outcome) in kubernetes.statuses() {
        let status = match outcome {
            StatusOutcome::Has => DryStatus::Stays,
            StatusOutcome::Planned(vips) | StatusOutcome::Written(vips) => {
                DryStatus::IsWritten(vips)
            }
            StatusOutcome::Left(why) | StatusOutcome::Failed(why) => DryStatus::IsLeft(why),
        };
        statuses.insert((cluster, service.to_string()), status);
    }
    // Of a cluster that does not answer nothing is known.
    statuses.retain(|(cluster, _), _| kubernetes.knows(cluster));
    statuses
}
