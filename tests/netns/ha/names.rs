//! Connections that were opened by their names, by XDP or by a process that has handed them over.

use std::net::SocketAddrV4;

use anyhow::{Context as _, Result};
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

use super::{Boxes, CHECKS, PROBE_PORT, SYNCED, TAKEN_OVER, config};

const NAME: &str = "a.lab";
/// Connections of each service.
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
fn both(pair: &TwoBoxes) -> Config {
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

/// All of them carry bytes both ways, between the same ends.
fn ensure_alive(pairs: &[Pair]) -> Result<()> {
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
    let lines = BOTH.map(|service| service.line(&pair));
    let lines: Vec<Line<'_>> = lines.into_iter().collect::<Result<_>>()?;
    let mut pairs = Vec::new();
    for (service, line) in BOTH.iter().zip(&lines) {
        pairs.extend(line.open_many(COUNT)?);
        let context = || service.name.to_owned();
        let all = u64::try_from(COUNT)?;
        poll::until("all connections in the data plane", SYNCED, || {
            Ok((service.count(&boxes.first)? == all).then_some(()))
        })
        .with_context(context)?;
    }
    boxes.wait_for_replicas(BoxName::Lb2, pairs.len())?;

    pair.power_off(BoxName::Lb1)?;
    boxes.first.kill()?;
    pair.give_marker(BoxName::Lb2)?;
    boxes.wait_until_served_by(BoxName::Lb2, TAKEN_OVER)?;
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
