//! The program that gives the bench's runs one packet after the other.

use std::net::{Ipv4Addr, SocketAddrV4};

use lb_tests::{
    frames::packet::{Frame, flags::*, tcp, udp},
    product::{
        program::{Action, CLIENT, DataPlane, MGMT_NIC, Port, TENANT_NIC},
        vary_prog_run::{Packets, Turn, Varied, Vary, padded},
    },
};

use super::given::*;

fn end(text: &str) -> SocketAddrV4 {
    text.parse().expect("address and port")
}

fn request_of(client: &str, vip: &str) -> Frame {
    request(client, vip, ACK_ONLY)
        .numbers(1001, 5001)
        .padding(6)
}

/// Both ends in turn, each packet as its sender would have made it, and the first one after the last.
#[privileged_test]
fn every_packet_has_its_turn_and_is_whole() {
    let mut vary = Vary::load(8).expect("the programs can be loaded");
    vary.call_nothing().expect("a program");
    let ends = ["10.1.2.3:1024", "192.168.255.255:65535", "0.0.0.1:1"];
    let other: Ipv4Addr = "192.168.203.110".parse().expect("an address");
    let turns = ends.map(|text| Turn {
        end: end(text),
        other,
    });
    let turns = vary.write_turns(5, turns).expect("room");
    for varied in [Varied::Source, Varied::Destination] {
        let frame = |variable: &str, other: &str| match varied {
            Varied::Source => request_of(variable, other),
            Varied::Destination => request_of(other, variable),
        };
        let packets = Packets {
            frames: vec![frame("0.0.0.0:0", "192.168.0.0:6443").bytes()],
            varied: Some((varied, turns.clone())),
        };
        vary.prepare(&packets).expect("a plan");
        for text in ends.iter().cycle().take(7) {
            let (action, out) = vary.run(0, 1).expect("a run");
            assert_eq!(action, Action::Transmit);
            assert_frame(&out, &frame(text, API));
        }
        let (_, out) = vary.run(0, 4).expect("four runs");
        assert_frame(&out, &frame(ends[(7 + 3) % 3], API));
    }
}

/// Two frames in turns, short and long; and whatever lb made of the last one is undone.
#[privileged_test]
fn what_the_program_has_changed_is_undone() {
    let mut lb = DataPlane::new(CONFIG);
    establish(&mut lb, CLIENT_A, 1024);
    let mut vary = Vary::load(1).expect("the programs can be loaded");
    for bytes in [0, 6, 7, 26] {
        let data = |from: &[u8]| {
            let frame = request(CLIENT_A, API, ACK_ONLY).numbers(1001, 5001);
            frame.payload(&from[..bytes])
        };
        let said = [data(&[1; 26]), data(&[2; 26])];
        let packets = Packets {
            frames: said.iter().map(|frame| padded(frame.bytes())).collect(),
            varied: None,
        };
        vary.prepare(&packets).expect("a plan");
        let (program, ingress) = lb.at(Port::Tenant).expect("the program");
        vary.call(program).expect("a program of its kind");
        for (times, payload) in [(1, 1), (1, 2), (1000, 2), (1001, 1)] {
            let (action, out) = vary.run(ingress, times).expect("a run");
            assert_eq!(action, Action::Redirect);
            let wanted = tcp(&snat(1024), KAS, ACK_ONLY).numbers(1001, 5001);
            let wanted = wanted.payload(&vec![payload; bytes]).ttl(63);
            let wanted = wanted.between(MGMT_NIC, KAS_MAC).bytes();
            assert_eq!(out, padded(wanted), "{bytes} bytes, {times} runs");
        }
    }
}

/// A contestant that is measured with frames of another length would be measured with something else.
#[privileged_test]
fn frames_of_other_lengths_are_refused() {
    let mut vary = Vary::load(1).expect("the programs can be loaded");
    let short = padded(udp(CLIENT_A, DNS).between(CLIENT, TENANT_NIC).bytes());
    let long = padded([&short[..], &[0; 6]].concat());
    assert_eq!((short.len(), long.len()), (60, 80));
    let other = [&long[..], &[0]].concat();
    for frames in [
        vec![],
        vec![other],
        vec![short.clone(), long],
        vec![short; 3],
    ] {
        let packets = Packets {
            frames,
            varied: None,
        };
        assert!(vary.prepare(&packets).is_err());
    }
}
