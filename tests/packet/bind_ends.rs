//! How connections end that XDP has opened: by the numbers that each side expects, and by no other ones.

use lb_common::{
    conntrack::{FlowState, State},
    maps::usage,
};
use lb_tests::{
    frames::packet::flags::*,
    product::program::{DataPlane, IDS, Port},
    traffic::hello::named,
};

use super::{
    bind::{CONFIG, NUMBER, from_backend, hello, opened, receive, syn_ack},
    cookies::{Answer, ISN, OPTIONS, start_with},
    given::passed_on,
};

/// A connection on which each side has what the other one has sent.
pub(super) struct Bound {
    pub(super) lb: DataPlane,
    pub(super) answer: Answer,
    /// The SNAT address and port.
    pub(super) port: String,
    /// The client's next number, which is the same to the backend.
    pub(super) client: u32,
    /// What the backend has sent, in bytes.
    sent: u32,
}

impl Bound {
    pub(super) fn established() -> Self {
        let mut lb = start_with(CONFIG);
        let answer = Answer::to(&mut lb, &OPTIONS);
        let (_, port) = opened(&mut lb, &hello(&answer, "a.lab"));
        receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
        let length = u32::try_from(named(b"a.lab").len()).expect("a short hello");
        let client = ISN.wrapping_add(1 + length);
        let mut bound = Self {
            lb,
            answer,
            port,
            client,
            sent: 0,
        };
        bound.backend_sends(ACK_ONLY, 0, b"server hello");
        bound.sent = 12;
        bound.client_sends(ACK_ONLY, 0, &[]);
        bound.assert_lives("established");
        bound
    }

    /// One that both sides have closed.
    pub(super) fn closed() -> Self {
        let mut bound = Self::established();
        bound.client_sends(FIN_ACK, 0, &[]);
        bound.client = bound.client.wrapping_add(1);
        bound.backend_sends(FIN_ACK, 0, &[]);
        bound
    }

    /// Sends a segment of the client, so far ahead of its next number, which must be forwarded.
    pub(super) fn client_sends(&mut self, flags: u8, ahead: u32, payload: &[u8]) {
        let sequence = self.client.wrapping_add(ahead);
        let acknowledged = self.answer.number.wrapping_add(1 + self.sent);
        let segment = self.answer.segment(0, flags);
        let segment = segment.numbers(sequence, acknowledged).payload(payload);
        self.forwarded(Port::Tenant, &segment.bytes());
    }

    /// The same of the backend.
    pub(super) fn backend_sends(&mut self, flags: u8, ahead: u32, payload: &[u8]) {
        let sequence = (NUMBER + 1 + self.sent).wrapping_add(ahead);
        let segment = from_backend(&self.port, flags, sequence, self.client);
        self.forwarded(Port::Mgmt, &segment.payload(payload).bytes());
    }

    fn forwarded(&mut self, port: Port, frame: &[u8]) {
        let forwarded = receive(&mut self.lb, port, frame);
        assert_eq!(forwarded.counted, ["forwarded"]);
    }

    pub(super) fn word(&self) -> FlowState {
        let (_, port) = self.port.rsplit_once(':').expect("a port");
        let id = DataPlane::flow_id(port.parse().expect("a number"));
        let flow = self.lb.maps.flows.get(&id, 0).expect("an entry");
        FlowState::from_raw(flow.word)
    }

    pub(super) fn assert_lives(&self, case: &str) {
        let word = self.word();
        assert_eq!(
            (word.state(), word.is_half_closed()),
            (State::Established, false),
            "{case}"
        );
    }

    /// It is over, and its id is free once.
    fn assert_over(&mut self, case: &str) {
        assert_eq!(self.word().state(), State::Closed, "{case}");
        assert_eq!(self.lb.drain_free_ids().len(), IDS, "{case}");
    }
}

/// How far a guess is from the number that is expected.
const GUESSES: [u32; 4] = [1, 70_000, 0x7777_0000, u32::MAX - 100];

#[privileged_test]
fn guessed_numbers_end_no_bound_flow_and_right_ones_do() {
    let ends: [fn(&mut Bound); 3] = [
        |bound| bound.client_sends(RST_ONLY, 0, &[]),
        |bound| bound.backend_sends(RST_ACK, 0, &[]),
        |bound| {
            bound.client_sends(FIN_ACK, 0, &[]);
            assert!(bound.word().is_half_closed());
            bound.client = bound.client.wrapping_add(1);
            bound.backend_sends(FIN_ACK, 0, &[]);
        },
    ];
    for (case, end) in ends.iter().enumerate() {
        let mut bound = Bound::established();
        for (flags, ahead) in [RST_ONLY, RST_ACK, FIN_ACK]
            .into_iter()
            .flat_map(|flags| GUESSES.map(|ahead| (flags, ahead)))
        {
            bound.client_sends(flags, ahead, &[]);
            bound.assert_lives(&format!("flags {flags:#x} of the client, {ahead} ahead"));
            bound.backend_sends(flags, ahead, &[]);
            bound.assert_lives(&format!("flags {flags:#x} of the backend, {ahead} ahead"));
        }
        bound.client_sends(ACK_ONLY, 0, b"more");
        bound.client = bound.client.wrapping_add(4);
        bound.backend_sends(ACK_ONLY, 0, b"yes");
        bound.sent += 3;
        bound.client_sends(ACK_ONLY, 0, &[]);
        bound.assert_lives("it goes on");
        end(&mut bound);
        bound.assert_over(&format!("end {case}"));
    }
}

/// Until the client has acknowledged what the backend has sent, a flow is half open: it is in no budget, and the network's ring of
/// such flows forgets it for later ones.
#[privileged_test]
fn a_client_that_acknowledges_nothing_has_a_half_open_flow() {
    const PLACES: u16 = 64;
    let few = CONFIG.replace(
        "prefixes: [192.168.203.0/24]",
        &format!("prefixes: [192.168.203.0/24], half_open: {PLACES}"),
    );
    let mut lb = start_with(&few);
    let (network, _) = lb.desired.networks[1];
    let live = |lb: &DataPlane| lb.maps.usage(usage::network(network)).expect("a count");
    let answer = Answer::to(&mut lb, &OPTIONS);
    let (_, port) = opened(&mut lb, &hello(&answer, "a.lab"));
    receive(&mut lb, Port::Mgmt, &syn_ack(&port).bytes());
    let length = u32::try_from(named(b"a.lab").len()).expect("a short hello");
    let behind = ISN.wrapping_add(1 + length);
    let reply = from_backend(&port, ACK_ONLY, NUMBER + 1, behind).payload(b"server hello");
    passed_on(&mut lb, Port::Mgmt, &reply.bytes());
    // It may have been sent blind: the number says nothing of what the backend has sent.
    let blind = answer.segment(length, ACK_ONLY).payload(b"more");
    passed_on(&mut lb, Port::Tenant, &blind.bytes());
    assert_eq!(live(&lb), 0);
    let others: Vec<Answer> = (1..=PLACES)
        .map(|host| Answer::of(&mut lb, 40_000 + host))
        .collect();
    for other in &others {
        passed_on(&mut lb, Port::Tenant, &hello(other, "a.lab").bytes());
    }
    let port = port.rsplit(':').next().expect("a port");
    let id = DataPlane::flow_id(port.parse().expect("a number"));
    let word = FlowState::from_raw(lb.maps.flows.get(&id, 0).expect("an entry").word);
    assert_eq!(word.state(), State::Closed, "it is forgotten");
    assert_eq!(live(&lb), 0);
}

/// One that has acknowledged it counts.
#[privileged_test]
fn a_client_that_acknowledges_its_backend_is_in_the_budget() {
    let bound = Bound::established();
    let (network, _) = bound.lb.desired.networks[1];
    let live = bound.lb.maps.usage(usage::network(network));
    assert_eq!(live.expect("a count"), 1);
}
