//! Attacks by UDP, fragments and ICMP errors.

use std::{
    net::{SocketAddrV4, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    frames::{
        icmp_message::{Message, PORT_UNREACHABLE, TOO_BIG},
        packet,
    },
    oracle::observe,
    topology::{DNS, SNAT, Trunk, VIP},
};

use super::{
    attack::{Attack, NOWHERE, nowhere},
    endures,
    kind::Kind,
    scene::{Scene, Setup},
    victim::Victim,
};
use crate::policy::allow::cut;

/// Frames per second.
const FLOOD: u32 = 10_000;
/// First fragments per second: the more, the sooner a table of them has turned.
const FRAGMENTS: u32 = 20_000;
/// Frames that are made.
const FRAMES: u16 = 8192;
/// The flag of every fragment but the last.
const MORE: u16 = 0x2000;
/// Where the identification stands in a frame without a tag.
const ID: usize = 18;
/// The smallest path MTU that one client may bring to the others.
const FLOOR: u32 = 1280;

/// Datagrams from one port after the other, each of which is answered.
#[privileged_test]
fn datagrams_from_many_ports() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?;
    let [_, next] = scene.hops()?;
    let frame = |port: u16| {
        let source = SocketAddrV4::new(nowhere()[usize::from(port % 100)], port);
        let frame = packet::udp(&source.to_string(), &DNS.to_string());
        frame.payload(b"question").between(NOWHERE, next).bytes()
    };
    let frames = (1024..1024 + FRAMES).map(frame).collect();
    let name = "datagrams from many ports";
    let attack = Attack::frames(name, FLOOD, scene.attacker(), frames)?;
    endures(&scene, &mut victim, &attack)
}

/// First fragments of one flow, each of another datagram, whose rest never comes. The rest of the victim's
/// datagrams comes late, as over a long way.
#[privileged_test]
fn first_fragments() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?.with(Kind::Pieces);
    let attacker = scene.attacker();
    let [mac, next] = scene.hops()?;
    let source = SocketAddrV4::new(attacker.address, 3000).to_string();
    let frame = packet::udp(&source, &DNS.to_string()).fragment(0);
    let frame = frame.payload(&[7; 120]).between(mac, next).bytes();
    let frames = (0..u16::MAX).step_by(4).map(|id| {
        let mut frame = frame.clone();
        frame[ID..ID + 2].copy_from_slice(&id.to_be_bytes());
        cut(&frame, 0..64, MORE)
    });
    let frames = frames.collect();
    let attack = Attack::frames("first fragments", FRAGMENTS, attacker, frames)?;
    endures(&scene, &mut victim, &attack)
}

/// A client says of its own flow that no packet above 68 bytes reaches it. The backend keeps that for its
/// way to the SNAT address, which is the way to all clients of all tenants.
#[privileged_test]
fn a_path_mtu_of_68_bytes() -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        nodes: [1, 1],
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let mut victim = Victim::start(&scene)?;
    let about = answer_of_own_flow(&scene)?;
    let from = scene.attacker().address;
    let frames = vec![Message::too_big(from, VIP, 68, &about).frame(scene.hops()?, 64)];
    let attack = Attack::frames("a path MTU of 68", 100, scene.attacker(), frames)?;
    endures(&scene, &mut victim, &attack)?;
    let mtu = observe::path_mtu(&trunk.nodes[1].netns, SNAT)?;
    println!("the path MTU from the node to all clients: {mtu:?}");
    ensure!(mtu.is_none_or(|mtu| mtu >= FLOOR), "{mtu:?}");
    Ok(())
}

/// Errors about a flow of the attacker's own: each is passed on to the backend.
#[privileged_test]
fn icmp_errors_about_own_flows() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let about = answer_of_own_flow(&scene)?;
    icmp_errors("ICMP errors about own flows", &scene, |_| about.clone())
}

/// Errors about flows that are not there.
#[privileged_test]
fn icmp_errors_about_nothing() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let to = |number: u16| SocketAddrV4::new(nowhere()[usize::from(number % 100)], number);
    icmp_errors("ICMP errors about nothing", &scene, |number| {
        packet::tcp(&DNS.to_string(), &to(number).to_string(), 0x10).bytes()
    })
}

fn icmp_errors(
    name: &'static str,
    scene: &Scene<'_>,
    about: impl Fn(u16) -> Vec<u8>,
) -> Result<()> {
    let mut victim = Victim::start(scene)?;
    let (from, hops) = (scene.attacker().address, scene.hops()?);
    let frame = |number: u16| {
        let (kind, mtu) = match number % 2 {
            0 => (PORT_UNREACHABLE, 0),
            _ => (TOO_BIG, 1400),
        };
        let mut message = Message::too_big(from, VIP, mtu, &about(number));
        message.kind = kind;
        message.frame(hops, 64)
    };
    let frames = (0..FRAMES).map(frame).collect();
    let attack = Attack::frames(name, FLOOD, scene.attacker(), frames)?;
    endures(scene, &mut victim, &attack)
}

/// A datagram as `lb` has sent it to the attacker, whose flow that is.
fn answer_of_own_flow(scene: &Scene<'_>) -> Result<Vec<u8>> {
    let attacker = scene.attacker();
    let from = SocketAddrV4::new(attacker.address, 0);
    let own = attacker.netns.inside(|| -> Result<_> {
        let socket = UdpSocket::bind(from)?;
        socket.connect(DNS)?;
        socket.set_read_timeout(Some(Duration::from_secs(4)))?;
        socket.send(b"question")?;
        socket.recv(&mut [0; 64]).context("an answer")?;
        Ok(socket.local_addr()?)
    })??;
    let answer = packet::udp(&DNS.to_string(), &own.to_string());
    Ok(answer.payload(&[7; 1400]).bytes())
}
