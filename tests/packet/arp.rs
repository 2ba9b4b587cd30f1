//! ARP for our addresses is answered, answers to ours go into the cell, and out of a cell goes what speaks for its
//! own.

use std::time::Instant;

use lb_common::{
    addr::Mac,
    rate::{NOTICES, QUESTIONS, REPLIES},
};
use lb_tests::{
    frames::packet::{arp, flags::SYN_ONLY},
    product::program::{Action, CLIENT, DataPlane, MGMT_NIC, Outcome, Port, TENANT_NIC},
};
use lb_user::{dataplane::attach::Mode, model::registry::Kind};

use super::{enter::most_within, given::*};

const ASK: u8 = 1;
const ANSWER: u8 = 2;

const HOST: &str = "192.168.203.50";
const VIP: &str = "192.168.203.110";
const NODE: &str = "10.32.96.105";
const SNAT: &str = "10.32.96.50";

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

/// Asserts that a frame of the port's network becomes this answer.
fn assert_answered(lb: &mut DataPlane, port: Port, frame: &[u8], wanted: Vec<u8>) {
    let network = match port {
        Port::Mgmt => "mgmt",
        _ => "tenant-a",
    };
    let wanted = Outcome {
        action: Action::Transmit,
        frame: wanted,
        counted: ("nic", network.to_owned(), "transmitted"),
    };
    assert_eq!(lb.receive(port, frame), wanted);
}

/// The request of a station of the tenant for its VIP, and its answer.
fn asked_by(sender: &str) -> [Vec<u8>; 2] {
    [
        arp(ASK, CLIENT, sender, Mac::default(), VIP),
        arp(ANSWER, TENANT_NIC, VIP, CLIENT, sender),
    ]
}

#[privileged_test]
fn a_request_for_an_address_of_ours_is_answered() {
    let mut lb = DataPlane::new(CONFIG);
    // A probe for an address that is in use, too (RFC 5227 section 2.1.1).
    for sender in [HOST, "0.0.0.0"] {
        let [request, answer] = asked_by(sender);
        assert_answered(&mut lb, Port::Tenant, &request, answer);
    }
    let snat = arp(ASK, KAS_MAC, NODE, Mac::default(), SNAT);
    let answer = arp(ANSWER, MGMT_NIC, SNAT, KAS_MAC, NODE);
    assert_answered(&mut lb, Port::Mgmt, &snat, answer);
    // The station looks whether it is still there.
    let [mut request, answer] = asked_by(HOST);
    request[..6].copy_from_slice(&TENANT_NIC.bytes());
    assert_answered(&mut lb, Port::Tenant, &request, answer);
}

/// A local stack may be behind the NIC, and a veth may lose `XDP_TX`.
#[privileged_test]
fn an_answer_to_a_local_stack_is_redirected() {
    for mode in [Mode::Native, Mode::Generic] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        let [request, answer] = asked_by(HOST);
        let wanted = Outcome {
            action: Action::Redirect,
            frame: answer,
            counted: ("nic", "tenant-a".to_owned(), "returned"),
        };
        assert_eq!(lb.receive(Port::Tenant, &request), wanted, "{mode:?}");
    }
}

/// Padding stays, up to what the shortest frame has of it.
#[privileged_test]
fn an_answer_is_no_longer_than_the_shortest_frame() {
    let mut lb = DataPlane::new(CONFIG);
    for (length, wanted) in [(42, 42), (43, 43), (60, 60), (61, 60), (1000, 60)] {
        let [mut request, mut answer] = asked_by(HOST);
        request.resize(length, 7);
        answer.resize(wanted, 7);
        assert_answered(&mut lb, Port::Tenant, &request, answer);
    }
}

#[privileged_test]
fn a_vip_is_answered_for_without_a_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let id = lb.ids.get(Kind::Network, "tenant-a").expect("a network");
    let mut network = lb.maps.networks.get(&id, 0).expect("its record");
    network.cell_ifindex = 0;
    lb.maps.networks.set(id, &network, 0).expect("a write");
    let [request, answer] = asked_by(HOST);
    assert_answered(&mut lb, Port::Tenant, &request, answer);
}

#[privileged_test]
fn what_no_station_of_the_network_sends_is_forged() {
    let mut lb = DataPlane::new(CONFIG);
    let [request, _] = asked_by(HOST);
    let group = Mac::new([3, 0, 0, 0, 0xc, 1]);
    for (source, sender, reason) in [
        (CLIENT, KAS_MAC, "neighbour_forged"),
        (KAS_MAC, CLIENT, "neighbour_forged"),
        (group, group, "group_source"),
        (Mac::BROADCAST, Mac::BROADCAST, "group_source"),
        (Mac::default(), Mac::default(), "group_source"),
    ] {
        let mut bytes = request.clone();
        bytes[6..12].copy_from_slice(&source.bytes());
        bytes[22..28].copy_from_slice(&sender.bytes());
        assert_dropped(&mut lb, Port::Tenant, &bytes, reason);
    }
    let mut forged = |bytes: &[u8]| {
        assert_dropped(&mut lb, Port::Tenant, bytes, "neighbour_forged");
    };
    // Another network, the ends of the prefix, what no host has; and no reply comes from 0.0.0.0.
    for sender in [
        "1.2.3.4",
        "10.32.96.105",
        "192.168.203.0",
        "192.168.203.255",
        "192.168.204.1",
        "127.0.0.1",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        let [request, _] = asked_by(sender);
        forged(&request);
        forged(&arp(ANSWER, CLIENT, sender, TENANT_NIC, VIP));
        forged(&arp(ASK, CLIENT, sender, Mac::BROADCAST, sender));
    }
    forged(&arp(ANSWER, CLIENT, "0.0.0.0", TENANT_NIC, VIP));
}

/// A station that opens no flows may be on the link all the same: backends and gateways.
#[privileged_test]
fn a_station_that_is_no_source_is_answered() {
    let config = CONFIG
        .replace(
            "prefixes: [192.168.203.0/24]",
            "prefixes: [192.168.203.0/24], sources: [192.168.203.128/25, 172.16.0.0/12]",
        )
        .replace(
            "prefixes: [10.32.96.0/20],",
            "prefixes: [10.32.96.0/20], sources: [10.40.0.0/16],",
        );
    let mut lb = DataPlane::new(&config);
    for sender in [HOST, "192.168.203.130", "172.16.0.1"] {
        let [request, answer] = asked_by(sender);
        assert_answered(&mut lb, Port::Tenant, &request, answer);
    }
    for sender in [NODE, "10.40.0.1"] {
        let request = arp(ASK, KAS_MAC, sender, Mac::default(), SNAT);
        let answer = arp(ANSWER, MGMT_NIC, SNAT, KAS_MAC, sender);
        assert_answered(&mut lb, Port::Mgmt, &request, answer);
    }
    let request = arp(ASK, KAS_MAC, "10.50.0.1", Mac::default(), SNAT);
    assert_dropped(&mut lb, Port::Mgmt, &request, "neighbour_forged");
    let syn = request_of(HOST);
    assert_dropped(&mut lb, Port::Tenant, &syn, "spoofed");
}

fn request_of(client: &str) -> Vec<u8> {
    request(&format!("{client}:40000"), API, SYN_ONLY).bytes()
}

#[privileged_test]
fn an_answer_to_a_question_of_ours_goes_into_the_cell() {
    let mut lb = DataPlane::new(CONFIG);
    let answer = arp(ANSWER, KAS_MAC, NODE, MGMT_NIC, SNAT);
    assert_sent(&mut lb, Port::Mgmt, &answer, ("nic", "mgmt", "delivered"));
    let answer = arp(ANSWER, CLIENT, HOST, TENANT_NIC, VIP);
    let delivered = ("nic", "tenant-a", "delivered");
    assert_sent(&mut lb, Port::Tenant, &answer, delivered);
    // To another station's MAC it is no answer to us; and there is nothing beside questions and answers.
    for target in [CLIENT, Mac::default(), Mac::BROADCAST] {
        let mut answer = arp(ANSWER, CLIENT, HOST, target, VIP);
        answer[..6].copy_from_slice(&TENANT_NIC.bytes());
        assert_dropped(&mut lb, Port::Tenant, &answer, "arp_not_ours");
    }
    for operation in [0, 3, 8] {
        let mut other = arp(ANSWER, CLIENT, HOST, TENANT_NIC, VIP);
        other[21] = operation;
        assert_dropped(&mut lb, Port::Tenant, &other, "arp_not_ours");
    }
}

/// A standby that has taken the VIP as well. The cell's kernel hears it, and does not answer.
#[privileged_test]
fn a_station_with_an_address_of_ours_is_not_answered() {
    let mut lb = DataPlane::new(CONFIG);
    for (kind, to) in [(ASK, Mac::default()), (ANSWER, TENANT_NIC)] {
        let taken = arp(kind, CLIENT, VIP, to, VIP);
        let delivered = ("nic", "tenant-a", "delivered");
        assert_sent(&mut lb, Port::Tenant, &taken, delivered);
    }
}

/// Each kind has a bucket of its own, and each network.
#[privileged_test]
fn answers_have_a_rate_and_what_enters_the_cell_has_others() {
    const FLOOD: u32 = 40_000;
    let mut lb = DataPlane::new(CONFIG);
    let delivered = ("nic", "tenant-a", "delivered");
    let flood = |lb: &mut DataPlane, frame: &[u8], repeat: u32, wanted: Action| {
        let outcomes = (0..FLOOD / repeat).map(|_| lb.run(Port::Tenant, frame, repeat).0.0);
        let as_wanted = outcomes.filter(|action| *action == wanted).count();
        u32::try_from(as_wanted).expect("a count")
    };
    let [asks, _] = asked_by(HOST);
    let begun = Instant::now();
    let answered = flood(&mut lb, &asks, 1, Action::Transmit);
    let most = most_within(QUESTIONS, begun.elapsed());
    let limits = u64::from(QUESTIONS.burst)..=most;
    assert!(
        limits.contains(&u64::from(answered)),
        "{answered} of {most}"
    );
    let begun = Instant::now();
    let notice = arp(ASK, CLIENT, HOST, Mac::BROADCAST, HOST);
    assert_sent(&mut lb, Port::Tenant, &notice, delivered);
    flood(&mut lb, &notice, 1000, Action::Redirect);
    let reply = arp(ANSWER, CLIENT, HOST, TENANT_NIC, VIP);
    assert_sent(&mut lb, Port::Tenant, &reply, delivered);
    flood(&mut lb, &reply, 1000, Action::Redirect);

    let counters = lb.counters();
    let count = |verdict| counters[&("nic", "tenant-a".to_owned(), verdict)];
    assert_eq!(count("transmitted"), u64::from(answered));
    assert_eq!(count("rate_limited"), u64::from(FLOOD - answered));
    assert_eq!(
        count("delivered") + count("cell_rate"),
        u64::from(2 * FLOOD + 2)
    );
    let most = most_within(NOTICES, begun.elapsed()) + most_within(REPLIES, begun.elapsed());
    assert!(count("delivered") <= most, "{counters:?}");
    let snat = arp(ASK, KAS_MAC, NODE, Mac::default(), SNAT);
    let answer = arp(ANSWER, MGMT_NIC, SNAT, KAS_MAC, NODE);
    assert_answered(&mut lb, Port::Mgmt, &snat, answer);
}

/// A tenant's router or worker that says where it is now; on mgmt the host must hear it.
#[privileged_test]
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
        let node = arp(kind, KAS_MAC, NODE, Mac::BROADCAST, NODE);
        assert_passed(&mut lb, Port::Mgmt, &node);
    }
}

#[privileged_test]
fn other_arp_never_leaves_a_tenants_network_and_passes_on_mgmt() {
    let mut lb = DataPlane::new(CONFIG);
    let gateway = arp(ASK, CLIENT, HOST, Mac::default(), "192.168.203.1");
    assert_dropped(&mut lb, Port::Tenant, &gateway, "arp_not_ours");
    let mgmt_address = arp(ASK, CLIENT, HOST, Mac::default(), SNAT);
    assert_dropped(&mut lb, Port::Tenant, &mgmt_address, "arp_not_ours");
    let host = arp(ASK, KAS_MAC, NODE, Mac::default(), "10.32.96.10");
    assert_passed(&mut lb, Port::Mgmt, &host);
    let answer = arp(ANSWER, KAS_MAC, NODE, MGMT_NIC, "10.32.96.10");
    assert_passed(&mut lb, Port::Mgmt, &answer);
    // What is not about IPv4 and MACs has its addresses elsewhere.
    for byte in 14..20 {
        let [mut asks, _] = asked_by(HOST);
        asks[byte] ^= 4;
        assert_dropped(&mut lb, Port::Tenant, &asks, "arp_not_ours");
        let mut asks = arp(ASK, KAS_MAC, NODE, Mac::default(), SNAT);
        asks[byte] ^= 4;
        assert_passed(&mut lb, Port::Mgmt, &asks);
    }
}

#[privileged_test]
fn a_cell_may_only_speak_arp_for_its_own_addresses() {
    let mut lb = DataPlane::new(CONFIG);
    let asks = arp(ASK, MGMT_NIC, SNAT, Mac::default(), NODE);
    assert_sent(
        &mut lb,
        Port::Cell("mgmt"),
        &asks,
        ("cell", "mgmt", "forwarded"),
    );
    let foreign = arp(ASK, MGMT_NIC, "10.32.96.51", Mac::default(), NODE);
    assert_dropped(&mut lb, Port::Cell("mgmt"), &foreign, "cell_forbidden");
    let other_network = arp(ASK, MGMT_NIC, VIP, Mac::default(), NODE);
    assert_dropped(
        &mut lb,
        Port::Cell("mgmt"),
        &other_network,
        "cell_forbidden",
    );
    let ip = request("10.32.96.50:2000", "10.32.96.105:22", SYN_ONLY).bytes();
    assert_dropped(&mut lb, Port::Cell("mgmt"), &ip, "cell_forbidden");
}

#[privileged_test]
fn truncated_arp_is_malformed() {
    let mut lb = DataPlane::new(CONFIG);
    let [whole, _] = asked_by(HOST);
    for length in 14..whole.len() {
        assert_dropped(&mut lb, Port::Tenant, &whole[..length], "malformed");
    }
}

/// What looks like ARP for our own address behind another ethertype does not leave.
#[privileged_test]
fn arp_behind_another_ethertype_leaves_no_cell() {
    let mut lb = DataPlane::new(CONFIG);
    for ethertype in [0x0800_u16, 0x86dd, 0x8100, 0x88cc] {
        let mut bytes = arp(ASK, MGMT_NIC, SNAT, Mac::default(), NODE);
        bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
        assert_dropped(&mut lb, Port::Cell("mgmt"), &bytes, "cell_forbidden");
    }
}
