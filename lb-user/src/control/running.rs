//! A live data plane with its control plane.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    sync::{
        mpsc::{Receiver, Sender, UnboundedReceiver},
        oneshot::{self, error::TryRecvError},
    },
    time,
};

use super::{
    apply::Live,
    backend_weights::Layers,
    checks::{Backend, Checks},
    desired::{Attachment, table},
    maglev_tables::in_use,
    plan::Operation,
    reclaim::{retired::Retired, sweep::Sweeper},
};
use crate::{
    api::{InterfaceStatus, Override, ShareUse},
    config::Config,
    dataplane::{
        attach::{Held, Mode, NewLink},
        object::Object,
        pins::Pins,
    },
    flows::{Done, Expiry, evict::selector::EvictSelector, log::Reporter},
    model::{
        names::parse_backend,
        registry::{Ids, Kind},
    },
    network::{
        cell::{self, Cell},
        cell_thread::Resident,
        neighbour::{Resolved, Targets},
    },
    proxy::{Acceptors, Counts, Legs, ProxyConfig, Shares},
};

/// How long after a change no packet opens a flow by the maps of before.
const SETTLES: Duration = Duration::from_secs(5);
/// How long a change waits for the cut of the one before, which takes longer only where a great many
/// flows end.
const CUT_PATIENCE: Duration = Duration::from_secs(3);

/// The thread that resolves the neighbours of a network.
pub(crate) struct Neighbours {
    /// Whom it always resolves.
    pub(crate) targets: Targets,
    /// Where to ask for somebody else.
    pub(crate) questions: Sender<IpAddr>,
}

/// Who works in the cell of each network, by its name. They are there from the start on: afterwards
/// nobody may enter a cell.
pub(crate) type Residents = BTreeMap<String, Resident>;

/// See the module.
pub struct Running {
    /// The maps.
    pub live: Live,
    /// Next hops as they resolve and change.
    pub resolved: UnboundedReceiver<Resolved>,
    /// Says that an interface may have come, gone or changed.
    pub changes: Receiver<()>,
    /// The loaded object.
    pub object: Object,
    /// The thread that ends flows.
    pub expiry: Expiry,
    /// The checks of backends.
    pub checks: Checks,
    /// The threads that serve shared VIPs.
    pub(crate) front: Acceptors,
    /// The connections that they carry.
    pub(crate) legs: Legs,
    /// What became of their clients.
    pub(crate) counts: Counts,
    /// What clients of each network have of what is divided among them.
    pub(crate) divided: Shares,
    /// What is applied; its limits are those of the maps.
    pub(crate) config: Config,
    /// Where its networks are.
    pub(crate) places: BTreeMap<String, Attachment>,
    pub(crate) mode: Mode,
    pub(crate) cells: BTreeMap<String, Cell>,
    pub(crate) residents: Residents,
    /// Who resolves the neighbours of each network, by its id.
    pub(crate) neighbours: BTreeMap<u16, Neighbours>,
    pub(crate) links: Vec<NewLink>,
    /// Those that are pinned.
    pub(crate) held: Held,
    /// Whether links outlive the process.
    pub(crate) is_kept: bool,
    pub(crate) pins: Pins,
    pub(crate) ids: Ids,
    /// Tables of the pools, by id, as they stand in the map.
    pub(crate) tables: BTreeMap<u32, Vec<u32>>,
    /// Everybody who is in one of them.
    pub(crate) serving: BTreeSet<u32>,
    /// The shares that they were made of, by the pools' names.
    pub(crate) shares: BTreeMap<String, Vec<u32>>,
    pub(crate) retired: Retired,
    /// Whether ids have other names than those that were asked for last.
    pub(crate) renamed: bool,
    /// When the maps were changed.
    pub(crate) changed: Instant,
    /// Cuts that go on.
    pub(crate) cuts: Vec<oneshot::Receiver<Done>>,
    /// The cut of the latest change, or of the start.
    pub(crate) policy: Option<oneshot::Receiver<Done>>,
    /// What was known of backends before those of a change that is not made yet were asked.
    pub(crate) known: Option<BTreeMap<String, Backend>>,
    pub(crate) reporter: Reporter,
}

impl Running {
    /// Ends all service of its networks until the next start.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a write.
    pub fn close(&mut self) -> Result<()> {
        for network in &self.config.networks {
            let id = self.ids.get(Kind::Network, &network.name);
            self.live.close(id.unwrap_or_default())?;
        }
        Ok(())
    }

    /// What is applied.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Who works in the cell of a network.
    pub(super) fn resident(&self, network: &str) -> Result<&Resident> {
        let resident = self.residents.get(network);
        resident.with_context(|| format!("nobody is in the cell of network {network}"))
    }

    /// Ends everything but what serves shared VIPs.
    pub fn leave(self) -> (Acceptors, Legs) {
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
        self.is_kept = true;
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
        let pools = self.config.pools.iter().filter_map(|pool| {
            let shares = layers.shares(pool).numbers();
            let differs = self.shares.get(&pool.name) != Some(&shares);
            differs.then(|| (pool.name.clone(), shares, table(pool, layers, &self.ids)))
        });
        for (pool, shares, table) in pools.collect::<Vec<_>>() {
            let set = match table {
                Ok(table) => self.set_table(&pool, &table).await,
                Err(error) => Err(error),
            };
            match set {
                Ok(is_new) => {
                    has_new_table |= is_new;
                    self.shares.insert(pool.clone(), shares);
                    changed.push(pool);
                }
                // The others are no worse for it; this one is tried again.
                Err(error) => result = Err(error.context(format!("the shares of pool {pool}"))),
            }
        }
        self.note_tables();
        if has_new_table {
            self.steer();
        }
        result.map(|()| changed)
    }

    /// Writes a pool's table, to each place where flows go by it. Says whether it was another one.
    async fn set_table(&mut self, pool: &str, table: &[u32]) -> Result<bool> {
        let mut is_new = false;
        let id = self.ids.get(Kind::Pool, pool).unwrap_or_default();
        for number in self.ids.tables_of(id) {
            if self.tables.get(&number).is_none_or(|known| known == table) {
                continue;
            }
            let set = vec![Operation::SetTable(number, table.to_vec())];
            self.live
                .apply(set, (&self.ids, &self.object), &mut self.resolved)
                .await?;
            self.tables.insert(number, table.to_vec());
            is_new = true;
        }
        Ok(is_new)
    }

    /// Goes by what the maps say: a change may have got half of the way.
    pub(crate) fn go_by_maps(&mut self) -> Result<()> {
        let current = self.live.current(&self.ids)?;
        self.tables = in_use(&current, &mut self.ids);
        self.note_tables();
        // Whose they are is not known: they are written anew.
        self.shares.clear();
        self.retired.keep(&current, &self.ids);
        Ok(())
    }

    /// Has the shared VIPs served as it stands now.
    pub(super) fn steer(&self) {
        let setup = ProxyConfig::new(&self.config, &self.ids, &self.tables);
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

    /// What the clients of each network have of what shared VIPs divide among them, by its name.
    pub fn divided(&self) -> BTreeMap<String, ShareUse> {
        let name = |id: u16| self.ids.name(Kind::Network, id.into());
        let all = self.divided.read().into_iter();
        all.map(|(id, had)| (name(id).unwrap_or("-").to_owned(), had))
            .collect()
    }

    /// The interfaces of the networks that have theirs.
    pub fn interfaces(&self) -> BTreeMap<String, InterfaceStatus> {
        let places = self.places.iter().filter(|(_, place)| place.is_there);
        let status = |place: &Attachment| InterfaceStatus {
            mode: self.mode.to_string(),
            carrier: place.nic.running,
        };
        places
            .map(|(network, place)| (network.clone(), status(place)))
            .collect()
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
    pub(crate) fn note_tables(&mut self) {
        self.serving = self.tables.values().flatten().copied().collect();
    }

    /// Ends flows at once.
    pub(super) fn cut(&mut self, cut: EvictSelector) {
        if !cut.is_empty() {
            self.legs.cut(&cut);
            self.cuts.push(self.expiry.cut(cut));
        }
    }

    /// Ends the flows that a change does not let in any more.
    pub(crate) fn cut_by_policy(&mut self, cut: EvictSelector) {
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
    pub(super) fn cut_and_tell(&mut self, cut: EvictSelector) -> oneshot::Receiver<Done> {
        let done = self.expiry.cut(cut);
        // Done after it: nobody sweeps before.
        self.cuts.push(self.expiry.cut(EvictSelector::default()));
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
            if let Some(resident) = self.residents.get(&snat.network) {
                cell::remove_address(resident, snat.address)?;
            }
            if let Some(cell) = self.cells.get_mut(&snat.network) {
                cell.addresses.remove(&snat.address);
            }
        }
        self.stop_watching();
        Ok(())
    }

    /// Stops watching the next hops that only backends had whose ids are free now.
    fn stop_watching(&self) {
        let mut used = BTreeSet::new();
        for (name, _) in self.ids.of(Kind::Backend) {
            if let Some((name, address)) = parse_backend(name)
                && let Some(network) = self.config.network(name)
                && let Some(id) = self.ids.get(Kind::Network, name)
            {
                used.insert((id, network.next_hop(address)));
            }
        }
        for (id, neighbours) in &self.neighbours {
            neighbours.targets.send_if_modified(|targets| {
                let before = targets.len();
                targets.retain(|target| used.contains(&(u32::from(*id), *target)));
                targets.len() < before
            });
        }
    }
}
