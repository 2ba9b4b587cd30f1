//! Segments in the name of another client, whose addresses and ports are known: SYN, RST, FIN and ACK.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::Result;
use lb_common::wire::header::{ACK, FIN, RST, SYN};
use lb_tests::{
    frames::{packet, raw::RawPort},
    topology::{ECHO, Trunk},
};

use super::{
    attack::{Attack, come_and_go},
    endures,
    scene::{Scene, Setup},
    victim::Victim,
};

/// Rounds per second, each of which is a segment of every kind to one flow, and a connection of the attacker's
/// own: a SNAT port that was given up is given away again before the test ends.
const PER_SECOND: u32 = 600;
/// ACKs per second: one between each request and its reply.
const DRAWN: u32 = 10_000;
/// A number that no flow is likely to be at.
const SOMEWHERE: u32 = 0x7777_0000;
/// Longer than a flow may be idle of which a segment was doubtful.
const DOUBT: Duration = Duration::from_secs(15);
/// Closed by one end, a flow lives no longer than this without a word.
const HALF_CLOSED: &str = "1s";

/// A SYN, and a RST with the number that follows.
const SYN_THEN_RST: [(u8, u32); 2] = [(SYN, SOMEWHERE), (RST, SOMEWHERE + 1)];
/// RSTs with numbers that are a quarter of all numbers away from each other.
const RSTS: [(u8, u32); 4] = [(RST, 0), (RST, 1 << 30), (RST, 2 << 30), (RST, 3 << 30)];
/// FINs likewise.
const FINS: [(u8, u32); 4] = [
    (FIN | ACK, 0),
    (FIN | ACK, 1 << 30),
    (FIN | ACK, 2 << 30),
    (FIN | ACK, 3 << 30),
];

/// From the network of another tenant, with the same addresses and ports: the network is part of each flow's key.
#[privileged_test]
fn segments_of_all_kinds_from_another_tenant() -> Result<()> {
    let segments = [&SYN_THEN_RST[..], &RSTS, &FINS].concat();
    attack_flows("spoofed from another network", false, &segments, usize::MAX)
}

/// From another client of the same tenant.
#[privileged_test]
fn syns_and_resets_from_the_same_network() -> Result<()> {
    attack_flows("spoofed SYNs and RSTs", true, &SYN_THEN_RST, usize::MAX)
}

/// The same without a SYN: one number in four is believed by a wide window.
#[privileged_test]
fn blind_resets_from_the_same_network() -> Result<()> {
    attack_flows("blind RSTs", true, &RSTS, usize::MAX)
}

/// An end that seems to be closed makes an idle flow a short one. Once: each of them is a sign of life.
#[privileged_test]
fn blind_fins_from_the_same_network() -> Result<()> {
    attack_flows("blind FINs", true, &FINS, 1)
}

/// ACKs to one flow, from another station than its client is at: a reply that follows one must not go there.
#[privileged_test]
fn blind_acks_from_another_station() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::beside_the_attacker(&scene)?;
    let flow = victim.tuples()?[0].to_string();
    let [mac, next] = scene.hops()?;
    let frame = packet::tcp(&flow, &ECHO.to_string(), ACK).numbers(SOMEWHERE, 1);
    let frames = vec![frame.between(mac, next).bytes()];
    let name = "blind ACKs from another station";
    let attack = Attack::frames(name, DRAWN, scene.attacker(), frames)?;
    endures(&scene, &mut victim, &attack)
}

/// Sends these segments in the name of each flow of the victim, so many times.
fn attack_flows(
    name: &'static str,
    same_network: bool,
    segments: &[(u8, u32)],
    times: usize,
) -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        config: |config| config.set("timeouts.half_closed", HALF_CLOSED),
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let mut victim = match same_network {
        true => Victim::beside_the_attacker(&scene)?,
        false => Victim::start(&scene)?,
    };
    if std::env::var_os("LB_TEST_LONG").is_some() {
        victim.rest(DOUBT);
    }
    let hops = scene.hops()?;
    let frames = |from: &SocketAddrV4| {
        let frame = |&(flags, number): &(u8, u32)| {
            packet::tcp(&from.to_string(), &ECHO.to_string(), flags)
                .numbers(number, 1)
                .between(hops[0], hops[1])
                .bytes()
        };
        segments.iter().map(frame).collect::<Vec<_>>()
    };
    let flows: Vec<Vec<Vec<u8>>> = victim.tuples()?.iter().map(frames).collect();
    let port = RawPort::open(&scene.attacker().netns, "eth0")?;
    let attack = Attack::new(name, PER_SECOND, |number| {
        let number = usize::try_from(number)?;
        if number / flows.len() < times {
            let frames = &flows[number % flows.len()];
            frames.iter().try_for_each(|frame| port.send(frame))?;
        }
        // Takes the next port of the queue, and gives it back.
        let _refused: Result<()> = come_and_go(true);
        Ok(())
    });
    endures(
        &scene,
        &mut victim,
        &attack.by(8).after(Duration::from_secs(2)),
    )
}
