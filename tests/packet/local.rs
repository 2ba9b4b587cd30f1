//! The local ports of a SNAT address: what the cell's own sockets get and send, and what not.

use std::net::Ipv4Addr;

use lb_common::addr::Mac;
use lb_tests::{
    frames::packet::{Frame, L4, flags::*, icmp, tag, tcp, udp},
    product::program::{Action, DataPlane, MGMT_NIC, Outcome, Port, node_mac},
};
use lb_user::dataplane::attach::Mode;

use super::{
    given::{KAS, KAS_MAC, assert_dropped, assert_frame, assert_passed, snat},
    peers::hear,
};

/// The hub's network has a VIP of its own, so that both kinds of address are in one cell; the other
/// tagged one has the same SNAT address.
const CONFIG: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tagged:   { role: tenant, interface: eth1, vlan: 7, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
pools:
  kas:  { network: mgmt, backends: ["10.32.96.105:30918"] }
services:
  inside: { network: mgmt, listen: ["10.32.96.60:6443/tcp"], pool: kas }
"#;

const LOCAL: &str = "10.32.96.50:64512";
const VIP: &str = "10.32.96.60";
/// The ports of the cell: the first, one between, the last.
const PORTS: [u16; 5] = [57_344, 64_511, 64_512, 65_000, 65_535];
/// What a connection consists of.
const FLAGS: [u8; 6] = [SYN_ONLY, SYN_ACK, ACK_ONLY, FIN_ACK, RST_ONLY, RST_ACK];
const ROUTER_MAC: Mac = node_mac(Ipv4Addr::new(10, 32, 96, 1));

/// A data plane whose cells talk to the node.
fn start(config: &str) -> DataPlane {
    let lb = DataPlane::new(config);
    hear(&lb, &[("mgmt", KAS), ("tagged", KAS)]);
    lb
}

fn outcome(action: Action, frame: Vec<u8>, counted: [&'static str; 3]) -> Outcome {
    let [hook, network, verdict] = counted;
    Outcome {
        action,
        frame,
        counted: (hook, network.to_owned(), verdict),
    }
}

/// From a node to one of our addresses.
fn to_us(frame: Frame) -> Frame {
    frame.between(KAS_MAC, MGMT_NIC)
}

/// From the cell to a node.
fn from_cell(frame: Frame) -> Frame {
    frame.between(MGMT_NIC, KAS_MAC)
}

fn assert_delivered(lb: &mut DataPlane, bytes: &[u8]) {
    let wanted = outcome(
        Action::Redirect,
        bytes.to_vec(),
        ["nic", "mgmt", "delivered"],
    );
    assert_eq!(lb.receive(Port::Mgmt, bytes), wanted);
}

#[privileged_test]
fn a_segment_to_a_local_port_goes_into_the_cell_as_it_is() {
    let mut lb = start(CONFIG);
    for port in PORTS {
        let asks = to_us(tcp(KAS, &snat(port), SYN_ONLY));
        assert_dropped(&mut lb, Port::Mgmt, &asks.bytes(), "reply_mismatch");
        for flags in FLAGS.into_iter().filter(|flags| *flags != SYN_ONLY) {
            let segment = to_us(tcp(KAS, &snat(port), flags)).payload(b"from a node");
            assert_delivered(&mut lb, &segment.bytes());
            assert_delivered(&mut lb, &segment.padding(6).bytes());
        }
    }
    let late = to_us(tcp(KAS, LOCAL, SYN_ACK)).ttl(1);
    assert_delivered(&mut lb, &late.bytes());
}

#[privileged_test]
fn a_segment_of_the_cell_leaves_as_it_is() {
    let mut lb = start(CONFIG);
    for port in PORTS {
        for flags in FLAGS {
            let segment = from_cell(tcp(&snat(port), KAS, flags)).payload(b"from the cell");
            for bytes in [segment.bytes(), segment.padding(6).bytes()] {
                let wanted = ["cell", "mgmt", "forwarded"];
                let wanted = outcome(Action::Redirect, bytes.clone(), wanted);
                assert_eq!(lb.receive(Port::Cell("mgmt"), &bytes), wanted);
            }
        }
    }
    let behind_a_router = tcp(LOCAL, "192.0.2.9:443", SYN_ONLY).between(MGMT_NIC, ROUTER_MAC);
    let outcome = lb.receive(Port::Cell("mgmt"), &behind_a_router.bytes());
    assert_eq!(outcome.counted.2, "forwarded");
    assert_frame(&outcome.frame, &behind_a_router);
}

/// The tag comes off before the cell and goes on behind it, and the network decides whose cell it is.
#[privileged_test]
fn the_tag_of_a_network_stays_outside_its_cell() {
    let mut lb = start(CONFIG);
    let answer = to_us(tcp(KAS, LOCAL, SYN_ACK)).bytes();
    let delivered = ["nic", "tagged", "delivered"];
    assert_eq!(
        lb.receive(Port::Mgmt, &tag(&answer, 7)),
        outcome(Action::Redirect, answer, delivered)
    );
    let asks = from_cell(tcp(LOCAL, KAS, SYN_ONLY)).bytes();
    let forwarded = ["cell", "tagged", "forwarded"];
    assert_eq!(
        lb.receive(Port::Cell("tagged"), &asks),
        outcome(Action::Redirect, tag(&asks, 7), forwarded)
    );
}

/// The ports below are flow ids; what is no plain TCP segment has no port at all.
#[privileged_test]
fn nothing_else_to_a_snat_address_goes_into_the_cell() {
    let mut lb = start(CONFIG);
    for port in [0, 1, 1023, 1024, 57_343] {
        let segment = to_us(tcp(KAS, &snat(port), SYN_ACK)).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &segment, "reply_mismatch");
    }
    let datagram = to_us(udp(KAS, LOCAL));
    assert_dropped(
        &mut lb,
        Port::Mgmt,
        &datagram.clone().bytes(),
        "reply_mismatch",
    );
    let segment = to_us(tcp(KAS, LOCAL, SYN_ACK)).payload(&[7; 20]);
    let whole = segment.bytes();
    let first = segment.clone().fragment(0x2000).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &first, "reply_mismatch");
    let later = segment.clone().fragment(0x0001).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &later, "fragment_early");
    let last = segment.clone().fragment(0x2001).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &last, "fragment_early");
    let options = segment.clone().options(&[1; 4]).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &options, "reply_mismatch");
    let routed = segment.options(&[131, 3, 4, 0]).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &routed, "source_route");
    for length in 14..whole.len() {
        assert_dropped(&mut lb, Port::Mgmt, &whole[..length], "malformed");
    }
    let mut other = whole;
    other[23] = 132;
    assert_dropped(&mut lb, Port::Mgmt, &other, "unsupported_protocol");
}

#[privileged_test]
fn a_vip_has_no_local_ports() {
    let mut lb = start(CONFIG);
    for port in PORTS {
        let vip = format!("{VIP}:{port}");
        let asks = to_us(tcp("10.32.96.7:40000", &vip, SYN_ONLY)).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &asks, "no_service");
        let answers = from_cell(tcp(&vip, KAS, SYN_ACK)).bytes();
        assert_dropped(&mut lb, Port::Cell("mgmt"), &answers, "cell_forbidden");
    }
}

#[privileged_test]
fn nothing_else_of_a_cell_leaves() {
    let mut lb = start(CONFIG);
    let mut forbidden = |bytes: &[u8]| {
        assert_dropped(&mut lb, Port::Cell("mgmt"), bytes, "cell_forbidden");
    };
    for port in [0, 1, 1023, 1024, 57_343] {
        forbidden(&from_cell(tcp(&snat(port), KAS, SYN_ONLY)).bytes());
    }
    // To one of its own addresses, whose traffic never leaves a kernel, and from none of them.
    forbidden(&from_cell(tcp(LOCAL, "10.32.96.60:6443", SYN_ONLY)).bytes());
    forbidden(&from_cell(tcp(LOCAL, "10.32.96.50:1024", SYN_ONLY)).bytes());
    forbidden(&from_cell(tcp("10.32.96.51:64512", KAS, SYN_ONLY)).bytes());
    forbidden(&from_cell(tcp("10.32.96.105:64512", KAS, SYN_ONLY)).bytes());

    forbidden(&from_cell(udp(LOCAL, KAS)).bytes());
    let segment = from_cell(tcp(LOCAL, KAS, ACK_ONLY)).payload(&[7; 16]);
    for field in [0x2000, 0x0001, 0x2001, 0x6000] {
        forbidden(&segment.clone().fragment(field).bytes());
    }
    forbidden(&segment.clone().options(&[1; 4]).bytes());
    forbidden(&segment.clone().tagged(0x8100, 7).bytes());
    let ping = icmp("10.32.96.50", "10.32.96.105", (8, 0), 1).between(MGMT_NIC, KAS_MAC);
    forbidden(&ping.bytes());
    let whole = segment.bytes();
    for length in 14..whole.len() {
        forbidden(&whole[..length]);
    }
    // An IP version, header length and total length that lie; a TCP header that does.
    for (at, byte) in [(14, 0x65), (14, 0x44), (17, 57), (17, 39), (L4 + 12, 0x40)] {
        let mut lying = whole.clone();
        lying[at] = byte;
        forbidden(&lying);
    }
}

/// An address of the host is the host's: its segments pass to it, whatever the port, and no cell has
/// it.
#[privileged_test]
fn local_ports_of_the_host_are_the_hosts() {
    let host = CONFIG
        .replace(
            "interface: eth1, prefixes",
            "interface: eth1, address: host, prefixes",
        )
        .replace(
            "snat: [10.32.96.50] }\n  tagged",
            "snat: [{ address: 10.32.96.50, ports: 20000-20099 }] }\n  tagged",
        );
    for config in [host.replace("10.32.96.60:6443", "10.32.96.50:6443"), host] {
        let mut lb = DataPlane::new(&config);
        for port in PORTS {
            let segment = to_us(tcp(KAS, &snat(port), SYN_ACK)).bytes();
            assert_passed(&mut lb, Port::Mgmt, &segment);
        }
    }
}

fn quote(frame: &Frame) -> Vec<u8> {
    frame.bytes()[14..42].to_vec()
}

/// What the cell has sent may be too big for the way, or find no host there.
#[privileged_test]
fn an_error_about_a_segment_of_the_cell_goes_into_it() {
    let mut lb = start(CONFIG);
    for kind in [(3, 4), (3, 1), (11, 0), (12, 0)] {
        let about = |frame: &Frame| {
            let sent = icmp("10.32.96.1", "10.32.96.50", kind, 1280);
            sent.between(ROUTER_MAC, MGMT_NIC).payload(&quote(frame))
        };
        for port in PORTS {
            assert_delivered(&mut lb, &about(&tcp(&snat(port), KAS, SYN_ONLY)).bytes());
        }
        let fragment = about(&tcp(LOCAL, KAS, SYN_ONLY)).fragment(0x2000).bytes();
        assert_dropped(&mut lb, Port::Mgmt, &fragment, "fragment");
        for other in [
            tcp(&snat(57_343), KAS, SYN_ONLY),
            tcp(&snat(1024), KAS, SYN_ONLY),
            tcp("10.32.96.60:64512", KAS, SYN_ONLY),
            tcp("10.32.96.51:64512", KAS, SYN_ONLY),
            udp(LOCAL, KAS),
        ] {
            let bytes = about(&other).bytes();
            assert_dropped(&mut lb, Port::Mgmt, &bytes, "icmp_unrelated");
        }
    }
    let local = quote(&tcp(LOCAL, KAS, SYN_ONLY));
    let mut to_snat = |kind, reason| {
        let sent = icmp("10.32.96.1", "10.32.96.50", kind, 0).between(ROUTER_MAC, MGMT_NIC);
        assert_dropped(&mut lb, Port::Mgmt, &sent.payload(&local).bytes(), reason);
    };
    to_snat((5, 1), "icmp_unrelated");
    to_snat((8, 0), "unsupported_protocol");
    let to_vip = icmp("10.32.96.1", VIP, (3, 4), 1280).between(ROUTER_MAC, MGMT_NIC);
    let bytes = to_vip.payload(&local).bytes();
    assert_dropped(&mut lb, Port::Mgmt, &bytes, "icmp_unrelated");
}

/// The cell gets a frame that has left a kernel's stack and not its interface: with the checksum that a
/// wire would have given it, or in generic mode as the kernel knows it.
#[privileged_test]
fn an_open_checksum_is_made_whole_before_the_cell() {
    let segment = to_us(tcp(KAS, LOCAL, ACK_ONLY)).payload(b"an open checksum");
    for (mode, wanted) in [
        (Mode::Native, segment.bytes()),
        (Mode::Generic, segment.open_checksum()),
    ] {
        let mut lb = DataPlane::with_partial_checksums(CONFIG, mode);
        hear(&lb, &[("mgmt", KAS)]);
        let delivered = ["nic", "mgmt", "delivered"];
        assert_eq!(
            lb.receive(Port::Mgmt, &segment.open_checksum()),
            outcome(Action::Redirect, wanted, delivered)
        );
        assert_delivered(&mut lb, &segment.bytes());
    }
}
