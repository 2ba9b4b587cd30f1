//! Checks and what follows from them: FEATURES E1, E4, E8 to E11, E13, RELIABILITY 4 and 6.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddrV4, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::wire::Wire,
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::{answers::Answers, echo::EchoServer},
    topology::{ECHO, ECHO_NODE_PORT, Host, Topology},
    traffic::{client, conn_pair::refused},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::flows::life::LIMIT;

/// Where the nodes say how they are.
pub(crate) const HEALTH_PORT: u16 = 31936;

/// Checks that find out within a second.
pub(crate) const FAST: &str =
    "interval: 200ms, timeout: 150ms, fast_interval: 100ms, rise: 2, fall: 3";

/// What FAST takes at most from a change to the verdict, and more for a machine that is busy.
pub(crate) const SOON: Duration = Duration::from_secs(3);

/// Nodes whose echo service is checked.
pub(crate) struct Site<'t> {
    pub(crate) topology: &'t Topology,
    /// The nodes' health endpoints.
    pub(crate) health: Vec<Answers>,
    /// Their echo servers.
    _echo: Vec<EchoServer<'t>>,
}

impl<'t> Site<'t> {
    /// As many nodes, which all serve.
    pub(crate) fn new(topology: &'t Topology, nodes: usize) -> Result<Self> {
        let mut site = Self {
            topology,
            health: Vec::new(),
            _echo: Vec::new(),
        };
        for node in topology.nodes.iter().take(nodes) {
            let at = |port| SocketAddrV4::new(node.address, port);
            site.health
                .push(Answers::start(&node.netns, at(HEALTH_PORT))?);
            let echo = EchoServer::start(&node.netns, at(ECHO_NODE_PORT), node.name)?;
            site._echo.push(echo);
        }
        Ok(site)
    }

    /// The configuration with this check and these other keys of the pool.
    pub(crate) fn config(&self, health: impl Into<Keys>, pool: &str) -> Config {
        let nodes = self.topology.nodes.iter().take(self.health.len());
        let backend = |node: &Host| {
            let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
            json!({ "name": node.name, "address": address })
        };
        let backends: Vec<Value> = nodes.map(backend).collect();
        let health = health.into();
        Config::poc()
            .pool("echo-a", |echo| {
                let echo = echo.on("mgmt").with(pool).set("health", health);
                echo.set("backends", backends)
            })
            .tcp_service("echo-a", ECHO)
    }

    /// An HTTP check at the endpoints.
    pub(crate) fn http(&self, pool: &str) -> Config {
        self.config(at_endpoints(FAST), pool)
    }

    /// [`Self::http`], and dead backends lose their flows.
    pub(crate) fn http_reset(&self, pool: &str) -> Config {
        let config = self.http(pool);
        config.pool("echo-a", |echo| echo.set("health.on_dead", "reset"))
    }

    /// Which nodes answer this many new connections, and how many each.
    pub(crate) fn who(&self, connections: usize) -> Result<BTreeMap<String, usize>> {
        let mut who = BTreeMap::new();
        let netns = &self.topology.client().netns;
        for _ in 0..connections {
            let answer = netns.inside(|| client::who(None, ECHO))??;
            *who.entry(answer.node).or_default() += 1;
        }
        Ok(who)
    }

    /// The names of the first nodes.
    fn names(&self, nodes: &[usize]) -> Vec<String> {
        let name = |index: &usize| self.topology.nodes[*index].name.to_string();
        nodes.iter().map(name).collect()
    }
}

/// An HTTP check at the endpoints, with these times.
pub(crate) fn at_endpoints(times: &str) -> Keys {
    let http = json!({ "path": "/readyz", "port": HEALTH_PORT });
    Keys::from(times).set("http", http)
}

/// Waits until the backends have these verdicts; how long that took.
pub(crate) fn wait_for(lb: &Lb<'_>, verdicts: &[&str], limit: Duration) -> Result<Duration> {
    let start = Instant::now();
    poll::until("the verdicts", limit, || {
        let health = lb.health()?;
        let now: Vec<&str> = health.iter().map(|one| one.verdict.as_str()).collect();
        Ok((now == verdicts).then_some(()))
    })
    .with_context(|| format!("{verdicts:?} wanted, {:?}", lb.health()))?;
    Ok(start.elapsed())
}

/// E1, RELIABILITY 4: a backend that is not there any more gets no new connections, and those to others
/// do not notice; when it is back, it has its share again.
#[privileged_test]
fn e1_a_backend_that_refuses_is_taken_out_and_comes_back() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let tcp = Keys::from(FAST).set("tcp.port", HEALTH_PORT);
    let lb = Lb::start(&topology, &site.config(tcp, ""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    assert_eq!(site.who(40)?.len(), 2);

    site.health[1].refuse();
    let took = wait_for(&lb, &["up", "dead"], SOON)?;
    println!("refused: dead after {took:?}");
    assert_eq!(
        site.who(40)?.into_keys().collect::<Vec<_>>(),
        site.names(&[0])
    );
    site.health[1].answer(200);
    let took = wait_for(&lb, &["up", "up"], SOON)?;
    println!("up after {took:?}");
    assert_eq!(site.who(40)?.len(), 2);

    // Silence of the whole node.
    topology.nodes[1].netns.run("ip link set eth0 down")?;
    let took = wait_for(&lb, &["up", "dead"], SOON)?;
    println!("silent: dead after {took:?}");
    assert_eq!(
        site.who(40)?.into_keys().collect::<Vec<_>>(),
        site.names(&[0])
    );
    Ok(())
}

/// E3, E4, E13: an endpoint at another port that says 500 means no new connections, and nothing for
/// those that are there, for as long as it says so.
#[privileged_test]
fn e13_a_backend_that_is_not_ready_finishes_what_it_has() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 3)?;
    let config = site.http_reset("drain_timeout: 1s");
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 3], LIMIT)?;
    let connections = connect(&topology, 60)?;

    site.health[0].answer(500);
    wait_for(&lb, &["not_ready", "up", "up"], SOON)?;
    let until = Instant::now() + lasts();
    while Instant::now() < until {
        let who = site.who(20)?;
        assert_eq!(who.into_keys().collect::<Vec<_>>(), site.names(&[1, 2]));
        for connection in &connections {
            alive(connection)?;
        }
        thread::sleep(Duration::from_millis(300));
    }
    site.health[0].answer(200);
    wait_for(&lb, &["up"; 3], SOON)?;
    assert_eq!(site.who(60)?.len(), 3);
    connections.iter().try_for_each(alive)
}

/// One of three API servers is not ready, and every node's NodePort leads to any of them: whatever the
/// checks make of it, no connection is reset.
#[privileged_test]
fn e13_one_server_of_three_behind_all_nodes_resets_nobody() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 3)?;
    let config = site.http_reset("");
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up"; 3], LIMIT)?;
    let connections = connect(&topology, 60)?;
    site.health.iter().for_each(Answers::throw_dice);
    let until = Instant::now() + lasts();
    while Instant::now() < until {
        connections.iter().try_for_each(alive)?;
        thread::sleep(Duration::from_millis(300));
    }
    println!("{:?}", lb.health()?);
    site.health.iter().for_each(|answers| answers.answer(200));
    connections.iter().try_for_each(alive)
}

/// An API server takes 70 s to shut down.
pub(crate) fn lasts() -> Duration {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => Duration::from_secs(75),
        None => Duration::from_secs(4),
    }
}

/// So many connections from the first client to the echo servers.
pub(crate) fn connect(topology: &Topology, count: usize) -> Result<Vec<TcpStream>> {
    let netns = &topology.client().netns;
    let open = |_| -> Result<TcpStream> {
        let mut connection = netns.inside(|| client::open(None, ECHO))??;
        connection
            .write_all(b"echo\n")
            .context("say what it is for")?;
        Ok(connection)
    };
    (0..count).map(open).collect()
}

/// Whether a connection to an echo server carries a word both ways.
pub(crate) fn alive(connection: &TcpStream) -> Result<()> {
    connection.set_read_timeout(Some(LIMIT))?;
    (&mut { connection }).write_all(b"word\n").context("send")?;
    let mut line = String::new();
    BufReader::new(connection)
        .read_line(&mut line)
        .context("no echo")?;
    ensure!(line.contains("word"), "{line:?} came back");
    Ok(())
}

/// E8, E11: no backend is up before one was checked; meanwhile, and when all are down, a connection is
/// refused at once and none reaches a node; a backend that comes back is in again without any help.
#[privileged_test]
fn e8_e11_a_pool_without_anybody_up_refuses_at_once() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    site.health[0].refuse();
    site.health[1].fall_silent();
    let at_node = topology.nodes.iter().take(2).map(|node| {
        let filter = format!("tcp dst port {ECHO_NODE_PORT}");
        Wire::received(&node.netns, "eth0", &filter, topology.dir())
    });
    let at_node = at_node.collect::<Result<Vec<_>>>()?;
    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["dead", "dead"], SOON)?;
    for _ in 0..5 {
        let took = refused(topology.client(), ECHO)?;
        println!("refused after {took:?}");
        ensure!(took < Duration::from_millis(50), "after {took:?}");
    }
    for wire in at_node {
        assert_eq!(wire.stop()?.len(), 0, "a SYN at a node that is down");
    }
    site.health[1].answer(200);
    wait_for(&lb, &["dead", "up"], SOON)?;
    assert_eq!(
        site.who(10)?.into_keys().collect::<Vec<_>>(),
        site.names(&[1])
    );
    Ok(())
}

/// E9, RELIABILITY 6: below its watermark a pool takes all of its backends, or refuses.
#[privileged_test]
fn e9_below_the_watermark_the_pool_does_as_configured() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 4)?;
    let low = |keys: &str| {
        site.http("min_up: 60%")
            .pool("echo-a", |pool| pool.with(keys))
    };
    let lb = Lb::start(&topology, &low("below_min_up: all"))?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    site.health[0].answer(503);
    wait_for(&lb, &["not_ready", "up", "up", "up"], SOON)?;
    assert_eq!(site.who(60)?.len(), 3, "three of four are enough");
    site.health[1].answer(503);
    wait_for(&lb, &["not_ready", "not_ready", "up", "up"], SOON)?;
    assert_eq!(site.who(80)?.len(), 4, "half of them are not");

    lb.reload(&low("below_min_up: refuse"))?;
    refused(topology.client(), ECHO)?;
    site.health[1].answer(200);
    wait_for(&lb, &["not_ready", "up", "up", "up"], SOON)?;
    assert_eq!(site.who(60)?.len(), 3);
    Ok(())
}

/// E10: when a backend dies, every client of it knows within a second of the verdict, and its server if
/// it lives; no other flow notices anything.
#[privileged_test]
fn e10_the_connections_of_a_dead_backend_are_reset() -> Result<()> {
    const EACH: usize = 500;
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http_reset("");
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let connections = connect(&topology, 2 * EACH)?;
    poll::until("all flows", LIMIT, || {
        Ok((lb.status()?.flows.live == u64::try_from(2 * EACH)?).then_some(()))
    })?;
    let doomed: Vec<bool> = {
        let dying = topology.nodes[1].address.to_string();
        let flows = lb.flows()?;
        let backend_of: BTreeMap<String, bool> = flows
            .into_iter()
            .map(|flow| (flow.client, flow.backend.starts_with(&dying)))
            .collect();
        let doomed = |connection: &TcpStream| {
            let client = connection.local_addr()?.to_string();
            backend_of
                .get(&client)
                .copied()
                .context("a connection without a flow")
        };
        connections.iter().map(doomed).collect::<Result<_>>()?
    };
    let count = doomed.iter().filter(|doomed| **doomed).count();
    ensure!(
        count > EACH / 2,
        "only {count} connections to the dying node"
    );

    site.health[1].refuse();
    wait_for(&lb, &["up", "dead"], SOON)?;
    let verdict = Instant::now();
    for (connection, _) in connections
        .iter()
        .zip(&doomed)
        .filter(|(_, doomed)| **doomed)
    {
        lb_tests::traffic::conn_pair::wait_for_reset(connection, LIMIT)?;
    }
    let took = verdict.elapsed();
    println!("{count} clients knew {took:?} after the verdict was seen");
    ensure!(took < Duration::from_secs(1), "after {took:?}");
    for (connection, _) in connections
        .iter()
        .zip(&doomed)
        .filter(|(_, doomed)| !**doomed)
    {
        alive(connection)?;
    }
    let live = lb.status()?.flows.live;
    assert_eq!(live, u64::try_from(2 * EACH - count)?);
    Ok(())
}

/// A process that is stopped again and again, for longer than a check may take, finds no backend dead: it was late,
/// and no backend. One that is dead is found when it has its time again.
#[privileged_test]
fn checks_that_were_late_themselves_are_no_verdict() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 4)?;
    let health = at_endpoints("interval: 100ms, timeout: 100ms, rise: 1, fall: 1");
    let mut lb = Lb::start(&topology, &site.config(health, ""))?;
    wait_for(&lb, &["up"; 4], LIMIT)?;
    for _ in 0..40 {
        lb.process().signal(Signal::SIGSTOP)?;
        thread::sleep(Duration::from_millis(250));
        lb.process().signal(Signal::SIGCONT)?;
        thread::sleep(Duration::from_millis(110));
    }
    let said = lb.process().stderr();
    ensure!(!said.contains("-> dead"), "{said}");
    wait_for(&lb, &["up"; 4], SOON)?;
    site.health[1].fall_silent();
    wait_for(&lb, &["up", "dead", "up", "up"], LIMIT).map(drop)
}

/// A backend that its first check finds dead is an event and in the log, at a start and at a reload that waits for the
/// check; of one that is up there is none.
#[privileged_test]
fn a_backend_that_is_dead_at_its_first_check_is_an_event() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 3)?;
    site.health[1].refuse();
    site.health[2].refuse();
    let only = |nodes: &[Host]| {
        let address = |node: &Host| SocketAddrV4::new(node.address, ECHO_NODE_PORT);
        let backends: Vec<Value> = nodes.iter().map(|node| json!(address(node))).collect();
        let config = site.config(at_endpoints(FAST), "");
        config.pool("echo-a", |pool| pool.set("backends", backends))
    };
    let mut lb = Lb::start(&topology, &only(&topology.nodes[..2]))?;
    let dead = |lb: &Lb<'_>| -> Result<Vec<String>> {
        let events = lb.events()?.into_iter();
        let health = events.filter(|event| event.kind == "health");
        let of_backends = health.filter(|event| event.object.starts_with("backend "));
        Ok(of_backends.map(|event| event.words).collect())
    };
    let found = dead(&lb)?;
    assert_eq!(found.len(), 1, "{found:?}");
    lb.write(&only(&topology.nodes[2..3]))?;
    lb.tell(&["reload"])?.done()?;
    let found = dead(&lb)?;
    assert_eq!(found.len(), 2, "{found:?}");
    for words in found {
        ensure!(
            words.starts_with("unknown -> dead: ") && words.contains("refused"),
            "{words}"
        );
    }
    let log = lb.process().stderr();
    assert_eq!(log.matches("unknown -> dead").count(), 2, "{log}");
    Ok(())
}

/// Pools that check the same address alike share a check, by the endpoint's own count, and each has its verdict; once
/// one of them checks it otherwise, there are two.
#[privileged_test]
fn pools_share_the_checks_of_an_address() -> Result<()> {
    const WINDOW: Duration = Duration::from_secs(4);
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let node = SocketAddrV4::new(topology.nodes[0].address, ECHO_NODE_PORT);
    let config = |other: &str| {
        let health = |times: &str| at_endpoints(times);
        let config = site.config(health(FAST), "").mgmt_pool("echo-b", [node]);
        config.pool("echo-b", |pool| pool.set("health", health(other)))
    };
    let lb = Lb::start(&topology, &config(FAST))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let asked = || {
        let before = site.health[0].asked();
        thread::sleep(WINDOW);
        site.health[0].asked() - before
    };
    let once = asked();
    lb.write(&config(&format!("{FAST}, flap_hold: 20s")))?;
    lb.tell(&["reload"])?.done()?;
    let twice = asked();
    println!("{once} checks in {WINDOW:?}, then {twice}");
    // One each 200 ms, a tenth more or less, and later on a machine that is busy.
    ensure!((5..=23).contains(&once), "{once}");
    ensure!(twice * 2 > once * 3, "{once}, {twice}");

    lb.write(&config(FAST))?;
    lb.tell(&["reload"])?.done()?;
    site.health[0].refuse();
    wait_for(&lb, &["dead", "dead"], SOON).map(drop)
}
