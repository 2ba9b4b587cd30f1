//! ARP goes into the cell that owns the target, and out of the cell that speaks for its own.

use lb_common::addr::Mac;
use lb_tests::{
    packet::{arp, flags::SYN_ONLY},
    program::{Action, CLIENT, DataPlane, MGMT_NIC, Outcome, Port},
};

use super::given::*;

const ASK: u8 = 1;
const ANSWER: u8 = 2;

fn assert_sent(
    lb: &mut DataPlane,
    port: Port,
    frame: &[u8],
    counted: (&'static str, &str, &'static str),
) {
    let (hook, network, verdict) = counted;
    let wanted = Outcome {
        action: Action::Redirect,
        frame: frame.to_vec(),
        counted: (hook, network.to_owned(), verdict),
    };
    assert_eq!(lb.receive(port, frame), wanted);
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn arp_for_our_addresses_goes_into_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let vip = arp(
        ASK,
        CLIENT,
        "192.168.203.50",
        Mac::default(),
        "192.168.203.110",
    );
    assert_sent(
        &mut lb,
        Port::Tenant,
        &vip,
        ("nic", "tenant-a", "delivered"),
    );
    let snat = arp(ASK, KAS_MAC, "10.32.96.105", Mac::default(), "10.32.96.50");
    assert_sent(&mut lb, Port::Mgmt, &snat, ("nic", "mgmt", "delivered"));
    let answer = arp(ANSWER, KAS_MAC, "10.32.96.105", MGMT_NIC, "10.32.96.50");
    assert_sent(&mut lb, Port::Mgmt, &answer, ("nic", "mgmt", "delivered"));
}

/// A tenant's router or worker that says where it is now; on mgmt the host must hear it.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn gratuitous_arp_goes_into_a_tenants_cell_and_passes_on_mgmt() {
    let mut lb = DataPlane::new(CONFIG);
    for kind in [ASK, ANSWER] {
        let gateway = arp(
            kind,
            CLIENT,
            "192.168.203.1",
            Mac::BROADCAST,
            "192.168.203.1",
        );
        let delivered = ("nic", "tenant-a", "delivered");
        assert_sent(&mut lb, Port::Tenant, &gateway, delivered);
        let node = arp(
            kind,
            KAS_MAC,
            "10.32.96.105",
            Mac::BROADCAST,
            "10.32.96.105",
        );
        assert_passed(&mut lb, Port::Mgmt, &node);
    }
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn other_arp_never_leaves_a_tenants_network_and_passes_on_mgmt() {
    let mut lb = DataPlane::new(CONFIG);
    let gateway = arp(
        ASK,
        CLIENT,
        "192.168.203.50",
        Mac::default(),
        "192.168.203.1",
    );
    assert_dropped(&mut lb, Port::Tenant, &gateway, "arp_not_ours");
    let mgmt_address = arp(ASK, CLIENT, "192.168.203.50", Mac::default(), "10.32.96.50");
    assert_dropped(&mut lb, Port::Tenant, &mgmt_address, "arp_not_ours");
    let host = arp(ASK, KAS_MAC, "10.32.96.105", Mac::default(), "10.32.96.10");
    assert_passed(&mut lb, Port::Mgmt, &host);
    let answer = arp(ANSWER, KAS_MAC, "10.32.96.105", MGMT_NIC, "10.32.96.10");
    assert_passed(&mut lb, Port::Mgmt, &answer);
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a_cell_may_only_speak_arp_for_its_own_addresses() {
    let mut lb = DataPlane::new(CONFIG);
    let asks = arp(ASK, MGMT_NIC, "10.32.96.50", Mac::default(), "10.32.96.105");
    assert_sent(
        &mut lb,
        Port::Cell("mgmt"),
        &asks,
        ("cell", "mgmt", "forwarded"),
    );
    let foreign = arp(ASK, MGMT_NIC, "10.32.96.51", Mac::default(), "10.32.96.105");
    assert_dropped(&mut lb, Port::Cell("mgmt"), &foreign, "cell_forbidden");
    let other_network = arp(
        ASK,
        MGMT_NIC,
        "192.168.203.110",
        Mac::default(),
        "10.32.96.105",
    );
    assert_dropped(
        &mut lb,
        Port::Cell("mgmt"),
        &other_network,
        "cell_forbidden",
    );
    let ip = request("10.32.96.50:2000", "10.32.96.105:22", SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Cell("mgmt"), &ip, "cell_forbidden");
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn truncated_arp_is_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    let whole = arp(
        ASK,
        CLIENT,
        "192.168.203.50",
        Mac::default(),
        "192.168.203.110",
    );
    for length in 14..whole.len() {
        assert_dropped(&mut lb, Port::Tenant, &whole[..length], "malformed");
    }
}

/// What looks like ARP for our own address behind another ethertype does not leave.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn arp_behind_another_ethertype_leaves_no_cell() {
    let mut lb = DataPlane::new(CONFIG);
    for ethertype in [0x0800_u16, 0x86dd, 0x8100, 0x88cc] {
        let mut bytes = arp(ASK, MGMT_NIC, "10.32.96.50", Mac::default(), "10.32.96.105");
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        assert_dropped(&mut lb, Port::Cell("mgmt"), &bytes, "cell_forbidden");
    }
}
