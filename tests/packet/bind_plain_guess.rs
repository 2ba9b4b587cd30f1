//! Segments whose numbers are right for a first one behind a cookie, and which are none: later ones, and guesses. See
//! [`bind_plain`](super::bind_plain).

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    thread,
};

use lb_common::{
    addr::Be16,
    maps::flow::{FlowKey, PackedKey},
    rate::GUESSES,
    syn_cookie::{Cookie, CookieStanding, judge, offer::SynOffer},
};
use lb_tests::{
    frames::packet::flags::*,
    product::{
        cpu,
        program::{Action, DataPlane, Port},
    },
};
use lb_user::model::registry::Kind;

use super::{
    bind::{opened, receive},
    bind_again::free_ids,
    bind_plain::{CONFIG, kept, met},
    cookies::{Answer, ISN, OPTIONS, keys, start_with},
    given::{API, CLIENT_A, assert_dropped, passed_on},
};

/// The tuple of a client with this port.
fn tuple(lb: &DataPlane, client_port: u16) -> PackedKey {
    let vip: SocketAddrV4 = API.parse().expect("the VIP");
    let network = lb.ids.get(Kind::Network, "tenant-a").expect("a network");
    let key = FlowKey {
        client: Ipv4Addr::new(192, 168, 203, 50).into(),
        vip: (*vip.ip()).into(),
        client_port: Be16::new(client_port),
        vip_port: Be16::new(vip.port()),
        network: u16::try_from(network).expect("a short id"),
        protocol: 6,
    };
    key.packed()
}

/// How far behind the first one a segment is whose number is right for that one.
fn passing(tuple: PackedKey, number: u32) -> impl Iterator<Item = u32> {
    (1..).filter(move |offset| {
        let standing = judge(&keys(8), tuple, ISN.wrapping_add(*offset), number);
        matches!(standing, CookieStanding::Right { .. })
    })
}

fn assert_unordered(lb: &mut DataPlane, frame: &[u8]) {
    let later = receive(lb, Port::Tenant, frame);
    assert_eq!(
        (later.action, &later.counted[..]),
        (Action::Drop, &["hello_unordered"][..])
    );
}

/// One in 4,096 later segments has a number that is right for a first one: it opens nothing, as our clock would be another one.
#[privileged_test]
fn a_later_segment_that_passes_for_the_first_opens_nothing() {
    let mut lb = start_with(CONFIG);
    let ids = free_ids(&lb);
    let answer = Answer::to(&mut lb, &OPTIONS);
    let client: SocketAddrV4 = CLIENT_A.parse().expect("a client");
    let tuple = tuple(&lb, client.port());
    for offset in passing(tuple, answer.number).take(2) {
        for data in [&b""[..], b"second"] {
            let later = answer.segment(offset, ACK_ONLY).payload(data);
            assert_unordered(&mut lb, &later.bytes());
        }
    }
    assert_eq!(free_ids(&lb), ids);
    let (_, port) = opened(&mut lb, &answer.segment(0, ACK_ONLY).payload(b"first"));
    assert_eq!(met(&mut lb, &port)[66..], *b"first");
}

/// Without timestamps what is kept says so: neither data nor an end behind it take its place.
#[privileged_test]
fn what_is_kept_says_which_segment_is_later() {
    let mut lb = start_with(CONFIG);
    let offer = SynOffer::from_bits(Answer::to(&mut lb, &[]).number.to_be_bytes()[3]);
    let near = (40_000..).find_map(|port| {
        let tuple = tuple(&lb, port);
        let Cookie { number, .. } = Cookie::new(&keys(8), tuple, ISN, offer, 0);
        let offset = passing(tuple, number).next()?;
        (offset < 1400).then_some((port, offset))
    });
    let (port, offset) = near.expect("a tuple");
    let answer = Answer::from(&format!("192.168.203.50:{port}"), &mut lb, &[]);
    let first = answer.segment(0, ACK_ONLY).payload(b"first");
    passed_on(&mut lb, Port::Tenant, &first.bytes());
    let ids = free_ids(&lb);
    for flags in [ACK_ONLY, FIN_ACK] {
        for data in [&b""[..], b"second"] {
            assert_unordered(
                &mut lb,
                &answer.segment(offset, flags).payload(data).bytes(),
            );
        }
    }
    kept(&mut lb, &first.bytes());
    assert_eq!(free_ids(&lb), ids);
}

/// Where numbers are guessed, a right one alone opens nothing for a while; with an echo of our clock it does.
#[privileged_test]
fn a_guessed_number_opens_no_flow() {
    // Guesses are counted by the CPU that they come to.
    let bound = || {
        cpu::bind(cpu::all().expect("CPUs")[0]).expect("a CPU of this process");
        let mut lb = start_with(CONFIG);
        let [bare, timed] = [&[][..], &OPTIONS].map(|options| Answer::to(&mut lb, options));
        let guess = bare.segment(0, ACK_ONLY).numbers(ISN.wrapping_add(1), 7);
        let guess = guess.bytes();
        // One at a time: each becomes a reset.
        for _ in 0..GUESSES.burst * 2 {
            lb.run(Port::Tenant, &guess, 1);
        }
        let bare = bare.segment(0, ACK_ONLY);
        for segment in [bare.clone(), bare.payload(b"first")] {
            assert_dropped(&mut lb, Port::Tenant, &segment.bytes(), "cell_rate");
        }
        passed_on(&mut lb, Port::Tenant, &timed.segment(0, ACK_ONLY).bytes());
    };
    thread::scope(|scope| scope.spawn(bound).join()).expect("no panic");
}
