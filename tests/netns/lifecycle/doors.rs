//! The doors of addresses that change: closed before the maps are written that say the same.

use std::{collections::BTreeSet, net::Ipv4Addr};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    fault::kill_at_step::{self, Moment},
    product::{config::Config, lb::Lb},
    topology::{Topology, VIP},
};
use lb_user::dataplane::{doors::Doors, maps::Maps, pins::Pins};

/// A VIP that is there before the change.
const GONE: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 111);

fn config(vips: &[Ipv4Addr]) -> Config {
    let config = Config::poc().mgmt_pool("pool", ["10.32.96.105:30700"]);
    (0..).zip(vips).fold(config, |config, (number, vip)| {
        let name = format!("service-{number}");
        config
            .tcp_service(&name, format!("{vip}:7000"))
            .service(&name, |service| service.pool("pool"))
    })
}

/// Where there are doors to.
fn doors(instance: &str) -> Result<BTreeSet<Ipv4Addr>> {
    let doors = Doors::open(&Pins::new(instance).maps())?;
    Ok(doors
        .keys()
        .map(|(key, _)| key.destination.into())
        .collect())
}

/// The addresses of the map that is complete.
fn addresses(instance: &str) -> Result<BTreeSet<Ipv4Addr>> {
    let maps = Maps::open(&Pins::new(instance).maps())?;
    let keys = maps.addresses.keys();
    let addresses = keys.map(|key| Ok(key?.address.into()));
    addresses.collect()
}

/// A packet that is on its way while a VIP goes finds it by both or by the map alone, never by a door that is out of date.
#[privileged_test]
fn a_door_is_closed_before_its_address_goes() -> Result<()> {
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config(&[VIP, GONE]))?;
    let run = topology.run();
    let both = doors(run)?;
    ensure!(both.is_superset(&[VIP, GONE].into()), "{both:?}");

    let after = config(&[VIP]);
    lb.write(&after)?;
    let moment = Moment::Of("bpf 3 of ADDRESSES", 0);
    let doom = kill_at_step::kill_before(run, lb.process().id(), moment)?;
    let _said = lb.tell(&["reload"])?;
    let followed = doom.end()?;
    followed.killed.context("no address went")?;
    ensure!(addresses(run)?.contains(&GONE), "it was killed later");
    let left: BTreeSet<Ipv4Addr> = both.into_iter().filter(|to| *to != GONE).collect();
    let found = doors(run)?;
    ensure!(found == left, "doors to {found:?} instead of {left:?}");

    lb.kill()?;
    lb.restart(&after)?;
    let found = doors(run)?;
    ensure!(found == left, "doors to {found:?} instead of {left:?}");
    ensure!(!addresses(run)?.contains(&GONE), "it is still there");
    Ok(())
}
