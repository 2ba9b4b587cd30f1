//! A live data plane with its control plane.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use tokio::{
    sync::{
        mpsc::{Sender, UnboundedReceiver},
        oneshot::{self, error::TryRecvError},
    },
    time,
};

use super::{
    apply::Live,
    checks::{Backend, Checks},
    desired::{Place, table},
    expiry::{Done, Expiry, cut::Cut},
    ids::{Ids, Kind},
    layers::Layers,
    plan::Operation,
    retire::Retired,
    sweep::Sweeper,
};
use crate::{
    admin::api::Override,
    config::Config,
    dataplane::{
        attach::{Mode, NewLink},
        object::Object,
        pins::Pins,
    },
    network::{
        cell::{self, Cell},
        namespace,
        neighbour::{Resolved, Targets},
    },
    observe::log::Reporter,
    shared::{Counts, Front, Legs, Setup},
};

/// How long after a change no packet opens a flow by the maps of before.
const SETTLES: Duration = Duration::from_secs(5);
/// How long a change waits for the cut of the one before, which takes longer only where a great many
/// flows end.
const CUT_PATIENCE: Duration = Duration::from_secs(3);

/// The thread that resolves the neighbours of a network.
pub(super) struct Neighbours {
    /// Whom it always resolves.
    pub(super) targets: Targets,
    /// Where to ask for somebody else.
    pub(super) questions: Sender<Ipv4Addr>,
}

/// See the module.
pub struct Running {
    /// The maps.
    pub live: Live,
    /// Next hops as they resolve and change.
    pub resolved: UnboundedReceiver<Resolved>,
    /// The loaded object.
    pub object: Object,
    /// The thread that ends flows.
    pub expiry: Expiry,
    /// The checks of backends.
    pub checks: Checks,
    /// The threads that serve shared VIPs.
    pub(super) front: Front,
    /// The connections that they carry.
    pub(super) legs: Legs,
    /// What became of their clients.
    pub(super) counts: Counts,
    /// What is applied; its limits are those of the maps.
    pub(super) config: Config,
    /// Where its networks are.
    pub(super) places: BTreeMap<String, Place>,
    pub(super) mode: Mode,
    pub(super) cells: BTreeMap<String, Cell>,
    /// Who resolves the neighbours of each network, by its id.
    pub(super) neighbours: BTreeMap<u16, Neighbours>,
    pub(super) links: Vec<NewLink>,
    pub(super) pins: Pins,
    pub(super) ids: Ids,
    /// Tables of the pools, by id, as they stand in the map.
    pub(super) tables: BTreeMap<u32, Vec<u32>>,
    /// Everybody who is in one of them.
    pub(super) serving: BTreeSet<u32>,
    /// The shares that they were made of, by the pools' names.
    pub(super) shares: BTreeMap<String, Vec<u32>>,
    pub(super) retired: Retired,
    /// Whether ids have other names than those that were asked for last.
    pub(super) renamed: bool,
    /// When the maps were changed.
    pub(super) changed: Instant,
    /// Cuts that go on.
    pub(super) cuts: Vec<oneshot::Receiver<Done>>,
    /// The cut of the latest change, or of the start.
    pub(super) policy: Option<oneshot::Receiver<Done>>,
    /// What was known of backends before those of a change that is not made yet were asked.
    pub(super) known: Option<BTreeMap<String, Backend>>,
    pub(super) reporter: Reporter,
}

impl Running {
    /// What is applied.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Ends everything but what serves shared VIPs.
    pub fn leave(self) -> (Front, Legs) {
        let Self { front, legs, .. } = self;
        (front, legs)
    }

    /// The ids, if any of them has another name since this was asked last.
    pub fn new_names(&mut self) -> Option<&Ids> {
        let renamed = std::mem::replace(&mut self.renamed, false);
        renamed.then_some(&self.ids)
    }

    /// The ids that have been given out.
    pub const fn ids(&self) -> &Ids {
        &self.ids
    }

    /// The instance.
    pub const fn pins(&self) -> &Pins {
        &self.pins
    }

    /// Lets the new links outlive the process; until then they end with it.
    ///
    /// # Errors
    ///
    /// If bpffs refuses a pin.
    pub fn keep(&mut self) -> Result<()> {
        self.links.drain(..).try_for_each(NewLink::keep)
    }

    /// Brings the pools' tables to what `layers` say now. Gives the names of the pools that changed.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a table.
    pub async fn share(&mut self, layers: &Layers) -> Result<Vec<String>> {
        let mut changed = Vec::new();
        let mut has_new_table = false;
        let mut result = Ok(());
        for pool in &self.config.pools {
            let shares = layers.shares(pool).numbers();
            if self.shares.get(&pool.name) == Some(&shares) {
                continue;
            }
            let id = self.ids.get(Kind::Pool, &pool.name).unwrap_or_default();
            let set = match table(pool, layers, &self.ids) {
                Ok(table) if self.tables.get(&id) == Some(&table) => Ok(()),
                Ok(table) => {
                    has_new_table = true;
                    self.tables.insert(id, table.clone());
                    let set = vec![Operation::SetTable(id, table)];
                    self.live.apply(set, &mut self.resolved).await
                }
                Err(error) => Err(error),
            };
            match set {
                Ok(()) => {
                    self.shares.insert(pool.name.clone(), shares);
                    changed.push(pool.name.clone());
                }
                // The others are no worse for it; this one is tried again.
                Err(error) => {
                    self.tables.remove(&id);
                    result = Err(error.context(format!("the shares of pool {}", pool.name)));
                }
            }
        }
        self.note_tables();
        if has_new_table {
            self.steer();
        }
        result.map(|()| changed)
    }

    /// Has the shared VIPs served as it stands now.
    pub(super) fn steer(&self) {
        let setup = Setup::new(&self.config, &self.ids, &self.tables);
        self.front.set(setup);
    }

    /// Forgets whom the cells need not hear any more.
    pub fn tidy(&mut self) {
        self.checks.heard.tidy(&self.legs);
    }

    /// The connections of shared VIPs.
    pub const fn legs(&self) -> &Legs {
        &self.legs
    }

    /// What became of the clients of shared VIPs.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What is said of the backends of `config`, with these overrides.
    pub fn layers(&self, config: &Config, overrides: &BTreeMap<String, Override>) -> Layers {
        let serves = |id| self.serves(id);
        self.checks.layers(config, &self.ids, serves, overrides)
    }

    /// Whether a backend has new flows.
    pub fn serves(&self, backend: u32) -> bool {
        self.serving.contains(&backend)
    }

    /// Everybody who has new flows.
    pub const fn serving(&self) -> &BTreeSet<u32> {
        &self.serving
    }

    /// Notes the tables as they stand in the map.
    pub(super) fn note_tables(&mut self) {
        self.serving = self.tables.values().flatten().copied().collect();
    }

    /// Ends flows at once.
    pub(super) fn cut(&mut self, cut: Cut) {
        if !cut.is_empty() {
            self.legs.cut(&cut);
            self.cuts.push(self.expiry.cut(cut));
        }
    }

    /// Ends the flows that a change does not let in any more.
    pub(super) fn cut_by_policy(&mut self, cut: Cut) {
        if !cut.is_empty() {
            self.legs.cut(&cut);
            self.policy = Some(self.cut_and_tell(cut));
        }
    }

    /// Waits until the cut of the change before is made. It goes by the listeners and rules of then,
    /// and must not meet flows that the next change lets in.
    ///
    /// # Errors
    ///
    /// If it takes too long; nothing is changed then.
    pub(super) async fn finish_policy(&mut self) -> Result<()> {
        if let Some(cut) = &mut self.policy {
            // An error is an answer as well: the thread has ended.
            let made = time::timeout(CUT_PATIENCE, cut).await.is_ok();
            ensure!(
                made,
                "the flows that the change before has ended are still being told; try again, \
                 nothing is changed"
            );
            self.policy = None;
        }
        Ok(())
    }

    /// Whether ids of what is configured no more wait for the last flow that holds them. Not while flows
    /// are cut: their resets need the records behind these ids.
    pub fn has_retired(&mut self) -> bool {
        let goes_on =
            |cut: &mut oneshot::Receiver<Done>| cut.try_recv() == Err(TryRecvError::Empty);
        self.cuts.retain_mut(goes_on);
        // Packets that were on their way when the plan was applied may still open flows.
        let is_settled = self.changed.elapsed() >= SETTLES;
        is_settled && !self.retired.is_empty() && self.cuts.is_empty()
    }

    /// Ends flows at once, and says when it is done.
    pub(super) fn cut_and_tell(&mut self, cut: Cut) -> oneshot::Receiver<Done> {
        let done = self.expiry.cut(cut);
        // Done after it: nobody sweeps before.
        self.cuts.push(self.expiry.cut(Cut::default()));
        done
    }

    /// Frees the ids that no flow holds any more.
    ///
    /// # Errors
    ///
    /// If a map cannot be changed.
    pub fn sweep(&mut self) -> Result<()> {
        let sweeper = Sweeper::open(&self.pins.maps(), self.reporter.clone())?;
        let freed = self
            .live
            .sweep(&sweeper, &mut self.ids, &mut self.retired, &self.legs)?;
        self.renamed = true;
        for snat in freed {
            let cell = cell::name(self.pins.instance(), &snat.network);
            if namespace::path(&cell).exists() {
                cell::remove_address(&cell, snat.address)?;
            }
            if let Some(cell) = self.cells.get_mut(&snat.network) {
                cell.addresses.remove(&snat.address);
            }
        }
        Ok(())
    }
}
