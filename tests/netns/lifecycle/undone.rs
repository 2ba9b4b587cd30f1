//! What a process has begun and not done when it ends: the cut of a change.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    fault::stop_thread::freeze,
    product::lb::Lb,
    topology::{ECHO, Host, Topology},
    traffic::{client, conn_pair::wait_for_reset},
};
use nix::sys::signal::Signal;

use crate::{
    flows::life::{LIMIT, config, config_of, ensure_all_ids_are_free, line},
    health::verdicts::{Site, alive},
};

/// The thread that ends flows.
const EXPIRY: &str = "expiry";

/// A process that is killed between a change and its cut leaves the cut to the next one: a listener
/// that is gone, with its VIP and service, and a client that may not come any more. Others notice
/// neither the kill nor the start, also those of a backend and a SNAT address that drain.
#[privileged_test]
fn a_cut_that_a_kill_has_prevented_is_made_at_the_next_start() -> Result<()> {
    let topology = Topology::poc()?;
    let _site = Site::new(&topology, 2)?;
    let [one, other] = [0, 1].map(|index| &topology.clients[index]);
    let [n1, n2, ..] = [0, 1].map(|index| topology.nodes[index].address);
    let before = config_of(&[n1, n2])
        .network("mgmt", |mgmt| mgmt.push("snat", "10.32.96.51"))
        .tcp_service_to("echo-b", "192.168.203.111:7000", "echo-a");
    let allowed = [format!("{}/32", one.address)];
    let after = config().service("echo-a", |service| service.set("allow", allowed));
    let mut lb = Lb::start(&topology, &before)?;
    let to_b = SocketAddrV4::new(Ipv4Addr::new(192, 168, 203, 111), ECHO.port());
    let stay = connect(one, ECHO)?;
    let (closed, denied) = (connect(one, to_b)?, connect(other, ECHO)?);

    settle(&lb, &before)?;
    let frozen = freeze(lb.process(), EXPIRY)?;
    lb.reload(&after)?;
    lb.process().signal(Signal::SIGKILL)?;
    drop(frozen);
    lb.kill()?;
    // A client whose VIP is gone reaches no server.
    stay.iter()
        .chain(&denied)
        .try_for_each(alive)
        .context("no process has cut them")?;

    lb.restart(&after)?;
    for connection in closed.iter().chain(&denied) {
        wait_for_reset(connection, LIMIT)?;
    }
    stay.iter().try_for_each(alive)?;
    lb.kill()?;
    lb.restart(&after)?;
    stay.iter().try_for_each(alive)
}

/// Waits until the cut of the start is made: a reload does, also one that changes nothing.
fn settle(lb: &Lb<'_>, config: &str) -> Result<()> {
    let begun = Instant::now();
    lb.reload(config)?;
    println!("the cut of the start is made {:?} later", begun.elapsed());
    Ok(())
}

/// Connections to echo servers.
fn connect(client: &Host, to: SocketAddrV4) -> Result<Vec<TcpStream>> {
    let open = |_| -> Result<TcpStream> {
        let connection = client.netns.inside(|| client::open(None, to))??;
        (&connection)
            .write_all(b"echo\n")
            .context("say what it is for")?;
        alive(&connection)?;
        Ok(connection)
    };
    (0..20).map(open).collect()
}

/// A process that is ordered to end in the middle of a cut makes it to its end. The table is as large as
/// that of one network may be, and flows are everywhere in it.
#[privileged_test]
fn a_stop_in_the_middle_of_a_cut_makes_it() -> Result<()> {
    let topology = Topology::poc()?;
    let addresses = (50..66).map(|last| Ipv4Addr::new(10, 32, 96, last));
    let config = config()
        .network("mgmt", |mgmt| mgmt.snat(addresses))
        .set("limits.snat_addresses", 16);
    let closed = config.clone().without("services", "echo-a");
    let mut lb = Lb::start(&topology, &config)?;
    let pairs = line(&topology)?.open_many(64)?;
    settle(&lb, &config)?;
    let frozen = freeze(lb.process(), EXPIRY)?;
    lb.reload(&closed)?;
    lb.process().signal(Signal::SIGTERM)?;
    // Until no process is left that could take an order.
    thread::sleep(Duration::from_millis(500));
    drop(frozen);
    lb.process().wait_for_end(LIMIT)?;
    for pair in &pairs {
        pair.wait_for_resets(LIMIT)?;
    }
    lb.restart(&closed)?;
    ensure_all_ids_are_free(&topology, &lb)
}

/// A change does not open what the cut of the one before still goes through: it waits, or is refused.
#[privileged_test]
fn a_change_does_not_overtake_the_cut_of_the_one_before() -> Result<()> {
    let topology = Topology::poc()?;
    let open = config();
    let closed = config().service("echo-a", |service| {
        service.with("allow: [192.168.203.1/32]")
    });
    let mut lb = Lb::start(&topology, &open)?;
    let line = line(&topology)?;
    let old = line.open()?;
    settle(&lb, &open)?;
    let frozen = freeze(lb.process(), EXPIRY)?;
    lb.reload(&closed)?;
    lb.write(&open)?;
    let said = lb.tell(&["reload"])?;
    assert_eq!(said.code, Some(1), "{said:?}");
    ensure!(said.stderr.contains("nothing is changed"), "{said:?}");
    drop(frozen);
    lb.tell(&["reload"])?.done()?;
    let new = line.open()?;
    old.wait_for_resets(LIMIT)?;
    new.talk()
}
