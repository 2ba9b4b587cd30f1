//! Extension headers: RELIABILITY 22. Options are carried, everything else that can be there ends a packet.

use std::net::Ipv6Addr;

use lb_tests::frames::six::{Extension, IPV6, L4, number, read};

use super::given::*;

fn hop_by_hop() -> Extension {
    Extension::HopByHop(vec![])
}

fn destination() -> Extension {
    Extension::Destination(vec![])
}

fn routing(kind: u8, left: u8) -> Extension {
    let through: Ipv6Addr = NODE.parse().expect("an address");
    Extension::Routing {
        kind,
        left,
        through: vec![through],
    }
}

fn with(frame: Frame, chain: &[Extension]) -> Frame {
    chain.iter().cloned().fold(frame, Frame::extension)
}

/// Chains that are carried.
fn carried() -> Vec<Vec<Extension>> {
    vec![
        vec![],
        vec![hop_by_hop()],
        // A router alert, and a header of 64 bytes.
        vec![Extension::HopByHop(vec![5, 2, 0, 0])],
        vec![Extension::Destination([&[1, 60][..], &[0; 60]].concat())],
        vec![destination(); 8],
        vec![hop_by_hop(), destination()],
    ]
}

/// Chains that end a packet, and why.
fn refused() -> Vec<(&'static str, Vec<Extension>)> {
    let piece = Extension::Fragment { field: 0, id: 7 };
    let others = [
        number::ESP,
        number::AUTHENTICATION,
        number::NONE,
        number::MOBILITY,
        139,
        140,
        253,
        // What IPv4 has, or no protocol.
        1,
        4,
        41,
        47,
        132,
        255,
    ];
    let others = others.map(|number| ("unsupported_protocol", vec![Extension::Other(number)]));
    let mut all = vec![
        ("source_route", vec![routing(0, 1)]),
        ("source_route", vec![routing(0, 0)]),
        (
            "source_route",
            vec![hop_by_hop(), destination(), routing(0, 1)],
        ),
        ("unsupported_protocol", vec![routing(2, 1)]),
        ("unsupported_protocol", vec![routing(4, 1)]),
        ("unsupported_protocol", vec![routing(4, 0)]),
        ("unsupported_protocol", vec![destination(), routing(253, 0)]),
        ("unsupported_protocol", vec![destination(); 9]),
        ("unsupported_protocol", vec![destination(); 40]),
        ("unsupported_protocol", vec![piece.clone(), piece]),
        ("malformed", vec![destination(), hop_by_hop()]),
        ("malformed", vec![hop_by_hop(), hop_by_hop()]),
    ];
    all.extend(others);
    all.extend([(
        "unsupported_protocol",
        vec![destination(), Extension::Other(number::ESP)],
    )]);
    all
}

#[privileged_test]
fn reliability_22_options_are_carried_in_both_directions() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    for chain in carried() {
        let numbers = |frame: Frame| {
            frame
                .numbers(CLIENT_ISN + 1, BACKEND_ISN + 1)
                .payload(b"GET")
        };
        let data = with(numbers(request(CLIENT_A, API, ACK_ONLY)), &chain);
        let sent = forwarded(&mut lb, Port::Tenant, &data);
        let wanted = with(numbers(tcp(&snat(1024), KAS, ACK_ONLY)), &chain).ttl(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));

        let numbers = |frame: Frame| frame.numbers(BACKEND_ISN + 1, CLIENT_ISN + 4);
        let data = with(numbers(reply(1024, ACK_ONLY)), &chain);
        let sent = forwarded(&mut lb, Port::Mgmt, &data);
        let wanted = with(numbers(tcp(API, CLIENT_A, ACK_ONLY)), &chain).ttl(63);
        assert_frame(&sent, &wanted.between(TENANT_NIC, CLIENT));
    }
}

/// A SYN and a datagram open their flows behind them as without.
#[privileged_test]
fn reliability_22_options_open_flows() {
    let mut lb = DataPlane::new(CONFIG);
    for (number, chain) in (1024..).zip(carried()) {
        let client = format!("[fd00:203::50]:{number}");
        let syn = with(request(&client, API, SYN_ONLY), &chain);
        let sent = forwarded(&mut lb, Port::Tenant, &syn);
        let wanted = with(tcp(&snat(number), KAS, SYN_ONLY), &chain).ttl(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, KAS_MAC));
    }
}

#[privileged_test]
fn reliability_22_other_headers_end_a_packet() {
    let mut lb = DataPlane::new(CONFIG);
    for (reason, chain) in refused() {
        let syn = with(request(CLIENT_A, API, SYN_ONLY), &chain);
        assert_dropped(&mut lb, Port::Tenant, &syn.bytes(), reason);
    }
    assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no state was made");
    establish(&mut lb, CLIENT_A, 1024);
    let id = DataPlane::flow_id(1024);
    let flow = lb.maps.flows.get(&id, 0).expect("an entry");
    for (reason, chain) in refused() {
        let numbers = |frame: Frame| frame.numbers(CLIENT_ISN + 1, BACKEND_ISN + 1);
        let data = with(numbers(request(CLIENT_A, API, ACK_ONLY)), &chain);
        assert_dropped(&mut lb, Port::Tenant, &data.bytes(), reason);
        let back = with(reply(1024, ACK_ONLY), &chain).numbers(BACKEND_ISN + 1, CLIENT_ISN + 1);
        assert_dropped(&mut lb, Port::Mgmt, &back.bytes(), reason);
    }
    assert_eq!(lb.maps.flows.get(&id, 0).expect("an entry"), flow);
}

/// A packet with a fragment header that is none (RFC 6946) is a packet.
#[privileged_test]
fn reliability_22_an_atomic_fragment_is_a_packet() {
    let mut lb = DataPlane::new(CONFIG);
    for chain in [vec![], vec![destination()]] {
        let piece = |id: u32| [&chain[..], &[Extension::Fragment { field: 0, id }]].concat();
        let datagram = with(query(CLIENT_A), &piece(0x1234_5678)).payload(b"who?");
        let sent = forwarded(&mut lb, Port::Tenant, &datagram);
        let (field, id) = read(&sent).expect("IPv6").fragment.expect("its header");
        assert_eq!(field, 0);
        let wanted = udp(&snat(1024), RESOLVER).payload(b"who?");
        let wanted = with(wanted, &piece(id)).ttl(63);
        assert_frame(&sent, &wanted.between(MGMT_NIC, RESOLVER_MAC));
    }
    assert_eq!(lb.fragmented().len(), 0, "nothing is to come");
}

/// Headers that are longer than their packet, or break off.
#[privileged_test]
fn reliability_22_broken_chains_are_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    let chain = [hop_by_hop(), destination()];
    let whole = with(request(CLIENT_A, API, SYN_ONLY), &chain).bytes();
    for length in 14..whole.len() {
        assert_dropped(&mut lb, Port::Tenant, &whole[..length], "malformed");
    }
    // The packet ends before what its frame has.
    for length in 0..16 + 20 {
        let mut short = whole.clone();
        short[19] = length;
        assert_dropped(&mut lb, Port::Tenant, &short, "malformed");
    }
    // Each header says that it is longer by eight bytes.
    for at in [L4 + 1, L4 + 9] {
        let mut long = whole.clone();
        long[at] = 1;
        let outcome = lb.receive(Port::Tenant, &long);
        assert_eq!(outcome.action, Action::Drop, "{outcome:?}");
    }
    let mut far = whole.clone();
    far[L4 + 9] = 20;
    assert_dropped(&mut lb, Port::Tenant, &far, "malformed");
    assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no state was made");
}

/// RELIABILITY 39: no client gets around the rules by a header.
#[privileged_test]
fn reliability_39_headers_do_not_bypass_the_rules() {
    let rule = r#"pool: kas-a, deny: ["fd00:203::64:0/112"] }"#;
    let mut lb = DataPlane::new(&CONFIG.replacen("pool: kas-a }", rule, 1));
    for chain in carried() {
        let syn = |client| with(request(client, API, SYN_ONLY), &chain).bytes();
        let cases = [
            ("denied", syn("[fd00:203::64:1]:40000")),
            ("spoofed", syn("[fd00:204::1]:40000")),
            ("bogon", syn("[::ffff:192.168.203.50]:40000")),
        ];
        for (reason, bytes) in cases {
            assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
        }
        let elsewhere = with(request(CLIENT_A, "[fd00:203::111]:6443", SYN_ONLY), &chain);
        assert_dropped(&mut lb, Port::Tenant, &elsewhere.bytes(), "not_declared");
    }
    assert_eq!(lb.maps.flow_lines.ids().count(), 0, "no state was made");
}

/// To another host, no header is looked at.
#[privileged_test]
fn headers_to_others_are_theirs() {
    let mut lb = DataPlane::new(CONFIG);
    for (_, chain) in refused() {
        let frame = with(tcp(KAS, "[fd00:32::10]:22", SYN_ONLY), &chain);
        let bytes = frame.between(KAS_MAC, MGMT_NIC).bytes();
        assert_passed(&mut lb, Port::Mgmt, &bytes);
        let frame = with(request(CLIENT_A, "[fd00:203::111]:6443", SYN_ONLY), &chain);
        assert_dropped(&mut lb, Port::Tenant, &frame.bytes(), "not_declared");
    }
    // Not even whether there is anything behind the addresses.
    let empty = request(CLIENT_A, "[fd00:203::111]:6443", SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Tenant, &empty[..14 + IPV6], "not_declared");
}
