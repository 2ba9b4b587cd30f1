//! What a packet costs: printed, never asserted.

use lb_common::{
    addr::{Be16, Be32},
    maps::{backend::Backend, snat::SnatPage},
};
use lb_tests::{
    packet::flags::*,
    program::{Action, DataPlane, Port, TENANT_NIC},
};

use super::given::*;

/// Runs per call: one hop less each time, from 255.
const REPEAT: u32 = 200;
const ROUNDS: usize = 51;

/// BPF_PROG_TEST_RUN does not restore the packet between runs, so the translation is made the
/// identity: the backend is the VIP, the SNAT address the client, and the next hop our own NIC.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn an_established_request() {
    let mut lb = DataPlane::new(CONFIG);
    let (client, vip) = ("192.168.203.50:1024", "192.168.203.110:6443");
    let (id, record) = lb.desired.backends[0];
    let [client_address, vip_address] = [[192, 168, 203, 50], [192, 168, 203, 110]]
        .map(|octets| Be32::new(u32::from_be_bytes(octets)));
    let record = Backend {
        address: vip_address,
        port: Be16::new(6443),
        next_hop: TENANT_NIC,
        ..record
    };
    lb.maps.backends.set(id, &record, 0).expect("a write");
    let flow_id = DataPlane::flow_id(1024);
    let page = lb
        .maps
        .snat_pages
        .get(&(flow_id / 1024), 0)
        .expect("the page");
    let page = SnatPage {
        address: client_address,
        ..page
    };
    lb.maps
        .snat_pages
        .set(flow_id / 1024, &page, 0)
        .expect("a write");

    forwarded(&mut lb, Port::Tenant, &request(client, vip, SYN_ONLY));
    let frame = request(client, vip, ACK_ONLY)
        .numbers(1001, 5001)
        .ttl(255)
        .bytes();
    let mut rounds: Vec<u64> = (0..ROUNDS)
        .map(|_| {
            let ((action, out), nanoseconds) = lb.run(Port::Tenant, &frame, REPEAT);
            assert_eq!(action, Action::Redirect);
            assert_eq!(
                u32::from(out[22]),
                255 - REPEAT,
                "every run was a translation"
            );
            nanoseconds
        })
        .collect();
    rounds.sort_unstable();
    println!(
        "established request, one hot flow: {} ns a packet (min {}, max {}; {REPEAT} x {ROUNDS})",
        rounds[ROUNDS / 2],
        rounds[0],
        rounds[ROUNDS - 1]
    );
}
