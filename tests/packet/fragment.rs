//! Fragments: the first one makes the way, the others follow it, and nothing passes without it.

use std::collections::BTreeSet;

use lb_common::{conntrack::FlowState, maps::fragment::Datagram};
use lb_tests::{
    frames::packet::{Decoded, Frame, check, flags::*, tcp, udp},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC, node_mac},
};

use lb_user::dataplane::{attach::Mode, object::Object};

use super::given::*;

/// Flag in the field of a fragment: more follow.
const MORE: u16 = 0x2000;
/// Bytes behind the IP header of a datagram of [`datagram`]: five parts of eight, sixteen, and so on.
const BYTES: usize = 8 + 100;
/// Where it is cut; the last part is no multiple of eight.
const CUTS: [usize; 5] = [0, 16, 40, 48, 96];

fn payload() -> Vec<u8> {
    (0..100).collect()
}

/// A query with a hundred bytes that may be cut.
fn datagram() -> Frame {
    query(CLIENT_A).payload(&payload()).fragment(0)
}

/// The answer to it, as it comes from the backend.
fn answer() -> Frame {
    let answer = udp(RESOLVER, &snat(1024)).payload(&payload()).fragment(0);
    answer.between(RESOLVER_MAC, MGMT_NIC)
}

/// The fragment of a whole frame with these bytes behind the IP header, and these flags.
fn cut_with(whole: &[u8], from: usize, to: usize, flags: u16) -> Vec<u8> {
    let header = usize::from(whole[14] & 15) * 4;
    let length = u16::try_from(header + to - from).expect("a small fragment");
    let field = flags | u16::try_from(from / 8).expect("a small offset");
    let mut fragment = whole[..14 + header].to_vec();
    fragment[16..18].copy_from_slice(&length.to_be_bytes());
    fragment[20..22].copy_from_slice(&field.to_be_bytes());
    fragment.extend(&whole[14 + header + from..14 + header + to]);
    seal(&mut fragment);
    fragment
}

/// The same, marked as the last one where it is.
fn cut(whole: &[u8], from: usize, to: usize) -> Vec<u8> {
    let total = usize::from(u16::from_be_bytes([whole[16], whole[17]]));
    let header = usize::from(whole[14] & 15) * 4;
    let flags = if header + to < total { MORE } else { 0 };
    cut_with(whole, from, to, flags)
}

/// All fragments of a frame of [`BYTES`].
fn fragments(whole: &[u8]) -> Vec<Vec<u8>> {
    let ends = CUTS.iter().skip(1).chain([&BYTES]);
    CUTS.iter()
        .zip(ends)
        .map(|(&from, &to)| cut(whole, from, to))
        .collect()
}

/// Writes the checksum of the IP header anew.
fn seal(frame: &mut [u8]) {
    let header = usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let sum = lb_common::wire::checksum::full(&frame[14..14 + header], 0);
    frame[24..26].copy_from_slice(&sum.get().to_be_bytes());
}

fn identification(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[18], frame[19]])
}

/// With another identification.
fn identified(frame: &[u8], identification: u16) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[18..20].copy_from_slice(&identification.to_be_bytes());
    seal(&mut frame);
    frame
}

/// Sends a fragment that must be forwarded, and gives it as it left.
fn passed(lb: &mut DataPlane, port: Port, fragment: &[u8]) -> Vec<u8> {
    let outcome = lb.receive(port, fragment);
    assert_eq!(
        (outcome.action, outcome.counted.2),
        (Action::Redirect, "forwarded"),
        "{}",
        Decoded(fragment)
    );
    outcome.frame
}

/// Asserts that fragments sent in `order` leave as the fragments of the whole frame `wanted` in the
/// same order, all with one identification that is not the sender's.
fn assert_translated(
    lb: &mut DataPlane,
    port: Port,
    sent: &[Vec<u8>],
    order: &[usize],
    wanted: &Frame,
) -> u16 {
    let left: Vec<Vec<u8>> = order
        .iter()
        .map(|&index| passed(lb, port, &sent[index]))
        .collect();
    let ours = identification(&left[0]);
    assert_ne!(ours, identification(&sent[0]));
    assert_eq!(check(&wanted.bytes()), Ok(()), "what is put together again");
    let wanted = fragments(&identified(&wanted.bytes(), ours));
    for (&index, left) in order.iter().zip(&left) {
        assert_eq!(left, &wanted[index], "fragment {index} of {order:?}");
    }
    ours
}

/// What [`datagram`] becomes on SNAT port 1024.
fn to_resolver() -> Frame {
    let wanted = udp(&snat(1024), RESOLVER)
        .payload(&payload())
        .fragment(0)
        .ttl(63);
    wanted.between(MGMT_NIC, RESOLVER_MAC)
}

/// What [`answer`] becomes.
fn to_client() -> Frame {
    let wanted = udp(DNS, CLIENT_A).payload(&payload()).fragment(0).ttl(63);
    wanted.between(TENANT_NIC, CLIENT)
}

#[privileged_test]
fn all_fragments_take_the_way_of_the_first_one() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram().bytes());
    assert_translated(
        &mut lb,
        Port::Tenant,
        &sent,
        &[0, 1, 2, 3, 4],
        &to_resolver(),
    );
    let sent = fragments(&answer().bytes());
    assert_translated(&mut lb, Port::Mgmt, &sent, &[0, 1, 2, 3, 4], &to_client());
}

/// A datagram that may not be fragmented, and is nevertheless, as a sender may do it: its flags stay.
#[privileged_test]
fn fragments_with_the_flag_dont_fragment_are_fragments() {
    let mut lb = DataPlane::new(CONFIG);
    let whole = query(CLIENT_A).payload(&payload()).bytes();
    let first = passed(
        &mut lb,
        Port::Tenant,
        &cut_with(&whole, 0, 48, 0x4000 | MORE),
    );
    let ours = identification(&first);
    assert_ne!(ours, 0x1234);
    let last = passed(&mut lb, Port::Tenant, &cut_with(&whole, 48, BYTES, 0x4000));
    let wanted = identified(&to_resolver().bytes(), ours);
    assert_eq!(first, cut_with(&wanted, 0, 48, 0x4000 | MORE));
    assert_eq!(last, cut_with(&wanted, 48, BYTES, 0x4000));
}

#[privileged_test]
fn one_hole_is_followed_and_a_second_one_is_not() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram().bytes());
    for order in [
        [0, 2, 1, 3, 4],
        [0, 1, 4, 3, 2],
        [0, 4, 1, 2, 3],
        [0, 2, 1, 4, 3],
    ] {
        assert_translated(&mut lb, Port::Tenant, &sent, &order, &to_resolver());
    }
    passed(&mut lb, Port::Tenant, &sent[0]);
    passed(&mut lb, Port::Tenant, &sent[2]);
    assert_dropped(&mut lb, Port::Tenant, &sent[4], "fragment_early");
    passed(&mut lb, Port::Tenant, &sent[1]);
    passed(&mut lb, Port::Tenant, &sent[3]);
    passed(&mut lb, Port::Tenant, &sent[4]);
}

#[privileged_test]
fn a_tcp_segment_in_pieces_belongs_to_its_flow() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let segment = |frame: Frame| frame.numbers(1001, 5001).payload(&[7; 88]).fragment(0);
    let sent = fragments(&segment(request(CLIENT_A, API, ACK_ONLY)).bytes());
    // The whole header is in the first fragment, which has to be longer for it.
    assert_dropped(&mut lb, Port::Tenant, &sent[0], "fragment_tiny");
    let whole = segment(request(CLIENT_A, API, ACK_ONLY)).bytes();
    let first = passed(&mut lb, Port::Tenant, &cut(&whole, 0, 24));
    let last = passed(&mut lb, Port::Tenant, &cut(&whole, 24, BYTES));
    let wanted = segment(tcp(&snat(1024), KAS, ACK_ONLY)).ttl(63);
    let wanted = identified(
        &wanted.between(MGMT_NIC, KAS_MAC).bytes(),
        identification(&first),
    );
    assert_eq!(check(&wanted), Ok(()));
    assert_eq!(first, cut(&wanted, 0, 24));
    assert_eq!(last, cut(&wanted, 24, BYTES));
}

/// Where frames of local stacks come from, a checksum that is the sum of its pseudo-header is still to be
/// computed. That of a first fragment may be so by chance, over its own length: it covers the others, too.
#[privileged_test]
fn the_checksum_of_a_first_fragment_is_never_open() {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        establish(&mut lb, CLIENT_A, 1024);
        let segment = |frame: Frame, bytes: usize, word: u16| {
            let mut payload = vec![7; bytes];
            payload[..2].copy_from_slice(&word.to_be_bytes());
            frame.numbers(1001, 5001).payload(&payload).fragment(0)
        };
        let sent = |bytes, word| segment(request(CLIENT_A, API, ACK_ONLY), bytes, word);
        let open = &sent(28, 0).open_checksum()[50..52];
        let word = (0..=u16::MAX)
            .find(|word| sent(88, *word).bytes()[50..52] == *open)
            .expect("such data");
        let whole = sent(88, word).bytes();
        let first = passed(&mut lb, Port::Tenant, &cut(&whole, 0, 48));
        let last = passed(&mut lb, Port::Tenant, &cut(&whole, 48, BYTES));
        let wanted = segment(tcp(&snat(1024), KAS, ACK_ONLY), 88, word).ttl(63);
        let wanted = identified(
            &wanted.between(MGMT_NIC, KAS_MAC).bytes(),
            identification(&first),
        );
        assert_eq!(check(&wanted), Ok(()));
        assert_eq!(first, cut(&wanted, 0, 48));
        assert_eq!(last, cut(&wanted, 48, BYTES));
    }
}

#[privileged_test]
fn nothing_passes_before_the_first_fragment_or_after_the_last() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram().bytes());
    for later in &sent[1..] {
        assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
    }
    assert_translated(
        &mut lb,
        Port::Tenant,
        &sent,
        &[0, 1, 2, 3, 4],
        &to_resolver(),
    );
    assert_eq!(lb.fragmented().len(), 0, "complete, and so forgotten");
    for later in &sent[1..] {
        assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
    }
    // Other addresses, another identification, another protocol, another network: another datagram.
    passed(&mut lb, Port::Tenant, &sent[0]);
    let other = |at: usize, value: u8| {
        let mut frame = sent[1].clone();
        frame[at] = value;
        seal(&mut frame);
        frame
    };
    for (at, value) in [(29, 51), (19, 0x35), (23, 6)] {
        assert_dropped(&mut lb, Port::Tenant, &other(at, value), "fragment_early");
    }
    assert_dropped(&mut lb, Port::Tenant, &other(23, 1), "fragment");
    passed(&mut lb, Port::Tenant, &sent[1]);
}

/// What has passed cannot be overwritten, and nothing more of such a datagram passes.
#[privileged_test]
fn an_overlap_ends_the_datagram() {
    let whole = datagram().bytes();
    let sent = fragments(&whole);
    let overlaps = [
        cut(&whole, 8, 40),          // of the first
        cut_with(&whole, 8, 16, 0),  // inside it
        cut(&whole, 16, 40),         // the second again
        cut(&whole, 32, 48),         // its end
        cut(&whole, 32, BYTES),      // to the end
        cut_with(&whole, 24, 32, 0), // inside the second
    ];
    for overlap in overlaps {
        let mut lb = DataPlane::new(CONFIG);
        passed(&mut lb, Port::Tenant, &sent[0]);
        passed(&mut lb, Port::Tenant, &sent[1]);
        assert_dropped(&mut lb, Port::Tenant, &overlap, "fragment_overlap");
        assert_dropped(&mut lb, Port::Tenant, &sent[2], "fragment_early");
        assert_translated(
            &mut lb,
            Port::Tenant,
            &sent,
            &[0, 1, 2, 3, 4],
            &to_resolver(),
        );
    }
}

#[privileged_test]
fn tiny_and_lying_fragments_are_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let whole = datagram().bytes();
    let tcp = request(CLIENT_A, API, SYN_ONLY)
        .fragment(0)
        .payload(&[7; 88])
        .bytes();
    for tiny in [
        cut(&tcp, 0, 8),
        cut(&tcp, 0, 16),
        cut(&tcp, 0, 20),
        cut(&whole, 0, 20),
        // Ethernet padding is no part of it.
        [cut(&tcp, 0, 16), vec![0x50; 10]].concat(),
    ] {
        assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    }
    passed(&mut lb, Port::Tenant, &cut(&whole, 0, 16));
    for tiny in [
        cut(&whole, 16, 20),
        cut(&whole, 16, 16),
        cut_with(&whole, 16, 16, 0),
    ] {
        assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    }
    let mut beyond = cut(&whole, 16, 40);
    beyond[20..22].copy_from_slice(&(MORE | 0x1fff).to_be_bytes());
    seal(&mut beyond);
    assert_dropped(&mut lb, Port::Tenant, &beyond, "malformed");
    let mut longer = cut(&whole, 16, 40);
    longer[17] += 1;
    seal(&mut longer);
    assert_dropped(&mut lb, Port::Tenant, &longer, "malformed");
    let mut ping = request(CLIENT_A, API, SYN_ONLY)
        .fragment(MORE)
        .payload(&[7; 4])
        .bytes();
    ping[23] = 1;
    seal(&mut ping);
    assert_dropped(&mut lb, Port::Tenant, &ping, "fragment");
}

/// A first fragment again, as with other ports behind the same identification: another datagram, so
/// that the receiver never mixes the two.
#[privileged_test]
fn a_repeated_first_fragment_begins_anew() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram().bytes());
    let first = passed(&mut lb, Port::Tenant, &sent[0]);
    passed(&mut lb, Port::Tenant, &sent[1]);
    let ours = assert_translated(
        &mut lb,
        Port::Tenant,
        &sent,
        &[0, 1, 2, 3, 4],
        &to_resolver(),
    );
    assert_ne!(ours, identification(&first));
    assert_eq!(lb.fragmented().len(), 0);
}

/// 30 seconds after the first one.
#[privileged_test]
fn a_fragment_that_comes_too_late_is_dropped() {
    // Coarse time has units of 2^20 ns.
    const SECOND: u32 = 953;
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram().bytes());
    passed(&mut lb, Port::Tenant, &sent[0]);
    age(&mut lb, |record| {
        record.began = record.began.wrapping_sub(28 * SECOND)
    });
    passed(&mut lb, Port::Tenant, &sent[1]);
    age(&mut lb, |record| {
        record.began = record.began.wrapping_sub(3 * SECOND)
    });
    assert_dropped(&mut lb, Port::Tenant, &sent[2], "fragment_early");
}

/// Changes the only record.
fn age(lb: &mut DataPlane, change: impl Fn(&mut Datagram)) {
    let records = lb.fragmented();
    let [(place, mut record)] = records[..] else {
        panic!("one record expected: {records:?}");
    };
    change(&mut record);
    lb.set_fragmented(place, &record);
}

/// The id was taken by another flow, or userspace ended the flow: its fragments reach nobody.
#[privileged_test]
fn fragments_of_a_flow_that_is_gone_are_dropped() {
    let id = DataPlane::flow_id(1024);
    let sent = fragments(&datagram().bytes());
    let changes: [fn(FlowState) -> FlowState; 2] =
        [FlowState::end, |word| word.claim(true).publish()];
    for change in changes {
        let mut lb = DataPlane::new(CONFIG);
        passed(&mut lb, Port::Tenant, &sent[0]);
        let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
        let word = flow.word;
        flow.word = change(FlowState::from_raw(word)).raw();
        lb.maps.flows.set(id, &flow, 0).expect("a write");
        assert_dropped(&mut lb, Port::Tenant, &sent[1], "fragment_early");
        flow.word = word;
        lb.maps.flows.set(id, &flow, 0).expect("a write");
        passed(&mut lb, Port::Tenant, &sent[1]);
    }
    // A record that names a flow between others.
    let mut lb = DataPlane::new(CONFIG);
    for client in [CLIENT_A, CLIENT_B] {
        forwarded(&mut lb, Port::Tenant, &query(client));
    }
    passed(&mut lb, Port::Tenant, &sent[0]);
    age(&mut lb, |record| record.flow = DataPlane::flow_id(1025));
    assert_dropped(&mut lb, Port::Tenant, &sent[1], "fragment_early");
}

/// Where the flow goes now, and not where it went when the first fragment came.
#[privileged_test]
fn every_fragment_is_counted_and_keeps_the_flow() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram().bytes());
    let back = fragments(&answer().bytes());
    for (fragment, answer) in sent.iter().zip(&back) {
        passed(&mut lb, Port::Tenant, fragment);
        passed(&mut lb, Port::Mgmt, answer);
    }
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    let bytes: usize = sent.iter().map(Vec::len).sum();
    let counted = (flow.bytes_request, flow.bytes_reply);
    assert_eq!(counted, (bytes as u64, bytes as u64));

    passed(&mut lb, Port::Tenant, &sent[0]);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.last_seen = flow.last_seen.wrapping_sub(50_000);
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    passed(&mut lb, Port::Tenant, &sent[1]);
    let seen = lb.maps.flows.get(&id, 0).expect("an entry").last_seen;
    assert!(
        seen.wrapping_sub(flow.last_seen) >= 50_000,
        "the flow is in use"
    );
}

#[privileged_test]
fn hops_and_size_are_judged_before_anything_is_noted() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = fragments(&datagram().bytes());
    passed(&mut lb, Port::Tenant, &sent[0]);
    let mut spent = sent[1].clone();
    spent[22] = 1;
    seal(&mut spent);
    assert_dropped(&mut lb, Port::Tenant, &spent, "ttl_expired");
    // The mgmt network's id is that of its record.
    let (id, network) = lb.desired.networks[0];
    for (mtu, fits) in [(43, false), (44, true)] {
        let small = lb_common::maps::network::Network { mtu, ..network };
        lb.maps.networks.set(id.into(), &small, 0).expect("a write");
        if fits {
            passed(&mut lb, Port::Tenant, &sent[1]);
        } else {
            assert_dropped(&mut lb, Port::Tenant, &sent[1], "too_big");
        }
    }
}

/// RFC 6864: clients that share a SNAT address count each for itself.
#[privileged_test]
fn what_may_be_in_pieces_gets_an_identification_of_ours() {
    let mut lb = DataPlane::new(CONFIG);
    let mut ours = BTreeSet::new();
    for round in 0..500 {
        for client in [CLIENT_A, CLIENT_B] {
            let bytes = query(client).fragment(0).bytes();
            let ((_, sent), _) = lb.run(Port::Tenant, &bytes, 1);
            assert_eq!(check(&sent), Ok(()));
            assert!(
                ours.insert(identification(&sent)),
                "twice after {round} rounds"
            );
        }
    }
    let answers = [
        answer(),
        udp(RESOLVER, &snat(1025))
            .fragment(0)
            .between(RESOLVER_MAC, MGMT_NIC),
    ];
    for answer in answers {
        let sent = lb.receive(Port::Mgmt, &answer.bytes()).frame;
        assert_eq!(check(&sent), Ok(()));
        assert!(
            ours.insert(identification(&sent)),
            "replies count with requests"
        );
    }
    // Who forbids fragments keeps what it said; an evil bit does not matter.
    for field in [0x4000, 0xc000] {
        let kept = forwarded(&mut lb, Port::Tenant, &query(CLIENT_A).fragment(field));
        assert_eq!(identification(&kept), 0x1234);
    }
}

/// Fragments are judged by what the first one is: no service, not allowed, spoofed.
#[privileged_test]
fn who_is_not_let_in_gets_no_fragment_in() {
    let config = CONFIG.replace("pool: dns-a }", "pool: dns-a, deny: [192.168.203.64/26] }");
    let mut lb = DataPlane::new(&config);
    let cases = [
        ("denied", udp("192.168.203.64:40000", DNS)),
        ("spoofed", udp("192.168.204.50:40000", DNS)),
        ("no_service", udp(CLIENT_A, "192.168.203.110:54")),
    ];
    for (reason, frame) in cases {
        let frame = frame
            .between(CLIENT, TENANT_NIC)
            .payload(&payload())
            .fragment(0);
        let sent = fragments(&frame.bytes());
        assert_dropped(&mut lb, Port::Tenant, &sent[0], reason);
        for later in &sent[1..] {
            assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
        }
    }
    assert_eq!(lb.fragmented().len(), 0);
}

/// Two tenants whose backends are in one network.
fn two_tenants() -> String {
    let tagged = CONFIG.replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let other = "  tenant-b: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24] }\npools:";
    let other = tagged.replace("pools:", other);
    format!("{other}  dns-b: {{ network: tenant-b, listen: [\"{DNS}/udp\"], pool: dns-a }}\n")
}

/// However many datagrams a tenant begins, in either direction, those of another are followed.
#[privileged_test]
fn one_tenants_fragments_cost_another_nothing() {
    const MANY: u16 = 20_000;
    let mut lb = DataPlane::alone(&two_tenants());
    let [a, b] =
        [2003, 2004].map(|vlan| move |frame: &[u8]| lb_tests::frames::packet::tag(frame, vlan));
    let halves = |whole: &[u8]| [cut(whole, 0, 16), cut(whole, 16, BYTES)];
    let begun = |lb: &mut DataPlane, port, bytes: &[u8]| {
        let ((action, _), _) = lb.run(port, bytes, 1);
        assert_eq!(action, Action::Redirect);
    };
    let [first, last] = halves(&datagram().bytes());
    passed(&mut lb, Port::Tenant, &b(&first));
    for number in 0..MANY {
        begun(&mut lb, Port::Tenant, &a(&identified(&first, number)));
    }
    passed(&mut lb, Port::Tenant, &b(&last));

    // The flow of b is that of port 1024. A backend counts its datagrams for all that it answers.
    let [first, last] = halves(&answer().bytes());
    let other = udp(RESOLVER, &snat(1025)).payload(&payload()).fragment(0);
    let [flood, _] = halves(&other.between(RESOLVER_MAC, MGMT_NIC).bytes());
    passed(&mut lb, Port::Mgmt, &first);
    for number in (0..MANY).filter(|number| *number != identification(&first)) {
        begun(&mut lb, Port::Mgmt, &identified(&flood, number));
    }
    passed(&mut lb, Port::Mgmt, &last);
}

/// A data plane of before has other records, which nothing reads any more: only a datagram that is on its way is
/// lost.
#[privileged_test]
fn a_start_over_pins_without_the_records_makes_them() {
    let lb = DataPlane::alone(CONFIG);
    let pin = lb.maps_folder().join("DATAGRAMS");
    std::fs::remove_file(&pin).expect("the pin");
    Object::load(lb.pins(), &lb.maps.limits(), 0).expect("it adopts the others");
    assert!(pin.exists());
    assert_eq!(lb.fragmented(), []);
}

/// More datagrams than there is room for: the newest are followed.
#[privileged_test]
fn the_memory_of_datagrams_is_bounded() {
    let mut lb = DataPlane::alone(CONFIG);
    let whole = datagram().bytes();
    let (first, last) = (cut(&whole, 0, 16), cut(&whole, 16, BYTES));
    for number in 0..20_000 {
        let ((action, _), _) = lb.run(Port::Tenant, &identified(&first, number), 1);
        assert_eq!(action, Action::Redirect, "datagram {number}");
    }
    let kept = lb.fragmented().len();
    assert!((8192..=16_384).contains(&kept), "{kept} records");
    for number in 19_980..20_000 {
        passed(&mut lb, Port::Tenant, &identified(&last, number));
    }
    let followed = |number: u16| {
        let ((action, _), _) = lb.run(Port::Tenant, &identified(&last, number), 1);
        action == Action::Redirect
    };
    let oldest = (0..1000).map(followed).filter(|is| *is).count();
    assert!(oldest < 500, "{oldest} of the first 1000");
}

/// A VLAN is put on and taken off each fragment.
#[privileged_test]
fn fragments_of_a_tagged_network_keep_its_tag() {
    let config = CONFIG.replace(
        "role: tenant, interface: eth0",
        "role: tenant, interface: eth0, vlan: 2003",
    );
    let mut lb = DataPlane::new(&config);
    let tag = |frame: &[u8]| lb_tests::frames::packet::tag(frame, 2003);
    let sent: Vec<_> = fragments(&datagram().bytes())
        .iter()
        .map(|frame| tag(frame))
        .collect();
    assert_translated(
        &mut lb,
        Port::Tenant,
        &sent,
        &[0, 1, 2, 3, 4],
        &to_resolver(),
    );
    let answers = fragments(&answer().bytes());
    let left: Vec<_> = answers
        .iter()
        .map(|answer| passed(&mut lb, Port::Mgmt, answer))
        .collect();
    let (tci, first) = lb_tests::frames::packet::untagged(&left[0]);
    assert_eq!(tci, Some(2003));
    let wanted = fragments(&identified(&to_client().bytes(), identification(&first)));
    let wanted: Vec<_> = wanted.iter().map(|frame| tag(frame)).collect();
    assert_eq!(left, wanted);
}

/// Where the address is the host's own, so are the fragments of which we had no first one.
#[privileged_test]
fn fragments_to_the_host_pass_and_those_of_a_service_do_not() {
    let mut lb = DataPlane::new(
        r#"
version: 1
networks:
  tenant-a: { role: uplink, interface: eth0, address: host, prefixes: [203.0.113.0/24], sources: any }
  mgmt:     { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
pools:
  dns: { network: mgmt, backends: ["10.32.96.106:30053"] }
services:
  dns: { network: tenant-a, listen: ["203.0.113.10:53/udp"], pool: dns }
"#,
    );
    let to = |port: u16| {
        let frame = udp("198.51.100.7:40000", &format!("203.0.113.10:{port}"));
        let frame = frame
            .between(CLIENT, TENANT_NIC)
            .payload(&payload())
            .fragment(0);
        fragments(&frame.bytes())
    };
    for fragment in to(5353) {
        assert_passed(&mut lb, Port::Tenant, &fragment);
    }
    let wanted = udp(&snat(1024), RESOLVER)
        .payload(&payload())
        .fragment(0)
        .ttl(63);
    let wanted = wanted.between(MGMT_NIC, node_mac([10, 32, 96, 106].into()));
    assert_translated(&mut lb, Port::Tenant, &to(53), &[0, 1, 2, 3, 4], &wanted);
    passed(&mut lb, Port::Tenant, &to(53)[0]);
    passed(&mut lb, Port::Tenant, &to(53)[1]);
    let again = &to(53)[1];
    let outcome = lb.receive(Port::Tenant, again);
    assert_eq!(
        (outcome.action, outcome.counted.2),
        (Action::Drop, "fragment_overlap")
    );
}
