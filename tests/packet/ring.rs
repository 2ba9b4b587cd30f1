//! Rings: a flood takes its own ids again, and those of the queues stay where they are.

use lb_common::{
    conntrack::{FlowState, State},
    maps::{
        event::{BEGAN, RECYCLED},
        snat::{FIRST_FLOW_PORT, FIRST_LEG_PORT},
    },
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp, udp},
    product::program::{CLIENT, DataPlane, IDS, Port, TENANT_NIC},
};

use super::given::*;

/// Places of a ring.
pub(crate) const PLACES: u16 = 64;
/// SYNs of a flood.
const FLOOD: u16 = 1000;
/// A configuration of a tenant, with short rings.
pub(crate) fn small(config: &str) -> String {
    let whole = "role: tenant, interface: eth0,";
    assert!(config.contains(whole));
    without_cookies(&config.replace(
        whole,
        &format!("{whole} half_open: {PLACES}, udp_flows: {PLACES},"),
    ))
}

/// The TCP service of [`two_networks`] whose backend is in a network of its own.
pub(super) fn far_api(ip: &Family) -> String {
    ip.end(ip.vip, 7443)
}

/// The UDP service of the same kind.
pub(super) fn far_dns(ip: &Family) -> String {
    ip.end(ip.vip, 54)
}

/// Short rings, and backends in two networks.
pub(super) fn two_networks(ip: &Family) -> String {
    let before = |config: String, what: &str, more: &str| {
        assert!(config.contains(what));
        config.replacen(what, &format!("{more}{what}"), 1)
    };
    let [prefix, snat, node, resolver] = ip.pick(
        [
            "10.33.96.0/20",
            "10.33.96.50",
            "10.33.96.105",
            "10.33.96.106",
        ],
        [
            "fd00:33::/64",
            "fd00:33::50",
            "fd00:33::105",
            "fd00:33::106",
        ],
    );
    let network = format!(
        "  far: {{ role: mgmt, interface: eth2, prefixes: [\"{prefix}\"], snat: [\"{snat}\"] }}\n"
    );
    let pool = |name: &str, node: &str, port| {
        let backend = ip.end(node, port);
        format!("  {name}: {{ network: far, backends: [\"{backend}\"] }}\n")
    };
    let pools = pool("far-a", node, 30918) + &pool("far-dns-a", resolver, 30053);
    let config = before(small(ip.config), "pools:\n", &network);
    let config = before(config, "services:\n", &pools);
    let (far_api, far_dns) = (far_api(ip), far_dns(ip));
    format!(
        "{config}  \
         far-a: {{ network: tenant-a, listen: [\"{far_api}/tcp\"], pool: far-a }}\n  \
         far-dns-a: {{ network: tenant-a, listen: [\"{far_dns}/udp\"], pool: far-dns-a }}\n"
    )
}

fn client(ip: &Family, number: u16) -> String {
    ip.end(ip.host, 20_000 + number)
}

fn syn(ip: &Family, number: u16, vip: &str) -> Frame {
    request(&client(ip, number), vip, SYN_ONLY).numbers(CLIENT_ISN + u32::from(number), 0)
}

/// The port that the first packet of a new flow leaves from.
fn opened(ip: &Family, lb: &mut DataPlane, frame: &Frame) -> u16 {
    let sent = forwarded(lb, Port::Tenant, frame);
    u16::from_be_bytes([sent[ip.l4()], sent[ip.l4() + 1]])
}

fn word(lb: &DataPlane, id: u32) -> FlowState {
    FlowState::from_raw(lb.maps.flows.get(&id, 0).expect("an entry").word)
}

/// Ids in the queue of the SNAT address in this slot, in order.
fn queued(lb: &DataPlane, slot: u16) -> Vec<u32> {
    let queue = lb.maps.free_ids(slot).expect("a queue");
    let mut queue = queue.expect("the slot is open");
    std::iter::from_fn(|| queue.pop().ok()).collect()
}

/// Asserts that the queue of a SNAT address has all ids but these first ones, in order, and then `back`.
pub(crate) fn assert_untouched(lb: &DataPlane, slot: u16, taken: u16, back: &[u32]) {
    let ports = FIRST_FLOW_PORT + taken..FIRST_LEG_PORT;
    let ids = ports.map(|port| DataPlane::flow_id_of(slot, port));
    let (found, wanted) = (queued(lb, slot), ids.chain(back.iter().copied()));
    let other = found
        .iter()
        .zip(wanted.clone())
        .find(|(id, wanted)| *id != wanted);
    assert_eq!((found.len(), other), (wanted.count(), None), "slot {slot}");
}

#[privileged_test(families)]
fn a_flood_of_syns_takes_its_own_ids_again(ip: &Family) {
    let mut lb = DataPlane::new(&small(ip.config));
    for number in 0..FLOOD {
        let port = opened(ip, &mut lb, &syn(ip, number, ip.api));
        assert_eq!(port, 1024 + number % PLACES, "SYN {number}");
    }
    assert_untouched(&lb, 0, PLACES, &[]);
    let live = FLOOD - PLACES..FLOOD;
    assert_eq!(lb.maps.flow_lines.ids().count(), live.len());
    for number in live {
        let port = 1024 + number % PLACES;
        let flow = word(&lb, DataPlane::flow_id(port));
        let claims = u32::from((FLOOD - 1 - (port - 1024)) / PLACES + 1);
        assert_eq!((flow.state(), flow.generation()), (State::New, claims));
        // Each is whole: its backend's answer reaches its client, and nothing of the one before.
        let isn = CLIENT_ISN + u32::from(number);
        let before = ip
            .reply(port, SYN_ACK)
            .numbers(BACKEND_ISN, isn - u32::from(PLACES) + 1);
        assert_dropped(&mut lb, Port::Mgmt, &before.bytes(), "reply_unexpected");
        let syn_ack = ip.reply(port, SYN_ACK).numbers(BACKEND_ISN, isn + 1);
        let sent = forwarded(&mut lb, Port::Mgmt, &syn_ack);
        let wanted = tcp(ip.api, &client(ip, number), SYN_ACK).numbers(BACKEND_ISN, isn + 1);
        assert_frame(&sent, &wanted.ttl(63).between(TENANT_NIC, CLIENT));
    }
    // The client that had such an id before has no flow any more.
    let late = request(&client(ip, 0), ip.api, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_refused(&mut lb, Port::Tenant, &late.bytes(), "no_flow");
}

#[privileged_test(families)]
fn a_flood_of_queries_takes_its_own_ids_again(ip: &Family) {
    let mut lb = DataPlane::new(&small(ip.config));
    for number in 0..FLOOD {
        let query = ip.query(&client(ip, number));
        let port = opened(ip, &mut lb, &query);
        assert_eq!(port, 1024 + number % PLACES, "query {number}");
    }
    assert_untouched(&lb, 0, PLACES, &[]);
    assert_eq!(lb.maps.flow_lines.ids().count(), usize::from(PLACES));
    let number = FLOOD - 1;
    let port = 1024 + number % PLACES;
    let sent = forwarded(&mut lb, Port::Mgmt, &ip.answer(port));
    let wanted = udp(ip.dns, &client(ip, number)).ttl(63);
    assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
}

/// A ring is one for all networks of backends, an id is one of a network's SNAT addresses.
#[privileged_test(families)]
fn an_id_stays_one_of_its_snat_address(ip: &Family) {
    let mut lb = DataPlane::new(&two_networks(ip));
    for number in 0..PLACES {
        opened(ip, &mut lb, &syn(ip, number, ip.api));
    }
    // These leave for another network: an id of their own for each, and the first ones go back.
    for number in PLACES..2 * PLACES {
        let port = opened(ip, &mut lb, &syn(ip, number, &far_api(ip)));
        assert_eq!(port, 1024 + number - PLACES);
        let left = word(&lb, DataPlane::flow_id(port));
        assert_eq!(left.state(), State::Closed);
    }
    // From now on they turn round as well.
    for number in 2 * PLACES..FLOOD {
        let port = opened(ip, &mut lb, &syn(ip, number, &far_api(ip)));
        assert_eq!(port, 1024 + number % PLACES);
    }
    let near: Vec<u32> = (1024..1024 + PLACES).map(DataPlane::flow_id).collect();
    assert_untouched(&lb, 0, PLACES, &near);
    assert_untouched(&lb, 1, PLACES, &[]);
}

/// Where there is no id for the new flow, the one whose place it would have had stays, and keeps it.
#[privileged_test(families)]
fn a_flow_that_gets_no_id_ends_no_other(ip: &Family) {
    let mut lb = DataPlane::new(&two_networks(ip));
    let far = queued(&lb, 1);
    for number in 0..PLACES {
        opened(ip, &mut lb, &syn(ip, number, ip.api));
    }
    for number in PLACES..3 * PLACES {
        lb.refill_answers().expect("answers");
        let syn = syn(ip, number, &far_api(ip));
        assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "snat_exhausted");
    }
    for port in 1024..1024 + PLACES {
        assert_eq!(word(&lb, DataPlane::flow_id(port)).state(), State::New);
    }
    for number in 0..PLACES {
        let port = opened(ip, &mut lb, &syn(ip, 3 * PLACES + number, ip.api));
        assert_eq!(port, 1024 + number, "each has its place");
    }
    lb.object().fill(1, &far).expect("room in the queue");
    assert_eq!(
        opened(ip, &mut lb, &syn(ip, 4 * PLACES, &far_api(ip))),
        1024
    );
    assert_eq!(word(&lb, DataPlane::flow_id(1024)).state(), State::Closed);
}

/// The same of UDP, where a busy flow has moved on for it.
#[privileged_test(families)]
fn a_query_that_gets_no_id_ends_no_other(ip: &Family) {
    let mut lb = DataPlane::new(&two_networks(ip));
    queued(&lb, 1);
    for number in 0..PLACES {
        opened(ip, &mut lb, &ip.query(&client(ip, number)));
    }
    forwarded(&mut lb, Port::Mgmt, &ip.answer(1024));
    let other = udp(&client(ip, PLACES), &far_dns(ip)).between(CLIENT, TENANT_NIC);
    assert_refused(&mut lb, Port::Tenant, &other.bytes(), "snat_exhausted");
    // The answered one has the second place now, and the second one the first.
    let order = (2..PLACES).chain([1]);
    for (number, place) in order.enumerate() {
        let number = u16::try_from(number).expect("a small number");
        let port = opened(ip, &mut lb, &ip.query(&client(ip, 2 * PLACES + number)));
        assert_eq!(port, 1024 + place);
    }
    let answered = word(&lb, DataPlane::flow_id(1024));
    assert_eq!(
        (answered.state(), answered.generation()),
        (State::Established, 1)
    );
}

/// A backend that has closed first may rest in TIME_WAIT: such an id goes to the end of the queue.
#[privileged_test(families)]
fn an_id_that_rests_is_not_taken_over(ip: &Family) {
    let mut lb = DataPlane::new(&small(ip.config));
    opened(ip, &mut lb, &syn(ip, 0, ip.api));
    let syn_ack = ip.reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &syn_ack);
    let fin = ip
        .reply(1024, FIN_ACK)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &fin);
    assert_eq!(word(&lb, DataPlane::flow_id(1024)).state(), State::Replied);
    for number in 1..PLACES {
        opened(ip, &mut lb, &syn(ip, number, ip.api));
    }
    assert_eq!(opened(ip, &mut lb, &syn(ip, PLACES, ip.api)), 1024 + PLACES);
    assert_eq!(word(&lb, DataPlane::flow_id(1024)).state(), State::Closed);
    assert_eq!(
        opened(ip, &mut lb, &syn(ip, PLACES + 1, ip.api)),
        1025,
        "the next one"
    );
    let queued = queued(&lb, 0);
    assert_eq!(queued.last(), Some(&DataPlane::flow_id(1024)));
    assert_eq!(queued.len(), IDS - usize::from(PLACES));
}

/// What has come into full use keeps its id, and its place goes to another.
#[privileged_test(families)]
fn an_established_flow_is_not_taken_over(ip: &Family) {
    let mut lb = DataPlane::new(&small(ip.config));
    ip.establish(&mut lb, ip.client_a, 1024);
    for number in 0..FLOOD {
        opened(ip, &mut lb, &syn(ip, number, ip.api));
    }
    let established = word(&lb, DataPlane::flow_id(1024));
    assert_eq!(
        (established.state(), established.generation()),
        (State::Established, 1)
    );
    let data = request(ip.client_a, ip.api, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_eq!(opened(ip, &mut lb, &data), 1024);
    assert_untouched(&lb, 0, PLACES + 1, &[]);
}

/// Also one that is about to expire: it ends once, and the new flow has no mark.
#[privileged_test(families)]
fn a_marked_flow_is_taken_over(ip: &Family) {
    let mut lb = DataPlane::new(&small(ip.config));
    opened(ip, &mut lb, &syn(ip, 0, ip.api));
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = FlowState::from_raw(flow.word).expiring().raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    for number in 1..PLACES {
        opened(ip, &mut lb, &syn(ip, number, ip.api));
    }
    assert_eq!(opened(ip, &mut lb, &syn(ip, PLACES, ip.api)), 1024);
    let taken = word(&lb, id);
    assert_eq!((taken.state(), taken.generation()), (State::New, 2));
    assert!(!taken.is_expiring());
    assert_untouched(&lb, 0, PLACES, &[]);
}

/// The log has the end of the one flow and the beginning of the other.
#[privileged_test(families)]
fn a_flow_that_is_taken_over_is_reported(ip: &Family) {
    let mut lb = DataPlane::new(&format!(
        "{}log: {{ flows: /flows.json }}\n",
        small(ip.config)
    ));
    for number in 0..=PLACES {
        opened(ip, &mut lb, &syn(ip, number, ip.api));
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
