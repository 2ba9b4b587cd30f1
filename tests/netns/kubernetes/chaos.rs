//! NodePorts change, and the API server, etcd and `lb` are killed while they do: no connection of a client fails.

use std::{
    env, mem,
    net::SocketAddrV4,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    servers::echo::EchoServer,
    topology::{Host, Topology},
    traffic::client,
};

use super::{FOLLOWED, Hub, KAS, PORTS};

/// How long the old port is there after a change.
const OLD_PORT_TIME: Duration = Duration::from_secs(2);
/// Threads that connect, and how often each does: 500 connections a second.
const CLIENTS: usize = 4;
const CONNECT_INTERVAL: Duration = Duration::from_millis(8);
/// How long an API that was killed may take until it takes a change.
const API_TIME: Duration = Duration::from_secs(90);
/// How long a server needs for what it has accepted.
const ANSWER_TIME: Duration = Duration::from_millis(100);
/// A client repeats its SYN after a second; more than one repetition takes three.
const TWO_SYNS: Duration = Duration::from_millis(2_500);

/// What is killed beside a change.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Api,
    Etcd,
    Lb,
    None,
}

/// How many changes there are, with the old port and without it.
fn changes() -> [usize; 2] {
    match env::var_os("LB_TEST_LONG") {
        Some(_) => [200, 40],
        None => [4, 2],
    }
}

/// What the clients have seen.
#[derive(Debug, Default)]
struct Seen {
    connections: usize,
    failures: Vec<String>,
    longest: Duration,
}

/// The service behind one of its two ports.
struct Site<'t, 's> {
    hub: &'s mut Hub<'t>,
    nodes: [&'t Host; 2],
    lb: Lb<'t>,
    config: Config,
    /// Those that listen, at the port that the service has.
    servers: Vec<EchoServer<'t>>,
    port: u16,
}

impl<'t> Site<'t, '_> {
    fn listen(&self, port: u16) -> Result<Vec<EchoServer<'t>>> {
        let nodes = self.nodes.iter();
        let servers = nodes.map(|node| {
            EchoServer::start(
                &node.netns,
                SocketAddrV4::new(node.address, port),
                node.name,
            )
        });
        servers.collect()
    }

    /// Gives the service its other port while something is killed: how long it took until clients were there.
    fn change(&mut self, victim: Victim, keep: Duration) -> Result<Duration> {
        let port = PORTS[usize::from(self.port == PORTS[0])];
        let next = self.listen(port)?;
        match victim {
            Victim::Api => self.hub.api.kill()?,
            Victim::Etcd => self.hub.api.kill_etcd()?,
            Victim::Lb => self.lb.kill()?,
            Victim::None => {}
        }
        match victim {
            Victim::Api => self.hub.api.restart()?,
            Victim::Etcd => self.hub.api.restart_etcd()?,
            Victim::Lb | Victim::None => {}
        }
        poll::until("the API to take a change", API_TIME, || {
            Ok(self.hub.publish(port, "Cluster").ok())
        })?;
        let changed = Instant::now();
        if let Victim::Lb = victim {
            self.lb.restart(&self.config)?;
        }
        let old = mem::replace(&mut self.servers, next);
        let old_port = mem::replace(&mut self.port, port);
        if keep.is_zero() {
            self.close(old_port)?;
        }
        let followed = poll::until("clients at the next port", FOLLOWED, || {
            let all = self.servers.iter().all(|server| !server.seen().is_empty());
            Ok(all.then(|| changed.elapsed()))
        });
        thread::sleep(keep.saturating_sub(changed.elapsed()));
        self.close(old_port)?;
        // Those that it has accepted have their answers.
        thread::sleep(ANSWER_TIME);
        drop(old);
        self.open()?;
        followed.with_context(|| format!("{victim:?} killed"))
    }

    /// From now on the nodes refuse connections at a port, as where no server listens; those that there are stay.
    fn close(&self, port: u16) -> Result<()> {
        let rule =
            format!("iifname eth0 tcp dport {port} tcp flags syn / syn,ack reject with tcp reset");
        self.nodes.iter().try_for_each(|node| {
            node.netns.run("nft add table ip closed")?;
            let chain = "{ type filter hook input priority 0 ; policy accept ; }";
            node.netns
                .run(&format!("nft add chain ip closed in {chain}"))?;
            node.netns
                .run(&format!("nft add rule ip closed in {rule}"))
                .map(drop)
        })
    }

    /// They do not any more.
    fn open(&self) -> Result<()> {
        let mut nodes = self.nodes.iter();
        nodes.try_for_each(|node| node.netns.run("nft delete table ip closed").map(drop))
    }
}

/// Connects until it is over.
fn connect(topology: &Topology, seen: &Mutex<Seen>, is_over: &AtomicBool) -> Result<()> {
    let all = |count: &mut Seen, begun: Instant, result: Result<client::Answer>| {
        count.connections += 1;
        count.longest = count.longest.max(begun.elapsed());
        if let Err(error) = result {
            count
                .failures
                .push(format!("after {:?}: {error:#}", begun.elapsed()));
        }
    };
    topology.client().netns.inside(|| {
        while !is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            let result = client::who(None, KAS);
            all(
                &mut seen.lock().unwrap_or_else(PoisonError::into_inner),
                begun,
                result,
            );
            thread::sleep(CONNECT_INTERVAL.saturating_sub(begun.elapsed()));
        }
    })
}

/// Runs `work` beside clients: what these have seen.
fn under_connects<T>(topology: &Topology, work: impl FnOnce() -> Result<T>) -> Result<(T, Seen)> {
    let (seen, is_over) = (Mutex::new(Seen::default()), AtomicBool::new(false));
    let done = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| scope.spawn(|| connect(topology, &seen, &is_over)))
            .collect();
        let done = work();
        is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().ok().context("a client panicked")??;
        }
        done
    })?;
    Ok((
        done,
        seen.into_inner().unwrap_or_else(PoisonError::into_inner),
    ))
}

/// With the old port for two seconds no connection fails; without it none needs more than one more SYN.
#[privileged_test]
fn nodeports_change_and_everything_is_killed_and_no_connection_fails() -> Result<()> {
    let topology = Topology::poc()?;
    let client = &topology.client().netns;
    client.run("sysctl -qw net.ipv4.tcp_tw_reuse=1")?;
    for host in topology.nodes.iter().chain([topology.client()]) {
        host.netns.keep_flows_on_a_cpu("eth0")?;
    }
    let mut hub = Hub::new(&topology)?;
    hub.servers.clear();
    let [one, two, ..] = &topology.nodes[..] else {
        anyhow::bail!("there are four nodes");
    };
    let config = hub.config()?;
    let lb = Lb::start(&topology, &config)?;
    let mut site = Site {
        hub: &mut hub,
        nodes: [one, two],
        lb,
        config,
        servers: Vec::new(),
        port: PORTS[0],
    };
    site.servers = site.listen(PORTS[0])?;
    site.hub.wait_for(&["n1", "n2"], FOLLOWED)?;
    let [with, without] = changes();
    let victims = [
        Victim::None,
        Victim::Lb,
        Victim::Api,
        Victim::None,
        Victim::Etcd,
    ];
    let (times, seen) = under_connects(&topology, || {
        let victims = victims.iter().cycle().take(with);
        victims
            .map(|victim| site.change(*victim, OLD_PORT_TIME))
            .collect::<Result<Vec<_>>>()
    })?;
    let longest = times.iter().max().context("a change")?;
    println!(
        "{with} changes, followed within {longest:.1?}; {} connections, the longest {:.1?}",
        seen.connections, seen.longest
    );
    ensure!(seen.failures.is_empty(), "{:#?}", seen.failures);

    let (times, seen) = under_connects(&topology, || {
        let changes = (0..without).map(|_| {
            let time = site.change(Victim::None, Duration::ZERO);
            thread::sleep(OLD_PORT_TIME);
            time
        });
        changes.collect::<Result<Vec<_>>>()
    })?;
    let longest = times.iter().max().context("a change")?;
    println!(
        "{without} changes without the old port, followed within {longest:.1?}; {} connections, the longest {:.1?}",
        seen.connections, seen.longest
    );
    ensure!(seen.failures.is_empty(), "{:#?}", seen.failures);
    ensure!(seen.longest < TWO_SYNS, "{:?}", seen.longest);
    Ok(())
}
