//! Maps filled from a configuration, as the control plane fills them, for interfaces that carry nothing.

use std::{collections::BTreeMap, net::IpAddr};

use anyhow::Result;
use lb_common::addr::Mac;
use lb_user::{
    config::{self, Config, Limits},
    control::{
        apply::Live,
        backend_weights::Layers,
        built_tables::BuiltTables,
        desired::{Attachment, Desired, records},
        plan::plan,
    },
    dataplane::{attach::Mode, maps::Maps, object::Object, pins::Pins, snat_ports::lots},
    model::{registry::Ids, snat::SnatSlot},
    network::{
        link::Link,
        neighbour::{NeighbourChange, Resolved},
    },
};
use tokio::{runtime::Builder, sync::mpsc};

use crate::product::{
    loaded::{CELLS, Loaded},
    program::{MGMT_NIC, TENANT_NIC, node_mac, node_mac6},
};

/// What the maps were filled with.
pub(crate) struct Filled {
    pub(crate) ids: Ids,
    pub(crate) desired: Desired,
    /// The outer ends of the networks' cells.
    pub(crate) cells: BTreeMap<String, u32>,
}

/// A configuration with limits that are enough for a test: the tables of flows are as large as the number of SNAT
/// addresses says, and take most of the time of clearing.
pub(crate) fn config(text: &str) -> Result<Config> {
    let config = config::parse("test.yaml", text)?;
    let addresses = config.networks.iter().map(|network| network.snat.len());
    let limits = Limits {
        snat_addresses: u16::try_from(addresses.sum::<usize>().max(1))?,
        services: 16,
        backends: 16,
        pools: 8,
        handed_over: config.limits.handed_over.min(1024),
    };
    Ok(Config { limits, ..config })
}

/// Fills empty maps; free ids are in order. Next hops are known if `resolve`, and checksums may be left to the
/// interface where a mode is given for that.
pub(crate) fn fill(
    loaded: &Loaded,
    pins: &Pins,
    config: &Config,
    resolve: bool,
    partial: Option<Mode>,
) -> Result<Filled> {
    let (places, cells) = places(loaded, config, partial.is_some());
    let mut ids = Ids::default();
    let mut desired = records(config, &places, &mut ids)?;
    let mut built = BuiltTables::default();
    desired.add_tables(config, &Layers::default(), &ids, &mut built)?;
    desired.run_in(partial.unwrap_or(Mode::Native));
    let mut live = Live::new(Maps::open(&pins.maps())?);
    live.save_ids(&ids)?;
    live.make_hash_key()?;
    live.follow(desired.next_hops.clone());
    let plan = plan(&live.current(&ids)?, &desired);
    let (report, mut resolved) = mpsc::unbounded_channel();
    for (id, backend) in desired.backends.iter().filter(|_| resolve) {
        let address = desired.next_hops[id];
        report.send(NeighbourChange::Resolved(Resolved {
            network: backend.network,
            address,
            mac: match address {
                IpAddr::V4(address) => node_mac(address),
                IpAddr::V6(address) => node_mac6(address),
            },
        }))?;
    }
    drop(report);
    let runtime = Builder::new_current_thread().enable_time().build()?;
    runtime.block_on(live.apply(plan, &ids, &loaded.object, &mut resolved))?;
    let mut maps = Maps::open(&pins.maps())?;
    for snat in &desired.snat {
        put_in_order(&mut maps, &loaded.object, snat)?;
    }
    Ok(Filled {
        ids,
        desired,
        cells,
    })
}

/// Where each network is, and the outer ends of the cells.
fn places(
    loaded: &Loaded,
    config: &Config,
    partial: bool,
) -> (BTreeMap<String, Attachment>, BTreeMap<String, u32>) {
    let place = |nic: u32, cell_ifindex: u32, mac: Mac| Attachment {
        nic: Link {
            ifindex: nic,
            mac,
            mtu: 1500,
            up: true,
            running: true,
            carriers: 1,
            peer: None,
            xdp: None,
            bridge: None,
        },
        is_there: true,
        cell_ifindex,
        partial,
    };
    let mut places = BTreeMap::new();
    let mut cells = BTreeMap::new();
    for (network, outer) in config.networks.iter().zip(CELLS) {
        let (nic, mac) = match network.interface.as_str() {
            "eth0" => ("t0", TENANT_NIC),
            "eth2" => ("n0", MGMT_NIC),
            _ => ("m0", MGMT_NIC),
        };
        let cell = if network.host {
            0
        } else {
            loaded.ifindex[outer]
        };
        cells.insert(network.name.clone(), cell);
        places.insert(network.name.clone(), place(loaded.ifindex[nic], cell, mac));
    }
    (places, cells)
}

/// Gives a SNAT address its ids and their ports anew, in the order of the ports: a test knows which one comes next.
fn put_in_order(maps: &mut Maps, object: &Object, snat: &SnatSlot) -> Result<()> {
    let count = snat.snat.ports;
    let lots: Vec<u16> = (0..count).map(|port| lot(port, count)).collect();
    let first = snat.flow_ids().start;
    let ids: Vec<u32> = lots.iter().map(|lot| first + u32::from(*lot)).collect();
    give(maps, object, snat, (&lots, &ids))
}

/// The id of a port in a test, both counted from the first of their address, which has `count`: two neighbours have each
/// other's, so that neither is taken for the other.
pub(crate) const fn lot(port: u16, count: u16) -> u16 {
    let other = port ^ 1;
    if other < count { other } else { port }
}

/// Gives a SNAT address its ids in a row, whose ports are drawn by lot, as `lb` does.
pub(crate) fn draw(maps: &mut Maps, object: &Object, snat: &SnatSlot) -> Result<()> {
    let in_a_row: Vec<u32> = snat.flow_ids().collect();
    give(maps, object, snat, (&lots(snat.snat.ports)?, &in_a_row))
}

/// Gives its ports their ids, and its queue ids in an order.
fn give(
    maps: &mut Maps,
    object: &Object,
    snat: &SnatSlot,
    (lots, ids): (&[u16], &[u32]),
) -> Result<()> {
    maps.snat_ports.assign(&snat.address(), lots);
    maps.set_free_ids(snat.slot.into(), u32::try_from(ids.len())?)?;
    object.fill(snat.slot, ids)
}
