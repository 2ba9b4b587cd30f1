//! A change that is cut short by a kill, before one of its steps: what is served meanwhile is of the one
//! configuration or of the other, and the next start makes the change complete. RELIABILITY 3.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    fault::kill_at_step::{self, Doom, Followed, Moment},
    oracle::{ids, map_snapshot},
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    seeded_rng::{Dice, SEED},
    servers::{
        echo::EchoServer,
        teller::{Teller, ask},
    },
    topology::{Host, Topology, VIP},
    traffic::{
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use serde_json::json;

use crate::flows::life::LIMIT;

const PORT: u16 = 30700;
const OTHER_PORT: u16 = 30701;
const TLS_PORT: u16 = 31443;
/// Where the connections go that outlive all kills, and where their backend listens.
const KEPT: SocketAddrV4 = SocketAddrV4::new(VIP, 7010);
const KEPT_PORT: u16 = 30710;
const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
/// Ports of each SNAT address, from 1024 on.
const PORTS: usize = 1024;
/// How long a VIP has that one configuration does not know.
const SHORT: Duration = Duration::from_millis(300);
/// Connections of each client to each VIP.
const TRIES: usize = 6;

/// A VIP, and the answer to each of the two clients there: the name of a backend, `refused`, or `silence`.
struct Case {
    at: SocketAddrV4,
    before: [&'static str; 2],
    after: [&'static str; 2],
}

const REFUSED: &str = "refused";
const SILENCE: &str = "silence";

fn cases() -> [Case; 8] {
    let at = |last, port| SocketAddrV4::new(Ipv4Addr::new(192, 168, 203, last), port);
    let case = |at, before, after| Case { at, before, after };
    [
        // Weights and budget.
        case(at(110, 7000), ["n1 n2"; 2], ["n1 n2"; 2]),
        // Other backends, for fewer clients, and for more.
        case(at(110, 7001), ["n1 n2"; 2], ["n3 n4", REFUSED]),
        case(at(110, 7002), ["n1", REFUSED], ["n3"; 2]),
        // The same backend at another port. A backend keeps its identity then, and several of them change
        // one after the other: so this is about one.
        case(at(110, 7003), ["n1"; 2], ["n1+"; 2]),
        // Under another name, another pool.
        case(at(110, 7004), ["n2"; 2], ["n3"; 2]),
        // One of two backends is another one.
        case(at(110, 7005), ["n1 n2"; 2], ["n1 n3"; 2]),
        case(at(111, 7000), ["n1"; 2], [SILENCE; 2]),
        case(at(112, 7000), [SILENCE; 2], ["n1"; 2]),
    ]
}

/// A pool of these nodes.
fn pool(config: Config, name: &str, nodes: &[u8], port: u16) -> Config {
    let address = |node: &u8| format!("10.32.96.{}:{port}", 104 + node);
    config.mgmt_pool(name, nodes.iter().map(address))
}

/// A service with this pool, and these other keys.
fn service(config: Config, name: &str, listen: &str, pool: &str, keys: &str) -> Config {
    config
        .tcp_service(name, format!("192.168.203.{listen}"))
        .service(name, |service| {
            service.pool(pool).set("reject", true).with(keys)
        })
}

/// The shared VIP with this name.
fn shared(config: Config, name: &str) -> Config {
    let routes = json!([{ "names": [name], "pool": "tls" }]);
    config.service("shared", |shared| {
        shared.on("tenant-a").tcp(SHARED).set("sni.routes", routes)
    })
}

/// The configuration before and the one after.
fn configs() -> [Config; 2] {
    [before(), after()]
}

fn before() -> Config {
    let config = Config::poc()
        .network("mgmt", |mgmt| mgmt.snat_ports(1024, 2047))
        .network("tenant-a", |tenant| tenant.set("reject", true));
    let pools: [(&str, &[u8], u16); 8] = [
        ("stays", &[1, 2], PORT),
        ("narrow", &[1, 2], PORT),
        ("wide", &[1], PORT),
        ("port", &[1], PORT),
        ("out", &[2], PORT),
        ("half", &[1, 2], PORT),
        ("kept", &[1], KEPT_PORT),
        ("tls", &[1], TLS_PORT),
    ];
    let config = pools
        .into_iter()
        .fold(config, |config, (name, nodes, port)| {
            pool(config, name, nodes, port)
        });
    let services = [
        ("stays", "110:7000", "stays", ""),
        ("narrow", "110:7001", "narrow", ALL),
        ("wide", "110:7002", "wide", ONE),
        ("port", "110:7003", "port", ""),
        ("old", "110:7004", "out", ""),
        ("half", "110:7005", "half", ""),
        ("kept", "110:7010", "kept", ""),
        ("gone", "111:7000", "wide", ""),
    ];
    shared(add(config, services), "a.lab")
}

fn after() -> Config {
    let config = Config::poc()
        .network("mgmt", |mgmt| {
            let second = json!({ "address": "10.32.96.51", "ports": "1024-2047" });
            mgmt.snat_ports(1024, 2047).push("snat", second)
        })
        .network("tenant-a", |tenant| {
            tenant.with("reject: true, half_open: 4096, max_flows: 900")
        });
    let pools: [(&str, &[u8], u16); 9] = [
        ("stays", &[1, 2], PORT),
        ("narrow", &[3, 4], PORT),
        ("wide", &[3], PORT),
        ("port", &[1], OTHER_PORT),
        ("in", &[3], PORT),
        ("half", &[1, 3], PORT),
        ("kept", &[1], KEPT_PORT),
        ("tls", &[2], TLS_PORT),
        ("another", &[1], PORT),
    ];
    let config = pools
        .into_iter()
        .fold(config, |config, (name, nodes, port)| {
            pool(config, name, nodes, port)
        });
    let checked = |pool: Keys| {
        let health = Keys::from("interval: 1s, timeout: 500ms");
        pool.set("health", health.set("tcp.port", PORT))
    };
    let config = config
        .pool("stays", |stays| {
            let heavy = json!({ "address": format!("10.32.96.105:{PORT}"), "weight": 3 });
            checked(stays).set("backends.0", heavy)
        })
        .pool("in", checked)
        .pool("kept", |kept| kept.set("drain_timeout", "1m"));
    let services = [
        ("stays", "110:7000", "stays", "max_flows: 500"),
        ("narrow", "110:7001", "narrow", ONE),
        ("wide", "110:7002", "wide", ALL),
        ("port", "110:7003", "port", "idle_timeout: 1h"),
        ("new", "110:7004", "in", ""),
        ("half", "110:7005", "half", ""),
        ("kept", "110:7010", "kept", "max_flows: 700"),
        ("added", "112:7000", "another", ""),
    ];
    shared(add(config, services), "b.lab")
}

/// What lets in one client, and what lets in all.
const ONE: &str = "allow: [192.168.203.50/32]";
const ALL: &str = "allow: [192.168.203.0/24]";

fn add(config: Config, services: [(&str, &str, &str, &str); 8]) -> Config {
    let services = services.into_iter();
    services.fold(config, |config, (name, listen, pool, keys)| {
        service(config, name, listen, pool, keys)
    })
}

/// Nodes that say who they are, and at which port.
struct Site<'t> {
    topology: &'t Topology,
    _echo: Vec<EchoServer<'t>>,
    _tellers: Vec<Teller>,
}

impl<'t> Site<'t> {
    fn new(topology: &'t Topology) -> Result<Self> {
        let (mut echo, mut tellers) = (Vec::new(), Vec::new());
        for node in &topology.nodes {
            node.netns.keep_flows_on_a_cpu("eth0")?;
            for (port, more) in [(PORT, ""), (OTHER_PORT, "+")] {
                let name = format!("{}{more}", node.name);
                let at = SocketAddrV4::new(node.address, port);
                echo.push(EchoServer::start(&node.netns, at, &name)?);
            }
            let at = SocketAddrV4::new(node.address, TLS_PORT);
            tellers.push(Teller::start_listening(&node.netns, at, node.name)?);
        }
        Ok(Self {
            topology,
            _echo: echo,
            _tellers: tellers,
        })
    }

    fn clients(&self) -> [&'t Host; 2] {
        [0, 1].map(|index| &self.topology.clients[index])
    }

    /// The answer to each client at a VIP.
    fn answers(&self, at: SocketAddrV4, limit: Duration) -> Result<[String; 2]> {
        let mut answers = [String::new(), String::new()];
        for (client, answer) in self.clients().into_iter().zip(&mut answers) {
            let asked = client.netns.inside(|| who_answers(at, limit))?;
            *answer = asked.with_context(|| format!("{} at {at}", client.name))?;
        }
        Ok(answers)
    }

    /// Each service is wholly of one configuration, or of the other; how many are of the new one.
    fn ensure_whole(&self) -> Result<usize> {
        let mut new = 0;
        for case in cases() {
            let comes_or_goes = case.before[0] == SILENCE || case.after[0] == SILENCE;
            let limit = if comes_or_goes { SHORT } else { LIMIT };
            let answers = self.answers(case.at, limit)?;
            let is = |wanted: [&str; 2]| {
                answers.iter().zip(wanted).all(|(answer, wanted)| {
                    let of_wanted = |name: &str| wanted.split(' ').any(|one| one == name);
                    // One that is not there yet, or no more.
                    let is_closed = comes_or_goes && (answer == REFUSED || answer == SILENCE);
                    is_closed || answer.split(' ').all(of_wanted)
                })
            };
            ensure!(
                is(case.before) || is(case.after),
                "{}: {answers:?}, neither {:?} nor {:?}",
                case.at,
                case.before,
                case.after
            );
            new += usize::from(!is(case.before));
        }
        Ok(new)
    }

    /// Everything is as in this configuration.
    fn ensure_is(&self, side: usize) -> Result<()> {
        for case in cases() {
            let wanted = [case.before, case.after][side];
            let is_closed = wanted[0] == SILENCE;
            let answers = self.answers(case.at, if is_closed { SHORT } else { LIMIT })?;
            for (answer, wanted) in answers.iter().zip(wanted) {
                let closed = is_closed && (answer == REFUSED || answer == SILENCE);
                let of_wanted = |name: &str| wanted.split(' ').any(|one| one == name);
                ensure!(
                    closed || answer.split(' ').all(of_wanted),
                    "{}: {answers:?}, not {wanted}",
                    case.at
                );
            }
        }
        let hello = named(["a.lab", "b.lab"][side].as_bytes());
        let client = self.topology.client();
        let who = client
            .netns
            .inside(|| ask(SHARED, &[&hello], Duration::ZERO))??;
        let wanted = self.topology.nodes[side].name;
        ensure!(who.as_deref() == Some(wanted), "shared: {who:?}");
        Ok(())
    }
}

/// The names that answer at a VIP, without those of others in between.
fn who_answers(at: SocketAddrV4, limit: Duration) -> Result<String> {
    let mut names = BTreeSet::new();
    for _ in 0..TRIES {
        let name = answer(at, limit)?;
        let is_closed = name == SILENCE;
        names.insert(name);
        if is_closed {
            break;
        }
    }
    let names: Vec<String> = names.into_iter().collect();
    Ok(names.join(" "))
}

fn answer(at: SocketAddrV4, limit: Duration) -> Result<String> {
    let stream = match TcpStream::connect_timeout(&at.into(), limit) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(REFUSED.to_owned()),
        Err(error) if is_silence(error.kind()) => return Ok(SILENCE.to_owned()),
        stream => stream.context("connect")?,
    };
    stream.set_read_timeout(Some(LIMIT))?;
    (&stream).write_all(b"who\n").context("ask")?;
    let mut line = String::new();
    BufReader::new(&stream)
        .read_line(&mut line)
        .context("hear the answer")?;
    let name = line.split(' ').next().unwrap_or_default();
    Ok(name.to_owned())
}

fn is_silence(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::WouldBlock
    )
}

/// How the change is made that is cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Reload,
    Start,
    TakeOver,
}

/// What a fresh instance has with each of the configurations.
struct Fresh {
    entries: [BTreeSet<String>; 2],
    names: [BTreeSet<String>; 2],
    folders: BTreeSet<String>,
}

struct Bed<'t> {
    site: &'t Site<'t>,
    lb: Lb<'t>,
    configs: [Config; 2],
    fresh: Fresh,
    pairs: Vec<Pair>,
    /// How many take-overs were begun on the way there.
    take_overs: usize,
}

impl<'t> Bed<'t> {
    fn new(site: &'t Site<'t>) -> Result<Self> {
        let configs = configs();
        let run = site.topology.run();
        let mut fresh = Vec::new();
        for (side, config) in configs.iter().enumerate() {
            let lb = Lb::start(site.topology, config)?;
            poll::until("all answer", LIMIT, || Ok(site.ensure_is(side).ok()))
                .with_context(|| format!("{:?}", site.ensure_is(side)))?;
            fresh.push((
                map_snapshot::entries(run)?,
                map_snapshot::names(run)?,
                map_snapshot::folders(run),
            ));
            lb.down()?;
        }
        let lb = Lb::start(site.topology, &configs[0])?;
        let folders = map_snapshot::folders(run);
        let side = |index: usize| (fresh[index].0.clone(), fresh[index].1.clone());
        let [(before, old_names), (after, new_names)] = [side(0), side(1)];
        Ok(Self {
            site,
            lb,
            configs,
            fresh: Fresh {
                entries: [before, after].map(without_links),
                names: [old_names, new_names],
                folders,
            },
            pairs: Vec::new(),
            take_overs: 0,
        })
    }

    /// Makes a change, kills who makes it before a step, sees what is served, starts anew, and sees
    /// that all is as in a fresh instance. What was done, and how much of the old was left.
    fn kill(&mut self, way: Way, to: usize, at: Moment) -> Result<(Followed, usize)> {
        let config = self.configs[to].clone();
        let followed = match way {
            Way::Reload => self.reload_and_die(&config, at)?,
            Way::Start => {
                self.lb.kill()?;
                self.lb.begin_restart(&config)?;
                let (run, pid) = (self.site.topology.run(), self.lb.process().id());
                self.die(kill_at_step::kill_before(run, pid, at)?)?
            }
            Way::TakeOver => self.take_over_and_die(&config, to, at)?,
        };
        let new = self.look(&followed)?;
        self.lb.kill()?;
        self.lb.restart(&config)?;
        self.ensure_fresh(to)
            .with_context(|| format!("after the start that follows {followed:?}"))?;
        Ok((followed, new))
    }

    /// What is served when no process is there.
    fn look(&self, followed: &Followed) -> Result<usize> {
        let words = || {
            format!(
                "killed before {:?}, after {:?}",
                followed.killed, followed.steps
            )
        };
        let new = self.site.ensure_whole().with_context(words)?;
        self.pairs
            .iter()
            .try_for_each(Pair::talk)
            .with_context(words)?;
        Ok(new)
    }

    fn reload_and_die(&mut self, config: &str, at: Moment) -> Result<Followed> {
        self.lb.write(config)?;
        let doom = kill_at_step::kill_before(self.site.topology.run(), self.lb.process().id(), at)?;
        let _said = self.lb.tell(&["reload"])?;
        doom.end()
    }

    /// Until the process is killed, or ready.
    fn die(&mut self, doom: Doom) -> Result<Followed> {
        let begun = Instant::now();
        while !doom.is_over() && !self.lb.process().stdout().contains("ready") {
            ensure!(begun.elapsed() < 3 * LIMIT, "neither killed nor ready");
            thread::sleep(Duration::from_millis(5));
        }
        doom.end()
    }

    /// In turn both processes are killed at the moment, or only the one that takes over: then the one before goes on
    /// with what it has applied until it is killed, too.
    fn take_over_and_die(&mut self, config: &str, to: usize, at: Moment) -> Result<Followed> {
        let goes_on = self.take_overs.is_multiple_of(2) == (to == 0);
        self.take_overs += to;
        let mut before = self.lb.begin_take_over(config, &[])?;
        let run = self.site.topology.run();
        let next = self.lb.process().id();
        let doom = if goes_on {
            kill_at_step::kill_before(run, next, at)?
        } else {
            kill_at_step::kill_both_before(run, next, before.id(), at)?
        };
        let followed = self.die(doom)?;
        if followed.killed.is_some() && goes_on {
            poll::until("the process before goes on", LIMIT, || {
                let log = before.stderr();
                // One that dies before it takes over has nothing to give back.
                let goes_on =
                    !log.contains("handed over") || log.contains("the old process goes on");
                Ok(goes_on.then_some(()))
            })?;
            let is_whole = self.site.ensure_is(1 - to);
            let is_whole = is_whole.and_then(|()| self.ensure_no_id_is_lost());
            is_whole.with_context(|| format!("gone on after {followed:?}"))?;
        }
        before.signal(nix::sys::signal::Signal::SIGKILL)?;
        before.wait_for_end(LIMIT)?;
        Ok(followed)
    }

    fn ensure_fresh(&self, side: usize) -> Result<()> {
        // A client that has looked for a VIP before it was there gives up between its last probe and the end of its
        // patience, whatever is there by then.
        for client in self.site.clients() {
            client.netns.run("ip neigh flush dev eth0")?;
        }
        self.site.ensure_is(side)?;
        self.pairs.iter().try_for_each(Pair::talk)?;
        let run = self.site.topology.run();
        let wanted = &self.fresh.entries[side];
        let same = || {
            let now = without_links(map_snapshot::entries(run)?);
            let more: Vec<_> = now
                .difference(wanted)
                .filter(|entry| !leaves(entry))
                .collect();
            let less: Vec<_> = wanted.difference(&now).collect();
            ensure!(
                more.is_empty() && less.is_empty(),
                "too much: {more:#?}, missing: {less:#?}"
            );
            Ok(())
        };
        poll::until("the maps of a fresh instance", LIMIT, || Ok(same().ok()))
            .or_else(|_| same())?;
        let folders = map_snapshot::folders(run);
        let differ: Vec<_> = folders.symmetric_difference(&self.fresh.folders).collect();
        ensure!(differ.is_empty(), "left or gone: {differ:?}");
        self.ensure_no_id_is_lost()
    }

    /// Each flow id is in the queue, and once, or a flow has it.
    fn ensure_no_id_is_lost(&self) -> Result<()> {
        let counted = || ids::counted(self.site.topology.run());
        // A flow that ends is neither for a moment.
        let all = poll::until("the ids of all flows", LIMIT, || {
            let is_whole = |count: &[usize; 2]| *count == [PORTS, 0];
            Ok(counted()?.iter().all(is_whole).then_some(()))
        });
        all.with_context(|| format!("{:?}", counted()))
    }

    /// When nothing drains any more, the names are those of a fresh instance, too.
    fn ensure_nothing_leaks(&mut self, side: usize) -> Result<()> {
        self.pairs.clear();
        let run = self.site.topology.run();
        let wanted = &self.fresh.names[side];
        let gone = poll::until("the ids of what is gone", 3 * LIMIT, || {
            Ok((map_snapshot::names(run)? == *wanted).then_some(()))
        });
        gone.with_context(|| format!("{:?}, not {wanted:?}", map_snapshot::names(run)))?;
        let entries = || map_snapshot::entries(run).map(without_links);
        poll::until("entries of nothing else", LIMIT, || {
            Ok((entries()? == self.fresh.entries[side]).then_some(()))
        })
        .with_context(|| format!("{:#?}", entries()))?;
        poll::until("the end of every flow", LIMIT, || {
            let flows = self.lb.status()?.flows;
            Ok((flows.live == 0).then_some(()))
        })
        .with_context(|| format!("{:?}", self.lb.status()))?;
        self.ensure_no_id_is_lost()
    }
}

/// Interfaces of cells have other numbers in another instance.
fn without_links(entries: BTreeSet<String>) -> BTreeSet<String> {
    let word = |word: &str| !word.starts_with("cell_ifindex") && !word.contains("ifindex:");
    let entries = entries.into_iter();
    entries
        .map(|entry| {
            let mut after_link = false;
            let words = entry.split(' ').filter(|now| {
                let keep = word(now) && !after_link;
                after_link = now.ends_with("ifindex:");
                keep
            });
            words.collect::<Vec<_>>().join(" ")
        })
        .collect()
}

/// Whether an entry may be of a SNAT address that finishes its flows, or of a peer to which the last segments are
/// on their way.
fn leaves(entry: &str) -> bool {
    entry.contains("10.32.96.51") || entry.starts_with(map_snapshot::PEER)
}

/// The moments of one test. In the long tier each has steps of the whole change, too.
#[derive(Clone, Copy, Debug)]
struct Part {
    moments: &'static [Moment],
    /// Whether such a kill leaves some services new and others old.
    is_partly: bool,
}

/// Before what is pointed to is written: no service is another one yet.
const TARGETS: Part = Part {
    moments: &[
        Moment::Of("bpf 2 of SNAT_PAGES", 0),
        Moment::Of("bpf 2 of NETWORKS", 1),
        Moment::Of("bpf 2 of BACKENDS", 2),
    ],
    is_partly: false,
};
/// While what points to it is written: services, VIPs and names.
const REFERENCES: Part = Part {
    moments: &[
        Moment::Of("bpf 2 of SERVICES", 4),
        Moment::Of("bpf 2 of ADDRESSES", 1),
        Moment::Of("bpf 3 of ADDRESSES", 0),
        Moment::Of("bpf 2 of REGISTRY", 1),
    ],
    is_partly: true,
};

/// In the long tier also: steps so far apart; each run has others. The two parts have one half of them each.
const APART: u32 = 2 * 16;

/// When to kill, one moment after the other.
fn moments(part: Part, dice: &mut Dice) -> Result<Box<dyn Iterator<Item = Moment>>> {
    let moments = part.moments.iter().copied();
    if !is_long() {
        return Ok(Box::new(moments));
    }
    let first = usize::try_from(dice.below(APART))?;
    let apart = usize::try_from(APART)?;
    let steps = (first..).step_by(apart).map(Moment::Step);
    Ok(Box::new(moments.chain(steps)))
}

fn is_long() -> bool {
    std::env::var_os("LB_TEST_LONG").is_some()
}

/// Kills a change at all moments of a part.
fn kill_everywhere(way: Way, part: Part) -> Result<()> {
    let mut dice = Dice::from_environment();
    let again = format!("{SEED}={}", dice.seed());
    println!("{again}");
    let moments = moments(part, &mut dice)?;
    kill_at(way, moments, part.is_partly).context(again)
}

/// Kills a change at one moment after the other, in turn there and back; whether some of them must leave
/// a part of the services new.
fn kill_at(way: Way, moments: impl Iterator<Item = Moment>, is_partly: bool) -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let mut bed = Bed::new(&site)?;
    let line = Line::new(topology.client(), KEPT, &topology.nodes[0], KEPT_PORT)?;
    bed.pairs = line.open_many(10)?;
    let (mut kills, mut partly) = (0, 0);
    let mut done = [false; 2];
    let mut side = 0;
    for at in moments {
        let kills_before = kills;
        for _ in 0..2 {
            side = 1 - side;
            if done[side] {
                bed.lb.reload(&bed.configs[side].clone())?;
                continue;
            }
            let (followed, new) = bed
                .kill(way, side, at)
                .with_context(|| format!("{way:?} to {side}, {at:?}"))?;
            match followed.killed {
                Some(step) => {
                    println!("{way:?} to {side}: killed at {at:?}, {step}: {new} new");
                    kills += 1;
                }
                None => {
                    println!("{way:?} to {side}: {:#?}", followed.steps);
                    done[side] = matches!(at, Moment::Step(_));
                }
            }
            partly += usize::from((1..6).contains(&new));
        }
        // On the way back there may be less to do: only what the change before has done until it was killed.
        let came = kills > kills_before || matches!(at, Moment::Step(_));
        ensure!(came, "{at:?} never came");
        if done == [true; 2] {
            break;
        }
    }
    println!("{way:?}: {kills} kills, {partly} of them in the middle");
    ensure!(kills > 2, "{kills} kills");
    ensure!(partly > 0 || !is_partly, "none in the middle");
    bed.ensure_nothing_leaks(side)
}

/// A reload.
#[privileged_test]
fn reliability_3_a_reload_that_is_killed_before_its_targets_is_completed() -> Result<()> {
    kill_everywhere(Way::Reload, TARGETS)
}

/// The same, killed while services, VIPs and names change.
#[privileged_test]
fn reliability_3_a_reload_that_is_killed_among_its_references_is_completed() -> Result<()> {
    kill_everywhere(Way::Reload, REFERENCES)
}

/// A start over what another configuration has left.
#[privileged_test]
fn reliability_3_a_start_that_is_killed_before_its_targets_is_completed() -> Result<()> {
    kill_everywhere(Way::Start, TARGETS)
}

/// The same, killed while services, VIPs and names change.
#[privileged_test]
fn reliability_3_a_start_that_is_killed_among_its_references_is_completed() -> Result<()> {
    kill_everywhere(Way::Start, REFERENCES)
}

/// A take-over with another configuration: the process that takes over is killed, and the one before with it, or after
/// it has gone on.
#[privileged_test]
fn reliability_3_a_take_over_that_is_killed_before_its_targets_is_completed() -> Result<()> {
    kill_everywhere(Way::TakeOver, TARGETS)
}

/// The same, killed while services, VIPs and names change.
#[privileged_test]
fn reliability_3_a_take_over_that_is_killed_among_its_references_is_completed() -> Result<()> {
    kill_everywhere(Way::TakeOver, REFERENCES)
}

/// At any moment of a change, by time.
#[privileged_test]
fn reliability_3_a_change_is_killed_at_random() -> Result<()> {
    let kills = if is_long() { 200 } else { 6 };
    let mut dice = Dice::from_environment();
    let again = format!("{SEED}={}", dice.seed());
    println!("{again}");
    let mut run = || -> Result<()> {
        let topology = Topology::poc()?;
        let site = Site::new(&topology)?;
        let mut bed = Bed::new(&site)?;
        let line = Line::new(topology.client(), KEPT, &topology.nodes[0], KEPT_PORT)?;
        bed.pairs = line.open_many(10)?;
        let begun = Instant::now();
        bed.lb.reload(&bed.configs[1].clone())?;
        let takes = begun.elapsed();
        bed.lb.reload(&bed.configs[0].clone())?;
        let mut side = 0;
        for kill in 0..kills {
            side = 1 - side;
            let config = bed.configs[side].clone();
            let moment = dice.up_to(takes);
            bed.lb.write(&config)?;
            let mut reload = bed.lb.begin(&["reload"])?;
            thread::sleep(moment);
            bed.lb.kill()?;
            reload.wait()?;
            let words = || format!("kill {kill}, after {moment:?} of {takes:?}");
            bed.look(&Followed::default()).with_context(words)?;
            bed.lb.restart(&config)?;
            bed.ensure_fresh(side).with_context(words)?;
        }
        bed.ensure_nothing_leaks(side)
    };
    run().context(again)
}
