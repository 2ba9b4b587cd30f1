//! Fragments: the first one makes the way, the others follow it, and nothing passes without it.

use lb_common::{conntrack::FlowState, maps::fragment::Datagram};
use lb_tests::{
    frames::{
        cut::{Cut, cut, pieces, seal},
        packet::{Decoded, Frame, check, flags::*, tag, tcp, udp, untagged},
        six::read,
    },
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use lb_user::dataplane::attach::Mode;

use super::given::*;

/// A sender's identification.
pub(crate) const ID: u32 = 0x1234;
/// Bytes behind the IP header of a datagram of [`datagram`].
pub(crate) const BYTES: usize = 8 + 100;
/// Where it is cut; the last part is no multiple of eight.
pub(crate) const CUTS: [usize; 4] = [16, 40, 48, 96];

pub(crate) fn payload(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}

/// As of a sender that lets it be cut, which only IPv4 says of a whole packet.
pub(crate) fn whole(ip: &Family, frame: Frame) -> Frame {
    match ip.header {
        20 => frame.fragment(0),
        _ => frame,
    }
}

/// A query with a hundred bytes that may be cut.
pub(crate) fn datagram(ip: &Family) -> Frame {
    whole(ip, ip.query(ip.client_a).payload(&payload(100)))
}

/// The answer to it, as it comes from the backend.
pub(crate) fn answer(ip: &Family) -> Frame {
    whole(ip, ip.answer(1024).payload(&payload(100)))
}

/// What [`datagram`] becomes on SNAT port 1024.
pub(crate) fn to_resolver(ip: &Family) -> Frame {
    let wanted = udp(&ip.snat(1024), ip.resolver).payload(&payload(100));
    whole(ip, wanted).ttl(63).between(MGMT_NIC, ip.resolver_mac)
}

/// What [`answer`] becomes.
fn to_client(ip: &Family) -> Frame {
    let wanted = udp(ip.dns, ip.client_a).payload(&payload(100));
    whole(ip, wanted).ttl(63).between(TENANT_NIC, CLIENT)
}

/// All fragments of a frame of [`BYTES`].
pub(crate) fn fragments(whole: &[u8]) -> Vec<Vec<u8>> {
    pieces(whole, ID, &CUTS)
}

/// The fragment of `whole` from one byte to another.
pub(crate) fn part(whole: &[u8], from: usize, to: usize, more: bool) -> Vec<u8> {
    let piece = Cut {
        id: ID,
        bytes: from..to,
        more,
    };
    cut(whole, &piece)
}

/// A frame with these bytes at this place, and a right header.
fn altered(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    seal(&mut frame);
    frame
}

pub(crate) fn identification(frame: &[u8]) -> u32 {
    match read(frame) {
        Ok(read) => read.fragment.expect("a fragment").1,
        Err(_) => u16::from_be_bytes([frame[18], frame[19]]).into(),
    }
}

/// Sends a fragment that must be forwarded, and gives it as it left.
pub(crate) fn passed(lb: &mut DataPlane, port: Port, fragment: &[u8]) -> Vec<u8> {
    let outcome = lb.receive(port, fragment);
    assert_eq!(
        (outcome.action, outcome.counted.2),
        (Action::Redirect, "forwarded"),
        "{}",
        Decoded(fragment)
    );
    outcome.frame
}

/// Asserts that a frame that is cut at these places leaves as the fragments of the whole frame `wanted`, sent in
/// `order`, all with one identification that is not the sender's.
pub(crate) fn assert_translated(
    lb: &mut DataPlane,
    port: Port,
    (sent, places): (&Frame, &[usize]),
    order: &[usize],
    wanted: &Frame,
) -> u32 {
    let sent = pieces(&sent.bytes(), ID, places);
    let left: Vec<Vec<u8>> = order
        .iter()
        .map(|&index| passed(lb, port, &sent[index]))
        .collect();
    let ours = identification(&left[0]);
    assert_ne!(ours, ID);
    assert_eq!(check(&wanted.bytes()), Ok(()), "what is put together again");
    let wanted = pieces(&wanted.bytes(), ours, places);
    for (&index, left) in order.iter().zip(&left) {
        assert_eq!(left, &wanted[index], "fragment {index} of {order:?}");
    }
    ours
}

/// Asserts that [`datagram`] passes in pieces, as none of it did before.
fn assert_passes(ip: &Family, lb: &mut DataPlane, order: &[usize; 5]) -> u32 {
    let sent = (&datagram(ip), &CUTS[..]);
    assert_translated(lb, Port::Tenant, sent, order, &to_resolver(ip))
}

const IN_ORDER: [usize; 5] = [0, 1, 2, 3, 4];

/// A15: also what a host of a link of 1500 bytes makes of a datagram of 4000.
#[privileged_test(families)]
fn all_fragments_take_the_way_of_the_first_one(ip: &Family) {
    let large = |frame: Frame| frame.payload(&payload(4000));
    let places = &[1448, 2896][..];
    for order in [[0, 1, 2], [0, 2, 1]] {
        let mut lb = DataPlane::new(ip.config);
        let (sent, wanted) = (large(datagram(ip)), large(to_resolver(ip)));
        assert_translated(&mut lb, Port::Tenant, (&sent, places), &order, &wanted);
        let (sent, wanted) = (large(answer(ip)), large(to_client(ip)));
        assert_translated(&mut lb, Port::Mgmt, (&sent, places), &order, &wanted);
        assert_eq!(lb.fragmented().len(), 0, "complete, and so forgotten");
    }
    let mut lb = DataPlane::new(ip.config);
    assert_passes(ip, &mut lb, &IN_ORDER);
    let sent = (&answer(ip), &CUTS[..]);
    assert_translated(&mut lb, Port::Mgmt, sent, &IN_ORDER, &to_client(ip));
}

#[privileged_test(families)]
fn one_hole_is_followed_and_a_second_one_is_not(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    for order in [
        [0, 2, 1, 3, 4],
        [0, 1, 4, 3, 2],
        [0, 4, 1, 2, 3],
        [0, 2, 1, 4, 3],
    ] {
        assert_passes(ip, &mut lb, &order);
    }
    let sent = fragments(&datagram(ip).bytes());
    passed(&mut lb, Port::Tenant, &sent[0]);
    passed(&mut lb, Port::Tenant, &sent[2]);
    assert_dropped(&mut lb, Port::Tenant, &sent[4], "fragment_early");
    passed(&mut lb, Port::Tenant, &sent[1]);
    passed(&mut lb, Port::Tenant, &sent[3]);
    passed(&mut lb, Port::Tenant, &sent[4]);
}

#[privileged_test(families)]
fn a_tcp_segment_in_pieces_belongs_to_its_flow(ip: &Family) {
    let mut lb = ip.established();
    let segment = |frame: Frame| whole(ip, frame.numbers(1001, 5001).payload(&[7; 88]));
    let sent = segment(request(ip.client_a, ip.api, ACK_ONLY));
    // The whole header is in the first fragment, which has to be longer for it.
    let tiny = part(&sent.bytes(), 0, 16, true);
    assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    let wanted = segment(tcp(&ip.snat(1024), ip.kas, ACK_ONLY)).ttl(63);
    let wanted = wanted.between(MGMT_NIC, ip.kas_mac);
    assert_translated(&mut lb, Port::Tenant, (&sent, &[24]), &[0, 1], &wanted);
}

/// Where frames of local stacks come from, a checksum that is the sum of its pseudo-header is still to be
/// computed. That of a first fragment may be so by chance, over its own length: it covers the others, too.
#[privileged_test(families)]
fn the_checksum_of_a_first_fragment_is_never_open(ip: &Family) {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(ip.config, mode);
        ip.establish(&mut lb, ip.client_a, 1024);
        let segment = |frame: Frame, bytes: usize, word: u16| {
            let mut payload = vec![7; bytes];
            payload[..2].copy_from_slice(&word.to_be_bytes());
            whole(ip, frame.numbers(1001, 5001).payload(&payload))
        };
        let sent = |bytes, word| segment(request(ip.client_a, ip.api, ACK_ONLY), bytes, word);
        let checksum = ip.l4() + 16..ip.l4() + 18;
        let open = &sent(28, 0).open_checksum()[checksum.clone()];
        let word = (0..=u16::MAX)
            .find(|word| sent(88, *word).bytes()[checksum.clone()] == *open)
            .expect("such data");
        let wanted = segment(tcp(&ip.snat(1024), ip.kas, ACK_ONLY), 88, word).ttl(63);
        let wanted = wanted.between(MGMT_NIC, ip.kas_mac);
        let sent = sent(88, word);
        assert_translated(&mut lb, Port::Tenant, (&sent, &[48]), &[0, 1], &wanted);
    }
}

/// RELIABILITY 15: clients choose their identifications themselves; behind the one SNAT address they must not meet.
#[privileged_test(families)]
fn clients_with_the_same_identification_get_their_own(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let mut ours = Vec::new();
    for _ in 0..100 {
        for client in [ip.client_a, ip.client_b] {
            let datagram = whole(ip, ip.query(client).payload(&payload(100)));
            let left: Vec<u32> = pieces(&datagram.bytes(), ID, &[48])
                .iter()
                .map(|piece| identification(&passed(&mut lb, Port::Tenant, piece)))
                .collect();
            assert_eq!(left[0], left[1]);
            ours.push(left[0]);
        }
    }
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours.len(), 200, "one for each datagram");
}

#[privileged_test(families)]
fn nothing_passes_before_the_first_fragment_or_after_the_last(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let sent = fragments(&datagram(ip).bytes());
    for later in &sent[1..] {
        assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
    }
    assert_passes(ip, &mut lb, &IN_ORDER);
    assert_eq!(lb.fragmented().len(), 0, "complete, and so forgotten");
    for later in &sent[1..] {
        assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
    }
    // Another client, another identification in each half, another network: another datagram.
    passed(&mut lb, Port::Tenant, &sent[0]);
    let other_client = whole(ip, ip.query(ip.client_b).payload(&payload(100)));
    let other_client = fragments(&other_client.bytes())[1].clone();
    assert_dropped(&mut lb, Port::Tenant, &other_client, "fragment_early");
    for bit in ip.pick(&[0, 8, 15][..], &[0, 16, 31]) {
        let other = &pieces(&datagram(ip).bytes(), ID ^ 1 << bit, &CUTS)[1];
        assert_dropped(&mut lb, Port::Tenant, other, "fragment_early");
    }
    passed(&mut lb, Port::Tenant, &sent[1]);
}

/// What has passed cannot be overwritten, and nothing more of such a datagram passes (RFC 5722).
#[privileged_test(families)]
fn an_overlap_ends_the_datagram(ip: &Family) {
    let whole = datagram(ip).bytes();
    let sent = fragments(&whole);
    let overlaps = [
        part(&whole, 8, 40, true),      // of the first
        part(&whole, 8, 16, false),     // inside it
        part(&whole, 16, 40, true),     // the second again
        part(&whole, 32, 48, true),     // its end
        part(&whole, 32, BYTES, false), // to the end
        part(&whole, 24, 32, false),    // inside the second
    ];
    for overlap in overlaps {
        let mut lb = DataPlane::new(ip.config);
        passed(&mut lb, Port::Tenant, &sent[0]);
        passed(&mut lb, Port::Tenant, &sent[1]);
        assert_dropped(&mut lb, Port::Tenant, &overlap, "fragment_overlap");
        assert_dropped(&mut lb, Port::Tenant, &sent[2], "fragment_early");
        // A first one begins anew.
        assert_passes(ip, &mut lb, &IN_ORDER);
        assert_eq!(lb.fragmented().len(), 0);
    }
}

#[privileged_test(families)]
fn tiny_and_lying_fragments_are_dropped(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let datagram = datagram(ip).bytes();
    let syn = request(ip.client_a, ip.api, SYN_ONLY).payload(&[7; 88]);
    let syn = whole(ip, syn).bytes();
    for tiny in [
        part(&syn, 0, 8, true),
        part(&syn, 0, 16, true),
        part(&syn, 0, 20, true),
        part(&datagram, 0, 20, true),
        // Ethernet padding is no part of it.
        [part(&syn, 0, 16, true), vec![0x50; 10]].concat(),
    ] {
        assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    }
    passed(&mut lb, Port::Tenant, &part(&datagram, 0, 16, true));
    for tiny in [
        part(&datagram, 16, 20, true),
        part(&datagram, 16, 16, true),
        part(&datagram, 16, 16, false),
    ] {
        assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    }
    // At the largest offset, and a byte longer than its frame.
    let second = part(&datagram, 16, 40, true);
    let (at, last) = ip.pick((20, [0x3f, 0xff]), (14 + 40 + 2, [0xff, 0xf9]));
    let beyond = altered(&second, at, &last);
    assert_dropped(&mut lb, Port::Tenant, &beyond, "malformed");
    let at = ip.pick(17, 19);
    let longer = altered(&second, at, &[second[at] + 1]);
    assert_dropped(&mut lb, Port::Tenant, &longer, "malformed");
}

/// A first fragment again, as with other ports behind the same identification: another datagram, so
/// that the receiver never mixes the two.
#[privileged_test(families)]
fn a_repeated_first_fragment_begins_anew(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let sent = fragments(&datagram(ip).bytes());
    let first = passed(&mut lb, Port::Tenant, &sent[0]);
    passed(&mut lb, Port::Tenant, &sent[1]);
    let ours = assert_passes(ip, &mut lb, &IN_ORDER);
    assert_ne!(ours, identification(&first));
    assert_eq!(lb.fragmented().len(), 0);
}

/// 30 seconds after the first one.
#[privileged_test(families)]
fn a_fragment_that_comes_too_late_is_dropped(ip: &Family) {
    // Coarse time has units of 2^20 ns.
    const SECOND: u32 = 953;
    let mut lb = DataPlane::new(ip.config);
    let sent = fragments(&datagram(ip).bytes());
    passed(&mut lb, Port::Tenant, &sent[0]);
    age(&mut lb, |record| {
        record.began = record.began.wrapping_sub(28 * SECOND);
    });
    passed(&mut lb, Port::Tenant, &sent[1]);
    age(&mut lb, |record| {
        record.began = record.began.wrapping_sub(3 * SECOND);
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

/// The id was taken by another flow, or userspace ended the flow: its fragments reach neither end.
#[privileged_test(families)]
fn fragments_of_a_flow_that_is_gone_are_dropped(ip: &Family) {
    let id = DataPlane::flow_id(1024);
    let sent = fragments(&datagram(ip).bytes());
    let changes: [fn(FlowState) -> FlowState; 2] =
        [FlowState::end, |word| word.claim(true).publish()];
    for change in changes {
        let mut lb = DataPlane::new(ip.config);
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
    let mut lb = DataPlane::new(ip.config);
    for client in [ip.client_a, ip.client_b] {
        forwarded(&mut lb, Port::Tenant, &ip.query(client));
    }
    passed(&mut lb, Port::Tenant, &sent[0]);
    age(&mut lb, |record| record.flow = DataPlane::flow_id(1025));
    assert_dropped(&mut lb, Port::Tenant, &sent[1], "fragment_early");
}

/// Where the flow goes now, and not where it went when the first fragment came.
#[privileged_test(families)]
fn every_fragment_is_counted_and_keeps_the_flow(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let sent = fragments(&datagram(ip).bytes());
    let back = fragments(&answer(ip).bytes());
    for (fragment, answer) in sent.iter().zip(&back) {
        passed(&mut lb, Port::Tenant, fragment);
        passed(&mut lb, Port::Mgmt, answer);
    }
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    let bytes: usize = sent.iter().map(Vec::len).sum();
    let counted = (flow.request().bytes, flow.reply().bytes);
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

/// RELIABILITY 39: fragments are judged by what the first one is: no service, not allowed, spoofed.
#[privileged_test(families)]
fn who_is_not_let_in_gets_no_fragment_in(ip: &Family) {
    let rule = ip.pick(
        "pool: dns-a, deny: [192.168.203.64/26] }",
        r#"pool: dns-a, deny: ["fd00:203::64:0/112"] }"#,
    );
    let mut lb = DataPlane::new(&ip.config.replace("pool: dns-a }", rule));
    let [denied, spoofed, bogon] = ip.pick(
        [
            "192.168.203.64:40000",
            "192.168.204.50:40000",
            "127.0.0.1:40000",
        ],
        [
            "[fd00:203::64:1]:40000",
            "[fd00:204::1]:40000",
            "[2002:c000:209::1]:40000",
        ],
    );
    let cases = [
        ("denied", udp(denied, ip.dns)),
        ("spoofed", udp(spoofed, ip.dns)),
        ("bogon", udp(bogon, ip.dns)),
        ("no_service", udp(ip.client_a, &ip.end(ip.vip, 54))),
    ];
    for (reason, frame) in cases {
        let frame = frame.between(CLIENT, TENANT_NIC).payload(&payload(100));
        let sent = fragments(&whole(ip, frame).bytes());
        assert_dropped(&mut lb, Port::Tenant, &sent[0], reason);
        for later in &sent[1..] {
            assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
        }
    }
    assert_eq!(lb.fragmented().len(), 0);
}

/// Two tenants whose backends are in one network.
fn two_tenants(ip: &Family) -> String {
    let (tenant, dns) = (ip.tenant, ip.dns);
    let tagged = ip
        .config
        .replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let other = format!(
        "  tenant-b: {{ role: tenant, interface: eth0, vlan: 2004, prefixes: [\"{tenant}\"] }}\npools:"
    );
    let other = tagged.replace("pools:", &other);
    format!("{other}  dns-b: {{ network: tenant-b, listen: [\"{dns}/udp\"], pool: dns-a }}\n")
}

/// However many datagrams a tenant begins, in either direction, those of another are followed.
#[privileged_test(families)]
fn one_tenants_fragments_cost_another_nothing(ip: &Family) {
    const MANY: u32 = 20_000;
    let mut lb = DataPlane::alone(&two_tenants(ip));
    let [a, b] = [2003, 2004].map(|vlan| move |frame: &[u8]| tag(frame, vlan));
    let halves = |whole: &Frame, id| pieces(&whole.bytes(), id, &[48]);
    let begun = |lb: &mut DataPlane, port, bytes: &[u8]| {
        let ((action, _), _) = lb.run(port, bytes, 1);
        assert_eq!(action, Action::Redirect);
    };
    let query = datagram(ip);
    let own = halves(&query, ID);
    passed(&mut lb, Port::Tenant, &b(&own[0]));
    for id in 0..MANY {
        begun(&mut lb, Port::Tenant, &a(&halves(&query, id)[0]));
    }
    passed(&mut lb, Port::Tenant, &b(&own[1]));

    // The flow of b is that of port 1024. A backend counts its datagrams for all that it answers.
    let own = halves(&answer(ip), ID);
    let other = whole(ip, ip.answer(1025).payload(&payload(100)));
    passed(&mut lb, Port::Mgmt, &own[0]);
    for id in (0..MANY).filter(|id| *id != ID) {
        begun(&mut lb, Port::Mgmt, &halves(&other, id)[0]);
    }
    passed(&mut lb, Port::Mgmt, &own[1]);
}

/// A VLAN is put on and taken off each fragment.
#[privileged_test(families)]
fn fragments_of_a_tagged_network_keep_its_tag(ip: &Family) {
    let config = ip
        .config
        .replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let mut lb = DataPlane::new(&config);
    let left: Vec<_> = fragments(&datagram(ip).bytes())
        .iter()
        .map(|piece| passed(&mut lb, Port::Tenant, &tag(piece, 2003)))
        .collect();
    let ours = identification(&left[0]);
    assert_ne!(ours, ID);
    assert_eq!(left, pieces(&to_resolver(ip).bytes(), ours, &CUTS));
    let left: Vec<_> = fragments(&answer(ip).bytes())
        .iter()
        .map(|piece| untagged(&passed(&mut lb, Port::Mgmt, piece)))
        .collect();
    let ours = identification(&left[0].1);
    let wanted = pieces(&to_client(ip).bytes(), ours, &CUTS);
    let wanted: Vec<_> = wanted
        .into_iter()
        .map(|piece| (Some(2003), piece))
        .collect();
    assert_eq!(left, wanted);
}
