//! The peers of a cell: what comes from them to its ports goes in, and nothing else does. They come, go
//! after a while, and outlive the process that has said so.

use std::{
    collections::HashSet,
    fs,
    net::SocketAddrV4,
    time::{Duration, Instant},
};

use lb_common::{addr::Be16, maps::cell_peer::PeerKey};
use lb_tests::{
    frames::packet::{Frame, flags::*, icmp, tag, tcp},
    product::program::{Action, DataPlane, MGMT_NIC, Port},
};
use lb_user::{
    dataplane::{object::Object, peers::LocalPeers},
    model::registry::Kind,
};

use super::given::{KAS, KAS_MAC, assert_dropped, assert_dropped_on, assert_refused};

/// Two networks with the same addresses.
const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tagged:   { role: tenant, interface: eth1, vlan: 7, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
pools: { kas: { network: mgmt, backends: ["10.32.96.105:30918"] } }
services: {}
"#;

const LOCAL: &str = "10.32.96.50:64512";
/// Places for peers in the data plane of these tests: two for each of 16 backends.
const ROOM: u16 = 32;
/// How long who is not asked any more can still be heard.
const WHILE: Duration = Duration::from_secs(5);

fn peer(lb: &DataPlane, network: &str, address: &str) -> PeerKey {
    let address: SocketAddrV4 = address.parse().expect("an address");
    let network = lb.ids.get(Kind::Network, network).expect("a network");
    PeerKey {
        address: (*address.ip()).into(),
        port: Be16::new(address.port()),
        network: u16::try_from(network).expect("a network's id"),
    }
}

/// Has the cells hear these and no others, and says so itself.
pub(crate) fn hear(lb: &DataPlane, wanted: &[(&str, &str)]) {
    let wanted = wanted.iter();
    let wanted = wanted.map(|(network, address)| peer(lb, network, address));
    let mut peers = LocalPeers::open(&lb.maps_folder()).expect("the peers");
    assert_eq!(peers.set(&wanted.collect(), Instant::now()), []);
}

fn from(node: &str, flags: u8) -> Frame {
    let segment = tcp(node, LOCAL, flags).numbers(7000, 9000);
    segment.between(KAS_MAC, MGMT_NIC)
}

fn is_heard(lb: &mut DataPlane, node: &str) -> bool {
    let outcome = lb.receive(Port::Mgmt, &from(node, SYN_ACK).bytes());
    match (outcome.action, outcome.counted.2) {
        (Action::Redirect, "delivered") => true,
        (Action::Drop, "reply_mismatch") => false,
        other => panic!("{other:?}"),
    }
}

/// Neither another port of a target, nor another address, nor the same one in another network.
#[privileged_test]
fn a_stranger_does_not_get_in_and_is_refused_as_at_any_snat_port() {
    const STRANGERS: [&str; 3] = [
        "10.32.96.105:30919",
        "10.32.96.106:30918",
        "192.0.2.9:30918",
    ];
    let mut lb = DataPlane::new(CONFIG);
    hear(&lb, &[("mgmt", KAS)]);
    assert!(is_heard(&mut lb, KAS));
    for stranger in STRANGERS {
        for flags in [SYN_ONLY, SYN_ACK, RST_ONLY, RST_ACK] {
            let bytes = from(stranger, flags).bytes();
            assert_dropped(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
        }
        for flags in [ACK_ONLY, FIN_ACK] {
            let bytes = from(stranger, flags).bytes();
            let answer = assert_refused(&mut lb, Port::Mgmt, &bytes, "reply_mismatch");
            let wanted = tcp(LOCAL, stranger, RST_ONLY).numbers(9000, 0).bytes();
            assert_eq!(answer[26..48], wanted[26..48], "{stranger}");
        }
        let about = icmp("10.32.96.1", "10.32.96.50", (3, 1), 0).between(KAS_MAC, MGMT_NIC);
        let sent = tcp(LOCAL, stranger, SYN_ONLY).bytes();
        let bytes = about.payload(&sent[14..42]).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "icmp_unrelated");
    }
    let elsewhere = tag(&from(KAS, SYN_ACK).bytes(), 7);
    assert_dropped_on(&mut lb, Port::Mgmt, &elsewhere, "tagged", "reply_mismatch");
}

/// A flood of segments that begin nothing: answered at the rate of refusals, and none of it gets in.
#[privileged_test]
fn a_flood_of_strangers_does_not_reach_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    hear(&lb, &[("mgmt", KAS)]);
    let bytes = from("10.32.96.106:30918", ACK_ONLY).bytes();
    for _ in 0..20_000 {
        lb.run(Port::Mgmt, &bytes, 1);
    }
    let counters = lb.counters();
    let count = |verdict| counters.get(&("nic", "mgmt".to_owned(), verdict)).copied();
    let answered = count("refused: reply_mismatch").expect("some");
    assert!((1000..20_000).contains(&answered), "{answered} of 20000");
    assert_eq!(count("reply_mismatch"), Some(20_000 - answered));
    assert_eq!(count("delivered"), None);
}

#[privileged_test]
fn who_is_not_asked_any_more_is_heard_for_a_while() {
    const OTHER: &str = "10.32.96.106:30918";
    let mut lb = DataPlane::new(CONFIG);
    let [one, other] = [KAS, OTHER].map(|node| peer(&lb, "mgmt", node));
    let mut peers = LocalPeers::open(&lb.maps_folder()).expect("the peers");
    let now = Instant::now();
    assert_eq!(peers.set(&[one].into(), now), []);
    assert_eq!(
        [KAS, OTHER].map(|node| is_heard(&mut lb, node)),
        [true, false]
    );
    assert_eq!(peers.set(&[other].into(), now), []);
    // A later change does not begin the while anew.
    assert_eq!(peers.set(&[other].into(), now + WHILE / 2), []);
    peers.forget(now + WHILE - Duration::from_millis(1), |_| false);
    assert_eq!(
        [KAS, OTHER].map(|node| is_heard(&mut lb, node)),
        [true, true]
    );
    peers.forget(now + WHILE, |_| false);
    assert_eq!(
        [KAS, OTHER].map(|node| is_heard(&mut lb, node)),
        [false, true]
    );

    // A peer that is set again in time stays.
    assert_eq!(peers.set(&[].into(), now), []);
    assert_eq!(peers.set(&[other].into(), now), []);
    peers.forget(now + 2 * WHILE, |_| false);
    assert!(is_heard(&mut lb, OTHER));
}

/// The next process finds those of this one, and knows which of them it does not want.
#[privileged_test]
fn those_of_an_earlier_process_go_like_its_own() {
    const OTHER: &str = "10.32.96.106:30918";
    let mut lb = DataPlane::new(CONFIG);
    let one = peer(&lb, "mgmt", KAS);
    hear(&lb, &[("mgmt", KAS), ("mgmt", OTHER)]);
    let mut peers = LocalPeers::open(&lb.maps_folder()).expect("the peers");
    let now = Instant::now();
    peers.forget(now + WHILE, |_| false);
    assert_eq!(
        [KAS, OTHER].map(|node| is_heard(&mut lb, node)),
        [true, true]
    );
    assert_eq!(peers.set(&[one].into(), now), []);
    peers.forget(now + WHILE, |_| false);
    assert_eq!(
        [KAS, OTHER].map(|node| is_heard(&mut lb, node)),
        [true, false]
    );
}

#[privileged_test]
fn who_is_asked_comes_before_who_was_and_one_too_many_is_said() {
    let mut lb = DataPlane::new(CONFIG);
    let node = |number: u16| format!("10.32.96.{}:30918", 100 + number);
    let keys = |numbers: std::ops::Range<u16>| -> HashSet<PeerKey> {
        numbers
            .map(|number| peer(&lb, "mgmt", &node(number)))
            .collect()
    };
    let (first, second, many) = (keys(0..ROOM), keys(ROOM..2 * ROOM), keys(0..ROOM + 1));
    let mut peers = LocalPeers::open(&lb.maps_folder()).expect("the peers");
    let now = Instant::now();
    assert_eq!(peers.set(&first, now), []);
    assert_eq!(peers.set(&second, now), [], "the first ones leave at once");
    let heard = [0, ROOM].map(|number| is_heard(&mut lb, &node(number)));
    assert_eq!(heard, [false, true]);
    let refused = peers.set(&many, now);
    assert_eq!(refused.len(), 1);
    for number in 0..=ROOM {
        let key = peer(&lb, "mgmt", &node(number));
        assert_eq!(is_heard(&mut lb, &node(number)), !refused.contains(&key));
    }
}

/// The map came after the others of its version.
#[privileged_test]
fn a_start_over_pins_without_the_map_makes_it() {
    let lb = DataPlane::alone(CONFIG);
    fs::remove_file(lb.maps_folder().join("LOCAL_PEERS")).expect("the pin");
    Object::load(lb.pins(), &lb.maps.limits(), 0).expect("it adopts the others");
    hear(&lb, &[("mgmt", KAS)]);
}
