//! A tagged network: its tag comes off and goes on again.

use lb_tests::frames::{
    packet::{tag, untagged},
    six::discovery::{OVERRIDE, SOLICITED, advertisement, solicitation},
};

use super::given::*;

#[privileged_test]
fn reliability_21_a_tagged_network_keeps_its_tag() {
    let mut lb =
        DataPlane::new(&CONFIG.replace("interface: eth0,", "interface: eth0, vlan: 2003,"));
    let syn = request(CLIENT_A, API, SYN_ONLY).numbers(CLIENT_ISN, 0);
    let sent = passed_on(&mut lb, Port::Tenant, &tag(&syn.bytes(), 2003));
    let wanted = tcp(&snat(1024), KAS, SYN_ONLY).numbers(CLIENT_ISN, 0);
    assert_frame(&sent, &wanted.ttl(63).between(MGMT_NIC, KAS_MAC));

    let back = reply(1024, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    let outcome = lb.receive(Port::Mgmt, &back.bytes());
    assert_eq!(outcome.action, Action::Redirect);
    let (tci, sent) = untagged(&outcome.frame);
    assert_eq!(tci, Some(2003));
    let wanted = tcp(API, CLIENT_A, SYN_ACK).numbers(BACKEND_ISN, CLIENT_ISN + 1);
    assert_frame(&sent, &wanted.ttl(63).between(TENANT_NIC, CLIENT));

    let asks = solicitation(CLIENT, HOST, VIP).bytes();
    let outcome = lb.receive(Port::Tenant, &tag(&asks, 2003));
    assert_eq!(
        (outcome.action, outcome.counted.2),
        (Action::Transmit, "transmitted")
    );
    let (tci, answer) = untagged(&outcome.frame);
    assert_eq!(tci, Some(2003));
    let flags = SOLICITED | OVERRIDE;
    assert_frame(
        &answer,
        &advertisement(TENANT_NIC, VIP, VIP, (CLIENT, HOST), flags),
    );
    // A tenant of another VLAN is a stranger.
    let outcome = lb.receive(Port::Tenant, &tag(&syn.bytes(), 2004));
    assert_eq!(outcome.action, Action::Pass, "not ours");
}
