use lb_common::maps::network::SnatPlaces;

use super::{super::backend_weights::BackendStatus, *};
use crate::api::Override;

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
