//! What an operator says while it runs: FEATURES D11.

use std::{
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{poll, product::lb::Lb, topology::Topology, traffic::conn_pair::wait_for_reset};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, alive, connect, wait_for},
};

/// Connections in all of these tests.
const CONNECTIONS: usize = 40;

/// How many connections are reset, and how many live.
fn sort(connections: &[TcpStream]) -> Result<(usize, usize)> {
    let (mut ended, mut live) = (0, 0);
    for connection in connections {
        match wait_for_reset(connection, Duration::from_millis(50)) {
            Ok(_) => ended += 1,
            Err(_) => {
                alive(connection)?;
                live += 1;
            }
        }
    }
    Ok((ended, live))
}

/// D11: a drained backend gets nothing new and keeps what it has, until its time is over; over a reload
/// and a restart it stays drained.
#[privileged_test]
fn d11_a_drained_backend_finishes_what_it_has() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("drain_timeout: 6s");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let connections = connect(&topology, CONNECTIONS)?;
    let name = topology.nodes[1].name.to_string();

    let said = lb.tell(&["backend", "drain", &name])?.done()?;
    let drained = Instant::now();
    ensure!(said.contains("drains"), "{said}");
    assert_eq!(site.who(40)?.len(), 1);
    lb.reload(&config)?;
    assert_eq!(site.who(20)?.len(), 1, "after a reload");
    lb.kill()?;
    lb.restart(&config)?;
    assert_eq!(site.who(20)?.len(), 1, "after a restart");
    connections.iter().try_for_each(alive)?;
    let table = lb.tell(&["backends"])?.done()?;
    ensure!(table.contains("drained"), "{table}");

    poll::until("the end of its connections", LIMIT, || {
        let live = lb.status()?.flows.live;
        Ok((live < u64::try_from(CONNECTIONS)?).then_some(()))
    })?;
    let after = drained.elapsed();
    ensure!(
        after > Duration::from_secs(5) && after < Duration::from_secs(9),
        "after {after:?}"
    );
    let (ended, live) = sort(&connections)?;
    ensure!(ended > 0 && live > 0, "{ended} ended, {live} live");

    lb.tell(&["backend", "enable", &format!("echo-a/{name}")])?
        .done()?;
    assert_eq!(site.who(40)?.len(), 2);
    Ok(())
}

/// D11: disabled is at once, for old connections too, and over a crash; a weight is a weight; what is wrong is
/// said.
#[privileged_test]
fn d11_disable_and_weight() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("");
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let connections = connect(&topology, CONNECTIONS)?;
    let name = topology.nodes[1].name.to_string();
    lb.tell(&["backend", "disable", &name])?.done()?;
    poll::until("its connections are gone", Duration::from_secs(2), || {
        let live = lb.status()?.flows.live;
        Ok((live < u64::try_from(CONNECTIONS)?).then_some(()))
    })?;
    let (ended, live) = sort(&connections)?;
    ensure!(ended > 0 && live > 0, "{ended} ended, {live} live");
    assert_eq!(site.who(30)?.len(), 1);

    lb.kill()?;
    lb.restart(&config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    assert_eq!(site.who(30)?.len(), 1, "after a restart");
    let table = lb.tell(&["backends"])?.done()?;
    ensure!(table.contains("disabled"), "{table}");

    lb.tell(&["backend", "enable", &name])?.done()?;
    lb.tell(&["backend", "weight", &name, "9"])?.done()?;
    let weights: Vec<f64> = lb
        .health()?
        .iter()
        .map(|one| one.effective_weight)
        .collect();
    assert_eq!(weights, [1.0, 9.0]);
    let who = site.who(200)?;
    let share = who.get(&name).copied().unwrap_or_default();
    ensure!((150..200).contains(&share), "{who:?}");

    for wrong in [
        &["backend", "drain", "unknown"][..],
        &["backend", "weight", &name, "0"],
        &["backend", "weight", &name, "300"],
        &["backend", "drain", ""],
        &["flows", "--kill"],
        &["flows", "--kill", "--service", "unknown"],
        &["flows", "--kill", "--client", "1.2.3"],
    ] {
        let said = lb.tell(wrong)?;
        assert_eq!(said.code, Some(2), "{wrong:?}: {said:?}");
        ensure!(!said.stderr.is_empty(), "{wrong:?}");
    }
    let kinds: Vec<String> = lb.events()?.into_iter().map(|event| event.kind).collect();
    // Also of the process that was killed: `disable`, `enable` and `weight`.
    assert_eq!(
        kinds.iter().filter(|kind| *kind == "override").count(),
        3,
        "{kinds:?}"
    );
    Ok(())
}

/// Flows that are chosen end, and no others.
#[privileged_test]
fn d11_chosen_flows_end() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let connections = connect(&topology, CONNECTIONS)?;
    let flows = lb.flows()?;
    let one = &flows[0];
    lb.tell(&["flows", "--kill", "--snat", &one.snat])?.done()?;
    let (chosen, others): (Vec<_>, Vec<_>) = connections.iter().partition(|connection| {
        connection
            .local_addr()
            .is_ok_and(|address| address.to_string() == one.client)
    });
    let chosen = chosen.first().context("the connection of the flow")?;
    wait_for_reset(chosen, Duration::from_secs(2))?;
    others.iter().try_for_each(|connection| alive(connection))?;

    let said = lb
        .tell(&[
            "flows",
            "--kill",
            "--client",
            &topology.client().address.to_string(),
            "--service",
            "echo-a",
        ])?
        .done()?;
    ensure!(said.contains(&others.len().to_string()), "{said}");
    for other in others {
        wait_for_reset(other, Duration::from_secs(2))?;
    }
    assert_eq!(lb.status()?.flows.live, 0);
    Ok(())
}

/// The socket is for root and no other user.
#[privileged_test]
fn d11_only_root_may_ask() -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let lb = Lb::start(&topology, &site.http(""))?;
    let socket = format!("/run/lb/{}/lb.sock", topology.run());
    let mode = std::fs::metadata(&socket)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let body = r#"{"command":"health"}"#;
    let curl = |user: &str| {
        topology.lb.try_run(&format!(
            "{user} curl -sS --max-time 5 --unix-socket {socket} -d {body} http://lb/v1/request"
        ))
    };
    let answer = curl("")?;
    ensure!(
        String::from_utf8_lossy(&answer.stdout).contains("\"health\""),
        "{answer:?}"
    );
    let answer = curl("setpriv --reuid=65534 --regid=65534 --clear-groups --")?;
    ensure!(!answer.status.success(), "{answer:?}");
    lb.down()
}
