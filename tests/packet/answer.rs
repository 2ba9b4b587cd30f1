//! Who cannot be served is told so; who is denied is not, unless the configuration says so.

use lb_tests::{
    frames::packet::{flags::*, tag, tcp, udp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::given::*;

/// A pool without backends for TCP and UDP, and a service that takes one client only.
const CONFIG_EMPTY: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  none: { network: mgmt, backends: [] }
services:
  empty:  { network: tenant-a, listen: ["192.168.203.110:80/tcp", "192.168.203.110:53/udp"], pool: none }
  closed: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: none, allow: [192.168.203.51/32] }
"#;

const EMPTY: &str = "192.168.203.110:80";

#[privileged_test]
fn a_syn_to_an_empty_pool_is_reset() {
    let mut lb = DataPlane::new(CONFIG_EMPTY);
    let syn = request(CLIENT_A, EMPTY, SYN_ONLY).numbers(1000, 0);
    let answer = assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "no_backend");
    let wanted = tcp(EMPTY, CLIENT_A, RST_ACK).numbers(0, 1001);
    assert_reset(&answer, &wanted.between(TENANT_NIC, CLIENT));
}

#[privileged_test]
fn the_rest_of_an_unknown_connection_is_reset_from_either_side() {
    let mut lb = DataPlane::new(CONFIG);
    let data = request(CLIENT_A, API, ACK_ONLY)
        .numbers(1000, 5000)
        .payload(&[7; 1000]);
    let answer = assert_refused(&mut lb, Port::Tenant, &data.bytes(), "no_flow");
    assert_eq!(answer.len(), 60, "the data is cut off");
    let wanted = tcp(API, CLIENT_A, RST_ONLY).numbers(5000, 0);
    assert_reset(&answer, &wanted.between(TENANT_NIC, CLIENT));
    let data = reply(1024, ACK_ONLY).numbers(5000, 1000).payload(&[7; 100]);
    let answer = assert_refused(&mut lb, Port::Mgmt, &data.bytes(), "reply_mismatch");
    let wanted = tcp(&snat(1024), KAS, RST_ONLY).numbers(1000, 0);
    assert_reset(&answer, &wanted.between(MGMT_NIC, KAS_MAC));
}

#[privileged_test]
fn a_datagram_that_cannot_be_served_comes_back_as_unreachable() {
    let mut lb = DataPlane::new(CONFIG_EMPTY);
    for payload in [0, 1, 600] {
        let query = udp(CLIENT_A, DNS)
            .between(CLIENT, TENANT_NIC)
            .payload(&vec![7; payload]);
        let bytes = query.bytes();
        let answer = assert_refused(&mut lb, Port::Tenant, &bytes, "no_backend");
        assert_eq!(answer.len(), 70);
        assert_eq!(answer[..12], [CLIENT.bytes(), TENANT_NIC.bytes()].concat());
        assert_eq!(answer[26..34], [192, 168, 203, 110, 192, 168, 203, 50]);
        assert_eq!((answer[23], &answer[34..36]), (1, [3, 3].as_slice()));
        assert_eq!(answer[42..], bytes[14..42], "it quotes the datagram");
        for (from, to) in [(14, 34), (34, 70)] {
            assert_eq!(
                lb_common::wire::checksum::full(&answer[from..to], 0).raw(),
                0
            );
        }
    }
}

#[privileged_test]
fn an_answer_goes_back_with_its_tag() {
    let mut lb =
        DataPlane::new(&CONFIG_EMPTY.replace("interface: eth0,", "interface: eth0, vlan: 2003,"));
    let syn = request(CLIENT_A, EMPTY, SYN_ONLY).numbers(1000, 0);
    let outcome = lb.receive(Port::Tenant, &tag(&syn.bytes(), 2003));
    assert_eq!(outcome.action, Action::Transmit);
    let (tci, answer) = untagged(&outcome.frame);
    assert_eq!(tci, Some(2003));
    let wanted = tcp(EMPTY, CLIENT_A, RST_ACK).numbers(0, 1001);
    assert_reset(&answer, &wanted.between(TENANT_NIC, CLIENT));
}

#[privileged_test]
fn what_policy_denies_is_silent_unless_it_says_reject() {
    let denied = request(CLIENT_A, API, SYN_ONLY).bytes();
    let unknown = request(CLIENT_A, "192.168.203.110:22", SYN_ONLY).bytes();
    let spoofed = request("192.168.204.1:40000", API, SYN_ONLY).bytes();
    let mut lb = DataPlane::new(CONFIG_EMPTY);
    assert_dropped(&mut lb, Port::Tenant, &denied, "denied");
    assert_dropped(&mut lb, Port::Tenant, &unknown, "no_service");
    let reject = CONFIG_EMPTY
        .replace(
            "allow: [192.168.203.51/32]",
            "allow: [192.168.203.51/32], reject: true",
        )
        .replace(
            "prefixes: [192.168.203.0/24]",
            "prefixes: [192.168.203.0/24], reject: true",
        );
    let mut lb = DataPlane::new(&reject);
    assert_refused(&mut lb, Port::Tenant, &denied, "denied");
    assert_refused(&mut lb, Port::Tenant, &unknown, "no_service");
    assert_dropped(&mut lb, Port::Tenant, &spoofed, "spoofed");
    let elsewhere = request(CLIENT_A, "192.168.203.1:22", SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Tenant, &elsewhere, "not_declared");
}

/// About a thousand at once for each CPU; then silence, so that nobody is made a reflector.
#[privileged_test]
fn answers_have_a_rate() {
    let mut lb = DataPlane::new(CONFIG_EMPTY);
    let syn = request(CLIENT_A, EMPTY, SYN_ONLY).bytes();
    let mut answered = 0;
    for _ in 0..20_000 {
        let ((action, _), _) = lb.run(Port::Tenant, &syn, 1);
        answered += u32::from(action == Action::Transmit);
    }
    assert!(
        (1000..20_000).contains(&answered),
        "{answered} of 20000 answered"
    );
    let counters = lb.counters();
    let count = |verdict| counters[&("nic", "tenant-a".to_owned(), verdict)];
    assert_eq!(count("refused: no_backend"), u64::from(answered));
    assert_eq!(count("refused: no_backend") + count("no_backend"), 20_000);
}

/// A reset as it must be but for what the test's own builder fills in otherwise: identification and
/// window; what stands behind it is padding.
fn assert_reset(found: &[u8], wanted: &lb_tests::frames::packet::Frame) {
    let wanted = wanted.bytes();
    let fields = [0..18, 20..24, 26..48];
    for field in fields {
        assert_eq!(
            found[field.clone()],
            wanted[field.clone()],
            "bytes {field:?} of {found:02x?}"
        );
    }
    assert_eq!(found[48..50], [0, 0], "window");
}
