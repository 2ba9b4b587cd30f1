//! Flows of another box, placed in the table by userspace: the data plane translates what comes for them as for its own.

use std::collections::HashSet;

use lb_common::{
    addr::Be16,
    conntrack::{FlowState, State},
    maps::{
        flow::Flow,
        network::{Address, KIND_QUIET},
        usage,
    },
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp},
    product::program::{DataPlane, IDS, MGMT_NIC, Port},
};
use lb_user::dataplane::{
    labels::Labels,
    maps::Maps,
    replicas::{ClientEnd, Placed, Replica, Replicas},
};

use super::{
    bind_plain::{self, connected, met},
    cookies::start_with,
    given::*,
};

pub(super) fn replicas(lb: &DataPlane) -> Replicas {
    let folder = lb.maps_folder();
    let maps = Maps::open(&folder).expect("the maps");
    Replicas::open(&folder, maps).expect("the tables")
}

/// What a box has of the flow of a port, as it stands on another box with the same names and clock.
pub(super) fn replica(lb: &DataPlane, port: u16) -> Replica {
    let id = DataPlane::flow_id(port);
    let (word, flow) = lb.flow_table().flow(id).expect("a flow");
    let labels = Labels::open(&lb.maps_folder()).expect("the labels");
    Replica {
        word,
        flow: Flow {
            traffic_request: 0,
            traffic_reply: 0,
            ..flow
        },
        client: labels.client6(id, &flow),
        numbers: lb.splices().numbers(id, word),
        name: lb.splices().name(id, word).unwrap_or_default(),
    }
}

/// The same, seen so many units later.
fn later(replica: &Replica, units: i32) -> Replica {
    let last_seen = replica.flow.last_seen.wrapping_add_signed(units);
    Replica {
        flow: Flow {
            last_seen,
            ..replica.flow
        },
        ..replica.clone()
    }
}

fn state(lb: &DataPlane, port: u16) -> State {
    let word = lb.flow_table().word(DataPlane::flow_id(port));
    word.expect("an entry").state()
}

/// Live flows of the clients' network.
fn used(lb: &DataPlane) -> u32 {
    let (network, _) = lb.desired.networks[1];
    lb.maps.usage(usage::network(network)).expect("a count")
}

/// A flow goes on at another box, both ways, until its ends have closed it.
#[privileged_test]
fn a_replica_is_translated_as_its_flow_was() {
    for family in [Family::V4, Family::V6] {
        let mut lb = DataPlane::alone(family.config);
        family.establish(&mut lb, family.client_a, 1024);
        let request = request_of(&family, family.client_a, ACK_ONLY).payload(b"more");
        let answer = family
            .reply(1024, ACK_ONLY)
            .numbers(BACKEND_ISN + 1, CLIENT_ISN + 5)
            .payload(b"yes");
        let sent = [
            forwarded(&mut lb, Port::Tenant, &request),
            forwarded(&mut lb, Port::Mgmt, &answer),
        ];
        let replica = replica(&lb, 1024);
        drop(lb);

        let mut lb = DataPlane::alone(family.config);
        assert_refused(&mut lb, Port::Tenant, &request.bytes(), "no_flow");
        // What this box had there before: nothing of it is left.
        family.establish(&mut lb, family.client_b, 1024);
        assert_eq!(used(&lb), 1);
        let labels = Labels::open(&lb.maps_folder()).expect("the labels");
        let mut replica = later(&replica, 1 << 20);
        if let Some(client) = replica.client {
            replica.flow.client = labels.hash(client);
        }
        let mut replicas = replicas(&lb);
        let placed = replicas.place(DataPlane::flow_id(1024), &replica);
        assert_eq!(placed, Placed::Ready);
        assert_eq!(used(&lb), 1, "one has gone, and one come");
        assert_eq!(forwarded(&mut lb, Port::Tenant, &request), sent[0]);
        assert_eq!(forwarded(&mut lb, Port::Mgmt, &answer), sent[1]);
        let other = request_of(&family, family.client_b, ACK_ONLY).bytes();
        assert_refused(&mut lb, Port::Tenant, &other, "no_flow");

        let fin = request_of(&family, family.client_a, FIN_ACK);
        let fin = fin.numbers(CLIENT_ISN + 5, BACKEND_ISN + 4);
        forwarded(&mut lb, Port::Tenant, &fin);
        let fin = family.reply(1024, FIN_ACK);
        let fin = fin.numbers(BACKEND_ISN + 4, CLIENT_ISN + 6);
        forwarded(&mut lb, Port::Mgmt, &fin);
        assert_eq!(state(&lb, 1024), State::Closed);
        assert_eq!((used(&lb), lb.drain_free_ids().len()), (0, IDS));
    }
}

fn request_of(family: &Family, client: &str, flags: u8) -> Frame {
    request(client, family.api, flags).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
}

/// A flow behind a cookie keeps what its numbers are translated by.
#[privileged_test]
fn the_numbers_of_a_replica_are_translated() {
    let mut lb = start_with(bind_plain::CONFIG);
    let (answer, _, end) = connected(&mut lb);
    met(&mut lb, &end);
    let port: u16 = end.rsplit(':').next().unwrap().parse().expect("a port");
    let request = answer.segment(0, ACK_ONLY).payload(b"hi").bytes();
    let sent = passed_on(&mut lb, Port::Tenant, &request);
    let replica = replica(&lb, port);
    assert!(replica.numbers.is_some() && replica.word.is_spliced());
    drop(lb);

    let mut lb = DataPlane::alone(bind_plain::CONFIG);
    let mut replicas = replicas(&lb);
    let id = DataPlane::flow_id(port);
    assert_eq!(replicas.place(id, &replica), Placed::Ready);
    assert_eq!(passed_on(&mut lb, Port::Tenant, &request), sent);
}

/// Of two boxes that know a flow the one is right that has forwarded its latest packet.
#[privileged_test]
fn an_older_replica_changes_nothing() {
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let found = lb.flow_table().flow(id).expect("a flow");
    let replica = replica(&lb, 1024);
    let mut replicas = replicas(&lb);
    assert_eq!(replicas.place(id, &later(&replica, -1)), Placed::Later);
    let strange = Flow {
        client_port: Be16::new(40_001),
        ..replica.flow
    };
    let strange = Replica {
        flow: strange,
        ..replica.clone()
    };
    assert_eq!(replicas.place(id, &later(&strange, -1)), Placed::Later);
    assert_eq!(lb.flow_table().flow(id), Some(found));

    let newer = later(&replica, 1);
    assert_eq!(replicas.place(id, &newer), Placed::Ready);
    let (word, flow) = lb.flow_table().flow(id).expect("a flow");
    assert_eq!((word, flow.last_seen), (found.0, newer.flow.last_seen));
    assert_eq!(flow.traffic_request, 0, "counted already");
    assert_eq!(used(&lb), 1);
}

#[privileged_test]
fn an_end_is_that_of_the_flow_which_was_seen_then() {
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let flow = replica(&lb, 1024).flow;
    let (client, last_seen) = (ClientEnd::of(&flow), flow.last_seen);
    let mut replicas = replicas(&lb);
    assert!(replicas.end(id, &client, last_seen.wrapping_sub(1)));
    let other = ClientEnd {
        client: (flow.client, Be16::new(40_001)),
        ..client
    };
    assert!(replicas.end(id, &other, last_seen), "another client's");
    assert_eq!(state(&lb, 1024), State::Established);
    assert!(replicas.end(id, &client, last_seen));
    assert_eq!((state(&lb, 1024), used(&lb)), (State::Closed, 0));
    assert!(replicas.end(id, &client, last_seen), "once more");
    let free = lb.drain_free_ids();
    assert_eq!((free.len(), free.last()), (IDS, Some(&id)));
}

/// What has not come when all has come is over, if the peer had it and this box has not forwarded a packet of it.
#[privileged_test]
fn a_replica_that_comes_no_more_ends() {
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let replica = replica(&lb, 1024);
    let last_seen = replica.flow.last_seen;
    let mut replicas = replicas(&lb);
    assert!(
        !replicas.end_missing(id, last_seen.wrapping_sub(9)),
        "forwarded here"
    );
    assert_eq!(replicas.place(id, &replica), Placed::Ready);
    assert!(!replicas.end_missing(id, last_seen), "from before");
    assert!(replicas.end_missing(id, last_seen.wrapping_sub(1)));
    assert_eq!((state(&lb, 1024), used(&lb)), (State::Closed, 0));
}

/// A box that was rebooted has all ids in its queues, those of flows that live on at the other one as well.
#[privileged_test]
fn an_id_of_a_replica_is_not_in_its_queue_twice() {
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let replica = replica(&lb, 1024);
    drop(lb);

    let lb = DataPlane::alone(CONFIG);
    let id = DataPlane::flow_id(1024);
    let mut replicas = replicas(&lb);
    assert_eq!(replicas.place(id, &replica), Placed::Ready);
    replicas.take_out(0);
    let free = lb.drain_free_ids();
    assert!(free.len() == IDS - 1 && !free.contains(&id));
    lb.give_free_ids(&free);
    let client = ClientEnd::of(&replica.flow);
    assert!(replicas.end(id, &client, replica.flow.last_seen));
    replicas.take_out(0);
    let free: HashSet<u32> = lb.drain_free_ids().into_iter().collect();
    assert_eq!(free.len(), IDS);
}

/// A client's packets go by one flow: the one that is seen last.
#[privileged_test]
fn a_client_that_came_again_has_one_flow() {
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let replica = replica(&lb, 1024);
    let mut replicas = replicas(&lb);
    let ids = [1024, 1025].map(DataPlane::flow_id);
    assert_eq!(replicas.place(ids[1], &later(&replica, -1)), Placed::Taken);
    assert_eq!(
        (state(&lb, 1024), state(&lb, 1025)),
        (State::Established, State::Free)
    );
    assert_eq!(replicas.place(ids[1], &later(&replica, 1)), Placed::Ready);
    assert_eq!(
        (state(&lb, 1024), state(&lb, 1025)),
        (State::Closed, State::Established)
    );
    assert_eq!(used(&lb), 1);
    let sent = forwarded(&mut lb, Port::Tenant, &request(CLIENT_A, API, ACK_ONLY));
    let wanted = tcp(&snat(1025), KAS, ACK_ONLY).ttl(63);
    assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
}

/// The same client at the same port again, whose connection goes elsewhere, is another flow.
#[privileged_test]
fn a_replica_with_another_backend_is_another_flow() {
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let before = lb.flow_table().word(id).expect("an entry");
    let replica = later(&replica(&lb, 1024), 1);
    let elsewhere = Flow {
        backend_port: Be16::new(30_919),
        ..replica.flow
    };
    let other = Replica {
        flow: elsewhere,
        ..replica
    };
    let mut replicas = replicas(&lb);
    assert_eq!(replicas.place(id, &other), Placed::Ready);
    let (word, flow) = lb.flow_table().flow(id).expect("a flow");
    assert_ne!(word.generation(), before.generation());
    assert_eq!((flow.backend_port, used(&lb)), (Be16::new(30_919), 1));
    assert_eq!(lb.drain_free_ids().len(), IDS - 1, "its id is in no queue");
}

/// What a CPU or a socket has is left alone.
#[privileged_test]
fn an_entry_that_another_has_is_left_alone() {
    let lb = DataPlane::alone(CONFIG);
    let id = DataPlane::flow_id(1024);
    let table = lb.flow_table();
    let claimed = FlowState::default().claim(false);
    let live = Replica {
        word: claimed.establish(),
        flow: Flow::default(),
        client: None,
        numbers: None,
        name: String::new(),
    };
    let mut replicas = replicas(&lb);
    assert!(table.swap(id, FlowState::default(), claimed));
    assert_eq!(replicas.place(id, &live), Placed::Busy);
    assert!(table.swap(id, claimed, claimed.lend()));
    assert_eq!(replicas.place(id, &later(&live, 1)), Placed::Later);
    let client = ClientEnd::of(&live.flow);
    assert!(replicas.end(id, &client, 1) && !replicas.end_missing(id, u32::MAX));
    assert_eq!(table.word(id), Some(claimed.lend()));
}

/// Has the address of every VIP and SNAT address be as one that was another box's a moment ago.
fn quiet(lb: &mut DataPlane) {
    let addresses: Vec<_> = lb
        .maps
        .addresses
        .iter()
        .map(|one| one.expect("an address"))
        .collect();
    for (key, address) in addresses {
        let quiet = Address {
            kind: address.kind | KIND_QUIET,
            ..address
        };
        lb.maps.addresses.insert(&key, &quiet, 0).expect("a write");
    }
}

/// While flows may still come from the other box, a segment of none has no answer, and all else has its own.
#[privileged_test]
fn a_segment_of_no_flow_has_no_answer_at_a_quiet_address() {
    for family in [Family::V4, Family::V6] {
        let mut lb = DataPlane::alone(family.config);
        let stray = request_of(&family, family.client_b, ACK_ONLY).bytes();
        let late = family.reply(1025, ACK_ONLY).numbers(5000, 1000).bytes();
        assert_refused(&mut lb, Port::Tenant, &stray, "no_flow");
        assert_refused(&mut lb, Port::Mgmt, &late, "reply_mismatch");
        quiet(&mut lb);
        assert_dropped(&mut lb, Port::Tenant, &stray, "no_flow");
        assert_dropped(&mut lb, Port::Mgmt, &late, "reply_mismatch");
        family.establish(&mut lb, family.client_a, 1024);
        let syn = request(family.client_b, family.empty, SYN_ONLY).bytes();
        assert_refused(&mut lb, Port::Tenant, &syn, "no_backend");
    }
}
