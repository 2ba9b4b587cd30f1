//! desired: the validated configuration, with ids and facts of the host, as records of the maps.

use std::{collections::BTreeMap, net::Ipv4Addr};

use anyhow::{Context as _, Result, ensure};
use lb_common::{
    addr::{Be16, Be32, Mac},
    maglev::{self, Member},
    maps::{
        MAX_NETWORKS,
        backend::Backend,
        network::{
            Address, AddressKey, KIND_SNAT, KIND_VIP, MAX_SNAT_PER_NETWORK, Network, NetworkKey,
            ROLE_MGMT, ROLE_TENANT,
        },
        service::{Service, ServiceKey},
        snat::{FIRST_FLOW_PORT, FLOWS_PER_ADDRESS, base},
    },
};

use super::ids::{Ids, Kind};
use crate::{
    config::{self, Config, Protocol, Role},
    network::link::Link,
};

/// Where a network is on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its NIC.
    pub nic: Link,
    /// Index of the outer end of its cell.
    pub cell_ifindex: u32,
}

/// A SNAT address and the slot that holds its ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnatSlot {
    /// Index of its queue of free ids.
    pub slot: u16,
    /// The address.
    pub address: Ipv4Addr,
}

/// What the maps must hold. Lists are in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Networks by id.
    pub networks: Vec<(u16, Network)>,
    /// NICs and outer ends of cells.
    pub network_ids: Vec<(NetworkKey, u32)>,
    /// SNAT addresses.
    pub snat: Vec<SnatSlot>,
    /// VIPs and SNAT addresses.
    pub addresses: Vec<(AddressKey, Address)>,
    /// Backends by id; the next hop is not part of it.
    pub backends: Vec<(u32, Backend)>,
    /// Maglev tables by pool id.
    pub tables: Vec<(u32, Vec<u32>)>,
    /// Services by listening VIP and port.
    pub services: Vec<(ServiceKey, Service)>,
}

/// Builds the records of `config`; `places` has every network of it by name. New names get ids.
///
/// # Errors
///
/// If ids run out: the limits of a running data plane are those of its first start.
pub fn desired(
    config: &Config,
    places: &BTreeMap<String, Place>,
    ids: &mut Ids,
) -> Result<Desired> {
    let mut desired = Desired::default();
    for network in &config.networks {
        let place = places
            .get(&network.name)
            .with_context(|| format!("network {} has no place on this host", network.name))?;
        desired.add_network(network, place, config, ids)?;
    }
    for pool in &config.pools {
        desired.add_pool(pool, config, ids)?;
    }
    for service in &config.services {
        desired.add_service(service, config, ids)?;
    }
    Ok(desired)
}

impl Desired {
    fn add_network(
        &mut self,
        network: &config::Network,
        place: &Place,
        config: &Config,
        ids: &mut Ids,
    ) -> Result<()> {
        let id = network_id(ids, &network.name)?;
        ensure!(
            network.snat.len() <= MAX_SNAT_PER_NETWORK,
            "network {} has {} SNAT addresses; {MAX_SNAT_PER_NETWORK} are possible",
            network.name,
            network.snat.len()
        );
        let mut snat_slots = [0; MAX_SNAT_PER_NETWORK];
        for (&address, place) in network.snat.iter().zip(&mut snat_slots) {
            let name = format!("{}/{address}", network.name);
            let most = u32::from(config.limits.snat_addresses);
            let slot = u16::try_from(ids.assign(Kind::Snat, &name, most)? - 1)?;
            *place = u8::try_from(slot)?;
            self.snat.push(SnatSlot { slot, address });
            self.addresses.push((
                AddressKey {
                    address: address.into(),
                    network: id,
                    _reserved: 0,
                },
                Address {
                    kind: KIND_SNAT,
                    base: base(slot),
                    first_port: FIRST_FLOW_PORT,
                    count: FLOWS_PER_ADDRESS,
                },
            ));
        }
        let record = Network {
            ifindex: place.nic.ifindex,
            cell_ifindex: place.cell_ifindex,
            mac: place.nic.mac,
            vlan: 0,
            role: match network.role {
                Role::Mgmt => ROLE_MGMT,
                Role::Tenant => ROLE_TENANT,
            },
            snat_count: u32::try_from(network.snat.len())?,
            snat_slots,
        };
        self.networks.push((id, record));
        for ifindex in [place.nic.ifindex, place.cell_ifindex] {
            self.network_ids.push((
                NetworkKey {
                    ifindex,
                    vlan: 0,
                    _reserved: 0,
                },
                u32::from(id),
            ));
        }
        Ok(())
    }

    fn add_pool(&mut self, pool: &config::Pool, config: &Config, ids: &mut Ids) -> Result<()> {
        let pool_id = ids.assign(Kind::Pool, &pool.name, config.limits.pools)?;
        let network = network_id(ids, &pool.network)?;
        let mut members = Vec::new();
        for backend in &pool.backends {
            let name = backend_name(&pool.name, backend);
            let id = ids.assign(Kind::Backend, &name, config.limits.backends)?;
            let record = Backend {
                address: backend.address.into(),
                port: Be16::new(backend.port),
                network,
                next_hop: Mac::default(),
                _reserved: 0,
            };
            self.backends.push((id, record));
            members.push(Member {
                id,
                weight: backend.weight,
                name,
            });
        }
        self.tables.push((pool_id, maglev::build(&members)));
        Ok(())
    }

    fn add_service(
        &mut self,
        service: &config::Service,
        config: &Config,
        ids: &mut Ids,
    ) -> Result<()> {
        let network = network_id(ids, &service.network)?;
        let id =
            u16::try_from(ids.assign(Kind::Service, &service.name, config.limits.services)?)?;
        let pool = ids.assign(Kind::Pool, &service.pool, config.limits.pools)?;
        let backend_network = config
            .pool(&service.pool)
            .map_or("", |pool| pool.network.as_str());
        let record = Service {
            pool,
            id,
            backend_network: network_id(ids, backend_network)?,
        };
        for listen in &service.listen {
            let key = ServiceKey {
                vip: listen.address.into(),
                port: Be16::new(listen.port),
                network,
                protocol: u32::from(protocol_number(listen.protocol)),
            };
            self.services.push((key, record));
            let vip = AddressKey {
                address: Be32::from(listen.address),
                network,
                _reserved: 0,
            };
            if !self.addresses.iter().any(|(key, _)| *key == vip) {
                self.addresses.push((
                    vip,
                    Address {
                        kind: KIND_VIP,
                        ..Default::default()
                    },
                ));
            }
        }
        Ok(())
    }
}

/// The registry's name of a backend: under another address it is another backend, because its flows
/// cannot follow it there; under another port it is the same.
pub fn backend_name(pool: &str, backend: &config::Backend) -> String {
    format!("{pool}/{}@{}", backend.name, backend.address)
}

/// The IP protocol number.
pub const fn protocol_number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

fn network_id(ids: &mut Ids, name: &str) -> Result<u16> {
    Ok(u16::try_from(ids.assign(
        Kind::Network,
        name,
        MAX_NETWORKS - 1,
    )?)?)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::control) const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas-a: { network: mgmt, backends: [\"10.32.96.105:30918\", { address: \"10.32.96.106:30918\", weight: 3 }] }
services:
  api-a: { network: tenant-a, listen: [\"192.168.203.110:6443/tcp\", \"192.168.203.110:6443/udp\"], pool: kas-a }
";

    pub(in crate::control) fn places() -> BTreeMap<String, Place> {
        let place = |ifindex: u32| Place {
            nic: Link {
                ifindex,
                mac: Mac::new([2, 0, 0, 0, 0, 1]),
                mtu: 1500,
                up: true,
                peer: None,
                xdp: None,
            },
            cell_ifindex: ifindex + 10,
        };
        BTreeMap::from([
            ("mgmt".to_owned(), place(2)),
            ("tenant-a".to_owned(), place(3)),
        ])
    }

    pub(in crate::control) fn build(text: &str, ids: &mut Ids) -> Desired {
        desired(&config::parse("test.yaml", text).unwrap(), &places(), ids).unwrap()
    }

    #[test]
    fn a_configuration_becomes_records() {
        let mut ids = Ids::default();
        let desired = build(CONFIG, &mut ids);
        assert_eq!(desired.networks.len(), 2);
        assert_eq!(desired.network_ids.len(), 4);
        assert_eq!(
            desired.snat,
            [SnatSlot {
                slot: 0,
                address: Ipv4Addr::new(10, 32, 96, 50)
            }]
        );
        assert_eq!(
            desired.addresses.len(),
            2,
            "one SNAT address, one VIP for two listeners"
        );
        assert_eq!(desired.services.len(), 2);
        let (_, service) = desired.services[0];
        assert_eq!(
            Some(u32::from(service.backend_network)),
            ids.get(Kind::Network, "mgmt")
        );
        let (_, table) = &desired.tables[0];
        let heavy = ids
            .get(Kind::Backend, "kas-a/10.32.96.106:30918@10.32.96.106")
            .unwrap();
        let share = table.iter().filter(|&&id| id == heavy).count() * 100 / table.len();
        assert!((74..=76).contains(&share), "{share} %");
    }

    #[test]
    fn the_order_of_the_file_changes_no_id() {
        let mut ids = Ids::default();
        let before = build(CONFIG, &mut ids);
        let reordered = CONFIG.replace(
            "  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }",
            "  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }",
        );
        assert_ne!(reordered, CONFIG);
        let after = build(&reordered, &mut ids);
        assert_eq!(before.services, after.services);
        assert_eq!(before.tables, after.tables);
        assert_eq!(before.networks.len(), after.networks.len());
        assert!(
            after
                .networks
                .iter()
                .all(|network| before.networks.contains(network))
        );
    }
}
