//! Many connections and much data, and afterwards every id and every packet is accounted for.

use std::{
    net::Ipv4Addr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use lb_tests::{
    oracle::{capture::Capture, ids, packet_accounting::Ledger},
    poll,
    product::lb::Lb,
    servers::peers::{DNS_NAME, Peers},
    topology::{API, CONFIG, DNS, ECHO, Host, LB_PORT, SNAT, Topology},
    traffic::{
        client::{self, Transfer},
        programs,
    },
};

const CONNECTIONS: usize = 10_000;
const SOURCES: usize = 200;
const WORKERS: usize = 12;

/// Both in bytes.
const BULK_LONG: u64 = 1 << 30;
const BULK_SHORT: u64 = 1 << 28;

/// Measuring needs the machine for itself: the tests of this file run one after the other.
static MACHINE: Mutex<()> = Mutex::new(());

/// 10,000 short connections from 200 addresses: none fails, backends see one source, no id is lost.
#[privileged_test]
fn ten_thousand_connections_give_every_id_back() -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let topology = Topology::poc()?;
    for node in &topology.nodes {
        node.netns.keep_flows_on_a_cpu("eth0")?;
    }
    let peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let sources = add_sources(topology.client())?;
    let captures = capture_syns(&topology)?;
    let resets = capture_resets(&topology)?;
    let before = Ledger::read(&topology, &lb)?;

    if let Err(failures) = connect_from_all(topology.client(), &sources) {
        let resets: Vec<_> = resets.into_iter().map(Capture::stop).collect();
        return Err(failures.context(format!(
            "resets before the nodes and at the client: {resets:?}"
        )));
    }

    for (server, capture) in peers.nodes().iter().zip(captures) {
        let connections: u64 = server.echo_connections();
        let frames = capture.wait_for(usize::try_from(connections)?, Duration::from_secs(20))?;
        assert!(!frames.is_empty(), "{} got nothing", server.node.name);
        for frame in capture.stop()? {
            assert_eq!(frame.source, SNAT, "{frame:?}");
        }
    }
    let connections: u64 = peers
        .nodes()
        .iter()
        .map(|server| server.echo_connections())
        .sum();
    assert_eq!(connections, u64::try_from(CONNECTIONS)?);
    ensure_ids_come_back(&topology, &lb)?;
    Ledger::read(&topology, &lb)?.ensure_balanced_since(&before)
}

/// Bulk data each way is identical at both ends, and each packet of it has exactly one verdict.
#[privileged_test]
fn bulk_data_is_identical_at_both_ends_and_every_packet_is_counted() -> Result<()> {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();
    let before = Ledger::read(&topology, &lb)?;
    let bytes = bulk_bytes(&topology)?;

    let up = client.netns.inside(|| client::upload(ECHO, bytes, 1))??;
    report("upload", &up);
    assert_eq!(up.sent, up.received, "upload");
    let down = client.netns.inside(|| client::download(ECHO, bytes, 2))??;
    report("download", &down);
    assert_eq!(down.sent, down.received, "download");
    assert_ne!(up.sent, down.sent, "two seeds");

    // The other services, and what is refused, are in the sums as well.
    for _ in 0..20 {
        programs::curl(client, peers.certificate(), API)?;
        programs::dig(client, DNS, DNS_NAME, "TXT")?;
    }
    let after = Ledger::read(&topology, &lb)?;
    println!("{after}");
    let packets = after.verdicts.nic.forwarded - before.verdicts.nic.forwarded;
    assert!(
        packets > bytes / 1500,
        "{packets} packets cannot carry {bytes} bytes"
    );
    after.ensure_balanced_since(&before)
}

/// Gives the client all source addresses; the VIP is not among them.
fn add_sources(client: &Host) -> Result<Vec<Ipv4Addr>> {
    let hosts = (10..50).chain(60..100).chain(120..240);
    let sources: Vec<Ipv4Addr> = hosts
        .map(|host| Ipv4Addr::new(192, 168, 203, host))
        .collect();
    ensure!(sources.len() == SOURCES, "{} sources", sources.len());
    let lines: String = sources
        .iter()
        .map(|source| format!("addr add {source}/24 dev eth0\n"))
        .collect();
    client.netns.ip_batch(&lines)?;
    Ok(sources)
}

/// Makes all connections, each source in turn, and reports the first failures.
fn connect_from_all(client: &Host, sources: &[Ipv4Addr]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    let work = || loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= CONNECTIONS {
            return;
        }
        let source = sources[number % sources.len()];
        let failure = match client::who(Some(source), ECHO) {
            Ok(answer) if *answer.peer.ip() == SNAT => continue,
            Ok(answer) => format!("{source}: the backend saw {}", answer.peer),
            Err(error) => format!("{source}: {error:#}"),
        };
        failures
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(failure);
    };
    client.netns.inside(|| {
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                scope.spawn(work);
            }
        });
    })?;
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    ensure!(
        failures.is_empty(),
        "{} of {CONNECTIONS} connections failed: {:#?}",
        failures.len(),
        failures.iter().take(10).collect::<Vec<_>>(),
    );
    Ok(())
}

fn capture_syns(topology: &Topology) -> Result<Vec<Capture>> {
    topology
        .nodes
        .iter()
        .map(|node| {
            let syn = "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn";
            let filter = format!("dst host {} and {syn}", node.address);
            Capture::start(&node.netns, "eth0", &filter, topology.dir())
        })
        .collect()
}

/// Resets between lb and the nodes, and at the client: they say what a connection was broken by.
fn capture_resets(topology: &Topology) -> Result<Vec<Capture>> {
    let places = [
        (&topology.mgmt_lan, LB_PORT),
        (&topology.client().netns, "eth0"),
    ];
    let filter = "tcp[tcpflags] & tcp-rst != 0";
    places
        .into_iter()
        .map(|(netns, port)| Capture::start(netns, port, filter, topology.dir()))
        .collect()
}

/// Waits until no flow is live; then the queue must hold every id exactly once.
fn ensure_ids_come_back(topology: &Topology, lb: &Lb<'_>) -> Result<()> {
    let flows = poll::until("no live flows", Duration::from_secs(30), || {
        let flows = lb.status()?.flows;
        ensure!(flows.free + flows.live <= flows.capacity, "{flows:?}");
        Ok((flows.live == 0).then_some(flows))
    })?;
    ensure!(
        flows.free + flows.live == flows.capacity,
        "ids are lost: {flows:?}"
    );
    let mut queued = ids::queued(topology.run())?;
    queued.sort_unstable();
    queued.dedup();
    ensure!(
        queued.len() == usize::try_from(flows.capacity)?,
        "{} different ids in the queue, {flows:?}",
        queued.len()
    );
    Ok(())
}

/// 1 GiB each way where that takes less than a minute, else a quarter of it; `LB_TEST_LONG` insists.
fn bulk_bytes(topology: &Topology) -> Result<u64> {
    if std::env::var_os("LB_TEST_LONG").is_some() {
        return Ok(BULK_LONG);
    }
    let probe = topology
        .client()
        .netns
        .inside(|| client::upload(ECHO, BULK_SHORT / 8, 3))??;
    let is_fast = probe.elapsed.saturating_mul(32) < Duration::from_secs(30);
    Ok(if is_fast { BULK_LONG } else { BULK_SHORT })
}

fn report(what: &str, transfer: &Transfer) {
    let Transfer { bytes, elapsed, .. } = transfer;
    let rate = transfer.megabits_per_second();
    println!("{what}: {bytes} bytes in {elapsed:.1?}, {rate} Mbit/s");
}
