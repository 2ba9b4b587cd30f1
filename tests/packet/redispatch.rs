//! A connection that its backend does not answer, or refuses, goes to another one.

use lb_common::{
    addr::Mac,
    conntrack::{ANSWER_TIMEOUT, FlowState, State},
    maps::{
        backend_answers::BackendAnswers,
        event::{BEGAN, REDISPATCHED},
        flow::Flow,
    },
};
use lb_tests::{
    frames::packet::{Frame, flags::*, tcp},
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::dataplane::backend_answers::AnswerTable;

use super::{
    given::*,
    ring::{PLACES, small},
};

/// The SNAT port of the flow.
const PORT: u16 = 1024;

/// Backends of the TCP service: what their addresses end with.
const NODES: [&str; 3] = ["105", "107", "108"];

/// A backend of the TCP service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    /// Its address and port.
    end: String,
    mac: Mac,
}

impl Node {
    fn new(ip: &Family, number: &str) -> Self {
        let octet = u16::from_str_radix(number, ip.pick(10, 16)).expect("a number");
        let [a, b, c, d, e, _] = ip.kas_mac.bytes();
        Self {
            end: ip.kas.replace("105", number),
            mac: Mac::new([a, b, c, d, e, octet.to_be_bytes()[1]]),
        }
    }

    /// A frame of it to the SNAT port of the flow.
    fn reply(&self, ip: &Family, flags: u8) -> Frame {
        tcp(&self.end, &ip.snat(PORT), flags).between(self.mac, MGMT_NIC)
    }

    /// Its RST to the client's SYN.
    fn refusal(&self, ip: &Family) -> Frame {
        self.reply(ip, RST_ACK).numbers(0, CLIENT_ISN + 1)
    }
}

/// As the family's, with so many backends of the TCP service.
fn config(ip: &Family, backends: usize) -> String {
    let all = NODES[..backends].iter();
    let all: Vec<String> = all
        .map(|number| format!("{:?}", Node::new(ip, number).end))
        .collect();
    let one = format!("{:?}", ip.kas);
    assert!(ip.config.contains(&one));
    ip.config.replace(&one, &all.join(", "))
}

/// Sends the client's SYN; gives the backend that it went to, whole and by the flow's SNAT port.
fn send_syn(ip: &Family, lb: &mut DataPlane) -> Node {
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let sent = forwarded(lb, Port::Tenant, &syn);
    let nodes = NODES.map(|number| Node::new(ip, number));
    let node = nodes.into_iter().find(|node| sent[..6] == node.mac.bytes());
    let node = node.expect("the MAC of a node");
    let wanted = tcp(&ip.snat(PORT), &node.end, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, node.mac));
    node
}

/// The same a second later.
fn send_syn_again(ip: &Family, lb: &mut DataPlane) -> Node {
    change(lb, |flow| {
        flow.last_seen = flow.last_seen.wrapping_sub(ANSWER_TIMEOUT);
    });
    send_syn(ip, lb)
}

fn flow(lb: &DataPlane) -> Flow {
    let flow = lb.maps.flows.get(&DataPlane::flow_id(PORT), 0);
    flow.expect("an entry")
}

fn change(lb: &mut DataPlane, change: impl FnOnce(&mut Flow)) {
    let mut flow = flow(lb);
    change(&mut flow);
    let set = lb.maps.flows.set(DataPlane::flow_id(PORT), &flow, 0);
    set.expect("a write");
}

/// State and generation.
fn state(lb: &DataPlane) -> (State, u32) {
    let word = FlowState::from_raw(flow(lb).word);
    (word.state(), word.generation())
}

/// Unanswered, refused, and gone to another backend, of the backend with this id; and how many clients.
fn counted(lb: &DataPlane, backend_id: u16) -> (u32, u32, u32, u32) {
    let table = AnswerTable::open(&lb.maps_folder()).expect("the map");
    let BackendAnswers {
        unanswered,
        refused,
        redispatched,
        clients,
        ..
    } = table.expect("the map").get(backend_id.into());
    (unanswered, refused, redispatched, clients.count_ones())
}

/// The handshake with this backend, and data in both directions.
fn establish(ip: &Family, lb: &mut DataPlane, node: &Node) {
    let answer = node.reply(ip, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    let sent = forwarded(lb, Port::Mgmt, &answer);
    let wanted = tcp(ip.api, ip.client_a, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    assert_frame(&sent, &wanted.ttl(63).between(TENANT_NIC, CLIENT));
    let ack = request(ip.client_a, ip.api, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    let sent = forwarded(lb, Port::Tenant, &ack);
    let wanted = tcp(&ip.snat(PORT), &node.end, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, node.mac));
    assert_eq!(state(lb).0, State::Established);
}

#[privileged_test(families)]
fn a_repeated_syn_goes_to_another_backend(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, 2));
    let first = send_syn(ip, &mut lb);
    let silent = flow(&lb).backend_id;
    assert_eq!(send_syn(ip, &mut lb), first, "a copy");
    assert_eq!(
        (state(&lb), counted(&lb, silent)),
        ((State::New, 1), (0, 0, 0, 0))
    );

    let second = send_syn_again(ip, &mut lb);

    assert_ne!(second, first);
    assert_eq!(
        (state(&lb), counted(&lb, silent)),
        ((State::New, 2), (1, 0, 1, 1))
    );
    assert_eq!(counted(&lb, flow(&lb).backend_id), (0, 0, 0, 0));
    let late = first
        .reply(ip, SYN_ACK)
        .numbers(BACKEND_ISN, CLIENT_ISN + 1);
    assert_dropped(&mut lb, Port::Mgmt, &late.bytes(), "reply_mismatch");
    establish(ip, &mut lb, &second);
    assert_eq!(send_syn_again(ip, &mut lb), second, "it is answered");
    assert_eq!(state(&lb), (State::Established, 2));
    assert_eq!(lb.drain_free_ids().len() + 1, IDS, "it has one id");
}

#[privileged_test(families)]
fn no_backend_has_a_connection_twice_and_the_last_one_keeps_it(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, 3));
    let mut met = vec![send_syn(ip, &mut lb)];
    for _ in 1..3 {
        let next = send_syn_again(ip, &mut lb);
        assert!(!met.contains(&next), "{next:?} after {met:?}");
        met.push(next);
    }
    let last = flow(&lb).backend_id;
    for repeated in 1..4 {
        assert_eq!(send_syn_again(ip, &mut lb), met[2]);
        assert_eq!(
            (state(&lb), counted(&lb, last)),
            ((State::New, 3), (repeated, 0, 0, 1))
        );
    }
    establish(ip, &mut lb, &met[2]);
}

#[privileged_test(families)]
fn a_refusal_is_the_clients_where_there_is_no_other_backend(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, 3));
    let mut node = send_syn(ip, &mut lb);
    for _ in 0..2 {
        let refused_by = flow(&lb).backend_id;
        let refusal = node.refusal(ip).bytes();
        for _ in 0..2 {
            assert_dropped(&mut lb, Port::Mgmt, &refusal, "refused_by_backend");
        }
        assert_eq!(counted(&lb, refused_by), (0, 1, 0, 1));
        // At once: it has an answer.
        node = send_syn(ip, &mut lb);
        assert_eq!(counted(&lb, refused_by), (0, 1, 1, 1));
        assert_dropped(&mut lb, Port::Mgmt, &refusal, "reply_mismatch");
    }
    let sent = forwarded(&mut lb, Port::Mgmt, &node.refusal(ip));
    let wanted = tcp(ip.api, ip.client_a, RST_ACK).numbers(0, CLIENT_ISN + 1);
    assert_frame(&sent, &wanted.ttl(63).between(TENANT_NIC, CLIENT));
    assert_eq!(state(&lb), (State::Closed, 3));
    assert_eq!(counted(&lb, flow(&lb).backend_id), (0, 1, 0, 1));
    assert_eq!(lb.drain_free_ids().len(), IDS);
}

/// A blind RST of the backend's address makes no client go elsewhere.
#[privileged_test(families)]
fn a_reset_that_does_not_acknowledge_the_syn_is_no_refusal(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, 2));
    let first = send_syn(ip, &mut lb);
    for blind in [
        first.refusal(ip).numbers(0, CLIENT_ISN),
        first.reply(ip, RST_ONLY).numbers(CLIENT_ISN + 1, 0),
    ] {
        forwarded(&mut lb, Port::Mgmt, &blind);
    }
    assert_eq!(send_syn(ip, &mut lb), first);
    assert_eq!(counted(&lb, flow(&lb).backend_id), (0, 0, 0, 0));
    establish(ip, &mut lb, &first);
}

/// A backend without a next hop is none, and a service that is gone has none.
#[privileged_test(families)]
fn a_connection_without_another_backend_stays(ip: &Family) {
    let mut lb = DataPlane::new(&config(ip, 2));
    let first = send_syn(ip, &mut lb);
    let current = flow(&lb).backend_id;
    for id in 1..8 {
        let mut other = lb.maps.backends.get(&id, 0).expect("a record");
        if id != u32::from(current) {
            other.next_hop = Mac::default();
            lb.maps.backends.set(id, &other, 0).expect("a write");
        }
    }
    assert_eq!(send_syn_again(ip, &mut lb), first);
    for (key, _) in &lb.desired.services {
        lb.maps.services.remove(key).expect("a service");
    }
    assert_eq!(send_syn_again(ip, &mut lb), first);
    assert_eq!(
        (state(&lb), counted(&lb, current)),
        ((State::New, 1), (2, 0, 0, 1))
    );
}

/// Its place in the ring is that of its generation: a flood takes it in its turn.
#[privileged_test(families)]
fn a_connection_that_went_elsewhere_is_still_half_open(ip: &Family) {
    let mut lb = DataPlane::new(&small(&config(ip, 2)));
    send_syn(ip, &mut lb);
    send_syn_again(ip, &mut lb);
    let flood = |lb: &mut DataPlane, number: u16| {
        let client = ip.end(ip.host, 20_000 + number);
        forwarded(lb, Port::Tenant, &request(&client, ip.api, SYN_ONLY));
    };
    for number in 1..PLACES {
        flood(&mut lb, number);
    }
    assert_eq!(state(&lb), (State::New, 2));
    flood(&mut lb, PLACES);
    assert_eq!(state(&lb), (State::New, 3), "its id is another flow's");
    assert_eq!(flow(&lb).client_port.get(), 20_000 + PLACES);
}

#[privileged_test(families)]
fn the_log_has_each_backend(ip: &Family) {
    let text = format!("{}log: {{ flows: /flows.json }}\n", config(ip, 2));
    let mut lb = DataPlane::new(&text);
    send_syn(ip, &mut lb);
    let first = flow(&lb).backend;
    send_syn_again(ip, &mut lb);
    let second = flow(&lb).backend;
    let events = lb.events();
    let facts: Vec<_> = events
        .iter()
        .map(|event| {
            let word = FlowState::from_raw(event.flow.word);
            (
                event.kind,
                word.state(),
                word.generation(),
                event.flow.backend,
            )
        })
        .collect();
    let wanted = [
        (BEGAN, State::New, 1, first),
        (REDISPATCHED, State::Closed, 1, first),
        (BEGAN, State::New, 2, second),
    ];
    assert_eq!(facts, wanted);
}
