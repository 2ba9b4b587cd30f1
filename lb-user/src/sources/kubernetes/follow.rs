//! One cluster, followed by a watch of each kind of object. An error removes nothing: what is known stays until a list is
//! whole, which then takes its place at once.

use std::{
    collections::BTreeMap,
    mem,
    path::Path,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Error, Result, ensure};
use backon::{BackoffBuilder as _, ExponentialBuilder};
use futures_util::StreamExt as _;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, DynamicObject},
    runtime::watcher::{self, Event, watcher},
};
use tokio::{
    sync::{Notify, watch},
    time,
};

use super::{
    kinds::{EndpointSlices, Kind, Nodes, Services},
    view::{API, ClusterView},
};
use crate::config::KubernetesCluster;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the API may say nothing: longer than a request for changes stays open.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request for changes stays open, in seconds: the API ends it then, and a connection that is dead is noticed 5 s
/// later.
const WATCH_SECONDS: u32 = 20;
/// The first pause after an error. It doubles with each one.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The longest pause; as much again at most is added at random, so that not all clients come at once.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long after an error silence says that the API answers again.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// How often the kubeconfig is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// The API knows no such kind (any more).
const NOT_FOUND: u16 = 404;
/// Changes since a version were asked for that it has no more: the next request lists all anew.
const GONE: u16 = 410;

/// What is known of a cluster, and what wakes its reader when that changes.
#[derive(Clone)]
pub(super) struct Sink {
    pub(super) view: Arc<watch::Sender<ClusterView>>,
    pub(super) wake: Arc<Notify>,
}

impl Sink {
    /// Changes what is known; `change` returns whether anything differs.
    fn change(&self, change: impl FnOnce(&mut ClusterView) -> bool) {
        if self.view.send_if_modified(change) {
            self.wake.notify_one();
        }
    }
}

/// Follows a cluster, for ever.
pub(super) async fn follow(cluster: KubernetesCluster, sink: Sink) {
    let mut pauses = pauses();
    loop {
        let before = stamp(&cluster.kubeconfig);
        match connect(&cluster.kubeconfig).await {
            Ok((client, slices)) => {
                tokio::select! {
                    () = kind::<Services>(&client, Services::RESOURCE.resource(), &sink) => {}
                    () = kind::<Nodes>(&client, Nodes::RESOURCE.resource(), &sink) => {}
                    () = kind::<EndpointSlices>(&client, slices, &sink) => {}
                    () = changes(&cluster.kubeconfig, before) => pauses = self::pauses(),
                }
            }
            Err(error) => sink.change(|view| view.note_error(API, format!("{error:#}"))),
        }
        time::sleep(pauses.next().unwrap_or(MAX_RETRY_INTERVAL)).await;
    }
}

fn pauses() -> impl Iterator<Item = Duration> {
    let builder = ExponentialBuilder::default()
        .with_min_delay(RETRY_INTERVAL)
        .with_max_delay(MAX_RETRY_INTERVAL)
        .without_max_times()
        .with_jitter();
    builder.build()
}

/// A client by a kubeconfig, and the EndpointSlices of the API.
async fn connect(kubeconfig: &Path) -> Result<(Client, ApiResource)> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    for named in &file.auth_infos {
        let runs = named.auth_info.as_ref();
        ensure!(
            runs.is_none_or(|user| user.exec.is_none() && user.auth_provider.is_none()),
            "user {} of {} has `exec` or `auth-provider`, and lb runs no programs: expected a token, a tokenFile or a client \
             certificate",
            named.name,
            kubeconfig.display()
        );
    }
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    // Errors are noted, and the pauses after them are bounded here.
    config.default_retry = false;
    let client = Client::try_from(config)?;
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

/// Returns when the kubeconfig is another one.
async fn changes(kubeconfig: &Path, before: Stamp) {
    while stamp(kubeconfig) == before {
        time::sleep(POLL_INTERVAL).await;
    }
}

/// What distinguishes one state of a file from another.
type Stamp = Option<(SystemTime, u64)>;

fn stamp(path: &Path) -> Stamp {
    let metadata = path.metadata().ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// Follows the objects of a kind, until the API knows the kind no more.
async fn kind<K: Kind>(client: &Client, resource: ApiResource, sink: &Sink) {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let config = watcher::Config {
        timeout: Some(WATCH_SECONDS),
        ..watcher::Config::default()
    };
    let mut events = pin!(watcher(api, config));
    let mut list = BTreeMap::new();
    let mut pauses = pauses();
    loop {
        match time::timeout(SETTLE_TIME, events.next()).await {
            Err(_silence) => sink.change(|view| view.note_good(K::NAME)),
            Ok(None) => return,
            Ok(Some(Ok(event))) => {
                pauses = self::pauses();
                take::<K>(event, &mut list, sink);
            }
            Ok(Some(Err(error))) => {
                let code = code(&error);
                if code == Some(GONE) {
                    continue;
                }
                let words = format!("{:#}", Error::new(error));
                sink.change(|view| view.note_error(K::NAME, words));
                if code == Some(NOT_FOUND) {
                    return;
                }
                time::sleep(pauses.next().unwrap_or(MAX_RETRY_INTERVAL)).await;
            }
        }
    }
}

/// The status that the API gave.
fn code(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
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
        Event::InitApply(object) => {
            list.insert(K::key(&object), read::<K>(object));
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
