//! Backends of a shared VIP that refuse, are silent or are not there: FEATURES B17.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use lb_tests::{
    product::{config::Config, lb::Lb},
    servers::teller,
    topology::{Host, Topology},
    traffic::{client::open, hello::named},
};

use crate::{
    flows::keepalive::silence,
    proxy::{
        bind::hellos,
        guard::teller,
        sni::{self, PORT, SHARED, Site, counted, counted_refusal, reaches},
    },
};

/// How long a backend may take until the next one is tried, and how long there is a next one.
const TIMEOUT: Duration = Duration::from_secs(2);
const TRYING: Duration = Duration::from_secs(5);
/// What a thing may take longer than it has to.
const SLACK: Duration = Duration::from_secs(1);
/// Clients of a name some of whose backends do not serve.
const CLIENTS: usize = 20;
/// The alert of RFC 8446 section 6 for what is not the client's fault: a record of two bytes, fatal.
const INTERNAL_ERROR: [u8; 7] = [21, 3, 1, 0, 2, 2, 80];

/// Where the first backend refuses the client sees nothing of it: by openssl.
#[privileged_test]
fn b17_a_backend_that_refuses_is_not_seen() -> Result<()> {
    let topology = Topology::poc()?;
    let _site = Site::new(&topology)?;
    // No socket listens on the fourth.
    let both = [&topology.nodes[3], &topology.nodes[0]];
    let lb = Lb::start(
        &topology,
        &one_pool(&topology, &both.map(|node| node.address)),
    )?;
    for _ in 0..CLIENTS {
        let start = Instant::now();
        reaches(topology.client(), Some("d.lab"), "a.lab", "")?;
        ensure!(start.elapsed() < TIMEOUT, "{:?}", start.elapsed());
    }
    let counted = counted(&lb, "redispatched")?;
    ensure!((1..=20).contains(&counted), "{counted} went to another one");
    Ok(())
}

/// However many refuse, the one that does not is found at once.
#[privileged_test]
fn b17_of_four_the_one_that_lives_is_found() -> Result<()> {
    let topology = Topology::poc()?;
    let _teller = teller(&topology.nodes[2], "served")?;
    let all = addresses(&topology.nodes);
    ensure!(all.len() == 4, "{all:?}");
    let lb = Lb::start(&topology, &one_pool(&topology, &all))?;
    let took = ask_all(&topology, &lb)?;
    let slowest = took.iter().max().copied().unwrap_or_default();
    ensure!(slowest < SLACK, "served after {slowest:?}");
    let counted = counted(&lb, "redispatched")?;
    // One of four comes to it first.
    ensure!((1..=20).contains(&counted), "{counted} went to another one");
    Ok(())
}

/// Where the first backend hears and does not answer, and the next one as well, the client is served by
/// the last, after the time that each of them had.
#[privileged_test]
fn b17_a_silent_backend_costs_no_more_than_its_time() -> Result<()> {
    let topology = Topology::poc()?;
    let nodes = &topology.nodes[..3];
    let tellers = nodes.iter().zip(["silent", "silent", "served"]);
    let _tellers = tellers
        .map(|(node, name)| teller(node, name))
        .collect::<Result<Vec<_>>>()?;
    nodes[..2].iter().try_for_each(silence)?;
    let lb = Lb::start(&topology, &one_pool(&topology, &addresses(nodes)))?;
    costs_time(&lb, &ask_all(&topology, &lb)?, 2)
}

/// An address that no station has is one that is silent.
#[privileged_test]
fn b17_an_address_without_a_station_costs_no_more_than_its_time() -> Result<()> {
    let topology = Topology::poc()?;
    let node = &topology.nodes[0];
    let _teller = teller(node, "served")?;
    let absent = Ipv4Addr::new(10, 32, 96, 199);
    let lb = Lb::start(&topology, &one_pool(&topology, &[absent, node.address]))?;
    for took in ask_all(&topology, &lb)? {
        // The kernel may know already that there is no such host.
        ensure!(took < TIMEOUT + SLACK, "served after {took:?}");
    }
    // Where its next hop was silent before the first client, no client is sent there.
    let backends = lb.tell(&["backends", "-o", "json"])?.done()?;
    ensure!(
        counted(&lb, "redispatched")? > 0 || backends.contains("unreachable"),
        "no connection came there first: {backends}"
    );
    Ok(())
}

/// Where all refuse the client gets an alert at once, and nothing else.
#[privileged_test]
fn b17_where_all_refuse_the_client_is_told_so() -> Result<()> {
    let topology = Topology::poc()?;
    let all = addresses(&topology.nodes[..3]);
    let lb = Lb::start(&topology, &one_pool(&topology, &all))?;
    is_told(&topology, Duration::ZERO..SLACK)?;
    assert_eq!(counted_refusal(&lb, "unreachable")?, 1);
    assert_eq!(counted(&lb, "redispatched")?, 0);
    Ok(())
}

/// The same where XDP asks the backends, and leaves the client to the process when all of them have refused.
#[privileged_test]
fn b17_where_all_refuse_xdp_the_client_is_told_so() -> Result<()> {
    let topology = Topology::poc()?;
    let all = addresses(&topology.nodes[..3]);
    let lb = Lb::start(&topology, &one_pool_by(&topology, &all, "always"))?;
    is_told(&topology, Duration::ZERO..SLACK)?;
    assert_eq!(counted_refusal(&lb, "unreachable")?, 1);
    let ends = BTreeMap::from([("unanswered".to_owned(), 1)]);
    assert_eq!(hellos(&lb)?, ends);
    Ok(())
}

/// Where all are silent the client gets an alert after the time that there is for all of them: the fourth is
/// not waited for.
#[privileged_test]
fn b17_where_all_are_silent_the_client_is_told_so_in_time() -> Result<()> {
    let topology = Topology::poc()?;
    let nodes = &topology.nodes;
    let _tellers = nodes
        .iter()
        .map(|node| teller(node, "silent"))
        .collect::<Result<Vec<_>>>()?;
    nodes.iter().try_for_each(silence)?;
    let lb = Lb::start(&topology, &one_pool(&topology, &addresses(nodes)))?;
    // The last one that is tried in time has its own.
    is_told(&topology, TRYING..TRYING + TIMEOUT)?;
    assert_eq!(counted_refusal(&lb, "unreachable")?, 1);
    Ok(())
}

fn addresses(nodes: &[Host]) -> Vec<Ipv4Addr> {
    nodes.iter().map(|node| node.address).collect()
}

/// These as the backends of `d.lab`, to which the process connects.
fn one_pool(topology: &Topology, backends: &[Ipv4Addr]) -> Config {
    one_pool_by(topology, backends, "never")
}

/// The same with this `late_binding`.
fn one_pool_by(topology: &Topology, backends: &[Ipv4Addr], late_binding: &str) -> Config {
    let backends = backends.iter();
    let backends = backends.map(|&address| SocketAddrV4::new(address, PORT));
    let sni = format!("late_binding: {late_binding}, routes: [{{ names: [d.lab], pool: d }}]");
    sni::config(topology, &sni[..]).mgmt_pool("d", backends)
}

/// How long it took until each of many clients at the same time was served.
fn ask_all(topology: &Topology, lb: &Lb<'_>) -> Result<Vec<Duration>> {
    let hello = named(b"d.lab");
    let ask = || -> Result<Duration> {
        let start = Instant::now();
        let ask = || teller::ask(SHARED, &[&hello], Duration::ZERO);
        let reached = topology.client().netns.inside(ask)??;
        let took = start.elapsed();
        ensure!(
            reached.as_deref() == Some("served"),
            "{reached:?} after {took:?}; {} were refused as unreachable",
            counted_refusal(lb, "unreachable")?
        );
        Ok(took)
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(ask)).collect();
        let clients = clients.into_iter();
        let took = clients.map(|client| client.join().expect("clients do not panic"));
        took.collect()
    })
}

/// Asserts that the time of each was that of whole backends, of which there are so many, and how many are
/// counted.
fn costs_time(lb: &Lb<'_>, took: &[Duration], most: u32) -> Result<()> {
    let mut redispatched = 0;
    for took in took {
        let silent = u32::try_from(took.as_secs() / TIMEOUT.as_secs())?;
        ensure!(silent <= most, "served after {took:?}");
        ensure!(*took < TIMEOUT * silent + SLACK, "served after {took:?}");
        redispatched += u64::from(silent > 0);
    }
    // Every second comes to a silent one first, at least.
    ensure!(redispatched > 0, "no backend was silent");
    assert_eq!(counted(lb, "redispatched")?, redispatched);
    Ok(())
}

/// Asserts that a client gets the alert, in that time, that no backend can be reached, and nothing before or after.
fn is_told(topology: &Topology, time: Range<Duration>) -> Result<()> {
    let start = Instant::now();
    let mut stream = topology.client().netns.inside(|| open(None, SHARED))??;
    stream.set_read_timeout(Some(2 * TRYING))?;
    stream.write_all(&named(b"d.lab"))?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    assert_eq!(said, INTERNAL_ERROR);
    let took = start.elapsed();
    ensure!(time.contains(&took), "alert after {took:?}");
    Ok(())
}
