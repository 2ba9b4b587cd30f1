//! A box that takes over with a thousand VIPs announces each of them.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_tests::{
    oracle::wire::Wire,
    poll,
    product::config::{Config, Keys},
    topology::{BoxName, TENANT_NIC, Topology, TwoBoxes},
};

use super::{Boxes, TAKEN_OVER, config};
use crate::nic::announce::announces;

const COUNT: u32 = 1000;
const FIRST: Ipv4Addr = Ipv4Addr::new(192, 168, 210, 1);
/// How long all of them may take to be announced once.
const ANNOUNCED: Duration = Duration::from_secs(3);

fn vips() -> impl Iterator<Item = Ipv4Addr> {
    (0..COUNT).map(|number| Ipv4Addr::from_bits(FIRST.to_bits() + number))
}

/// A service at each VIP, beside those of all.
fn many(pair: &TwoBoxes) -> Config {
    let tenant = |tenant: Keys| tenant.set("prefixes", ["192.168.0.0/16"]);
    let config = config(pair).network("tenant-a", tenant);
    vips().fold(config, |config, vip| {
        let at = SocketAddrV4::new(vip, 80);
        config.tcp_service_to(&format!("s{}", vip.to_bits()), at, "idle")
    })
}

/// New connections come as fast as with one VIP, and hosts hear of all of them.
#[privileged_test]
fn a_thousand_vips_are_announced_by_the_box_that_takes_over() -> Result<()> {
    let pair = Topology::pair()?;
    pair.give_marker(BoxName::Lb1)?;
    let mut boxes = Boxes::start_with(&pair, &many(&pair))?;
    let mac = pair.site(BoxName::Lb2).mac(TENANT_NIC)?;
    let wire = Wire::received_heads(&pair.client().netns, "eth0", "arp", pair.dir())?;
    pair.power_off(BoxName::Lb1)?;
    boxes.first.kill()?;
    let start = Instant::now();
    pair.give_marker(BoxName::Lb2)?;
    let served = boxes.wait_until_served_by(BoxName::Lb2, TAKEN_OVER)?;
    let wanted: BTreeSet<_> = vips().collect();
    poll::until("an announcement of each VIP", ANNOUNCED, || {
        let frames = wire.frames()?;
        let sender = |frame: &Vec<u8>| {
            let octets: [u8; 4] = frame.get(28..32)?.try_into().ok()?;
            let address = Ipv4Addr::from(octets);
            announces(frame, address, mac).then_some(address)
        };
        let announced: BTreeSet<_> = frames.iter().filter_map(sender).collect();
        Ok(wanted.is_subset(&announced).then_some(()))
    })?;
    println!(
        "served after {served:.0?}, {COUNT} VIPs announced after {:.0?}",
        start.elapsed()
    );
    Ok(())
}
