//! From a configuration to a live data plane: the steps of `lb run`, in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::maps::network::KIND_SNAT;
use tokio::{
    runtime::Runtime,
    sync::{
        mpsc::{self, UnboundedSender},
        watch,
    },
};

use super::{
    apply::Live,
    attach::{attach_all, leaves_checksums, with_below},
    checks::Checks,
    desired::{Desired, Place, desired},
    ends::{ends, not_admitted},
    expiry::{
        Expiry,
        idle::Policy,
        ways::{Way, Ways},
    },
    heard::Heard,
    ids::{Ids, Kind},
    plan::{Current, Operation, plan},
    retire::Retired,
    running::{Neighbours, Running},
    snat::{SnatSlot, draining, parse_name},
    state::{self, State},
    sweep::Sweeper,
};
use crate::{
    config::{self, Config},
    dataplane::{
        flows::FlowTable,
        maps::Maps,
        object::{CELL, NIC, Object},
        pins::Pins,
    },
    host,
    network::{
        cell::{self, Cell},
        link::{self, Link},
        namespace,
        neighbour::{self, Inquiry, QUESTIONS, Resolved, Side},
        nic,
    },
    observe::log::Reporter,
    shared::{Counts, Front, Legs, Listeners, Setup},
};

/// Brings the data plane of `pins` to what `config` says, of which `text` is the source. What an
/// earlier process left is adopted; where nothing was left, a failure leaves nothing behind.
///
/// New links are for the caller to [keep](Running::keep). Flows that are ended here go to the reporter;
/// listeners that are open already are not opened again.
///
/// # Errors
///
/// The first step that failed, with its object.
pub fn start(
    config: &Config,
    text: &str,
    pins: &Pins,
    log_level: u8,
    runtime: &Runtime,
    with: (Reporter, &State, Listeners),
) -> Result<Running> {
    let adopted = pins.exist();
    let ours = |ifindex| pins.link(NIC, ifindex).exists();
    let applied = applied_path(pins);
    let result = host::interfaces(config, ours).and_then(|nics| {
        ensure_version(pins)?;
        pins.create().context("create the pin folders")?;
        let beside = state::write_beside(&applied, text.as_bytes())
            .context("keep the configuration; nothing is changed")?;
        let running = bring_up(config, pins, &nics, log_level, runtime, with)?;
        beside.put(&applied)?;
        Ok(running)
    });
    if result.is_err()
        && !adopted
        && let Err(error) = remove(pins)
    {
        tracing::error!("cleaning up after the failed start: {error:#}");
    }
    result
}

/// Whether the programs would be accepted for the data plane of `pins`, which nothing is changed of.
///
/// # Errors
///
/// Why they would not.
pub fn rehearse(config: &Config, pins: &Pins) -> Result<()> {
    ensure_version(pins)?;
    Object::load(pins, &config.limits, 0).map(drop)
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
    Ok(())
}

/// The configuration file of the last successful start, as text.
///
/// # Errors
///
/// If the instance never started.
pub fn applied(pins: &Pins) -> Result<String> {
    let path = applied_path(pins);
    fs::read_to_string(&path).with_context(|| {
        format!(
            "instance {} has no applied configuration; is it up?",
            pins.instance()
        )
    })
}

fn ensure_version(pins: &Pins) -> Result<()> {
    ensure!(
        pins.other_versions().is_empty(),
        "instance {} runs with pinned state of another version ({}), which this lb cannot adopt; \
         `lb down --instance {}` ends it and its flows",
        pins.instance(),
        pins.other_versions().join(", "),
        pins.instance(),
    );
    Ok(())
}

fn bring_up(
    config: &Config,
    pins: &Pins,
    nics: &BTreeMap<String, Link>,
    log_level: u8,
    runtime: &Runtime,
    (reporter, state, listeners): (Reporter, &State, Listeners),
) -> Result<Running> {
    let mut object = Object::load(pins, &config.limits, log_level)?;
    let mut live = Live::new(Maps::open(&pins.maps())?);
    let mut ids = live.ids()?;
    let config = Config {
        limits: live.limits(),
        ..config.clone()
    };
    recover_flow_ids(&live, &ids, pins)?;
    free_unreferenced(&mut live, &mut ids, &config, pins, &reporter)?;
    let (places, cells) = build_cells(&config, pins, nics, &ids)?;
    let mut checks = Checks::default();
    checks.heard = Heard::open(&pins.maps())?;
    checks.adopt(state);
    let current = live.current(&ids)?;
    let layers = |checks: &Checks, ids: &Ids| {
        checks.layers(&config, ids, |id| current.serves(id), &state.overrides)
    };
    let layers_first = layers(&checks, &ids);
    let mut wanted = desired(&config, &places, &layers_first, &mut ids)?;
    live.save_ids(&ids)?;
    live.follow(wanted.next_hops.clone());

    // What the host may refuse comes before the first change of what runs. Then networks open, ARP
    // flows, next hops resolve, checks begin, VIPs open.
    let (links, mode) = attach_all(&config, pins, &places, &mut object)?;
    wanted.run_in(mode);
    let current = live.current(&ids)?;
    let mut first = plan(&current, &wanted);
    let _later = first.split_off(first.iter().take_while(|step| is_of_networks(step)).count());
    let (report, mut resolved) = mpsc::unbounded_channel();
    runtime.block_on(live.apply(first, &mut resolved))?;
    set_up_nics(&config, &places)?;
    let (neighbours, ways) = resolve(&config, &wanted, &ids, pins, &report)?;
    check(&config, &places, &ids, pins, &current, &mut checks)?;
    let (legs, counts) = (Legs::new(reporter.clone()), Counts::default());
    let front = front(&config, pins, (&legs, &counts), listeners)?;
    runtime.block_on(checks.wait());

    let checked = layers(&checks, &ids);
    let mut wanted = desired(&config, &places, &checked, &mut ids)?;
    wanted.run_in(mode);
    let current = live.current(&ids)?;
    let words = ends(&current, &wanted, &ids).words;
    let cut = not_admitted(&wanted);
    let tables: BTreeMap<u32, Vec<u32>> = wanted.tables.iter().cloned().collect();
    front.set(Setup::new(&config, &ids, &tables));
    runtime.block_on(live.apply(plan(&current, &wanted), &mut resolved))?;
    remove_stale(&config, pins, &places, &cells)?;
    let retired = Retired::new(&ids, &config, &wanted);
    let policy = Policy::new(&config, &ids);
    let expiry = Expiry::start(&pins.maps(), policy, ways, reporter.clone())?;
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
        config,
        places,
        mode,
        cells,
        neighbours,
        links,
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
) -> Result<(BTreeMap<u16, Neighbours>, Ways)> {
    let mut ways = BTreeMap::new();
    let mut neighbours = BTreeMap::new();
    let (answers, answered) = mpsc::channel(QUESTIONS);
    for network in &config.networks {
        let id = ids.get(Kind::Network, &network.name).unwrap_or_default();
        let id = u16::try_from(id)?;
        let (targets, followed) = watch::channel(desired.neighbours(id));
        let (questions, asked) = mpsc::channel(QUESTIONS);
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
        ways.insert(id, Way { network, questions });
    }
    Ok((neighbours, Ways::new(ways, answered)))
}

/// Starts a thread for each network that serves its shared VIPs.
fn front(
    config: &Config,
    pins: &Pins,
    (legs, counts): (&Legs, &Counts),
    listeners: Listeners,
) -> Result<Front> {
    let networks = config.networks.iter();
    let sides = networks.map(|network| (network.name.clone(), side(network, pins)));
    Front::start(sides.collect(), legs, counts, listeners)
}

/// Starts a thread for each network that checks its backends.
fn check(
    config: &Config,
    places: &BTreeMap<String, Place>,
    ids: &Ids,
    pins: &Pins,
    current: &Current,
    checks: &mut Checks,
) -> Result<()> {
    for network in &config.networks {
        let place = places.get(&network.name);
        let nic = place.map_or(0, |place| place.nic.ifindex);
        checks.start(&network.name, side(network, pins), nic)?;
    }
    checks.set(config, ids, |backend| current.serves(backend));
    Ok(())
}

/// Puts back what an earlier process lost when it was killed.
fn recover_flow_ids(live: &Live, ids: &Ids, pins: &Pins) -> Result<()> {
    let table = FlowTable::open(&pins.maps())?;
    for (name, id) in ids.of(Kind::Snat) {
        let (Some((_, snat)), Some(slot)) = (parse_name(name), id.checked_sub(1)) else {
            continue;
        };
        let slot = SnatSlot::new(u16::try_from(slot)?, snat);
        let recovered = live.recover(&table, &slot)?;
        if recovered > 0 {
            tracing::info!(
                address = name,
                recovered,
                "free flow ids were lost, and are back"
            );
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

fn build_cells(
    config: &Config,
    pins: &Pins,
    nics: &BTreeMap<String, Link>,
    ids: &Ids,
) -> Result<(BTreeMap<String, Place>, BTreeMap<String, Cell>)> {
    let mut places = BTreeMap::new();
    let mut cells = BTreeMap::new();
    for network in &config.networks {
        let Some(nic) = nics.get(&network.name) else {
            continue;
        };
        let cell_ifindex = if network.host {
            0
        } else {
            let cell = cell_of(config, network, nic, pins, ids);
            let outer = cell.build()?;
            cells.insert(network.name.clone(), cell);
            outer.ifindex
        };
        let nic = nic.clone();
        let place = Place {
            partial: leaves_checksums(&network.interface, nic.ifindex)?,
            nic,
            cell_ifindex,
        };
        places.insert(network.name.clone(), place);
    }
    Ok((places, cells))
}

/// What the cell of a network must be.
pub(super) fn cell_of(
    config: &Config,
    network: &config::Network,
    nic: &Link,
    pins: &Pins,
    ids: &Ids,
) -> Cell {
    Cell {
        name: cell::name(pins.instance(), &network.name),
        nic: nic.clone(),
        vlan: network.vlan,
        addresses: addresses(config, network, ids),
        prefixes: network.prefixes.clone(),
        routes: network.routes.clone(),
    }
}

/// Whether a step only makes networks known; such steps are at the beginning of a plan.
const fn is_of_networks(step: &Operation) -> bool {
    match step {
        Operation::WriteRules(..)
        | Operation::ClearRules(..)
        | Operation::OpenSnat(_)
        | Operation::SetRing(..)
        | Operation::UnmapNetwork(_)
        | Operation::SetNetwork(..)
        | Operation::MapNetwork(..) => true,
        Operation::SetAddress(_, address) => address.kind == KIND_SNAT,
        _ => false,
    }
}

/// Only now that our programs run there: before, the host's stack would answer.
fn set_up_nics(config: &Config, places: &BTreeMap<String, Place>) -> Result<()> {
    for network in &config.networks {
        let place = places.get(&network.name).filter(|place| !place.nic.up);
        if let Some(place) = place {
            link::with_netlink(async |handle| link::set_up(&handle, place.nic.ifindex).await)?;
            tracing::info!(interface = network.interface, "set up");
        }
    }
    Ok(())
}

/// What a cell answers ARP for: VIPs and SNAT addresses, also those that only finish their flows.
fn addresses(config: &Config, network: &config::Network, ids: &Ids) -> BTreeSet<Ipv4Addr> {
    let services = config.services.iter();
    let services = services.filter(|service| service.network == network.name);
    let vips = services.flat_map(|service| service.listen.iter().map(|listen| listen.address));
    let snat = network.snat.iter().map(|snat| snat.address);
    let draining = draining(config, ids).into_iter();
    let draining = draining.filter(|(name, _)| *name == network.name);
    let draining = draining.map(|(_, snat)| snat.snat.address);
    vips.chain(snat).chain(draining).collect()
}

/// Removes links and cells of networks that are no longer configured, and of NICs that are gone, and
/// from the cells that stay what they need no more.
fn remove_stale(
    config: &Config,
    pins: &Pins,
    places: &BTreeMap<String, Place>,
    cells: &BTreeMap<String, Cell>,
) -> Result<()> {
    for program in [CELL, NIC] {
        for ifindex in pins.linked(program) {
            let used = places.values().any(|place| match program {
                CELL => place.cell_ifindex == ifindex,
                _ => place.nic.ifindex == ifindex,
            });
            if !used {
                let pin = pins.link(program, ifindex);
                fs::remove_file(&pin)
                    .with_context(|| format!("remove the link {}", pin.display()))?;
            }
        }
    }
    let mut used = BTreeSet::new();
    for place in places.values() {
        used.extend(with_below(place.nic.ifindex)?);
    }
    nic::restore_unused(&pins.runtime(), &used)?;
    for cell in cells.values() {
        cell.trim()?;
    }
    for cell in namespace::list(&cell::prefix(pins.instance()))? {
        let wanted = |network: &config::Network| {
            !network.host && cell::name(pins.instance(), &network.name) == cell
        };
        if !config.networks.iter().any(wanted) {
            cell::remove(&cell)?;
        }
    }
    Ok(())
}

/// Where the text of the applied configuration is, so that other processes know the names behind the
/// ids.
pub(super) fn applied_path(pins: &Pins) -> PathBuf {
    pins.runtime().join("applied.yaml")
}
