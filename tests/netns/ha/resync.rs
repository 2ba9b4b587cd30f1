//! A box that comes back without any flow has those of the other one, in great number, within seconds.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lb_tests::{
    poll,
    product::config::{Config, Keys},
    topology::{BoxName, ECHO_NODE_PORT, Host, Topology, TwoBoxes},
    traffic::talks::Talks,
};
use serde_json::{Value, json};

use super::{BUSY, BUSY_PORT, Boxes, config, rate::Table, server};
use crate::flows::million::{Crowd, LISTENERS, PLACES, STEP};

/// Connections whose ends talk, before the others are made, and after.
const TALKS: usize = 50;
/// How many the others are, by how many SNAT addresses, and in what time they are to stand ready.
const SHORT: (u64, u8, Duration) = (50_000, 1, Duration::from_secs(10));
const LONG: (u64, u8, Duration) = (1_000_000, 20, Duration::from_secs(30));
/// How long an answer may take.
const HEARD: Duration = Duration::from_secs(4);

/// The crowd comes to a worker, from SNAT addresses of its own network.
fn crowded(pair: &TwoBoxes, addresses: u8) -> Config {
    let of = |last: u8, name: BoxName| json!({ "address": Ipv4Addr::new(192, 168, 203, last), "box": name.name() });
    let snat: Vec<Value> = (1..=addresses)
        .map(|last| of(last, BoxName::Lb1))
        .chain([of(31, BoxName::Lb2)])
        .collect();
    let checks_from = [of(32, BoxName::Lb1), of(33, BoxName::Lb2)];
    let [first, second] = LISTENERS;
    let worker = SocketAddrV4::new(pair.workers[0].address, ECHO_NODE_PORT);
    let idle = |service: Keys| service.pool("near").set("idle_timeout", "1h");
    let config = config(pair)
        .without("services", "idle")
        .network("tenant-a", |tenant| {
            let tenant = tenant.set("snat", snat).set("checks_from", checks_from);
            tenant.set("half_open", PLACES)
        })
        .pool("near", |near| near.on("tenant-a").backends([worker]))
        .set("limits.snat_addresses", addresses + 3);
    let service = |config: Config, name: &str, at| config.tcp_service(name, at).service(name, idle);
    service(service(config, "crowd", first), "more", second)
}

/// Keeps the kernel of a host from answering the frames of the crowd.
fn silence(host: &Host, crowd: &str) -> Result<()> {
    for line in [
        "add table ip silent",
        "add chain ip silent in { type filter hook prerouting priority -300 ; }",
        &format!("add rule ip silent in {crowd} drop"),
    ] {
        host.netns.run(&format!("nft {line}"))?;
    }
    Ok(())
}

/// The standby is rebooted beside a million of flows. It has them again within seconds, and connections among them outlive the other box.
#[privileged_test]
fn a_million_flows_stand_ready_after_a_reboot() -> Result<()> {
    let (count, addresses, limit) = match std::env::var_os("LB_TEST_LONG") {
        Some(_) => LONG,
        None => SHORT,
    };
    let pair = Topology::pair()?;
    pair.give_marker(BoxName::Lb1)?;
    let both = crowded(&pair, addresses);
    let mut boxes = Boxes::start_with(&pair, &both)?;
    let _server = server(&pair, BUSY_PORT)?;
    let (client, worker) = (pair.client(), &pair.workers[0]);
    silence(client, &format!("iif eth0 ip daddr != {}", client.address))?;
    silence(worker, &format!("tcp dport {ECHO_NODE_PORT}"))?;
    let mut before = Talks::open(client, BUSY, TALKS, "before")?;
    let mut crowd = Crowd::between(&pair, [worker, worker])?;
    while crowd.flows < count {
        crowd.grow(&boxes.first, STEP.min(count - crowd.flows))?;
    }
    let mut after = Talks::open(client, BUSY, TALKS, "after")?;

    boxes.second.kill()?;
    boxes.second.tell(&["down"])?.done()?;
    let start = Instant::now();
    boxes
        .second
        .restart(&boxes.group.config(both, BoxName::Lb2))?;
    let [first, second] = BoxName::ALL.map(|name| Table::of(pair.site(name)));
    let tables = [first?, second?];
    let mut seen = [0, 0];
    poll::until("all flows at the box that was rebooted", limit, || {
        let [first, second] = tables.each_ref().map(Table::live);
        seen = [first?, second?];
        let (_, is_complete) = boxes.ha_status(BoxName::Lb2)?;
        Ok((is_complete && u64::from(seen[1]) >= count && seen[0] == seen[1]).then_some(()))
    })
    .with_context(|| format!("{seen:?}"))?;
    println!(
        "{} flows stand ready {:.1?} after the start",
        seen[1],
        start.elapsed()
    );
    boxes.fail_over()?;
    for talks in [&mut before, &mut after] {
        talks.exchange(HEARD).ensure_whole()?;
    }
    Ok(())
}
