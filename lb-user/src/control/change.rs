//! A change of what runs: desired -> plan -> apply, beside the flows.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
};

use anyhow::{Context as _, Result};

use super::{
    apply::Live,
    backend_weights::Layers,
    cell_peers,
    describe::describe,
    desired::{Attachment, Desired, records},
    ended_count::EndedPart,
    evictions::{EndedFlows, ends, not_admitted},
    fixed_at_start::{check_networks, check_ports, network_place},
    maglev_tables::choose,
    network_setup::{build_cell, cell_of, find_nics, places_to_come},
    plan::{Operation, plan},
    reclaim::retired::Retired,
    running::Running,
};
use crate::{
    config::{self, Config},
    control::applied::{applied_path, kept},
    dataplane::{attach::Mode, object::NIC, pins::Pins},
    flows::{evict::selector::EvictSelector, idle::Policy, keepalive::next_hops::NextHop},
    health::HealthVerdict,
    host,
    model::{
        ha_role::HaRole,
        maglev::MaglevTable,
        names::backend_name,
        registry::{Ids, Kind},
    },
    network::cell::Cell,
    proxy::ProxyConfig,
    system::{files, systemd},
};

/// A change that has been found possible; nothing is done yet.
pub struct Change {
    config: Config,
    places: BTreeMap<String, Attachment>,
    cells: BTreeMap<String, Cell>,
    ids: Ids,
    desired: Desired,
    plan: Vec<Operation>,
    ends: EndedFlows,
    shares: BTreeMap<String, Vec<u32>>,
}

/// What a change leads to.
pub(crate) struct Wanted<'a> {
    /// The configuration; its limits are as far as the maps have room.
    pub(crate) config: Config,
    /// Where its networks are attached, by name.
    pub(crate) places: BTreeMap<String, Attachment>,
    /// What is known of its backends.
    pub(crate) layers: &'a Layers,
    /// The mode that the programs run in.
    pub(crate) mode: Mode,
    /// What the box is with it.
    pub(crate) role: HaRole,
    /// Whether the addresses of the active box are quiet.
    pub(crate) is_quiet: bool,
}

impl Change {
    /// The change of what the maps have to what is wanted; `ids` are those that have been given out.
    ///
    /// # Errors
    ///
    /// What the data plane has no room for, or a map that cannot be read.
    pub(crate) fn to(wanted: Wanted<'_>, live: &mut Live, ids: &Ids, pins: &Pins) -> Result<Self> {
        let Wanted {
            config,
            places,
            layers,
            mode,
            role,
            is_quiet,
        } = wanted;
        let mut ids = ids.clone();
        ids.begin();
        let mut desired = records(&config, &places, &mut ids)?;
        desired.add_tables(&config, layers, &ids, &mut live.built)?;
        desired.run_in(mode);
        desired.take_role(role);
        if is_quiet {
            desired.be_quiet();
        }
        let current = live.current(&ids)?;
        choose(&current, &mut desired, &config, &mut ids);
        Ok(Self {
            ends: ends(&current, &desired, &ids),
            plan: plan(&current, &desired),
            shares: layers.all(&config),
            cells: cells(&config, &places, pins, &ids),
            config,
            places,
            ids,
            desired,
        })
    }

    /// Takes the steps out that only make networks known; they come first.
    pub(crate) fn take_network_steps(&mut self) -> Vec<Operation> {
        let networks = self.plan.iter().take_while(|step| step.is_of_networks());
        let later = self.plan.split_off(networks.count());
        std::mem::replace(&mut self.plan, later)
    }

    /// Ends all flows that the configuration does not let in, not only those that it lets in no more: a
    /// process may have been killed between a change and its cut.
    pub(crate) fn end_all_not_admitted(&mut self) {
        self.ends.cut = not_admitted(&self.desired);
    }

    /// The ids with it.
    pub(crate) const fn ids(&self) -> &Ids {
        &self.ids
    }

    /// What it wants of the maps.
    pub(crate) const fn desired(&self) -> &Desired {
        &self.desired
    }

    /// How shared VIPs are served with it.
    pub(crate) fn proxy_config(&self) -> ProxyConfig {
        ProxyConfig::new(&self.config, &self.ids, &self.tables())
    }

    /// The tables of the pools, by id.
    fn tables(&self) -> BTreeMap<u32, MaglevTable> {
        self.desired.tables.iter().cloned().collect()
    }

    /// The operations in words, in their order.
    pub fn operations(&self) -> Vec<String> {
        self.plan
            .iter()
            .map(|operation| describe(operation, &self.ids))
            .collect()
    }

    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The flows that end with it, by reason.
    pub fn ends(&self) -> &[EndedPart] {
        &self.ends.parts
    }

    /// Whether a pool that has flows now would have no backend, only because one was not checked yet; or a backend would
    /// get new flows at a port that was not checked yet.
    pub fn waits(&self, running: &Config, layers: &Layers) -> bool {
        self.moves(running) || self.lacks_checks(running, layers)
    }

    /// Whether a backend is checked elsewhere with it.
    fn moves(&self, running: &Config) -> bool {
        let addresses = |pool: &config::Pool| -> BTreeMap<String, SocketAddr> {
            let Some(health) = &pool.health else {
                return BTreeMap::new();
            };
            let backends = pool.backends.iter();
            let of = |one| (backend_name(pool, one), cell_peers::address(health, one));
            backends.map(of).collect()
        };
        self.config.pools.iter().any(|pool| {
            let before = running.pool(&pool.name).map(addresses);
            let before = before.unwrap_or_default();
            let mut now = addresses(pool).into_iter();
            now.any(|(name, address)| before.get(&name).is_some_and(|before| *before != address))
        })
    }

    fn lacks_checks(&self, running: &Config, layers: &Layers) -> bool {
        let listens = running.services.iter().flat_map(|service| &service.listen);
        let listens: HashSet<&config::Listen> = listens.collect();
        let is_open = |service: &config::Service| {
            let mut here = service.listen.iter();
            here.any(|listen| listens.contains(listen))
        };
        let services = self.config.services.iter();
        let pools = services.filter(|service| is_open(service));
        let pools = pools.flat_map(|service| service.target.pools());
        let mut pools = pools.filter_map(|pool| self.config.pool(pool));
        pools.any(|pool| {
            let shares = self.shares.get(&pool.name);
            let none = shares.is_some_and(|shares| shares.iter().all(|share| *share == 0));
            let mut backends = layers.of(pool);
            none && backends.any(|status| status.verdict == HealthVerdict::Unknown)
        })
    }
}

impl Running {
    /// What becomes of the data plane when `config` is applied, with `layers` over it.
    ///
    /// # Errors
    ///
    /// Everything that the host or the running data plane refuses.
    pub fn prepare(&mut self, config: &Config, layers: &Layers) -> Result<Change> {
        check_networks(&self.applied.config, config)?;
        check_ports(&self.applied.config, config)?;
        let config = Config {
            limits: config.limits.within(self.data_plane.live.limits()),
            ..config.clone()
        };
        let ours = |ifindex| self.data_plane.pins.link(NIC, ifindex).exists();
        let is_gone = |name: &str| {
            self.applied
                .places
                .get(name)
                .is_some_and(|place| !place.is_there)
        };
        // What has become of them is followed, whatever is in the file.
        host::interfaces(&config, ours, is_gone)?;
        self.prepare_at(config, self.applied.places.clone(), layers)
    }

    /// What would become of the data plane with a configuration whose networks only another process can attach. It cannot
    /// be carried out here.
    ///
    /// # Errors
    ///
    /// Everything that the host or the running data plane refuses.
    pub fn foresee(&mut self, config: &Config, layers: &Layers) -> Result<Change> {
        let config = Config {
            limits: config.limits.within(self.data_plane.live.limits()),
            ..config.clone()
        };
        let pins = &self.data_plane.pins;
        let mut places = places_to_come(&config, &find_nics(&config, pins)?, pins);
        let running: BTreeMap<_, _> = self
            .applied
            .config
            .networks
            .iter()
            .map(network_place)
            .collect();
        for (name, place) in config.networks.iter().map(network_place) {
            if let Some(known) = self.applied.places.get(name)
                && running.get(name) == Some(&place)
            {
                places.insert(name.to_owned(), known.clone());
            }
        }
        self.prepare_at(config, places, layers)
    }

    /// Refuses a configuration that this process could not go back from.
    ///
    /// # Errors
    ///
    /// What could not be had again, and how.
    pub fn check_way_back(&self, wanted: &Config) -> Result<()> {
        check_ports(wanted, &self.applied.config)
            .context("the reload could not be taken back if it is not confirmed")
    }

    /// As [`Self::prepare`], with the networks attached like this.
    pub(crate) fn prepare_at(
        &mut self,
        config: Config,
        places: BTreeMap<String, Attachment>,
        layers: &Layers,
    ) -> Result<Change> {
        let wanted = Wanted {
            role: self.role_within(&config),
            is_quiet: self.applied.is_quiet,
            config,
            places,
            layers,
            mode: self.data_plane.mode,
        };
        Change::to(
            wanted,
            &mut self.data_plane.live,
            &self.applied.ids,
            &self.data_plane.pins,
        )
    }

    /// Carries a change out.
    ///
    /// # Errors
    ///
    /// If its configuration cannot be kept: then nothing is changed. Else if the kernel refuses a step; those
    /// before it stay.
    pub async fn change(&mut self, change: Change) -> Result<()> {
        let applied = applied_path(&self.data_plane.pins);
        let beside = kept(change.config())
            .and_then(|kept| files::write_beside(&applied, &kept))
            .context("keep the configuration; nothing is changed")?;
        self.carry_out(change, || beside.put(&applied)).await
    }

    /// Carries a change out, and calls `applied` when what it has changed in the maps is complete.
    ///
    /// # Errors
    ///
    /// As for [`Self::change`].
    pub(crate) async fn carry_out(
        &mut self,
        change: Change,
        applied: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (setup, tables) = (change.proxy_config(), change.tables());
        let Change {
            config,
            places,
            cells,
            ids,
            desired,
            plan,
            ends,
            shares,
        } = change;
        self.adopt_ids(&ids)?;
        // Flows may refer to them from here on.
        self.show_pair();
        systemd::is_alive();
        let changed =
            |(name, cell): &(&String, &Cell)| self.applied.cells.get(*name) != Some(*cell);
        let built: Vec<(&String, &Cell)> = cells.iter().filter(changed).collect();
        for (name, cell) in &built {
            let there = self.resident(name);
            if let Err(error) =
                there.and_then(|there| build_cell(cell, there, &self.data_plane.pins))
            {
                // Cells shall answer for nothing that is not configured.
                for (name, cell) in &self.applied.cells {
                    let _left = self.resident(name).and_then(|there| cell.trim(there));
                }
                return Err(error);
            }
        }
        self.data_plane.live.follow(desired.next_hops.clone());
        self.resolve(&desired, &plan);
        // Clients must find a listener, and answers of backends must come in, before the first packet comes.
        self.checks.heard.set(&config, &ids);
        self.shared_vips.acceptors.add(setup);
        self.shared_vips.legs.end_cut(&ends.cut).await;
        systemd::is_alive();
        let made = self.make(plan, &ids, ends.cut, &built).await;
        systemd::is_alive();
        if let Err(error) = made.and_then(|()| applied()) {
            self.stay();
            return Err(error);
        }
        self.ending.expiry.set(Policy::new(&config, &ids));
        self.ending.expiry.follow(self.ways(&config, &ids));
        self.applied.retired = Retired::new(&ids, &config, &desired);
        self.applied.leave_names(desired.without_names);
        self.applied.role = desired.role;
        self.applied.of_active = desired.of_active;
        self.ending.expiry.serve(desired.role.serves());
        self.applied.tables = tables;
        self.applied.update_serving();
        self.applied.shares = shares;
        self.applied.is_share_due = true;
        self.passive.set(&config, &ids);
        let serving = &self.applied.serving;
        self.checks
            .set(&config, &ids, |backend| serving.contains(&backend));
        self.checks.finish_trial();
        (
            self.applied.config,
            self.applied.places,
            self.applied.cells,
            self.applied.ids,
        ) = (config, places, cells, ids);
        self.steer();
        self.show_pair();
        Ok(())
    }

    /// Carries the plan out, and what follows from it.
    async fn make(
        &mut self,
        plan: Vec<Operation>,
        ids: &Ids,
        cut: EvictSelector,
        built: &[(&String, &Cell)],
    ) -> Result<()> {
        let made = self.data_plane.apply(plan, ids).await;
        self.ending.note_change();
        made?;
        self.ending.cut_by_policy(cut);
        for (name, cell) in built {
            self.resident(name).and_then(|there| cell.trim(there))?;
        }
        Ok(())
    }

    /// Goes on with the configuration of before, though some or all of a change is in the maps.
    fn stay(&mut self) {
        if let Err(error) = self.go_by_maps() {
            tracing::error!(
                "read from the maps what a failed change has left: {error:#}; `lb reload` applies the file again"
            );
        }
        self.checks
            .heard
            .set(&self.applied.config, &self.applied.ids);
        self.steer();
    }

    /// Begins the checks of a change that waits for them, because a pool would otherwise have no backend that
    /// was checked: its flows go on meanwhile as before.
    ///
    /// # Errors
    ///
    /// If the ids cannot be kept.
    pub fn begin_checks(&mut self, change: &Change) -> Result<()> {
        self.adopt_ids(&change.ids)?;
        self.resolve(&change.desired, &change.plan);
        let serving = &self.applied.serving;
        let serves = |backend: u32| serving.contains(&backend);
        self.checks.begin_trial();
        self.checks.set(&change.config, &change.ids, serves);
        Ok(())
    }

    /// Takes back [`Self::begin_checks`], if that was called for a change that is not made.
    pub fn end_checks(&mut self) {
        if self.checks.undo_trial() {
            let serving = &self.applied.serving;
            let serves = |backend: u32| serving.contains(&backend);
            self.checks
                .set(&self.applied.config, &self.applied.ids, serves);
        }
    }

    /// From now on these ids are taken, whatever becomes of the change that needs them.
    fn adopt_ids(&mut self, ids: &Ids) -> Result<()> {
        let saved = self.data_plane.live.save_ids(ids);
        self.applied.ids = ids.clone().with_tables_of(&self.applied.ids);
        self.applied.renamed = true;
        saved
    }

    /// Has the next hops of a configuration resolved.
    fn resolve(&self, desired: &Desired, plan: &[Operation]) {
        for (id, neighbours) in &self.neighbours {
            let wanted = desired.neighbours(*id);
            neighbours.targets.send_if_modified(|known| {
                let changes = *known != wanted || has_new_backend(plan);
                *known = wanted;
                changes
            });
        }
    }

    /// The resolver of each network's next hops, by the network's id.
    fn ways(&self, config: &Config, ids: &Ids) -> BTreeMap<u16, NextHop> {
        let ways = config.networks.iter().filter_map(|network| {
            let id = ids.get(Kind::Network, &network.name)?;
            let id = u16::try_from(id).ok()?;
            let questions = self.neighbours.get(&id)?.questions.clone();
            let network = network.clone();
            Some((id, NextHop { network, questions }))
        });
        ways.collect()
    }
}

fn cells(
    config: &Config,
    places: &BTreeMap<String, Attachment>,
    pins: &Pins,
    ids: &Ids,
) -> BTreeMap<String, Cell> {
    let networks = config.networks.iter().filter(|network| !network.host);
    let cells = networks.filter_map(|network| {
        // Without a NIC since the start it has the cell of before, until one comes.
        let place = places
            .get(&network.name)
            .filter(|place| place.nic.ifindex != 0)?;
        let cell = cell_of(config, network, &place.nic, pins, ids);
        Some((network.name.clone(), cell))
    });
    cells.collect()
}

/// Whether a backend's next hop must be found.
fn has_new_backend(plan: &[Operation]) -> bool {
    plan.iter().any(
        |operation| matches!(operation, Operation::SetBackend(_, backend) if backend.next_hop.is_none()),
    )
}
