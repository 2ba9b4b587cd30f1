//! What a configuration puts into the maps at a first start, as far as they take memory for it. Pure: neither the host nor
//! a data plane is looked at.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use ipnet::IpNet;
use lb_common::{addr::Mac, maps::counts::block};

use super::{
    apply::counted,
    backend_weights::{BackendStatus, Layers},
    built_tables::BuiltTables,
    cell_peers,
    desired::{Attachment, Desired, records},
};
use crate::{
    config::Config,
    dataplane::footprint::{InnerShape, MapContents},
    health::HealthVerdict,
    model::{
        maglev,
        registry::{Ids, Kind},
    },
    network::link::Link,
};

/// What is in the maps when `config` has been applied to new ones, and no flow has come yet, with all
/// backends up. Names that clusters of Kubernetes will add are not there.
///
/// # Errors
///
/// If it does not fit into its own limits.
pub fn map_contents(config: &Config) -> Result<MapContents> {
    let mut ids = Ids::new(Some(config.limits.room().pools));
    let mut desired = records(config, &places(config), &mut ids)?;
    desired.add_tables(config, &all_up(config), &ids, &mut BuiltTables::default())?;
    Ok(MapContents {
        entries: entries(config, &desired, &ids),
        inner: BTreeMap::from([
            ("COUNTS", vec![InnerShape::Counts; blocks(&ids)]),
            ("FREE_IDS", free_ids(&desired)),
            ("MAGLEV", tables(&desired)?),
            ("RINGS", rings(&desired)),
        ]),
    })
}

/// The status of backends of which all are up: a table is of its whole size then.
fn all_up(config: &Config) -> Layers {
    let up = BackendStatus {
        verdict: HealthVerdict::Up,
        ..BackendStatus::default()
    };
    Layers::new(config, |_, _| up)
}

/// A place on a host for each network, of which no other has the interface or its MAC.
fn places(config: &Config) -> BTreeMap<String, Attachment> {
    let networks = (1..).step_by(2).zip(&config.networks);
    let places = networks.map(|(ifindex, network): (u32, _)| {
        let [_, _, high, low] = ifindex.to_be_bytes();
        let nic = Link {
            ifindex,
            mac: Mac::new([2, 0, 0, 0, high, low]),
            mtu: 1500,
            up: true,
            running: true,
            carriers: 1,
            peer: None,
            xdp: None,
            bridge: None,
        };
        let place = Attachment {
            nic,
            is_there: true,
            cell_ifindex: if network.host { 0 } else { ifindex + 1 },
            partial: false,
        };
        (network.name.clone(), place)
    });
    places.collect()
}

/// Entries of the maps that have keys.
fn entries(config: &Config, desired: &Desired, ids: &Ids) -> BTreeMap<&'static str, u64> {
    let rules = desired.rules.values().flat_map(|rules| rules.keys());
    let (rules, rules6): (Vec<&IpNet>, Vec<&IpNet>) =
        rules.partition(|prefix| prefix.addr().is_ipv4());
    let registered = Kind::REGISTERED.into_iter();
    let registered = registered.map(|kind| ids.of(kind).count());
    [
        ("ADDRESSES", desired.addresses.len()),
        ("LABELS", ids.of(Kind::Label).count()),
        ("LOCAL_PEERS", cell_peers::wanted(config, ids).len()),
        ("NETWORK_IDS", desired.network_ids.len()),
        ("REGISTRY", registered.sum()),
        ("RULES", rules.len()),
        ("RULES6", rules6.len()),
        ("SERVER_NAMES", desired.names.len()),
        ("SERVICES", desired.services.len()),
    ]
    .into_iter()
    .map(|(name, count)| (name, count as u64))
    .collect()
}

fn blocks(ids: &Ids) -> usize {
    let blocks: BTreeSet<u32> = counted(ids).map(block).collect();
    blocks.len()
}

fn free_ids(desired: &Desired) -> Vec<InnerShape> {
    let ports = desired.snat.iter().map(|slot| slot.snat.ports);
    ports
        .map(|ports| InnerShape::FreeIds(ports.into()))
        .collect()
}

fn rings(desired: &Desired) -> Vec<InnerShape> {
    let places = desired.rings.iter().map(|(_, places)| *places);
    places.map(InnerShape::Ring).collect()
}

fn tables(desired: &Desired) -> Result<Vec<InnerShape>> {
    let tables = desired.tables.iter().map(|(_, table)| {
        Ok(InnerShape::Table {
            size: u32::try_from(table.len())?,
            backends: u32::try_from(maglev::members([table]).len())?,
        })
    });
    tables.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20, fd00:96::/64], snat: [10.32.96.50, { address: fd00:96::50, ports: 2000-2999 }] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24, fd00:203::/64], half_open: 100, udp_flows: 70 }
pools:
  one: { network: mgmt, backends: [\"10.32.96.105:1\", \"10.32.96.106:1\", \"10.32.96.107:1\"], health: { tcp: {} } }
  six: { network: mgmt, backends: [\"[fd00:96::105]:1\"], balance: round-robin }
services:
  a: { network: tenant-a, listen: [\"192.168.203.110:1/tcp\", \"192.168.203.110:2/tcp\"], pool: one, allow: [192.168.203.0/25, 192.168.203.200/32] }
  b: { network: tenant-a, listen: [\"[fd00:203::110]:1/tcp\"], pool: six }
";

    fn contents(text: &str) -> MapContents {
        map_contents(&config::parse("f", text).unwrap()).unwrap()
    }

    #[test]
    fn what_a_first_start_makes_is_counted() {
        let MapContents { entries, inner } = contents(CONFIG);
        let expected = [
            // Two SNAT addresses, two VIPs, two cells.
            ("ADDRESSES", 6),
            ("LABELS", 5),
            ("LOCAL_PEERS", 3),
            ("NETWORK_IDS", 4),
            ("REGISTRY", 2 + 2 + 4 + 2 + 2),
            // Prefix, network and broadcast address of both as sources; as destinations mgmt has its own and those of
            // the tenant, the tenant its own; and two of the service.
            ("RULES", 3 + 3 + 2 + 1 + 2),
            ("RULES6", 2 + 2 + 2 + 1),
            ("SERVER_NAMES", 0),
            ("SERVICES", 3),
        ];
        assert_eq!(entries, BTreeMap::from(expected));
        let table = |size, backends| InnerShape::Table { size, backends };
        let rings = [8192, 8192, 100, 70].map(InnerShape::Ring);
        let expected = [
            // Of networks, of backends, of services.
            ("COUNTS", vec![InnerShape::Counts; 3]),
            ("FREE_IDS", [56_320, 1000].map(InnerShape::FreeIds).to_vec()),
            ("MAGLEV", vec![table(509, 3), table(1, 1)]),
            ("RINGS", rings.to_vec()),
        ];
        assert_eq!(inner, BTreeMap::from(expected));
    }

    /// A block of counters has 64 backends or 8 services, and ids begin at 1.
    #[test]
    fn blocks_of_counters_are_those_of_the_ids() {
        let blocks = |backends: u32| {
            let more = (1..=backends).map(|port| format!("\"10.32.96.105:{port}\""));
            let more: Vec<String> = more.collect();
            let text = CONFIG.replace(
                "\"10.32.96.105:1\", \"10.32.96.106:1\", \"10.32.96.107:1\"",
                &more.join(", "),
            );
            contents(&text).inner["COUNTS"].len()
        };
        // Another one is that of the pool six.
        assert_eq!([62, 63].map(blocks), [3, 4]);
    }
}
