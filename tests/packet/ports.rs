//! SNAT ports that are drawn by lot, as `lb` does it: other tests have them in order.

use lb_common::maps::snat::{FIRST_FLOW_PORT, FIRST_LEG_PORT, base};
use lb_tests::{
    frames::packet::{flags::*, tcp},
    product::program::{CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

const FLOWS: u16 = 200;

/// Flows have ids in a row and ports that are not, and what comes to a port reaches the client of its flow.
#[privileged_test(families)]
fn a_port_that_is_drawn_leads_both_ways(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    lb.draw_ports().expect("lots");
    let mut ports = Vec::new();
    for number in 0..FLOWS {
        let client = ip.end(ip.host, 20_000 + number);
        let syn = request(&client, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
        let sent = forwarded(&mut lb, Port::Tenant, &syn);
        let port = u16::from_be_bytes([sent[ip.l4()], sent[ip.l4() + 1]]);
        assert!((FIRST_FLOW_PORT..FIRST_LEG_PORT).contains(&port));
        let wanted = tcp(&ip.snat(port), ip.kas, SYN_ONLY).numbers(CLIENT_ISN, 0);
        let wanted = wanted.ttl(63).between(MGMT_NIC, ip.kas_mac);
        assert_frame(&sent, &wanted);

        let id = base(0) + u32::from(number);
        let flow = lb.maps.flows.get(&id, 0).expect("an entry");
        assert_eq!(
            (flow.client_port.get(), flow.snat_port.get()),
            (20_000 + number, port)
        );
        let address = lb.desired.snat[0].address();
        assert_eq!(lb.maps.snat_ports.flow_id(&address, port), Some(id));
        ports.push(port);
    }
    for (number, port) in (0..).zip(&ports) {
        let answer = ip
            .reply(*port, SYN_ACK)
            .numbers(BACKEND_ISN, CLIENT_ISN + 1);
        let sent = forwarded(&mut lb, Port::Mgmt, &answer);
        let client = ip.end(ip.host, 20_000 + number);
        let wanted = tcp(ip.api, &client, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
        assert_frame(&sent, &wanted.ttl(63).between(TENANT_NIC, CLIENT));
    }
    // Four are expected within 562 of the one before; forty come once in 10^25 times.
    let near = ports
        .windows(2)
        .filter(|pair| pair[0].abs_diff(pair[1]) < 562);
    assert!(near.count() < 40, "{ports:?}");
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), usize::from(FLOWS), "no port twice");
}
