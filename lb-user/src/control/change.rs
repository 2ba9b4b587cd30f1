//! A change of what runs: desired -> plan -> apply, beside the flows.

use std::{collections::BTreeMap, time::Instant};

use anyhow::{Context as _, Result, ensure};

use super::{
    describe::describe,
    desired::{Desired, Place, desired},
    ends::{Ends, ends},
    expiry::{idle::Policy, ways::Way},
    ids::{Ids, Kind},
    layers::Layers,
    plan::{Operation, plan},
    retire::Retired,
    running::Running,
    start::{applied_path, cell_of},
    state,
};
use crate::{
    config::{self, Config},
    dataplane::object::NIC,
    health::Verdict,
    host,
    network::cell::Cell,
    shared::Setup,
};

/// A change that has been found possible; nothing is done yet.
pub struct Change {
    config: Config,
    places: BTreeMap<String, Place>,
    cells: BTreeMap<String, Cell>,
    ids: Ids,
    desired: Desired,
    plan: Vec<Operation>,
    ends: Ends,
    shares: BTreeMap<String, Vec<u32>>,
}

impl Change {
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

    /// The flows that end with it, a line for each reason.
    pub fn ends(&self) -> &[String] {
        &self.ends.words
    }

    /// Whether a pool that has flows now would have nobody, only because nobody was asked yet.
    pub fn waits(&self, running: &Config, layers: &Layers) -> bool {
        let is_open = |service: &config::Service| {
            let listens = running.services.iter().flat_map(|service| &service.listen);
            let listens: Vec<_> = listens.collect();
            service
                .listen
                .iter()
                .any(|listen| listens.contains(&listen))
        };
        let services = self.config.services.iter();
        let pools = services.filter(|service| is_open(service));
        let pools = pools.flat_map(|service| service.target.pools());
        let mut pools = pools.filter_map(|pool| self.config.pool(pool));
        pools.any(|pool| {
            let nobody = self.shares.get(&pool.name);
            let nobody = nobody.is_some_and(|shares| shares.iter().all(|share| *share == 0));
            let mut backends = pool.backends.iter();
            nobody && backends.any(|one| layers.of(pool, one).verdict == Verdict::Unknown)
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
        check_networks(&self.config, config)?;
        let config = Config {
            limits: self.live.limits(),
            ..config.clone()
        };
        let pins = self.pins.clone();
        let nics = host::interfaces(&config, |ifindex| pins.link(NIC, ifindex).exists())?;
        let mut places = self.places.clone();
        for (name, nic) in nics {
            let Some(place) = places.get_mut(&name) else {
                continue;
            };
            ensure!(
                place.nic.ifindex == nic.ifindex,
                "network {name}: its interface was made anew, and no program of ours runs on it: \
                 stop `lb run` and start it again, which loses no flow"
            );
            place.nic = nic;
        }
        let mut ids = self.ids.clone();
        ids.begin();
        let mut desired = desired(&config, &places, layers, &mut ids)?;
        desired.run_in(self.mode);
        let current = self.live.current(&ids)?;
        let ends = ends(&current, &desired, &ids);
        let plan = plan(&current, &desired);
        let shares = layers.all(&config);
        let cells = cells(&config, &places, &pins, &ids);
        Ok(Change {
            config,
            places,
            cells,
            ids,
            desired,
            plan,
            ends,
            shares,
        })
    }

    /// Carries a change out; `text` is the source of its configuration.
    ///
    /// # Errors
    ///
    /// If the text cannot be kept: then nothing is changed. Else if the kernel refuses a step; those
    /// before it stay.
    pub async fn change(&mut self, change: Change, text: &str) -> Result<()> {
        let applied = applied_path(&self.pins);
        let beside = state::write_beside(&applied, text.as_bytes())
            .context("keep the configuration; nothing is changed")?;
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
        let changed = |(name, cell): &(&String, &Cell)| self.cells.get(*name) != Some(*cell);
        let built: Vec<(&String, &Cell)> = cells.iter().filter(changed).collect();
        for (_, cell) in &built {
            if let Err(error) = cell.build() {
                // They shall answer for nothing that is not configured.
                for cell in self.cells.values() {
                    let _left = cell.trim();
                }
                return Err(error);
            }
        }
        self.live.follow(desired.next_hops.clone());
        self.resolve(&desired, &plan);
        let tables = desired.tables.iter().cloned().collect();
        // Who is to be accepted must be listened for, and who is to be dialled must be heard, before the
        // first packet comes.
        self.checks.heard.set(&config, &ids);
        self.front.add(Setup::new(&config, &ids, &tables));
        self.legs.end_cut(&ends.cut).await;
        if let Err(error) = self.live.apply(plan, &mut self.resolved).await {
            self.checks.heard.set(&self.config, &self.ids);
            self.steer();
            return Err(error);
        }
        self.changed = Instant::now();
        self.cut_by_policy(ends.cut);
        for (_, cell) in &built {
            cell.trim()?;
        }
        beside.put(&applied)?;
        self.expiry.set(Policy::new(&config, &ids));
        self.expiry.follow(self.ways(&config, &ids));
        self.retired = Retired::new(&ids, &config, &desired);
        self.tables = tables;
        self.note_tables();
        self.shares = shares;
        let serving = &self.serving;
        self.checks
            .set(&config, &ids, |backend| serving.contains(&backend));
        self.known = None;
        (self.config, self.places, self.cells, self.ids) = (config, places, cells, ids);
        self.steer();
        Ok(())
    }

    /// Begins the checks of a change that waits for them, because a pool would have nobody who was
    /// asked: its flows go on meanwhile as before.
    ///
    /// # Errors
    ///
    /// If the ids cannot be kept.
    pub fn begin_checks(&mut self, change: &Change) -> Result<()> {
        self.adopt_ids(&change.ids)?;
        self.resolve(&change.desired, &change.plan);
        let serving = &self.serving;
        let serves = |backend: u32| serving.contains(&backend);
        self.known = Some(self.checks.known());
        self.checks.set(&change.config, &change.ids, serves);
        Ok(())
    }

    /// Takes back [`Self::begin_checks`], if that was called for a change that is not made.
    pub fn end_checks(&mut self) {
        if let Some(known) = self.known.take() {
            self.checks.remember(known);
            let serving = &self.serving;
            let serves = |backend: u32| serving.contains(&backend);
            self.checks.set(&self.config, &self.ids, serves);
        }
    }

    /// From now on these ids are taken, whatever becomes of the change that needs them.
    fn adopt_ids(&mut self, ids: &Ids) -> Result<()> {
        let saved = self.live.save_ids(ids);
        self.ids = ids.clone();
        self.renamed = true;
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

    /// Who knows the next hops of each network, by its id.
    fn ways(&self, config: &Config, ids: &Ids) -> BTreeMap<u16, Way> {
        let ways = config.networks.iter().filter_map(|network| {
            let id = ids.get(Kind::Network, &network.name)?;
            let id = u16::try_from(id).ok()?;
            let questions = self.neighbours.get(&id)?.questions.clone();
            let network = network.clone();
            Some((id, Way { network, questions }))
        });
        ways.collect()
    }
}

/// Refuses what a running process cannot do: attach to an interface, leave one, make a cell.
fn check_networks(running: &Config, wanted: &Config) -> Result<()> {
    let place = |network: &config::Network| {
        (
            network.name.clone(),
            network.interface.clone(),
            network.vlan,
            network.host,
        )
    };
    let mut before: Vec<_> = running.networks.iter().map(place).collect();
    let mut after: Vec<_> = wanted.networks.iter().map(place).collect();
    before.sort();
    after.sort();
    let differ = |one: &[(String, String, Option<u16>, bool)],
                  other: &[(String, String, Option<u16>, bool)]| {
        let only = one.iter().filter(|network| !other.contains(*network));
        only.map(|(name, ..)| name.clone()).collect::<Vec<_>>()
    };
    let mut names = differ(&before, &after);
    names.extend(differ(&after, &before));
    names.sort();
    names.dedup();
    ensure!(
        names.is_empty(),
        "networks come, go, or change their interface, vlan or kind of address only with a new \
         process: stop `lb run` and start it with this file, which loses no flow ({})",
        names.join(", ")
    );
    Ok(())
}

fn cells(
    config: &Config,
    places: &BTreeMap<String, Place>,
    pins: &crate::dataplane::pins::Pins,
    ids: &Ids,
) -> BTreeMap<String, Cell> {
    let networks = config.networks.iter().filter(|network| !network.host);
    let cells = networks.filter_map(|network| {
        let place = places.get(&network.name)?;
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
