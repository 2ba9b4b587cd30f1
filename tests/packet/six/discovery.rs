//! Solicitations for our addresses are answered, answers to ours go into the cell, and out of a cell goes what speaks
//! for its own.

use lb_common::addr::Mac;
use lb_tests::frames::{
    packet::{check, tag, untagged},
    six::{
        Extension,
        discovery::{
            OVERRIDE, SOLICITED, advertisement, group_mac, redirect, router_advertisement,
            solicitation, solicitation_to, solicited_node,
        },
    },
};

use lb_user::dataplane::attach::Mode;

use super::given::*;

/// The host's own address on mgmt, and its link-local one.
const OWN: &str = "fd00:32::10";
/// Link-local addresses of a client and of a node.
const CLIENT_LINK: &str = "fe80::ff:fe00:c01";
const NODE_LINK: &str = "fe80::ff:fe00:e05";

fn assert_sent(lb: &mut DataPlane, port: Port, frame: &Frame, counted: [&'static str; 3]) {
    let [hook, network, verdict] = counted;
    let wanted = Outcome {
        action: Action::Redirect,
        frame: frame.bytes(),
        counted: (hook, network.to_owned(), verdict),
    };
    assert_eq!(lb.receive(port, &frame.bytes()), wanted);
}

/// Asserts that a solicitation becomes the advertisement of `target` to the station that sent it.
fn assert_answered(lb: &mut DataPlane, port: Port, asks: &[u8], target: &str, to: (Mac, &str)) {
    let (nic, network) = match port {
        Port::Mgmt => (MGMT_NIC, "mgmt"),
        _ => (TENANT_NIC, "tenant-a"),
    };
    let flags = match to.1 {
        "ff02::1" => OVERRIDE,
        _ => SOLICITED | OVERRIDE,
    };
    let outcome = lb.receive(port, asks);
    let counted = ("nic", network.to_owned(), "transmitted");
    assert_eq!(
        (outcome.action, outcome.counted),
        (Action::Transmit, counted)
    );
    assert_frame(
        &outcome.frame,
        &advertisement(nic, target, target, to, flags),
    );
    assert_eq!(check(&outcome.frame), Ok(()));
}

/// All nodes, and their MAC.
fn all_nodes() -> (Mac, &'static str) {
    (group_mac("ff02::1".parse().expect("an address")), "ff02::1")
}

#[privileged_test]
fn a_solicitation_for_an_address_of_ours_is_answered() {
    let mut lb = DataPlane::new(CONFIG);
    let [tenant, mgmt] = [TENANT_NIC, MGMT_NIC].map(link_local);
    for target in [VIP, &tenant] {
        for sender in [HOST, CLIENT_LINK] {
            let asks = solicitation(CLIENT, sender, target).bytes();
            assert_answered(&mut lb, Port::Tenant, &asks, target, (CLIENT, sender));
            // Whether it is still there.
            let asks = solicitation_to(CLIENT, sender, target, (TENANT_NIC, target)).bytes();
            assert_answered(&mut lb, Port::Tenant, &asks, target, (CLIENT, sender));
        }
        // A station that looks whether the address is in use hears it by the group of all.
        let asks = solicitation(CLIENT, "::", target).bytes();
        assert_answered(&mut lb, Port::Tenant, &asks, target, all_nodes());
    }
    for target in [SNAT, &mgmt] {
        let asks = solicitation(KAS_MAC, NODE, target).bytes();
        assert_answered(&mut lb, Port::Mgmt, &asks, target, (KAS_MAC, NODE));
    }
}

/// A local stack may be behind the NIC, and a veth may lose `XDP_TX`.
#[privileged_test]
fn an_answer_to_a_local_stack_is_redirected() {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        let asks = solicitation(CLIENT, HOST, VIP).bytes();
        let outcome = lb.receive(Port::Tenant, &asks);
        let counted = ("nic", "tenant-a".to_owned(), "returned");
        assert_eq!(
            (outcome.action, outcome.counted),
            (Action::Redirect, counted),
            "{mode:?}"
        );
        let answer = advertisement(TENANT_NIC, VIP, VIP, (CLIENT, HOST), SOLICITED | OVERRIDE);
        assert_frame(&outcome.frame, &answer);
    }
}

/// A solicitation with this body behind its target.
fn with_options(sender: &str, to: (Mac, &str), options: &[u8]) -> Frame {
    let target: std::net::Ipv6Addr = VIP.parse().expect("an address");
    let body = [target.octets().as_slice(), options].concat();
    let message = icmp(sender, to.1, (135, 0), 0).ttl(255).payload(&body);
    message.between(CLIENT, to.0)
}

/// Without a MAC the frame is too short for the answer, with a nonce too long.
#[privileged_test]
fn the_answer_has_its_own_length() {
    let mut lb = DataPlane::new(CONFIG);
    let group = solicited_node(VIP);
    let to = (group_mac(group), &*group.to_string());
    let mac = [&[1, 1], CLIENT.bytes().as_slice()].concat();
    let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
    for options in [
        vec![],
        mac.clone(),
        [mac.as_slice(), &nonce].concat(),
        [nonce.as_slice(), &mac].concat(),
        nonce.repeat(8),
    ] {
        let asks = with_options(HOST, to, &options).bytes();
        assert_answered(&mut lb, Port::Tenant, &asks, VIP, (CLIENT, HOST));
        let asks = with_options(HOST, (TENANT_NIC, VIP), &options).bytes();
        assert_answered(&mut lb, Port::Tenant, &asks, VIP, (CLIENT, HOST));
        let padded = [asks, vec![7; 40]].concat();
        assert_answered(&mut lb, Port::Tenant, &padded, VIP, (CLIENT, HOST));
    }
    let asks = with_options("::", to, &nonce).bytes();
    assert_answered(&mut lb, Port::Tenant, &asks, VIP, all_nodes());
    let signed = with_options(HOST, to, &nonce.repeat(9)).bytes();
    assert_dropped(&mut lb, Port::Tenant, &signed, "unsupported_protocol");
}

#[privileged_test]
fn a_vip_is_answered_for_without_a_cell_and_with_its_tag() {
    let tagged = CONFIG.replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    for (config, vlan) in [(CONFIG, None), (&*tagged, Some(2003))] {
        let mut lb = DataPlane::new(config);
        let id = lb
            .ids
            .get(lb_user::model::registry::Kind::Network, "tenant-a");
        let id = id.expect("a network of the configuration");
        let mut network = lb.maps.networks.get(&id, 0).expect("the network");
        network.cell_ifindex = 0;
        lb.maps.networks.set(id, &network, 0).expect("a write");
        for sender in [HOST, "::"] {
            let asks = solicitation(CLIENT, sender, VIP).bytes();
            let asks = vlan.map_or_else(|| asks.clone(), |vlan| tag(&asks, vlan));
            let outcome = lb.receive(Port::Tenant, &asks);
            assert_eq!(outcome.action, Action::Transmit);
            let (tci, frame) = untagged(&outcome.frame);
            assert_eq!((tci, check(&frame)), (vlan, Ok(())));
            assert_eq!(frame.len(), 86);
        }
    }
}

#[privileged_test]
fn what_is_no_valid_solicitation_is_not_answered() {
    let mut lb = DataPlane::new(CONFIG);
    let group = solicited_node(VIP);
    let to = (group_mac(group), &*group.to_string());
    let mac = [&[1, 1], CLIENT.bytes().as_slice()].concat();
    let mut dropped = |frame: Vec<u8>, reason| {
        assert_dropped(&mut lb, Port::Tenant, &frame, reason);
    };
    let malformed = "malformed";
    dropped(with_options("::", to, &mac).bytes(), malformed);
    dropped(
        with_options("::", (TENANT_NIC, VIP), &[]).bytes(),
        malformed,
    );
    dropped(with_options("::", all_nodes(), &[]).bytes(), malformed);
    dropped(
        with_options(HOST, to, &[1, 0, 0, 0, 0, 0, 0, 0]).bytes(),
        malformed,
    );
    dropped(
        with_options(HOST, to, &[14, 2, 0, 0, 0, 0, 0, 0]).bytes(),
        malformed,
    );
    dropped(with_options(HOST, to, &mac[..4]).bytes(), malformed);
    let mut wrong = solicitation(CLIENT, HOST, VIP).bytes();
    wrong[57] ^= 1;
    dropped(wrong, malformed);

    let forged = "neighbour_forged";
    let other = [&[1, 1], KAS_MAC.bytes().as_slice()].concat();
    dropped(with_options(HOST, to, &other).bytes(), forged);
    for station in [Mac::default(), Mac::BROADCAST, to.0] {
        let mut frame = with_options(HOST, to, &[]).bytes();
        frame[6..12].copy_from_slice(&station.bytes());
        dropped(frame, "group_source");
    }
    // Another network, what no host has, any router's address of the link.
    for sender in [
        NODE,
        "2001:db8::1",
        "::1",
        "ff02::1",
        "fd00:203::",
        "::ffff:192.0.2.9",
    ] {
        dropped(solicitation(CLIENT, sender, VIP).bytes(), forged);
    }
    // A router may have been on the way.
    let far = solicitation(CLIENT, HOST, VIP).ttl(254).bytes();
    dropped(far, "group_address");
}

/// A station with an address of ours is heard by the cell's kernel, and not answered.
#[privileged_test]
fn a_station_with_an_address_of_ours_is_not_answered() {
    let mut lb = DataPlane::new(CONFIG);
    let tenant = link_local(TENANT_NIC);
    for (sender, target) in [(VIP, &*tenant), (&tenant, VIP)] {
        let asks = solicitation(CLIENT, sender, target);
        assert_sent(
            &mut lb,
            Port::Tenant,
            &asks,
            ["nic", "tenant-a", "delivered"],
        );
    }
}

/// A station that opens no flows may be on the link all the same: backends and gateways.
#[privileged_test]
fn a_station_that_is_no_source_is_answered() {
    let narrow = r#"prefixes: ["fd00:203::/64"], sources: ["fd00:203::1:0/112"]"#;
    let mut lb = DataPlane::new(&CONFIG.replace(r#"prefixes: ["fd00:203::/64"]"#, narrow));
    for sender in [HOST, "fd00:203::1:7"] {
        let asks = solicitation(CLIENT, sender, VIP).bytes();
        assert_answered(&mut lb, Port::Tenant, &asks, VIP, (CLIENT, sender));
    }
    let syn = request(CLIENT_A, API, SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Tenant, &syn, "spoofed");
}

/// Each kind has a bucket of its own, and each network.
#[privileged_test]
fn answers_have_a_rate_and_what_enters_the_cell_has_others() {
    const FLOOD: u32 = 40_000;
    let mut lb = DataPlane::new(CONFIG);
    let asks = solicitation(CLIENT, HOST, VIP).bytes();
    for _ in 0..FLOOD {
        lb.run(Port::Tenant, &asks, 1);
    }
    let count = |lb: &DataPlane, verdict| {
        let key = ("nic", "tenant-a".to_owned(), verdict);
        lb.counters().get(&key).copied().unwrap_or(0)
    };
    let answered = count(&lb, "transmitted");
    assert!((4096..u64::from(FLOOD)).contains(&answered), "{answered}");
    assert_eq!(answered + count(&lb, "rate_limited"), u64::from(FLOOD));

    let flags = SOLICITED | OVERRIDE;
    let kinds = [
        of_groups((CLIENT, CLIENT_LINK), "ff02::1", 130),
        advertisement(CLIENT, HOST, HOST, all_nodes(), OVERRIDE),
        advertisement(CLIENT, HOST, HOST, (TENANT_NIC, VIP), flags),
    ];
    for frame in &kinds {
        assert_sent(
            &mut lb,
            Port::Tenant,
            frame,
            ["nic", "tenant-a", "delivered"],
        );
        lb.run(Port::Tenant, &frame.bytes(), FLOOD);
    }
    let entered = count(&lb, "delivered");
    assert_eq!(entered + count(&lb, "cell_rate"), u64::from(3 * FLOOD + 3));
    assert!(entered < u64::from(FLOOD), "{entered}");
    let asks = solicitation(KAS_MAC, NODE, SNAT).bytes();
    assert_answered(&mut lb, Port::Mgmt, &asks, SNAT, (KAS_MAC, NODE));
}

#[privileged_test]
fn an_answer_to_our_addresses_goes_into_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let flags = SOLICITED | OVERRIDE;
    let mgmt = link_local(MGMT_NIC);
    for to in [SNAT, &mgmt] {
        for sender in [NODE, NODE_LINK] {
            let says = advertisement(KAS_MAC, sender, NODE, (MGMT_NIC, to), flags);
            assert_sent(&mut lb, Port::Mgmt, &says, ["nic", "mgmt", "delivered"]);
        }
    }
    let says = advertisement(CLIENT, HOST, HOST, (TENANT_NIC, VIP), flags);
    let delivered = ["nic", "tenant-a", "delivered"];
    assert_sent(&mut lb, Port::Tenant, &says, delivered);
}

/// A switch that knows the members of a group may ask one alone (RFC 6085).
#[privileged_test]
fn a_question_to_a_group_may_come_in_a_frame_to_us_alone() {
    let mut lb = DataPlane::new(CONFIG);
    let asks = |from, sender, target: &str, nic| {
        let group = solicited_node(target).to_string();
        solicitation_to(from, sender, target, (nic, &group))
    };
    let tenant = asks(CLIENT, HOST, VIP, TENANT_NIC).bytes();
    assert_answered(&mut lb, Port::Tenant, &tenant, VIP, (CLIENT, HOST));
    let link = link_local(MGMT_NIC);
    for target in [SNAT, &link] {
        let mgmt = asks(KAS_MAC, NODE, target, MGMT_NIC).bytes();
        assert_answered(&mut lb, Port::Mgmt, &mgmt, target, (KAS_MAC, NODE));
    }
    let others = asks(CLIENT, HOST, OWN, TENANT_NIC).bytes();
    assert_dropped(&mut lb, Port::Tenant, &others, "arp_not_ours");
    let hosts = asks(KAS_MAC, NODE, OWN, MGMT_NIC).bytes();
    assert_passed(&mut lb, Port::Mgmt, &hosts);
    let says = advertisement(CLIENT, HOST, HOST, (TENANT_NIC, "ff02::1"), OVERRIDE);
    let delivered = ["nic", "tenant-a", "delivered"];
    assert_sent(&mut lb, Port::Tenant, &says, delivered);
}

/// A tenant's router or worker that says where it is now; on mgmt the host must hear it.
#[privileged_test]
fn who_says_where_he_is_now_is_heard() {
    let mut lb = DataPlane::new(CONFIG);
    let all = (group_mac("ff02::1".parse().expect("an address")), "ff02::1");
    let says = advertisement(CLIENT, "fd00:203::1", "fd00:203::1", all, OVERRIDE);
    let delivered = ["nic", "tenant-a", "delivered"];
    assert_sent(&mut lb, Port::Tenant, &says, delivered);
    let says = advertisement(KAS_MAC, NODE, NODE, all, OVERRIDE);
    assert_passed(&mut lb, Port::Mgmt, &says.bytes());
}

#[privileged_test]
fn other_questions_never_leave_a_tenants_network_and_pass_on_mgmt() {
    let mut lb = DataPlane::new(CONFIG);
    // The host's link-local address is that of the NIC's MAC.
    for target in [
        "fd00:203::1",
        "fd00:203::111",
        SNAT,
        NODE,
        OWN,
        "fe80::ff:fe00:a01",
    ] {
        let asks = solicitation(CLIENT, HOST, target).bytes();
        assert_dropped(&mut lb, Port::Tenant, &asks, "arp_not_ours");
        let says = advertisement(CLIENT, HOST, HOST, (TENANT_NIC, target), SOLICITED).bytes();
        let outcome = lb.receive(Port::Tenant, &says);
        assert_eq!(outcome.action, Action::Drop, "{outcome:?}");
    }
    for target in [OWN, "fd00:32::111", VIP, "fe80::ff:fe00:b01"] {
        let asks = solicitation(KAS_MAC, NODE, target).bytes();
        assert_passed(&mut lb, Port::Mgmt, &asks);
    }
    let says = advertisement(KAS_MAC, NODE, NODE, (MGMT_NIC, OWN), SOLICITED).bytes();
    assert_passed(&mut lb, Port::Mgmt, &says);
}

/// No host makes itself our router.
#[privileged_test]
fn routers_are_not_believed() {
    let mut lb = DataPlane::new(CONFIG);
    let mut dropped = |port, frame: Frame| {
        let outcome = lb.receive(port, &frame.bytes());
        assert_eq!(outcome.action, Action::Drop, "{outcome:?}");
    };
    dropped(Port::Tenant, router_advertisement(CLIENT, CLIENT_LINK));
    let vip = (TENANT_NIC, VIP);
    dropped(
        Port::Tenant,
        redirect(CLIENT, CLIENT_LINK, vip, CLIENT_LINK, NODE),
    );
    let link = link_local(MGMT_NIC);
    for to in [SNAT, &link] {
        let to = (MGMT_NIC, to);
        dropped(
            Port::Mgmt,
            redirect(KAS_MAC, NODE_LINK, to, NODE_LINK, HOST),
        );
        // An advertisement to one of our addresses alone.
        let alone = icmp(NODE_LINK, to.1, (134, 0), 1800)
            .ttl(255)
            .payload(&[0; 8]);
        dropped(Port::Mgmt, alone.between(KAS_MAC, MGMT_NIC));
    }
    // What the host makes of those to all nodes is its own business.
    let outcome = lb.receive(
        Port::Mgmt,
        &router_advertisement(KAS_MAC, NODE_LINK).bytes(),
    );
    assert_eq!(outcome.action, Action::Pass, "{outcome:?}");
}

#[privileged_test]
fn a_cell_speaks_for_its_own_addresses_only() {
    let mut lb = DataPlane::new(CONFIG);
    let link = link_local(MGMT_NIC);
    let forwarded = ["cell", "mgmt", "forwarded"];
    for sender in [SNAT, &link] {
        let asks = solicitation(MGMT_NIC, sender, NODE);
        assert_sent(&mut lb, Port::Cell("mgmt"), &asks, forwarded);
        let asks = solicitation_to(MGMT_NIC, sender, NODE, (KAS_MAC, NODE));
        assert_sent(&mut lb, Port::Cell("mgmt"), &asks, forwarded);
        let says = advertisement(
            MGMT_NIC,
            sender,
            SNAT,
            (KAS_MAC, NODE),
            SOLICITED | OVERRIDE,
        );
        assert_sent(&mut lb, Port::Cell("mgmt"), &says, forwarded);
    }
    let all = (group_mac("ff02::1".parse().expect("an address")), "ff02::1");
    let says = advertisement(MGMT_NIC, SNAT, SNAT, all, OVERRIDE);
    assert_sent(&mut lb, Port::Cell("mgmt"), &says, forwarded);

    for sender in [
        "fd00:32::51",
        VIP,
        NODE,
        OWN,
        "fe80::1",
        "fe80::ff:fe00:b01",
    ] {
        let asks = solicitation(MGMT_NIC, sender, NODE).bytes();
        assert_dropped(&mut lb, Port::Cell("mgmt"), &asks, "cell_forbidden");
        let says = advertisement(MGMT_NIC, sender, sender, all, OVERRIDE).bytes();
        assert_dropped(&mut lb, Port::Cell("mgmt"), &says, "cell_forbidden");
    }
}

/// Whatever else a kernel says of itself stays where it is.
#[privileged_test]
fn a_cell_says_nothing_else() {
    let mut lb = DataPlane::new(CONFIG);
    let link = link_local(MGMT_NIC);
    let group = solicited_node(SNAT).to_string();
    let routers = "ff02::2";
    let mac = |text: &str| group_mac(text.parse().expect("an address"));
    let says = |from: &str, to: &str, kind: u8, body: &[u8]| {
        let message = icmp(from, to, (kind, 0), 0).ttl(255).payload(body);
        message.between(MGMT_NIC, mac(to)).bytes()
    };
    for bytes in [
        says(&link, routers, 133, &[]),
        says("::", routers, 133, &[]),
        says(&link, &group, 131, &[0; 16]),
        says(&link, "ff02::1", 134, &[0; 8]),
        says(SNAT, "ff02::1", 137, &[0; 32]),
        says(SNAT, "ff02::1", 128, b"ping"),
    ] {
        assert_dropped(&mut lb, Port::Cell("mgmt"), &bytes, "cell_forbidden");
    }
    let frame = tcp(&snat(2000), "[fd00:32::105]:22", SYN_ONLY);
    let bytes = frame.between(MGMT_NIC, KAS_MAC).bytes();
    assert_dropped(&mut lb, Port::Cell("mgmt"), &bytes, "cell_forbidden");
}

/// A message about groups (RFC 3810): 130 asks who is in one, 143 answers.
fn of_groups(from: (Mac, &str), to: &str, kind: u8) -> Frame {
    let group = [
        4, 0, 0, 0, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0x50,
    ];
    let message = icmp(from.1, to, (kind, 0), 1).ttl(1).payload(&group);
    let mac = group_mac(to.parse().expect("an address"));
    let message = message.extension(Extension::HopByHop(vec![5, 2, 0, 0]));
    message.between(from.0, mac)
}

/// Which groups a cell is in, a switch must know, or it keeps from it who asks them.
#[privileged_test]
fn a_cell_says_which_groups_it_is_in() {
    let mut lb = DataPlane::new(CONFIG);
    let [tenant, mgmt] = [TENANT_NIC, MGMT_NIC].map(link_local);
    let report = of_groups((MGMT_NIC, &mgmt), "ff02::16", 143);
    let forwarded = ["cell", "mgmt", "forwarded"];
    assert_sent(&mut lb, Port::Cell("mgmt"), &report, forwarded);
    for (sender, kind) in [("::", 143), (&tenant, 143), (NODE, 143), (&mgmt, 130)] {
        let other = of_groups((MGMT_NIC, sender), "ff02::16", kind).bytes();
        assert_dropped(&mut lb, Port::Cell("mgmt"), &other, "cell_forbidden");
    }
    let asks = of_groups((CLIENT, CLIENT_LINK), "ff02::1", 130);
    let delivered = ["nic", "tenant-a", "delivered"];
    assert_sent(&mut lb, Port::Tenant, &asks, delivered);
    let report = of_groups((CLIENT, CLIENT_LINK), "ff02::16", 143).bytes();
    assert_dropped(&mut lb, Port::Tenant, &report, "group_address");
    let asks = of_groups((KAS_MAC, NODE_LINK), "ff02::1", 130).bytes();
    assert_passed(&mut lb, Port::Mgmt, &asks);
}

#[privileged_test]
fn a_truncated_message_reaches_nobody() {
    let mut lb = DataPlane::new(CONFIG);
    let whole = solicitation(CLIENT, HOST, VIP).bytes();
    for length in 14..whole.len() {
        let outcome = lb.receive(Port::Tenant, &whole[..length]);
        assert_eq!(outcome.action, Action::Drop, "{length} bytes: {outcome:?}");
    }
}
