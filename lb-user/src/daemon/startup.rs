//! From a configuration to a live data plane: the steps of `lb run`, in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, ErrorKind},
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    runtime::Runtime,
    sync::{
        mpsc::{self, UnboundedSender},
        watch,
    },
};

use super::migrate::Migration;
use crate::{
    config::{self, Config},
    control::{
        applied::{self, applied_path},
        apply::Live,
        attach::{attach_all, attach_to},
        cell_peers::Heard,
        change::{ANOTHER, first_port},
        checks::Checks,
        desired::{Attachment, Desired, desired},
        evictions::{ends, not_admitted},
        maglev_tables::choose,
        network_setup::{
            build_cells, find_nics, places_without_nics, remove_stale_cells, remove_stale_links,
            set_up_nics,
        },
        persisted_state::State,
        plan::{Current, Operation, plan},
        reclaim::{retired::Retired, sweep::Sweeper},
        running::{Neighbours, Residents, Running},
    },
    dataplane::{attach::Held, flows::UsageTable, maps::Maps, object::Object, pins::Pins},
    flows::{
        Expiry,
        idle::Policy,
        keepalive::next_hops::{NextHop, NextHops},
        log::Reporter,
    },
    host::neighbours,
    model::registry::{Ids, Kind},
    network::{
        cell, changes,
        link::Link,
        namespace,
        neighbour::{self, Inquiry, MAX_INQUIRIES, Resolved, Side},
        nic,
    },
    proxy::{Acceptors, Counts, Legs, Listeners, PortLeases, ProxyConfig, Shares, Tables},
    system::systemd,
};

/// How a start is to be made.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartOptions {
    /// Level of aya-log in the programs.
    pub log_level: u8,
    /// Whether flows may be lost to leave the pinned maps of another version.
    pub migrate: bool,
}

/// Brings the data plane of `pins` to what `config` says, of which `text` is the source. What an
/// earlier process left is adopted; where nothing was left, a failure leaves nothing behind.
///
/// New links are for the caller to [keep](Running::keep). Flows that are ended here go to the reporter;
/// listeners that are open already are not opened again; nor is `loaded` loaded again, where it still is of
/// these pins.
///
/// # Errors
///
/// The first step that failed, with its object.
pub fn start(
    config: &Config,
    text: &str,
    pins: &Pins,
    manner: StartOptions,
    runtime: &Runtime,
    loaded: Option<Object>,
    with: (Reporter, &State, Listeners),
) -> Result<Running> {
    let adopted = pins.exist();
    let applied = applied_path(pins);
    let result = find_nics(config, pins).and_then(|nics| {
        let migration = Migration::of(pins, manner.migrate)?;
        migration.announce();
        migration.make_folders(pins)?;
        let beside = crate::system::files::change_beside(&applied, text.as_bytes())
            .context("keep the configuration; nothing is changed")?;
        let object = match loaded.filter(|object| object.is_of(pins)) {
            Some(object) => Ok(object),
            None => Object::load(pins, &config.limits, manner.log_level),
        };
        let running = object
            .and_then(|object| bring_up(config, pins, &nics, (object, &migration), runtime, with))
            .inspect_err(|_| migration.abandon(pins))?;
        if let Some(beside) = beside {
            beside.put(&applied)?;
        }
        remove_before(pins)?;
        migration.finish(pins)?;
        Ok(running)
    });
    if result.is_err()
        && !adopted
        && let Err(error) = remove(pins)
    {
        tracing::error!("cleaning up after the failed start: {error:#}");
    }
    if result.is_err() && !adopted {
        // What an earlier boot has left there stays.
        let _others = fs::remove_dir(pins.state());
    }
    result
}

/// Puts back what was applied before a start that was not confirmed, if anything was.
///
/// # Errors
///
/// If it cannot be written.
pub fn put_back(pins: &Pins, before: Option<&str>) -> Result<()> {
    match before {
        Some(text) => crate::system::files::write(&applied_path(pins), text.as_bytes()),
        None => Ok(pins.remove_state()?),
    }
}

/// Removes where versions of before had the applied configuration: what is there is theirs, and the latest.
fn remove_before(pins: &Pins) -> Result<()> {
    let path = applied::before_path(pins);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Removes links, pins and cells of an instance: nothing of it forwards any more.
///
/// # Errors
///
/// The first thing that cannot be removed.
pub fn remove(pins: &Pins) -> Result<()> {
    pins.remove_links()
        .with_context(|| format!("remove the links of {}", pins.instance()))?;
    // A NIC takes some settings back only when no program runs on it any more, and tags must not be
    // stripped while ours does.
    nic::restore_all(&pins.runtime())?;
    pins.remove()
        .with_context(|| format!("remove the pins of {}", pins.instance()))?;
    for cell in namespace::list(&cell::prefix(pins.instance()))? {
        cell::remove(&cell)?;
    }
    neighbours::release(pins);
    Ok(())
}

fn bring_up(
    config: &Config,
    pins: &Pins,
    nics: &BTreeMap<String, Link>,
    (mut object, migration): (Object, &Migration),
    runtime: &Runtime,
    (reporter, state, listeners): (Reporter, &State, Listeners),
) -> Result<Running> {
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
        limits: live.limits(),
        ..config.clone()
    };
    live.recover(&object, &ids, &pins.maps())?;
    free_unreferenced(&mut live, &mut ids, &config, pins, &reporter)?;
    let mut residents = Residents::new();
    let (mut places, cells) = build_cells(&config, pins, nics, &ids, &mut residents)?;
    checks.heard = Heard::open(&pins.maps())?;
    checks.adopt(state);
    let current = live.current(&ids)?;
    places.extend(places_without_nics(&config, nics, pins, (&current, &ids)));
    let layers = |checks: &Checks, ids: &Ids| {
        checks.layers(&config, ids, |id| current.serves(id), &state.overrides)
    };
    let layers_first = layers(&checks, &ids);
    let mut wanted = desired(&config, &places, &layers_first, &mut ids)?;
    choose(&current, &mut wanted, &config, &mut ids);
    live.save_ids(&ids)?;
    live.follow(wanted.next_hops.clone());

    // What the host may refuse comes before the first change of what runs. Then networks open, ARP
    // flows, next hops resolve, checks begin, VIPs open.
    let switches = migration.switches_in(&places);
    let (mut links, mode) = match switches {
        Some(mode) => (Vec::new(), mode),
        None => attach_all(&config, pins, &places, &mut object)?,
    };
    systemd::is_alive();
    wanted.run_in(mode);
    let current = live.current(&ids)?;
    let mut first = plan(&current, &wanted);
    let _later = first.split_off(first.iter().take_while(|step| is_of_networks(step)).count());
    let (report, mut resolved) = mpsc::unbounded_channel();
    runtime.block_on(live.apply(first, (&ids, &object), &mut resolved))?;
    systemd::is_alive();
    if switches.is_none() {
        set_up_nics(&config, &places)?;
    }
    let (neighbours, ways) = resolve(&config, &wanted, &ids, pins, &report)?;
    let known = (&current, &neighbours);
    check(&config, &places, &ids, pins, known, &mut checks)?;
    let flows = UsageTable::open(&pins.maps())?;
    let legs = Legs::beside(Some(flows), reporter.clone());
    let (counts, divided) = (Counts::default(), Shares::default());
    let of_clients = (&legs, &counts, &divided);
    let front = front(&config, pins, &live, of_clients, listeners.clone())?;
    systemd::is_alive();
    runtime.block_on(checks.wait());
    systemd::is_alive();

    let checked = layers(&checks, &ids);
    let mut wanted = desired(&config, &places, &checked, &mut ids)?;
    wanted.run_in(mode);
    let current = live.current(&ids)?;
    choose(&current, &mut wanted, &config, &mut ids);
    live.save_ids(&ids)?;
    let words = ends(&current, &wanted, &ids).words;
    let cut = not_admitted(&wanted);
    let tables: BTreeMap<u32, Vec<u32>> = wanted.tables.iter().cloned().collect();
    let setup = ProxyConfig::new(&config, &ids, &tables);
    listen_on_host(&config, &setup, &listeners, runtime)?;
    front.set(setup);
    runtime.block_on(live.apply(plan(&current, &wanted), (&ids, &object), &mut resolved))?;
    systemd::is_alive();
    if let Some(mode) = switches {
        links = attach_to(&config, pins, &places, &mut object, mode)?;
        set_up_nics(&config, &places)?;
    }
    remove_stale_links(pins, &places)?;
    remove_stale_cells(&config, pins, &cells, &residents)?;
    let retired = Retired::new(&ids, &config, &wanted);
    let policy = Policy::new(&config, &ids);
    let maps = live.beside(&pins.maps())?;
    let expiry = Expiry::start(&pins.maps(), maps, policy, ways, reporter.clone())?;
    for words in words {
        tracing::info!("{words}");
    }
    let shares = checked.all(&config);
    let mut running = Running {
        live,
        resolved,
        object,
        expiry,
        checks,
        front,
        legs,
        counts,
        divided,
        config,
        places,
        mode,
        cells,
        residents,
        neighbours,
        links,
        held: Held::default(),
        is_kept: false,
        changes: changes::follow(runtime),
        pins: pins.clone(),
        ids,
        tables,
        serving: BTreeSet::new(),
        shares,
        retired,
        renamed: false,
        changed: Instant::now(),
        cuts: Vec::new(),
        policy: None,
        known: None,
        reporter,
    };
    running.note_tables();
    running.cut_by_policy(cut);
    Ok(running)
}

/// Starts a thread for each network that keeps its next hops.
fn resolve(
    config: &Config,
    desired: &Desired,
    ids: &Ids,
    pins: &Pins,
    report: &UnboundedSender<Resolved>,
) -> Result<(BTreeMap<u16, Neighbours>, NextHops)> {
    let mut ways = BTreeMap::new();
    let mut neighbours = BTreeMap::new();
    let (answers, answered) = mpsc::channel(MAX_INQUIRIES);
    for network in &config.networks {
        let id = ids.get(Kind::Network, &network.name).unwrap_or_default();
        let id = u16::try_from(id)?;
        let (targets, followed) = watch::channel(desired.neighbours(id));
        let (questions, asked) = mpsc::channel(MAX_INQUIRIES);
        let inquiry = Inquiry {
            questions: asked,
            answers: answers.clone(),
        };
        neighbour::resolve(side(network, pins), id, followed, report.clone(), inquiry)?;
        let neighbour = Neighbours {
            targets,
            questions: questions.clone(),
        };
        neighbours.insert(id, neighbour);
        let network = network.clone();
        ways.insert(id, NextHop { network, questions });
    }
    Ok((neighbours, NextHops::new(ways, answered)))
}

/// Starts a thread for each network that serves its shared VIPs.
fn front(
    config: &Config,
    pins: &Pins,
    live: &Live,
    of_clients: (&Legs, &Counts, &Shares),
    listeners: Listeners,
) -> Result<Acceptors> {
    let mut sides = BTreeMap::new();
    let tables = Tables::open(&pins.maps())?;
    for network in &config.networks {
        let side = side(network, pins);
        let leases = match side.cell {
            Some(_) => {
                let (maps, (_, _, divided)) = (live.beside(&pins.maps())?, of_clients);
                let (tables, divided) = (tables.clone(), divided.clone());
                Some(PortLeases::new(&network.name, tables, maps, divided))
            }
            None => None,
        };
        sides.insert(network.name.clone(), (side, leases));
    }
    Acceptors::start(sides, of_clients, listeners)
}

/// Opens the listeners at the host's own addresses: low ports may be had at the start only, so one that is
/// busy now is not had before the next. High ones are tried again by the front.
fn listen_on_host(
    config: &Config,
    setup: &ProxyConfig,
    listeners: &Listeners,
    runtime: &Runtime,
) -> Result<()> {
    let _inside = runtime.enter();
    for network in config.networks.iter().filter(|network| network.host) {
        for vip in setup.vips(&network.name) {
            let opened = listeners.at(&(network.name.clone(), vip));
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
                    "no new connections before the next process listens here: {error}; when the port \
                     is free: {ANOTHER}"
                );
            }
        }
    }
    Ok(())
}

/// Starts a thread for each network that checks its backends.
fn check(
    config: &Config,
    places: &BTreeMap<String, Attachment>,
    ids: &Ids,
    pins: &Pins,
    (current, neighbours): (&Current, &BTreeMap<u16, Neighbours>),
    checks: &mut Checks,
) -> Result<()> {
    for network in &config.networks {
        let place = places.get(&network.name);
        let nic = place.map_or(0, |place| place.nic.ifindex);
        let id = ids.get(Kind::Network, &network.name).unwrap_or_default();
        let neighbours = neighbours.get(&u16::try_from(id)?);
        let neighbours = neighbours.context("the thread of its neighbours")?;
        let questions = neighbours.questions.clone();
        checks.start(&network.name, side(network, pins), nic, questions)?;
    }
    checks.set(config, ids, |backend| current.serves(backend));
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

/// Where the neighbours of a network are resolved.
fn side(network: &config::Network, pins: &Pins) -> Side {
    if network.host {
        Side {
            cell: None,
            interface: network.interface.clone(),
        }
    } else {
        Side {
            cell: Some(cell::name(pins.instance(), &network.name)),
            interface: cell::INNER.to_owned(),
        }
    }
}

/// Whether a step only makes networks known; such steps are at the beginning of a plan.
const fn is_of_networks(step: &Operation) -> bool {
    match step {
        Operation::WriteRules(..)
        | Operation::ClearRules(..)
        | Operation::OpenSnat(_)
        | Operation::SetBank(..)
        | Operation::SetQuota(..)
        | Operation::SetRing(..)
        | Operation::UnmapNetwork(_)
        | Operation::SetNetwork(..)
        | Operation::MapNetwork(..) => true,
        Operation::SetAddress(_, address) => !address.is_vip(),
        _ => false,
    }
}
