//! What Debian's HAProxy does in the place of both boxes, with the same keepalived: for the figures beside those of `rounds`.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    process::Process,
    servers::keepalived::Keepalived,
    topology::{BoxName, TENANT_NIC, Topology, TwoBoxes, VIP},
    traffic::{dialer::Dialer, talks::Talks},
};
use nix::sys::signal::Signal;

use super::{
    BUSY, BUSY_PORT, IDLE, IDLE_PORT, PROBE, PROBE_PORT, TAKEN_OVER,
    power_off::ALONE,
    rounds::{BUSY_COUNT, IDLE_COUNT, PAUSE, answered},
    seen_as, server,
};

const START: Duration = Duration::from_secs(10);
/// New connections go on for so long after the box that takes over serves.
const AFTER: Duration = Duration::from_secs(1);
/// How long a connection may hear nothing.
const HEARD: Duration = Duration::from_secs(6);

/// Both boxes accept at the VIP, which keepalived gives to one of them.
fn start(pair: &TwoBoxes, name: BoxName) -> Result<Process> {
    let site = pair.site(name);
    site.lb.set_sysctl("ipv4/ip_nonlocal_bind", "1")?;
    let node = pair.nodes[0].address;
    let services = [(IDLE, IDLE_PORT), (BUSY, BUSY_PORT), (PROBE, PROBE_PORT)];
    let listen = services
        .map(|(vip, port)| format!("listen p{port}\n  bind {vip}\n  server n {node}:{port}\n"));
    let text = format!(
        "defaults
  mode tcp
  maxconn 5000
  timeout connect 1s
  timeout client 1m
  timeout server 1m
{}",
        listen.concat()
    );
    let file = site.write("haproxy.cfg", &text)?;
    let words = ["-db", "-f", file.to_str().context("a path")?];
    let process = Process::start(&site.lb.path(), site.dir(), "haproxy", "haproxy", &words)?;
    poll::until("HAProxy listens", START, || {
        let port = format!(":{} ", PROBE.port());
        Ok(site.lb.run("ss -Hltn")?.contains(&port).then_some(()))
    })
    .with_context(|| process.stderr())?;
    Ok(process)
}

fn wait_until_served_by(pair: &TwoBoxes, name: BoxName) -> Result<()> {
    poll::until("a connection through HAProxy", TAKEN_OVER, || {
        let seen = seen_as(pair.client(), PROBE)?;
        Ok((seen == Some(name.host())).then_some(()))
    })
    .with_context(|| name.name())
}

/// New connections come as soon as the VIP has moved; those that are open know nothing of the other box.
#[privileged_test]
fn connections_through_haproxy_end_with_their_box() -> Result<()> {
    let pair = Topology::pair()?;
    let keepalived = |name| Keepalived::start_with_vip(&pair, name, VIP, TENANT_NIC);
    let first = keepalived(BoxName::Lb1)?;
    poll::until("the marker at lb1", ALONE, || {
        Ok(pair.has_marker(BoxName::Lb1)?.then_some(()))
    })?;
    let _second = keepalived(BoxName::Lb2)?;
    let mut active = start(&pair, BoxName::Lb1)?;
    let _standby = start(&pair, BoxName::Lb2)?;
    let ports = [IDLE_PORT, BUSY_PORT, PROBE_PORT];
    let _servers: Vec<_> = ports
        .into_iter()
        .map(|port| server(&pair, port))
        .collect::<Result<_>>()?;
    wait_until_served_by(&pair, BoxName::Lb1)?;
    let client = pair.client();
    let mut idle = Talks::open(client, IDLE, IDLE_COUNT, "idle")?;
    let busy = Talks::open(client, BUSY, BUSY_COUNT, "busy")?.keep_busy(client, PAUSE)?;
    let dialer = Dialer::start(client, PROBE)?;
    thread::sleep(AFTER);

    busy.take().ensure_whole()?;
    let off = Instant::now();
    pair.power_off(BoxName::Lb1)?;
    active.signal(Signal::SIGKILL)?;
    first.kill()?;
    wait_until_served_by(&pair, BoxName::Lb2)?;
    thread::sleep(AFTER);
    let answered = answered(&dialer.end()?, off)?;
    let lost = [idle.exchange(HEARD), busy.take()].map(|talked| talked.broken.len());
    println!(
        "HAProxy: {} of {IDLE_COUNT} idle and {} of {BUSY_COUNT} busy connections live on, all SYNs are answered from {answered:.0?} on",
        IDLE_COUNT - lost[0],
        BUSY_COUNT - lost[1]
    );
    ensure!(lost == [IDLE_COUNT, BUSY_COUNT], "{lost:?} are broken");
    Ok(())
}
