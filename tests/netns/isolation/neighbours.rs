//! Attacks on what the kernel knows of neighbours. Its table is one for all namespaces of a machine, so these
//! run beside no other test.

use std::{net::Ipv6Addr, time::Duration};

use anyhow::Result;
use lb_tests::{
    frames::{packet, six::discovery},
    oracle::neighbours::{Changed, Limits},
    topology::{Trunk, VIP, VIP6},
};

use super::{
    attack::Attack,
    endures,
    kind::Kind,
    scene::{SHARED, Scene, Setup},
    victim::Victim,
};

/// The kernel's table has 1024 places and keeps what is younger than five seconds: 205 frames a second fill it,
/// and so many leave nothing of the moments when it is swept.
const PER_SECOND: u32 = 10_000;
/// By then it is full.
const LEAD: Duration = Duration::from_millis(300);
/// Addresses that are used in turn.
const ADDRESSES: u16 = 30_000;
/// A quarter of what `lb prepare` makes of it, and how long the attacker takes to fill that.
const QUARTER: Limits = [256, 2048, 16_384];
const FILLED: Duration = Duration::from_secs(2);
/// A prefix on the link of the attacker that has so many.
const ON_LINK: &str = "10.99.0.0/16";

/// ARP requests for the VIP, by turns from addresses on the link and from elsewhere.
#[privileged_test]
fn arp_requests_from_many_addresses() -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        config: |config| config.network("tenant-a", |tenant| tenant.push("prefixes", ON_LINK)),
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let mut victim = Victim::start(&scene)?.forgetting(&scene);
    let [mac, _] = scene.hops()?;
    let frame = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let sender = match number % 2 {
            0 => format!("10.99.{high}.{low}"),
            _ => format!("1.2.{high}.{low}"),
        };
        packet::arp(1, mac, &sender, mac, &VIP.to_string())
    };
    let frames = (1..=ADDRESSES).map(frame).collect();
    let attack = Attack::frames("ARP requests", PER_SECOND, scene.attacker(), frames)?;
    endures(&scene, &mut victim, &attack.after(LEAD))
}

/// The same by IPv6: any client has as many addresses as it likes.
#[privileged_test]
fn neighbour_solicitations_from_many_addresses() -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        six: true,
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let mut victim = Victim::start(&scene)?.with(Kind::Echo6).forgetting(&scene);
    let [mac, _] = scene.hops()?;
    let frame = |number: u16| {
        let sender = Ipv6Addr::new(0xfd00, 0x203, 0, 0, 0x99, 0, 0, number).to_string();
        discovery::solicitation(mac, &sender, &VIP6.to_string()).bytes()
    };
    let frames = (1..=ADDRESSES).map(frame).collect();
    let name = "neighbour solicitations";
    let attack = Attack::frames(name, PER_SECOND, scene.attacker(), frames)?;
    endures(&scene, &mut victim, &attack.after(LEAD))
}

/// SYNs to a shared VIP, from addresses on the link: before it can answer, the cell would have to ask where
/// each of them is. That is limited to a part of a table as `lb prepare` makes it, so this has a quarter of one, not
/// the default; what asks for addresses that are nowhere leaves it again sooner.
#[privileged_test]
fn syns_from_many_addresses_on_the_link() -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        config: |config| config.network("tenant-a", |tenant| tenant.push("prefixes", ON_LINK)),
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let _limits = Changed::to(QUARTER)?;
    let mut victim = Victim::start(&scene)?.forgetting(&scene);
    // All of them are the attacker's own, and it answers.
    let own = "ip route add local 10.99.0.0/16 dev lo";
    scene.attacker().netns.run(own)?;
    let [mac, next] = scene.hops()?;
    let frame = |number: u16| {
        let [high, low] = number.to_be_bytes();
        let source = format!("10.99.{high}.{low}:1024");
        packet::tcp(&source, &SHARED.to_string(), packet::flags::SYN_ONLY)
            .numbers(number.into(), 0)
            .between(mac, next)
            .bytes()
    };
    let frames = (1..=ADDRESSES).map(frame).collect();
    let name = "SYNs from many addresses";
    let attack = Attack::frames(name, PER_SECOND, scene.attacker(), frames)?;
    endures(&scene, &mut victim, &attack.after(FILLED))
}
