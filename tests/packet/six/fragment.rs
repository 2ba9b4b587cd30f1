//! Fragments: the first one makes the way, the others follow it, and nothing passes without it.

use lb_common::{conntrack::FlowState, maps::fragment::Datagram};
use lb_tests::frames::six::{Cut, Extension, check, cut, pieces, read};

use lb_user::dataplane::attach::Mode;

use super::given::*;

/// A15: what a host of a link of 1500 bytes makes of a datagram of 4000.
const PAYLOAD: usize = 4000;
/// Where it is cut, in bytes of what it carries.
const PLACES: [usize; 2] = [1448, 2896];
/// A sender's identification.
const ID: u32 = 0x1234_5678;

fn payload(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}

/// A query of 4000 bytes, and the answer to it.
fn datagram() -> Frame {
    query(CLIENT_A).payload(&payload(PAYLOAD))
}

fn reply_datagram() -> Frame {
    answer(1024).payload(&payload(PAYLOAD))
}

/// What [`datagram`] becomes on SNAT port 1024, and [`reply_datagram`].
fn to_resolver() -> Frame {
    let wanted = udp(&snat(1024), RESOLVER).payload(&payload(PAYLOAD));
    wanted.ttl(63).between(MGMT_NIC, RESOLVER_MAC)
}

fn to_client() -> Frame {
    let wanted = udp(DNS, CLIENT_A).payload(&payload(PAYLOAD));
    wanted.ttl(63).between(TENANT_NIC, CLIENT)
}

fn identification(frame: &[u8]) -> u32 {
    let (_, id) = read(frame).expect("IPv6").fragment.expect("a fragment");
    id
}

/// Asserts that fragments sent in `order` leave as the fragments of the whole frame `wanted` in the
/// same order, all with one identification.
fn assert_translated(
    lb: &mut DataPlane,
    port: Port,
    sent: &[Vec<u8>],
    order: &[usize],
    wanted: &Frame,
) -> u32 {
    let left: Vec<Vec<u8>> = order
        .iter()
        .map(|&index| passed_on(lb, port, &sent[index]))
        .collect();
    let ours = identification(&left[0]);
    assert_eq!(check(&wanted.bytes()), Ok(()), "what is put together again");
    let wanted = pieces(&wanted.bytes(), ours, &PLACES);
    for (&index, left) in order.iter().zip(&left) {
        assert!(left == &wanted[index], "fragment {index} of {order:?}");
    }
    ours
}

/// A first fragment of a small datagram and what follows it: 16, 24, 8, 48 bytes and a rest.
fn small() -> (Vec<u8>, Vec<Vec<u8>>) {
    let whole = query(CLIENT_A).payload(&payload(100)).bytes();
    let parts = pieces(&whole, ID, &[16, 40, 48, 96]);
    (whole, parts)
}

/// The fragment of `whole` from one byte to another.
fn part(whole: &[u8], from: usize, to: usize, more: bool) -> Vec<u8> {
    let piece = Cut {
        id: ID,
        bytes: from..to,
        more,
    };
    cut(whole, &piece)
}

#[privileged_test]
fn a15_all_fragments_take_the_way_of_the_first_one() {
    for order in [[0, 1, 2], [0, 2, 1]] {
        let mut lb = DataPlane::new(CONFIG);
        let sent = pieces(&datagram().bytes(), ID, &PLACES);
        assert_translated(&mut lb, Port::Tenant, &sent, &order, &to_resolver());
        let sent = pieces(&reply_datagram().bytes(), ID, &PLACES);
        assert_translated(&mut lb, Port::Mgmt, &sent, &order, &to_client());
        assert_eq!(lb.fragmented().len(), 0, "complete, and so forgotten");
    }
}

/// As for IPv4: the checksum of a first fragment covers the others, whatever it is equal to.
#[privileged_test]
fn the_checksum_of_a_first_fragment_is_never_open() {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        establish(&mut lb, CLIENT_A, 1024);
        let segment = |frame: Frame, bytes: usize, word: u16| {
            let mut payload = vec![7; bytes];
            payload[..2].copy_from_slice(&word.to_be_bytes());
            let frame = frame.numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
            frame.payload(&payload)
        };
        let sent = |bytes, word| segment(request(CLIENT_A, API, ACK_ONLY), bytes, word);
        let open = &sent(28, 0).open_checksum()[70..72];
        let word = (0..=u16::MAX)
            .find(|word| sent(88, *word).bytes()[70..72] == *open)
            .expect("such data");
        let left: Vec<Vec<u8>> = pieces(&sent(88, word).bytes(), ID, &[48])
            .iter()
            .map(|piece| passed_on(&mut lb, Port::Tenant, piece))
            .collect();
        let wanted = segment(tcp(&snat(1024), KAS, ACK_ONLY), 88, word).ttl(63);
        let wanted = wanted.between(MGMT_NIC, KAS_MAC).bytes();
        assert_eq!(check(&wanted), Ok(()));
        assert_eq!(left, pieces(&wanted, identification(&left[0]), &[48]));
    }
}

/// Clients choose their identifications themselves; behind the one SNAT address they must not meet.
#[privileged_test]
fn reliability_15_clients_with_the_same_identification_get_their_own() {
    let mut lb = DataPlane::new(CONFIG);
    let mut ours = Vec::new();
    for _ in 0..100 {
        for client in [CLIENT_A, CLIENT_B] {
            let whole = query(client).payload(&payload(100)).bytes();
            let left: Vec<u32> = pieces(&whole, ID, &[48])
                .iter()
                .map(|piece| identification(&passed_on(&mut lb, Port::Tenant, piece)))
                .collect();
            assert_eq!(left[0], left[1]);
            ours.push(left[0]);
        }
    }
    ours.sort_unstable();
    ours.dedup();
    assert_eq!(ours.len(), 200, "one for each datagram");
}

#[privileged_test]
fn reliability_15_nothing_passes_before_the_first_fragment_or_after_the_last() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = pieces(&datagram().bytes(), ID, &PLACES);
    for later in &sent[1..] {
        assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
    }
    assert_translated(&mut lb, Port::Tenant, &sent, &[0, 1, 2], &to_resolver());
    for later in &sent[1..] {
        assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
    }
    // Another client, another identification in each half, another network: another datagram.
    passed_on(&mut lb, Port::Tenant, &sent[0]);
    let other_client = query(CLIENT_B).payload(&payload(PAYLOAD)).bytes();
    let others = [
        pieces(&other_client, ID, &PLACES)[1].clone(),
        pieces(&datagram().bytes(), ID ^ 1, &PLACES)[1].clone(),
        pieces(&datagram().bytes(), ID ^ 1 << 16, &PLACES)[1].clone(),
        pieces(&datagram().bytes(), ID ^ 1 << 31, &PLACES)[1].clone(),
    ];
    for other in others {
        assert_dropped(&mut lb, Port::Tenant, &other, "fragment_early");
    }
    passed_on(&mut lb, Port::Tenant, &sent[1]);
    passed_on(&mut lb, Port::Tenant, &sent[2]);
}

/// Behind the fragment header of a later piece is no header that could be read.
#[privileged_test]
fn a_later_fragment_is_judged_by_what_the_first_one_was() {
    let mut lb = DataPlane::new(CONFIG);
    // Its bytes look like extension headers and like TCP to another port.
    let mut bytes = vec![0; 100];
    bytes[40..60].copy_from_slice(&tcp(CLIENT_A, API, SYN_ONLY).packet()[40..60]);
    let whole = query(CLIENT_A).payload(&bytes).bytes();
    let sent = pieces(&whole, ID, &[48]);
    let first = passed_on(&mut lb, Port::Tenant, &sent[0]);
    let last = passed_on(&mut lb, Port::Tenant, &sent[1]);
    let wanted = udp(&snat(1024), RESOLVER).payload(&bytes).ttl(63);
    let wanted = wanted.between(MGMT_NIC, RESOLVER_MAC).bytes();
    let wanted = pieces(&wanted, identification(&first), &[48]);
    assert_eq!([first, last], *wanted);
}

#[privileged_test]
fn a_tcp_segment_in_pieces_belongs_to_its_flow() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let segment = |frame: Frame| frame.numbers(1001, 5001).payload(&[7; 88]);
    let whole = segment(request(CLIENT_A, API, ACK_ONLY)).bytes();
    // The whole header is in the first fragment.
    let tiny = part(&whole, 0, 16, true);
    assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    let sent = pieces(&whole, ID, &[24]);
    let first = passed_on(&mut lb, Port::Tenant, &sent[0]);
    let last = passed_on(&mut lb, Port::Tenant, &sent[1]);
    let wanted = segment(tcp(&snat(1024), KAS, ACK_ONLY)).ttl(63);
    let wanted = wanted.between(MGMT_NIC, KAS_MAC).bytes();
    assert_eq!(
        [first.clone(), last],
        *pieces(&wanted, identification(&first), &[24])
    );
}

/// What has passed cannot be overwritten, and nothing more of such a datagram passes (RFC 5722).
#[privileged_test]
fn reliability_15_an_overlap_ends_the_datagram() {
    let (whole, sent) = small();
    let total = 108;
    let overlaps = [
        part(&whole, 8, 40, true),      // of the first
        part(&whole, 8, 16, false),     // inside it
        part(&whole, 16, 40, true),     // the second again
        part(&whole, 32, 48, true),     // its end
        part(&whole, 32, total, false), // to the end
        part(&whole, 24, 32, false),    // inside the second
    ];
    for overlap in overlaps {
        let mut lb = DataPlane::new(CONFIG);
        passed_on(&mut lb, Port::Tenant, &sent[0]);
        passed_on(&mut lb, Port::Tenant, &sent[1]);
        assert_dropped(&mut lb, Port::Tenant, &overlap, "fragment_overlap");
        assert_dropped(&mut lb, Port::Tenant, &sent[2], "fragment_early");
        // A first one begins anew.
        for piece in &sent {
            passed_on(&mut lb, Port::Tenant, piece);
        }
        assert_eq!(lb.fragmented().len(), 0);
    }
}

#[privileged_test]
fn reliability_15_tiny_and_lying_fragments_are_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let (whole, _) = small();
    let syn = request(CLIENT_A, API, SYN_ONLY).payload(&[7; 88]).bytes();
    for tiny in [
        part(&syn, 0, 8, true),
        part(&syn, 0, 16, true),
        part(&syn, 0, 20, true),
        part(&whole, 0, 20, true),
        // Ethernet padding is no part of it.
        [part(&syn, 0, 16, true), vec![0x50; 10]].concat(),
    ] {
        assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    }
    passed_on(&mut lb, Port::Tenant, &part(&whole, 0, 16, true));
    for tiny in [
        part(&whole, 16, 20, true),
        part(&whole, 16, 16, true),
        part(&whole, 16, 16, false),
    ] {
        assert_dropped(&mut lb, Port::Tenant, &tiny, "fragment_tiny");
    }
    let mut beyond = part(&whole, 16, 40, true);
    beyond[14 + 40 + 2..14 + 40 + 4].fill(0xff);
    beyond[14 + 40 + 3] = 0xf9;
    assert_dropped(&mut lb, Port::Tenant, &beyond, "malformed");
    let mut longer = part(&whole, 16, 40, true);
    longer[19] += 1;
    assert_dropped(&mut lb, Port::Tenant, &longer, "malformed");
}

/// The first fragment has all headers, or says nothing of what it is (RFC 7112).
#[privileged_test]
fn reliability_39_headers_in_pieces_are_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let frame = request(CLIENT_A, API, SYN_ONLY)
        .extension(Extension::Destination(vec![]))
        .extension(Extension::Destination(vec![0; 40]))
        .payload(&[7; 40]);
    let whole = frame.bytes();
    for end in [8, 16, 48, 56, 64] {
        let outcome = lb.receive(Port::Tenant, &part(&whole, 0, end, true));
        assert_eq!(outcome.action, Action::Drop, "{end}: {outcome:?}");
        assert!(
            matches!(outcome.counted.2, "fragment_tiny" | "malformed"),
            "{end}: {outcome:?}"
        );
    }
    assert_eq!(lb.maps.flow_index.keys().count(), 0, "no state was made");
    assert_eq!(lb.fragmented().len(), 0);
}

/// Fragments are judged by what the first one is: no service, not allowed, spoofed.
#[privileged_test]
fn reliability_39_who_is_not_let_in_gets_no_fragment_in() {
    let rule = r#"pool: dns-a, deny: ["fd00:203::64:0/112"] }"#;
    let mut lb = DataPlane::new(&CONFIG.replace("pool: dns-a }", rule));
    let cases = [
        ("denied", udp("[fd00:203::64:1]:40000", DNS)),
        ("spoofed", udp("[fd00:204::1]:40000", DNS)),
        ("bogon", udp("[2002:c000:209::1]:40000", DNS)),
        ("no_service", udp(CLIENT_A, "[fd00:203::110]:55")),
    ];
    for (reason, frame) in cases {
        let frame = frame.between(CLIENT, TENANT_NIC).payload(&payload(100));
        let sent = pieces(&frame.bytes(), ID, &[16, 40]);
        assert_dropped(&mut lb, Port::Tenant, &sent[0], reason);
        for later in &sent[1..] {
            assert_dropped(&mut lb, Port::Tenant, later, "fragment_early");
        }
    }
    assert_eq!(lb.fragmented().len(), 0);
}

/// A first fragment whose checksum is zero is of a datagram without one.
#[privileged_test]
fn reliability_18_a_first_fragment_without_checksum_is_dropped() {
    let mut lb = DataPlane::new(CONFIG);
    let whole = datagram().without_checksum().bytes();
    let sent = pieces(&whole, ID, &PLACES);
    assert_dropped(&mut lb, Port::Tenant, &sent[0], "malformed");
    assert_dropped(&mut lb, Port::Tenant, &sent[1], "fragment_early");
}

/// However many datagrams a tenant begins, in either direction, those of another are followed.
#[privileged_test]
fn one_tenants_fragments_cost_another_nothing() {
    const MANY: u32 = 20_000;
    let tagged = CONFIG.replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let other = "  tenant-b: { role: tenant, interface: eth0, vlan: 2004, prefixes: [\"fd00:203::/64\"] }\npools:";
    let other = tagged.replace("pools:", other);
    let service =
        format!("  dns-b: {{ network: tenant-b, listen: [\"{DNS}/udp\"], pool: dns-a }}\n");
    let mut lb = DataPlane::alone(&(other + &service));
    let [a, b] =
        [2003, 2004].map(|vlan| move |frame: &[u8]| lb_tests::frames::packet::tag(frame, vlan));
    let passes = |lb: &mut DataPlane, port, bytes: &[u8]| {
        let ((action, _), _) = lb.run(port, bytes, 1);
        assert_eq!(action, Action::Redirect);
    };
    let halves =
        |frame: &Frame, id| pieces(&frame.clone().payload(&payload(100)).bytes(), id, &[48]);
    let query = query(CLIENT_A);
    let own = halves(&query, ID);
    passes(&mut lb, Port::Tenant, &b(&own[0]));
    for id in 0..MANY {
        passes(&mut lb, Port::Tenant, &a(&halves(&query, id)[0]));
    }
    passes(&mut lb, Port::Tenant, &b(&own[1]));
    // The flow of b is that of port 1024.
    let own = halves(&answer(1024), ID);
    passes(&mut lb, Port::Mgmt, &own[0]);
    for id in 0..MANY {
        passes(&mut lb, Port::Mgmt, &halves(&answer(1025), id)[0]);
    }
    passes(&mut lb, Port::Mgmt, &own[1]);
}

/// 30 seconds after the first one, or behind a flow that is gone.
#[privileged_test]
fn a_fragment_that_comes_too_late_is_dropped() {
    // Coarse time has units of 2^20 ns.
    const SECOND: u32 = 953;
    let mut lb = DataPlane::new(CONFIG);
    let (_, sent) = small();
    passed_on(&mut lb, Port::Tenant, &sent[0]);
    age(&mut lb, |record| {
        record.began = record.began.wrapping_sub(28 * SECOND);
    });
    passed_on(&mut lb, Port::Tenant, &sent[1]);
    age(&mut lb, |record| {
        record.began = record.began.wrapping_sub(3 * SECOND);
    });
    assert_dropped(&mut lb, Port::Tenant, &sent[2], "fragment_early");

    let id = DataPlane::flow_id(1024);
    let mut lb = DataPlane::new(CONFIG);
    passed_on(&mut lb, Port::Tenant, &sent[0]);
    let mut flow = lb.maps.flows.get(&id, 0).expect("an entry");
    flow.word = FlowState::from_raw(flow.word).end().raw();
    lb.maps.flows.set(id, &flow, 0).expect("a write");
    assert_dropped(&mut lb, Port::Tenant, &sent[1], "fragment_early");
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

#[privileged_test]
fn hops_and_size_are_judged_before_anything_is_noted() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = pieces(&datagram().bytes(), ID, &PLACES);
    passed_on(&mut lb, Port::Tenant, &sent[0]);
    let mut spent = sent[1].clone();
    spent[21] = 1;
    assert_dropped(&mut lb, Port::Tenant, &spent, "ttl_expired");
    set_mtu(&mut lb, "mgmt", 1495);
    let outcome = lb.receive(Port::Tenant, &sent[1]);
    assert!(
        matches!(outcome.counted.2, "too_big" | "refused: too_big"),
        "{outcome:?}"
    );
    set_mtu(&mut lb, "mgmt", 1496);
    passed_on(&mut lb, Port::Tenant, &sent[1]);
}

/// Every fragment counts for its flow, and keeps it.
#[privileged_test]
fn every_fragment_is_counted() {
    let mut lb = DataPlane::new(CONFIG);
    let sent = pieces(&datagram().bytes(), ID, &PLACES);
    let back = pieces(&reply_datagram().bytes(), ID, &PLACES);
    for (piece, answer) in sent.iter().zip(&back) {
        passed_on(&mut lb, Port::Tenant, piece);
        passed_on(&mut lb, Port::Mgmt, answer);
    }
    let flow = lb.maps.flows.get(&DataPlane::flow_id(1024), 0);
    let flow = flow.expect("an entry");
    let bytes = u64::try_from(sent.iter().map(Vec::len).sum::<usize>()).expect("few");
    assert_eq!((flow.bytes_request, flow.bytes_reply), (bytes, bytes));
}
