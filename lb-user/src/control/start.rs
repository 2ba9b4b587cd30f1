//! From a configuration to a live data plane: the steps of `lb run`, in order.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    net::Ipv4Addr,
};

use anyhow::{Context as _, Result};
use tokio::{
    runtime::Runtime,
    sync::mpsc::{self, UnboundedReceiver},
};

use super::{
    apply::Live,
    desired::{Desired, Place, desired},
    ids::Kind,
    plan::{Operation, plan},
};
use crate::{
    config::{self, Config},
    dataplane::{
        attach::{self, Attached, NewLink},
        maps::Maps,
        object::{CELL, NIC, Object},
        pins::Pins,
    },
    host,
    network::{
        cell::{self, Cell},
        link::Link,
        namespace,
        neighbour::{self, Resolved},
    },
};

/// A live data plane with its control plane.
pub struct Running {
    /// The maps.
    pub live: Live,
    /// Next hops as they resolve and change.
    pub resolved: UnboundedReceiver<Resolved>,
    /// The loaded object.
    pub object: Object,
    links: Vec<NewLink>,
}

impl Running {
    /// Lets the new links outlive the process; until then they end with it.
    ///
    /// # Errors
    ///
    /// If bpffs refuses a pin.
    pub fn keep(&mut self) -> Result<()> {
        self.links.drain(..).try_for_each(NewLink::keep)
    }
}

/// Brings the data plane of `pins` to what `config` says, of which `text` is the source. What an
/// earlier process left is adopted; where nothing was left, a failure leaves nothing behind.
///
/// New links are for the caller to [keep](Running::keep).
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
) -> Result<Running> {
    let adopted = pins.exist();
    let ours = |ifindex| pins.link(NIC, ifindex).exists();
    let result = host::interfaces(config, ours)
        .and_then(|nics| bring_up(config, pins, &nics, log_level, runtime))
        .and_then(|running| save(text, pins).map(|()| running));
    if result.is_err()
        && !adopted
        && let Err(error) = remove(pins)
    {
        tracing::error!("cleaning up after the failed start: {error:#}");
    }
    result
}

/// Removes links, pins and cells of an instance: nothing of it forwards any more.
///
/// # Errors
///
/// The first thing that cannot be removed.
pub fn remove(pins: &Pins) -> Result<()> {
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
    let path = pins.runtime().join("applied.yaml");
    fs::read_to_string(&path).with_context(|| {
        format!(
            "instance {} has no applied configuration; is it up?",
            pins.instance()
        )
    })
}

fn bring_up(
    config: &Config,
    pins: &Pins,
    nics: &BTreeMap<String, Link>,
    log_level: u8,
    runtime: &Runtime,
) -> Result<Running> {
    pins.create().context("create the pin folders")?;
    let mut object = Object::load(pins, &config.limits, log_level)?;
    let mut live = Live::new(Maps::open(&pins.maps())?);
    let mut ids = live.ids()?;
    let config = Config {
        limits: live.limits(),
        ..config.clone()
    };
    let places = build_cells(&config, pins, nics)?;
    let desired = desired(&config, &places, &mut ids)?;
    live.save_ids(&ids)?;

    let (report, mut resolved) = mpsc::unbounded_channel();
    let mut first = plan(&live.current(&ids)?, &desired);
    let await_hops = |operation: &Operation| matches!(operation, Operation::AwaitNextHops(_));
    let rest = first.split_off(first.iter().position(await_hops).unwrap_or(first.len()));
    // Networks are known before their first frame; ARP then flows, next hops resolve, VIPs open.
    runtime.block_on(live.apply(first, &mut resolved))?;
    let links = attach_all(&config, pins, &places, &mut object)?;
    for network in &config.networks {
        let id = ids.get(Kind::Network, &network.name).unwrap_or_default();
        let id = u16::try_from(id)?;
        let targets = neighbours(&desired, id);
        neighbour::watch(
            &cell::name(pins.instance(), &network.name),
            id,
            targets,
            report.clone(),
        )?;
    }
    runtime.block_on(live.apply(rest, &mut resolved))?;
    remove_stale(&config, pins, &places)?;
    Ok(Running {
        live,
        resolved,
        object,
        links,
    })
}

fn build_cells(
    config: &Config,
    pins: &Pins,
    nics: &BTreeMap<String, Link>,
) -> Result<BTreeMap<String, Place>> {
    let mut places = BTreeMap::new();
    for network in &config.networks {
        let Some(nic) = nics.get(&network.name) else {
            continue;
        };
        let services = config
            .services
            .iter()
            .filter(|service| service.network == network.name);
        let vips = services
            .flat_map(|service| &service.listen)
            .map(|listen| listen.address);
        let cell = Cell {
            name: cell::name(pins.instance(), &network.name),
            nic: nic.clone(),
            addresses: vips.chain(network.snat.iter().copied()).collect(),
            prefixes: network.prefixes.clone(),
        };
        let outer = cell.build()?;
        places.insert(
            network.name.clone(),
            Place {
                nic: nic.clone(),
                cell_ifindex: outer.ifindex,
            },
        );
    }
    Ok(places)
}

/// Cells first: what a NIC's program delivers must have somewhere to go.
fn attach_all(
    config: &Config,
    pins: &Pins,
    places: &BTreeMap<String, Place>,
    object: &mut Object,
) -> Result<Vec<NewLink>> {
    let mut links = Vec::new();
    for program in [CELL, NIC] {
        for network in &config.networks {
            let Some(place) = places.get(&network.name) else {
                continue;
            };
            let (interface, ifindex) = match program {
                CELL => (cell::outer(place.nic.ifindex), place.cell_ifindex),
                _ => (network.interface.clone(), place.nic.ifindex),
            };
            let pin = pins.link(program, ifindex);
            match attach::attach(object.program(program)?, program, &interface, ifindex, pin)? {
                Attached::New(link) => {
                    tracing::info!(network = network.name, interface, mode = %link.mode, "attached");
                    links.push(link);
                }
                Attached::TookOver => {
                    tracing::info!(
                        network = network.name,
                        interface,
                        "took over the running link"
                    );
                }
            }
        }
    }
    Ok(links)
}

/// Removes links and cells of networks that are no longer configured, and of NICs that are gone.
fn remove_stale(config: &Config, pins: &Pins, places: &BTreeMap<String, Place>) -> Result<()> {
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
    for cell in namespace::list(&cell::prefix(pins.instance()))? {
        let wanted = |network: &config::Network| cell::name(pins.instance(), &network.name) == cell;
        if !config.networks.iter().any(wanted) {
            cell::remove(&cell)?;
        }
    }
    Ok(())
}

/// The backends' addresses in a network: what its cell must resolve.
fn neighbours(desired: &Desired, network: u16) -> BTreeSet<Ipv4Addr> {
    let backends = desired
        .backends
        .iter()
        .filter(|(_, backend)| backend.network == network);
    backends
        .map(|(_, backend)| Ipv4Addr::from(backend.address))
        .collect()
}

/// Keeps the text of the applied configuration, so that other processes know the names behind the
/// ids. Written beside and renamed, so that it is never half a file.
fn save(text: &str, pins: &Pins) -> Result<()> {
    let path = pins.runtime().join("applied.yaml");
    let beside = pins.runtime().join("applied.yaml.new");
    let mut file =
        fs::File::create(&beside).with_context(|| format!("create {}", beside.display()))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, &path).with_context(|| format!("rename to {}", path.display()))
}
