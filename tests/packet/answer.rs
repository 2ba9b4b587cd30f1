//! A client that cannot be served gets an answer; one that is denied does not, unless the configuration says so.

use lb_tests::{
    frames::packet::{Frame, flags::*, tag, tcp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};

use super::{given::*, mtu::assert_error};

/// No backends for TCP and UDP, and a service that takes one client only.
fn without_backends(ip: &Family) -> String {
    let rules = ip.pick(
        "allow: [192.168.203.51/32]",
        r#"allow: ["fd00:203::51/128"]"#,
    );
    ip.config
        .replace("pool: dns-a }", "pool: none-a }")
        .replace("pool: kas-a }", &format!("pool: none-a, {rules} }}"))
}

#[privileged_test(families)]
fn a_syn_to_an_empty_pool_is_reset(ip: &Family) {
    let mut lb = DataPlane::new(&without_backends(ip));
    for options in [&[][..], &[2, 4, 5, 0xa0]] {
        let syn = request(ip.client_a, ip.empty, SYN_ONLY)
            .numbers(1000, 0)
            .tcp_options(options);
        let answer = assert_refused(&mut lb, Port::Tenant, &syn.bytes(), "no_backend");
        let wanted = tcp(ip.empty, ip.client_a, RST_ACK).numbers(0, 1001);
        assert_reset(ip, &answer, wanted.between(TENANT_NIC, CLIENT));
    }
}

#[privileged_test(families)]
fn the_rest_of_an_unknown_connection_is_reset_from_either_side(ip: &Family) {
    let mut lb = DataPlane::new(ip.config);
    let data = request(ip.client_a, ip.api, ACK_ONLY)
        .numbers(1000, 5000)
        .payload(&[7; 1000]);
    let answer = assert_refused(&mut lb, Port::Tenant, &data.bytes(), "no_flow");
    assert_eq!(answer.len(), ip.pick(60, 74), "the data is cut off");
    let wanted = tcp(ip.api, ip.client_a, RST_ONLY).numbers(5000, 0);
    assert_reset(ip, &answer, wanted.between(TENANT_NIC, CLIENT));
    let data = ip
        .reply(1024, ACK_ONLY)
        .numbers(5000, 1000)
        .payload(&[7; 100]);
    let answer = assert_refused(&mut lb, Port::Mgmt, &data.bytes(), "reply_mismatch");
    let wanted = tcp(&ip.snat(1024), ip.kas, RST_ONLY).numbers(1000, 0);
    assert_reset(ip, &answer, wanted.between(MGMT_NIC, ip.kas_mac));
}

#[privileged_test(families)]
fn a_datagram_that_cannot_be_served_comes_back_as_unreachable(ip: &Family) {
    let mut lb = DataPlane::new(&without_backends(ip));
    for payload in [0, 1, 600] {
        let query = ip.query(ip.client_a).payload(&vec![7; payload]);
        let answer = assert_refused(&mut lb, Port::Tenant, &query.bytes(), "no_backend");
        assert_error(ip, Port::Tenant, &answer, &query, ip.port_unreachable, 0);
    }
}

#[privileged_test(families)]
fn an_answer_goes_back_with_its_tag(ip: &Family) {
    let config = ip
        .config
        .replace("interface: eth0,", "interface: eth0, vlan: 2003,");
    let mut lb = DataPlane::new(&config);
    let syn = request(ip.client_a, ip.empty, SYN_ONLY).numbers(1000, 0);
    let outcome = lb.receive(Port::Tenant, &tag(&syn.bytes(), 2003));
    assert_eq!(outcome.action, Action::Transmit);
    let (tci, answer) = untagged(&outcome.frame);
    assert_eq!(tci, Some(2003));
    let wanted = tcp(ip.empty, ip.client_a, RST_ACK).numbers(0, 1001);
    assert_reset(ip, &answer, wanted.between(TENANT_NIC, CLIENT));
}

#[privileged_test(families)]
fn what_policy_denies_is_silent_unless_it_says_reject(ip: &Family) {
    let denied = request(ip.client_a, ip.api, SYN_ONLY).bytes();
    let unknown = request(ip.client_a, &ip.end(ip.vip, 22), SYN_ONLY).bytes();
    let outsider = ip.pick("192.168.204.1:40000", "[fd00:204::1]:40000");
    let spoofed = request(outsider, ip.api, SYN_ONLY).bytes();
    let config = without_backends(ip);
    let mut lb = DataPlane::new(&config);
    assert_dropped(&mut lb, Port::Tenant, &denied, "denied");
    assert_dropped(&mut lb, Port::Tenant, &unknown, "no_service");
    let reject = config
        .replace("allow: ", "reject: true, allow: ")
        .replace("interface: eth0,", "interface: eth0, reject: true,");
    let mut lb = DataPlane::new(&reject);
    assert_refused(&mut lb, Port::Tenant, &denied, "denied");
    assert_refused(&mut lb, Port::Tenant, &unknown, "no_service");
    assert_dropped(&mut lb, Port::Tenant, &spoofed, "spoofed");
    let gateway = ip.pick("192.168.203.1:22", "[fd00:203::1]:22");
    let elsewhere = request(ip.client_a, gateway, SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Tenant, &elsewhere, "not_declared");
}

/// About a thousand at once for each CPU; then silence, so that `lb` is made no reflector.
#[privileged_test(families)]
fn answers_have_a_rate(ip: &Family) {
    let mut lb = DataPlane::new(&without_backends(ip));
    let syn = request(ip.client_a, ip.empty, SYN_ONLY).bytes();
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

/// A reset as it must be; what stands behind it is padding.
pub(crate) fn assert_reset(ip: &Family, found: &[u8], wanted: Frame) {
    let wanted = ip.of_ours(wanted.window(0)).bytes();
    let (reset, padding) = found.split_at(wanted.len());
    assert_eq!(reset, wanted, "{found:02x?}");
    // Over IPv4 the shortest frame is longer than a reset, and has there what was there.
    let is_empty = padding.iter().all(|byte| *byte == 0);
    assert!(ip.pick(found.len() <= 60, is_empty), "{found:02x?}");
}
