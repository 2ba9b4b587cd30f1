//! The operations of a plan in words, for `lb plan`. Pure.

use lb_common::maps::{
    half_open,
    network::{Address, AddressKey, KIND_LINK, KIND_SNAT, KIND_VIP, Network, NetworkKey},
    quota,
    rule::Owner,
    server_name::{BY_CLIENT, NameKey, PROTOCOL, PoolRoute, UNDER, parts_of_kind},
    service::{SERVICE_CELL, Service, ServiceKey},
};

use super::plan::Operation;
use crate::{
    config::Protocol,
    model::registry::{Ids, Kind},
};

/// What an operation does, with the names that `ids` has.
pub fn describe(operation: &Operation, ids: &Ids) -> String {
    let name = |kind, id| ids.name(kind, id).unwrap_or("?");
    match operation {
        Operation::WriteRules(set, rules) => {
            format!(
                "write rules of {}: {} prefixes",
                owner(*set, ids),
                rules.len()
            )
        }
        Operation::ClearRules(set, prefixes) => {
            let owner = owner(*set, ids);
            format!(
                "clear the old rules of {owner}: {} prefixes",
                prefixes.len()
            )
        }
        Operation::SetNetwork(id, record) => network(name(Kind::Network, u32::from(*id)), record),
        Operation::MapNetwork(key, id) => {
            format!(
                "map {} to network {}",
                interface(key),
                name(Kind::Network, *id)
            )
        }
        Operation::UnmapNetwork(key) => format!("unmap {}", interface(key)),
        Operation::SetRing(index, places) => {
            format!("set ring of {}: {places} places", ring_of(*index, ids))
        }
        Operation::SetBank(slot, bank) => {
            format!(
                "put SNAT address {} into the bank of {}",
                slot_name(*slot, ids),
                bank_of(*bank, ids)
            )
        }
        Operation::SetQuota(index, most) => set_quota(*index, *most, ids),
        Operation::OpenSnat(slot) => format!(
            "open SNAT address {}, ports {}",
            slot.snat.address,
            slot.range()
        ),
        Operation::OpenPeerSnat(slot) => format!(
            "open SNAT address {} of the other box, ports {}",
            slot.snat.address,
            slot.range()
        ),
        Operation::OpenQueue(slot) => format!(
            "give SNAT address {} to new flows: it was the other box's",
            slot.snat.address
        ),
        Operation::CloseQueue(slot) => format!(
            "leave SNAT address {} to the flows that it has: it is the other box's now",
            slot.snat.address
        ),
        Operation::SetBackend(id, backend) => format!(
            "set backend {}: {}",
            name(Kind::Backend, *id),
            ids.endpoint(backend.address, backend.port.get())
        ),
        Operation::AwaitNextHops(backends) => {
            format!("wait for the next hops of {} backends", backends.len())
        }
        Operation::SetTable(pool, table) => {
            format!(
                "set pool {}: {}",
                ids.pool_of(*pool).unwrap_or("?"),
                shares(table, ids)
            )
        }
        Operation::SetName(key, route) => set_name(key, *route, ids),
        Operation::RemoveName(key) => match key.kind {
            PROTOCOL => format!("forget the protocol {}", key.text()),
            _ => format!("forget the name {}", pattern(key)),
        },
        Operation::SetService(key, service) => set_service(key, service, ids),
        Operation::RemoveService(key) => format!(
            "remove {} of network {}",
            listener(key, ids),
            name(Kind::Network, u32::from(key.network))
        ),
        Operation::SetAddress(key, address) => format!(
            "open {} {} in network {}",
            kinds(address),
            ids.address_text(key.address),
            network_of(key, ids)
        ),
        Operation::AwaitPackets => "wait for packets that are on their way".to_owned(),
        Operation::RemoveAddress(key) => format!(
            "close {} in network {}",
            ids.address_text(key.address),
            network_of(key, ids)
        ),
    }
}

fn set_name(key: &NameKey, route: PoolRoute, ids: &Ids) -> String {
    if key.kind == PROTOCOL {
        return format!("set protocol {}", key.text());
    }
    let name = pattern(key);
    match route.pool {
        0 => format!("leave the name {name} to the process"),
        BY_CLIENT => format!("set name {name}: by client"),
        pool => format!("set name {name}: pool {}", ids.pool_of(pool).unwrap_or("?")),
    }
}

/// A name as in the file.
fn pattern(key: &NameKey) -> String {
    let any = if key.kind & UNDER != 0 { "*." } else { "" };
    let clients = match key.kind & !UNDER {
        0 => String::new(),
        kind => {
            let (class, offers) = parts_of_kind(kind);
            format!(" for clients of class {class} with the protocols {offers:04b}")
        }
    };
    format!("{any}{}{clients}", key.text())
}

/// A listening VIP, port and protocol, as in the file.
pub(super) fn listener(key: &ServiceKey, ids: &Ids) -> String {
    let protocol = match key.protocol {
        17 => Protocol::Udp,
        _ => Protocol::Tcp,
    };
    let endpoint = ids.endpoint(key.vip, key.port.get());
    format!("{endpoint}/{protocol}")
}

fn network(name: &str, record: &Network) -> String {
    let addresses = record.slots().count();
    format!(
        "set network {name}: interface {}, VLAN {}, {} SNAT addresses, MTU {}, MSS {}",
        record.ifindex, record.vlan, addresses, record.mtu, record.mss
    )
}

fn set_service(key: &ServiceKey, service: &Service, ids: &Ids) -> String {
    let to = if service.flags & SERVICE_CELL == 0 {
        format!("to pool {}", ids.pool_of(service.pool).unwrap_or("?"))
    } else {
        "through the cell".to_owned()
    };
    format!(
        "set service {}: {} of network {} {to}",
        ids.name(Kind::Service, u32::from(service.id))
            .unwrap_or("?"),
        listener(key, ids),
        ids.name(Kind::Network, u32::from(key.network))
            .unwrap_or("?"),
    )
}

fn network_of<'i>(key: &AddressKey, ids: &'i Ids) -> &'i str {
    ids.name(Kind::Network, u32::from(key.network))
        .unwrap_or("?")
}

fn interface(key: &NetworkKey) -> String {
    match key.vlan {
        0 => format!("interface {}", key.ifindex),
        vlan => format!("interface {} VLAN {vlan}", key.ifindex),
    }
}

fn kinds(address: &Address) -> &'static str {
    if address.kind == KIND_LINK {
        return "link-local address";
    }
    if address.kind == KIND_SNAT && address.count == 0 {
        return "address of checks";
    }
    match (address.kind & KIND_VIP != 0, address.kind & KIND_SNAT != 0) {
        (true, true) => "VIP and SNAT address",
        (false, true) => "SNAT address",
        _ => "VIP",
    }
}

fn slot_name(slot: u16, ids: &Ids) -> &str {
    ids.name(Kind::Snat, u32::from(slot) + 1).unwrap_or("?")
}

/// The addresses of a bank.
fn bank_of(bank: u32, ids: &Ids) -> String {
    let (network, is_ipv6) = quota::of_bank(bank);
    let name = ids.name(Kind::Network, network.into()).unwrap_or("?");
    let family = if is_ipv6 { "IPv6" } else { "IPv4" };
    format!("network {name} ({family})")
}

fn set_quota(index: u32, most: u32, ids: &Ids) -> String {
    let (network, bank) = quota::of_index(index);
    let name = ids.name(Kind::Network, network.into()).unwrap_or("?");
    let most = match most {
        0 => "no limit".to_owned(),
        most => format!("{most} flows at most"),
    };
    format!(
        "set quota of network {name} on {}: {most}",
        bank_of(bank, ids)
    )
}

/// The network whose flows are in a ring.
fn ring_of(index: u32, ids: &Ids) -> String {
    let rings = ids.of(Kind::Network).flat_map(|(name, id)| {
        let id = u16::try_from(id).unwrap_or_default();
        [
            (half_open::index(id, false), name, "half-open flows"),
            (half_open::index(id, true), name, "UDP flows"),
        ]
    });
    let mut rings = rings;
    let found = rings.find(|(found, _, _)| *found == index);
    found.map_or_else(
        || "no network".to_owned(),
        |(_, name, what)| format!("network {name} ({what})"),
    )
}

/// The network or service that the rules of a set are for.
fn owner(set: u32, ids: &Ids) -> String {
    let owners = ids.all().filter_map(|(kind, name, id)| {
        let id = u16::try_from(id).ok()?;
        let owners: &[Owner] = match kind {
            Kind::Network => &[Owner::Sources(id), Owner::Destinations(id)],
            Kind::Service => &[Owner::Service(id), Owner::Classes(id)],
            _ => &[],
        };
        let owner = owners.iter().find(|owner| owner.sets().contains(&set))?;
        let part = match owner {
            Owner::Destinations(_) => " (its destinations)",
            Owner::Sources(_) => " (its sources)",
            Owner::Service(_) => "",
            Owner::Classes(_) => " (clients of its names)",
        };
        Some(format!("{} {name}{part}", kind.label()))
    });
    let mut owners = owners;
    owners
        .next()
        .unwrap_or_else(|| "no network or service".to_owned())
}

/// Each backend's part of a Maglev table, in percent.
fn shares(table: &[u32], ids: &Ids) -> String {
    if table.is_empty() {
        return "no backend".to_owned();
    }
    let mut backends: Vec<u32> = table.to_vec();
    backends.sort_unstable();
    let shares = backends.chunk_by(|one, other| one == other).map(|entries| {
        let backend = entries.first().copied().unwrap_or_default();
        // The name within the pool is enough: the pool's stands before it.
        let name = ids.name(Kind::Backend, backend).unwrap_or("?");
        let name = name.split_once('/').map_or(name, |(_, name)| name);
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        let percent = (entries.len() * 100 + table.len() / 2) / table.len();
        format!("{name} {percent}%")
    });
    shares.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::{
        super::{
            desired::tests::{BOTH, CONFIG, build},
            plan::{Current, plan},
        },
        *,
    };

    #[test]
    fn a_plan_reads_as_what_it_does() {
        let mut ids = Ids::default();
        let first = plan(&Current::default(), &build(CONFIG, &mut ids));
        let mut lines: Vec<String> = first.iter().map(|step| describe(step, &ids)).collect();
        lines.sort();
        let wanted = [
            "map interface 12 to network mgmt",
            "map interface 13 to network tenant-a",
            "map interface 2 to network mgmt",
            "map interface 3 to network tenant-a",
            "open SNAT address 10.32.96.50 in network mgmt",
            "open SNAT address 10.32.96.50, ports 1024-57343",
            "open VIP 192.168.203.110 in network tenant-a",
            "put SNAT address mgmt/10.32.96.50:1024-57343 into the bank of network mgmt (IPv4)",
            "set backend kas-a/10.32.96.105:30918@mgmt/10.32.96.105: 10.32.96.105:30918",
            "set backend kas-a/10.32.96.106:30918@mgmt/10.32.96.106: 10.32.96.106:30918",
            "set network mgmt: interface 2, VLAN 0, 1 SNAT addresses, MTU 1500, MSS 1460",
            "set network tenant-a: interface 3, VLAN 0, 0 SNAT addresses, MTU 1500, MSS 1460",
            "set pool kas-a: 10.32.96.105:30918 25%, 10.32.96.106:30918 75%",
            "set ring of network mgmt (UDP flows): 8192 places",
            "set ring of network mgmt (half-open flows): 8192 places",
            "set ring of network tenant-a (UDP flows): 8192 places",
            "set ring of network tenant-a (half-open flows): 8192 places",
            "set service api-a: 192.168.203.110:6443/tcp of network tenant-a to pool kas-a",
            "set service api-a: 192.168.203.110:6443/udp of network tenant-a to pool kas-a",
            "wait for the next hops of 2 backends",
            "write rules of network mgmt (its destinations): 2 prefixes",
            "write rules of network mgmt (its sources): 3 prefixes",
            "write rules of network tenant-a (its destinations): 1 prefixes",
            "write rules of network tenant-a (its sources): 3 prefixes",
        ];
        assert_eq!(lines, wanted);
    }

    #[test]
    fn a_quota_says_whose_it_is_and_of_what() {
        let mut ids = Ids::default();
        build(CONFIG, &mut ids);
        let index = quota::index(2, quota::bank(1, true));
        let said = |most| describe(&Operation::SetQuota(index, most), &ids);
        let what = "set quota of network tenant-a on network mgmt (IPv6): ";
        assert_eq!(said(0), format!("{what}no limit"));
        assert_eq!(said(7), format!("{what}7 flows at most"));
    }

    #[test]
    fn an_ipv6_address_is_said_and_never_its_label() {
        let mut ids = Ids::default();
        let first = plan(&Current::default(), &build(BOTH, &mut ids));
        let lines: Vec<String> = first.iter().map(|step| describe(step, &ids)).collect();
        for line in [
            "open SNAT address fd00:96::50, ports 1024-57343",
            "open SNAT address fd00:96::50 in network mgmt",
            "set network mgmt: interface 2, VLAN 0, 3 SNAT addresses, MTU 1500, MSS 1460",
            "set backend kas-6/[fd00:96::105]:30918@mgmt/fd00:96::105: [fd00:96::105]:30918",
            "set service api-6: [fd00:203::110]:6443/tcp of network tenant-a to pool kas-6",
            "open VIP fd00:203::110 in network tenant-a",
            "open link-local address fe80::6c:6200:1 in network tenant-a",
        ] {
            assert!(lines.iter().any(|said| said == line), "{line}: {lines:#?}");
        }
        assert!(
            !lines.iter().any(|line| line.contains("240.")),
            "{lines:#?}"
        );
    }

    #[test]
    fn what_goes_is_said_as_well() {
        let mut ids = Ids::default();
        build(CONFIG, &mut ids);
        let key = ServiceKey {
            vip: Ipv4Addr::new(192, 168, 203, 110).into(),
            port: lb_common::addr::Be16::new(53),
            network: 2,
            protocol: 17,
        };
        let address = AddressKey::new(Ipv4Addr::new(192, 168, 203, 110).into(), 2);
        let vlan = NetworkKey {
            ifindex: 3,
            vlan: 2003,
            _reserved: 0,
        };
        let [set, _] = Owner::Service(1).sets();
        for (operation, words) in [
            (
                Operation::RemoveService(key),
                "remove 192.168.203.110:53/udp of network tenant-a",
            ),
            (
                Operation::RemoveAddress(address),
                "close 192.168.203.110 in network tenant-a",
            ),
            (Operation::UnmapNetwork(vlan), "unmap interface 3 VLAN 2003"),
            (
                Operation::SetTable(1, [].into()),
                "set pool kas-a: no backend",
            ),
            (
                Operation::ClearRules(set, Vec::new()),
                "clear the old rules of service api-a: 0 prefixes",
            ),
        ] {
            assert_eq!(describe(&operation, &ids), words);
        }
    }
}
