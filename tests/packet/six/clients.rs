//! Clients whose addresses have the same hash: one of them has a flow, and no other gets into it.

use lb_common::{addr::Be128, maps::addr6::HashKey};
use lb_tests::frames::{cut::pieces, six::read};

use super::given::*;

/// A key under which one word of an address does not count: `::x:0:0:y` and `::z:0:0:y` are the same.
const BLIND: HashKey = HashKey([3, 5 << 40, 7 << 40, 0, 13 << 40]);
/// As [`CLIENT_A`] to that key.
const TWIN: &str = "[fd00:203::7:0:0:50]:40000";

/// Of two clients with the same hash the first has the flow; the other's packets are no part of it, and
/// nothing of it changes.
#[privileged_test]
fn a_client_with_the_same_hash_is_refused() {
    let mut lb = DataPlane::new(CONFIG);
    lb.set_hash_key(BLIND);
    let [a, twin] = [HOST, "fd00:203::7:0:0:50"].map(|text| {
        let address: std::net::Ipv6Addr = text.parse().expect("an address");
        BLIND.client(Be128::from(address))
    });
    assert_eq!(a, twin);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    let says = |flags| {
        let frame = request(TWIN, API, flags).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
        frame.bytes()
    };
    assert_dropped(&mut lb, Port::Tenant, &says(SYN_ONLY), "flow_race");
    assert_dropped(&mut lb, Port::Tenant, &says(RST_ACK), "no_flow");
    for flags in [ACK_ONLY, FIN_ACK] {
        assert_refused(&mut lb, Port::Tenant, &says(flags), "no_flow");
    }
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
    assert_eq!(lb.client6(id).to_string(), HOST);
    // The first one goes on; from another port the second one is served too.
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &data);
    let syn = request("[fd00:203::7:0:0:50]:40001", API, SYN_ONLY);
    forwarded(&mut lb, Port::Tenant, &syn);
}

/// The address beside the flow is what counts, and not the hash alone.
#[privileged_test]
fn a_flow_belongs_to_the_address_beside_it() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    lb.set_client6(id, "fd00:203::99");
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_refused(&mut lb, Port::Tenant, &data.bytes(), "no_flow");
    // A reply goes to the client of the flow.
    let back = reply(1024, ACK_ONLY).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    let sent = forwarded(&mut lb, Port::Mgmt, &back);
    let wanted = tcp(API, "[fd00:203::99]:40000", ACK_ONLY)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1)
        .ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    lb.set_client6(id, HOST);
    forwarded(&mut lb, Port::Tenant, &data);
}

/// Once the flow is over, its tuple is free again.
#[privileged_test]
fn the_tuple_of_a_closed_flow_is_free_for_the_other() {
    let mut lb = DataPlane::new(CONFIG);
    lb.set_hash_key(BLIND);
    establish(&mut lb, CLIENT_A, 1024);
    let reset = reply(1024, RST_ONLY).numbers(BACKEND_ISN + 1, 0);
    forwarded(&mut lb, Port::Mgmt, &reset);
    let syn = request(TWIN, API, SYN_ONLY).numbers(77, 0);
    let sent = forwarded(&mut lb, Port::Tenant, &syn);
    let read = read(&sent).expect("IPv6");
    let [port, _] = read.ports();
    let id = DataPlane::flow_id(port);
    assert_eq!(lb.client6(id).to_string(), "fd00:203::7:0:0:50");
}

/// A piece of the one is no part of a datagram of the other.
#[privileged_test]
fn a_piece_of_the_other_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    lb.set_hash_key(BLIND);
    let [mine, twins] = [CLIENT_A, TWIN].map(|client| {
        let whole = query(client).payload(&[7; 100]).bytes();
        pieces(&whole, 7, &[48])
    });
    passed_on(&mut lb, Port::Tenant, &mine[0]);
    assert_dropped(&mut lb, Port::Tenant, &twins[1], "fragment_early");
    passed_on(&mut lb, Port::Tenant, &mine[1]);
}
