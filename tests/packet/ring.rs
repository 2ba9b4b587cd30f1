//! Rings: a flood takes its own ids again, and those of the queues stay where they are.

use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        event::{BEGAN, RECYCLED},
        snat::base,
    },
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// Places of a ring.
pub(crate) const PLACES: u16 = 64;
/// SYNs of a flood.
const FLOOD: u16 = 1000;
/// Services whose backends are in a network of their own.
pub(super) const FAR_API: &str = "192.168.203.110:7443";
pub(super) const FAR_DNS: &str = "192.168.203.110:54";

fn small() -> String {
    CONFIG.replace(
        "prefixes: [192.168.203.0/24] }",
        &format!("prefixes: [192.168.203.0/24], half_open: {PLACES}, udp_flows: {PLACES} }}"),
    )
}

/// The same, with backends in two networks.
pub(super) fn two_networks() -> String {
    let before = |config: String, what: &str, more: &str| {
        assert!(config.contains(what));
        config.replacen(what, &format!("{more}{what}"), 1)
    };
    let network =
        "  far: { role: mgmt, interface: eth2, prefixes: [10.33.96.0/20], snat: [10.33.96.50] }\n";
    let pools = "  far-a: { network: far, backends: [\"10.33.96.105:30918\"] }\n  \
                 far-dns-a: { network: far, backends: [\"10.33.96.106:30053\"] }\n";
    let config = before(small(), "pools:\n", network);
    let config = before(config, "services:\n", pools);
    format!(
        "{config}  \
         far-a: {{ network: tenant-a, listen: [\"{FAR_API}/tcp\"], pool: far-a }}\n  \
         far-dns-a: {{ network: tenant-a, listen: [\"{FAR_DNS}/udp\"], pool: far-dns-a }}\n"
    )
}

fn client(number: u16) -> String {
    format!("192.168.203.50:{}", 20_000 + number)
}

fn syn(number: u16, vip: &str) -> Frame {
    request(&client(number), vip, SYN_ONLY).numbers(CLIENT_ISN + u32::from(number), 0)
}

fn source_port(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

/// The port that the first packet of a new flow leaves from.
fn opened(lb: &mut DataPlane, frame: &Frame) -> u16 {
    source_port(&forwarded(lb, Port::Tenant, frame))
}

/// The resolver's answer to the flow with this SNAT port.
fn answer(port: u16) -> Frame {
    udp(RESOLVER, &snat(port)).between(RESOLVER_MAC, MGMT_NIC)
}

fn word(lb: &DataPlane, id: u32) -> FlowState {
    FlowState::from_raw(lb.maps.flows.get(&id, 0).expect("an entry").word)
}

/// Ids in the queue of the SNAT address in this slot, in order.
fn queued(lb: &DataPlane, slot: u32) -> Vec<u32> {
    let queue = lb.maps.free_ids(slot).expect("a queue");
    let mut queue = queue.expect("the slot is open");
    std::iter::from_fn(|| queue.pop(0).ok()).collect()
}

/// Asserts that the queue of a SNAT address has all ids but these first ones, in order, and then `back`.
pub(crate) fn assert_untouched(lb: &DataPlane, slot: u16, taken: u16, back: &[u32]) {
    let ids = base(slot) + u32::from(taken)..base(slot + 1);
    let (found, wanted) = (queued(lb, slot.into()), ids.chain(back.iter().copied()));
    let other = found
        .iter()
        .zip(wanted.clone())
        .find(|(id, wanted)| *id != wanted);
    assert_eq!((found.len(), other), (wanted.count(), None), "slot {slot}");
}

#[privileged_test]
fn a_flood_of_syns_takes_its_own_ids_again() {
    let mut lb = DataPlane::new(&small());
    for number in 0..FLOOD {
        let port = opened(&mut lb, &syn(number, API));
        assert_eq!(port, 1024 + number % PLACES, "SYN {number}");
    }
    assert_untouched(&lb, 0, PLACES, &[]);
    let live = FLOOD - PLACES..FLOOD;
    assert_eq!(lb.maps.flow_index.keys().count(), live.len());
    for number in live {
        let port = 1024 + number % PLACES;
        let flow = word(&lb, DataPlane::flow_id(port));
        let claims = u32::from((FLOOD - 1 - (port - 1024)) / PLACES + 1);
        assert_eq!((flow.state(), flow.generation()), (State::New, claims));
        // Each is whole: its backend's answer reaches its client, and nothing of the one before.
        let isn = CLIENT_ISN + u32::from(number);
        let before = reply(port, SYN_ACK).numbers(BACKEND_ISN, isn - u32::from(PLACES) + 1);
        assert_dropped(&mut lb, Port::Mgmt, &before.bytes(), "reply_unexpected");
        let syn_ack = reply(port, SYN_ACK).numbers(BACKEND_ISN, isn + 1);
        let sent = forwarded(&mut lb, Port::Mgmt, &syn_ack);
        let wanted = tcp(API, &client(number), SYN_ACK).numbers(BACKEND_ISN, isn + 1);
        assert_frame(&sent, &wanted.ttl(63).between(TENANT_NIC, CLIENT));
    }
    // The client that had such an id before has no flow any more.
    let late = request(&client(0), API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_refused(&mut lb, Port::Tenant, &late.bytes(), "no_flow");
}

#[privileged_test]
fn a_flood_of_queries_takes_its_own_ids_again() {
    let mut lb = DataPlane::new(&small());
    for number in 0..FLOOD {
        let query = query(&client(number));
        let port = opened(&mut lb, &query);
        assert_eq!(port, 1024 + number % PLACES, "query {number}");
    }
    assert_untouched(&lb, 0, PLACES, &[]);
    assert_eq!(lb.maps.flow_index.keys().count(), usize::from(PLACES));
    let number = FLOOD - 1;
    let port = 1024 + number % PLACES;
    let sent = forwarded(&mut lb, Port::Mgmt, &answer(port));
    let wanted = udp(DNS, &client(number)).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

/// A ring is one for all networks of backends, an id is one of a network's SNAT addresses.
#[privileged_test]
fn an_id_stays_one_of_its_snat_address() {
    let mut lb = DataPlane::new(&two_networks());
    for number in 0..PLACES {
        opened(&mut lb, &syn(number, API));
    }
    // These leave for another network: an id of their own for each, and the first ones go back.
    for number in PLACES..2 * PLACES {
        let port = opened(&mut lb, &syn(number, FAR_API));
        assert_eq!(port, 1024 + number - PLACES);
        let left = word(&lb, DataPlane::flow_id(port));
        assert_eq!(left.state(), State::Closed);
    }
    // From now on they turn round as well.
    for number in 2 * PLACES..FLOOD {
        let port = opened(&mut lb, &syn(number, FAR_API));
        assert_eq!(port, 1024 + number % PLACES);
    }
    let near: Vec<u32> = (base(0)..base(0) + u32::from(PLACES)).collect();
    assert_untouched(&lb, 0, PLACES, &near);
    assert_untouched(&lb, 1, PLACES, &[]);
}

/// Where there is no id for the new flow, the one whose place it would have had stays, and keeps it.
#[privileged_test]
fn a_flow_that_gets_no_id_ends_no_other() {
    let mut lb = DataPlane::new(&two_networks());
    let far = queued(&lb, 1);
    for number in 0..PLACES {
        opened(&mut lb, &syn(number, API));
    }
    for number in PLACES..3 * PLACES {
        lb.refill_answers().expect("answers");
        let syn = syn(number, FAR_API);
        assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "snat_exhausted");
    }
    for id in base(0)..base(0) + u32::from(PLACES) {
        assert_eq!(word(&lb, id).state(), State::New);
    }
    for number in 0..PLACES {
        let port = opened(&mut lb, &syn(3 * PLACES + number, API));
        assert_eq!(port, 1024 + number, "each has its place");
    }
    lb.object().fill(1, &far).expect("room in the queue");
    assert_eq!(opened(&mut lb, &syn(4 * PLACES, FAR_API)), 1024);
    assert_eq!(word(&lb, base(0)).state(), State::Closed);
}

/// The same of UDP, where a busy flow has moved on for it.
#[privileged_test]
fn a_query_that_gets_no_id_ends_no_other() {
    let mut lb = DataPlane::new(&two_networks());
    queued(&lb, 1);
    for number in 0..PLACES {
        opened(&mut lb, &query(&client(number)));
    }
    forwarded(&mut lb, Port::Mgmt, &answer(1024));
    let other = udp(&client(PLACES), FAR_DNS).between(CLIENT, TENANT_NIC);
    assert_refused(&mut lb, Port::Tenant, &other.bytes(), "snat_exhausted");
    // The answered one has the second place now, and the second one the first.
    let order = (2..PLACES).chain([1]);
    for (number, place) in order.enumerate() {
        let number = u16::try_from(number).expect("a small number");
        let port = opened(&mut lb, &query(&client(2 * PLACES + number)));
        assert_eq!(port, 1024 + place);
    }
    let answered = word(&lb, DataPlane::flow_id(1024));
    assert_eq!(
        (answered.state(), answered.generation()),
        (State::Established, 1)
    );
}

/// A backend that has closed first may rest in TIME_WAIT: such an id goes to the end of the queue.
#[privileged_test]
fn an_id_that_rests_is_not_taken_over() {
    let mut lb = DataPlane::new(&small());
    opened(&mut lb, &syn(0, API));
    let syn_ack = reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &syn_ack);
    let fin = reply(1024, FIN_ACK).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &fin);
    assert_eq!(word(&lb, DataPlane::flow_id(1024)).state(), State::Replied);
    for number in 1..PLACES {
        opened(&mut lb, &syn(number, API));
    }
    assert_eq!(opened(&mut lb, &syn(PLACES, API)), 1024 + PLACES);
    assert_eq!(word(&lb, DataPlane::flow_id(1024)).state(), State::Closed);
    assert_eq!(opened(&mut lb, &syn(PLACES + 1, API)), 1025, "the next one");
    let queued = queued(&lb, 0);
    assert_eq!(queued.last(), Some(&DataPlane::flow_id(1024)));
    assert_eq!(queued.len(), IDS - usize::from(PLACES));
}

/// What has come into full use keeps its id, and its place goes to another.
#[privileged_test]
fn an_established_flow_is_not_taken_over() {
    let mut lb = DataPlane::new(&small());
    establish(&mut lb, CLIENT_A, 1024);
    for number in 0..FLOOD {
        opened(&mut lb, &syn(number, API));
    }
    let established = word(&lb, DataPlane::flow_id(1024));
    assert_eq!(
        (established.state(), established.generation()),
        (State::Established, 1)
    );
    let data = request(CLIENT_A, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_eq!(opened(&mut lb, &data), 1024);
    assert_untouched(&lb, 0, PLACES + 1, &[]);
}

/// Also one that is about to expire: it ends once, and the new flow has no mark.
#[privileged_test]
fn a_marked_flow_is_taken_over() {
    let mut lb = DataPlane::new(&small());
    opened(&mut lb, &syn(0, API));
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = FlowState::from_raw(flow.word).expiring().raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    for number in 1..PLACES {
        opened(&mut lb, &syn(number, API));
    }
    assert_eq!(opened(&mut lb, &syn(PLACES, API)), 1024);
    let taken = word(&lb, id);
    assert_eq!((taken.state(), taken.generation()), (State::New, 2));
    assert!(!taken.is_expiring());
    assert_untouched(&lb, 0, PLACES, &[]);
}

/// The log has the end of the one flow and the beginning of the other.
#[privileged_test]
fn a_flow_that_is_taken_over_is_reported() {
    let mut lb = DataPlane::new(&format!("{}log: {{ flows: /flows.json }}\n", small()));
    for number in 0..=PLACES {
        opened(&mut lb, &syn(number, API));
    }
    let id = DataPlane::flow_id(1024);
    let events = lb.events();
    let of_id: Vec<_> = events.iter().filter(|event| event.id == id).collect();
    let facts: Vec<_> = of_id
        .iter()
        .map(|event| {
            let word = FlowState::from_raw(event.flow.word);
            let port = event.flow.client_port.get();
            (event.kind, word.state(), word.generation(), port)
        })
        .collect();
    let (first, last) = (20_000, 20_000 + PLACES);
    let wanted = [
        (BEGAN, State::New, 1, first),
        (RECYCLED, State::Closed, 1, first),
        (BEGAN, State::New, 2, last),
    ];
    assert_eq!(facts, wanted);
    assert_eq!(events.len(), usize::from(PLACES) + 2);
}
