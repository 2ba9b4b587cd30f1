//! A box that has lost the marker, and whose process does not follow: `lb ha fence` silences it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::{
    poll,
    product::lb::Lb,
    topology::{BoxName, MGMT_NIC, PEER_SNAT, SNAT, TENANT_NIC, Topology, TwoBoxes, VIP},
    traffic::conn_pair::{Line, Pair},
};
use nix::sys::signal::Signal;

use super::{
    Boxes, IDLE, IDLE_PORT, PROBE, config,
    roles::{CHECKED, LIMIT, Said, answered_by},
    seen_within,
};

/// How long a command may take beside a process that does not answer.
const FENCED: Duration = Duration::from_secs(5);

/// What the command prints.
fn fence(lb: &Lb<'_>) -> Result<String> {
    let start = Instant::now();
    let said = lb.tell(&["ha", "fence"])?.done()?;
    ensure!(start.elapsed() < FENCED, "{:?}", start.elapsed());
    Ok(said)
}

/// The first box says nothing at all, and the other one serves.
fn ensure_is_silent(pair: &TwoBoxes, open: &Pair) -> Result<()> {
    let said = Said::listen(pair, BoxName::Lb1)?;
    let start = Instant::now();
    while start.elapsed() < CHECKED {
        open.talk()?;
        let seen = seen_within(pair.client(), PROBE, LIMIT)?;
        ensure!(seen == Some(PEER_SNAT), "{seen:?}");
    }
    for (host, address, nic) in [
        (pair.client(), VIP, TENANT_NIC),
        (&pair.nodes[0], SNAT, MGMT_NIC),
    ] {
        let mac = pair.site(BoxName::Lb2).mac(nic)?.to_string();
        assert_eq!(answered_by(host, address)?, mac, "{address}");
    }
    let senders = said.ensure_nothing_as(&[VIP, SNAT, PEER_SNAT])?;
    ensure!(senders.is_empty(), "{senders:?}");
    Ok(())
}

/// A box whose process was killed is silent when it is fenced, and not active when it starts again.
#[privileged_test]
fn a_box_without_its_process_is_silent() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
    let open = line.open()?;
    boxes.wait_for_replicas(BoxName::Lb2, 1)?;
    let said = fence(&boxes.first)?;
    ensure!(said.contains("stays active"), "{said}");
    let said = fence(&boxes.second)?;
    ensure!(said.contains("stands by"), "{said}");

    boxes.first.kill()?;
    open.talk()?;
    assert_eq!(boxes.first.tell(&["health", "--box"])?.code, Some(0));
    pair.move_marker(BoxName::Lb2)?;
    let said = fence(&boxes.first)?;
    ensure!(said.contains("is fenced"), "{said}");
    assert_eq!(boxes.first.tell(&["health", "--box"])?.code, Some(1));
    boxes.wait_until_served_by(BoxName::Lb2, LIMIT)?;
    ensure_is_silent(&pair, &open)?;

    let config = boxes.group.config(config(&pair), BoxName::Lb1);
    boxes.first.restart(&config)?;
    assert_eq!(boxes.first.tell(&["health", "--box"])?.code, Some(0));
    boxes.wait_for_replicas(BoxName::Lb1, 1)?;
    boxes.move_to(BoxName::Lb1)?;
    open.talk()
}

/// The same of one that stands still, which goes on later: it is a standby then, whose checks leave.
#[privileged_test]
fn a_box_whose_process_stands_still_is_silent() -> Result<()> {
    let pair = Topology::pair()?;
    let mut boxes = Boxes::start(&pair)?;
    let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
    let open = line.open()?;
    boxes.wait_for_replicas(BoxName::Lb2, 1)?;
    boxes.first.process().signal(Signal::SIGSTOP)?;
    pair.move_marker(BoxName::Lb2)?;
    let said = fence(&boxes.first)?;
    ensure!(said.contains("is fenced"), "{said}");
    boxes.wait_until_served_by(BoxName::Lb2, LIMIT)?;
    ensure_is_silent(&pair, &open)?;

    let said = Said::listen(&pair, BoxName::Lb1)?;
    boxes.first.process().signal(Signal::SIGCONT)?;
    poll::until("the fence to be taken away", LIMIT, || {
        let health = boxes.first.tell(&["health", "--box"])?;
        Ok((health.code == Some(0)).then_some(()))
    })?;
    std::thread::sleep(CHECKED);
    let senders = said.ensure_nothing_as(&[VIP, SNAT, PEER_SNAT])?;
    ensure!(senders.contains(&BoxName::Lb1.checks_from()), "{senders:?}");
    boxes.wait_for_replicas(BoxName::Lb1, 1)?;
    boxes.move_to(BoxName::Lb1)?;
    open.talk()
}
