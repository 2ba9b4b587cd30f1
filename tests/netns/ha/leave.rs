//! keepalived goes by `lb health --box`: a box leaves the service where an operator says so, and where the other one carries more.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    servers::keepalived::Keepalived,
    topology::{BoxName, Topology, TwoBoxes},
};

use super::{
    Boxes, FIRST,
    connections::{COUNT, Connections},
};

/// How long keepalived takes to see that a box is unfit, and the other one to be active.
const LEFT: Duration = Duration::from_secs(15);

/// keepalived beside `lb` on both boxes, of which the first one is active.
struct Pairing<'t> {
    boxes: Boxes<'t>,
    keepalived: [Keepalived; 2],
}

impl<'t> Pairing<'t> {
    fn start(pair: &'t TwoBoxes) -> Result<Self> {
        let boxes = Boxes::start(pair)?;
        pair.take_marker(BoxName::Lb1)?;
        let first = Keepalived::start_beside_lb(pair, BoxName::Lb1)?;
        boxes.wait_until_served_by(BoxName::Lb1, FIRST)?;
        let second = Keepalived::start_beside_lb(pair, BoxName::Lb2)?;
        Ok(Self {
            boxes,
            keepalived: [first, second],
        })
    }

    fn log(&self) -> String {
        self.keepalived.each_ref().map(Keepalived::log).concat()
    }
}

/// The exit code and the line of `lb health --box`.
fn health(pairing: &Pairing<'_>, name: BoxName) -> Result<(Option<i32>, String)> {
    let said = pairing.boxes.lb(name).tell(&["health", "--box"])?;
    Ok((said.code, said.stdout))
}

/// An operator has the active box leave, and then the other one; a standby has nothing to leave. Every connection goes on.
#[privileged_test]
fn an_operator_moves_the_service() -> Result<()> {
    let pair = Topology::pair()?;
    let pairing = Pairing::start(&pair)?;
    let connections = Connections::open(&pair)?;
    for (from, to) in [(BoxName::Lb1, BoxName::Lb2), (BoxName::Lb2, BoxName::Lb1)] {
        let refused = pairing.boxes.lb(to).tell(&["ha", "move"])?;
        ensure!(
            refused.code == Some(2) && refused.stderr.contains("stands by"),
            "{refused:?}"
        );
        let said = pairing.boxes.lb(from).tell(&["ha", "move"])?;
        ensure!(said.code == Some(0), "{said:?}\n{}", pairing.log());
        println!("{}", said.stdout.trim());
        pairing.boxes.wait_until_served_by(to, LEFT)?;
        connections.ensure_alive()?;
        pairing.boxes.wait_for_replicas(from, COUNT)?;
        // It is fit again, and the marker stays.
        assert_eq!(health(&pairing, from)?.0, Some(0));
        ensure!(pair.has_marker(to)? && !pair.has_marker(from)?);
    }
    connections.close()
}

/// A box that loses a carrier leaves the service to the one that has all; a kill of its process moves nothing. `lb down` is unknown.
#[privileged_test]
fn a_box_gives_way_to_one_that_carries_more() -> Result<()> {
    let pair = Topology::pair()?;
    let mut pairing = Pairing::start(&pair)?;
    let connections = Connections::open(&pair)?;
    pairing.boxes.wait_for_replicas(BoxName::Lb2, COUNT)?;
    let (code, line) = health(&pairing, BoxName::Lb1)?;
    assert_eq!(
        (code, line.trim()),
        (Some(0), "fit: 2 of 2 networks, the other box 2")
    );

    let port = BoxName::Lb1.port();
    pair.tenant_lan
        .ip_batch(&format!("link set {port} down\n"))?;
    let (_, line) = health(&pairing, BoxName::Lb1)?;
    ensure!(
        line.starts_with("unfit: 1 of 2 networks, the other box 2") && line.contains("eth0"),
        "{line}"
    );
    let took = pairing.boxes.wait_until_served_by(BoxName::Lb2, LEFT);
    println!(
        "the other box serves after {:.0?}",
        took.with_context(|| pairing.log())?
    );
    connections.ensure_alive_after(LEFT)?;
    pair.tenant_lan.ip_batch(&format!("link set {port} up\n"))?;
    poll::until("the first box to be fit", LEFT, || {
        Ok((health(&pairing, BoxName::Lb1)?.0 == Some(0)).then_some(()))
    })?;

    pairing.boxes.second.kill()?;
    let (code, line) = health(&pairing, BoxName::Lb2)?;
    assert_eq!(code, Some(0), "{line}");
    connections.ensure_alive()?;
    ensure!(pair.has_marker(BoxName::Lb2)?);
    pairing.boxes.first.process().stop()?;
    pairing.boxes.first.tell(&["down"])?.done()?;
    let (code, line) = health(&pairing, BoxName::Lb1)?;
    ensure!(code == Some(3) && line.contains("is not up"), "{line}");
    connections.close()
}
