//! A live data plane with its control plane.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    slice,
};

use anyhow::{Context as _, Result};
use lb_common::maps::counts::{self, BOUND};
use tokio::sync::mpsc::{Receiver, Sender};

use super::{
    applied::Applied,
    backend_weights::Layers,
    checks::{Checks, LiveBackends},
    data_plane::DataPlane,
    desired::Attachment,
    ending::Ending,
    maglev_tables::in_use,
    passive_watch::PassiveWatch,
    reclaim::sweep::Sweeper,
};
use crate::{
    api::{InterfaceStatus, Override, ServiceStats, ShareUse},
    config::Config,
    dataplane::pins::Pins,
    flows::log::Reporter,
    ha::{thread::BoxPair, view::HaView},
    model::{
        maglev::MaglevTable,
        names::parse_backend,
        registry::{Ids, Kind},
    },
    network::{cell, cell_thread::Resident, neighbour::Targets},
    proxy::{Acceptors, Counts, Legs, ProxyConfig, Shares},
};

/// The thread that resolves the neighbours of a network.
pub(crate) struct Neighbours {
    /// The neighbours that it always resolves.
    pub(crate) targets: Targets,
    /// Where to request another one.
    pub(crate) questions: Sender<IpAddr>,
}

/// The thread in the cell of each network, by its name.
pub(crate) type Residents = BTreeMap<String, Resident>;

/// See the module.
pub struct Running {
    /// The flows that end before their time.
    pub ending: Ending,
    /// The checks of backends.
    pub checks: Checks,
    /// Shared VIPs.
    pub(crate) shared_vips: SharedVips,
    /// What the maps have.
    pub(crate) applied: Applied,
    /// The threads in the cells, by network. They are there from the start on: afterwards the process has no
    /// privilege to enter a cell.
    pub(crate) residents: Residents,
    /// The threads that resolve the neighbours of each network, by its id.
    pub(crate) neighbours: BTreeMap<u16, Neighbours>,
    /// The maps and programs. After all threads: links that are not pinned end with it.
    pub data_plane: DataPlane,
    /// Reports that an interface may have come, gone or changed.
    pub changes: Receiver<()>,
    /// Reports that the host may have got or lost an address.
    pub address_changes: Receiver<()>,
    /// The addresses of the host, as they were last looked at.
    pub(crate) host_addresses: BTreeSet<IpAddr>,
    pub(crate) reporter: Reporter,
    /// The sessions with the other box, if there is one.
    pub(crate) pair: Option<BoxPair>,
    /// How backends answer.
    pub(crate) passive: PassiveWatch,
}

/// What serves shared VIPs.
pub(crate) struct SharedVips {
    /// The threads.
    pub(crate) acceptors: Acceptors,
    /// The connections that they carry.
    pub(crate) legs: Legs,
    /// What became of their clients.
    pub(crate) counts: Counts,
    /// What clients of each network have of what is divided among them.
    pub(crate) shares: Shares,
}

/// A pool whose backends have other shares than before.
struct SharedPool {
    name: String,
    /// The share of each backend, in the order of the file.
    shares: Vec<u32>,
    /// The Maglev table of them.
    table: MaglevTable,
}

impl Running {
    /// Ends all service of its networks until the next start.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a write.
    pub fn close(&mut self) -> Result<()> {
        for network in &self.applied.config.networks {
            let id = self.applied.ids.get(Kind::Network, &network.name);
            self.data_plane.live.close(id.unwrap_or_default())?;
        }
        Ok(())
    }

    /// Has the session with the other box go by what is applied.
    pub(crate) fn show_pair(&self) {
        if let Some(pair) = &self.pair {
            pair.show(self.ha_view());
        }
    }

    /// What is applied, for the session with the other box.
    pub(crate) fn ha_view(&self) -> HaView {
        HaView {
            ids: self.applied.ids.clone(),
            is_active: self.applied.role.serves(),
        }
    }

    /// What is applied.
    pub const fn config(&self) -> &Config {
        &self.applied.config
    }

    /// The thread in the cell of a network.
    pub(super) fn resident(&self, network: &str) -> Result<&Resident> {
        let resident = self.residents.get(network);
        resident.with_context(|| {
            format!(
                "the thread in the cell of network {network} has ended: restart lb (flows go on), and report it"
            )
        })
    }

    /// Ends everything but what serves shared VIPs.
    pub fn leave(self) -> (Acceptors, Legs) {
        let SharedVips {
            acceptors, legs, ..
        } = self.shared_vips;
        (acceptors, legs)
    }

    /// The ids that have been given out.
    pub const fn ids(&self) -> &Ids {
        &self.applied.ids
    }

    /// The instance.
    pub const fn pins(&self) -> &Pins {
        &self.data_plane.pins
    }

    /// Brings the pools' tables to `layers` as they are now. Gives the names of the pools that changed.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a table.
    pub fn share(&mut self, layers: &Layers) -> Result<Vec<String>> {
        let shared = self.share_by(layers);
        self.applied.is_share_due = shared.is_err() || layers.are_growing(&self.applied.config);
        shared
    }

    /// Whether [`Self::share`] may find others, though nothing has happened that is reported.
    pub(super) const fn is_share_due(&self) -> bool {
        self.applied.is_share_due
    }

    fn share_by(&mut self, layers: &Layers) -> Result<Vec<String>> {
        let mut result = Ok(());
        let mut shared = Vec::new();
        let config = &self.applied.config;
        for pool in &config.pools {
            let shares = layers.shares(pool).numbers();
            if self.applied.shares.get(&pool.name) == Some(&shares) {
                continue;
            }
            let built = &mut self.data_plane.live.built;
            match built.table(pool, config, layers, &self.applied.ids) {
                Ok(table) => shared.push(SharedPool {
                    name: pool.name.clone(),
                    shares,
                    table,
                }),
                Err(error) => {
                    result = Err(error.context(format!("the shares of pool {}", pool.name)))
                }
            }
        }
        if shared.is_empty() {
            return result.map(|()| Vec::new());
        }
        let changed = match self.set_tables(&shared) {
            Ok(()) => shared,
            // One by one: the others are no worse for the one that is refused, which is tried again.
            Err(_) => shared
                .into_iter()
                .filter(|pool| match self.set_tables(slice::from_ref(pool)) {
                    Ok(()) => true,
                    Err(error) => {
                        result = Err(error.context(format!("the shares of pool {}", pool.name)));
                        false
                    }
                })
                .collect(),
        };
        let names = changed.iter().map(|pool| pool.name.clone()).collect();
        let shares = changed.into_iter().map(|pool| (pool.name, pool.shares));
        self.applied.shares.extend(shares);
        result.map(|()| names)
    }

    /// Writes the tables of these pools that are others than before, to each place where flows go by them.
    fn set_tables(&mut self, pools: &[SharedPool]) -> Result<()> {
        let mut tables = BTreeMap::new();
        for pool in pools {
            let id = self.applied.ids.get(Kind::Pool, &pool.name);
            for number in self.applied.ids.tables_of(id.unwrap_or_default()) {
                let known = self.applied.tables.get(&number);
                if known.is_some_and(|known| *known != pool.table) {
                    tables.insert(number, MaglevTable::clone(&pool.table));
                }
            }
        }
        if tables.is_empty() {
            return Ok(());
        }
        self.data_plane.live.set_tables(&tables)?;
        self.applied.tables.extend(tables);
        self.applied.update_serving();
        self.steer();
        Ok(())
    }

    /// Goes by what the maps hold: a change may have got half of the way.
    pub(crate) fn go_by_maps(&mut self) -> Result<()> {
        let current = self.data_plane.live.current(&self.applied.ids)?;
        self.applied.tables = in_use(&current, &mut self.applied.ids);
        self.applied.update_serving();
        // The shares that the tables were made of are not known: they are written anew.
        self.applied.shares.clear();
        self.applied.is_share_due = true;
        self.applied.retired.keep(&current, &self.applied.ids);
        Ok(())
    }

    /// Has the shared VIPs served as it stands now.
    pub(super) fn steer(&self) {
        let setup = ProxyConfig::new(
            &self.applied.config,
            &self.applied.ids,
            &self.applied.tables,
        );
        self.shared_vips.acceptors.set(setup);
    }

    /// Forgets the peers that send nothing into the cells any more.
    pub fn tidy(&mut self) {
        self.checks.heard.tidy(&self.shared_vips.legs);
    }

    /// The connections of shared VIPs.
    pub const fn legs(&self) -> &Legs {
        &self.shared_vips.legs
    }

    /// What became of the clients of shared VIPs.
    pub const fn counts(&self) -> &Counts {
        &self.shared_vips.counts
    }

    /// The same, with what the data plane has counted of them.
    pub fn shared(&self) -> BTreeMap<String, ServiceStats> {
        let mut shared = self.counts().read();
        let Some(table) = &self.data_plane.live.maps.counts else {
            return shared;
        };
        for (name, id) in self.applied.ids.of(Kind::Service) {
            let record = u16::try_from(id).map(counts::service);
            let bound = record.map_or(0, |record| table.get(record)[BOUND]);
            if bound > 0 {
                shared.entry(name.to_owned()).or_default().bound = bound;
            }
        }
        shared
    }

    /// What the clients of each network have of what shared VIPs divide among them, by its name.
    pub fn divided(&self) -> BTreeMap<String, ShareUse> {
        let name = |id: u16| self.applied.ids.name(Kind::Network, id.into());
        let all = self.shared_vips.shares.read().into_iter();
        all.map(|(id, had)| (name(id).unwrap_or("-").to_owned(), had))
            .collect()
    }

    /// The interfaces of the networks that have theirs.
    pub fn interfaces(&self) -> BTreeMap<String, InterfaceStatus> {
        let places = self
            .applied
            .places
            .iter()
            .filter(|(_, place)| place.is_there);
        let status = |network: &str, place: &Attachment| InterfaceStatus {
            mode: self.data_plane.mode.to_string(),
            carrier: place.nic.running,
            unreachable: self
                .network_id(network)
                .map_or_else(BTreeSet::new, |id| self.data_plane.live.silent_in(id)),
        };
        places
            .map(|(network, place)| (network.clone(), status(network, place)))
            .collect()
    }

    fn network_id(&self, network: &str) -> Option<u16> {
        let id = self.applied.ids.get(Kind::Network, network)?;
        u16::try_from(id).ok()
    }

    /// The status of the backends of `config`, with these overrides.
    pub fn layers(&self, config: &Config, overrides: &BTreeMap<String, Override>) -> Layers {
        let live = LiveBackends {
            serves: &|id| self.serves(id),
            is_silent: &|id| self.data_plane.live.is_silent(id) || self.is_unresponsive(id),
        };
        self.checks
            .layers(config, &self.applied.ids, &live, overrides)
    }

    /// Whether a backend that nothing checks gets no new flows, because it does not answer.
    pub fn is_unresponsive(&self, backend: u32) -> bool {
        self.passive.passive.is_out(backend)
    }

    /// Whether a backend has new flows.
    pub fn serves(&self, backend: u32) -> bool {
        self.applied.serving.contains(&backend)
    }

    /// The backends that have new flows.
    pub const fn serving(&self) -> &BTreeSet<u32> {
        &self.applied.serving
    }

    /// Whether ids of what is configured no more wait for the last flow that holds them. Not while flows
    /// are cut: their resets need the records behind these ids.
    pub fn has_retired(&mut self) -> bool {
        let is_settled = self.ending.is_settled();
        is_settled && !self.applied.retired.is_empty()
    }

    /// Frees the ids that no flow holds any more.
    ///
    /// # Errors
    ///
    /// If a map cannot be changed.
    pub fn sweep(&mut self) -> Result<()> {
        let sweeper = Sweeper::open(&self.data_plane.pins.maps(), self.reporter.clone())?;
        let freed = self.data_plane.live.sweep(
            &sweeper,
            &mut self.applied.ids,
            &mut self.applied.retired,
            &self.shared_vips.legs,
        )?;
        self.applied.renamed = true;
        for snat in freed {
            // Else a promotion would open it again.
            if let Some(key) = snat.key {
                self.applied.of_active.remove(&key);
            }
            if let Some(resident) = self.residents.get(&snat.network) {
                cell::remove_address(resident, snat.address)?;
            }
            if let Some(cell) = self.applied.cells.get_mut(&snat.network) {
                cell.addresses.remove(&snat.address);
            }
        }
        self.stop_watching();
        Ok(())
    }

    /// Stops watching the next hops that only backends had whose ids are free now.
    fn stop_watching(&self) {
        let mut used = BTreeSet::new();
        for (name, _) in self.applied.ids.of(Kind::Backend) {
            if let Some((name, address)) = parse_backend(name)
                && let Some(network) = self.applied.config.network(name)
                && let Some(id) = self.applied.ids.get(Kind::Network, name)
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
