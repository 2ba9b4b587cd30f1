//! Connections that are being made to a backend that is found dead: `on_dead`.

use std::{
    net::TcpStream,
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use lb_tests::{
    oracle::wire::Wire,
    poll,
    product::{config::Keys, lb::Lb},
    topology::{ECHO, ECHO_NODE_PORT, Host, Topology},
    traffic::{
        client::{self, Answer},
        conn_pair::wait_for_reset,
    },
};

use crate::{
    flows::life::{LIMIT, ensure_all_ids_are_free},
    health::verdicts::{FAST, HEALTH_PORT, SOON, Site, alive, connect, wait_for},
};

/// Connections that are there when the backend dies, and such as are begun then.
const OPEN: usize = 24;
const BEGUN: usize = 24;
/// From the death until all that were begun are there: a SYN is repeated after 1 s and after 3 s.
const MAX_CONNECT: Duration = Duration::from_secs(6);

/// Two nodes with open connections, the second of which answers no SYN any more.
struct Deaf<'t> {
    topology: &'t Topology,
    site: Site<'t>,
    lb: Lb<'t>,
    open: Vec<TcpStream>,
}

impl<'t> Deaf<'t> {
    fn start(topology: &'t Topology, on_dead: Option<&str>) -> Result<Self> {
        let site = Site::new(topology, 2)?;
        let health = Keys::from(FAST).set("tcp.port", HEALTH_PORT);
        let health = match on_dead {
            Some(word) => health.set("on_dead", word),
            None => health,
        };
        let lb = Lb::start(topology, &site.config(health, ""))?;
        wait_for(&lb, &["up", "up"], LIMIT)?;
        let open = connect(topology, OPEN)?;
        let node = &topology.nodes[1].netns;
        node.run("nft add table ip deaf")?;
        node.run("nft add chain ip deaf in { type filter hook input priority 0 ; }")?;
        node.run(&format!(
            "nft add rule ip deaf in iifname eth0 tcp dport {ECHO_NODE_PORT} tcp flags syn / syn,ack drop"
        ))?;
        Ok(Self {
            topology,
            site,
            lb,
            open,
        })
    }

    /// The clients of flows to the second node, in this state.
    fn clients(&self, state: &str) -> Result<Vec<String>> {
        let node = format!("{}:{ECHO_NODE_PORT}", self.topology.nodes[1].address);
        let flows = self.lb.flows()?.into_iter();
        let flows = flows.filter(|flow| flow.backend == node && flow.state == state);
        Ok(flows.map(|flow| flow.client).collect())
    }

    /// Begins connections, and has the second node found dead when some of them wait for it; what they make of it.
    /// How many waited, and how many connections it had.
    fn die(&self) -> Result<([usize; 2], Vec<Answer>)> {
        let netns = &self.topology.client().netns;
        thread::scope(|scope| {
            let begin = |_| scope.spawn(|| netns.inside(|| client::who(None, ECHO))?);
            let begun: Vec<ScopedJoinHandle<'_, Result<Answer>>> = (0..BEGUN).map(begin).collect();
            poll::until("connections that wait", LIMIT, || {
                let done = begun.iter().filter(|one| one.is_finished()).count();
                let waiting = self.clients("new")?.len();
                Ok((waiting > 0 && waiting + done == BEGUN).then_some(()))
            })?;
            let had = [
                self.clients("new")?.len(),
                self.clients("established")?.len(),
            ];
            self.site.health[1].refuse();
            wait_for(&self.lb, &["up", "dead"], SOON)?;
            let answers = begun
                .into_iter()
                .map(|one| one.join().map_err(|_| anyhow!("a thread panicked"))?);
            Ok((had, answers.collect::<Result<_>>()?))
        })
    }
}

/// What the client sees of resets from the VIP.
fn resets(topology: &Topology) -> Result<Wire> {
    let filter = format!(
        "src host {} and tcp src port {} and tcp[tcpflags] & tcp-rst != 0",
        ECHO.ip(),
        ECHO.port()
    );
    let client: &Host = topology.client();
    Wire::received(&client.netns, "eth0", &filter, topology.dir())
}

/// A client that waits for the SYN-ACK of a backend that dies is connected to another one by the SYN that it repeats,
/// sees no reset, and costs no id; the connections that the backend has go on.
#[privileged_test]
fn a_connection_that_waits_for_a_dead_backend_gets_another_one() -> Result<()> {
    let topology = Topology::poc()?;
    let deaf = Deaf::start(&topology, None)?;
    let wire = resets(&topology)?;
    let start = Instant::now();
    let ([waited, had], answers) = deaf.die()?;
    let took = start.elapsed();
    println!("{waited} of {BEGUN} waited, and all were there after {took:?}");
    ensure!(took < MAX_CONNECT, "{took:?}");
    let live = &topology.nodes[0];
    let strays = answers.iter().filter(|answer| answer.node != live.name);
    assert_eq!(strays.count(), 0, "{answers:?}");
    ensure!(had > 0, "none was open to the dead one");
    deaf.open.iter().try_for_each(alive)?;
    assert_eq!(deaf.clients("new")?, [""; 0]);
    assert_eq!(deaf.clients("established")?.len(), had);
    let Deaf { lb, open, .. } = deaf;
    drop(open);
    ensure_all_ids_are_free(&topology, &lb)?;
    assert_eq!(wire.stop()?.len(), 0, "resets");
    Ok(())
}

/// With `reset` only the connections that it has are reset; those that wait for it get another backend as well.
#[privileged_test]
fn a_reset_is_for_connections_that_are_there() -> Result<()> {
    let topology = Topology::poc()?;
    let deaf = Deaf::start(&topology, Some("reset"))?;
    let doomed = deaf.clients("established")?;
    let wire = resets(&topology)?;
    let ([_, had], answers) = deaf.die()?;
    let live = &topology.nodes[0];
    let strays = answers.iter().filter(|answer| answer.node != live.name);
    assert_eq!(strays.count(), 0, "{answers:?}");
    for connection in &deaf.open {
        match doomed.contains(&connection.local_addr()?.to_string()) {
            true => wait_for_reset(connection, LIMIT).map(drop)?,
            false => alive(connection)?,
        }
    }
    let resets = wire.stop()?.len();
    assert_eq!([had, resets], [doomed.len(); 2]);
    Ok(())
}

/// With `none` a verdict ends nothing: they get another one all the same, when the SYN is repeated.
#[privileged_test]
fn a_connection_that_no_verdict_ends_goes_on_elsewhere() -> Result<()> {
    let topology = Topology::poc()?;
    let deaf = Deaf::start(&topology, Some("none"))?;
    let wire = resets(&topology)?;
    let ([waited, had], answers) = deaf.die()?;
    let live = &topology.nodes[0];
    let strays = answers.iter().filter(|answer| answer.node != live.name);
    assert_eq!(strays.count(), 0, "{answers:?}");
    let backends = deaf.lb.backends()?.into_iter();
    let redispatched: u32 = backends.map(|backend| backend.syns.redispatched).sum();
    assert_eq!(usize::try_from(redispatched)?, waited);
    deaf.open.iter().try_for_each(alive)?;
    assert_eq!(deaf.clients("established")?.len(), had);
    assert_eq!(wire.stop()?.len(), 0, "resets");
    Ok(())
}
