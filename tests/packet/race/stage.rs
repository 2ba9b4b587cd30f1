//! What both tests of two CPUs share: few ids, clients and services whose frames say where they
//! belong, and what must be true of the tables whenever neither CPU runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use lb_common::{
    addr::{Be16, Mac},
    conntrack::{FlowState, State},
    maps::{
        flow::{Flow, FlowKey},
        usage,
    },
};
use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, tcp, udp},
    product::program::{Action, DataPlane, MGMT_NIC, Port, TENANT_NIC, node_mac},
};

pub(super) const CONFIG: &str = r#"
version: 1
defaults: { service: { syn_cookies: never } }
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24], half_open: 64, udp_flows: 64 }
pools:
  kas-a: { network: mgmt, backends: ["10.32.96.105:30918"] }
  web-a: { network: mgmt, backends: ["10.32.96.107:30080"] }
  dns-a: { network: mgmt, backends: ["10.32.96.106:30053"] }
services:
  api-a: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a }
  web-a: { network: tenant-a, listen: ["192.168.203.110:80/tcp"], pool: web-a }
  dns-a: { network: tenant-a, listen: ["192.168.203.110:53/udp"], pool: dns-a }
"#;

const VIP: &str = "192.168.203.110";
const SNAT: &str = "10.32.96.50";
/// VIP port and backend of each service; the last one is UDP. Each has one backend of its own, so that a
/// frame shows whose flow it belongs to.
const SERVICES: [(u16, &str); 3] = [
    (6443, "10.32.96.105:30918"),
    (80, "10.32.96.107:30080"),
    (53, "10.32.96.106:30053"),
];
/// The last octet of the first client's address.
const FIRST_CLIENT: u8 = 50;
/// The first number of every backend.
pub(super) const BACKEND_ISN: u32 = 5000;

/// How long both CPUs are at it.
pub(super) fn duration() -> Duration {
    Duration::from_secs(match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 60,
        None => 3,
    })
}

/// How long a busy machine may take until a race proves something.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// One side of what both CPUs talk about: a client's port and a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Talk {
    pub(super) service: usize,
    /// Which client; each has its own MAC.
    pub(super) client: u8,
    pub(super) port: u16,
}

impl Talk {
    pub(super) const fn is_udp(self) -> bool {
        self.service == 2
    }

    fn client(self) -> SocketAddrV4 {
        let address = Ipv4Addr::new(192, 168, 203, FIRST_CLIENT + self.client);
        SocketAddrV4::new(address, self.port)
    }

    const fn mac(self) -> Mac {
        Mac::new([2, 0, 0, 0, 0xc, FIRST_CLIENT + self.client])
    }

    /// The service's VIP and port.
    fn vip(self) -> SocketAddrV4 {
        let (port, _) = SERVICES[self.service];
        SocketAddrV4::new(VIP.parse().expect("an address"), port)
    }

    fn backend(self) -> SocketAddrV4 {
        let (_, backend) = SERVICES[self.service];
        backend.parse().expect("an address and port")
    }

    /// A segment of the client, or its datagram.
    pub(super) fn request(self, flags: u8, sequence: u32, acknowledgment: u32) -> Vec<u8> {
        let ends = [self.client(), self.vip()];
        let frame = self.frame(ends, flags, sequence, acknowledgment);
        frame.between(self.mac(), TENANT_NIC).bytes()
    }

    /// A segment of the backend to a SNAT port, or its datagram.
    pub(super) fn reply(self, to: u16, flags: u8, numbers: [u32; 2]) -> Vec<u8> {
        let snat = SocketAddrV4::new(SNAT.parse().expect("an address"), to);
        let frame = self.frame([self.backend(), snat], flags, numbers[0], numbers[1]);
        frame
            .between(node_mac(*self.backend().ip()), MGMT_NIC)
            .bytes()
    }

    fn frame(self, ends: [SocketAddrV4; 2], flags: u8, sequence: u32, ack: u32) -> Frame {
        let [from, to] = ends.map(|end| end.to_string());
        match self.is_udp() {
            true => udp(&from, &to),
            false => tcp(&from, &to, flags).numbers(sequence, ack),
        }
    }

    /// The tuple of its flows, of clients in this network.
    pub(super) fn key(self, network: u16) -> FlowKey {
        let (client, vip) = (self.client(), self.vip());
        FlowKey {
            client: (*client.ip()).into(),
            vip: (*vip.ip()).into(),
            client_port: Be16::new(client.port()),
            vip_port: Be16::new(vip.port()),
            network,
            protocol: if self.is_udp() { 17 } else { 6 },
        }
    }

    /// Whether an entry is this one's flow.
    pub(super) fn is(self, key: &FlowKey) -> bool {
        let client = SocketAddrV4::new(key.client.into(), key.client_port.get());
        let vip = SocketAddrV4::new(key.vip.into(), key.vip_port.get());
        (client, vip) == (self.client(), self.vip())
    }

    /// The SNAT port of a request as it left; it must have gone to this one's backend.
    pub(super) fn sent_from(self, out: &[u8]) -> u16 {
        let (from, to) = ends(out);
        assert_eq!(to, self.backend(), "{self:?} {}", Decoded(out));
        assert_eq!(from.ip().to_string(), SNAT, "{self:?} {}", Decoded(out));
        assert_eq!(out[..6], node_mac(*to.ip()).bytes(), "{self:?}");
        from.port()
    }

    /// A reply of this one's backend as it left must go to a client of this one's service.
    pub(super) fn check_reply(self, out: &[u8]) {
        let (from, to) = ends(out);
        assert_eq!(from, self.vip(), "{self:?} {}", Decoded(out));
        let client = to.ip().octets()[3] - FIRST_CLIENT;
        let of_client = Self { client, ..self }.mac().bytes();
        assert_eq!(out[..6], of_client, "{self:?} {}", Decoded(out));
    }

    /// Whether a reply went to this one's client.
    fn has_got(self, out: &[u8]) -> bool {
        ends(out) == (self.vip(), self.client())
    }
}

/// Source and destination of a frame whose checksums are right.
fn ends(out: &[u8]) -> (SocketAddrV4, SocketAddrV4) {
    assert_eq!(check(out), Ok(()), "{}", Decoded(out));
    let end = |address: usize, port: usize| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|byte| out[address + byte]);
        let port = u16::from_be_bytes([out[port], out[port + 1]]);
        SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), port)
    };
    (end(26, 34), end(30, 36))
}

pub(super) fn is_live(word: FlowState) -> bool {
    matches!(
        word.state(),
        State::New | State::Replied | State::Established
    )
}

/// The data plane with `count` free ids.
pub(super) fn data_plane(count: usize) -> (DataPlane, Vec<u32>) {
    let lb = DataPlane::alone(CONFIG);
    let mut ids = lb.drain_free_ids()[..count].to_vec();
    lb.give_free_ids(&ids);
    ids.sort_unstable();
    (lb, ids)
}

/// What must be true whenever no CPU runs: every id is live or in the queue, exactly once; the counts
/// of flows in full use are right; there is one live flow for a tuple, and the index leads to it. Then
/// whether every live flow really leads both ways.
pub(super) fn check_tables(lb: &mut DataPlane, ids: &[u32], talks: &[Talk]) {
    let live = live_flows(lb, ids);
    let mut found = lb.drain_free_ids();
    lb.give_free_ids(&found);
    found.extend(live.keys());
    found.sort_unstable();
    assert_eq!(found, ids, "live {:?}", live.keys());

    let in_use = || live.values().filter(|(word, _)| word.in_use());
    let used = |index| lb.maps.usage(index).expect("a count") as usize;
    let (network, _) = lb.desired.networks[1];
    assert_eq!(
        used(usage::network(network)),
        in_use().count(),
        "of the network"
    );
    for (_, service) in &lb.desired.services {
        let of_service = in_use().filter(|(_, flow)| flow.service == service.id);
        assert_eq!(
            used(usage::service(service.id)),
            of_service.count(),
            "{service:?}"
        );
    }

    let mut keys = BTreeSet::new();
    for (&id, (word, flow)) in &live {
        let key = flow.key(word.is_udp());
        let talk = talks.iter().find(|talk| talk.is(&key));
        let talk = *talk.expect("a flow of this test");
        assert!(keys.insert(talk), "two live flows of {talk:?}: {live:?}");
        let index = lb.maps.flow_lines.find(&key).expect("the lines");
        assert_eq!(index, Some(id), "{talk:?} {word:?}");
        leads_both_ways(lb, talk, id, *word, flow);
    }
}

pub(super) fn live_flows(lb: &DataPlane, ids: &[u32]) -> BTreeMap<u32, (FlowState, Flow)> {
    let mut live = BTreeMap::new();
    for &id in ids {
        let flow = lb.maps.flows.get(&id, 0).expect("an entry");
        let word = FlowState::from_raw(flow.word);
        assert_ne!(word.state(), State::Claimed, "{id}: no CPU is at it");
        if is_live(word) {
            live.insert(id, (word, flow));
        }
    }
    live
}

fn leads_both_ways(lb: &mut DataPlane, talk: Talk, id: u32, word: FlowState, flow: &Flow) {
    let first = (flow.ack_reply.get(), flow.ack_request.get());
    let request = talk.request(ACK_ONLY, first.0, first.1);
    let ((action, out), _) = lb.run(Port::Tenant, &request, 1);
    assert_eq!(action, Action::Redirect, "{talk:?} {word:?}");
    let port = talk.sent_from(&out);
    assert_eq!(DataPlane::flow_id(port), id, "{talk:?}");
    let flags = match word.state() {
        State::New => SYN_ACK,
        _ => ACK_ONLY,
    };
    let reply = talk.reply(port, flags, [BACKEND_ISN, first.0]);
    let ((action, out), _) = lb.run(Port::Mgmt, &reply, 1);
    assert_eq!(action, Action::Redirect, "{talk:?} {word:?}");
    assert!(talk.has_got(&out), "{talk:?} {}", Decoded(&out));
}
