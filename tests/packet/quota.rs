//! Quotas: with nothing configured, no network takes the SNAT ports that another one uses too.

use lb_common::maps::quota;
use lb_tests::{
    frames::packet::{self, flags::*, tag, udp, untagged},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
};
use lb_user::model::registry::Kind;

use super::{given, six::given as given6};

/// Two tenants on one trunk whose backends are on one network, which has 640 SNAT ports of each family: 320
/// for each tenant, of which 80 are for half-open connections.
const CONFIG: &str = r#"
version: 1
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

/// Frames of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Four,
    Six,
}

impl Family {
    /// A frame of a client with this port, as it arrives on its VLAN.
    fn request(self, client: u16, vlan: u16, flags: u8, numbers: (u32, u32)) -> Vec<u8> {
        let bytes = match self {
            Self::Four => packet::tcp(&format!("192.168.203.50:{client}"), given::API, flags)
                .numbers(numbers.0, numbers.1)
                .between(CLIENT, TENANT_NIC)
                .bytes(),
            Self::Six => packet::tcp(&format!("[fd00:203::50]:{client}"), given6::API, flags)
                .numbers(numbers.0, numbers.1)
                .between(CLIENT, TENANT_NIC)
                .bytes(),
        };
        tag(&bytes, vlan)
    }

    /// The backend's answer to a frame of a flow that was forwarded to it.
    fn syn_ack(self, sent: &[u8]) -> Vec<u8> {
        let port = match self {
            Self::Four => u16::from_be_bytes([sent[34], sent[35]]),
            Self::Six => u16::from_be_bytes([sent[54], sent[55]]),
        };
        match self {
            Self::Four => given::reply(port, SYN_ACK).numbers(5000, 1001).bytes(),
            Self::Six => given6::reply(port, SYN_ACK).numbers(5000, 1001).bytes(),
        }
    }
}

/// Opens a connection and completes its handshake; the verdict of the packet that did not get through.
fn open(
    lb: &mut DataPlane,
    family: Family,
    (network, vlan): (&str, u16),
    client: u16,
) -> Result<(), &'static str> {
    let outcome = lb.receive(
        Port::Tenant,
        &family.request(client, vlan, SYN_ONLY, (1000, 0)),
    );
    assert_eq!(outcome.counted.1, network);
    if outcome.action != Action::Redirect {
        return Err(outcome.counted.2);
    }
    let back = lb.receive(Port::Mgmt, &family.syn_ack(&outcome.frame));
    assert_eq!(back.counted.2, "forwarded");
    assert_eq!(untagged(&back.frame).0, Some(vlan));
    let ack = family.request(client, vlan, ACK_ONLY, (1001, 5001));
    let outcome = lb.receive(Port::Tenant, &ack);
    match outcome.action {
        Action::Redirect => Ok(()),
        _ => Err(outcome.counted.2),
    }
}

/// Opens connections until one is refused: how many, and how it ended.
fn open_all(lb: &mut DataPlane, family: Family, tenant: (&str, u16)) -> (u16, &'static str) {
    let refused = |client: u16| open(lb, family, tenant, 10_000 + client).err();
    let mut refusals = (0..).map(refused).enumerate();
    let (opened, verdict) = refusals
        .find_map(|(opened, verdict)| Some((opened, verdict?)))
        .expect("ports have an end");
    (u16::try_from(opened).expect("few"), verdict)
}

#[privileged_test]
fn a_tenant_leaves_another_its_part_of_the_ports() {
    for family in [Family::Four, Family::Six] {
        let mut lb = DataPlane::new(CONFIG);
        let spent = (MAX_FLOWS, "refused: budget_spent");
        assert_eq!(open_all(&mut lb, family, A), spent, "{family:?}");
        assert_eq!(open_all(&mut lb, family, B), spent, "{family:?}");
        // The backend hears nothing of it.
        let syn = family.request(9000, A.1, SYN_ONLY, (1000, 0));
        let outcome = lb.receive(Port::Tenant, &syn);
        assert_eq!(outcome.counted.2, spent.1, "at the first packet");
        // The other family has ports of its own.
        let other = match family {
            Family::Four => Family::Six,
            Family::Six => Family::Four,
        };
        assert_eq!(open(&mut lb, other, A, 9000), Ok(()));
    }
}

/// The index of what a tenant has of a family.
fn index(lb: &DataPlane, family: Family, (network, _): (&str, u16)) -> u32 {
    let id = |name| {
        let id = lb.ids.get(Kind::Network, name).expect("a network");
        u16::try_from(id).expect("a small number")
    };
    quota::index(id(network), quota::bank(id("mgmt"), family == Family::Six))
}

/// Most, and live.
fn quota_of(lb: &DataPlane, family: Family, tenant: (&str, u16)) -> (u16, u16) {
    let quotas = lb.maps.quotas().expect("they are there");
    let quota = quotas.get(index(lb, family, tenant));
    let short = |number: u32| u16::try_from(number).expect("a small number");
    (short(quota.most), short(quota.live))
}

/// What ends leaves its place, each once; what is half-open has none.
#[privileged_test]
fn a_quota_counts_what_is_in_full_use() {
    for family in [Family::Four, Family::Six] {
        let mut lb = DataPlane::new(CONFIG);
        for client in 0..3 {
            assert_eq!(open(&mut lb, family, A, 10_000 + client), Ok(()));
        }
        assert_eq!(open(&mut lb, family, B, 10_000), Ok(()));
        let syn = family.request(11_000, A.1, SYN_ONLY, (1000, 0));
        assert_eq!(lb.receive(Port::Tenant, &syn).counted.2, "forwarded");
        assert_eq!(quota_of(&lb, family, A), (MAX_FLOWS, 3));
        assert_eq!(quota_of(&lb, family, B), (MAX_FLOWS, 1));
        let reset = family.request(10_001, A.1, RST_ONLY, (1001, 0));
        for _ in 0..2 {
            assert_eq!(lb.receive(Port::Tenant, &reset).counted.2, "forwarded");
            assert_eq!(quota_of(&lb, family, A), (MAX_FLOWS, 2));
        }
        assert_eq!(quota_of(&lb, family, B), (MAX_FLOWS, 1));
    }
}

/// A flood of SYNs takes the places of its own ring, and the other tenant has its ports all the same.
#[privileged_test]
fn a_flood_beside_a_spent_quota_leaves_another_its_part() {
    for family in [Family::Four, Family::Six] {
        let mut lb = DataPlane::new(CONFIG);
        for client in 0..MAX_FLOWS - 1 {
            assert_eq!(open(&mut lb, family, A, 10_000 + client), Ok(()));
        }
        for client in 0..1000 {
            let syn = family.request(20_000 + client, A.1, SYN_ONLY, (1000, 0));
            assert_eq!(lb.receive(Port::Tenant, &syn).counted.2, "forwarded");
        }
        assert_eq!(
            open_all(&mut lb, family, B),
            (MAX_FLOWS, "refused: budget_spent")
        );
    }
}

/// What was half-open when the quota was spent does not come into full use.
#[privileged_test]
fn a_handshake_is_asked_again() {
    for family in [Family::Four, Family::Six] {
        let mut lb = DataPlane::new(CONFIG);
        for client in 0..MAX_FLOWS - 1 {
            assert_eq!(open(&mut lb, family, A, 10_000 + client), Ok(()));
        }
        for client in [9000, 9001] {
            let syn = family.request(client, A.1, SYN_ONLY, (1000, 0));
            let sent = lb.receive(Port::Tenant, &syn).frame;
            let back = lb.receive(Port::Mgmt, &family.syn_ack(&sent));
            assert_eq!(back.counted.2, "forwarded");
        }
        for (client, verdict) in [(9000, "forwarded"), (9001, "refused: budget_spent")] {
            let ack = family.request(client, A.1, ACK_ONLY, (1001, 5001));
            assert_eq!(lb.receive(Port::Tenant, &ack).counted.2, verdict);
        }
        assert_eq!(quota_of(&lb, family, A), (MAX_FLOWS, MAX_FLOWS));
    }
}

/// As after an upgrade: flows that are more than the limit which comes then live on, until they end.
#[privileged_test]
fn flows_above_a_new_quota_live_on() {
    for family in [Family::Four, Family::Six] {
        let mut lb = DataPlane::new(CONFIG);
        for client in 0..5 {
            assert_eq!(open(&mut lb, family, A, 10_000 + client), Ok(()));
        }
        let index = index(&lb, family, A);
        let quotas = lb.maps.quotas().expect("they are there");
        quotas.set_most(index, 2).expect("a limit");
        let spent = Err("refused: budget_spent");
        assert_eq!(open(&mut lb, family, A, 11_000), spent);
        for client in 0..5 {
            let data = family.request(10_000 + client, A.1, ACK_ONLY, (1001, 5001));
            assert_eq!(lb.receive(Port::Tenant, &data).counted.2, "forwarded");
        }
        for client in 0..3 {
            assert_eq!(open(&mut lb, family, A, 11_000), spent, "{client} ended");
            let reset = family.request(10_000 + client, A.1, RST_ONLY, (1001, 0));
            assert_eq!(lb.receive(Port::Tenant, &reset).counted.2, "forwarded");
        }
        assert_eq!(
            open(&mut lb, family, A, 11_000),
            spent,
            "as many as there may be"
        );
        let reset = family.request(10_003, A.1, RST_ONLY, (1001, 0));
        assert_eq!(lb.receive(Port::Tenant, &reset).counted.2, "forwarded");
        assert_eq!(open(&mut lb, family, A, 11_000), Ok(()));
    }
}

/// Of UDP an answered query counts, and one more is refused at once.
#[privileged_test]
fn answered_queries_count() {
    let dns = "services:\n  dns-a: { network: tenant-a, listen: [\"192.168.203.110:53/udp\"], pool: kas-4 }\n";
    let mut lb = DataPlane::new(&CONFIG.replace("services:\n", dns));
    // 320 ports less a quarter each for half-open connections and for UDP.
    assert_eq!(quota_of(&lb, Family::Four, A), (160, 0));
    let index = index(&lb, Family::Four, A);
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
    assert_eq!(quota_of(&lb, Family::Four, A), (2, 2));
    let outcome = lb.receive(Port::Tenant, &query(9002));
    assert_eq!(outcome.counted.2, "refused: budget_spent");
    let outcome = lb.receive(Port::Tenant, &query(9001));
    assert_eq!(outcome.counted.2, "forwarded", "of a flow");
}

/// As after a kill: a count below zero refuses no flow.
#[privileged_test]
fn a_count_below_zero_is_no_spent_quota() {
    let mut lb = DataPlane::new(CONFIG);
    let index = index(&lb, Family::Four, A);
    lb.maps.quotas().expect("they are there").add(index, -2);
    for client in 0..3 {
        assert_eq!(open(&mut lb, Family::Four, A, 10_000 + client), Ok(()));
    }
    assert_eq!(quota_of(&lb, Family::Four, A), (MAX_FLOWS, 1));
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
    assert_eq!(quota_of(&lb, Family::Four, A), (0, 0));
    assert_eq!(quota_of(&lb, Family::Six, A), (MAX_FLOWS, 0));
    assert_eq!(
        open_all(&mut lb, Family::Four, A),
        (640, "refused: snat_exhausted")
    );
}

/// With `max_flows` of its own a network has that, and the other what is left.
#[privileged_test]
fn what_is_written_holds_instead() {
    let written = CONFIG.replace("tenant-a: { role", "tenant-a: { max_flows: 300, role");
    let mut lb = DataPlane::new(&written);
    assert_eq!(quota_of(&lb, Family::Four, A), (0, 0));
    // 640 - 300 - 80, of which a quarter is for half-open connections.
    assert_eq!(quota_of(&lb, Family::Four, B), (195, 0));
    let spent = |most| (most, "refused: budget_spent");
    assert_eq!(open_all(&mut lb, Family::Four, A), spent(300));
    assert_eq!(open_all(&mut lb, Family::Four, B), spent(195));
}
