//! Attacks by TCP on what an L4 VIP shares: SNAT ports, rings, budgets.

use std::time::Duration;

use anyhow::{Result, ensure};
use lb_tests::{
    topology::{ECHO, Trunk},
    traffic::{
        flood::Flood,
        shadow::{Shadow, Then},
    },
};

use super::{
    attack::{Attack, NOWHERE, come_and_go, nowhere},
    endures,
    scene::{Scene, Setup},
    victim::Victim,
};

/// SYNs per second.
const FLOOD: u32 = 10_000;
/// Connections per second.
const CONNECTIONS: u32 = 1000;

/// SYNs to an L4 VIP that no ACK follows.
#[privileged_test]
fn syns_to_an_l4_vip() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?;
    let [_, next] = scene.hops()?;
    let flood = Flood::new([NOWHERE, next], nowhere(), ECHO);
    let attack = Attack::flood("SYNs to an L4 VIP", FLOOD, scene.attacker(), flood)?;
    endures(&scene, &mut victim, &attack)
}

/// One client opens a connection from each of its ports, and keeps them all.
#[privileged_test]
fn connections_from_all_ports_of_a_client() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?;
    let attacker = scene.attacker();
    let [_, next] = scene.hops()?;
    let _shadow = Shadow::start(attacker, NOWHERE, Then::Silence)?;
    let flood = Flood::new([NOWHERE, next], vec![attacker.address], ECHO);
    let attack = Attack::flood("connections from all ports", FLOOD, attacker, flood)?;
    endures(&scene, &mut victim, &attack)?;
    let standing = scene.standing(0)?;
    println!("{standing} connections of the attacker stand");
    ensure!(standing > 0, "the attacker has opened nothing");
    Ok(())
}

/// Connections that come and go, every second one closed by the backend first: its SNAT port rests then.
#[privileged_test]
fn connections_that_come_and_go() -> Result<()> {
    let trunk = Trunk::build()?;
    let scene = Scene::start(&trunk, Setup::default())?;
    let mut victim = Victim::start(&scene)?;
    let attack = Attack::new("connections that come and go", CONNECTIONS, |number| {
        // The attacker's share may be used up, and its own ports.
        let _refused: Result<()> = come_and_go(number % 2 == 0);
        Ok(())
    });
    endures(&scene, &mut victim, &attack.by(8))
}

/// Flows that the attacker may have, and those that it may have half-open.
const BUDGET: usize = 100;
const HALF_OPEN: usize = 64;
/// Connections that several CPUs may let in at once beyond a budget.
const SLACK: usize = 8;

/// A client resets its own connections with a number that is one too high: the backend challenges that, and
/// keeps the connection. It must go on counting, or a budget holds nothing, and the SNAT ports given to others
/// are in use at the backend.
#[privileged_test]
fn resets_of_own_connections_that_do_not_end_them() -> Result<()> {
    let trunk = Trunk::build()?;
    let setup = Setup {
        config: |config| {
            config.network("tenant-a", |tenant| {
                tenant.set("max_flows", BUDGET).set("half_open", HALF_OPEN)
            })
        },
        ..Setup::default()
    };
    let scene = Scene::start(&trunk, setup)?;
    let mut victim = Victim::start(&scene)?;
    let attacker = scene.attacker();
    let [_, next] = scene.hops()?;
    let _shadow = Shadow::start(attacker, NOWHERE, Then::ResetAhead)?;
    let flood = Flood::new([NOWHERE, next], vec![attacker.address], ECHO);
    let attack = Attack::flood("resets of own connections", CONNECTIONS, attacker, flood)?;
    let endured = endures(&scene, &mut victim, &attack.after(Duration::from_secs(2)));
    let standing = scene.standing(0)?;
    println!("{standing} connections of the attacker stand, who may have {BUDGET}");
    endured?;
    ensure!(standing <= BUDGET + SLACK, "{standing} connections stand");
    Ok(())
}
