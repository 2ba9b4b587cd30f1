//! One load through all that can happen to the product: upgrades, kills, changes that are cut short, links
//! and backends that come and go. RELIABILITY 1 to 3, 5, 26. Beside it, the same through HAProxy.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    seeded_rng::{Dice, SEED},
    servers::{echo::EchoServer, teller::Teller},
    topology::{Host, MGMT_NIC, TENANT_NIC, Topology, VIP},
    traffic::load::{Load, Mirror, Tally},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;

use crate::{flows::life::LIMIT, proxy::bind::hellos};

/// Ports of VIPs, and of what is behind them.
const LONG: u16 = 7010;
const SHORT: u16 = 7011;
const FLAPS: u16 = 7012;
const SHARED: u16 = 443;
const ECHO_PORT: u16 = 30700;
const FLAPS_PORT: u16 = 30712;
const UDP_PORT: u16 = 30053;
const TLS_PORT: u16 = 31443;
const NAME: &str = "a.lab";
const STREAMS: usize = 10;
/// Between two of what happens.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a link is down.
const DOWN: Duration = Duration::from_millis(300);

/// The longest time in which a connection of the data plane may hear nothing, where nothing happens to its
/// links: less than it takes to send a lost SYN again.
const GAP: Duration = Duration::from_secs(1);

/// Longer than the client of a connection that was killed while it was handed over waits for an answer.
const COMES_THROUGH: Duration = Duration::from_secs(30);

/// How many of each.
#[derive(Clone, Copy, Debug)]
struct Tier {
    upgrades: u32,
    kills: u32,
    changes: u32,
    flaps: u32,
}

fn tier() -> Tier {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => Tier {
            upgrades: 20,
            kills: 20,
            changes: 200,
            flaps: 10,
        },
        None => Tier {
            upgrades: 3,
            kills: 3,
            changes: 5,
            flaps: 1,
        },
    }
}

/// What a kind of load may lose while something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum May {
    Nothing,
    /// Packets are lost with the link.
    LoseDatagrams,
    /// A backend of that pool refuses who comes.
    LoseFlapping,
    /// A SYN to a backend of that pool is lost with the backend's link, and sent again.
    DelayFlapping,
}

struct Loads {
    streams: Load,
    connects: Load,
    flapping: Load,
    shared: Load,
    datagrams: Option<Load>,
}

impl Loads {
    fn start(client: &Host, at: Ipv4Addr, with_datagrams: bool) -> Result<Self> {
        let at = |port| SocketAddrV4::new(at, port);
        let datagrams = with_datagrams.then(|| Load::datagrams(client, at(SHORT)));
        Ok(Self {
            streams: Load::streams(client, at(LONG), STREAMS)?,
            connects: Load::connects("connections", client, at(SHORT))?,
            flapping: Load::connects("connections where a backend flaps", client, at(FLAPS))?,
            shared: Load::named(client, at(SHARED), NAME)?,
            datagrams: datagrams.transpose()?,
        })
    }

    fn all(&self) -> Vec<&Load> {
        let Self {
            streams,
            connects,
            flapping,
            shared,
            datagrams,
        } = self;
        let mut all = vec![streams, connects, flapping, shared];
        all.extend(datagrams);
        all
    }

    /// Waits until one of each kind has come through from now on. A client hears nothing for a while when its
    /// backend speaks while its connection is being handed over, or the process was killed at that.
    fn come_through(&self) -> Result<()> {
        let before: Vec<u64> = self.all().into_iter().map(Load::done).collect();
        poll::until("every load comes through", COMES_THROUGH, || {
            let mut loads = self.all().into_iter().zip(&before);
            Ok(loads
                .all(|(load, before)| load.done() > *before)
                .then_some(()))
        })
    }

    /// Says what has come of each kind; in the order of [`Self::all`].
    fn report(&self, what: &str) -> Vec<Tally> {
        println!("{what}:");
        let tallies = self.all().into_iter().map(|load| {
            let tally = load.take();
            let Tally {
                done,
                failed,
                longest,
                why,
            } = &tally;
            let why = why.as_deref().unwrap_or_default();
            println!(
                "  {:<34} {done:>7} done {failed:>4} failed, longest gap {longest:>8.1?} {why}",
                load.name
            );
            tally
        });
        tallies.collect()
    }

    /// The same, and fails if more was lost than may be.
    fn ensure(&self, what: &str, may: May) -> Result<()> {
        if may != May::Nothing {
            self.come_through().with_context(|| what.to_owned())?;
        }
        let tallies = self.report(what);
        for (tally, load) in tallies.iter().zip(self.all()) {
            let may_fail = match load.name {
                name if name == self.flapping.name => may == May::LoseFlapping,
                "datagrams" => may == May::LoseDatagrams,
                _ => false,
            };
            ensure!(
                tally.failed == 0 || may_fail,
                "{what}: {}: {tally:?}",
                load.name
            );
            ensure!(tally.done > 0, "{what}: {}: {tally:?}", load.name);
            let may_wait = match may {
                May::Nothing => load.name == self.shared.name,
                May::DelayFlapping => [self.shared.name, self.flapping.name].contains(&load.name),
                May::LoseDatagrams | May::LoseFlapping => true,
            };
            ensure!(
                may_wait || tally.longest < GAP,
                "{what}: {}: {tally:?}",
                load.name
            );
        }
        Ok(())
    }

    fn end(self) -> Result<()> {
        let Self {
            streams,
            connects,
            flapping,
            shared,
            datagrams,
        } = self;
        let all = [streams, connects, flapping, shared].into_iter();
        all.chain(datagrams).try_for_each(Load::end)
    }
}

/// The servers: the first node stays, the second one flaps.
struct Servers<'t> {
    _echo: Vec<EchoServer<'t>>,
    flapping: Option<EchoServer<'t>>,
    _teller: Teller,
    _mirror: Mirror,
}

impl<'t> Servers<'t> {
    fn start(topology: &'t Topology) -> Result<Self> {
        let [one, other] = [0, 1].map(|index| &topology.nodes[index]);
        let at = |port| SocketAddrV4::new(one.address, port);
        let echo = |port| EchoServer::start(&one.netns, at(port), one.name);
        Ok(Self {
            _echo: vec![echo(ECHO_PORT)?, echo(FLAPS_PORT)?],
            flapping: Some(Self::flapping(other)?),
            _teller: Teller::start(&one.netns, at(TLS_PORT), one.name)?,
            _mirror: Mirror::start(one, UDP_PORT)?,
        })
    }

    fn flapping(other: &'t Host) -> Result<EchoServer<'t>> {
        let at = SocketAddrV4::new(other.address, FLAPS_PORT);
        EchoServer::start(&other.netns, at, other.name)
    }
}

/// With another weight it is another configuration.
fn config(topology: &Topology, weight: u16) -> Config {
    let [one, other] = [0, 1].map(|index| topology.nodes[index].address);
    let at = |port| [SocketAddrV4::new(one, port)];
    let vip = |port| SocketAddrV4::new(VIP, port);
    let times = "interval: 200ms, timeout: 150ms, fast_interval: 100ms, flap_hold: 0s";
    let routes = json!([{ "names": [NAME], "pool": "tls" }]);
    Config::poc()
        .network("mgmt", |mgmt| mgmt.snat_ports(1024, 9215))
        .network("tenant-a", |tenant| tenant.set("reject", true))
        .mgmt_pool("stays", at(ECHO_PORT))
        .mgmt_pool("dns", at(UDP_PORT))
        .mgmt_pool("tls", at(TLS_PORT))
        .pool("flaps", |flaps| {
            let health = Keys::from(times).set("tcp.port", FLAPS_PORT);
            let [one, other] = [one, other].map(|node| SocketAddrV4::new(node, FLAPS_PORT));
            flaps
                .on("mgmt")
                .set("health", health)
                .push("backends", json!({ "address": one, "weight": weight }))
                .push("backends", other)
        })
        .tcp_service_to("long", vip(LONG), "stays")
        .tcp_service("short", vip(SHORT))
        .service("short", |short| {
            short.pool("stays").set("max_flows", 1000 + weight)
        })
        .service("dns", |dns| dns.on("tenant-a").udp(vip(SHORT)).pool("dns"))
        .tcp_service("flaps", vip(FLAPS))
        .service("flaps", |flaps| {
            let pair = format!("192.168.203.{}/31", 2 * weight);
            flaps.set("allow", [pair.as_str(), "192.168.203.0/26"])
        })
        .service("shared", |shared| {
            let shared = shared.on("tenant-a").tcp(vip(SHARED));
            shared.set("reject", true).set("sni.routes", routes)
        })
}

/// RELIABILITY 1, 2, 3, 5, 26: no connection is lost and none fails, whatever happens.
#[privileged_test]
fn nothing_is_lost_through_all_that_can_happen() -> Result<()> {
    let mut dice = Dice::from_environment();
    let again = format!("{SEED}={}", dice.seed());
    println!("{again}");
    go_through(&mut dice).context(again)
}

fn go_through(dice: &mut Dice) -> Result<()> {
    let topology = Topology::poc()?;
    let configs = [1, 2].map(|weight| config(&topology, weight));
    let servers = Servers::start(&topology)?;
    let mut course = Course {
        topology: &topology,
        servers,
        lb: Lb::start(&topology, &configs[0])?,
        loads: Loads::start(topology.client(), VIP, true)?,
        configs,
        tier: tier(),
        before: Vec::new(),
    };
    let went = course.go(dice);
    went.with_context(|| format!("drops: {}", course.lb.drops_in_a_line()))?;
    course.loads.end()
}

/// All that happens, one after the other.
struct Course<'t> {
    topology: &'t Topology,
    servers: Servers<'t>,
    lb: Lb<'t>,
    loads: Loads,
    configs: [Config; 2],
    tier: Tier,
    /// Processes that handed over.
    before: Vec<Process>,
}

impl Course<'_> {
    fn go(&mut self, dice: &mut Dice) -> Result<()> {
        self.loads.come_through()?;
        self.loads.ensure("nothing happens", May::Nothing)?;
        self.upgrade()?;
        self.kill()?;
        self.kill_within_changes(dice)?;
        self.flap_links()?;
        self.flap_backend()?;
        let last = self.loads.streams.take();
        ensure!(last.failed == 0, "{last:?}");
        self.ensure_bound()
    }

    /// XDP has opened the connections of the shared VIP; of a link that is down it may leave some.
    fn ensure_bound(&self) -> Result<()> {
        let mut left = hellos(&self.lb)?;
        println!("{left:?}");
        let bound = left.remove("bound").context("none is bound")?;
        left.remove("repeated");
        let left: u64 = left.values().sum();
        ensure!(left * 100 <= bound, "{left} left, {bound} bound");
        Ok(())
    }

    fn upgrade(&mut self) -> Result<()> {
        let upgrades = self.tier.upgrades;
        for _ in 0..upgrades {
            self.before.push(self.lb.take_over(&self.configs[0])?);
            thread::sleep(PAUSE);
        }
        self.loads
            .ensure(&format!("{upgrades} upgrades"), May::Nothing)
    }

    fn kill(&mut self) -> Result<()> {
        let kills = self.tier.kills;
        for _ in 0..kills {
            self.lb.kill()?;
            thread::sleep(PAUSE);
            self.lb.restart(&self.configs[0])?;
            thread::sleep(PAUSE);
        }
        self.loads
            .ensure(&format!("{kills} kills, each with a start"), May::Nothing)
    }

    fn kill_within_changes(&mut self, dice: &mut Dice) -> Result<()> {
        let changes = self.tier.changes;
        let begun = Instant::now();
        self.lb.reload(&self.configs[1])?;
        let takes = begun.elapsed();
        for change in 0..changes {
            let config = &self.configs[usize::from(change % 2 == 1)];
            self.lb.write(config)?;
            let mut reload = self.lb.begin(&["reload"])?;
            thread::sleep(dice.up_to(takes));
            self.lb.kill()?;
            reload.wait()?;
            self.lb.restart(config)?;
        }
        self.loads.ensure(
            &format!("{changes} kills within the {takes:.0?} of a change"),
            May::Nothing,
        )
    }

    fn flap_links(&self) -> Result<()> {
        let flaps = self.tier.flaps;
        for _ in 0..flaps {
            for nic in [TENANT_NIC, MGMT_NIC] {
                self.topology.lb.run(&format!("ip link set {nic} down"))?;
                thread::sleep(DOWN);
                self.topology.lb.run(&format!("ip link set {nic} up"))?;
                // Until TCP has tried again.
                thread::sleep(2 * Duration::from_secs(1));
            }
        }
        self.loads
            .ensure(&format!("{flaps} flaps of each link"), May::LoseDatagrams)
    }

    /// A backend's server ends and begins anew, then its link does. Connections that come to it before that
    /// is known are refused by it; afterwards none is.
    fn flap_backend(&mut self) -> Result<()> {
        let node = &self.topology.nodes[1];
        for _ in 0..self.tier.flaps {
            self.wait_for("up")?;
            thread::sleep(5 * PAUSE);
            self.loads.ensure("a backend is there", May::Nothing)?;
            self.servers.flapping = None;
            self.wait_for("dead")?;
            self.loads
                .ensure("until a dead backend is known", May::LoseFlapping)?;
            thread::sleep(5 * PAUSE);
            self.loads.ensure("a dead backend is known", May::Nothing)?;
            self.servers.flapping = Some(Servers::flapping(node)?);
            self.wait_for("up")?;
            node.netns.run("ip link set eth0 down")?;
            self.wait_for("dead")?;
            node.netns.run("ip link set eth0 up")?;
            self.wait_for("up")?;
            thread::sleep(10 * PAUSE);
            self.loads
                .ensure("a backend's link was down", May::DelayFlapping)?;
        }
        Ok(())
    }

    /// Waits for this verdict about the backend that flaps.
    fn wait_for(&self, verdict: &str) -> Result<()> {
        let address = self.topology.nodes[1].address.to_string();
        poll::until(verdict, LIMIT, || {
            let health = self.lb.health()?;
            let found = health.iter().find(|one| one.name.contains(&address));
            Ok(found
                .is_some_and(|one| one.verdict == verdict)
                .then_some(()))
        })
    }
}

/// The same connections through HAProxy, whose worker gets the signal to reload and is then killed. Nothing is asked
/// of it but that it ran and carried them.
#[privileged_test]
fn what_haproxy_loses_is_printed() -> Result<()> {
    let topology = Topology::poc()?;
    let tier = tier();
    let _servers = Servers::start(&topology)?;
    let (beside, client) = (&topology.nodes[3], &topology.nodes[2]);
    let mut haproxy = haproxy(&topology, beside)?;
    let loads = Loads::start(client, beside.address, false)?;
    loads.come_through()?;
    loads.ensure("HAProxy, nothing happens", May::Nothing)?;
    for _ in 0..tier.upgrades {
        haproxy.signal(Signal::SIGUSR2)?;
        thread::sleep(5 * PAUSE);
    }
    let reloaded = loads.report(&format!("HAProxy, {} reloads", tier.upgrades));
    for _ in 0..tier.kills {
        kill(worker(&haproxy)?, Signal::SIGKILL).context("kill the worker")?;
        // Its master ends as well.
        haproxy.wait_for_end(LIMIT)?;
        thread::sleep(PAUSE);
        haproxy = self::haproxy(&topology, beside)?;
        thread::sleep(5 * PAUSE);
    }
    let killed = loads.report(&format!(
        "HAProxy, {} kills of its worker, each with a start",
        tier.kills
    ));
    for tally in reloaded.iter().chain(killed.iter().skip(1)) {
        ensure!(tally.done > 0, "{tally:?}");
    }
    loads.end()
}

/// The worker that the master has started last.
fn worker(master: &Process) -> Result<Pid> {
    let id = master.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let last = children.split_whitespace().next_back();
    Ok(Pid::from_raw(last.context("a worker")?.parse()?))
}

/// HAProxy with a master and a worker, as packages start it; it listens when this returns.
fn haproxy(topology: &Topology, host: &Host) -> Result<Process> {
    let (address, one, other) = (
        host.address,
        topology.nodes[0].address,
        topology.nodes[1].address,
    );
    let file = format!(
        "global
  maxconn 4000
defaults
  mode tcp
  timeout connect 10s
  timeout client 1m
  timeout server 1m
listen long
  bind {address}:{LONG}
  server one {one}:{ECHO_PORT}
listen short
  bind {address}:{SHORT}
  server one {one}:{ECHO_PORT}
listen flaps
  bind {address}:{FLAPS}
  server one {one}:{FLAPS_PORT} check
  server other {other}:{FLAPS_PORT} check
frontend shared
  bind {address}:{SHARED}
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req_ssl_hello_type 1 }}
  use_backend tls if {{ req_ssl_sni -i {NAME} }}
backend tls
  server one {one}:{TLS_PORT}
"
    );
    let file = topology.write("haproxy.cfg", &file)?;
    let args = ["-W", "-f", &file.to_string_lossy()];
    let process = Process::start(
        &host.netns.path(),
        topology.dir(),
        "haproxy",
        "haproxy",
        &args,
    )?;
    poll::until("HAProxy listens", LIMIT, || {
        let sockets = host.netns.run("ss -Hltn")?;
        Ok(sockets.contains(&format!(":{LONG} ")).then_some(()))
    })?;
    Ok(process)
}
