//! A box that loses its power while it is the active one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_common::wire::header::{ACK, RST};
use lb_tests::{
    frames::{packet, raw::RawPort, segment::Segment},
    oracle::wire::Wire,
    poll,
    servers::keepalived::Keepalived,
    topology::{BoxName, TENANT_NIC, Topology, VIP, mac_of},
};

use super::{
    Boxes, IDLE, TAKEN_OVER,
    connections::{COUNT, Connections},
};

/// How long keepalived takes to find itself alone.
pub(super) const ALONE: Duration = Duration::from_secs(5);

/// In this time the peer is known to be dead.
pub(super) const DEAD: Duration = Duration::from_secs(15);
/// The client's port of a segment that is of no flow, and what it acknowledges.
const FOREIGN_PORT: u16 = 5555;
const ACKED: u32 = 0x1234_5678;

/// Its links are gone at once, then its process; the other box has all connections.
#[privileged_test]
fn connections_outlive_the_box_that_opened_them() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let connections = Connections::open(&pair)?;
    boxes.wait_for_replicas(BoxName::Lb2, COUNT)?;
    boxes.fail_over()?;
    connections.ensure_alive()?;
    connections.close()
}

/// The same where keepalived moves the marker: what was open goes on, and new connections come.
#[privileged_test]
fn keepalived_has_the_other_box_take_over() -> Result<()> {
    let pair = Topology::pair()?;
    let first = Keepalived::start(&pair, BoxName::Lb1)?;
    poll::until("the marker at lb1", ALONE, || {
        Ok(pair.has_marker(BoxName::Lb1)?.then_some(()))
    })?;
    let second = Keepalived::start(&pair, BoxName::Lb2)?;
    let mut boxes = Boxes::start_beside_marker(&pair)?;
    let connections = Connections::open(&pair)?;
    boxes.wait_for_replicas(BoxName::Lb2, COUNT)?;
    let start = Instant::now();
    pair.power_off(BoxName::Lb1)?;
    boxes.first.kill()?;
    first.kill()?;
    boxes
        .wait_until_served_by(BoxName::Lb2, TAKEN_OVER)
        .with_context(|| second.log())?;
    println!("lb2 has taken over after {:.0?}", start.elapsed());
    connections.ensure_alive()?;
    connections.close()
}

/// A segment of a connection that no box has is answered as soon as the other box is known to be dead, so that the client opens
/// another one (RFC 9293, section 3.10.7.1).
#[privileged_test]
fn a_segment_of_no_flow_is_reset_by_the_box_that_is_left() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let client = pair.client();
    let filter = format!("src host {VIP} and tcp dst port {FOREIGN_PORT}");
    let answers = Wire::received(&client.netns, "eth0", &filter, pair.dir())?;
    boxes.fail_over()?;
    let from = format!("{}:{FOREIGN_PORT}", client.address);
    let [own, next] = [
        mac_of(&client.netns, "eth0")?,
        pair.site(BoxName::Lb2).mac(TENANT_NIC)?,
    ];
    let segment = packet::tcp(&from, &IDLE.to_string(), ACK).numbers(1, ACKED);
    let segment = segment.between(own, next).bytes();
    let port = RawPort::open(&client.netns, "eth0")?;
    let start = Instant::now();
    poll::until("a reset", DEAD, || {
        port.send(&segment)?;
        Ok((!answers.frames()?.is_empty()).then_some(()))
    })?;
    println!(
        "a segment of no flow is reset after {:.0?}",
        start.elapsed()
    );
    for answer in answers.stop()? {
        let answer = Segment::read(&answer).context("a segment")?;
        ensure!(
            (answer.sequence, answer.flags) == (ACKED, RST),
            "{answer:?}"
        );
    }
    Ok(())
}
