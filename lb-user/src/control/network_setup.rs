//! Where the networks are: their cells beside their NICs, and what is left of places that are used no more.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    fs,
    net::IpAddr,
};

use anyhow::{Context as _, Result};

use lb_common::{
    addr::Mac,
    maps::network::{NETWORK_GENERIC, NETWORK_PARTIAL, Network},
};

use super::{
    attach::{leaves_checksums, with_below},
    desired::Attachment,
    plan::Current,
    running::Residents,
};
use crate::{
    config::{self, Config},
    control::applied::applied,
    dataplane::{
        object::{CELL, NIC},
        pins::Pins,
    },
    host,
    model::{
        registry::{Ids, Kind},
        snat::draining,
    },
    network::{
        cell::{self, Cell},
        cell_thread::Resident,
        link::{self, Link, XdpMode},
        namespace, nic,
    },
    system::systemd,
};

/// The MTU of a NIC that nothing is known of.
const MTU: u32 = 1500;

/// The NICs of a configuration. Networks that were applied with theirs may lack it for now.
///
/// # Errors
///
/// Everything that the host refuses.
pub(crate) fn find_nics(config: &Config, pins: &Pins) -> Result<BTreeMap<String, Link>> {
    let ours = |ifindex| pins.link(NIC, ifindex).exists();
    let applied = applied(pins).ok().filter(|_| pins.exist());
    let interface = |config: &Config, name: &str| {
        let network = config.network(name)?;
        Some((network.interface.clone(), network.vlan, network.host))
    };
    let may_lack = |name: &str| {
        let known = applied
            .as_ref()
            .and_then(|applied| interface(applied, name));
        known.is_some() && known == interface(config, name)
    };
    host::interfaces(config, ours, may_lack)
}

/// The places of the networks that lack their NICs.
pub(crate) fn places_without_nics(
    config: &Config,
    nics: &BTreeMap<String, Link>,
    pins: &Pins,
    current: &Current,
    ids: &Ids,
) -> BTreeMap<String, Attachment> {
    let lack = |network: &&config::Network| !nics.contains_key(&network.name);
    let networks = config.networks.iter().filter(lack);
    let place = |name: &str| {
        let id = ids.get(Kind::Network, name);
        let id = id.and_then(|id| u16::try_from(id).ok());
        without_nic(id.and_then(|id| current.networks.get(&id)), pins)
    };
    networks
        .map(|network| (network.name.clone(), place(&network.name)))
        .collect()
}

/// Where the networks of a configuration would be that a process starts with, as far as it can be known: their cells are not
/// made yet.
pub(crate) fn places_to_come(
    config: &Config,
    nics: &BTreeMap<String, Link>,
    pins: &Pins,
) -> BTreeMap<String, Attachment> {
    let networks = config.networks.iter();
    let place = |name: &String| match nics.get(name) {
        Some(nic) => Attachment {
            nic: nic.clone(),
            is_there: true,
            cell_ifindex: 0,
            partial: false,
        },
        None => without_nic(None, pins),
    };
    networks
        .map(|network| (network.name.clone(), place(&network.name)))
        .collect()
}

/// The place of a network without its NIC, as its record has it: what a NIC that comes will change.
pub(crate) fn without_nic(record: Option<&Network>, pins: &Pins) -> Attachment {
    let has = |flag| record.is_some_and(|record| record.flags & flag != 0);
    let cell = record.map(|record| record.cell_ifindex);
    let cell = cell.filter(|cell| pins.link(CELL, *cell).exists());
    let mode = |_| match has(NETWORK_GENERIC) {
        true => XdpMode::Generic,
        false => XdpMode::Native,
    };
    Attachment {
        nic: Link {
            ifindex: 0,
            mac: record.map_or_else(Mac::default, |record| record.mac),
            mtu: record.map_or(MTU, |record| record.mtu.into()),
            up: false,
            running: false,
            carriers: 0,
            peer: None,
            xdp: record.map(mode),
            bridge: None,
        },
        is_there: false,
        cell_ifindex: cell.unwrap_or_default(),
        partial: has(NETWORK_PARTIAL),
    }
}

/// Makes the cells of the networks that have a NIC among `nics`, and finds their places. The thread in a cell
/// is started at once, whether there is a NIC or not.
pub(crate) fn build_cells(
    config: &Config,
    pins: &Pins,
    nics: &BTreeMap<String, Link>,
    ids: &Ids,
    residents: &mut Residents,
) -> Result<(BTreeMap<String, Attachment>, BTreeMap<String, Cell>)> {
    let mut places = BTreeMap::new();
    let mut cells = BTreeMap::new();
    for network in &config.networks {
        systemd::is_alive();
        if !network.host
            && let Entry::Vacant(place) = residents.entry(network.name.clone())
        {
            place.insert(Resident::start(&cell::name(
                pins.instance(),
                &network.name,
            ))?);
        }
        let Some(nic) = nics.get(&network.name) else {
            continue;
        };
        let cell_ifindex = if let Some(resident) = residents.get(&network.name) {
            let cell = cell_of(config, network, nic, pins, ids);
            let outer = build_cell(&cell, resident, pins)?;
            cells.insert(network.name.clone(), cell);
            outer.ifindex
        } else {
            0
        };
        let nic = nic.clone();
        let place = Attachment {
            partial: leaves_checksums(&network.interface, nic.ifindex)?,
            nic,
            is_there: true,
            cell_ifindex,
        };
        places.insert(network.name.clone(), place);
    }
    Ok((places, cells))
}

/// Makes a cell or brings it to what it must be; its NIC receives the groups that its addresses need.
pub(super) fn build_cell(cell: &Cell, resident: &Resident, pins: &Pins) -> Result<Link> {
    if cell.speaks_ipv6() {
        nic::hear_all_groups(&pins.runtime(), cell.nic)?;
    }
    cell.build(resident)
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
        nic: nic.ifindex,
        mac: nic.mac,
        mtu: nic.mtu,
        vlan: network.vlan,
        addresses: addresses(config, network, ids),
        checks_from: network.checks_from.clone(),
        prefixes: network.prefixes.clone(),
        routes: network.routes.clone(),
    }
}

/// The addresses that a cell answers for: VIPs and SNAT addresses, also those that only finish their flows, and those that
/// checks come from.
fn addresses(config: &Config, network: &config::Network, ids: &Ids) -> BTreeSet<IpAddr> {
    let services = config.services.iter();
    let services = services.filter(|service| service.network == network.name);
    let vips = services.flat_map(|service| service.listen.iter().map(|listen| listen.address));
    let snat = network.all_snat().map(|snat| snat.address);
    let draining = draining(config, ids).into_iter();
    let draining = draining.filter(|(name, _)| *name == network.name);
    let draining = draining.map(|(_, snat)| snat.snat.address);
    let checks = network.checks_from.iter().copied();
    vips.chain(snat).chain(draining).chain(checks).collect()
}

/// Only now that our programs run there: before, the host's stack would answer.
pub(crate) fn set_up_nics(config: &Config, places: &BTreeMap<String, Attachment>) -> Result<()> {
    for network in &config.networks {
        let place = places.get(&network.name);
        let place = place.filter(|place| place.is_there && !place.nic.up);
        if let Some(place) = place {
            link::with_netlink(async |handle| link::set_up(&handle, place.nic.ifindex).await)?;
            tracing::info!(interface = network.interface, "set up");
        }
    }
    Ok(())
}

/// Removes links of networks that are no longer configured, and of NICs that are gone.
pub(crate) fn remove_stale_links(pins: &Pins, places: &BTreeMap<String, Attachment>) -> Result<()> {
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
    nic::restore_unused(&pins.runtime(), &used)
}

/// Removes cells of networks that are no longer configured, and from those that stay what they need no
/// more.
pub(crate) fn remove_stale_cells(
    config: &Config,
    pins: &Pins,
    cells: &BTreeMap<String, Cell>,
    residents: &Residents,
) -> Result<()> {
    for (network, resident) in residents {
        if let Some(cell) = cells.get(network) {
            cell.trim(resident)?;
        }
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
