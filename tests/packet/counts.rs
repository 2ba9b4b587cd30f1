//! What is counted of networks, services and backends: in the entries of flows, and in the records when another flow takes
//! an entry.

use lb_common::{
    conntrack::{ANSWER_TIMEOUT, FlowState},
    maps::counts::{
        BUCKETS, BYTES_REPLY, BYTES_REQUEST, CONNECT_US, CONNECTS, FAILED, FLOWS, NUMBERS,
        PACKETS_REPLY, PACKETS_REQUEST, REPEATED, Record, ServiceNumber, backend, bucket, network,
        service,
    },
    traffic::{Spilled, Traffic},
    verdict::DropReason,
};
use lb_tests::{
    frames::packet::flags::*,
    product::program::{DataPlane, Port},
};
use lb_user::{
    dataplane::{counted::Counted, counts::CountTable, flows::monotonic_us, spilled::SpilledFlows},
    model::registry::Kind,
    observe::FlowCounts,
};

use super::{family::Family, given::*};

pub(super) fn table(lb: &DataPlane) -> CountTable {
    let table = CountTable::open(&lb.maps_folder()).expect("the map");
    table.expect("the map")
}

/// The records of the tenant's network, its TCP service, and that one's backend.
fn owners(lb: &DataPlane) -> [u32; 3] {
    let id = |kind, name| lb.ids.get(kind, name).expect(name);
    let short = |kind, name| u16::try_from(id(kind, name)).expect("a short id");
    let mut backends = lb.ids.of(Kind::Backend);
    let of_pool = backends.find(|(name, _)| name.starts_with("kas-a/"));
    let (_, backend_id) = of_pool.expect("the backend");
    [
        network(short(Kind::Network, "tenant-a")),
        service(short(Kind::Service, "api-a")),
        backend(backend_id),
    ]
}

/// What the records alone have.
fn records(lb: &DataPlane) -> [Record; 3] {
    let table = table(lb);
    owners(lb).map(|record| table.get(record))
}

/// What an operator is shown: the same of all three.
fn shown(lb: &DataPlane) -> FlowCounts {
    let owners = owners(lb);
    let counted = Counted::read(&table(lb), &lb.flow_table(), owners);
    let [network, service, backend] = owners.map(|record| FlowCounts::from(&counted.get(record)));
    assert_eq!((network, service), (service, backend));
    service
}

/// How many flows have a time in a bucket of the histogram of connects.
fn connected(lb: &DataPlane) -> u64 {
    let [_, service, _] = owners(lb);
    let numbers = (0..BUCKETS).map(ServiceNumber::connected);
    numbers.map(|at| number(lb, service, at)).sum()
}

fn number(lb: &DataPlane, service: u32, at: ServiceNumber) -> u64 {
    let record = table(lb).get(service + at.record);
    record[usize::try_from(at.number).expect("a place")]
}

/// What a flow has spilled.
fn spilled(lb: &DataPlane, id: u32) -> Option<Spilled> {
    let table = SpilledFlows::open(&lb.maps_folder()).expect("the map");
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    table.get(id, FlowState::from_raw(flow.word).generation())
}

/// Lets the next flow have the id of this SNAT port, and no other.
fn free_only(lb: &DataPlane, port: u16) {
    lb.drain_free_ids();
    lb.give_free_ids(&[DataPlane::flow_id(port)]);
}

/// A flow's frames stand in its entry, and are shown from there; and in the records once another flow has the entry.
#[privileged_test(families)]
fn a_flow_is_counted_once_in_its_entry_or_in_the_records(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    ip.establish(&mut lb, ip.client_a, 1024);
    let frame = u64::try_from(14 + ip.header + 20).expect("a length");
    let data = request(ip.client_a, ip.api, FIN_ACK).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &data.payload(&[7; 100]));
    let fin = ip
        .reply(1024, FIN_ACK)
        .numbers(BACKEND_ISN + 1, CLIENT_ISN + 102);
    forwarded(&mut lb, Port::Mgmt, &fin);

    let before = shown(&lb);
    let FlowCounts { connect_us, .. } = before;
    let wanted = FlowCounts {
        flows: 1,
        bytes_request: 3 * frame + 100,
        packets_request: 3,
        bytes_reply: 2 * frame,
        packets_reply: 2,
        connects: 1,
        connect_us,
        ..FlowCounts::default()
    };
    assert_eq!(before, wanted);
    assert!(connect_us < 10_000_000, "{connect_us} us for the handshake");
    assert_eq!(connected(&lb), 1);
    let mut of_connect = [0; NUMBERS];
    of_connect[CONNECTS] = 1;
    of_connect[CONNECT_US] = connect_us;
    assert_eq!(records(&lb), [of_connect; 3], "the rest is in the entry");

    // What comes late of a flow that is over still counts for it.
    let ack = request(ip.client_a, ip.api, ACK_ONLY).numbers(CLIENT_ISN + 102, BACKEND_ISN + 2);
    forwarded(&mut lb, Port::Tenant, &ack);
    free_only(&lb, 1024);
    let syn = request(ip.client_b, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let mut handed_in = of_connect;
    for (number, amount) in [
        (FLOWS, 1),
        (BYTES_REQUEST, 4 * frame + 100),
        (PACKETS_REQUEST, 4),
        (BYTES_REPLY, 2 * frame),
        (PACKETS_REPLY, 2),
    ] {
        handed_in[number] = amount;
    }
    assert_eq!(records(&lb), [handed_in; 3]);
    let after = shown(&lb);
    assert_eq!((after.flows, after.packets_request), (2, 5));
}

/// A SYN that nothing has answered is a failed connection when it is over, and not before.
#[privileged_test(families)]
fn what_is_not_answered_has_failed(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    assert_eq!((shown(&lb).flows, shown(&lb).failed), (1, 0));
    let reset = request(ip.client_a, ip.api, RST_ONLY).numbers(CLIENT_ISN + 1, 0);
    forwarded(&mut lb, Port::Tenant, &reset);
    assert_eq!((shown(&lb).flows, shown(&lb).failed), (1, 1));
    free_only(&lb, 1024);
    let syn = request(ip.client_b, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    assert_eq!((shown(&lb).flows, shown(&lb).failed), (2, 1));
    assert!(records(&lb).iter().all(|record| record[FAILED] == 1));
    assert_eq!((shown(&lb).connects, connected(&lb)), (0, 0));
}

/// The only backend refuses: its RST goes to the client.
#[privileged_test(families)]
fn what_the_backend_refuses_has_failed(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let refusal = ip.reply(1024, RST_ACK).numbers(0, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &refusal);
    let found = shown(&lb);
    assert_eq!((found.flows, found.failed), (1, 1));
    assert_eq!((found.packets_request, found.packets_reply), (1, 1));
    assert_eq!(found.connects, 0);
}

/// Refusals are counted for the service, each by its reason.
#[privileged_test(families)]
fn refusals_are_counted_for_the_service(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let id = lb.ids.get(Kind::Service, "empty-a").expect("the service");
    let empty = service(u16::try_from(id).expect("a short id"));
    let [_, other, _] = owners(&lb);
    let no_backend = ServiceNumber::refused(DropReason::NoBackend as u32);
    for number in 1..=3 {
        let client = ip.end(ip.host, 20_000 + number);
        let syn = request(&client, ip.empty, SYN_ONLY).numbers(CLIENT_ISN, 0);
        assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "no_backend");
    }
    assert_eq!(number(&lb, empty, no_backend), 3);
    assert_eq!(number(&lb, other, no_backend), 0);
    let no_flow = ServiceNumber::refused(DropReason::NoFlow as u32);
    assert_eq!(number(&lb, empty, no_flow), 0);
    assert_eq!(
        table(&lb).get(empty),
        Record::default(),
        "no flow, no repeat"
    );
}

/// What an entry has no room for goes over to the records, and to what is known of the flow.
#[privileged_test(families)]
fn what_is_full_is_spilled(ip: &Family) {
    const ALMOST: u64 = (1 << 36) - 10;
    let mut lb = DataPlane::new(ip.config);
    ip.establish(&mut lb, ip.client_a, 1024);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    let before = flow.request();
    flow.traffic_request = Traffic::from_raw(flow.traffic_request)
        .plus(ALMOST - before.bytes)
        .raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    let frame = u64::try_from(14 + ip.header + 20).expect("a length");
    let ack = request(ip.client_a, ip.api, ACK_ONLY).numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
    forwarded(&mut lb, Port::Tenant, &ack);

    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    assert_eq!(flow.request().bytes, ALMOST + frame - (1 << 36));
    assert_eq!(flow.request().packets, before.packets + 2);
    assert!(
        records(&lb)
            .iter()
            .all(|record| record[BYTES_REQUEST] == 1 << 36)
    );
    assert_eq!(shown(&lb).bytes_request, ALMOST + frame);
    let wanted = Spilled {
        id,
        generation: 1,
        bytes_request: 1 << 36,
        ..Spilled::default()
    };
    assert_eq!(spilled(&lb, id), Some(wanted));
}

/// A repeated SYN counts, for those that wait for the backend.
#[privileged_test(families)]
fn repeated_syns_are_counted(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.last_seen = flow.last_seen.wrapping_sub(ANSWER_TIMEOUT);
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    forwarded(&mut lb, Port::Tenant, &syn);
    assert!(records(&lb).iter().all(|record| record[REPEATED] == 1));
    assert_eq!((shown(&lb).flows, shown(&lb).packets_request), (1, 2));
}

/// A connect that takes 20 ms is in the bucket of its time.
#[privileged_test(families)]
fn the_time_of_a_connect_is_in_its_bucket(ip: &Family) {
    const LATER: u64 = 20_000;
    let mut lb = DataPlane::new(ip.config);
    let syn = request(ip.client_a, ip.api, SYN_ONLY).numbers(CLIENT_ISN, 0);
    forwarded(&mut lb, Port::Tenant, &syn);
    let id = DataPlane::flow_id(1024);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    assert!(Traffic::from_raw(flow.traffic_reply).is_unanswered());
    flow.traffic_reply = Traffic::unanswered_since(monotonic_us() - LATER).raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    let answer = ip.reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    forwarded(&mut lb, Port::Mgmt, &answer);
    let FlowCounts { connect_us, .. } = shown(&lb);
    assert!((20_000..10_000_000).contains(&connect_us), "{connect_us}");
    let [_, service, _] = owners(&lb);
    let at = ServiceNumber::connected(bucket(connect_us));
    assert_eq!((number(&lb, service, at), connected(&lb)), (1, 1));
}
