//! The stages of a start: what an earlier process left -> networks -> threads -> the change to the
//! configuration, which is the same as that of a reload.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, ErrorKind},
    net::IpAddr,
};

use anyhow::{Result, ensure};
use lb_common::maps::network::{Address, Network};
use tokio::{
    runtime::Runtime,
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
};

use super::{migrate::Migration, threads};
use crate::{
    config::Config,
    control::{
        applied::Applied,
        apply::Live,
        attach::{attach_all, attach_to},
        backend_weights::Layers,
        cell_peers::Heard,
        change::{Change, Wanted},
        checks::{Checks, LiveBackends},
        data_plane::DataPlane,
        desired::Attachment,
        ending::Ending,
        fixed_at_start::{ANOTHER, first_port},
        network_setup::{
            build_cells, places_without_nics, remove_stale_cells, remove_stale_links, set_up_nics,
        },
        passive_watch::PassiveWatch,
        persisted_state::State,
        plan::Current,
        promotion::host_addresses,
        reclaim::{retired::Retired, sweep::Sweeper},
        running::{Residents, Running, SharedVips},
    },
    dataplane::{
        affinities::Affinities,
        attach::{Held, Mode, NewLink},
        counts::CountTable,
        flows::UsageTable,
        maps::Maps,
        object::Object,
        pins::Pins,
    },
    flows::{Expiry, idle::Policy, log::Reporter},
    host::neighbours,
    model::{ha_role::HaRole, registry::Ids},
    network::{
        cell::Cell,
        changes::{self, FollowedEvents},
        link::Link,
        neighbour::NeighbourChange,
    },
    proxy::{AccessLog, Accounts, Counts, Legs, Listeners, Shares},
    system::systemd,
};

/// How a start is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartOptions {
    /// Level of aya-log in the programs.
    pub log_level: u8,
    /// Whether flows may be lost to leave the pinned maps of another version.
    pub migrate: bool,
    /// Whether the maps of flows may become larger: no other process has them.
    pub grow: bool,
}

/// What is to be started, and with what.
pub struct Start<'a> {
    /// The configuration.
    pub config: &'a Config,
    /// The instance.
    pub pins: &'a Pins,
    /// How.
    pub options: StartOptions,
    /// Where the changes of maps wait.
    pub runtime: &'a Runtime,
    /// Receives the flows that end.
    pub reporter: Reporter,
    /// What an earlier process knew of backends, and operators have ordered.
    pub state: &'a State,
    /// Listeners of shared VIPs that are open already: they are not opened again.
    pub listeners: Listeners,
}

/// Goes through the stages.
///
/// # Errors
///
/// The first step that failed, with its object.
pub(super) fn bring_up(
    start: &Start<'_>,
    nics: &BTreeMap<String, Link>,
    object: Object,
    migration: &Migration,
) -> Result<Running> {
    let mut found = Found::open(start, nics, object)?;
    let switches = migration.switches_in(&found.places);
    let networks = found.open_networks(switches)?;
    let mut running = found.start_threads(networks)?;
    start.runtime.block_on(running.checks.wait());
    systemd::is_alive();
    change(&mut running, start)?;
    systemd::is_alive();
    if let Some(mode) = switches {
        tracing::info!("the new maps are filled: switching the programs over");
        switch(&mut running, mode)?;
    }
    let Applied {
        config,
        places,
        cells,
        ..
    } = &running.applied;
    remove_stale_links(start.pins, places)?;
    remove_stale_cells(config, start.pins, cells, &running.residents)?;
    running.pair = threads::pair(&running)?;
    Ok(running)
}

/// Switches the links from the programs of another version.
fn switch(running: &mut Running, mode: Mode) -> Result<()> {
    let Applied { config, places, .. } = &running.applied;
    let DataPlane { pins, object, .. } = &mut running.data_plane;
    running.data_plane.links = attach_to(config, pins, places, object, mode)?;
    set_up_nics(config, places)
}

/// Changes what the maps have to what is configured, as a reload does.
fn change(running: &mut Running, start: &Start<'_>) -> Result<()> {
    let config = running.applied.config.clone();
    let layers = running.layers(&config, &start.state.overrides);
    let mut change = running.prepare_at(config, running.applied.places.clone(), &layers)?;
    change.end_all_not_admitted();
    listen_on_host(start, &change)?;
    let ends = change.ends().to_vec();
    start
        .runtime
        .block_on(running.carry_out(change, || Ok(())))?;
    for part in ends {
        tracing::info!("{}", part.words);
    }
    Ok(())
}

/// What an earlier process left, adopted, and the cells: nothing that runs is changed yet.
struct Found<'a> {
    start: &'a Start<'a>,
    /// The configuration, with its limits as far as the maps have room.
    config: Config,
    object: Object,
    live: Live,
    ids: Ids,
    /// The addresses of the host.
    host_addresses: BTreeSet<IpAddr>,
    /// What the maps have.
    current: Current,
    /// The backends that have new flows by that.
    serving: BTreeSet<u32>,
    places: BTreeMap<String, Attachment>,
    cells: BTreeMap<String, Cell>,
    residents: Residents,
    checks: Checks,
}

/// The networks, open; VIPs are as before.
struct Networks {
    links: Vec<NewLink>,
    mode: Mode,
    /// What remains to be changed, by what is known of backends at the start.
    change: Change,
    report: UnboundedSender<NeighbourChange>,
    neighbours: UnboundedReceiver<NeighbourChange>,
}

impl<'a> Found<'a> {
    fn open(start: &'a Start<'a>, nics: &BTreeMap<String, Link>, object: Object) -> Result<Self> {
        let pins = start.pins;
        // First: they raise the limit of open files.
        let mut checks = Checks::default();
        systemd::is_alive();
        if let Some(done) = neighbours::provide(pins) {
            tracing::info!("{done}");
        }
        let maps = Maps::open(&pins.maps())?;
        maps.hold()?;
        let mut live = Live::new(maps);
        live.make_hash_key()?;
        let mut ids = live.ids()?;
        if !ids.has_second_tables() {
            tracing::warn!(
                "the running data plane is older and has room for one table of each pool: a service whose \
                 clients and backends change together changes in two writes; `lb down` and a new start \
                 would change it"
            );
        }
        let config = Config {
            limits: start.config.limits.within(live.limits()),
            ..start.config.clone()
        };
        live.recover(&object, &ids, &pins.maps())?;
        free_unreferenced(&mut live, &mut ids, &config, pins, &start.reporter)?;
        let mut residents = Residents::new();
        let (mut places, cells) = build_cells(&config, pins, nics, &ids, &mut residents)?;
        checks.heard = Heard::open(&pins.maps())?;
        checks.adopt(start.state);
        let host_addresses = match config.ha {
            Some(_) => host_addresses()?,
            None => BTreeSet::new(),
        };
        let current = live.current(&ids)?;
        places.extend(places_without_nics(&config, nics, pins, &current, &ids));
        Ok(Self {
            start,
            config,
            object,
            live,
            ids,
            serving: current.serving(),
            host_addresses,
            current,
            places,
            cells,
            residents,
            checks,
        })
    }

    /// A standby is silent before its networks go on again: what a stop has left open is closed.
    fn close_of_active(&mut self) -> Result<()> {
        let addresses = self.current.addresses.iter();
        let of_active: HashMap<_, _> = addresses
            .filter(|(_, address)| address.is_of_active())
            .map(|(key, address)| (*key, *address))
            .collect();
        self.live.close_addresses(&of_active)?;
        self.current
            .addresses
            .retain(|key, _| !of_active.contains_key(key));
        Ok(())
    }

    /// Attaches the programs, unless they are switched later, and makes the networks known. What the host may
    /// refuse comes before the first change of what runs.
    fn open_networks(&mut self, switches: Option<Mode>) -> Result<Networks> {
        let pins = self.start.pins;
        if self.role() == HaRole::Standby {
            self.close_of_active()?;
        }
        let mut change = self.change_in(switches.unwrap_or(Mode::Native))?;
        self.live.save_ids(change.ids())?;
        self.live.follow(change.desired().next_hops.clone());
        let (links, mode) = match switches {
            Some(mode) => (Vec::new(), mode),
            None => attach_all(&self.config, pins, &self.places, &mut self.object)?,
        };
        systemd::is_alive();
        if mode == Mode::Generic && switches.is_none() {
            change = self.change_in(mode)?;
        }
        let (report, mut changes) = mpsc::unbounded_channel();
        let steps = change.take_network_steps();
        let ids = change.ids();
        let applied = self.live.apply(steps, ids, &self.object, &mut changes);
        self.start.runtime.block_on(applied)?;
        systemd::is_alive();
        if switches.is_none() {
            set_up_nics(&self.config, &self.places)?;
        }
        Ok(Networks {
            links,
            mode,
            change,
            report,
            neighbours: changes,
        })
    }

    /// The change to the configuration, by what is known of backends now.
    fn change_in(&mut self, mode: Mode) -> Result<Change> {
        let wanted = Wanted {
            config: self.config.clone(),
            places: self.places.clone(),
            layers: &self.layers(),
            mode,
            role: self.role(),
            is_quiet: false,
        };
        Change::to(wanted, &mut self.live, &self.ids, self.start.pins)
    }

    /// The role to begin with. A box that becomes active does so when all else is there, and clients learn of it; one that was active
    /// stays so.
    fn role(&self) -> HaRole {
        let is_stopped = self.current.networks.values().any(Network::is_stopped);
        let was_active = self.current.addresses.values().any(Address::is_vip) && !is_stopped;
        match HaRole::of(self.config.ha.as_ref(), &self.host_addresses) {
            HaRole::Active if !was_active => HaRole::Standby,
            role => role,
        }
    }

    fn layers(&self) -> Layers {
        let live = LiveBackends {
            serves: &|id| self.serving.contains(&id),
            // No thread follows next hops yet.
            is_silent: &|_| false,
        };
        let overrides = &self.start.state.overrides;
        self.checks
            .layers(&self.config, &self.ids, &live, overrides)
    }

    /// Starts the threads: of next hops, checks, shared VIPs, and the end of flows.
    fn start_threads(self, networks: Networks) -> Result<Running> {
        let role = self.role();
        let Self {
            start,
            config,
            object,
            live,
            ids,
            current,
            serving,
            host_addresses,
            places,
            cells,
            residents,
            mut checks,
        } = self;
        let Networks {
            links,
            mode,
            change,
            report,
            neighbours: changed,
        } = networks;
        let (pins, reporter) = (start.pins, &start.reporter);
        let ids = change.ids().clone().with_tables_of(&ids);
        let (neighbours, next_hops) =
            threads::resolve(&config, change.desired(), &ids, pins, &report)?;
        threads::check(&config, &places, &ids, pins, &neighbours, &mut checks)?;
        checks.set(&config, &ids, |backend| serving.contains(&backend));
        let flows = UsageTable::open(&pins.maps())?;
        let accounts = Accounts {
            legs: Legs::beside(
                Some(flows),
                CountTable::open(&pins.maps())?,
                reporter.clone(),
            ),
            affinities: Affinities::open(&pins.maps())?,
            counts: Counts::default(),
            access: access_log(&config),
            shares: Shares::default(),
        };
        let front = threads::front(
            &config,
            &ids,
            pins,
            &live,
            &accounts,
            start.listeners.clone(),
        )?;
        systemd::is_alive();
        let policy = Policy::new(&config, &ids);
        let maps = live.beside(&pins.maps())?;
        let expiry = Expiry::start(
            &pins.maps(),
            maps,
            policy,
            next_hops,
            reporter.clone(),
            role.serves(),
        )?;
        let passive = PassiveWatch::open(&pins.maps())?;
        let applied = Applied {
            config,
            places,
            cells,
            ids,
            tables: current.tables.into_iter().collect(),
            serving: BTreeSet::new(),
            shares: BTreeMap::new(),
            is_share_due: true,
            retired: Retired::default(),
            role,
            is_quiet: false,
            of_active: HashMap::new(),
            without_names: Vec::new(),
            renamed: false,
        };
        let data_plane = DataPlane {
            pins: pins.clone(),
            live,
            neighbours: changed,
            object,
            mode,
            links,
            held: Held::default(),
            is_kept: false,
        };
        let address_changes = match applied.config.ha {
            Some(_) => changes::follow(start.runtime, FollowedEvents::Addresses),
            None => mpsc::channel(1).1,
        };
        let mut running = Running {
            data_plane,
            applied,
            residents,
            neighbours,
            checks,
            ending: Ending::new(expiry, accounts.legs.clone()),
            shared_vips: SharedVips {
                acceptors: front,
                legs: accounts.legs,
                counts: accounts.counts,
                shares: accounts.shares,
            },
            changes: changes::follow(start.runtime, FollowedEvents::Links),
            address_changes,
            host_addresses,
            reporter: reporter.clone(),
            passive,
            pair: None,
        };
        running.applied.update_serving();
        Ok(running)
    }
}

/// The access log, or what is wrong with it: requests are served without.
fn access_log(config: &Config) -> AccessLog {
    let log = config.http_log.as_deref().map(AccessLog::start);
    log.transpose()
        .unwrap_or_else(|error| {
            tracing::error!("open the access log (log.http): {error:#}; lb runs without it");
            None
        })
        .unwrap_or_default()
}

/// Opens the listeners at the host's own addresses: low ports may be had at the start only, so one that is
/// busy now is not had before the next. High ones are tried again by the acceptors.
fn listen_on_host(start: &Start<'_>, change: &Change) -> Result<()> {
    let _inside = start.runtime.enter();
    let setup = change.proxy_config();
    let networks = change.config().networks.iter();
    for network in networks.filter(|network| network.host) {
        for vip in setup.vips(&network.name) {
            let opened = start.listeners.at(&(network.name.clone(), vip));
            let is_denied = |error: &io::Error| error.kind() == ErrorKind::PermissionDenied;
            ensure!(
                !opened.as_ref().is_err_and(is_denied),
                "listen at {vip} of the host: that needs CAP_NET_BIND_SERVICE at the start, or a lower \
                 net.ipv4.ip_unprivileged_port_start"
            );
            if let Err(error) = opened
                && vip.port() < first_port()
            {
                tracing::error!(
                    network = network.name,
                    address = %vip,
                    "the shared VIP accepts no connections until another process listens there: {error}; when \
                     the port is free: {ANOTHER}"
                );
            }
        }
    }
    Ok(())
}

/// Frees what an earlier process retired and no flow holds any more: the new configuration may need
/// the ids.
fn free_unreferenced(
    live: &mut Live,
    ids: &mut Ids,
    config: &Config,
    pins: &Pins,
    reporter: &Reporter,
) -> Result<()> {
    let mut retired = Retired::unreferenced(ids, config, &live.current(ids)?);
    if !retired.is_empty() {
        let sweeper = Sweeper::open(&pins.maps(), reporter.clone())?;
        // No connection of an earlier process's shared VIPs is left.
        live.sweep(&sweeper, ids, &mut retired, &Legs::new(reporter.clone()))?;
    }
    Ok(())
}
