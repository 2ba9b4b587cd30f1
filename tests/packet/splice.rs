//! Connections of shared VIPs on their way from sockets of the cells to XDP: a port that is lent to a
//! socket, a client that is held meanwhile, and segments that get the numbers of the other connection.

use std::net::{Ipv4Addr, SocketAddrV4};

use aya::maps::{Array, Map, MapData};
use lb_common::{
    addr::{Be16, Be32, Mac},
    conntrack::{FlowState, State},
    maps::{
        flow::Flow,
        splice::{Numbers, Splice, owner},
        usage,
    },
    traffic::Amount,
};
use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, icmp, tcp, udp},
    product::program::{
        Action, CLIENT, DataPlane, IDS, MGMT_NIC, Outcome, Port, TENANT_NIC, node_mac,
    },
};
use lb_user::{
    dataplane::{
        attach::Mode,
        flows::{FlowTable, UsageTable, coarse_now},
        replicas::{Placed, Replica},
        splices::{BackendSynAck, FlowNumbers, SpliceTable},
    },
    model::registry::Kind,
};

use super::{
    given::{
        API, CLIENT_A, CLIENT_B, KAS, KAS_MAC, assert_dropped, assert_frame, assert_refused,
        forwarded, reply, request, snat,
    },
    replicas::{replica, replicas},
};

const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  kas:  { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  api:  { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], sni: { syn_cookies: never, routes: [{ names: [a.lab], pool: kas }] } }
"#;

/// What a connection consists of.
const FLAGS: [u8; 6] = [SYN_ONLY, SYN_ACK, ACK_ONLY, FIN_ACK, RST_ONLY, RST_ACK];
/// The first port: that of the flow that is lent first.
const PORT: u16 = 1024;
const OTHER_NODE: &str = "10.32.96.106:30918";

/// The number of the first byte of each end, and of each of our sockets. The backend's stream wraps
/// within the test, and the numbers of each direction are further apart than any window.
const CLIENT_BYTE: u32 = 0x0000_0200;
const OUR_CLIENT_BYTE: u32 = 0x9234_5678;
const BACKEND_BYTE: u32 = 0xffff_fff0;
const OUR_BACKEND_BYTE: u32 = 0x6fed_cba0;
/// The clock of each end, and what the other one hears of it.
const CLIENT_TIME: u32 = 0xffff_ff00;
const CLIENT_TIME_THERE: u32 = 0x1111_2222;
const BACKEND_TIME: u32 = 0x7fff_0001;
const BACKEND_TIME_THERE: u32 = 0x0000_0003;
/// A window of each end, and how the other one must read it.
const CLIENT_WINDOWS: [u16; 2] = [0x0807, 0x0100];
const BACKEND_WINDOWS: [u16; 2] = [502, 2008];
/// Bytes of the client that our socket sends the backend.
const HELLO: u32 = 517;

fn numbers([from, to]: [u32; 2], [time, there]: [u32; 2], [scale, promised]: [u16; 2]) -> Numbers {
    Numbers {
        sequence: to.wrapping_sub(from),
        time: there.wrapping_sub(time),
        scale,
        promised,
    }
}

/// The splice of these numbers. `generation` is that of its flow.
fn record() -> Splice {
    Splice {
        sent_end: OUR_CLIENT_BYTE + HELLO,
        received: BACKEND_BYTE,
        to_backend: numbers(
            [CLIENT_BYTE, OUR_CLIENT_BYTE],
            [CLIENT_TIME, CLIENT_TIME_THERE],
            [7, 10],
        ),
        to_client: numbers(
            [BACKEND_BYTE, OUR_BACKEND_BYTE],
            [BACKEND_TIME, BACKEND_TIME_THERE],
            [9, 7],
        ),
        ..Splice::default()
    }
}

/// A segment as its sender sends it, and as its receiver gets it.
#[derive(Clone)]
struct Pair([Frame; 2]);

impl Pair {
    fn payload(self, bytes: &[u8]) -> Self {
        Self(self.0.map(|frame| frame.payload(bytes)))
    }

    fn options(self, bytes: &[u8]) -> Self {
        Self(self.0.map(|frame| frame.options(bytes)))
    }
}

/// How a list of options is put together from timestamps and acknowledged blocks.
type Layout = fn(&[u8], &[u8]) -> Vec<u8>;

/// Fills a list up with padding.
fn whole(mut list: Vec<u8>) -> Vec<u8> {
    list.resize(list.len().next_multiple_of(4), 1);
    list
}

/// As nearly every kernel does it.
fn usual(times: &[u8], blocks: &[u8]) -> Vec<u8> {
    let padding = if blocks.is_empty() { &[][..] } else { &[1, 1] };
    whole([&[1, 1], times, padding, blocks].concat())
}

/// The same, elsewhere: at odd places, the other way round, one without the other, with others.
const LAYOUTS: [Layout; 7] = [
    usual,
    |times, _| whole(times.to_vec()),
    |_, blocks| whole(blocks.to_vec()),
    |times, blocks| whole([times, blocks].concat()),
    |times, blocks| whole([&[1], times, blocks].concat()),
    |times, blocks| whole([blocks, &[1], times].concat()),
    |times, blocks| whole([&[254, 3, 8], blocks, times, &[0]].concat()),
];

/// What an observer sees of a connection: the first byte and the clock of the sender of a segment, then of
/// its receiver; and the sender's window.
struct Side {
    bytes: [u32; 2],
    clocks: [u32; 2],
    window: u16,
}

/// A segment's content: flags, byte and acknowledgment, layout of its options, acknowledged blocks.
#[derive(Clone, Copy)]
struct Said<'a> {
    flags: u8,
    numbers: [u32; 2],
    layout: Layout,
    blocks: &'a [[u32; 2]],
}

impl Said<'_> {
    /// The segment with the numbers of one side.
    fn seen(&self, frame: Frame, side: &Side) -> Frame {
        let [at, ack] = self.numbers;
        let [own, other] = side.bytes;
        let [clock, echo] = side.clocks;
        let acks = self.flags & ACK_ONLY != 0;
        let (ack, echo) = if acks {
            (other.wrapping_add(ack), echo.wrapping_add(3))
        } else {
            (0, 0)
        };
        let options = self.options([clock.wrapping_add(7), echo], other);
        frame
            .numbers(own.wrapping_add(at), ack)
            .tcp_options(&options)
            .window(side.window)
    }

    fn options(&self, clocks: [u32; 2], other: u32) -> Vec<u8> {
        let words = |words: &[u32]| -> Vec<u8> {
            let bytes = words.iter().flat_map(|word| word.to_be_bytes());
            bytes.collect()
        };
        let times = [&[8, 10][..], &words(&clocks)].concat();
        let edges = self.blocks.as_flattened().iter();
        let edges: Vec<u32> = edges.map(|edge| other.wrapping_add(*edge)).collect();
        let sack = match u8::try_from(4 * edges.len()).expect("few") {
            0 => Vec::new(),
            bytes => [&[5, 2 + bytes][..], &words(&edges)].concat(),
        };
        (self.layout)(&times, &sack)
    }

    /// As the client says it, and as the backend hears it.
    fn by_client(&self) -> Pair {
        let [said, heard] = windows(self.flags, CLIENT_WINDOWS);
        let before = Side {
            bytes: [CLIENT_BYTE, OUR_BACKEND_BYTE],
            clocks: [CLIENT_TIME, BACKEND_TIME_THERE],
            window: said,
        };
        let after = Side {
            bytes: [OUR_CLIENT_BYTE, BACKEND_BYTE],
            clocks: [CLIENT_TIME_THERE, BACKEND_TIME],
            window: heard,
        };
        let sent = tcp(&snat(PORT), KAS, self.flags).ttl(63);
        Pair([
            self.seen(request(CLIENT_A, API, self.flags), &before),
            self.seen(sent.between(MGMT_NIC, KAS_MAC), &after),
        ])
    }

    /// As the backend says it, and as the client hears it.
    fn by_backend(&self) -> Pair {
        let [said, heard] = windows(self.flags, BACKEND_WINDOWS);
        let before = Side {
            bytes: [BACKEND_BYTE, OUR_CLIENT_BYTE],
            clocks: [BACKEND_TIME, CLIENT_TIME_THERE],
            window: said,
        };
        let after = Side {
            bytes: [OUR_BACKEND_BYTE, CLIENT_BYTE],
            clocks: [BACKEND_TIME_THERE, CLIENT_TIME],
            window: heard,
        };
        let sent = tcp(API, CLIENT_A, self.flags).ttl(63);
        Pair([
            self.seen(reply(PORT, self.flags), &before),
            self.seen(sent.between(TENANT_NIC, CLIENT), &after),
        ])
    }
}

/// That of a SYN is never scaled.
const fn windows(flags: u8, [said, heard]: [u16; 2]) -> [u16; 2] {
    let heard = if flags & SYN_ONLY == 0 { heard } else { said };
    [said, heard]
}

const fn said(flags: u8, at: u32, ack: u32) -> Said<'static> {
    Said {
        flags,
        numbers: [at, ack],
        layout: usual,
        blocks: &[],
    }
}

/// A segment of the client's byte `at`, where it has received the backend's bytes before `ack`.
fn client_says(flags: u8, at: u32, ack: u32) -> Pair {
    said(flags, at, ack).by_client()
}

/// A segment of the backend's byte `at`, where it has received the client's bytes before `ack`.
fn backend_says(flags: u8, at: u32, ack: u32) -> Pair {
    said(flags, at, ack).by_backend()
}

/// A segment of our socket in the cell to the backend, from its byte `at`.
fn socket_says(flags: u8, at: u32, ack: u32) -> Frame {
    let numbers = (
        OUR_CLIENT_BYTE.wrapping_add(at),
        BACKEND_BYTE.wrapping_add(ack),
    );
    let frame = tcp(&snat(PORT), KAS, flags).numbers(numbers.0, numbers.1);
    frame.between(MGMT_NIC, KAS_MAC)
}

/// A segment of the VIP's socket in the cell to a client.
fn vip_says(client: &str, flags: u8) -> Frame {
    let router = node_mac(Ipv4Addr::new(192, 168, 203, 1));
    tcp(API, client, flags)
        .numbers(7, 9)
        .between(TENANT_NIC, router)
}

fn be32(address: &str) -> (Be32, Be16) {
    let address: SocketAddrV4 = address.parse().expect("an address");
    ((*address.ip()).into(), Be16::new(address.port()))
}

/// The flow of [`PORT`] as userspace has it in hand.
struct Lease {
    table: FlowTable,
    splices: SpliceTable,
    usage: UsageTable,
    id: u32,
    word: FlowState,
    flow: Flow,
}

impl Lease {
    /// Takes the first id for a socket that is to be connected to the backend.
    fn lend(lb: &DataPlane) -> Self {
        let queue = lb.maps.free_ids(0).expect("a queue");
        let id = queue.expect("the slot is open").pop().expect("an id");
        assert_eq!(id, DataPlane::flow_id(PORT));
        let (client, client_port) = be32(CLIENT_A);
        let (vip, vip_port) = be32(API);
        let (backend, backend_port) = be32(KAS);
        let find = |kind, name| lb.ids.get(kind, name).expect("an id");
        let narrow = |id| u16::try_from(id).expect("a small id");
        let flow = Flow {
            client,
            vip,
            client_port,
            vip_port,
            network: narrow(find(Kind::Network, "tenant-a")),
            backend,
            backend_port,
            backend_id: u16::try_from(lb.desired.backends[0].0).expect("a short id"),
            service: narrow(find(Kind::Service, "api")),
            last_seen: coarse_now().expect("a clock"),
            ..Flow::default()
        };
        let mut lease = Self {
            table: lb.flow_table(),
            splices: lb.splices(),
            usage: UsageTable::open(&lb.maps_folder()).expect("the numbers"),
            id,
            word: lb.flow_table().word(id).expect("an entry"),
            flow,
        };
        lease.change(lease.word.claim(false));
        lease.table.fill(id, &flow);
        lease.change(lease.word.lend());
        lease
    }

    /// Holds the client.
    fn held(lb: &mut DataPlane) -> Self {
        let mut lease = Self::lend(lb);
        lease.change(lease.word.hold());
        let key = lease.flow.key(false);
        lb.maps
            .flow_lines
            .insert(&key, lease.id)
            .expect("room for the key");
        lease
    }

    /// With a splice, while the client is still held.
    fn joined(lb: &mut DataPlane) -> Self {
        let mut lease = Self::held(lb);
        lease.flow.client_mac = CLIENT;
        lease.flow.ack_request = Be32::new(BACKEND_BYTE);
        lease.flow.ack_reply = Be32::new(OUR_CLIENT_BYTE);
        lease.table.fill(lease.id, &lease.flow);
        let set = lease.splices.set(lease.id, lease.word, &record(), b"");
        set.expect("room for a splice");
        lease.change(lease.word.splice());
        for index in lease.counted() {
            lease.usage.owners().add(index, 1);
        }
        let backends = lease.usage.backends();
        backends.add(lease.flow.backend_id.into(), 1);
        lease
    }

    /// The connection is the data plane's; the backend does not have the hello yet.
    fn spliced(lb: &mut DataPlane) -> Self {
        let mut lease = Self::joined(lb);
        lease.change(lease.word.release());
        lease
    }

    /// The backend has it.
    fn drained(lb: &mut DataPlane) -> Self {
        let lease = Self::spliced(lb);
        becomes(lb, Port::Mgmt, &backend_says(ACK_ONLY, 0, HELLO));
        assert!(lease.splices.is_drained(lease.id, lease.word));
        lease
    }

    fn change(&mut self, next: FlowState) {
        assert!(self.table.swap(self.id, self.word, next), "{next:?}");
        self.word = next;
    }

    fn now(&self) -> (State, Flow) {
        let (word, flow) = self.table.flow(self.id).expect("a flow");
        (word.state(), flow)
    }

    const fn counted(&self) -> [u32; 2] {
        [
            usage::network(self.flow.network),
            usage::service(self.flow.service),
        ]
    }

    /// The flow is over, and its id is the last in the queue.
    fn assert_closed(&self, lb: &DataPlane) {
        assert_eq!(self.now().0, State::Closed);
        assert_eq!(
            self.counted().map(|index| self.usage.owners().get(index)),
            [Some(0); 2]
        );
        let free = lb.drain_free_ids();
        assert_eq!((free.len(), free.last()), (IDS, Some(&self.id)));
    }

    /// What a reset comes to that is so far ahead of what is expected: an exact one closes, another is doubted.
    fn assert_judges(&self, lb: &DataPlane, ahead: u32) {
        let word = self.table.word(self.id).expect("a word");
        assert_eq!(word.is_doubted(), ahead > 0, "{ahead}");
        if ahead == 0 {
            self.assert_closed(lb);
        } else {
            self.assert_lives(lb);
        }
    }

    fn assert_lives(&self, lb: &DataPlane) {
        assert_eq!(self.now().0, State::Established);
        assert_eq!(
            self.counted().map(|index| self.usage.owners().get(index)),
            [Some(1); 2]
        );
        let free = lb.drain_free_ids();
        assert_eq!(free.len(), IDS - 1);
        lb.give_free_ids(&free);
    }
}

/// The network of a port.
const fn network(port: Port) -> &'static str {
    match port {
        Port::Mgmt | Port::SecondMgmt => "mgmt",
        Port::Cell(network) => network,
        Port::Tenant | Port::Foreign => "tenant-a",
    }
}

/// What comes in at `port` leaves by the other NIC, as its receiver expects it.
fn becomes(lb: &mut DataPlane, port: Port, Pair([before, after]): &Pair) {
    assert_frame(&forwarded(lb, port, before), after);
}

fn client_becomes(lb: &mut DataPlane, pair: &Pair) {
    becomes(lb, Port::Tenant, pair);
}

fn backend_becomes(lb: &mut DataPlane, pair: &Pair) {
    becomes(lb, Port::Mgmt, pair);
}

/// What comes in at `port` goes on untouched.
fn assert_untouched(lb: &mut DataPlane, port: Port, bytes: &[u8], verdict: &'static str) {
    let hook = if matches!(port, Port::Cell(_)) {
        "cell"
    } else {
        "nic"
    };
    let wanted = Outcome {
        action: Action::Redirect,
        frame: bytes.to_vec(),
        counted: (hook, network(port).to_owned(), verdict),
    };
    assert_eq!(lb.receive(port, bytes), wanted, "{}", Decoded(bytes));
}

fn assert_delivered(lb: &mut DataPlane, port: Port, frame: &Frame) {
    assert_untouched(lb, port, &frame.bytes(), "delivered");
}

fn assert_leaves(lb: &mut DataPlane, cell: &'static str, frame: &Frame) {
    assert_untouched(lb, Port::Cell(cell), &frame.bytes(), "forwarded");
}

fn assert_forbidden(lb: &mut DataPlane, cell: &'static str, frame: &Frame) {
    assert_dropped(lb, Port::Cell(cell), &frame.bytes(), "cell_forbidden");
}

fn assert_held(lb: &mut DataPlane) {
    for flags in FLAGS {
        let Pair([segment, _]) = client_says(flags, HELLO, 0).payload(b"more");
        assert_dropped(lb, Port::Tenant, &segment.bytes(), "held");
        let options = segment.options(&[1; 4]).bytes();
        assert_dropped(lb, Port::Tenant, &options, "held");
    }
}

#[privileged_test]
fn what_the_backend_says_to_a_lent_port_goes_into_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let nobodys = reply(PORT, SYN_ACK).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &nobodys, "reply_mismatch");
    let lease = Lease::lend(&lb);
    for flags in FLAGS {
        let segment = reply(PORT, flags)
            .numbers(7000, 9000)
            .payload(b"from a node");
        assert_delivered(&mut lb, Port::Mgmt, &segment);
        assert_delivered(&mut lb, Port::Mgmt, &segment.clone().padding(6));
        assert_delivered(&mut lb, Port::Mgmt, &segment.ttl(1));
    }
    let (state, flow) = lease.now();
    assert_eq!(state, State::Local);
    assert_eq!((flow.ack_request, flow.ack_reply), Default::default());
    assert_eq!(flow.reply(), Amount::default(), "the socket has them");
    let ended = lease.word.end();
    assert!(lease.table.swap(lease.id, lease.word, ended));
    assert_dropped(&mut lb, Port::Mgmt, &nobodys, "reply_mismatch");
}

#[privileged_test]
fn nobody_else_says_anything_to_a_lent_port() {
    let mut lb = DataPlane::new(CONFIG);
    let _lease = Lease::lend(&lb);
    let to = snat(PORT);
    for other in [OTHER_NODE, "10.32.96.105:30919", "192.0.2.9:30918"] {
        let from = |flags| tcp(other, &to, flags).between(KAS_MAC, MGMT_NIC).bytes();
        for flags in [SYN_ONLY, SYN_ACK, RST_ONLY, RST_ACK] {
            assert_dropped(&mut lb, Port::Mgmt, &from(flags), "reply_mismatch");
        }
        for flags in [ACK_ONLY, FIN_ACK] {
            assert_refused(&mut lb, Port::Mgmt, &from(flags), "reply_mismatch");
        }
    }
    let datagram = udp(KAS, &to).between(KAS_MAC, MGMT_NIC).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &datagram, "reply_mismatch");
    let segment = reply(PORT, SYN_ACK).payload(&[7; 20]);
    for odd in [segment.clone().options(&[1; 4]), segment.fragment(0x2000)] {
        assert_dropped(&mut lb, Port::Mgmt, &odd.bytes(), "unsupported_protocol");
    }
}

#[privileged_test]
fn what_a_syn_ack_says_is_noted_and_no_other() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::lend(&lb);
    let times = |time: u32| [&[8, 10][..], &time.to_be_bytes(), &[0; 4]].concat();
    let hears = |lb: &mut DataPlane, flags, options: &[u8]| {
        let segment = reply(PORT, flags).numbers(7000, 9000).tcp_options(options);
        assert_delivered(lb, Port::Mgmt, &segment);
        let BackendSynAck { time, mss } = lease.splices.backend_syn_ack(lease.id);
        (time, mss)
    };
    let linux = |time| [&[2, 4, 5, 0xb4, 4, 2], &times(time)[..], &[1, 3, 3, 7]].concat();
    assert_eq!(hears(&mut lb, SYN_ACK, &[2, 4, 5, 0xb0]), (0, 1456));
    let noted = (0x8765_4321, 1460);
    assert_eq!(hears(&mut lb, SYN_ACK, &linux(noted.0)), noted);
    for flags in [ACK_ONLY, FIN_ACK, RST_ACK, RST_ONLY, SYN_ONLY] {
        let said = [&linux(5)[..], &[2, 4, 1, 1]].concat();
        assert_eq!(hears(&mut lb, flags, &said), noted, "{flags:#x}");
    }
    // An end without the option takes what every host does.
    assert_eq!(hears(&mut lb, SYN_ACK, &[]), (noted.0, 536));
    let odd = [&[1][..], &times(9), &[1]].concat();
    assert_eq!(hears(&mut lb, SYN_ACK, &odd), (9, 536));
    let broken = [&times(8)[..], &[254, 3]].concat();
    assert_eq!(hears(&mut lb, SYN_ACK, &broken), (9, 536));
}

#[privileged_test]
fn a_cell_sends_from_a_lent_port_to_its_backend_alone() {
    let mut lb = DataPlane::new(CONFIG);
    let says = |to: &str, flags| tcp(&snat(PORT), to, flags).between(MGMT_NIC, KAS_MAC);
    assert_forbidden(&mut lb, "mgmt", &says(KAS, SYN_ONLY));
    let _lease = Lease::lend(&lb);
    for flags in FLAGS {
        assert_leaves(&mut lb, "mgmt", &says(KAS, flags).payload(b"a hello"));
        for other in [OTHER_NODE, "10.32.96.105:30919", "192.0.2.9:30918"] {
            assert_forbidden(&mut lb, "mgmt", &says(other, flags));
        }
        let other = tcp(&snat(PORT + 1), KAS, flags).between(MGMT_NIC, KAS_MAC);
        assert_forbidden(&mut lb, "mgmt", &other);
    }
    let datagram = udp(&snat(PORT), KAS).between(MGMT_NIC, KAS_MAC);
    assert_forbidden(&mut lb, "mgmt", &datagram);
    let segment = says(KAS, ACK_ONLY).payload(&[7; 20]);
    for odd in [segment.clone().options(&[1; 4]), segment.fragment(0x2000)] {
        assert_forbidden(&mut lb, "mgmt", &odd);
    }
}

/// As long as the client is not held, its connection is that of its socket.
#[privileged_test]
fn a_lent_port_leaves_the_client_with_its_socket() {
    let mut lb = DataPlane::new(CONFIG);
    let _lease = Lease::lend(&lb);
    for flags in FLAGS {
        let Pair([segment, _]) = client_says(flags, 0, 0).payload(b"a hello");
        assert_delivered(&mut lb, Port::Tenant, &segment);
        assert_leaves(&mut lb, "tenant-a", &vip_says(CLIENT_A, flags));
    }
}

#[privileged_test]
fn a_client_is_held_and_its_socket_says_nothing() {
    for join in [Lease::held, Lease::joined] {
        let mut lb = DataPlane::new(CONFIG);
        let mut lease = join(&mut lb);
        let before = lease.now();
        assert_held(&mut lb);
        for flags in FLAGS {
            assert_forbidden(&mut lb, "tenant-a", &vip_says(CLIENT_A, flags));
            assert_leaves(&mut lb, "tenant-a", &vip_says(CLIENT_B, flags));
            let other = request(CLIENT_B, API, flags);
            assert_delivered(&mut lb, Port::Tenant, &other);
        }
        assert_eq!(lease.now(), before, "nothing of it counts");

        // Both sockets have the connection again.
        if lease.word.is_spliced() {
            lease.change(lease.word.unsplice());
        }
        let left = lb.maps.flow_lines.remove(&lease.flow.key(false), lease.id);
        left.expect("the lines");
        lease.change(lease.word.release());
        for flags in FLAGS {
            assert_leaves(&mut lb, "tenant-a", &vip_says(CLIENT_A, flags));
            assert_leaves(&mut lb, "mgmt", &socket_says(flags, 0, 0));
            assert_delivered(&mut lb, Port::Mgmt, &reply(PORT, flags));
            assert_delivered(&mut lb, Port::Tenant, &request(CLIENT_A, API, flags));
        }
    }
}

/// The backend may speak first.
#[privileged_test]
fn a_held_client_hears_its_backend_by_its_splice() {
    let mut lb = DataPlane::new(CONFIG);
    let held = Lease::held(&mut lb);
    let Pair([greeting, _]) = backend_says(ACK_ONLY, 0, 0).payload(b"220 hello");
    assert_delivered(&mut lb, Port::Mgmt, &greeting);
    drop(held);
    let mut lb = DataPlane::new(CONFIG);
    let _lease = Lease::joined(&mut lb);
    let greeting = backend_says(ACK_ONLY, 0, 0).payload(b"220 hello");
    backend_becomes(&mut lb, &greeting);
    assert_held(&mut lb);
}

#[privileged_test]
fn segments_get_the_numbers_of_the_other_connection() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::drained(&mut lb);
    for flags in [ACK_ONLY, ACK_ONLY | 8] {
        for length in [0, 1, 2, 1000, 1400] {
            let data: Vec<u8> = (0..=250).cycle().take(length).collect();
            let client = client_says(flags, HELLO, 4000).payload(&data);
            client_becomes(&mut lb, &client);
            let backend = backend_says(flags, 70_000, HELLO + 100).payload(&data);
            backend_becomes(&mut lb, &backend);
        }
    }
    let (state, flow) = lease.now();
    assert_eq!(state, State::Established);
    // Both in the backend's numbers.
    assert_eq!(flow.ack_request.get(), BACKEND_BYTE.wrapping_add(4000));
    assert_eq!(flow.ack_reply.get(), OUR_CLIENT_BYTE + HELLO + 100);
    let frames = 2 * 5 * 66 + 2 * 2403;
    assert_eq!(
        (flow.request().bytes, flow.reply().bytes),
        (frames, frames + 66)
    );
    // An IP header with options does not hide what is behind it.
    let client = client_says(ACK_ONLY, HELLO, 4000).options(&[1; 40]);
    client_becomes(&mut lb, &client.payload(b"odd"));
    let backend = backend_says(ACK_ONLY, 70_000, HELLO).options(&[1; 8]);
    backend_becomes(&mut lb, &backend.payload(b"odd"));
    // A router is not distinguished.
    let Pair([sent, seen]) = client_says(ACK_ONLY, HELLO, 4000);
    let router = Mac::new([2, 0, 0, 0, 0xc, 9]);
    let moved = Pair([sent.between(router, TENANT_NIC), seen]);
    client_becomes(&mut lb, &moved);
    assert_eq!(lease.now().1.client_mac, router);
}

#[privileged_test]
fn options_are_translated_wherever_they_stand() {
    let blocks = [
        [1400, 2800],
        [5000, 9000],
        [20_000, 70_000],
        [80_000, 80_001],
    ];
    let mut lb = DataPlane::new(CONFIG);
    let _lease = Lease::drained(&mut lb);
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        for most in 0..=blocks.len() {
            let said = Said {
                flags: ACK_ONLY,
                numbers: [HELLO, 700],
                layout,
                blocks: &blocks[..most],
            };
            // Four have no room beside timestamps.
            if most == blocks.len() && number != 2 {
                continue;
            }
            for payload in [&b""[..], b"odd"] {
                client_becomes(&mut lb, &said.by_client().payload(payload));
                backend_becomes(&mut lb, &said.by_backend().payload(payload));
            }
        }
    }
}

/// Lists of options that are none.
pub(super) const BROKEN_OPTIONS: [[u8; 4]; 6] = [
    [8, 9, 0, 0],
    [1, 1, 8, 10],
    [5, 10, 0, 0],
    [254, 1, 1, 1],
    [254, 0, 1, 1],
    [1, 1, 1, 254],
];

/// A list of options that is broken, in whatever way, translates nothing; and goes nowhere.
#[privileged_test]
fn broken_options_go_nowhere() {
    let mut lb = DataPlane::new(CONFIG);
    let _lease = Lease::drained(&mut lb);
    for options in BROKEN_OPTIONS {
        let frames = [
            (Port::Tenant, client_says(ACK_ONLY, HELLO, 0)),
            (Port::Mgmt, backend_says(ACK_ONLY, 0, HELLO)),
        ];
        for (port, Pair([frame, _])) in frames {
            let outcome = lb.receive(port, &frame.tcp_options(&options).bytes());
            let wanted = ("nic", network(port).to_owned(), "malformed");
            assert_eq!((outcome.action, outcome.counted), (Action::Drop, wanted));
        }
    }
}

/// The backend challenges a SYN of a connection that it has: the client sees that, and resets it.
#[privileged_test]
fn a_syn_of_the_client_opens_nothing() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::drained(&mut lb);
    let again = 0x4000_0000;
    client_becomes(&mut lb, &client_says(SYN_ONLY, again, 0));
    assert_eq!(lease.now().0, State::Established);
    backend_becomes(&mut lb, &backend_says(ACK_ONLY, 4000, HELLO));
    lease.assert_lives(&lb);
    client_becomes(&mut lb, &client_says(RST_ONLY, HELLO, 0));
    lease.assert_closed(&lb);
}

/// A SYN takes back no FIN: the backend has never seen one of this client.
#[privileged_test]
fn a_syn_of_the_client_does_not_undo_a_fin() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::drained(&mut lb);
    client_becomes(&mut lb, &client_says(FIN_ACK, HELLO, 10));
    client_becomes(&mut lb, &client_says(SYN_ONLY, 0x4000_0000, 0));
    backend_becomes(&mut lb, &backend_says(FIN_ACK, 10, HELLO + 1));
    lease.assert_closed(&lb);
}

/// The size of segments is clamped and the rest translated.
#[privileged_test]
fn a_syn_is_held_to_what_both_networks_carry() {
    let config = CONFIG.replace("interface: eth1,", "interface: eth1, mss: 1360,");
    let mut lb = DataPlane::new(&config);
    let _lease = Lease::drained(&mut lb);
    let list = |size: u16, time: u32| {
        let [high, low] = size.to_be_bytes();
        [
            &[2, 4, high, low, 4, 2, 8, 10][..],
            &time.to_be_bytes(),
            &[0; 4],
            &[1, 3, 3, 7],
        ]
        .concat()
    };
    let Pair([sent, seen]) = client_says(SYN_ONLY, 70, 0);
    let syn = Pair([
        sent.tcp_options(&list(1460, CLIENT_TIME)),
        seen.tcp_options(&list(1360, CLIENT_TIME_THERE)),
    ]);
    client_becomes(&mut lb, &syn);
}

/// On another box both ends go on as here, from when the backend has what our socket sent it.
#[privileged_test]
fn a_replica_has_the_numbers_of_both_connections() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::spliced(&mut lb);
    assert_eq!(lease.splices.numbers(lease.id, lease.word), None);
    backend_becomes(&mut lb, &backend_says(ACK_ONLY, 0, HELLO));
    let replica = replica(&lb, PORT);
    assert!(matches!(
        replica.numbers,
        Some(FlowNumbers::HandedOver(splice)) if splice.owner != 0
    ));
    drop((lease, lb));

    let mut lb = DataPlane::new(CONFIG);
    let mut replicas = replicas(&lb);
    let id = DataPlane::flow_id(PORT);
    assert_eq!(replicas.place(id, &replica), Placed::Ready);
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO, 0).payload(b"more"));
    backend_becomes(
        &mut lb,
        &backend_says(ACK_ONLY, 0, HELLO + 4).payload(b"yes"),
    );
    // Its numbers come again: it is the same flow.
    let (word, flow) = lb.flow_table().flow(id).expect("a flow");
    let again = Replica {
        flow: Flow {
            last_seen: flow.last_seen.wrapping_add(1),
            ..replica.flow
        },
        ..replica
    };
    assert_eq!(replicas.place(id, &again), Placed::Ready);
    assert_eq!(lb.flow_table().word(id), Some(word));
}

#[privileged_test]
fn until_the_backend_has_the_hello_its_acknowledgments_are_the_sockets() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::spliced(&mut lb);
    let is_drained = || lease.splices.is_drained(lease.id, lease.word);
    for ack in [0, 1, 500, HELLO - 1] {
        let Pair([segment, _]) = backend_says(ACK_ONLY, 0, ack);
        assert_delivered(&mut lb, Port::Mgmt, &segment);
        assert_delivered(&mut lb, Port::Mgmt, &segment.padding(6));
        // Its SYN-ACK, once more.
        let Pair([segment, _]) = backend_says(SYN_ACK, u32::MAX, ack);
        assert_delivered(&mut lb, Port::Mgmt, &segment);
        let data = backend_says(ACK_ONLY, 0, ack).payload(b"an early answer");
        backend_becomes(&mut lb, &data);
        assert!(!is_drained());
    }
    // The client does not wait for that.
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO, 15).payload(b"more"));
    // Without the flag this is no acknowledgment.
    let Pair([sent, seen]) = backend_says(0, 15, 0).payload(b"odd");
    let ack = OUR_CLIENT_BYTE + HELLO;
    let numbers = |frame: Frame, byte: u32| frame.numbers(byte.wrapping_add(15), ack);
    let odd = Pair([numbers(sent, BACKEND_BYTE), numbers(seen, OUR_BACKEND_BYTE)]);
    backend_becomes(&mut lb, &odd);
    assert!(!is_drained());

    backend_becomes(&mut lb, &backend_says(ACK_ONLY, 15, HELLO));
    assert!(is_drained());
    for ack in [0, HELLO - 1, HELLO, HELLO + 4] {
        backend_becomes(&mut lb, &backend_says(ACK_ONLY, 15, ack));
    }
    assert!(is_drained());
    lease.assert_lives(&lb);
}

/// The bytes of the backend's stream may be others there: a proxy's header.
#[privileged_test]
fn until_the_backend_has_the_hello_the_client_does_not_repeat_it() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::spliced(&mut lb);
    let repeats = [
        client_says(ACK_ONLY, 0, 0).payload(&[7; HELLO as usize]),
        client_says(ACK_ONLY, 0, 0).payload(&[7; HELLO as usize + 1]),
        client_says(ACK_ONLY, HELLO - 1, 0).payload(b"7"),
        // From before its first byte on: of a header that was for us.
        client_says(ACK_ONLY, 0_u32.wrapping_sub(30), 0).payload(b"7"),
    ];
    for Pair([repeated, _]) in &repeats {
        assert_dropped(&mut lb, Port::Tenant, &repeated.bytes(), "held");
    }
    // An acknowledgment has no bytes, and what comes behind is the client's.
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO - 1, 0));
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO, 0).payload(b"more"));
    backend_becomes(&mut lb, &backend_says(ACK_ONLY, 0, HELLO));
    for repeated in &repeats[..3] {
        client_becomes(&mut lb, repeated);
    }
    lease.assert_lives(&lb);
}

#[privileged_test]
fn data_and_what_is_beyond_the_hello_say_that_the_backend_has_it() {
    for (ack, payload) in [
        (HELLO, &b"an answer"[..]),
        (HELLO + 1, b""),
        (HELLO + 1000, b""),
    ] {
        let mut lb = DataPlane::new(CONFIG);
        let lease = Lease::spliced(&mut lb);
        backend_becomes(&mut lb, &backend_says(ACK_ONLY, 0, ack).payload(payload));
        assert!(lease.splices.is_drained(lease.id, lease.word));
    }
}

#[privileged_test]
fn a_socket_repeats_its_hello_and_says_no_more() {
    let mut lb = DataPlane::new(CONFIG);
    let hello = vec![7; HELLO as usize];
    let joined = Lease::joined(&mut lb);
    assert_leaves(
        &mut lb,
        "mgmt",
        &socket_says(ACK_ONLY, 0, 0).payload(&hello),
    );
    drop(joined);

    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::spliced(&mut lb);
    let allowed = [
        socket_says(ACK_ONLY | 8, 0, 0).payload(&hello),
        socket_says(ACK_ONLY, 100, 0).payload(&hello[100..]),
        socket_says(ACK_ONLY, 0, 0),
        socket_says(ACK_ONLY, HELLO, 0),
        // A probe.
        socket_says(ACK_ONLY, u32::MAX, 0),
    ];
    let forbidden = [
        socket_says(ACK_ONLY, 1, 0).payload(&hello),
        socket_says(ACK_ONLY, HELLO, 0).payload(b"m"),
        socket_says(ACK_ONLY, HELLO + 1, 0),
        socket_says(0, 0, 0).payload(&hello),
        socket_says(SYN_ONLY, u32::MAX, 0),
        socket_says(SYN_ACK, u32::MAX, 0),
        socket_says(FIN_ACK, 0, 0).payload(&hello),
        socket_says(RST_ONLY, 0, 0),
        socket_says(RST_ACK, 0, 0),
        tcp(&snat(PORT), OTHER_NODE, ACK_ONLY)
            .numbers(OUR_CLIENT_BYTE, BACKEND_BYTE)
            .between(MGMT_NIC, KAS_MAC),
    ];
    let before = lease.now();
    for segment in &allowed {
        assert_leaves(&mut lb, "mgmt", segment);
    }
    // What the client has not got is not acknowledged.
    for ack in [1, 1000, u32::MAX] {
        let segment = socket_says(ACK_ONLY, 0, ack).payload(&hello);
        let outcome = lb.receive(Port::Cell("mgmt"), &segment.bytes());
        let wanted = ("cell", "mgmt".to_owned(), "forwarded");
        assert_eq!(
            (outcome.action, outcome.counted),
            (Action::Redirect, wanted)
        );
        let wanted = socket_says(ACK_ONLY, 0, 0).payload(&hello);
        assert_frame(&outcome.frame, &wanted);
    }
    for segment in &forbidden {
        assert_forbidden(&mut lb, "mgmt", segment);
    }
    assert_eq!(lease.now(), before, "nothing of it counts");

    backend_becomes(&mut lb, &backend_says(ACK_ONLY, 0, HELLO));
    for segment in allowed.iter().chain(&forbidden) {
        assert_forbidden(&mut lb, "mgmt", segment);
    }
    for flags in FLAGS {
        assert_forbidden(&mut lb, "tenant-a", &vip_says(CLIENT_A, flags));
        assert_leaves(&mut lb, "tenant-a", &vip_says(CLIENT_B, flags));
    }
}

#[privileged_test]
fn both_fins_close_the_flow_and_the_last_ack_still_arrives() {
    for client_first in [true, false] {
        let mut lb = DataPlane::new(CONFIG);
        let lease = Lease::drained(&mut lb);
        if client_first {
            client_becomes(&mut lb, &client_says(FIN_ACK, HELLO, 10));
            backend_becomes(&mut lb, &backend_says(ACK_ONLY, 10, HELLO + 1));
            lease.assert_lives(&lb);
            backend_becomes(&mut lb, &backend_says(FIN_ACK, 10, HELLO + 1));
        } else {
            backend_becomes(&mut lb, &backend_says(FIN_ACK, 10, HELLO).payload(b"bye"));
            client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO, 14));
            lease.assert_lives(&lb);
            client_becomes(&mut lb, &client_says(FIN_ACK, HELLO, 14));
        }
        lease.assert_closed(&lb);
        client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO + 1, 14));
        backend_becomes(&mut lb, &backend_says(ACK_ONLY, 14, HELLO + 1));
        assert_eq!(lease.now().0, State::Closed);
        let word = lease.table.word(lease.id).expect("a word");
        assert_eq!(word.backend_closed_first(), !client_first);
    }
}

/// A backend may end the connection without waiting for all of the hello, and while the client is held.
#[privileged_test]
fn an_early_end_is_the_clients() {
    for join in [Lease::joined, Lease::spliced] {
        for (flags, at, ack) in [(RST_ONLY, 0, 0), (RST_ACK, 0, 0), (RST_ACK, 0, 100)] {
            let mut lb = DataPlane::new(CONFIG);
            let lease = join(&mut lb);
            backend_becomes(&mut lb, &backend_says(flags, at, ack));
            lease.assert_closed(&lb);
            let Pair([segment, _]) = client_says(SYN_ONLY, 70_000, 0);
            assert_delivered(&mut lb, Port::Tenant, &segment);
        }
        let mut lb = DataPlane::new(CONFIG);
        let lease = join(&mut lb);
        backend_becomes(&mut lb, &backend_says(FIN_ACK, 0, 100));
        lease.assert_lives(&lb);
        let (word, _) = lease.table.flow(lease.id).expect("a flow");
        assert!(word.is_half_closed() && word.is_spliced());
        assert_eq!(word.is_held(), lease.word.is_held());
    }
}

/// What the client's number is worth depends on the connection that it gets to.
#[privileged_test]
fn a_reset_of_the_client_counts_by_the_backends_numbers() {
    // The third one would fit if it were not translated.
    let blind = [u32::MAX, 1 << 30, OUR_CLIENT_BYTE.wrapping_sub(CLIENT_BYTE)];
    for flags in [RST_ONLY, RST_ACK] {
        for offset in [0, 1, (1 << 30) - 1] {
            let mut lb = DataPlane::new(CONFIG);
            let lease = Lease::drained(&mut lb);
            for blind in blind {
                client_becomes(&mut lb, &client_says(flags, HELLO.wrapping_add(blind), 0));
                lease.assert_lives(&lb);
            }
            client_becomes(&mut lb, &client_says(flags, HELLO + offset, 0));
            lease.assert_judges(&lb, offset);
        }
    }
}

#[privileged_test]
fn a_reset_of_the_backend_counts_by_its_own_numbers() {
    let blind = [
        u32::MAX,
        1 << 30,
        OUR_BACKEND_BYTE.wrapping_sub(BACKEND_BYTE),
    ];
    for offset in [0, 1, (1 << 30) - 1] {
        let mut lb = DataPlane::new(CONFIG);
        let lease = Lease::drained(&mut lb);
        client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO, 5000));
        for blind in blind {
            let reset = backend_says(RST_ONLY, blind.wrapping_add(5000), 0);
            backend_becomes(&mut lb, &reset);
            lease.assert_lives(&lb);
        }
        backend_becomes(&mut lb, &backend_says(RST_ONLY, 5000 + offset, 0));
        lease.assert_judges(&lb, offset);
    }
}

/// No packet is translated by the splice of another flow.
#[privileged_test]
fn the_splice_of_another_flow_is_none() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::spliced(&mut lb);
    let (id, right) = (lease.id, lease.word.generation());
    let pinned = MapData::from_pin(lb.maps_folder().join("SPLICES")).expect("a pin");
    let mut splices = Array::<_, Splice>::try_from(Map::Array(pinned)).expect("an array");
    let mut set = |owner| {
        splices
            .set(1, &Splice { owner, ..record() }, 0)
            .expect("a write")
    };
    let generations = [0, right + 1, right | 1 << 21, right | 1 << 22, u32::MAX];
    let wrong = generations.map(|generation| owner(id, generation));
    for wrong in wrong
        .into_iter()
        .chain([owner(id + 1, right), owner(0, right)])
    {
        set(wrong);
        let Pair([segment, _]) = client_says(ACK_ONLY, HELLO, 0);
        assert_dropped(&mut lb, Port::Tenant, &segment.bytes(), "record_missing");
        let Pair([segment, _]) = backend_says(ACK_ONLY, 0, HELLO);
        assert_dropped(&mut lb, Port::Mgmt, &segment.bytes(), "record_missing");
        assert!(!lease.splices.is_drained(lease.id, lease.word));
        assert_forbidden(&mut lb, "mgmt", &socket_says(ACK_ONLY, 0, 0));
    }
    set(owner(id, right));
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO, 0));
    backend_becomes(&mut lb, &backend_says(ACK_ONLY, 0, HELLO));
}

/// Nothing of a connection that is over stands in the way of the client's next one, from the same port.
#[privileged_test]
fn after_the_end_the_client_opens_a_connection_to_a_socket() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::drained(&mut lb);
    backend_becomes(&mut lb, &backend_says(FIN_ACK, 10, HELLO));
    client_becomes(&mut lb, &client_says(FIN_ACK, HELLO, 11));
    assert_eq!(lease.now().0, State::Closed);
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO + 1, 11));

    let again = |flags, sequence, ack| request(CLIENT_A, API, flags).numbers(sequence, ack);
    // Not by the SYN of the last one, which comes late.
    let late = again(SYN_ONLY, CLIENT_BYTE - 1, 0).bytes();
    assert_dropped(&mut lb, Port::Tenant, &late, "late_syn");
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO + 1, 11));
    assert_delivered(&mut lb, Port::Tenant, &again(SYN_ONLY, 90_000, 0));
    assert_leaves(&mut lb, "tenant-a", &vip_says(CLIENT_A, SYN_ACK));
    assert_delivered(&mut lb, Port::Tenant, &again(ACK_ONLY, 90_001, 8));
    let hello = again(ACK_ONLY, 90_001, 8).payload(b"another hello");
    assert_delivered(&mut lb, Port::Tenant, &hello);
    assert_leaves(&mut lb, "tenant-a", &vip_says(CLIENT_A, ACK_ONLY));
    // What is late of the last one still reaches the client.
    backend_becomes(&mut lb, &backend_says(FIN_ACK, 10, HELLO));
    lease.assert_closed(&lb);
}

/// The first `bytes` bytes of what a frame carries.
fn quote(frame: &Frame, bytes: usize) -> Vec<u8> {
    let whole = frame.bytes();
    whole[14..whole.len().min(14 + bytes)].to_vec()
}

const TOO_BIG: (u8, u8) = (3, 4);
const MTU: u32 = 1280;
const HOST: &str = "192.168.203.50";
const VIP: &str = "192.168.203.110";
const NODE: &str = "10.32.96.105";
const SNAT: &str = "10.32.96.50";

/// What a router says about a segment to the backend, and what the client must hear of it.
fn about_request(bytes: usize, at: u32) -> [Frame; 2] {
    let Pair([_, sent]) = client_says(ACK_ONLY, at, 0).payload(&[7; 40]);
    // What an error translates is what it needs: the rest of a long quote stays.
    let Said { flags, .. } = said(ACK_ONLY, at, 0);
    let heard = [CLIENT_A, API];
    let own = tcp(heard[0], heard[1], flags).ttl(63).payload(&[7; 40]);
    let side = Side {
        bytes: [CLIENT_BYTE, BACKEND_BYTE],
        clocks: [CLIENT_TIME_THERE, BACKEND_TIME],
        window: CLIENT_WINDOWS[1],
    };
    let own = said(ACK_ONLY, at, 0).seen(own, &side);
    [
        icmp("10.32.100.1", SNAT, TOO_BIG, MTU)
            .between(KAS_MAC, MGMT_NIC)
            .payload(&quote(&sent, bytes)),
        icmp(VIP, HOST, TOO_BIG, MTU)
            .between(TENANT_NIC, CLIENT)
            .ttl(63)
            .payload(&quote(&own, bytes)),
    ]
}

/// What a router says about a segment to the client, and what the backend must hear of it.
fn about_reply(bytes: usize, at: u32) -> [Frame; 2] {
    let Pair([_, sent]) = backend_says(ACK_ONLY, at, HELLO).payload(&[7; 1400]);
    let side = Side {
        bytes: [BACKEND_BYTE, CLIENT_BYTE],
        clocks: [BACKEND_TIME_THERE, CLIENT_TIME],
        window: BACKEND_WINDOWS[1],
    };
    let own = tcp(KAS, &snat(PORT), ACK_ONLY).ttl(63).payload(&[7; 1400]);
    let own = said(ACK_ONLY, at, HELLO).seen(own, &side);
    [
        icmp("10.99.9.9", VIP, TOO_BIG, MTU)
            .between(CLIENT, TENANT_NIC)
            .payload(&quote(&sent, bytes)),
        icmp(SNAT, NODE, TOO_BIG, MTU)
            .between(MGMT_NIC, KAS_MAC)
            .ttl(63)
            .payload(&quote(&own, bytes)),
    ]
}

fn error_becomes(lb: &mut DataPlane, port: Port, [sent, wanted]: &[Frame; 2]) {
    let wanted = Outcome {
        action: Action::Redirect,
        frame: wanted.bytes(),
        counted: ("nic", network(port).to_owned(), "forwarded"),
    };
    let found = lb.receive(port, &sent.bytes());
    assert_eq!(check(&found.frame), Ok(()), "{}", Decoded(&found.frame));
    assert_eq!(found, wanted);
}

/// An end that gets "too big" must find its own number in the quote.
#[privileged_test]
fn an_error_quotes_what_its_receiver_had_sent() {
    let mut lb = DataPlane::new(CONFIG);
    let lease = Lease::drained(&mut lb);
    client_becomes(&mut lb, &client_says(ACK_ONLY, HELLO, 5000));
    let before = lease.now();
    // Eight bytes of TCP; with its checksum; all of it.
    for bytes in [28, 38, 40, 52, 92] {
        for at in [0, 1, 1000, 1_000_000] {
            error_becomes(&mut lb, Port::Mgmt, &about_request(bytes, HELLO + at));
            error_becomes(&mut lb, Port::Tenant, &about_reply(bytes, 5000 + at));
        }
    }
    // What the other end has acknowledged, and what was never sent.
    for at in [u32::MAX - 1, 1 << 24, 1 << 31] {
        let [sent, _] = about_request(28, HELLO.wrapping_add(at));
        assert_dropped(&mut lb, Port::Mgmt, &sent.bytes(), "icmp_unrelated");
        let [sent, _] = about_reply(28, 5000_u32.wrapping_add(at));
        assert_dropped(&mut lb, Port::Tenant, &sent.bytes(), "icmp_unrelated");
    }
    assert_eq!(lease.now(), before, "it changes no flow");
}

/// A socket whose segments are too big, or whose backend is not found, has to know as well.
#[privileged_test]
fn an_error_about_a_segment_of_a_socket_goes_into_its_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let about = |sent: &Frame, kind| {
        let error = icmp("10.32.100.1", SNAT, kind, MTU).between(KAS_MAC, MGMT_NIC);
        error.payload(&quote(sent, 28)).bytes()
    };
    let kinds = [TOO_BIG, (3, 1), (11, 0)];
    let hello = socket_says(ACK_ONLY, 0, 0).payload(&[7; HELLO as usize]);
    for kind in kinds {
        let bytes = about(&hello, kind);
        assert_dropped(&mut lb, Port::Mgmt, &bytes, "icmp_unrelated");
    }
    let mut lease = Lease::held(&mut lb);
    let other = tcp(&snat(PORT), OTHER_NODE, SYN_ONLY);
    for kind in kinds {
        for sent in [&hello, &socket_says(SYN_ONLY, u32::MAX, 0)] {
            assert_untouched(&mut lb, Port::Mgmt, &about(sent, kind), "delivered");
        }
        for other in [&other, &udp(&snat(PORT), KAS)] {
            let bytes = about(other, kind);
            assert_dropped(&mut lb, Port::Mgmt, &bytes, "icmp_unrelated");
        }
    }
    lease.change(lease.word.end());
    let bytes = about(&hello, TOO_BIG);
    assert_dropped(&mut lb, Port::Mgmt, &bytes, "icmp_unrelated");

    // The hello is the socket's until the backend has it, and everything behind it the client's.
    let mut lb = DataPlane::new(CONFIG);
    let _lease = Lease::spliced(&mut lb);
    for kind in kinds {
        assert_untouched(&mut lb, Port::Mgmt, &about(&hello, kind), "delivered");
        let last = socket_says(ACK_ONLY, HELLO - 1, 0).payload(b"!");
        assert_untouched(&mut lb, Port::Mgmt, &about(&last, kind), "delivered");
    }
    error_becomes(&mut lb, Port::Mgmt, &about_request(28, HELLO));
    backend_becomes(&mut lb, &backend_says(ACK_ONLY, 0, HELLO));
    let bytes = about(&hello, TOO_BIG);
    assert_dropped(&mut lb, Port::Mgmt, &bytes, "icmp_unrelated");
    error_becomes(&mut lb, Port::Mgmt, &about_request(28, HELLO));
}

/// Frames of a kernel's stack that has left their checksums to the interface.
#[privileged_test]
fn an_open_checksum_is_made_whole_or_stays_open() {
    let blocks = [[1400, 2801], [5000, 9001]];
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        let _lease = Lease::spliced(&mut lb);
        let run = |lb: &mut DataPlane, port, bytes: &[u8]| {
            let ((action, frame), _) = lb.run(port, bytes, 1);
            assert_eq!(action, Action::Redirect);
            frame
        };
        let Pair([ack, _]) = backend_says(ACK_ONLY, 0, HELLO - 1);
        let delivered = run(&mut lb, Port::Mgmt, &ack.open_checksum());
        match mode {
            Mode::Native => assert_frame(&delivered, &ack),
            Mode::Generic => assert_eq!(delivered, ack.open_checksum()),
        }
        for layout in LAYOUTS {
            for length in 0..100 {
                let said = Said {
                    flags: ACK_ONLY,
                    numbers: [HELLO, HELLO],
                    layout,
                    blocks: &blocks[..length % 3],
                };
                let data: Vec<u8> = (0..=250).cycle().skip(length).take(length * 13).collect();
                for (port, pair) in [
                    (Port::Tenant, said.by_client()),
                    (Port::Mgmt, said.by_backend()),
                ] {
                    let Pair([before, after]) = pair.payload(&data);
                    assert_frame(&run(&mut lb, port, &before.bytes()), &after);
                    let out = run(&mut lb, port, &before.open_checksum());
                    match mode {
                        Mode::Native => assert_frame(&out, &after),
                        Mode::Generic => assert_eq!(out, after.open_checksum()),
                    }
                }
            }
        }
    }
}
