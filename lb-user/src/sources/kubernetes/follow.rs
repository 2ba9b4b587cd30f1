//! One cluster, followed by a watch of each kind of object. An error removes nothing: what is known stays until a list is
//! whole, which then takes its place at once.

use std::{
    collections::BTreeMap, future, mem, net::SocketAddr, pin::pin, sync::Arc, time::Duration,
};

use anyhow::{Error, Result};
use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures_util::StreamExt as _;
use kube::{
    Api, Client,
    core::{ApiResource, DynamicObject, Status},
    runtime::watcher::{self, Event, watcher},
};
use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    connect,
    kinds::{EndpointSlices, HostedClusterObjects, Kind, Nodes, Routes, Services},
    kubeconfig::{KubeconfigSource, WatchedFiles},
    status_writer::{self, Seen},
    through::Through,
    view::{API, ClusterView, MAX_OBJECTS, too_many},
};
use crate::config::KubernetesCluster;

/// How long a request for changes stays open, in seconds: the API ends it then, and a connection that is dead is noticed 5 s
/// later.
const WATCH_SECONDS: u32 = 20;
/// The first pause after an error. It doubles with each one.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The longest pause; as much again at most is added at random, so that not all clients come at once.
pub(super) const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long after an error silence says that the API answers again.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// The most characters of an error of an API.
const MAX_WORDS: usize = 500;
/// The API knows no such kind (any more).
pub(super) const NOT_FOUND: u16 = 404;
/// Changes since a version were asked for that it has no more: the next request lists all anew.
const GONE: u16 = 410;

/// What is known of a cluster, and what wakes its reader when that changes.
#[derive(Clone)]
pub(super) struct Sink {
    pub(super) view: Arc<watch::Sender<ClusterView>>,
    pub(super) wake: Arc<Notify>,
    /// Whether anything may be written.
    pub(super) may_write: watch::Receiver<bool>,
}

impl Sink {
    /// Changes what is known; `change` returns whether anything differs.
    pub(super) fn change(&self, change: impl FnOnce(&mut ClusterView) -> bool) {
        if self.view.send_if_modified(change) {
            self.wake.notify_one();
        }
    }
}

/// Follows a cluster, for ever: at its server, or through the nodes of another one.
pub(super) async fn follow(
    cluster: KubernetesCluster,
    mut kubeconfig: KubeconfigSource,
    mut through: Option<Through>,
    sink: Sink,
) {
    let wanted = status_writer::wanted(&cluster.load_balancers);
    let mut pauses = pauses();
    for turn in 0.. {
        let mut files = WatchedFiles::default();
        let node = through
            .as_ref()
            .map(|through| through.node(turn))
            .transpose();
        let connected = match &node {
            Ok(node) => connect(&mut kubeconfig, *node, &mut files).await,
            Err(words) => Err(Error::msg(words.clone())),
        };
        match connected {
            Ok((client, slices)) => {
                let (statuses, seen) = watch::channel(Seen::new());
                let note = |object: &_| status_writer::note(object, &wanted, &statuses);
                let services = Services::RESOURCE.resource();
                let nodes = Nodes::RESOURCE.resource();
                let follow = Follow {
                    client: &client,
                    sink: &sink,
                    has_others: through.is_some(),
                };
                tokio::select! {
                    () = follow.kind::<Services>(services, note) => {}
                    () = follow.kind::<Nodes>(nodes, |_| {}) => {}
                    () = follow.kind::<EndpointSlices>(slices, |_| {}) => {}
                    () = follow.hosted(&cluster) => {}
                    () = status_writer::write(&client, &wanted, seen, &sink) => {}
                    () = files.changed() => pauses = self::pauses(),
                    () = gone(through.as_mut(), node.ok().flatten()) => pauses = self::pauses(),
                }
            }
            Err(error) => sink.change(|view| view.note_error(API, words(&error))),
        }
        time::sleep(pauses.next().unwrap_or(MAX_RETRY_INTERVAL)).await;
    }
}

/// The pauses after errors, one after the other.
pub(super) fn pauses() -> impl Iterator<Item = Duration> {
    let builder = ExponentialBuilder::default()
        .with_min_delay(RETRY_INTERVAL)
        .with_max_delay(MAX_RETRY_INTERVAL)
        .without_max_times()
        .with_jitter();
    builder.build()
}

/// Returns when the API is not reached at this node any more.
async fn gone(through: Option<&mut Through>, node: Option<SocketAddr>) {
    match through.zip(node) {
        Some((through, node)) => through.gone(node).await,
        None => future::pending().await,
    }
}

/// A client, and the EndpointSlices of the API, which is reached at `node` if there is one. The files that say what the client
/// is are watched.
async fn connect(
    kubeconfig: &mut KubeconfigSource,
    node: Option<SocketAddr>,
    files: &mut WatchedFiles,
) -> Result<(Client, ApiResource)> {
    let client = connect::client(kubeconfig.read(files).await?, node).await?;
    let slices = match client.list_api_group_resources("discovery.k8s.io/v1").await {
        Ok(_) => EndpointSlices::RESOURCE.resource(),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {
            EndpointSlices::OLDER.resource()
        }
        Err(error) => {
            return Err(Error::new(error).context("ask for the versions of EndpointSlices"));
        }
    };
    Ok((client, slices))
}

/// What the kinds of a cluster are followed with.
struct Follow<'c> {
    client: &'c Client,
    sink: &'c Sink,
    /// Whether the API is reached at other nodes, too.
    has_others: bool,
}

impl Follow<'_> {
    /// Follows hosted clusters and Routes, if any are wanted. Where the API does not know them that changes nothing for the other
    /// kinds.
    async fn hosted(&self, cluster: &KubernetesCluster) {
        if cluster.hosted_clusters.is_empty() {
            return future::pending().await;
        }
        tokio::join!(self.again::<HostedClusterObjects>(), self.again::<Routes>());
    }

    async fn again<K: Kind>(&self) {
        loop {
            self.kind::<K>(K::RESOURCE.resource(), |_| {}).await;
            time::sleep(MAX_RETRY_INTERVAL).await;
        }
    }

    /// Follows the objects of a kind, until the API knows the kind no more, or is to be tried at another node. Each object is
    /// noted, too.
    async fn kind<K: Kind>(&self, resource: ApiResource, note: impl Fn(&DynamicObject)) {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let config = watcher::Config {
            timeout: Some(WATCH_SECONDS),
            ..watcher::Config::default()
        };
        let mut events = pin!(watcher(api, config));
        let mut list = BTreeMap::new();
        let mut pauses = pauses();
        loop {
            match time::timeout(SETTLE_TIME, events.next()).await {
                Err(_silence) => self.sink.change(|view| view.note_good(K::NAME)),
                Ok(None) => return,
                Ok(Some(Ok(event))) => {
                    pauses = self::pauses();
                    if let Event::InitApply(object) | Event::Apply(object) = &event {
                        note(object);
                    }
                    take::<K>(event, &mut list, self.sink);
                }
                Ok(Some(Err(error))) => {
                    let code = code(&error);
                    if code == Some(GONE) {
                        continue;
                    }
                    if K::IS_OPTIONAL && code == Some(NOT_FOUND) {
                        self.sink.change(ClusterView::lacks::<K>);
                        return;
                    }
                    let words = words(&Error::new(error));
                    self.sink.change(|view| view.note_error(K::NAME, words));
                    if code == Some(NOT_FOUND) || self.has_others {
                        return;
                    }
                    time::sleep(pauses.next().unwrap_or(MAX_RETRY_INTERVAL)).await;
                }
            }
        }
    }
}

/// The status that the API gave.
fn code(error: &watcher::Error) -> Option<u16> {
    status(error).map(|status| status.code)
}

/// The same of any error.
pub(super) fn status<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e Status> {
    if let Some(watcher::Error::WatchError(status)) = error.downcast_ref() {
        return Some(status);
    }
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(status),
        _ => status(error.source()?),
    }
}

/// What an operator reads: what the API says, or else why it does not. An API may say much.
pub(super) fn words(error: &Error) -> String {
    let mut words = all_words(error);
    if let Some((end, _)) = words.char_indices().nth(MAX_WORDS) {
        words.truncate(end);
        words.push_str("...");
    }
    words
}

fn all_words(error: &Error) -> String {
    if let Some(Status { message, code, .. }) = status(error.as_ref()) {
        return format!("{message} ({code})");
    }
    // Each error of kube has in its words those of its cause.
    match error.chain().any(|cause| cause.is::<kube::Error>()) {
        true => error.root_cause().to_string(),
        false => format!("{error:#}"),
    }
}

/// Takes in what has happened to an object. Those of a list come one by one, and count when all of them are there.
fn take<K: Kind>(
    event: Event<DynamicObject>,
    list: &mut BTreeMap<K::Key, Option<K::Value>>,
    sink: &Sink,
) {
    match event {
        Event::Init => list.clear(),
        // One more than there may be says that there are too many.
        Event::InitApply(object) if list.len() <= MAX_OBJECTS => {
            list.insert(K::key(&object), read::<K>(object));
        }
        Event::InitApply(_) => {}
        Event::InitDone if list.len() > MAX_OBJECTS => {
            list.clear();
            sink.change(|view| view.note_error(K::NAME, too_many(K::NAME)));
        }
        Event::InitDone => {
            let listed = mem::take(list);
            sink.change(|view| view.replace::<K>(listed));
        }
        Event::Apply(object) => {
            let key = K::key(&object);
            if let Some(value) = read::<K>(object) {
                sink.change(|view| view.put::<K>(key, value));
            }
        }
        Event::Delete(object) => sink.change(|view| view.remove::<K>(&K::key(&object))),
    }
}

/// None of an object that cannot be read: what was known of it stays.
fn read<K: Kind>(object: DynamicObject) -> Option<K::Value> {
    let name = object.metadata.name.clone().unwrap_or_default();
    let read = K::read(object);
    read.inspect_err(|error| {
        let kind = K::NAME;
        tracing::warn!(kind, name, "an object of the API cannot be read: {error}");
    })
    .ok()
}

#[cfg(test)]
mod recorded;
