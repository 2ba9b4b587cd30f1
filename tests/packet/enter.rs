//! What enters a cell unasked has a rate for each network and kind; what its sockets talk to has none.

use std::{
    net::Ipv4Addr,
    num::NonZeroUsize,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use aya::maps::{Array, Map, MapData};
use lb_common::{
    contact::PLACES,
    maps::flow::TIME_SHIFT,
    rate::{ERRORS, Rate, STRANGERS, SYNS},
    station::MAX_STATIONS,
};
use lb_tests::{
    frames::packet::{flags::*, icmp, tag, tcp},
    product::program::{Action, DataPlane, MGMT_NIC, Port, TENANT_NIC, node_mac},
};

use super::{
    given::{API, CLIENT_A, CLIENT_B, KAS, KAS_MAC, assert_dropped, request, snat},
    peers::hear,
};

/// The tenants' APIs are shared.
const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
  tenant-b: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24] }
pools:
  kas:  { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api:   { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], sni: { syn_cookies: never, routes: [{ names: [a.lab], pool: kas }] } }
  api-b: { network: tenant-b, listen: ["192.168.203.110:6443/tcp"], sni: { syn_cookies: never, routes: [{ names: [b.lab], pool: kas }] } }
"#;

/// One tenant has a large link, and a network behind a gateway.
const ROUTED: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24, 10.99.0.0/16], routes: [{ to: 10.50.0.0/16, via: 192.168.203.1 }] }
pools:
  kas:  { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api:   { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], sni: { syn_cookies: never, routes: [{ names: [a.lab], pool: kas }] } }
"#;

/// Far more than any burst, in far less than a second.
const FLOOD: u32 = 100_000;

/// Sends a frame that goes on unchanged again and again; how many of them were delivered, the others being over
/// the rate.
fn delivered(lb: &mut DataPlane, port: Port, network: &str, frame: &[u8]) -> u64 {
    let count = |lb: &DataPlane, verdict| {
        let key = ("nic", network.to_owned(), verdict);
        lb.counters().get(&key).copied().unwrap_or(0)
    };
    let both = |lb: &DataPlane| [count(lb, "delivered"), count(lb, "cell_rate")];
    let [before, over] = both(lb);
    lb.run(port, frame, FLOOD);
    let [after, now_over] = both(lb);
    let count = after - before;
    assert_eq!(count + now_over - over, u64::from(FLOOD), "nothing else");
    count
}

/// Of segments from these hosts of a /16, how many are delivered.
fn admitted(lb: &mut DataPlane, prefix: &str, hosts: Range<u16>, flags: u8) -> usize {
    let hosts = hosts.map(u16::to_be_bytes);
    let ends = hosts.map(|[high, low]| {
        let frame = request(&format!("{prefix}.{high}.{low}:1024"), API, flags);
        lb.receive(Port::Tenant, &frame.bytes()).counted.2
    });
    ends.filter(|end| *end == "delivered").count()
}

/// Asserts that of a flood of this frame as many get in as a full bucket has, and what comes into it meanwhile: on a
/// machine that is slower than the rate that may be all.
fn assert_limited(lb: &mut DataPlane, port: Port, network: &str, frame: &[u8], rate: Rate) {
    let first = assert_over(lb, port, network, frame, rate);
    assert!(first >= u64::from(rate.burst), "{first}");
}

/// As [`assert_limited`], where the bucket is not full any more; how many got in.
fn assert_over(lb: &mut DataPlane, port: Port, network: &str, frame: &[u8], rate: Rate) -> u64 {
    let begun = Instant::now();
    let count = delivered(lb, port, network, frame);
    let most = most_within(rate, begun.elapsed());
    assert!(count <= most, "{count} of {most}");
    count
}

/// What full buckets let through in this time. Each CPU has its own, and the runs of a flood may be on several.
pub(super) fn most_within(rate: Rate, time: Duration) -> u64 {
    let cpus = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // The clock of packets goes on with each tick of the kernel only, every 10 ms at the latest.
    let units = 10 + u64::try_from(time.as_nanos() >> TIME_SHIFT).expect("a short time");
    (u64::from(rate.burst) + units * u64::from(rate.refill)) * u64::try_from(cpus).expect("few")
}

/// From the cell of the tenant to a client.
fn cell_says(lb: &mut DataPlane, flags: u8) {
    let client = node_mac(Ipv4Addr::new(192, 168, 203, 50));
    let frame = tcp(API, CLIENT_A, flags).between(TENANT_NIC, client);
    let outcome = lb.receive(Port::Cell("tenant-a"), &frame.bytes());
    assert_eq!(outcome.counted.2, "forwarded");
}

#[privileged_test]
fn each_kind_of_a_tenants_flood_is_limited_by_itself() {
    let mut lb = DataPlane::new(CONFIG);
    let router = node_mac(Ipv4Addr::new(192, 168, 203, 1));
    let quoted = tcp(API, CLIENT_A, ACK_ONLY).bytes()[14..42].to_vec();
    let error = icmp("192.168.203.1", "192.168.203.110", (3, 4), 1280);
    let error = error.between(router, TENANT_NIC).payload(&quoted).bytes();
    let syn = request(CLIENT_A, API, SYN_ONLY).bytes();
    assert_limited(&mut lb, Port::Tenant, "tenant-a", &syn, SYNS);
    for flags in [ACK_ONLY, SYN_ACK, FIN_ACK, RST_ONLY] {
        // All of them share one bucket, which is full for the first.
        let segment = request(CLIENT_A, API, flags).bytes();
        let count = assert_over(&mut lb, Port::Tenant, "tenant-a", &segment, STRANGERS);
        if flags == ACK_ONLY {
            assert!(count >= u64::from(STRANGERS.burst), "{count}");
        }
    }
    assert_limited(&mut lb, Port::Tenant, "tenant-a", &error, ERRORS);

    // The other tenant has buckets of its own.
    let theirs = tag(&request(CLIENT_A, API, SYN_ONLY).bytes(), 2004);
    let outcome = lb.receive(Port::Tenant, &theirs);
    let counted = ("nic", "tenant-b".to_owned(), "delivered");
    assert_eq!(
        (outcome.action, outcome.counted),
        (Action::Redirect, counted)
    );
}

/// A client that is denied takes no token.
#[privileged_test]
fn a_denied_flood_takes_nothing_of_the_rate() {
    let mut lb = DataPlane::new(CONFIG);
    let spoofed = request("10.9.9.9:40000", API, SYN_ONLY).bytes();
    lb.run(Port::Tenant, &spoofed, FLOOD);
    assert_dropped(&mut lb, Port::Tenant, &spoofed, "spoofed");
    let syn = request(CLIENT_A, API, SYN_ONLY).bytes();
    assert_limited(&mut lb, Port::Tenant, "tenant-a", &syn, SYNS);
}

#[privileged_test]
fn what_a_socket_of_the_cell_talks_to_has_no_rate() {
    let mut lb = DataPlane::new(CONFIG);
    let of = |client, flags| request(client, API, flags).payload(b"more").bytes();
    // What any station can have the kernel say is no sign of a socket.
    cell_says(&mut lb, SYN_ACK);
    cell_says(&mut lb, RST_ONLY);
    cell_says(&mut lb, RST_ACK);
    let stranger = of(CLIENT_A, ACK_ONLY);
    assert_limited(&mut lb, Port::Tenant, "tenant-a", &stranger, STRANGERS);
    cell_says(&mut lb, ACK_ONLY);
    for flags in [ACK_ONLY, FIN_ACK, RST_ONLY] {
        let known = of(CLIENT_A, flags);
        let count = delivered(&mut lb, Port::Tenant, "tenant-a", &known);
        assert_eq!(count, u64::from(FLOOD), "all of them");
    }
    // Another port, another client, the same of another tenant: none of these.
    let others = [of("192.168.203.50:40001", ACK_ONLY), of(CLIENT_B, ACK_ONLY)];
    for other in others {
        assert_over(&mut lb, Port::Tenant, "tenant-a", &other, STRANGERS);
    }
    let theirs = tag(&of(CLIENT_A, ACK_ONLY), 2004);
    let outcome = lb.receive(Port::Tenant, &theirs);
    assert_eq!(outcome.counted.2, "delivered");
    let syn = of(CLIENT_A, SYN_ONLY);
    assert_limited(&mut lb, Port::Tenant, "tenant-a", &syn, SYNS);
}

/// The answers to checks: of the target that was asked without a rate, of others at one.
#[privileged_test]
fn what_answers_a_check_has_no_rate_and_what_pretends_to_has_one() {
    let mut lb = DataPlane::new(CONFIG);
    hear(&lb, &[("mgmt", KAS)]);
    let from_node = |port, flags| {
        let segment = tcp(KAS, &snat(port), flags).numbers(7000, 9000);
        segment.between(KAS_MAC, MGMT_NIC).bytes()
    };
    let pretended = from_node(64_512, SYN_ACK);
    assert_limited(&mut lb, Port::Mgmt, "mgmt", &pretended, STRANGERS);
    let asks = tcp(&snat(64_513), KAS, SYN_ONLY).between(MGMT_NIC, KAS_MAC);
    let outcome = lb.receive(Port::Cell("mgmt"), &asks.bytes());
    assert_eq!(outcome.counted.2, "forwarded");
    let count = delivered(&mut lb, Port::Mgmt, "mgmt", &from_node(64_513, SYN_ACK));
    assert_eq!(count, u64::from(FLOOD));
    assert_over(&mut lb, Port::Mgmt, "mgmt", &pretended, STRANGERS);
}

/// A client that says nothing for a minute is a stranger again.
#[privileged_test]
fn a_note_wears_off() {
    let mut lb = DataPlane::new(CONFIG);
    cell_says(&mut lb, ACK_ONLY);
    let segment = request(CLIENT_A, API, ACK_ONLY).bytes();
    let count = delivered(&mut lb, Port::Tenant, "tenant-a", &segment);
    assert_eq!(count, u64::from(FLOOD));
    let map = MapData::from_pin(lb.maps_folder().join("CONTACTS")).expect("a pin");
    let mut contacts: Array<MapData, u32> = Map::Array(map).try_into().expect("words");
    let noted: Vec<_> = (0..PLACES)
        .filter_map(|place| {
            Some((
                place,
                contacts.get(&place, 0).ok().filter(|note| *note != 0)?,
            ))
        })
        .collect();
    let [(place, note)] = noted.as_slice() else {
        panic!("one note: {noted:x?}");
    };
    let two_minutes_ago = note & !0x7fff | note.wrapping_sub(112) & 0x7fff;
    contacts.set(*place, &two_minutes_ago, 0).expect("a write");
    assert_limited(&mut lb, Port::Tenant, "tenant-a", &segment, STRANGERS);
}

/// The kernel has one table of neighbours for all tenants: a host that has a whole prefix does not fill it.
#[privileged_test]
fn a_network_adds_so_many_stations_in_a_second() {
    let mut lb = DataPlane::new(ROUTED);
    let most = MAX_STATIONS as usize;
    let started = Instant::now();
    let mut added = admitted(&mut lb, "10.99", 1..3000, SYN_ONLY);
    // What answers a segment of a stranger is a reset.
    added += admitted(&mut lb, "10.99", 3000..4000, ACK_ONLY);
    let units = usize::try_from(started.elapsed().as_millis() / 1000).expect("a number") + 2;
    assert!((most..=most * units).contains(&added), "{added} {units}");
    // Behind a gateway one neighbour is enough.
    assert_eq!(admitted(&mut lb, "10.50", 1..3000, SYN_ONLY), 2999);
}
