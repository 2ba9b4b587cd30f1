//! Segments with guessed numbers against a connection between real kernels, and real aborts beside them.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::wire::header::{ACK, FIN, RST, SYN};
use lb_tests::{
    frames::{packet, raw::RawPort, segment::Segment},
    oracle::wire::Wire,
    poll,
    product::{config::Config, lb::Lb},
    topology::{ECHO, Host, TENANT_NIC, Topology, mac_of},
    traffic::conn_pair::{Pair, refused, reset, wait_for_reset},
};

use crate::flows::{
    keepalive::silence,
    life::{self, LIMIT, ensure_all_ids_are_free, line, only_flow},
};

/// How long probes may leave a doubt.
const DOUBT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// One connection in all; an idle one stays.
fn config() -> Config {
    let kept = "idle_timeout: never, keepalive: 1h";
    life::config()
        .network("tenant-a", |tenant| tenant.with("max_flows: 1"))
        .service("echo-a", |service| service.with(kept))
}

/// The same with two seconds of half-closing.
fn soon() -> Config {
    config().set("timeouts.half_closed", "2s")
}

/// The next number of the client, and what it has received: of its last segment.
fn numbers(at_client: &Wire) -> Result<(u32, u32)> {
    let frames = at_client.frames()?;
    let mut latest_first = frames.iter().rev();
    let last = latest_first.find_map(|frame| Segment::read(frame));
    let last = last.context("a segment of the client")?;
    Ok((last.next(), last.acknowledgment))
}

/// Another station of the client's network, which sends segments with the client's address.
fn spoof(topology: &Topology, pair: &Pair, segments: &[(u8, u32, u32)]) -> Result<()> {
    let station = &topology.clients[1];
    let port = RawPort::open(&station.netns, "eth0")?;
    let hops = [mac_of(&station.netns, "eth0")?, topology.mac(TENANT_NIC)?];
    let client = pair.client.local_addr()?.to_string();
    for &(flags, sequence, ack) in segments {
        let frame = packet::tcp(&client, &ECHO.to_string(), flags).numbers(sequence, ack);
        port.send(&frame.between(hops[0], hops[1]).bytes())?;
    }
    Ok(())
}

/// It is idle for longer than a doubt, and than half-closing, would let it be; and it counts all the while.
fn ensure_it_lives(topology: &Topology, lb: &Lb<'_>, pair: &Pair) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < DOUBT + 4 * SECOND {
        let flow = only_flow(lb)?;
        ensure!(flow.state == "established", "{flow:?}");
        refused(topology.client(), ECHO).context("it counts")?;
        thread::sleep(SECOND);
    }
    pair.talk()
}

/// A spoofed SYN and the reset behind it, resets and FINs near what is expected: the backend challenges them, and
/// neither it nor the client nor the budget loses the connection.
#[privileged_test]
fn spoofed_segments_end_no_connection() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &soon())?;
    let line = line(&topology)?;
    let at_client = Wire::received(&topology.tenant_lan, "p-c1", "tcp", topology.dir())?;
    let pair = line.open()?;

    // What it has said is in the capture then.
    thread::sleep(SECOND);
    let (next, ack) = numbers(&at_client)?;
    let far = next.wrapping_add(1 << 28);
    spoof(
        &topology,
        &pair,
        &[
            (SYN, 0x7777_0000, 0),
            (RST, 0x7777_0001, 0),
            (SYN, next.wrapping_sub(1), 0),
            (RST, next.wrapping_add(1), 0),
            (RST | ACK, next.wrapping_add(1000), ack),
            (RST, far, 0),
            (FIN | ACK, 0xdead_0000, ack),
            (FIN | ACK, far, ack),
            (ACK, far, ack),
        ],
    )?;
    ensure_it_lives(&topology, &lb, &pair)?;

    // The client's own exact one, and then there is room for another.
    reset(pair.client)?;
    wait_for_reset(&pair.server, LIMIT)?;
    ensure_all_ids_are_free(&topology, &lb)?;
    line.open()?.talk()
}

/// An abort behind data that the backend has not acknowledged: neither is its reset exact, nor does the backend hear
/// of it. A probe finds out.
#[privileged_test]
fn an_abort_behind_data_in_flight_ends_soon() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &soon())?;
    let line = line(&topology)?;
    let pair = line.open()?;
    let node = &topology.nodes[0];
    silence(node)?;

    in_flight(&pair)?;
    let aborted = Instant::now();
    reset(pair.client)?;

    ensure_all_ids_are_free(&topology, &lb)?;
    let elapsed = aborted.elapsed();
    ensure!(elapsed < DOUBT / 2, "ended after {elapsed:?}");
    hears_again(node)?;
    line.open()?.talk()
}

/// The same of an end that is gone and another that is silent: the flow ends when neither has answered.
#[privileged_test]
fn an_abort_that_nothing_confirms_ends_a_flow_of_silent_ends() -> Result<()> {
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let lb = Lb::start(&topology, &config().set("log.flows", &log))?;
    let line = line(&topology)?;
    let pair = line.open()?;
    silence(&topology.nodes[0])?;
    in_flight(&pair)?;
    silence(topology.client())?;
    let aborted = Instant::now();
    reset(pair.client)?;

    poll::until("the end", 3 * LIMIT, || {
        Ok(lb.flows()?.is_empty().then_some(()))
    })?;
    let elapsed = aborted.elapsed();
    ensure!(
        (DOUBT..DOUBT + 6 * SECOND).contains(&elapsed),
        "ended after {elapsed:?}"
    );
    ensure_all_ids_are_free(&topology, &lb)?;
    poll::until("the reason", LIMIT, || {
        let text = fs::read_to_string(&log).context("read the flow log")?;
        Ok(text.contains("\"reason\":\"dead\"").then_some(()))
    })
}

/// A word of the client that is not acknowledged.
fn in_flight(pair: &Pair) -> Result<()> {
    use std::io::Write as _;
    (&pair.client).write_all(b"in flight").context("send")?;
    // It has left when the reset is sent.
    thread::sleep(SECOND / 10);
    Ok(())
}

fn hears_again(host: &Host) -> Result<()> {
    host.netns.run("nft delete table ip quiet").map(drop)
}
