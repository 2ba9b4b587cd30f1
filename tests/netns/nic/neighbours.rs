//! Next hops that move while flows go on: RELIABILITY 28 to 30.

use std::{
    fmt::Write as _,
    net::SocketAddrV4,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    fault::stop_thread::freeze,
    netns::Netns,
    poll, process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::{ECHO, ECHO_NODE_PORT, Routed, TENANT_SNAT, Topology},
    traffic::conn_pair::{Line, Pair},
};

use crate::flows::life::{LIMIT, config, config_of, line};

/// RELIABILITY 28: from the announcement of a host that has moved to its next hop.
const FOLLOWED: Duration = Duration::from_millis(50);
/// Less than the time after which TCP sends again what was lost.
const NOT_LOST: Duration = Duration::from_millis(150);
/// A host that moves without an announcement is found by the cell's probes.
const PROBED: Duration = Duration::from_secs(20);
/// Moves, each longer after the one before than the same neighbour may be asked for again.
const MOVES: u8 = 5;
const PAUSE: Duration = Duration::from_millis(1200);

/// Moves the station to another MAC. A kernel with `arp_notify` says so itself.
fn move_to(station: &Netns, number: u8) -> Result<String> {
    let mac = format!("02:00:00:00:77:{number:02x}");
    station.run(&format!("ip link set dev eth0 address {mac}"))?;
    Ok(mac)
}

/// Moves a station a few times, which says so; each time nothing that is sent afterwards is lost.
fn ensure_followed(pair: &Pair, station: &Netns) -> Result<()> {
    station.set_sysctl("ipv4/conf/eth0/arp_notify", "1")?;
    let mut times = Vec::new();
    for number in 1..=MOVES {
        thread::sleep(PAUSE);
        move_to(station, number)?;
        thread::sleep(FOLLOWED);
        let start = Instant::now();
        pair.talk()?;
        times.push(start.elapsed());
    }
    println!("a word each way after a move: {times:?}");
    times.sort_unstable();
    // One may have been unlucky on a busy machine.
    let slowest = times.iter().rev().nth(1).context("several moves")?;
    ensure!(*slowest < NOT_LOST, "{times:?}");
    Ok(())
}

/// Opens a connection to the node behind a router.
fn far_line<'t>(topology: &'t Topology, far: &'t Routed) -> Result<Line<'t>> {
    Line::new(topology.client(), ECHO, &far.host, ECHO_NODE_PORT)
}

fn far_config(far: &Routed) -> Config {
    config_of(&[far.host.address]).network("mgmt", |mgmt| mgmt.route(far))
}

/// RELIABILITY 28: a backend fails over to another NIC and says so. The cell does not hear it, because the
/// host must.
#[privileged_test]
fn reliability_28_a_backend_that_says_that_it_moved_is_followed_at_once() -> Result<()> {
    let topology = Topology::poc()?;
    let _lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    ensure_followed(&pair, &topology.nodes[0].netns)
}

/// The same with the gateway of the backends.
#[privileged_test]
fn reliability_28_a_gateway_that_says_that_it_moved_is_followed_at_once() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_node()?;
    let _lb = Lb::start(&topology, &far_config(&far))?;
    let pair = far_line(&topology, &far)?.open()?;
    ensure_followed(&pair, &far.router)
}

/// And of a backend on a tenant's network, where only the cell hears it.
#[privileged_test]
fn reliability_28_a_worker_that_says_that_it_moved_is_followed_at_once() -> Result<()> {
    let topology = Topology::poc()?;
    let worker = &topology.workers[0];
    let tenant = |tenant: Keys| tenant.push("snat", TENANT_SNAT);
    let at = SocketAddrV4::new(worker.address, ECHO_NODE_PORT);
    let config = Config::poc()
        .without("networks", "mgmt")
        .network("tenant-a", tenant)
        .pool("echo-a", |pool| pool.on("tenant-a").backends([at]))
        .tcp_service("echo-a", ECHO);
    let _lb = Lb::start(&topology, &config)?;
    let line = Line::new(topology.client(), ECHO, worker, ECHO_NODE_PORT)?;
    ensure_followed(&line.open()?, &worker.netns)
}

/// RELIABILITY 28: neither end sends anything. The connection waits, and goes on.
#[privileged_test]
fn reliability_28_a_gateway_that_moves_without_a_word_is_found_again() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_node()?;
    let lb = Lb::start(&topology, &far_config(&far))?;
    let pair = far_line(&topology, &far)?.open()?;
    let moved = move_to(&far.router, 1)?;
    let start = Instant::now();
    wait_for_hop(&lb, &moved, PROBED)?;
    println!("found after {:?}", start.elapsed());
    pair.talk()
}

/// RELIABILITY 29: the kernel of the cell forgets every neighbour, again and again, or finds none. Next hops stay
/// as they were, and nothing is lost.
#[privileged_test]
fn reliability_29_a_cell_that_forgets_its_neighbours_loses_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let _lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    for _ in 0..100 {
        in_cell(&topology, &["ip", "neigh", "flush", "all"])?;
        let start = Instant::now();
        pair.talk()?;
        ensure!(start.elapsed() < NOT_LOST, "after {:?}", start.elapsed());
    }

    // The node does not answer ARP any more.
    let node = &topology.nodes[0].netns;
    node.set_sysctl("ipv4/conf/eth0/arp_ignore", "8")?;
    in_cell(&topology, &["ip", "neigh", "flush", "all"])?;
    poll::until("a neighbour that is not found", LIMIT, || {
        let neighbours = in_cell(&topology, &["ip", "neigh", "show"])?;
        Ok(neighbours
            .contains("10.32.96.105 dev cell extern_learn FAILED")
            .then_some(()))
    })?;
    for _ in 0..20 {
        let start = Instant::now();
        pair.talk()?;
        ensure!(start.elapsed() < NOT_LOST, "after {:?}", start.elapsed());
    }
    Ok(())
}

/// RELIABILITY 30: more events than the socket holds, and what matters is among those that are lost.
#[privileged_test]
fn reliability_30_after_lost_events_all_neighbours_are_read_anew() -> Result<()> {
    const EVENTS: u32 = 20_000;
    let topology = Topology::poc()?;
    let mut lb = Lb::start(&topology, &config())?;
    let _pair = line(&topology)?.open()?;
    let moved = "02:00:00:00:77:01";
    let mut lines = String::new();
    for number in 0..EVENTS {
        let mac = number % 200;
        writeln!(
            lines,
            "neigh replace 10.32.100.1 lladdr 02:00:00:00:66:{mac:02x} dev cell nud permanent"
        )?;
    }
    writeln!(
        lines,
        "neigh replace 10.32.96.105 lladdr {moved} dev cell nud permanent"
    )?;
    let lost = "events of neighbours were lost";
    assert!(!lb.process().stderr().contains(lost));

    // The network that was named first has the first id.
    let frozen = freeze(lb.process(), "neighbours-1")?;
    batch(&topology, &lines)?;
    drop(frozen);

    wait_for_hop(&lb, moved, Duration::from_secs(2))?;
    let log = lb.process().stderr();
    assert!(log.contains(lost), "{log}");
    Ok(())
}

fn wait_for_hop(lb: &Lb<'_>, moved: &str, limit: Duration) -> Result<()> {
    poll::until("the new next hop", limit, || {
        let hops = lb.backends()?.into_iter();
        let mut hops = hops.filter_map(|backend| backend.next_hop);
        Ok(hops.find(|hop| hop == moved).map(drop))
    })
}

fn mgmt_cell(topology: &Topology) -> String {
    format!("lb.{}.mgmt", topology.run())
}

/// Output of a command in the cell of the backends.
pub(crate) fn in_cell(topology: &Topology, words: &[&str]) -> Result<String> {
    let cell = format!("--net=/run/netns/{}", mgmt_cell(topology));
    process::succeed(Command::new("nsenter").arg(cell).args(words))
}

/// Runs lines of `ip` commands in the cell of the backends.
fn batch(topology: &Topology, lines: &str) -> Result<()> {
    let file = topology.write("batch", lines)?;
    let mut ip = Command::new("ip");
    ip.args(["-n", &mgmt_cell(topology), "-batch"]).arg(file);
    process::succeed(ip.stdin(Stdio::null())).map(drop)
}
