//! A client stays with the backend that it has had, for `source_timeout`: also where the hash leads to another one.

use std::{collections::BTreeSet, ops::Range};

use aya::maps::{Array, Map, MapData};
use lb_common::{
    addr::Mac,
    conntrack::ANSWER_TIMEOUT,
    maps::{backend::Backend, service::Service},
};
use lb_tests::{
    frames::packet::{check, flags::*, tcp},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::dataplane::flows::UsageTable;

use super::given::*;

/// What the addresses of the three backends end with, in the order of their ids.
const NODES: [&str; 3] = ["105", "107", "108"];
/// Hosts of the tenant's network; of so many clients some go to each backend by the hash.
const HOSTS: Range<u16> = 10..70;

/// The family's, with three backends of the TCP service, which is chosen by source; `keys` are the pool's other ones.
fn config(ip: &Family, keys: &str) -> String {
    let all = NODES.map(|number| format!("{:?}", ip.kas.replace("105", number)));
    let one = format!("backends: [{:?}]", ip.kas);
    assert!(ip.config.contains(&one));
    let all = format!("backends: [{}], balance: source{keys}", all.join(", "));
    ip.config.replace(&one, &all)
}

/// The same with a second tenant, whose hosts have the same addresses, behind `Port::SecondMgmt`.
fn config_of_two(ip: &Family) -> String {
    let services = format!(
        "  tenant-b: {{ role: tenant, interface: eth2, prefixes: [{:?}] }}\npools:",
        ip.tenant
    );
    let text = config(ip, ", source_timeout: 1m").replace("pools:", &services);
    format!(
        "{text}  api-b: {{ network: tenant-b, listen: [\"{}/tcp\"], pool: kas-a }}\n",
        ip.api
    )
}

/// The backends with these numbers, 0 to 2, are the table of the pool from now on.
fn set_table(lb: &mut DataPlane, backends: &[usize]) {
    let ids = ids(lb);
    let table: Vec<u32> = backends.iter().map(|number| ids[*number]).collect();
    let number = lb.ids.table("kas-a").expect("a table");
    lb.maps.set_maglev(&[(number, &table)]).expect("a write");
}

/// The ids of the three backends.
fn ids(lb: &DataPlane) -> Vec<u32> {
    let backends = lb.desired.backends.iter();
    let of_pool = backends.filter(|(_, backend)| backend.port.get() == 30918);
    of_pool.map(|(id, _)| *id).collect()
}

/// Opens a flow of this host and port; gives the number of its backend.
fn open_from(ip: &Family, lb: &mut DataPlane, from: Port, host: u16, port: u16) -> usize {
    let host = ip.pick(format!("192.168.203.{host}"), format!("fd00:203::{host:x}"));
    let nic = match from {
        Port::Tenant => TENANT_NIC,
        _ => MGMT_NIC,
    };
    let syn = tcp(&ip.end(&host, port), ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let outcome = lb.receive(from, &syn.between(CLIENT, nic).bytes());
    assert_eq!(outcome.action, Action::Redirect, "{host}");
    assert_eq!(check(&outcome.frame), Ok(()), "{host}");
    let numbers = ip.pick([105, 107, 108], [0x05, 0x07, 0x08]);
    let found = numbers.iter().position(|end| *end == outcome.frame[5]);
    found.expect("the MAC of a node")
}

/// The backends of new flows of all hosts.
fn open_all(ip: &Family, lb: &mut DataPlane, port: u16) -> Vec<usize> {
    HOSTS
        .map(|host| open_from(ip, lb, Port::Tenant, host, port))
        .collect()
}

/// Has what is remembered be older by so many seconds.
fn age(lb: &DataPlane, seconds: u64) {
    let map = MapData::from_pin(lb.maps_folder().join("AFFINITIES")).expect("a pin");
    let mut entries: Array<MapData, u64> = Map::Array(map).try_into().expect("words");
    let mut aged = 0;
    for index in 0..entries.len() {
        let entry = entries.get(&index, 0).expect("a look-up");
        if entry != 0 {
            let time = (entry >> 16).wrapping_sub(seconds) & 0xff_ffff;
            let older = entry & !(0xff_ffff << 16) | time << 16;
            entries.set(index, &older, 0).expect("a write");
            aged += 1;
        }
    }
    assert_eq!(aged, HOSTS.len(), "one of each client");
}

#[privileged_test(families)]
fn a_client_stays_where_the_hash_leads_to_another_backend(ip: &Family) {
    for (keys, stays) in [(", source_timeout: 1m", true), ("", false)] {
        let mut lb = DataPlane::new(&config(ip, keys));
        set_table(&mut lb, &[0]);
        let first = open_all(ip, &mut lb, 1);
        assert_eq!(first, [0; HOSTS.end as usize - HOSTS.start as usize]);
        set_table(&mut lb, &[1, 0, 2]);
        let second = open_all(ip, &mut lb, 2);
        if stays {
            assert_eq!(second, first);
        } else {
            let found: BTreeSet<usize> = second.into_iter().collect();
            assert_eq!(found, BTreeSet::from([0, 1, 2]), "by the hash");
        }
    }
}

/// The tables of a pool are two: what is remembered is the pool's.
#[privileged_test(families)]
fn a_client_stays_when_the_other_table_of_its_pool_is_in_use(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, ", source_timeout: 1m"));
    set_table(&mut lb, &[0]);
    let first = open_all(ip, &mut lb, 1);
    let pool = lb.ids.table("kas-a").expect("a table");
    let second = pool + lb.maps.second_tables().expect("room");
    let ids = ids(&lb);
    lb.maps
        .set_maglev(&[(second, &[ids[1], ids[0], ids[2]])])
        .expect("a write");
    for (key, service) in lb.desired.services.clone() {
        if service.pool == pool {
            let service = Service {
                pool: second,
                ..service
            };
            lb.maps.services.insert(&key, &service, 0).expect("a write");
        }
    }
    assert_eq!(open_all(ip, &mut lb, 2), first);
}

#[privileged_test(families)]
fn after_the_timeout_the_hash_chooses(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, ", source_timeout: 1m"));
    set_table(&mut lb, &[1, 0, 2]);
    let hashed = open_all(ip, &mut lb, 1);
    age(&lb, 100);
    set_table(&mut lb, &[0]);
    let first = open_all(ip, &mut lb, 2);
    set_table(&mut lb, &[1, 0, 2]);
    age(&lb, 50);
    assert_eq!(open_all(ip, &mut lb, 3), first, "within it");
    age(&lb, 50);
    assert_eq!(open_all(ip, &mut lb, 4), first, "from the last new flow on");
    age(&lb, 62);
    assert_eq!(open_all(ip, &mut lb, 5), hashed);
}

/// A backend without a share, next hop or room is left, and what the client has then is remembered.
#[privileged_test(families)]
fn what_cannot_serve_loses_its_clients(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, ", source_timeout: 1m, max_connections: 9"));
    set_table(&mut lb, &[0]);
    let first = open_all(ip, &mut lb, 1);
    set_table(&mut lb, &[1, 2]);
    let second = open_all(ip, &mut lb, 2);
    assert_eq!(
        second.iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([&1, &2])
    );
    set_table(&mut lb, &[0, 1, 2]);
    assert_eq!(open_all(ip, &mut lb, 3), second, "it is back");

    let [_, one, _] = ids(&lb)[..] else {
        panic!("three")
    };
    let record = lb.maps.backends.get(&one, 0).expect("a record");
    let unknown = Backend {
        next_hop: Mac::default(),
        ..record
    };
    lb.maps.backends.set(one, &unknown, 0).expect("a write");
    let third = open_all(ip, &mut lb, 4);
    assert!(!third.contains(&1), "{third:?}");
    lb.maps.backends.set(one, &record, 0).expect("a write");
    assert_eq!(open_all(ip, &mut lb, 5), third, "its next hop is back");

    let flows = UsageTable::open(&lb.maps_folder()).expect("the numbers");
    flows.backends().add(ids(&lb)[2], 9);
    let fourth = open_all(ip, &mut lb, 6);
    assert!(!fourth.contains(&2), "{fourth:?}");
    flows.backends().add(ids(&lb)[2], -9);
    assert_eq!(open_all(ip, &mut lb, 7), fourth, "it has room again");
    assert_ne!(first, second);
}

/// The client's next connection goes where the one was taken that its backend had not answered.
#[privileged_test(families)]
fn the_backend_of_a_redispatch_is_remembered(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, ", source_timeout: 1m"));
    set_table(&mut lb, &[0]);
    assert_eq!(open_from(ip, &mut lb, Port::Tenant, 50, 7), 0);
    set_table(&mut lb, &[0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(open_from(ip, &mut lb, Port::Tenant, 50, 8), 0);
    let id = DataPlane::flow_id(1025);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.last_seen = flow.last_seen.wrapping_sub(ANSWER_TIMEOUT);
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    assert_eq!(
        open_from(ip, &mut lb, Port::Tenant, 50, 8),
        1,
        "redispatched"
    );
    assert_eq!(
        open_from(ip, &mut lb, Port::Tenant, 50, 9),
        1,
        "the next one"
    );
}

#[privileged_test(families)]
fn clients_of_two_networks_have_each_their_own(ip: &Family) {
    let mut lb = DataPlane::new(&config_of_two(ip));
    for (port, from) in [Port::Tenant, Port::SecondMgmt].into_iter().enumerate() {
        set_table(&mut lb, &[port]);
        for host in HOSTS {
            assert_eq!(open_from(ip, &mut lb, from, host, 1), port, "{host}");
        }
    }
    set_table(&mut lb, &[2, 1, 0]);
    for (port, from) in [Port::Tenant, Port::SecondMgmt].into_iter().enumerate() {
        for host in HOSTS {
            assert_eq!(open_from(ip, &mut lb, from, host, 2), port, "{host}");
        }
    }
}
