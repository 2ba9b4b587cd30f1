//! The mark of a flow that userspace is about to close for being idle, when another end comes first.

use std::collections::BTreeSet;

use lb_common::{
    conntrack::{FlowState, State},
    maps::usage,
};
use lb_tests::{
    frames::packet::flags::*,
    product::program::{DataPlane, IDS, Port},
};

use super::{
    given::*,
    ring::{PLACES, far_api, two_networks},
};

/// A marked half-open flow whose place is taken is over once, whatever its client sends afterwards.
#[privileged_test]
fn a_marked_flow_that_is_recycled_ends_once() {
    let mut lb = DataPlane::new(&two_networks(&Family::V4));
    let syn = |client: &str, vip: &str| request(client, vip, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn(CLIENT_A, API));
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = FlowState::from_raw(flow.word).expiring().raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    // Those of another network of backends, which do not take its id.
    for port in 0..PLACES {
        let client = format!("192.168.203.51:{}", 20_000 + port);
        forwarded(&mut lb, Port::Tenant, &syn(&client, &far_api(&Family::V4)));
    }
    let word = lb.maps.flows.get(&id, 0).expect("an entry").word;
    assert_eq!(FlowState::from_raw(word).state(), State::Closed);

    let ack = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    for _ in 0..2 {
        forwarded(&mut lb, Port::Tenant, &ack);
    }

    let (network, _) = lb.desired.networks[1];
    let used = lb.maps.usage(usage::network(network)).expect("a count");
    assert_eq!(used, 0);
    let free = lb.drain_free_ids();
    let different: BTreeSet<u32> = free.iter().copied().collect();
    assert_eq!([free.len(), different.len()], [IDS; 2]);
}
