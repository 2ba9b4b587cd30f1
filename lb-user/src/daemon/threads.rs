//! The threads of each network: next hops, checks, shared VIPs.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use tokio::sync::{
    mpsc::{self, UnboundedSender},
    watch,
};

use super::group_secret;
use crate::{
    config::{self, Config},
    control::{
        apply::Live,
        checks::Checks,
        desired::{Attachment, Desired},
        running::{Neighbours, Running},
    },
    dataplane::{cookies::Cookies, pins::Pins},
    flows::keepalive::next_hops::{NextHop, NextHops},
    ha::thread::BoxPair,
    model::registry::{Ids, Kind},
    network::{
        cell,
        neighbour::{self, Inquiry, MAX_INQUIRIES, NeighbourChange, Side},
    },
    proxy::{Acceptors, Accounts, Listeners, NetworkSide, PortLeases, Tables},
};

/// Starts a thread for each network that keeps its next hops.
pub(super) fn resolve(
    config: &Config,
    desired: &Desired,
    ids: &Ids,
    pins: &Pins,
    report: &UnboundedSender<NeighbourChange>,
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

/// Starts the threads of each network that serve its shared VIPs.
pub(super) fn front(
    config: &Config,
    ids: &Ids,
    pins: &Pins,
    live: &Live,
    accounts: &Accounts,
    listeners: Listeners,
) -> Result<Acceptors> {
    let mut sides = BTreeMap::new();
    let tables = Tables::open(&pins.maps())?;
    for network in &config.networks {
        let side = side(network, pins);
        let leases = match side.cell {
            Some(_) => {
                let (maps, tables) = (live.beside(&pins.maps())?, tables.clone());
                let shares = accounts.shares.clone();
                Some(PortLeases::new(&network.name, tables, maps, shares))
            }
            None => None,
        };
        let id = ids.get(Kind::Network, &network.name).unwrap_or_default();
        let id = u16::try_from(id)?;
        sides.insert(network.name.clone(), NetworkSide { id, side, leases });
    }
    let cookies = Cookies::open(&pins.maps(), group_secret::read(config, pins)?)?;
    Acceptors::start(sides, accounts, listeners, cookies, &pins.maps())
}

/// Starts the sessions with the other box, if the configuration has one.
pub(super) fn pair(running: &Running) -> Result<Option<BoxPair>> {
    let Some(ha) = &running.config().ha else {
        return Ok(None);
    };
    let folder = running.pins().maps();
    let maps = running.data_plane.live.beside(&folder)?;
    BoxPair::start(ha, &folder, maps, running.ha_view()).map(Some)
}

/// Starts a thread for each network that checks its backends.
pub(super) fn check(
    config: &Config,
    places: &BTreeMap<String, Attachment>,
    ids: &Ids,
    pins: &Pins,
    neighbours: &BTreeMap<u16, Neighbours>,
    checks: &mut Checks,
) -> Result<()> {
    for network in &config.networks {
        let place = places.get(&network.name);
        let nic = place.map_or(0, |place| place.nic.ifindex);
        let id = ids.get(Kind::Network, &network.name).unwrap_or_default();
        let neighbours = neighbours.get(&u16::try_from(id)?);
        let neighbours = neighbours.context(
            "the thread that follows the network's neighbours is not there: please report it",
        )?;
        let questions = neighbours.questions.clone();
        checks.start(&network.name, side(network, pins), nic, questions)?;
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
