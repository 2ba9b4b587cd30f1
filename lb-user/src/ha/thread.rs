//! The thread of the boxes' sessions: what it does never waits for the control plane, nor this for it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use tokio::{runtime::Builder, sync::watch};

use super::{
    decisions::Decisions,
    following,
    message::BoxLoad,
    progress::{LeftByPeer, PairProgress},
    serving,
    view::HaView,
};
use crate::{
    api::ha::HaStatus,
    config::{Ha, HaBox},
    dataplane::maps::Maps,
    model::names::shown_backend,
    system::privileges::{self, KEPT_BY_LISTENERS},
};

/// What the sessions go by.
pub(super) struct PeerLink {
    pub(super) ha: Ha,
    pub(super) peer: HaBox,
    /// The folder of the pinned maps.
    pub(super) folder: PathBuf,
    pub(super) views: watch::Receiver<Arc<HaView>>,
    /// What was decided at this box, once that is known.
    pub(super) decisions: watch::Receiver<Option<Decisions>>,
    /// What this box carries.
    pub(super) load: watch::Receiver<BoxLoad>,
    pub(super) progress: PairProgress,
    /// Counts the sessions that the peer has begun.
    pub(super) turn: watch::Sender<u64>,
}

/// The running sessions. They end when this is dropped.
#[derive(Debug)]
pub struct BoxPair {
    /// None: the thread is to end.
    views: Option<watch::Sender<Arc<HaView>>>,
    decisions: watch::Sender<Option<Decisions>>,
    load: watch::Sender<BoxLoad>,
    thread: Option<JoinHandle<()>>,
    progress: PairProgress,
    ha: Ha,
    peer: HaBox,
}

impl BoxPair {
    /// Starts the thread, on the maps that are pinned in `folder`, of which `maps` are.
    ///
    /// # Errors
    ///
    /// If there is no other box, a map cannot be opened, or the thread cannot be started.
    pub fn start(ha: &Ha, folder: &Path, maps: Maps, view: HaView) -> Result<Self> {
        let peer = ha.peer().context("ha.boxes names no other box")?.clone();
        let own = ha.own().context("ha.boxes does not name this box")?;
        let listen = own.sync;
        let (views, seen) = watch::channel(Arc::new(view));
        let (decisions, decided) = watch::channel(None);
        let (load, carries) = watch::channel(BoxLoad::default());
        let progress = PairProgress::default();
        let link = Arc::new(PeerLink {
            ha: ha.clone(),
            peer: peer.clone(),
            folder: folder.to_owned(),
            views: seen,
            decisions: decided,
            load: carries,
            progress: progress.clone(),
            turn: watch::Sender::new(0),
        });
        let standby = following::open(&link, maps)?;
        let mut gone = views.subscribe();
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("start tokio for the peer")?;
        let sessions = async move {
            tokio::select! {
                () = serving::serve(listen, Arc::clone(&link)) => {}
                () = following::follow(Arc::clone(&link), standby) => {}
                // The handle is gone.
                () = async { while gone.changed().await.is_ok() {} } => {}
            }
        };
        let thread = thread::Builder::new()
            .name("ha".to_owned())
            .spawn(move || match privileges::give_up(KEPT_BY_LISTENERS) {
                Ok(()) => runtime.block_on(sessions),
                Err(error) => tracing::error!("the thread for the peer does not start: {error:#}"),
            })
            .context("start the thread for the peer")?;
        Ok(Self {
            views: Some(views),
            decisions,
            load,
            thread: Some(thread),
            progress,
            ha: ha.clone(),
            peer,
        })
    }

    /// This box has these names now, and this role.
    pub fn show(&self, view: HaView) {
        if let Some(views) = &self.views {
            views.send_if_modified(|known| {
                let differs = **known != view;
                if differs {
                    *known = Arc::new(view);
                }
                differs
            });
        }
    }

    /// This was decided at this box, and no more.
    pub fn show_decisions(&self, decisions: Decisions) {
        self.decisions.send_if_modified(|known| {
            let decisions = Some(decisions);
            let differs = *known != decisions;
            if differs {
                *known = decisions;
            }
            differs
        });
    }

    /// This box carries so much.
    pub fn show_load(&self, load: BoxLoad) {
        self.load.send_replace(load);
    }

    /// What the peer has left to this box, which is the active one.
    pub fn left(&self) -> LeftByPeer {
        self.progress.left()
    }

    /// What was decided at the peer, if it is the active box and says so.
    pub fn decisions_of_active(&self) -> Option<Decisions> {
        self.progress.decisions_of_active()
    }

    /// The name of the peer.
    pub fn peer(&self) -> &str {
        &self.peer.name
    }

    /// Whether all flows have come that are to come from a peer which has left the service to this box.
    pub fn is_settled(&self) -> bool {
        self.progress.is_settled()
    }

    /// How the boxes stand to each other. The checks of this box find some backends up, by their names in the registry.
    pub fn status(&self, is_up: impl Fn(&str) -> bool) -> HaStatus {
        let (sending, receiving, [only_there, only_here]) = self.progress.status();
        let peer_state = self.progress.peer();
        let load = *self.load.borrow();
        let [down_only_there, down_only_here] = self.down_at_one(is_up);
        HaStatus {
            r#box: self.ha.box_name.clone(),
            active: self
                .views
                .as_ref()
                .is_some_and(|views| views.borrow().is_active),
            marker: self.ha.marker.to_string(),
            carried: load.networks,
            connections: load.connections,
            lost_connections: self.progress.lost(),
            peer: self.peer.name.clone(),
            peer_active: peer_state.map(|peer| peer.is_active),
            peer_carried: peer_state.map(|peer| peer.load.networks),
            peer_connections: peer_state.map(|peer| peer.load.connections),
            sync: self.peer.sync.to_string(),
            sending,
            receiving,
            only_there,
            only_here,
            down_only_there,
            down_only_here,
        }
    }

    /// The backends that are down at the peer and up here, but for those that operators have set, and those that are down here and not at
    /// the peer; none while the peer is not heard.
    fn down_at_one(&self, is_up: impl Fn(&str) -> bool) -> [Vec<String>; 2] {
        let decisions = self.decisions.borrow();
        let (Some(there), Some(here)) = (self.progress.down_at_peer(), decisions.as_ref()) else {
            return [Vec::new(), Vec::new()];
        };
        let is_set = |name: &str| here.overrides.contains_key(name);
        let only_there = there.iter().filter(|name| is_up(name) && !is_set(name));
        let shown = |name: &String| shown_backend(name).to_owned();
        [
            only_there.map(shown).collect(),
            here.down.difference(&there).map(shown).collect(),
        ]
    }
}

impl Drop for BoxPair {
    /// When this returns no replica is placed any more: another process may give out ids.
    fn drop(&mut self) {
        self.views = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread for the peer has panicked: please report it");
        }
    }
}
