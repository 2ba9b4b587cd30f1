//! Quotas: with nothing configured, no network takes the SNAT ports that another one uses too.

use lb_common::maps::quota;
use lb_tests::{
    frames::packet::{flags::*, tag, udp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::model::registry::Kind;

use super::given::{self, Family, request};

/// Two tenants on one trunk whose backends are on one network, which has 640 SNAT ports of each family: 320
/// for each tenant, of which 80 are for half-open connections.
const CONFIG: &str = r#"
version: 1
defaults: { service: { syn_cookies: never } }
networks:
  mgmt:
    role: mgmt
    interface: eth1
    prefixes: [10.32.96.0/20, "fd00:32::/64"]
    snat: [{ address: 10.32.96.50, ports: 2000-2639 }, { address: "fd00:32::50", ports: 2000-2639 }]
  tenant-a: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24, "fd00:203::/64"] }
  tenant-b: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24, "fd00:203::/64"] }
pools:
  kas-4: { network: mgmt, backends: ["10.32.96.105:30918"] }
  kas-6: { network: mgmt, backends: ["[fd00:32::105]:30918"] }
services:
  api-a:  { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-4 }
  api-b:  { network: tenant-b, listen: ["192.168.203.110:6443/tcp"], pool: kas-4 }
  api-a6: { network: tenant-a, listen: ["[fd00:203::110]:6443/tcp"], pool: kas-6 }
  api-b6: { network: tenant-b, listen: ["[fd00:203::110]:6443/tcp"], pool: kas-6 }
"#;

/// What a tenant may have of a family.
const MAX_FLOWS: u16 = 240;

const A: (&str, u16) = ("tenant-a", 2003);
const B: (&str, u16) = ("tenant-b", 2004);

/// A frame of a client with this port, as it arrives on its VLAN.
fn from_client(ip: &Family, client: u16, vlan: u16, flags: u8, numbers: (u32, u32)) -> Vec<u8> {
    let frame = request(&ip.end(ip.host, client), ip.api, flags);
    tag(&frame.numbers(numbers.0, numbers.1).bytes(), vlan)
}

/// The backend's answer to a frame of a flow that was forwarded to it.
fn syn_ack(ip: &Family, sent: &[u8]) -> Vec<u8> {
    let port = u16::from_be_bytes([sent[ip.l4()], sent[ip.l4() + 1]]);
    ip.reply(port, SYN_ACK).numbers(5000, 1001).bytes()
}

/// Opens a connection and completes its handshake; the verdict of the packet that did not get through.
fn open(
    lb: &mut DataPlane,
    ip: &Family,
    (network, vlan): (&str, u16),
    client: u16,
) -> Result<(), &'static str> {
    let outcome = lb.receive(
        Port::Tenant,
        &from_client(ip, client, vlan, SYN_ONLY, (1000, 0)),
    );
    assert_eq!(outcome.counted.1, network);
    if outcome.action != Action::Redirect {
        return Err(outcome.counted.2);
    }
    let back = lb.receive(Port::Mgmt, &syn_ack(ip, &outcome.frame));
    assert_eq!(back.counted.2, "forwarded");
    assert_eq!(untagged(&back.frame).0, Some(vlan));
    let ack = from_client(ip, client, vlan, ACK_ONLY, (1001, 5001));
    let outcome = lb.receive(Port::Tenant, &ack);
    match outcome.action {
        Action::Redirect => Ok(()),
        _ => Err(outcome.counted.2),
    }
}

/// Opens connections until one is refused: how many, and how it ended.
fn open_all(lb: &mut DataPlane, ip: &Family, tenant: (&str, u16)) -> (u16, &'static str) {
    let refused = |client: u16| open(lb, ip, tenant, 10_000 + client).err();
    let mut refusals = (0..).map(refused).enumerate();
    let (opened, verdict) = refusals
        .find_map(|(opened, verdict)| Some((opened, verdict?)))
        .expect("ports have an end");
    (u16::try_from(opened).expect("few"), verdict)
}

#[privileged_test(families)]
fn a_tenant_leaves_another_its_part_of_the_ports(ip: &Family) {
    let mut lb = DataPlane::new(CONFIG);
    let spent = (MAX_FLOWS, "refused: budget_spent");
    assert_eq!(open_all(&mut lb, ip, A), spent);
    assert_eq!(open_all(&mut lb, ip, B), spent);
    // The backend hears nothing of it.
    let syn = from_client(ip, 9000, A.1, SYN_ONLY, (1000, 0));
    let outcome = lb.receive(Port::Tenant, &syn);
    assert_eq!(outcome.counted.2, spent.1, "at the first packet");
    // The other family has ports of its own.
    let other = ip.pick(&Family::V6, &Family::V4);
    assert_eq!(open(&mut lb, other, A, 9000), Ok(()));
}

/// The index of what a tenant has of a family.
fn index(lb: &DataPlane, ip: &Family, (network, _): (&str, u16)) -> u32 {
    let id = |name| {
        let id = lb.ids.get(Kind::Network, name).expect("a network");
        u16::try_from(id).expect("a small number")
    };
    quota::index(id(network), quota::bank(id("mgmt"), ip.pick(false, true)))
}

/// Most, and live.
fn quota_of(lb: &DataPlane, ip: &Family, tenant: (&str, u16)) -> (u16, u16) {
    let quotas = lb.maps.quotas().expect("they are there");
    let quota = quotas.get(index(lb, ip, tenant));
    let short = |number: u32| u16::try_from(number).expect("a small number");
    (short(quota.most), short(quota.live))
}

/// What ends leaves its place, each once; what is half-open has none.
#[privileged_test(families)]
fn a_quota_counts_what_is_in_full_use(ip: &Family) {
    let mut lb = DataPlane::new(CONFIG);
    for client in 0..3 {
        assert_eq!(open(&mut lb, ip, A, 10_000 + client), Ok(()));
    }
    assert_eq!(open(&mut lb, ip, B, 10_000), Ok(()));
    let syn = from_client(ip, 11_000, A.1, SYN_ONLY, (1000, 0));
    assert_eq!(lb.receive(Port::Tenant, &syn).counted.2, "forwarded");
    assert_eq!(quota_of(&lb, ip, A), (MAX_FLOWS, 3));
    assert_eq!(quota_of(&lb, ip, B), (MAX_FLOWS, 1));
    let reset = from_client(ip, 10_001, A.1, RST_ONLY, (1001, 0));
    for _ in 0..2 {
        assert_eq!(lb.receive(Port::Tenant, &reset).counted.2, "forwarded");
        assert_eq!(quota_of(&lb, ip, A), (MAX_FLOWS, 2));
    }
    assert_eq!(quota_of(&lb, ip, B), (MAX_FLOWS, 1));
}

/// A flood of SYNs takes the places of its own ring, and the other tenant has its ports all the same.
#[privileged_test(families)]
fn a_flood_beside_a_spent_quota_leaves_another_its_part(ip: &Family) {
    let mut lb = DataPlane::new(CONFIG);
    for client in 0..MAX_FLOWS - 1 {
        assert_eq!(open(&mut lb, ip, A, 10_000 + client), Ok(()));
    }
    for client in 0..1000 {
        let syn = from_client(ip, 20_000 + client, A.1, SYN_ONLY, (1000, 0));
        assert_eq!(lb.receive(Port::Tenant, &syn).counted.2, "forwarded");
    }
    assert_eq!(
        open_all(&mut lb, ip, B),
        (MAX_FLOWS, "refused: budget_spent")
    );
}

/// What was half-open when the quota was spent does not come into full use.
#[privileged_test(families)]
fn a_handshake_is_asked_again(ip: &Family) {
    let mut lb = DataPlane::new(CONFIG);
    for client in 0..MAX_FLOWS - 1 {
        assert_eq!(open(&mut lb, ip, A, 10_000 + client), Ok(()));
    }
    for client in [9000, 9001] {
        let syn = from_client(ip, client, A.1, SYN_ONLY, (1000, 0));
        let sent = lb.receive(Port::Tenant, &syn).frame;
        let back = lb.receive(Port::Mgmt, &syn_ack(ip, &sent));
        assert_eq!(back.counted.2, "forwarded");
    }
    for (client, verdict) in [(9000, "forwarded"), (9001, "refused: budget_spent")] {
        let ack = from_client(ip, client, A.1, ACK_ONLY, (1001, 5001));
        assert_eq!(lb.receive(Port::Tenant, &ack).counted.2, verdict);
    }
    assert_eq!(quota_of(&lb, ip, A), (MAX_FLOWS, MAX_FLOWS));
}

/// As after an upgrade: flows that are more than the limit which comes then live on, until they end.
#[privileged_test(families)]
fn flows_above_a_new_quota_live_on(ip: &Family) {
    let mut lb = DataPlane::new(CONFIG);
    for client in 0..5 {
        assert_eq!(open(&mut lb, ip, A, 10_000 + client), Ok(()));
    }
    let index = index(&lb, ip, A);
    let quotas = lb.maps.quotas().expect("they are there");
    quotas.set_most(index, 2).expect("a limit");
    let spent = Err("refused: budget_spent");
    assert_eq!(open(&mut lb, ip, A, 11_000), spent);
    for client in 0..5 {
        let data = from_client(ip, 10_000 + client, A.1, ACK_ONLY, (1001, 5001));
        assert_eq!(lb.receive(Port::Tenant, &data).counted.2, "forwarded");
    }
    for client in 0..3 {
        assert_eq!(open(&mut lb, ip, A, 11_000), spent, "{client} ended");
        let reset = from_client(ip, 10_000 + client, A.1, RST_ONLY, (1001, 0));
        assert_eq!(lb.receive(Port::Tenant, &reset).counted.2, "forwarded");
    }
    assert_eq!(
        open(&mut lb, ip, A, 11_000),
        spent,
        "as many as there may be"
    );
    let reset = from_client(ip, 10_003, A.1, RST_ONLY, (1001, 0));
    assert_eq!(lb.receive(Port::Tenant, &reset).counted.2, "forwarded");
    assert_eq!(open(&mut lb, ip, A, 11_000), Ok(()));
}

/// Of UDP an answered query counts, and one more is refused at once.
#[privileged_test]
fn answered_queries_count() {
    let dns = "services:\n  dns-a: { network: tenant-a, listen: [\"192.168.203.110:53/udp\"], pool: kas-4 }\n";
    let mut lb = DataPlane::new(&CONFIG.replace("services:\n", dns));
    // 320 ports less a quarter each for half-open connections and for UDP.
    assert_eq!(quota_of(&lb, &Family::V4, A), (160, 0));
    let index = index(&lb, &Family::V4, A);
    let quotas = lb.maps.quotas().expect("they are there");
    quotas.set_most(index, 2).expect("a limit");
    let query = |client: u16| {
        let query = udp(&format!("192.168.203.50:{client}"), given::DNS);
        tag(&query.between(CLIENT, TENANT_NIC).bytes(), A.1)
    };
    for client in [9000, 9001] {
        let sent = lb.receive(Port::Tenant, &query(client)).frame;
        let port = u16::from_be_bytes([sent[34], sent[35]]);
        let answer = udp(given::KAS, &given::snat(port)).between(given::KAS_MAC, MGMT_NIC);
        let outcome = lb.receive(Port::Mgmt, &answer.bytes());
        assert_eq!(outcome.counted.2, "forwarded");
    }
    assert_eq!(quota_of(&lb, &Family::V4, A), (2, 2));
    let outcome = lb.receive(Port::Tenant, &query(9002));
    assert_eq!(outcome.counted.2, "refused: budget_spent");
    let outcome = lb.receive(Port::Tenant, &query(9001));
    assert_eq!(outcome.counted.2, "forwarded", "of a flow");
}

/// As after a kill: a count below zero refuses no flow.
#[privileged_test]
fn a_count_below_zero_is_no_spent_quota() {
    let mut lb = DataPlane::new(CONFIG);
    let index = index(&lb, &Family::V4, A);
    lb.maps.quotas().expect("they are there").add(index, -2);
    for client in 0..3 {
        assert_eq!(open(&mut lb, &Family::V4, A, 10_000 + client), Ok(()));
    }
    assert_eq!(quota_of(&lb, &Family::V4, A), (MAX_FLOWS, 1));
}

/// Of IPv4 only one tenant has services here: its ports are not shared, and have no limit.
#[privileged_test]
fn what_is_not_shared_is_without_a_limit() {
    let alone = CONFIG
        .replace(
            "  api-b:  { network: tenant-b",
            "  api-b:  { network: tenant-a",
        )
        .replace(
            "[\"192.168.203.110:6443/tcp\"], pool: kas-4 }\n  api-a6",
            "[\"192.168.203.111:6443/tcp\"], pool: kas-4 }\n  api-a6",
        );
    let mut lb = DataPlane::new(&alone);
    assert_eq!(quota_of(&lb, &Family::V4, A), (0, 0));
    assert_eq!(quota_of(&lb, &Family::V6, A), (MAX_FLOWS, 0));
    assert_eq!(
        open_all(&mut lb, &Family::V4, A),
        (640, "refused: snat_exhausted")
    );
}

/// With `max_flows` of its own a network has that, and the other what is left.
#[privileged_test]
fn what_is_written_holds_instead() {
    let written = CONFIG.replace("tenant-a: { role", "tenant-a: { max_flows: 300, role");
    let mut lb = DataPlane::new(&written);
    assert_eq!(quota_of(&lb, &Family::V4, A), (0, 0));
    // 640 - 300 - 80, of which a quarter is for half-open connections.
    assert_eq!(quota_of(&lb, &Family::V4, B), (195, 0));
    let spent = |most| (most, "refused: budget_spent");
    assert_eq!(open_all(&mut lb, &Family::V4, A), spent(300));
    assert_eq!(open_all(&mut lb, &Family::V4, B), spent(195));
}
