//! The validated configuration, with ids and facts of the host, as records of the maps.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use anyhow::{Context as _, Result, ensure};
use indexmap::IndexMap;
use lb_common::{
    addr::{Be16, Be32, Mac},
    maps::{
        MAX_CLONE_NICS, MAX_NETWORKS, MAX_SERVER_NAMES,
        backend::Backend,
        half_open,
        network::{
            Address, AddressKey, KIND_LINK, KIND_QUIET, KIND_SNAT, KIND_VIP, MAX_SNAT_PER_NETWORK,
            NETWORK_AT_ONCE, NETWORK_EVENTS, NETWORK_GENERIC, NETWORK_HOST, NETWORK_PARTIAL,
            NETWORK_REJECT, Network, NetworkKey, ROLE_MGMT, ROLE_TENANT, ROLE_UPLINK,
        },
        quota,
        rule::Owner,
        server_name::{NameKey, PoolRoute},
        service::{
            SERVICE_BINDS, SERVICE_CELL, SERVICE_COOKIES, SERVICE_COOKIES_IN_FLOODS,
            SERVICE_REJECT, Service, ServiceKey,
        },
    },
};

use super::{backend_weights::Layers, built_tables::BuiltTables, rule_sets, server_names};
use crate::{
    config::{self, Config, Role, SecondSegment, SynCookies, TCP_IP_BYTES, Target},
    dataplane::attach::Mode,
    model::{
        ha_role::HaRole,
        maglev::MaglevTable,
        names::{backend_name, parse_backend, protocol_number},
        registry::{Ids, Kind},
        rules::Rules,
        snat::{SnatSlot, draining, snat_name},
    },
    network::{cell, link::Link},
};

/// Where a network is on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// Its NIC, or that of before while there is none.
    pub nic: Link,
    /// Whether the NIC is there.
    pub is_there: bool,
    /// Index of the outer end of its cell; 0 for a network without one.
    pub cell_ifindex: u32,
    /// Whether frames may come from a kernel's stack that leaves their checksums to the interface.
    pub partial: bool,
}

/// What the maps must hold. Lists are in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Networks by id.
    pub networks: Vec<(u16, Network)>,
    /// NICs and outer ends of cells.
    pub network_ids: Vec<(NetworkKey, u32)>,
    /// SNAT addresses of this box, which new flows have.
    pub snat: Vec<SnatSlot>,
    /// Those of other boxes: they have no queue of free ids.
    pub peer_snat: Vec<SnatSlot>,
    /// VIPs, SNAT addresses and link-local ones of cells, also those that only finish their flows.
    pub addresses: HashMap<AddressKey, Address>,
    /// What the box is among those that have one service.
    pub role: HaRole,
    /// The addresses that it has only while it is active: VIPs, and SNAT addresses of all boxes. While it is standby they are
    /// not in `addresses`, and all else is as it is when it is active. None where it is alone.
    pub of_active: HashMap<AddressKey, Address>,
    /// Places of each ring of flows, by its index.
    pub rings: Vec<(u32, u32)>,
    /// The bank of each SNAT address, by its slot; 0 of other boxes, whose ports are no part of what networks share here.
    pub banks: Vec<(u16, u32)>,
    /// Limits of quotas, by their index; the others have none.
    pub quotas: Vec<(u32, u32)>,
    /// Rule sets by owner, none of them empty. Records point to none yet.
    pub rules: BTreeMap<Owner, Rules>,
    /// Backends by id; the next hop's MAC is not part of it.
    pub backends: Vec<(u32, Backend)>,
    /// Address of each backend's next hop: its own, or its gateway's.
    pub next_hops: BTreeMap<u32, IpAddr>,
    /// Maglev tables by pool id, or the number of the pool's other table.
    pub tables: Vec<(u32, MaglevTable)>,
    /// Tables of these pools that nothing shall go by.
    pub stale_tables: Vec<u32>,
    /// Network and address of next hops of backends that are configured no more.
    pub retired_hops: Vec<(u16, IpAddr)>,
    /// Names that the data plane knows, by service.
    pub names: HashMap<NameKey, PoolRoute>,
    /// Services whose names there is no room for, so that the process opens their connections; and how many entries each needs.
    pub without_names: Vec<(String, usize)>,
    /// Services by listening VIP and port.
    pub services: IndexMap<ServiceKey, Service>,
}

/// An address that checks come from and that no flow has: all of its ports are sockets' of the cell.
const CHECKS_FROM: Address = Address {
    kind: KIND_SNAT,
    base: 0,
    first_port: 0,
    count: 0,
};

/// Builds the records of `config` but for the tables of its pools; `places` has every network of it by name. New names get
/// ids.
///
/// # Errors
///
/// If ids run out: the limits of a running data plane are those of its first start. If an address
/// that still finishes flows is to be something else.
pub fn records(
    config: &Config,
    places: &BTreeMap<String, Attachment>,
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
    desired.add_quotas(config, ids)?;
    desired.add_draining(config, ids)?;
    desired.add_retired_backends(config, ids);
    Ok(desired)
}

impl Desired {
    /// Adds the tables of the pools of `config`, whose names have ids.
    ///
    /// # Errors
    ///
    /// If one has none.
    pub fn add_tables(
        &mut self,
        config: &Config,
        layers: &Layers,
        ids: &Ids,
        built: &mut BuiltTables,
    ) -> Result<()> {
        for pool in &config.pools {
            let id = ids.get(Kind::Pool, &pool.name);
            let id = id.with_context(|| format!("pool {} has no id", pool.name))?;
            self.tables
                .push((id, built.table(pool, config, layers, ids)?));
        }
        built.forget_all_but(config);
        Ok(())
    }

    /// Holds back what a box in this `role` does not have. To be called when all addresses are there.
    pub fn take_role(&mut self, role: HaRole) {
        self.role = role;
        if role != HaRole::Alone {
            let addresses = self.addresses.iter();
            let of_active = addresses.filter(|(_, address)| address.is_of_active());
            self.of_active = of_active.map(|(key, address)| (*key, *address)).collect();
        }
        if role == HaRole::Standby {
            self.addresses
                .retain(|key, _| !self.of_active.contains_key(key));
        }
    }

    /// Has segments of no flow have no answer at the addresses of the active box.
    pub fn be_quiet(&mut self) {
        for (key, address) in &mut self.addresses {
            if self.of_active.contains_key(key) {
                address.kind |= KIND_QUIET;
            }
        }
    }

    /// The VIPs, also those that are held back.
    pub fn vips(&self) -> impl Iterator<Item = AddressKey> {
        let all = self.addresses.iter().chain(&self.of_active);
        all.filter_map(|(key, address)| address.is_vip().then_some(*key))
    }

    fn add_network(
        &mut self,
        network: &config::Network,
        place: &Attachment,
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
        let mut snat_slots = [[0; 16]; MAX_SNAT_PER_NETWORK / 16];
        let mut snat_set = [0; MAX_SNAT_PER_NETWORK / 64];
        let snat = network.snat.iter().copied();
        let (ipv4, ipv6): (Vec<_>, Vec<_>) = snat.partition(|snat| snat.address.is_ipv4());
        let from_end = MAX_SNAT_PER_NETWORK - ipv6.len();
        let places = (0..ipv4.len()).chain(from_end..MAX_SNAT_PER_NETWORK);
        for (snat, place) in ipv4.iter().chain(&ipv6).zip(places) {
            let snat = snat_slot(network, snat, config, ids)?;
            if let Some(place) = snat_slots.as_flattened_mut().get_mut(place) {
                *place = u8::try_from(snat.slot)?;
            }
            if let Some(set) = snat_set.get_mut(usize::from(snat.slot) / 64) {
                *set |= 1u64 << (snat.slot % 64);
            }
            self.snat.push(snat);
            self.banks
                .push((snat.slot, quota::bank(id, snat.snat.address.is_ipv6())));
            self.add_address(id, snat.record, snat.address());
        }
        for snat in &network.peer_snat {
            let snat = snat_slot(network, snat, config, ids)?;
            self.peer_snat.push(snat);
            self.banks.push((snat.slot, 0));
            self.add_address(id, snat.record, snat.address());
        }
        for address in &network.checks_from {
            self.add_address(id, ids.give(*address)?, CHECKS_FROM);
        }
        let vlan = network.vlan.unwrap_or(0);
        let mtu = u16::try_from(place.nic.mtu).unwrap_or(u16::MAX);
        let most = mtu.saturating_sub(TCP_IP_BYTES);
        self.networks.push((
            id,
            Network {
                ifindex: if place.is_there { place.nic.ifindex } else { 0 },
                cell_ifindex: place.cell_ifindex,
                mac: place.nic.mac,
                vlan,
                role: match network.role {
                    Role::Mgmt => ROLE_MGMT,
                    Role::Tenant => ROLE_TENANT,
                    Role::Uplink => ROLE_UPLINK,
                },
                flags: network_flags(network, place, config)
                    | Network::snat6(u16::try_from(ipv6.len())?),
                budget: network.max_flows.unwrap_or(0),
                mtu,
                // What is configured fits at a start, but the NIC may have become narrower since.
                mss: network.mss.unwrap_or(u16::MAX).min(most),
                snat_count: u32::try_from(ipv4.len())?,
                snat_slots,
                snat_set,
                ..Network::default()
            },
        ));
        self.add_link(network, place, id, ids)?;
        for (udp, places) in [(false, network.half_open), (true, network.udp_flows)] {
            self.rings.push((half_open::index(id, udp), places));
        }
        if place.is_there {
            self.map_network(place.nic.ifindex, vlan, id);
        }
        if place.cell_ifindex != 0 {
            self.map_network(place.cell_ifindex, 0, id);
        }
        self.add_rules(Owner::Sources(id), rule_sets::sources(network));
        let destinations = rule_sets::destinations(network, &config.networks);
        self.add_rules(Owner::Destinations(id), destinations);
        Ok(())
    }

    /// The cell's own address, if it has IPv6: neighbours answer to it.
    fn add_link(
        &mut self,
        network: &config::Network,
        place: &Attachment,
        id: u16,
        ids: &mut Ids,
    ) -> Result<()> {
        if network.has_ipv6() && !network.host && !place.nic.mac.is_none() {
            let address = ids.give(cell::link_local(place.nic.mac).into())?;
            let link = Address {
                kind: KIND_LINK,
                ..Address::default()
            };
            self.add_address(id, address, link);
        }
        Ok(())
    }

    fn map_network(&mut self, ifindex: u32, vlan: u16, id: u16) {
        let key = NetworkKey {
            ifindex,
            vlan,
            _reserved: 0,
        };
        self.network_ids.push((key, u32::from(id)));
    }

    fn add_rules(&mut self, owner: Owner, rules: Rules) {
        if !rules.is_empty() {
            self.rules.insert(owner, rules);
        }
    }

    /// Adds what an address is to what else it is: a host's own may be a VIP and a SNAT address.
    fn add_address(&mut self, network: u16, address: Be32, what: Address) {
        let key = AddressKey::new(address, network);
        let record = self.addresses.entry(key).or_default();
        let kind = record.kind | what.kind;
        if what.kind == KIND_SNAT {
            *record = what;
        }
        record.kind = kind;
    }

    /// Backends that are configured no more keep the next hops of the flows that they still have.
    fn add_retired_backends(&mut self, config: &Config, ids: &Ids) {
        for (name, id) in ids.of(Kind::Backend) {
            let Some((network, address)) = parse_backend(name) else {
                continue;
            };
            let network_id = ids.get(Kind::Network, network);
            let network_id = network_id.and_then(|id| u16::try_from(id).ok());
            if let (Some(network), Some(network_id)) = (config.network(network), network_id)
                && !self.next_hops.contains_key(&id)
            {
                let next_hop = network.next_hop(address);
                self.next_hops.insert(id, next_hop);
                self.retired_hops.push((network_id, next_hop));
            }
        }
    }

    fn add_quotas(&mut self, config: &Config, ids: &mut Ids) -> Result<()> {
        for quota in config::quotas(config) {
            if let Some(most) = quota.most {
                let bank = quota::bank(network_id(ids, quota.backends)?, quota.ipv6);
                let index = quota::index(network_id(ids, quota.network)?, bank);
                self.quotas.push((index, most));
            }
        }
        Ok(())
    }

    /// SNAT addresses that are configured no more go on for the flows that have them.
    fn add_draining(&mut self, config: &Config, ids: &Ids) -> Result<()> {
        for (network, snat) in draining(config, ids) {
            let id = ids.get(Kind::Network, network).unwrap_or_default();
            let key = AddressKey::new(snat.record, u16::try_from(id)?);
            let is_snat = self
                .addresses
                .get(&key)
                .is_some_and(|address| address.kind & KIND_SNAT != 0);
            let host = config.network(network).is_some_and(|network| network.host);
            ensure!(
                !is_snat && (host || !self.addresses.contains_key(&key)),
                "network {network}: {} was a SNAT address with the ports {} until now, and flows may \
                 still use it, so it cannot be anything else yet; take it out of the file until \
                 `lb status` does not show it any more, or end its flows with `lb down`",
                snat.snat.address,
                snat.range(),
            );
            self.banks.push((
                snat.slot,
                quota::bank(key.network, snat.snat.address.is_ipv6()),
            ));
            self.add_address(key.network, snat.record, snat.address());
        }
        Ok(())
    }

    fn add_pool(&mut self, pool: &config::Pool, config: &Config, ids: &mut Ids) -> Result<()> {
        ids.assign(Kind::Pool, &pool.name, ids.room().pools)?;
        let network = network_id(ids, &pool.network)?;
        let routes = config.network(&pool.network);
        for backend in &pool.backends {
            let name = backend_name(pool, backend);
            let id = ids.assign(Kind::Backend, &name, ids.room().backends)?;
            let record = Backend {
                address: ids.give(backend.address)?,
                port: Be16::new(backend.port),
                network,
                next_hop: Mac::default(),
                max_flows: pool.max_connections.unwrap_or(0),
            };
            self.backends.push((id, record));
            let next_hop =
                routes.map_or(backend.address, |network| network.next_hop(backend.address));
            self.next_hops.insert(id, next_hop);
        }
        Ok(())
    }

    fn add_service(
        &mut self,
        service: &config::Service,
        config: &Config,
        ids: &mut Ids,
    ) -> Result<()> {
        let network = network_id(ids, &service.network)?;
        let id = u16::try_from(ids.assign(Kind::Service, &service.name, ids.room().services)?)?;
        let is_of_cell = config.is_of_cell(service);
        let pool = match service.target.pool().filter(|_| !is_of_cell) {
            Some(pool) => ids.assign(Kind::Pool, pool, ids.room().pools)?,
            None => 0,
        };
        // Of a shared VIP the process chooses.
        let target = service.target.pool().filter(|_| !is_of_cell);
        let target = target.and_then(|name| config.pool(name));
        let balance = target.map_or(0, |pool| {
            pool.balance.flag() | Service::timeout_flags(pool.source_timeout_seconds())
        });
        let binds = self.add_names(service, id, config, ids);
        let record = Service {
            pool,
            id,
            flags: service_flags(service, is_of_cell) | balance | binds,
            budget: service.max_flows.unwrap_or(0),
            ..Service::default()
        };
        for listen in &service.listen {
            let address = ids.give(listen.address)?;
            let key = ServiceKey {
                vip: address,
                port: Be16::new(listen.port),
                network,
                protocol: u32::from(protocol_number(listen.protocol)),
            };
            let record = Service {
                mark: key.mark(),
                ..record
            };
            self.services.insert(key, record);
            let vip = Address {
                kind: KIND_VIP,
                ..Address::default()
            };
            self.add_address(network, address, vip);
        }
        self.add_rules(Owner::Service(id), rule_sets::clients(service));
        Ok(())
    }

    /// Adds the names of a service that the data plane knows, if there is room for all of them. The flag of the service.
    fn add_names(&mut self, service: &config::Service, id: u16, config: &Config, ids: &Ids) -> u32 {
        let names = server_names::names(service, id, config, ids).unwrap_or_default();
        let routes = names.routes;
        if self.names.len() + routes.len() > MAX_SERVER_NAMES as usize {
            self.without_names
                .push((service.name.clone(), routes.len()));
            return 0;
        }
        if routes.is_empty() {
            return 0;
        }
        self.names.extend(routes);
        self.add_rules(Owner::Classes(id), names.classes);
        SERVICE_BINDS
    }

    /// Notes in which mode the programs run: those in the kernel's stack bind nothing, neither by names nor by cookies; others send two segments at once by
    /// the interfaces that have room in the map of those that frames are copied to.
    pub fn run_in(&mut self, mode: Mode) {
        let at_once = |(_, network): &&(u16, Network)| network.flags & NETWORK_AT_ONCE != 0;
        let nics = self.networks.iter().filter(at_once);
        let nics: BTreeSet<u32> = nics.map(|(_, network)| network.ifindex).collect();
        let first: BTreeSet<u32> = nics.into_iter().take(MAX_CLONE_NICS as usize).collect();
        for (_, network) in &mut self.networks {
            if mode == Mode::Generic {
                network.flags |= NETWORK_GENERIC;
            }
            if mode == Mode::Generic || !first.contains(&network.ifindex) {
                network.flags &= !NETWORK_AT_ONCE;
            }
        }
        for service in self.services.values_mut().filter(|_| mode == Mode::Generic) {
            service.flags &= !SERVICE_BINDS;
            if !service.is_of_cell() {
                service.flags &= !(SERVICE_COOKIES | SERVICE_COOKIES_IN_FLOODS);
            }
        }
    }

    /// The addresses that must be resolved in a network: those of its backends' next hops, also of
    /// backends that only finish their flows.
    pub fn neighbours(&self, network: u16) -> BTreeSet<IpAddr> {
        let backends = self
            .backends
            .iter()
            .filter(|(_, backend)| backend.network == network);
        let retired = self.retired_hops.iter();
        let retired = retired.filter(|(id, _)| *id == network);
        backends
            .filter_map(|(id, _)| self.next_hops.get(id).copied())
            .chain(retired.map(|(_, next_hop)| *next_hop))
            .collect()
    }
}

/// The slot of a SNAT address, which gets one if it has none.
fn snat_slot(
    network: &config::Network,
    snat: &config::Snat,
    config: &Config,
    ids: &mut Ids,
) -> Result<SnatSlot> {
    let most = u32::from(config.limits.snat_addresses);
    let slot = ids.assign(Kind::Snat, &snat_name(&network.name, snat), most)? - 1;
    ids.give(snat.address)?;
    Ok(SnatSlot::new(u16::try_from(slot)?, *snat, ids))
}

fn service_flags(service: &config::Service, is_of_cell: bool) -> u32 {
    let reject = if service.reject { SERVICE_REJECT } else { 0 };
    let cell = if is_of_cell { SERVICE_CELL } else { 0 };
    let cookies = match &service.target {
        Target::Sni(sni) if sni.syn_cookies == SynCookies::Always => SERVICE_COOKIES,
        Target::Pool(_) if !is_of_cell => match service.syn_cookies {
            SynCookies::Never => 0,
            SynCookies::Auto => SERVICE_COOKIES_IN_FLOODS,
            SynCookies::Always => SERVICE_COOKIES,
        },
        _ => 0,
    };
    reject | cell | cookies
}

fn network_flags(network: &config::Network, place: &Attachment, config: &Config) -> u16 {
    let host = if network.host { NETWORK_HOST } else { 0 };
    let reject = if network.reject { NETWORK_REJECT } else { 0 };
    let partial = if place.partial { NETWORK_PARTIAL } else { 0 };
    let events = match config.flow_log {
        Some(_) => NETWORK_EVENTS,
        None => 0,
    };
    let has_backends = !network.snat.is_empty() && place.nic.ifindex != 0;
    let at_once = match network.second_segment {
        SecondSegment::AtOnce if has_backends => NETWORK_AT_ONCE,
        SecondSegment::AtOnce | SecondSegment::OnAck => 0,
    };
    host | reject | partial | events | at_once
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
    use std::collections::HashSet;

    use lb_common::maps::network::SnatPlaces;

    use super::{super::backend_weights::BackendStatus, *};

    /// The records with the tables.
    pub(crate) fn desired(
        config: &Config,
        places: &BTreeMap<String, Attachment>,
        layers: &Layers,
        ids: &mut Ids,
    ) -> Result<Desired> {
        let mut desired = records(config, places, ids)?;
        desired.add_tables(config, layers, ids, &mut BuiltTables::default())?;
        Ok(desired)
    }

    use crate::api::Override;

    pub(crate) const CONFIG: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas-a: { network: mgmt, backends: [\"10.32.96.105:30918\", { address: \"10.32.96.106:30918\", weight: 3 }] }
services:
  api-a: { network: tenant-a, listen: [\"192.168.203.110:6443/tcp\", \"192.168.203.110:6443/udp\"], pool: kas-a }
";

    /// The same on a box of two.
    pub(crate) fn two_boxes(name: &str) -> String {
        let snat = "snat: [{ address: 10.32.96.50, box: a }, { address: 10.32.96.51, box: b }], \
                    checks_from: [{ address: 10.32.96.61, box: a }, { address: 10.32.96.62, box: b }]";
        let ha = format!(
            "syn_cookie_key: /key
ha:
  box: {name}
  boxes: {{ a: {{ sync: \"10.99.0.1:7433\" }}, b: {{ sync: \"10.99.0.2:7433\" }} }}
  marker: 10.32.96.60
  ca: /ca.pem
  certificate: /box.pem
  key: /box.key
"
        );
        CONFIG.replace("snat: [10.32.96.50]", snat) + &ha
    }

    pub(crate) fn places() -> BTreeMap<String, Attachment> {
        let place = |ifindex: u32| Attachment {
            nic: Link {
                ifindex,
                mac: Mac::new([2, 0, 0, 0, 0, 1]),
                mtu: 1500,
                up: true,
                running: true,
                carriers: 1,
                peer: None,
                xdp: None,
                bridge: None,
            },
            is_there: true,
            cell_ifindex: ifindex + 10,
            partial: ifindex == 3,
        };
        BTreeMap::from([
            ("mgmt".to_owned(), place(2)),
            ("tenant-a".to_owned(), place(3)),
        ])
    }

    /// The same with a service of IPv6 beside it.
    pub(crate) const BOTH: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20, fd00:96::/64], snat: [fd00:96::50, 10.32.96.50, fd00:96::51] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24, fd00:203::/64] }
pools:
  kas-a: { network: mgmt, backends: [\"10.32.96.105:30918\"] }
  kas-6: { network: mgmt, backends: [\"[fd00:96::105]:30918\", \"[fd00:96::106]:30918\"] }
services:
  api-a: { network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], pool: kas-a }
  api-6: { network: tenant-a, listen: [\"[fd00:203::110]:6443/tcp\"], pool: kas-6, allow: [fd00:203::/64] }
";

    #[test]
    fn a_service_of_ipv6_has_labels_where_one_of_ipv4_has_addresses() {
        let mut ids = Ids::default();
        let built = build(BOTH, &mut ids);
        let label = |text: &str| ids.stands_for(text.parse().unwrap()).unwrap();
        let (_, mgmt) = built.networks[0];
        let places = |first, count, is_ipv6| SnatPlaces {
            first,
            count,
            is_ipv6,
        };
        assert_eq!(
            (mgmt.snat(false), mgmt.snat(true)),
            (places(0, 1, false), places(126, 2, true))
        );
        let &[first, .., second, third] = mgmt.snat_slots.as_flattened() else {
            panic!("no slots");
        };
        let slots = [first, second, third].map(|slot| {
            let slot = built.snat.iter().find(|one| one.slot == u16::from(slot));
            slot.unwrap().record
        });
        let expected = ["10.32.96.50", "fd00:96::50", "fd00:96::51"].map(label);
        assert_eq!(slots, expected);
        let of_network = |slot: &u16| mgmt.has_slot(*slot);
        let mut of_set: Vec<u16> = (0..u16::MAX).filter(of_network).collect();
        of_set.sort_by_key(|slot| built.snat.iter().position(|one| one.slot == *slot));
        let all = built.snat.iter().map(|one| one.slot);
        assert_eq!(of_set, all.collect::<Vec<_>>());
        let (&key, &service) = built.services.get_index(1).unwrap();
        assert_eq!(key.vip, label("fd00:203::110"));
        assert!(built.rules.contains_key(&Owner::Service(service.id)));
        let backends = built.backends.iter().map(|(_, backend)| backend.address);
        let expected = ["10.32.96.105", "fd00:96::105", "fd00:96::106"].map(label);
        assert_eq!(backends.collect::<Vec<_>>(), expected);
        let (vip, network) = (key.vip, key.network);
        let kind = |address, network| built.addresses[&AddressKey::new(address, network)].kind;
        assert_eq!(kind(vip, network), KIND_VIP);
        // One address for both NICs, which have the same MAC here.
        let link = label("fe80::6c:6200:1");
        assert_eq!([1, 2].map(|network| kind(link, network)), [KIND_LINK; 2]);
        assert_eq!(ids.of(Kind::Label).count(), 6);
    }

    #[test]
    fn an_address_that_is_gone_gives_its_label_back() {
        let mut ids = Ids::default();
        build(BOTH, &mut ids);
        let moved = BOTH
            .replace("203::110", "203::111")
            .replace(", \"[fd00:96::106]:30918\"", "");
        ids.begin();
        build(&moved, &mut ids);
        let unused = ids
            .unassigned()
            .map(|(kind, name, _)| (kind, name.to_owned()));
        let expected = [
            (Kind::Label, "fd00:203::110"),
            (Kind::Label, "fd00:96::106"),
            (
                Kind::Backend,
                "kas-6/[fd00:96::106]:30918@mgmt/fd00:96::106",
            ),
        ];
        let expected = expected.map(|(kind, name)| (kind, name.to_owned()));
        assert_eq!(unused.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_segment_fits_into_the_nic_as_it_is_now() {
        let config = CONFIG.replace("role: mgmt, ", "role: mgmt, mss: 1460, ");
        let config = config::parse("test.yaml", &config).unwrap();
        let mut places = places();
        let network = |places: &BTreeMap<String, Attachment>| {
            let built = desired(&config, places, &Layers::default(), &mut Ids::default());
            built.unwrap().networks[0].1
        };
        assert_eq!(network(&places).mss, 1460);
        places.get_mut("mgmt").unwrap().nic.mtu = 1400;
        assert_eq!((network(&places).mtu, network(&places).mss), (1400, 1360));
    }

    #[test]
    fn a_network_without_a_nic_has_no_interface() {
        let config = config::parse("test.yaml", CONFIG).unwrap();
        let mut places = places();
        places.get_mut("mgmt").unwrap().is_there = false;
        let built = desired(&config, &places, &Layers::default(), &mut Ids::default());
        let built = built.unwrap();
        assert_eq!(
            (
                built.networks[0].1.ifindex,
                built.networks[0].1.cell_ifindex
            ),
            (0, 12)
        );
        let mapped: Vec<u32> = built
            .network_ids
            .iter()
            .map(|(key, _)| key.ifindex)
            .collect();
        assert_eq!(mapped, [12, 3, 13]);
    }

    pub(crate) fn build(text: &str, ids: &mut Ids) -> Desired {
        let config = config::parse("test.yaml", text).unwrap();
        desired(&config, &places(), &Layers::default(), ids).unwrap()
    }

    #[test]
    fn a_standby_has_all_but_the_addresses_of_the_active_box() {
        let mut ids = Ids::default();
        let whole = build(&two_boxes("a"), &mut ids);
        let in_role = |role| {
            let mut desired = whole.clone();
            desired.take_role(role);
            desired
        };
        let [alone, active, standby] =
            [HaRole::Alone, HaRole::Active, HaRole::Standby].map(in_role);
        assert_eq!(alone, whole);
        assert_eq!(active.addresses, whole.addresses);
        let checks = ids.stands_for([10, 32, 96, 61].into()).unwrap();
        let kept = HashMap::from([(AddressKey::new(checks, 1), CHECKS_FROM)]);
        assert_eq!(standby.addresses, kept);
        assert_eq!(active.of_active, standby.of_active);
        let mut both = standby.addresses.clone();
        both.extend(&standby.of_active);
        assert_eq!(both, whole.addresses);
        let vips = |desired: &Desired| desired.vips().collect::<HashSet<_>>();
        assert_eq!((vips(&standby), vips(&standby).len()), (vips(&whole), 1));
        let rest = Desired {
            role: HaRole::Alone,
            addresses: whole.addresses.clone(),
            of_active: HashMap::new(),
            ..standby
        };
        assert_eq!(rest, whole);
    }

    #[test]
    fn addresses_of_the_active_box_alone_are_quiet() {
        let mut ids = Ids::default();
        let mut active = build(&two_boxes("a"), &mut ids);
        active.take_role(HaRole::Active);
        let loud = active.clone();
        active.be_quiet();
        for (key, address) in &active.addresses {
            let is_of_active = loud.of_active.contains_key(key);
            assert_eq!(address.is_quiet(), is_of_active, "{key:?}");
        }
        assert_eq!(active.of_active, loud.of_active);
    }

    #[test]
    fn an_address_of_the_peer_is_opened_and_given_to_no_new_flow() {
        let mut ids = Ids::default();
        let built = build(&two_boxes("a"), &mut ids);
        let [(_, mgmt), ..] = built.networks[..] else {
            panic!("no network");
        };
        let [own, peer] = [&built.snat, &built.peer_snat].map(|all| {
            let [one] = all[..] else {
                panic!("not one address: {all:?}");
            };
            one
        });
        assert_eq!(
            [own, peer].map(|one| mgmt.has_slot(one.slot)),
            [true, false]
        );
        assert_eq!(mgmt.snat_count, 1);
        for (snat, bank) in [(own, quota::bank(1, false)), (peer, 0)] {
            let address = built.addresses[&AddressKey::new(snat.record, 1)];
            assert_eq!(address, snat.address());
            assert!(built.banks.contains(&(snat.slot, bank)));
        }
        // Seen from the other box, with the same ids.
        let other = build(&two_boxes("b"), &mut ids);
        assert_eq!(
            (&other.snat, &other.peer_snat),
            (&built.peer_snat, &built.snat)
        );
        let checks = [61, 62].map(|host| ids.stands_for([10, 32, 96, host].into()).unwrap());
        for (desired, [own, peer]) in [(&built, checks), (&other, [checks[1], checks[0]])] {
            let found = |record| desired.addresses.get(&AddressKey::new(record, 1)).copied();
            assert_eq!([own, peer].map(found), [Some(CHECKS_FROM), None]);
        }
        let but_checks = |desired: &Desired| {
            let mut addresses = desired.addresses.clone();
            addresses.retain(|_, address| *address != CHECKS_FROM);
            addresses
        };
        assert_eq!(but_checks(&other), but_checks(&built));
    }

    #[test]
    fn an_address_that_drains_is_the_active_boxes_as_well() {
        let mut ids = Ids::default();
        build(&two_boxes("a"), &mut ids);
        let moved = two_boxes("a").replace("10.32.96.50", "10.32.96.52");
        let mut standby = build(&moved, &mut ids);
        let record = ids.stands_for([10, 32, 96, 50].into()).unwrap();
        let drains = AddressKey::new(record, 1);
        assert!(standby.addresses.contains_key(&drains));
        standby.take_role(HaRole::Standby);
        let left: Vec<_> = standby.addresses.values().collect();
        assert_eq!(left, [&CHECKS_FROM]);
        assert!(standby.of_active.contains_key(&drains));
    }

    #[test]
    fn no_flow_has_an_address_that_checks_come_from() {
        assert!((0..=u16::MAX).all(|port| !CHECKS_FROM.is_of_flow(port)));
        let first = lb_common::maps::snat::FIRST_LEG_PORT;
        assert!((first..=u16::MAX).all(|port| CHECKS_FROM.is_local(port)));
        assert!(!CHECKS_FROM.is_local(first - 1));
        assert_eq!(CHECKS_FROM.flow_id(first, |_| panic!("no page")), None);
    }

    #[test]
    fn a_configuration_becomes_records() {
        let mut ids = Ids::default();
        let desired = build(CONFIG, &mut ids);
        assert_eq!(desired.networks.len(), 2);
        assert_eq!(desired.network_ids.len(), 4);
        assert_eq!(
            desired.snat,
            [SnatSlot::new(
                0,
                config::Snat {
                    address: IpAddr::from([10, 32, 96, 50]),
                    first_port: 1024,
                    ports: 56_320
                },
                &ids
            )]
        );
        assert_eq!(
            desired.addresses.len(),
            2,
            "one SNAT address, one VIP for two listeners"
        );
        assert_eq!(desired.services.len(), 2);
        let (_, backend) = desired.backends[0];
        assert_eq!(
            Some(u32::from(backend.network)),
            ids.get(Kind::Network, "mgmt")
        );
        let (_, table) = &desired.tables[0];
        let heavy = ids
            .get(Kind::Backend, "kas-a/10.32.96.106:30918@mgmt/10.32.96.106")
            .unwrap();
        let share = table.iter().filter(|&&id| id == heavy).count() * 100 / table.len();
        assert!((74..=76).contains(&share), "{share} %");
    }

    #[test]
    fn a_network_has_the_mtu_of_its_interface_and_room_for_headers() {
        let mut ids = Ids::default();
        let said = CONFIG.replace("interface: eth0,", "interface: eth0, mss: 1360,");
        let desired = build(&said, &mut ids);
        let (mgmt, tenant) = (desired.networks[0].1, desired.networks[1].1);
        assert_eq!((mgmt.mtu, mgmt.mss), (1500, 1460));
        assert_eq!((tenant.mtu, tenant.mss), (1500, 1360));
    }

    #[test]
    fn flags_say_where_checksums_may_be_open_and_who_closes_them() {
        let mut ids = Ids::default();
        let mut desired = build(CONFIG, &mut ids);
        let flags = |desired: &Desired| [0, 1].map(|index| desired.networks[index].1.flags);
        assert_eq!(flags(&desired), [NETWORK_AT_ONCE, NETWORK_PARTIAL]);
        desired.run_in(Mode::Native);
        assert_eq!(flags(&desired), [NETWORK_AT_ONCE, NETWORK_PARTIAL]);
        desired.run_in(Mode::Generic);
        assert_eq!(
            flags(&desired),
            [NETWORK_GENERIC, NETWORK_PARTIAL | NETWORK_GENERIC]
        );
    }

    #[test]
    fn programs_in_the_kernels_stack_bind_nothing() {
        let shared = CONFIG.replace(
            "services:",
            "services:
  names:
    network: tenant-a
    listen: [\"192.168.203.110:443/tcp\"]
    sni: { routes: [{ names: [a.lab], pool: kas-a }] }",
        );
        for (mode, binds) in [(Mode::Native, true), (Mode::Generic, false)] {
            let mut ids = Ids::default();
            let mut desired = build(&shared, &mut ids);
            desired.run_in(mode);
            let id = ids.get(Kind::Service, "names").unwrap();
            let mut services = desired.services.values();
            let names = services.find(|service| u32::from(service.id) == id);
            let names = names.unwrap();
            assert_eq!((names.binds(), names.has_cookies()), (binds, true));
        }
    }

    #[test]
    fn a_service_with_too_many_names_leaves_them_to_the_process() {
        let names = |count: u32| {
            (0..count)
                .map(|number| format!("{number}.lab, "))
                .collect::<String>()
        };
        let services = [("many", 60_000), ("too-many", 6_000), ("few", 5_000)];
        let services = services.map(|(name, count)| {
            format!(
                "  {name}:
    network: tenant-a
    listen: [\"192.168.203.110:{count}/tcp\"]
    sni: {{ routes: [{{ names: [{}], pool: kas-a }}] }}
",
                names(count)
            )
        });
        let text = CONFIG.replace("services:\n", &format!("services:\n{}", services.concat()));
        let desired = build(&text, &mut Ids::default());
        assert_eq!(desired.without_names, [("too-many".to_owned(), 6_000)]);
        assert_eq!(desired.names.len(), 65_000);
        let services: Vec<_> = desired.services.iter().collect();
        let binds = |port| {
            let mut services = services.iter();
            services.any(|(key, service)| key.port.get() == port && service.binds())
        };
        assert_eq!([60_000, 6_000, 5_000].map(binds), [true, false, true]);
    }

    #[test]
    fn two_segments_leave_at_once_by_as_many_interfaces_as_have_room() {
        let mut ids = Ids::default();
        let on_ack = CONFIG.replace(
            "interface: eth1,",
            "interface: eth1, second_segment: on_ack,",
        );
        let mut desired = build(&on_ack, &mut ids);
        desired.run_in(Mode::Native);
        assert_eq!(desired.networks[0].1.flags, 0);
        let mut desired = build(CONFIG, &mut ids);
        let (id, record) = desired.networks[0];
        // Two networks on each interface.
        let many = (0..20).map(|index| {
            let ifindex = 100 + index / 2;
            (id, Network { ifindex, ..record })
        });
        desired.networks = many.collect();
        desired.run_in(Mode::Native);
        let are_at_once: Vec<bool> = desired
            .networks
            .iter()
            .map(|(_, network)| network.flags & NETWORK_AT_ONCE != 0)
            .collect();
        assert_eq!(are_at_once, [vec![true; 16], vec![false; 4]].concat());
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

    /// Flows may still come back to it: it cannot be a VIP at the same time.
    #[test]
    fn an_address_that_drains_is_nothing_else() {
        let mut ids = Ids::default();
        build(CONFIG, &mut ids);
        let moved = CONFIG.replace("snat: [10.32.96.50]", "snat: [10.32.96.51]");
        assert_eq!(build(&moved, &mut ids).addresses.len(), 3);
        let vip = moved.replace(
            "services:",
            "services:\n  x: { network: mgmt, listen: [\"10.32.96.50:80/tcp\"], pool: kas-a }",
        );
        let config = config::parse("test.yaml", &vip).unwrap();
        let error = desired(&config, &places(), &Layers::default(), &mut ids)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("10.32.96.50 was a SNAT address with the ports 1024-57343"),
            "{error}"
        );
    }

    /// What is removed keeps its next hop, which may move while the flows finish.
    #[test]
    fn a_removed_backends_next_hop_is_still_watched() {
        let mut ids = Ids::default();
        let before = build(CONFIG, &mut ids);
        let (network, _) = before.networks[0];
        let after = build(&CONFIG.replace("\"10.32.96.105:30918\", ", ""), &mut ids);
        let watched = [105, 106].map(|host| IpAddr::from([10, 32, 96, host]));
        assert_eq!(after.neighbours(network), BTreeSet::from(watched));
        assert_eq!(after.backends.len(), 1);
        assert_eq!(after.next_hops.len(), 2);
    }

    /// The flows of a pool that moves to another network stay where they are.
    #[test]
    fn a_backend_in_another_network_is_another_backend() {
        let mut ids = Ids::default();
        let before = build(CONFIG, &mut ids);
        let moved = CONFIG
            .replace(
                "prefixes: [192.168.203.0/24]",
                "prefixes: [10.32.96.0/20], snat: [10.32.96.51]",
            )
            .replace("192.168.203.110", "10.32.96.110")
            .replace("kas-a: { network: mgmt", "kas-a: { network: tenant-a");
        let after = build(&moved, &mut ids);
        for (id, _) in after.backends {
            assert!(before.backends.iter().all(|(old, _)| *old != id));
        }
    }

    /// Which backends are dead, and whether the backups serve, is not what the size of a table goes by.
    #[test]
    fn the_size_of_a_table_is_that_of_the_file() {
        let backup = "\"10.32.96.107:30918\", { address: \"10.32.96.108:30918\", backup: true }]";
        let text = CONFIG.replace("weight: 3 }]", &format!("weight: 3 }}, {backup}"));
        let config = config::parse("test.yaml", &text).unwrap();
        let pool = &config.pools[0];
        let mut ids = Ids::default();
        desired(&config, &places(), &Layers::default(), &mut ids).unwrap();
        let drained = |count: usize| {
            let drained = &pool.backends[..count];
            Layers::new(&config, |_, backend| BackendStatus {
                overridden: drained.contains(backend).then_some(Override::Drain),
                ..BackendStatus::default()
            })
        };
        let backends = |layers: &Layers| {
            let table = BuiltTables::default().table(pool, &config, layers, &ids);
            let table = table.unwrap();
            let backends: BTreeSet<u32> = table.iter().copied().collect();
            (table.len(), backends.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(backends(&drained(0)), (2039, vec![1, 2, 3]));
        assert_eq!(backends(&drained(1)), (2039, vec![2, 3]));
        assert_eq!(backends(&drained(3)), (2039, vec![4]), "the backup");
        assert_eq!(backends(&drained(4)), (0, vec![]));
    }
}
