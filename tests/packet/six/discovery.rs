//! Neighbour discovery goes into the cell that owns the target, and out of the cell that speaks for its own.

use lb_common::addr::Mac;
use lb_tests::six::{
    Extension, Frame,
    discovery::{
        OVERRIDE, SOLICITED, advertisement, group_mac, redirect, router_advertisement,
        solicitation, solicitation_to, solicited_node,
    },
    icmp,
};

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

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a_question_for_our_addresses_goes_into_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let tenant = link_local(TENANT_NIC);
    let delivered = ["nic", "tenant-a", "delivered"];
    for sender in [HOST, CLIENT_LINK, "::"] {
        for target in [VIP, &tenant] {
            let asks = solicitation(CLIENT, sender, target);
            assert_sent(&mut lb, Port::Tenant, &asks, delivered);
        }
    }
    // Whether it is still there.
    let asks = solicitation_to(CLIENT, HOST, VIP, (TENANT_NIC, VIP));
    assert_sent(&mut lb, Port::Tenant, &asks, delivered);
    let mgmt = link_local(MGMT_NIC);
    for target in [SNAT, &mgmt] {
        let asks = solicitation(KAS_MAC, NODE, target);
        assert_sent(&mut lb, Port::Mgmt, &asks, ["nic", "mgmt", "delivered"]);
    }
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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

/// A switch that knows who is in the group may ask that one alone (RFC 6085).
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a_question_to_a_group_may_come_in_a_frame_to_us_alone() {
    let mut lb = DataPlane::new(CONFIG);
    let asks = |from, sender, target: &str, nic| {
        let group = solicited_node(target).to_string();
        solicitation_to(from, sender, target, (nic, &group))
    };
    let tenant = asks(CLIENT, HOST, VIP, TENANT_NIC);
    let delivered = ["nic", "tenant-a", "delivered"];
    assert_sent(&mut lb, Port::Tenant, &tenant, delivered);
    let link = link_local(MGMT_NIC);
    for target in [SNAT, &link] {
        let mgmt = asks(KAS_MAC, NODE, target, MGMT_NIC);
        assert_sent(&mut lb, Port::Mgmt, &mgmt, ["nic", "mgmt", "delivered"]);
    }
    let others = asks(CLIENT, HOST, OWN, TENANT_NIC).bytes();
    assert_dropped(&mut lb, Port::Tenant, &others, "arp_not_ours");
    let hosts = asks(KAS_MAC, NODE, OWN, MGMT_NIC).bytes();
    assert_passed(&mut lb, Port::Mgmt, &hosts);
    let says = advertisement(CLIENT, HOST, HOST, (TENANT_NIC, "ff02::1"), OVERRIDE);
    assert_sent(&mut lb, Port::Tenant, &says, delivered);
}

/// A tenant's router or worker that says where it is now; on mgmt the host must hear it.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn who_says_where_he_is_now_is_heard() {
    let mut lb = DataPlane::new(CONFIG);
    let all = (group_mac("ff02::1".parse().expect("an address")), "ff02::1");
    let says = advertisement(CLIENT, "fd00:203::1", "fd00:203::1", all, OVERRIDE);
    let delivered = ["nic", "tenant-a", "delivered"];
    assert_sent(&mut lb, Port::Tenant, &says, delivered);
    let says = advertisement(KAS_MAC, NODE, NODE, all, OVERRIDE);
    assert_passed(&mut lb, Port::Mgmt, &says.bytes());
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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

/// Nobody makes himself our router.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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
            .hops(255)
            .payload(&[0; 8]);
        dropped(Port::Mgmt, alone.between(KAS_MAC, MGMT_NIC));
    }
    // What the host makes of those to everybody is its own business.
    let outcome = lb.receive(
        Port::Mgmt,
        &router_advertisement(KAS_MAC, NODE_LINK).bytes(),
    );
    assert_eq!(outcome.action, Action::Pass, "{outcome:?}");
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a_cell_says_nothing_else() {
    let mut lb = DataPlane::new(CONFIG);
    let link = link_local(MGMT_NIC);
    let group = solicited_node(SNAT).to_string();
    let routers = "ff02::2";
    let mac = |text: &str| group_mac(text.parse().expect("an address"));
    let says = |from: &str, to: &str, kind: u8, body: &[u8]| {
        let message = icmp(from, to, (kind, 0), 0).hops(255).payload(body);
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
    let tcp = lb_tests::six::tcp(&snat(2000), "[fd00:32::105]:22", SYN_ONLY);
    let bytes = tcp.between(MGMT_NIC, KAS_MAC).bytes();
    assert_dropped(&mut lb, Port::Cell("mgmt"), &bytes, "cell_forbidden");
}

/// A message about groups (RFC 3810): 130 asks who is in one, 143 answers.
fn of_groups(from: (Mac, &str), to: &str, kind: u8) -> Frame {
    let group = [
        4, 0, 0, 0, 0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0x50,
    ];
    let message = icmp(from.1, to, (kind, 0), 1).hops(1).payload(&group);
    let mac = group_mac(to.parse().expect("an address"));
    let message = message.extension(Extension::HopByHop(vec![5, 2, 0, 0]));
    message.between(from.0, mac)
}

/// Which groups a cell is in, a switch must know, or it keeps from it who asks them.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
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

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a_truncated_message_reaches_nobody() {
    let mut lb = DataPlane::new(CONFIG);
    let whole = solicitation(CLIENT, HOST, VIP).bytes();
    // The target ends at 78; what is behind it is an option, which the cell's kernel judges.
    for length in 14..78 {
        let outcome = lb.receive(Port::Tenant, &whole[..length]);
        assert_eq!(outcome.action, Action::Drop, "{length} bytes: {outcome:?}");
    }
}
