//! Flows that are cut, by the thread itself: what becomes of them, and what their ends get.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
    process::Command,
    time::{Duration, Instant},
};

use lb_common::{
    addr::{Be16, Be32, Mac},
    conntrack::{FlowState, State},
    maps::{
        event::{CUT_BACKEND, CUT_OPERATOR, FlowEvent},
        flow::Flow,
        usage,
    },
    wire::header::{ACK, RST},
};
use lb_tests::{
    frames::{packet::flags::*, segment::Segment},
    poll,
    product::program::{CLIENT, DataPlane, IDS, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::{
    config,
    dataplane::maps::Maps,
    flows::{
        Done, Expiry,
        evict::selector::{EvictSelector, FlowChoice},
        idle::Policy,
        keepalive::next_hops::NextHops,
        log::{self, Reports},
    },
    model::registry::Kind,
};
use nix::{
    net::if_::if_nametoindex,
    sys::socket::{
        AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, setsockopt, socket,
        sockopt,
    },
};
use tokio::sync::mpsc;

use super::given::*;

const TIMEOUT: Duration = Duration::from_secs(20);

/// Starts the thread on the maps, with the NICs up.
fn start(lb: &DataPlane) -> (Expiry, Reports) {
    for interface in ["t0", "t0p", "m0", "m0p"] {
        let mut ip = Command::new("ip");
        let done = ip.args(["link", "set", interface, "up"]).status();
        assert!(done.expect("ip").success());
    }
    let config = config::parse("test.yaml", CONFIG).expect("a configuration");
    let (_, answers) = mpsc::channel(1);
    let (reporter, reports) = log::channel();
    let policy = Policy::new(&config, &lb.ids);
    let ways = NextHops::new(BTreeMap::new(), answers);
    let folder = lb.maps_folder();
    let maps = Maps::open(&folder).expect("the maps");
    // The thread gives up the right to open them later.
    maps.hold().expect("the maps in maps");
    let expiry = Expiry::start(&folder, maps, policy, ways, reporter, true);
    (expiry.expect("the thread starts"), reports)
}

fn cut(expiry: &Expiry, cut: EvictSelector) -> Done {
    let answer = expiry.cut(cut).blocking_recv();
    answer.expect("the thread cuts")
}

fn word(lb: &DataPlane, port: u16) -> FlowState {
    let flow = lb.maps.flows.get(&DataPlane::flow_id(port), 0);
    FlowState::from_raw(flow.expect("an entry").word)
}

/// Live flows of the clients' network, as the budgets count them.
fn used(lb: &DataPlane) -> u32 {
    let (network, _) = lb.desired.networks[1];
    let of_network = lb.maps.usage(usage::network(network)).expect("a count");
    let api = lb.ids.get(Kind::Service, "api-a").expect("a service");
    let dns = lb.ids.get(Kind::Service, "dns-a").expect("a service");
    let of_services = [api, dns].map(|id| {
        let index = usage::service(u16::try_from(id).expect("a service's id"));
        lb.maps.usage(index).expect("a count")
    });
    assert_eq!(of_network, of_services.iter().sum::<u32>());
    of_network
}

/// What comes out of the far ends of the NICs.
struct Wires {
    socket: OwnedFd,
    ends: [(u32, &'static str); 2],
}

impl Wires {
    fn listen() -> Self {
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        );
        let socket = socket.expect("a packet socket");
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).expect("a large buffer");
        let index = |name| if_nametoindex(name).expect("an interface");
        let ends = [(index("t0p"), "client"), (index("m0p"), "backend")];
        Self { socket, ends }
    }

    /// The TCP segments that have come, which end they came to, and their MACs.
    fn take(&self) -> Vec<(&'static str, Segment, [Mac; 2])> {
        let mut buffer = [0; 2048];
        let mut taken = Vec::new();
        while let Ok((length, from)) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
            let from = from.and_then(|from| u32::try_from(from.ifindex()).ok());
            let end = self.ends.iter().find(|(index, _)| Some(*index) == from);
            let frame = &buffer[..length];
            if let (Some((_, end)), Some(segment)) = (end, Segment::read(frame)) {
                let mac = |at: usize| Mac::new(frame[at..at + 6].try_into().expect("six bytes"));
                taken.push((*end, segment, [mac(0), mac(6)]));
            }
        }
        taken
    }
}

/// Kind, id and SNAT port of each report, and the state in it.
fn facts(reports: &mut Reports) -> Vec<(u32, u32, u32, State)> {
    let fact = |event: FlowEvent| {
        let state = FlowState::from_raw(event.flow.word).state();
        (event.kind, event.id, event.port, state)
    };
    let events = std::iter::from_fn(|| reports.take()).map(|named| named.event);
    events.map(fact).collect()
}

#[privileged_test]
fn what_is_cut_ends_and_both_ends_are_told_and_nothing_else_happens() {
    const OTHER: &str = "192.168.203.50:40001";
    const OVER: &str = "192.168.203.50:40002";
    let mut lb = DataPlane::alone(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    establish(&mut lb, CLIENT_B, 1025);
    let syn = request(OTHER, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    forwarded(&mut lb, Port::Tenant, &query(CLIENT_A));
    establish(&mut lb, OVER, 1028);
    let reset = request(OVER, API, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    let states = [1024, 1025, 1026, 1027, 1028].map(|port| word(&lb, port).state());
    use State::{Closed, Ended, Established, New};
    assert_eq!(states, [Established, Established, New, New, Closed]);
    assert_eq!(used(&lb), 2);

    let (expiry, mut reports) = start(&lb);
    let wires = Wires::listen();
    let client = FlowChoice {
        client: Some("192.168.203.50/32".parse().expect("a prefix")),
        ..FlowChoice::default()
    };
    let order = EvictSelector {
        chosen: vec![client],
        ..EvictSelector::default()
    };
    let done = cut(&expiry, order.clone());
    assert_eq!((done.flows, done.silenced), (3, 1));
    let states = [1024, 1025, 1026, 1027, 1028].map(|port| word(&lb, port).state());
    assert_eq!(states, [Ended, Established, Ended, Ended, Ended]);
    assert_eq!(used(&lb), 1);
    let reported = [1024, 1027, 1026].map(|port| {
        let id = DataPlane::flow_id(port);
        (CUT_OPERATOR, id, u32::from(port), Ended)
    });
    assert_eq!(facts(&mut reports), reported);

    // Only where there was a connection, and with the numbers that its ends expect.
    let resets = || Ok((expiry.counts().resets.get() == 2).then_some(()));
    poll::until("both resets", TIMEOUT, resets).expect("they are sent");
    let end = |address: &str| address.parse().expect("an address");
    let reset = |from: &str, to: &str, sequence, acknowledgment| Segment {
        from: end(from),
        to: end(to),
        sequence,
        acknowledgment,
        flags: RST_ACK,
        payload: 0,
    };
    let to_client = reset(API, CLIENT_A, BACKEND_ISN + 1, CLIENT_ISN + 1);
    let to_backend = reset(&snat(1024), KAS, CLIENT_ISN + 1, BACKEND_ISN + 1);
    let wanted = [
        ("client", to_client, [CLIENT, TENANT_NIC]),
        ("backend", to_backend, [KAS_MAC, MGMT_NIC]),
    ];
    assert_eq!(wires.take(), wanted);
    assert_eq!(expiry.counts().resets_unsent.get(), 0);

    // Late segments are answered, and the other client goes on.
    for client in [CLIENT_A, OVER] {
        let late = request(client, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
        assert_refused(&mut lb, Port::Tenant, &late.bytes(), "no_flow");
    }
    let late = reply(1024, ACK_ONLY).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
    assert_refused(&mut lb, Port::Mgmt, &late.bytes(), "reply_mismatch");
    let data = request(CLIENT_B, API, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &data);

    let again = cut(&expiry, order);
    assert_eq!((again.flows, again.silenced), (0, 0), "there is none left");
    drop(expiry);
    // Every id is free, once, but for the one in use.
    let free = lb.drain_free_ids();
    let different: BTreeSet<u32> = free.iter().copied().collect();
    assert_eq!([free.len(), different.len()], [IDS - 1; 2]);
    assert!(!different.contains(&DataPlane::flow_id(1025)));
}

/// All flows of one backend, which are idle: the time is to be read, the numbers are asserted.
#[privileged_test]
fn many_idle_flows_are_cut_and_every_end_is_told_once() {
    const FLOWS: u16 = 50_000;
    let lb = DataPlane::alone(CONFIG);
    let (expiry, mut reports) = start(&lb);
    let ids = lb.drain_free_ids();
    let (taken, left) = ids.split_at(usize::from(FLOWS));
    lb.give_free_ids(left);
    let service = lb.ids.get(Kind::Service, "api-a").expect("a service");
    let (network, _) = lb.desired.networks[1];
    let (&backend, _) = lb
        .desired
        .next_hops
        .iter()
        .find(|(_, address)| **address == Ipv4Addr::new(10, 32, 96, 105))
        .expect("the backend");
    let mut maps = Maps::open(&lb.maps_folder()).expect("the maps");
    let established = FlowState::from_raw(State::Established as u32 | 1 << 10);
    let now = lb_user::dataplane::flows::coarse_now().expect("a clock");
    for (number, id) in (0..FLOWS).zip(taken) {
        let flow = Flow {
            word: established.raw(),
            client: Ipv4Addr::new(192, 168, 203, 50).into(),
            vip: Ipv4Addr::new(192, 168, 203, 110).into(),
            client_port: Be16::new(number + 1024),
            vip_port: Be16::new(6443),
            backend: Ipv4Addr::new(10, 32, 96, 105).into(),
            backend_port: Be16::new(30918),
            network,
            backend_id: u16::try_from(backend).expect("a short id"),
            service: u16::try_from(service).expect("a service's id"),
            client_mac: CLIENT,
            last_seen: now,
            ack_request: Be32::new(u32::from(number)),
            ack_reply: Be32::new(77),
            snat_port: Be16::new(number + 1024),
            ..Flow::default()
        };
        maps.flows.set(*id, &flow, 0).expect("a write");
    }
    for (total, of) in [
        (u32::from(FLOWS), usage::network(network)),
        (
            u32::from(FLOWS),
            usage::service(u16::try_from(service).expect("a service's id")),
        ),
    ] {
        set_usage(&lb, of, total);
    }
    let wires = Wires::listen();
    let began = Instant::now();
    let cpu = expiry.counts().cpu_us.get();
    let answer = expiry.cut(EvictSelector {
        backends: [backend].into(),
        ..EvictSelector::default()
    });
    let mut told = Vec::new();
    let mut events = Vec::new();
    let mut clients = None;
    let both = 2 * usize::from(FLOWS);
    poll::until("every end to get its reset", TIMEOUT, || {
        told.extend(wires.take());
        events.extend(facts(&mut reports));
        if told.len() >= both / 2 {
            clients.get_or_insert_with(|| began.elapsed());
        }
        Ok((told.len() >= both).then_some(()))
    })
    .expect("they are");
    let took = began.elapsed();
    let done = answer.blocking_recv().expect("it is cut");
    let cpu = Duration::from_micros(expiry.counts().cpu_us.get() - cpu);
    println!(
        "{FLOWS} flows: cut and free in {:?}, clients reset in {clients:?}, all in {took:?}, \
         {cpu:?} of CPU, longest batch {} us",
        done.took,
        expiry.counts().longest_batch_us.get()
    );
    assert_eq!((done.flows, done.silenced), (FLOWS.into(), 0));
    assert_eq!(expiry.counts().resets_unsent.get(), 0);
    assert!(
        told.iter()
            .all(|(_, segment, _)| segment.flags == RST | ACK)
    );
    let kinds = told.iter().map(|(end, ..)| *end);
    let first_backend = kinds.clone().position(|end| end == "backend");
    assert!(
        first_backend >= Some(usize::from(FLOWS) / 2),
        "clients first"
    );
    let ends: BTreeSet<_> = told
        .iter()
        .map(|(end, segment, _)| (*end, segment.from, segment.to))
        .collect();
    assert_eq!((told.len(), ends.len()), (both, both));
    let states = taken
        .iter()
        .map(|id| FlowState::from_raw(lb.maps.flows.get(id, 0).expect("an entry").word).state());
    assert_eq!(
        states.filter(|state| *state == State::Ended).count(),
        usize::from(FLOWS)
    );
    assert_eq!(used(&lb), 0);
    events.extend(facts(&mut reports));
    assert!(events.iter().all(|(kind, ..)| *kind == CUT_BACKEND));
    println!("{} events", events.len());
    drop(expiry);
    let free = lb.drain_free_ids();
    let different: BTreeSet<u32> = free.iter().copied().collect();
    assert_eq!([free.len(), different.len()], [IDS; 2]);
}

fn set_usage(lb: &DataPlane, index: u32, to: u32) {
    let table = lb_user::dataplane::flows::UsageTable::open(&lb.maps_folder()).expect("the usage");
    let now = table.owners().get(index).expect("a value");
    table
        .owners()
        .add(index, to.wrapping_sub(now).cast_signed());
}
