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
    config::Config,
    dataplane::{
        attach,
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
}

/// Brings the data plane of `pins` to what `config` says. What an earlier process left is adopted;
/// where nothing was left, a failure leaves nothing behind.
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
    let ours = |interface: &str| pins.link(NIC, interface).exists();
    let result = host::interfaces(config, ours)
        .and_then(|nics| bring_up(config, pins, &nics, log_level, runtime));
    match &result {
        Ok(_) => save(text, pins)?,
        Err(_) if !adopted => {
            if let Err(error) = remove(pins) {
                tracing::error!("cleaning up after the failed start: {error:#}");
            }
        }
        Err(_) => {}
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
    attach_all(&config, pins, &places, &mut object)?;
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
    Ok(Running {
        live,
        resolved,
        object,
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

fn attach_all(
    config: &Config,
    pins: &Pins,
    places: &BTreeMap<String, Place>,
    object: &mut Object,
) -> Result<()> {
    for network in &config.networks {
        let Some(place) = places.get(&network.name) else {
            continue;
        };
        let outer = cell::outer(place.nic.ifindex);
        let pin = pins.link(CELL, &outer);
        attach::attach(
            object.program(CELL)?,
            CELL,
            &outer,
            place.cell_ifindex,
            &pin,
        )?;
    }
    for network in &config.networks {
        let Some(place) = places.get(&network.name) else {
            continue;
        };
        let interface = &network.interface;
        let pin = pins.link(NIC, interface);
        let mode = attach::attach(
            object.program(NIC)?,
            NIC,
            interface,
            place.nic.ifindex,
            &pin,
        )?;
        match mode {
            Some(mode) => tracing::info!(network = network.name, interface, %mode, "attached"),
            None => tracing::info!(
                network = network.name,
                interface,
                "took over the running link"
            ),
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
