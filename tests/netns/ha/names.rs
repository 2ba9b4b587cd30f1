//! Connections that were opened by their names, by XDP or by a process that has handed them over or copies them.

use std::net::SocketAddrV4;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::{BoxName, Topology, TwoBoxes, VIP},
    traffic::{
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use serde_json::json;

use super::{Boxes, CHECKS, PROBE_PORT, SYNCED, config, power_off::DEAD};

const NAME: &str = "a.lab";
/// Connections of each service, and those that are copied.
const COPIED: usize = 5;
const COUNT: usize = 100;

/// A service with names: `late_binding`, what its connections are counted as, its port, and that of its node.
struct Named {
    name: &'static str,
    late_binding: &'static str,
    counted: &'static str,
    vip: SocketAddrV4,
    node_port: u16,
}

const BOUND: Named = Named {
    name: "by-xdp",
    late_binding: "always",
    counted: "bound",
    vip: SocketAddrV4::new(VIP, 443),
    node_port: 30_712,
};
const HANDED_OVER: Named = Named {
    name: "by-process",
    late_binding: "never",
    counted: "handed_over",
    vip: SocketAddrV4::new(VIP, 8443),
    node_port: 30_713,
};
const BOTH: [&Named; 2] = [&BOUND, &HANDED_OVER];

/// Both services beside those of all.
pub(super) fn both(pair: &TwoBoxes) -> Config {
    let node = pair.nodes[0].address;
    BOTH.iter().fold(config(pair), |config, service| {
        let health = Keys::from(CHECKS).set("tcp.port", PROBE_PORT);
        let routes = json!([{ "names": [NAME], "pool": service.name }]);
        config
            .mgmt_pool(service.name, [SocketAddrV4::new(node, service.node_port)])
            .pool(service.name, |pool| pool.set("health", health))
            .service(service.name, |keys| {
                let keys = keys.on("tenant-a").tcp(service.vip);
                keys.set("sni.routes", routes)
                    .set("sni.late_binding", service.late_binding)
            })
    })
}

impl Named {
    fn line<'p>(&self, pair: &'p TwoBoxes) -> Result<Line<'p>> {
        let line = Line::new(pair.client(), self.vip, &pair.nodes[0], self.node_port)?;
        Ok(line.saying(named(NAME.as_bytes())))
    }

    /// How many of its connections the data plane of a box has been given.
    fn count(&self, lb: &Lb<'_>) -> Result<u64> {
        let status = lb.tell(&["status", "-o", "json"])?.done()?;
        let status: serde_json::Value = serde_json::from_str(&status)?;
        let counted = status["shared"][self.name][self.counted].as_u64();
        Ok(counted.unwrap_or_default())
    }
}

/// One of each service.
fn lines(pair: &TwoBoxes) -> Result<Vec<Line<'_>>> {
    let lines = BOTH.map(|service| service.line(pair));
    lines.into_iter().collect()
}

/// Opens all of both services; the data plane of the box has them when this returns.
fn open(lines: &[Line<'_>], lb: &Lb<'_>) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    for (service, line) in BOTH.iter().zip(lines) {
        pairs.extend(line.open_many(COUNT)?);
        let all = u64::try_from(COUNT)?;
        poll::until("all connections in the data plane", SYNCED, || {
            Ok((service.count(lb)? == all).then_some(()))
        })
        .with_context(|| service.name.to_owned())?;
    }
    Ok(pairs)
}

/// Those of both services, open until this is dropped; so many.
pub(super) fn open_all(pair: &TwoBoxes, lb: &Lb<'_>) -> Result<Vec<Pair>> {
    open(&lines(pair)?, lb)
}

/// All of them carry bytes both ways, between the same ends.
pub(super) fn ensure_alive(pairs: &[Pair]) -> Result<()> {
    for (number, pair) in pairs.iter().enumerate() {
        let context = || format!("connection {number} of {}, {}", pairs.len(), pair.snat);
        pair.talk().with_context(context)?;
    }
    Ok(())
}

/// They go on at the other box, and at the first one when that is there again; each box has their names.
#[privileged_test]
fn connections_by_name_outlive_their_box() -> Result<()> {
    let pair = Topology::pair()?;
    pair.give_marker(BoxName::Lb1)?;
    let mut boxes = Boxes::start_with(&pair, &both(&pair))?;
    let lines = lines(&pair)?;
    let mut pairs = open(&lines, &boxes.first)?;
    boxes.wait_for_replicas(BoxName::Lb2, pairs.len())?;

    boxes.fail_over()?;
    ensure_alive(&pairs)?;
    let listed = boxes.second.tell(&["flows"])?.done()?;
    assert_eq!(listed.matches(NAME).count(), pairs.len(), "{listed}");
    for line in &lines {
        pairs.push(line.open()?);
    }

    pair.power_on(BoxName::Lb1)?;
    boxes
        .first
        .restart(&boxes.group.config(both(&pair), BoxName::Lb1))?;
    boxes.wait_for_replicas(BoxName::Lb1, pairs.len())?;
    boxes.move_to(BoxName::Lb1)?;
    ensure_alive(&pairs)
}

/// A client without timestamps is copied. Such connections are in no table that the other box has: they are counted at the active
/// box, and at the other one when that takes over.
#[privileged_test]
fn connections_that_the_process_copies_are_counted_when_their_box_dies() -> Result<()> {
    let pair = Topology::pair()?;
    pair.client().netns.set_sysctl("ipv4/tcp_timestamps", "0")?;
    pair.give_marker(BoxName::Lb1)?;
    let mut boxes = Boxes::start_with(&pair, &both(&pair))?;
    let _copied = HANDED_OVER.line(&pair)?.open_many(COPIED)?;
    for (name, key) in [
        (BoxName::Lb1, "connections"),
        (BoxName::Lb2, "peer_connections"),
    ] {
        poll::until("the copied connections", SYNCED, || {
            let (status, _) = boxes.ha_status(name)?;
            Ok((status[key] == json!(COPIED)).then_some(()))
        })
        .with_context(|| name.name())?;
    }

    boxes.fail_over()?;
    let (status, _) = boxes.ha_status(BoxName::Lb2)?;
    ensure!(status["lost_connections"] == json!(0), "{status}");
    poll::until("the end of the peer's connections", DEAD, || {
        let (status, _) = boxes.ha_status(BoxName::Lb2)?;
        let is_counted = status["lost_connections"] == json!(COPIED);
        Ok((is_counted && status["connections"] == json!(0)).then_some(()))
    })?;
    let event = format!("{COPIED} connections that its process carried have ended");
    let events = boxes.second.tell(&["events"])?.done()?;
    ensure!(events.contains(&event), "{events}");
    Ok(())
}
