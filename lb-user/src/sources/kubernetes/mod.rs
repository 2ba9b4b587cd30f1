//! Clusters of Kubernetes: where their services are reached, as their APIs say.
//!
//! `connect` makes a client by a `kubeconfig`, of a file or of a `secret` of the hub. `follow` watches the objects of the `kinds`
//! that matter, in `bounded` answers; `objects` are read into what is `known` of a cluster, those of HyperShift by `hypershift`,
//! and that is to see as a `view` of the moment. `kept` is on the disk for a start without the API. The `status` of
//! Services that are to have VIPs there is written by the `status_writer`, and nothing else is.

mod bounded;
mod connect;
mod follow;
mod hypershift;
mod kept;
mod kinds;
mod known;
mod kubeconfig;
mod objects;
mod secret;
mod status;
mod status_writer;
mod through;
mod view;

use std::{collections::BTreeMap, future, sync::Arc, thread, time::Duration};

use anyhow::{Context as _, Result};
use rustix::thread::CapabilitySet;
use tokio::{
    runtime::{Builder, Handle},
    sync::{Notify, watch},
    task::AbortHandle,
};

use self::{
    follow::{Sink, follow},
    kubeconfig::KubeconfigSource,
    through::Through,
    view::ClusterView,
};
pub(crate) use self::{
    hypershift::FoundHosted, kept::KeptClusters, known::FoundNode, view::StatusOutcome,
};
use crate::{
    config::{KubernetesCluster, ObjectName, ServicePort},
    system::privileges,
};

/// The clusters that are followed.
#[derive(Default)]
pub(crate) struct Kubernetes {
    followed: BTreeMap<String, Followed>,
    /// Where they are followed, from the first one on.
    runtime: Option<Handle>,
    wake: Arc<Notify>,
    /// Whether anything may be written at their APIs.
    may_write: watch::Sender<bool>,
}

/// A cluster that is followed until this goes.
struct Followed {
    cluster: KubernetesCluster,
    view: watch::Receiver<ClusterView>,
    task: AbortHandle,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What is known of clusters, now or from an earlier process.
pub(crate) trait KnownClusters {
    /// The nodes at which a port of a service is reached; nothing as long as its cluster is not known.
    fn nodes(&self, wanted: &ServicePort) -> Option<Vec<FoundNode>>;

    /// The hosted clusters that a hub is asked for; nothing as long as it is not known.
    fn hosted(&self, hub: &KubernetesCluster) -> Option<Vec<FoundHosted>>;
}

impl KnownClusters for Kubernetes {
    fn nodes(&self, wanted: &ServicePort) -> Option<Vec<FoundNode>> {
        let view = self.followed.get(&wanted.cluster)?.view.borrow();
        Some(view.known()?.nodes(wanted))
    }

    fn hosted(&self, hub: &KubernetesCluster) -> Option<Vec<FoundHosted>> {
        let view = self.followed.get(&hub.name)?.view.borrow();
        Some(view.known_hosted()?.hosted(&hub.hosted_clusters))
    }
}

/// A cluster that does not answer.
pub(crate) struct Unanswered<'k> {
    pub(crate) cluster: &'k str,
    pub(crate) age: Duration,
    pub(crate) words: String,
}

impl Kubernetes {
    /// Follows these clusters from now on, and no others. What is `kept` of one is known until its API has answered.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub(crate) fn follow(
        &mut self,
        clusters: &[KubernetesCluster],
        kept: &mut KeptClusters,
    ) -> Result<()> {
        self.followed
            .retain(|_, followed| clusters.contains(&followed.cluster));
        let stays = |name: &String| self.followed.contains_key(name);
        let lost = clusters.iter().filter(|cluster| {
            let through = cluster.through.as_ref();
            through.is_some_and(|through| !stays(&through.cluster))
        });
        for cluster in lost.collect::<Vec<_>>() {
            self.followed.remove(&cluster.name);
        }
        // Those through which others are reached come first.
        let (direct, others): (Vec<_>, Vec<_>) = clusters
            .iter()
            .partition(|cluster| cluster.through.is_none());
        for cluster in direct.into_iter().chain(others) {
            if self.followed.contains_key(&cluster.name) {
                continue;
            }
            let handle = self.runtime()?;
            let kubeconfig = self.kubeconfig(cluster);
            let through = self.through(cluster);
            let view = kept
                .take(&cluster.name)
                .map_or_else(ClusterView::default, ClusterView::kept);
            let (view, seen) = watch::channel(view);
            let sink = Sink {
                view: Arc::new(view),
                wake: Arc::clone(&self.wake),
                may_write: self.may_write.subscribe(),
            };
            let task = handle.spawn(follow(cluster.clone(), kubeconfig, through, sink));
            let followed = Followed {
                cluster: cluster.clone(),
                view: seen,
                task: task.abort_handle(),
            };
            self.followed.insert(cluster.name.clone(), followed);
        }
        Ok(())
    }

    /// Through which nodes a cluster is reached, if it is not at its server.
    fn through(&self, cluster: &KubernetesCluster) -> Option<Through> {
        let port = cluster.through.clone()?;
        let other = self.followed.get(&port.cluster)?;
        Some(Through::new(port, other.view.clone()))
    }

    /// Where the kubeconfig of a cluster is.
    fn kubeconfig(&self, cluster: &KubernetesCluster) -> KubeconfigSource {
        let through = cluster.through.as_ref();
        let hub = through.and_then(|port| self.followed.get(&port.cluster));
        KubeconfigSource::new(cluster, hub.map(|hub| &hub.cluster))
    }

    fn runtime(&mut self) -> Result<Handle> {
        if let Some(handle) = &self.runtime {
            return Ok(handle.clone());
        }
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start tokio for Kubernetes")?;
        let handle = runtime.handle().clone();
        thread::Builder::new()
            .name("kubernetes".to_owned())
            .spawn(move || match privileges::give_up(CapabilitySet::empty()) {
                Ok(()) => runtime.block_on(future::pending::<()>()),
                Err(error) => {
                    tracing::error!("the thread for Kubernetes does not start: {error:#}")
                }
            })
            .context("start the thread for Kubernetes")?;
        self.runtime = Some(handle.clone());
        Ok(handle)
    }

    /// From now on the status of Services is written, or not.
    pub(crate) fn let_write(&self, may_write: bool) {
        self.may_write.send_replace(may_write);
    }

    /// Returns when what is known of a cluster has changed since the last time.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    /// What has become of the status of each Service that is to have VIPs there: cluster, Service, and that.
    pub(crate) fn statuses(&self) -> Vec<(String, ObjectName, StatusOutcome)> {
        let clusters = self.followed.iter().flat_map(|(cluster, followed)| {
            let statuses = followed.view.borrow().statuses().clone();
            let of_cluster = statuses.into_iter();
            of_cluster.map(move |(service, outcome)| (cluster.clone(), service, outcome))
        });
        clusters.collect()
    }

    /// Whether all of a cluster is known.
    pub(crate) fn knows(&self, cluster: &str) -> bool {
        let followed = self.followed.get(cluster);
        followed.is_some_and(|followed| followed.view.borrow().known().is_some())
    }

    /// Whether all hosted clusters of a cluster are known.
    pub(crate) fn knows_hosted(&self, cluster: &str) -> bool {
        let followed = self.followed.get(cluster);
        followed.is_some_and(|followed| followed.view.borrow().known_hosted().is_some())
    }

    /// Whether a cluster is known to have a Service.
    pub(crate) fn has_service(&self, cluster: &str, service: &ObjectName) -> bool {
        self.followed.get(cluster).is_some_and(|followed| {
            let view = followed.view.borrow();
            view.known()
                .is_some_and(|known| known.services.contains_key(service))
        })
    }

    /// The clusters that do not answer.
    pub(crate) fn unanswered(&self) -> Vec<Unanswered<'_>> {
        let clusters = self.followed.iter().filter_map(|(cluster, followed)| {
            let view = followed.view.borrow();
            let trouble = view.trouble()?;
            Some(Unanswered {
                cluster,
                age: trouble.since.elapsed(),
                words: trouble.words,
            })
        });
        clusters.collect()
    }

    /// What is known of all clusters, to be kept.
    pub(crate) fn to_keep(&self) -> KeptClusters {
        let clusters = self.followed.iter().filter_map(|(name, followed)| {
            let view = followed.view.borrow();
            Some((name.clone(), view.known()?.clone()))
        });
        clusters.collect()
    }
}
