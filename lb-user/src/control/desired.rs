//! The validated configuration, with ids and facts of the host, as records of the maps.

mod role;
#[cfg(test)]
pub(super) mod tests;

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
            Address, AddressKey, KIND_LINK, KIND_SNAT, KIND_VIP, MAX_SNAT_PER_NETWORK,
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

use self::role::CHECKS_FROM;
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
