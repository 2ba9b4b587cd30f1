//! Ends of a shared VIP that say nothing: backends that do not answer (FEATURES B17), ends that have
//! vanished (A8), and clients that do not say what they want (RELIABILITY 12).

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use lb_tests::{
    client::open,
    hello::{captured_of, named},
    lb::Lb,
    pair::{Pair, wait_for_reset},
    teller,
    topology::{Host, Topology},
};

use crate::{
    keepalive::{FOUND, silence},
    leg,
    shared::{self, PORT, SHARED, counted, counted_refusal},
    shared_guard::{beside, config, teller, tellers},
};

/// How long a backend may take until the next one is tried.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a thing may take longer than it has to.
const SLACK: Duration = Duration::from_secs(1);
/// Clients of a name whose backends are silent.
const CLIENTS: usize = 20;

/// B17: where the first backend hears and does not answer, and the next one as well, the client is served by
/// the last, after the time that each of them had.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn b17_a_silent_backend_costs_no_more_than_its_time() -> Result<()> {
    let topology = Topology::poc()?;
    let nodes = &topology.nodes[..3];
    let tellers = nodes.iter().zip(["silent", "silent", "served"]);
    let _tellers = tellers
        .map(|(node, name)| teller(node, name))
        .collect::<Result<Vec<_>>>()?;
    nodes[..2].iter().try_for_each(silence)?;
    let lb = Lb::start(&topology, &one_pool(&topology, nodes))?;

    let hello = named(b"d.lab");
    let ask = || -> Result<Duration> {
        let start = Instant::now();
        let ask = || teller::ask(SHARED, &[&hello], Duration::ZERO);
        let reached = topology.client().netns.inside(ask)??;
        ensure!(reached.as_deref() == Some("served"), "{reached:?}");
        Ok(start.elapsed())
    };
    let took = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        let clients = clients.into_iter();
        let took = clients.map(|client| client.join().expect("clients do not panic"));
        took.collect::<Result<Vec<_>>>()
    })?;

    let mut redispatched = 0;
    for took in took {
        let silent = u32::try_from(took.as_secs() / PATIENCE.as_secs())?;
        ensure!(silent <= 2, "served after {took:?}");
        ensure!(took < PATIENCE * silent + SLACK, "served after {took:?}");
        redispatched += u64::from(silent > 0);
    }
    // Two of three come to a silent one first.
    ensure!(redispatched > 0, "no backend was silent");
    assert_eq!(counted(&lb, "redispatched")?, redispatched);
    Ok(())
}

/// The nodes as the backends of `d.lab`.
fn one_pool(topology: &Topology, nodes: &[Host]) -> String {
    let backends = nodes
        .iter()
        .map(|node| format!("\"{}:{PORT}\"", node.address));
    let backends = backends.collect::<Vec<_>>().join(", ");
    let pool = format!("pools:\n  d: {{ network: mgmt, backends: [{backends}] }}\n");
    let config = shared::config(topology, "routes: [{ names: [d.lab], pool: d }]");
    config.replace("pools:\n", &pool)
}

/// Keys of a service whose legs are for ever while both ends answer.
const KEPT: &str = "idle_timeout: never, keepalive: 1s,";
/// In which the last acknowledgment has come: an end that has bytes to deliver does not ask.
const SETTLED: Duration = Duration::from_millis(500);

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a8_a_backend_that_vanishes_is_found_and_its_client_reset() -> Result<()> {
    vanishes(|topology| &topology.nodes[0], |pair| &pair.client)
}

#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn a8_a_client_that_vanishes_is_found_and_its_backend_reset() -> Result<()> {
    vanishes(Topology::client, |pair| &pair.server)
}

/// An idle leg stays while both ends answer; once one has vanished, the other is reset in time.
fn vanishes(gone: fn(&Topology) -> &Host, told: fn(&Pair) -> &TcpStream) -> Result<()> {
    let topology = Topology::poc()?;
    let line = leg::line(&topology)?;
    let lb = Lb::start(&topology, &leg::config(&topology, KEPT, ""))?;
    let pair = line.open()?;
    let [soonest, latest] = FOUND;
    // Long enough for who does not answer.
    thread::sleep(2 * soonest);
    pair.talk()?;
    thread::sleep(SETTLED);

    let cut = Instant::now();
    gone(&topology).netns.ip_batch("link set eth0 down\n")?;

    wait_for_reset(told(&pair), latest)?;
    let found = cut.elapsed();
    ensure!((soonest - SETTLED..latest).contains(&found), "{found:?}");
    leg::wait_for(&lb, 0)
}

/// How long a hello may take here, and how many say nothing, and how many a part of it.
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);
const EACH: usize = 100;
/// Bytes of a hello before its name.
const PART: usize = 60;

/// RELIABILITY 12: who says nothing, or 60 bytes of a hello and then nothing, is closed when its time is over,
/// and nobody else is slow for it.
#[test]
#[ignore = "needs CAP_BPF, CAP_NET_ADMIN: cargo xtask test"]
fn r12_who_holds_back_is_closed_in_time() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = tellers(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, "hello_timeout: 1s, "))?;
    let [holding, other] = &topology.clients[..] else {
        bail!("there are two clients");
    };
    let hello = captured_of("curl-h2")?.bytes;
    let hold = || hold(holding.address, &hello[..PART]);
    let (closed, measured) = beside(other, || holding.netns.inside(hold)?)?;
    println!("{measured} beside {} who hold back", closed.len());
    for after in &closed {
        ensure!(
            (HELLO_TIMEOUT..HELLO_TIMEOUT + SLACK).contains(after),
            "closed after {after:?}"
        );
    }
    assert_eq!(counted_refusal(&lb, "timeout")?, u64::try_from(2 * EACH)?);
    measured.ensure_quick()
}

/// Opens connections, of which every second says `part`; how long each was there until it was closed, with
/// no word and no reset.
fn hold(from: Ipv4Addr, part: &[u8]) -> Result<Vec<Duration>> {
    let mut all = Vec::new();
    for number in 0..2 * EACH {
        let start = Instant::now();
        let mut stream = open(Some(from), SHARED)?;
        if number % 2 == 0 {
            stream.write_all(part)?;
        }
        all.push((start, stream));
    }
    let closed = all.into_iter().map(|(start, mut stream)| {
        let mut said = Vec::new();
        stream.read_to_end(&mut said)?;
        ensure!(said.is_empty(), "{said:?} was said");
        Ok(start.elapsed())
    });
    closed.collect()
}
