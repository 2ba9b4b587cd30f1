//! One process takes over from another while connections come and go: RELIABILITY 2.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering},
    thread::{self, ScopedJoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_common::maps::snat::FLOWS_PER_ADDRESS;
use lb_tests::{
    fault::kill_at_step::{self, Moment},
    oracle::ids,
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::{Lb, start_fails_with},
    },
    servers::teller::{Teller, ask},
    topology::{TENANT_NIC, Topology, VIP},
    traffic::{
        client,
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use serde_json::json;

use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, wait_for},
    lifecycle::remains::{self, Remains, WITHOUT_SERVICE, disturb},
    proxy::relayed::have_copied,
};

pub(crate) const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
pub(crate) const DIRECT: SocketAddrV4 = SocketAddrV4::new(VIP, 8443);
pub(crate) const LONG: SocketAddrV4 = SocketAddrV4::new(VIP, 444);
pub(crate) const LONG_DIRECT: SocketAddrV4 = SocketAddrV4::new(VIP, 8444);
pub(crate) const NAME: &str = "a.lab";
/// Where the node serves those that come and go, and those that stay.
pub(crate) const PORT: u16 = 31443;
pub(crate) const LONG_PORT: u16 = 31444;
/// How long the process before may take to end once nothing is left to it.
const ENDS: Duration = Duration::from_secs(10);

pub(crate) fn config(topology: &Topology) -> Config {
    add(Config::poc(), topology)
}

/// Adds the pools and the services.
fn add(config: Config, topology: &Topology) -> Config {
    let at = |port| [SocketAddrV4::new(topology.nodes[0].address, port)];
    let shared = |shared: Keys, address, pool| {
        let routes = json!([{ "names": [NAME], "pool": pool }]);
        let shared = shared.on("tenant-a").tcp(address).set("sni.routes", routes);
        // Each process has connections of its own.
        shared.set("sni.late_binding", "never")
    };
    config
        .mgmt_pool("short", at(PORT))
        .mgmt_pool("long", at(LONG_PORT))
        .service("shared", |short| shared(short, SHARED, "short"))
        .service("shared-long", |long| shared(long, LONG, "long"))
        .tcp_service_to("direct", DIRECT, "short")
        .tcp_service_to("direct-long", LONG_DIRECT, "long")
}

/// What came of connections that are opened one after the other.
#[derive(Debug)]
struct Opened {
    count: usize,
    longest: Duration,
}

/// Opens connections to a VIP until it is stopped; none may fail.
fn open(topology: &Topology, to: SocketAddrV4, stop: &AtomicBool) -> Result<Opened> {
    let hello = named(NAME.as_bytes());
    let mut opened = Opened {
        count: 0,
        longest: Duration::ZERO,
    };
    topology.client().netns.inside(|| {
        while !stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            let who = ask(to, &[&hello], Duration::ZERO);
            let who = who.with_context(|| format!("connection {} to {to}", opened.count))?;
            ensure!(
                who.as_deref() == Some("node"),
                "connection {} to {to} reached {who:?}",
                opened.count
            );
            opened.longest = opened.longest.max(started.elapsed());
            opened.count += 1;
            thread::sleep(client::BETWEEN);
        }
        Ok(opened)
    })?
}

/// How many take-overs there are, one after the other.
fn takeovers() -> usize {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 20,
        None => 8,
    }
}

/// One take-over after the other, beside connections that stay; each process leaves to the next what was
/// there. A backend that was dead answers meanwhile, and is not to be believed yet. Those that gave way.
fn take_over_all(
    lb: &mut Lb<'_>,
    (site, config): (&Site<'_>, &str),
    (line, pairs): (&Line<'_>, &mut Vec<Pair>),
    remains: &mut Remains<'_>,
    is_over: impl Fn() -> bool,
) -> Result<Vec<Process>> {
    let mut before = Vec::new();
    for round in 1..=takeovers() {
        let words = || format!("take-over {round}");
        site.health[1].answer(200);
        before.push(lb.take_over(config).with_context(words)?);
        remains.ensure_known(lb).with_context(words)?;
        site.health[1].refuse();
        pairs.iter().try_for_each(Pair::talk)?;
        // One that begins with each process.
        pairs.push(line.open()?);
        ensure!(!is_over(), "a connection has failed");
    }
    Ok(before)
}

/// Upgrades, one after the other, beside connections that stay and connections that come and go,
/// by the data plane and by a shared VIP: none is lost, none is refused, and each process ends when what
/// it carries has ended. Ids, cells, counts, verdicts and overrides are what they were.
#[privileged_test]
fn reliability_2_a_process_takes_over_and_nobody_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    // Each process has some to carry.
    have_copied(&topology)?;
    let site = Site::new(&topology, 3)?;
    let config = add(remains::config(&site), &topology);
    site.health[1].refuse();
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, PORT);
    let _teller = Teller::start(&node.netns, address, "node")?;
    let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
    let line = line.saying(named(NAME.as_bytes()));
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "dead", "up", "up", "up"], LIMIT)?;
    let first = disturb(&lb, &topology)?;
    assert_eq!(site.who(10)?.into_keys().collect::<Vec<_>>(), [&*first]);
    let mut pairs = line.open_many(10)?;
    for _ in 0..10 {
        pairs.push(line.open_at(LONG_DIRECT)?);
    }
    let mut remains = Remains::of(&lb, &topology)?;
    let stop = AtomicBool::new(false);
    let mut before = thread::scope(|scope| -> Result<Vec<Process>> {
        let loads = [SHARED, DIRECT].map(|to| {
            let (topology, stop) = (&topology, &stop);
            scope.spawn(move || open(topology, to, stop))
        });
        let is_over = || loads.iter().any(ScopedJoinHandle::is_finished);
        let carried = (&line, &mut pairs);
        let before = take_over_all(&mut lb, (&site, &config), carried, &mut remains, is_over);
        stop.store(true, Ordering::Relaxed);
        for (load, to) in loads.into_iter().zip(["shared VIP", "data plane"]) {
            let load = load.join().map_err(|_| anyhow!("the load panicked"))?;
            let Opened { count, longest } = load?;
            println!(
                "{} take-overs, {to}: {count} connections, the longest {longest:.1?}",
                takeovers()
            );
            ensure!(count > takeovers(), "{count} connections");
        }
        before
    })?;
    assert_eq!(site.who(10)?.into_keys().collect::<Vec<_>>(), [&*first]);
    assert_eq!(lb.dropped("no_service")?, u64::try_from(WITHOUT_SERVICE)?);
    pairs.iter().try_for_each(Pair::talk)?;
    // Each carries something.
    for (number, process) in before.iter_mut().enumerate() {
        ensure!(process.ended()?.is_none(), "process {number} has ended");
    }
    drop(pairs);
    for process in &mut before {
        ended_well(process)?;
    }
    ensure!(lb.process().ended()?.is_none());
    // What is left ends with the data plane.
    let _pair = line.open()?;
    let mut left = lb.take_over(&config)?;
    lb.process().stop()?;
    ensure!(left.ended()?.is_none());
    lb.down()?;
    ended_well(&mut left)
}

/// The programs that are verified before the process of before gives way are those that take its place.
#[privileged_test]
fn a_take_over_has_the_programs_verified_once() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology);
    let mut lb = Lb::start(&topology, &config)?;
    lb.set_full_log()?;
    let _before = lb.take_over(&config)?;
    let said = lb.process().stderr();
    for words in [
        "the kernel verified the programs in ",
        "the rest of the start took ",
    ] {
        ensure!(said.matches(words).count() == 1, "{words}: {said}");
    }
    Ok(())
}

/// Processes that take over and are killed before they are up, each at another moment: the process before
/// goes on as if no heir had asked. It accepts, it controls, it keeps the lock; what it carries has not noticed;
/// and the next one takes over from it.
#[privileged_test]
fn a_process_goes_on_when_its_heir_dies() -> Result<()> {
    let topology = Topology::poc()?;
    have_copied(&topology)?;
    let config = config(&topology);
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, PORT);
    let _teller = Teller::start(&node.netns, address, "node")?;
    let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
    let line = line.saying(named(NAME.as_bytes()));
    let mut lb = Lb::start(&topology, &config)?;
    let mut pairs = vec![line.open()?, line.open_at(LONG_DIRECT)?];
    // What the heirs begin with, and what they are killed in the middle of.
    let elsewhere = format!("{VIP}:8445/tcp");
    let other = config
        .clone()
        .service("direct", |direct| direct.set("listen.0", elsewhere));
    for (round, (moment, file)) in [
        // When it is about to put its programs into the place of the others, at the first NIC and later.
        (Moment::Of("bpf 29", 0), &config),
        (Moment::Of("bpf 29", 1), &config),
        // When its configuration is half in the maps.
        (Moment::Of("bpf 2 of SERVICES", 0), &other),
    ]
    .into_iter()
    .enumerate()
    {
        let words = || format!("heir {round}");
        if round == 0 {
            // Its file is for a start: this process knows what is applied.
            let applied = format!("/var/lib/lb/{}/applied.json", topology.run());
            fs::remove_file(applied)?;
        }
        let before = lb.begin_take_over(file, &[])?;
        let doom = kill_at_step::kill_before(topology.run(), lb.process().id(), moment)?;
        let end = poll::until("its end", 3 * LIMIT, || Ok(doom.is_over().then_some(())));
        let followed = doom.end()?;
        ensure!(
            end.is_ok() && followed.killed.is_some(),
            "{round}: {followed:?}"
        );
        lb.process().wait_for_end(ENDS)?;
        poll::until("a word of it", ENDS, || {
            let said = before.stderr();
            Ok((said.matches("the old process goes on").count() == round + 1).then_some(()))
        })
        .with_context(words)?;
        lb.follow(before);
        ensure!(lb.process().ended()?.is_none());
        pairs.iter().try_for_each(Pair::talk).with_context(words)?;
        for to in [SHARED, DIRECT] {
            let hello = named(NAME.as_bytes());
            let netns = &topology.client().netns;
            let who = netns.inside(|| ask(to, &[&hello], Duration::ZERO))??;
            ensure!(who.as_deref() == Some("node"), "{round}: {to}: {who:?}");
        }
        pairs.push(line.open().with_context(words)?);
        lb.status().with_context(words)?;
        let failure = start_fails_with(&topology, &config, &[])?;
        ensure!(failure.stderr.contains("is running already"), "{failure:?}");
    }
    let mut before = lb.take_over(&config)?;
    pairs.iter().try_for_each(Pair::talk)?;
    drop(pairs);
    ended_well(&mut before)?;
    ids_are_whole(&topology)
}

/// No SNAT port is lost or there twice.
fn ids_are_whole(topology: &Topology) -> Result<()> {
    let counted = || ids::counted(topology.run());
    let all = poll::until("the ids of all flows", ENDS, || {
        let is_whole = |count: &[usize; 2]| *count == [usize::from(FLOWS_PER_ADDRESS), 0];
        Ok(counted()?.iter().all(is_whole).then_some(()))
    });
    all.with_context(|| format!("{:?}", counted()))
}

pub(crate) fn ended_well(process: &mut Process) -> Result<()> {
    let status = process.wait_for_end(ENDS)?;
    ensure!(status.success(), "{status}: {}", process.stderr());
    Ok(())
}

/// Where no process runs, there is none to take over from; where one does, a file that is wrong leaves
/// it alone.
#[privileged_test]
fn who_cannot_start_takes_nothing_over() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology);
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, PORT);
    let _teller = Teller::start(&node.netns, address, "node")?;
    let mut lb = Lb::start(&topology, &config)?;
    let reaches = || {
        let hello = named(NAME.as_bytes());
        let who = topology
            .client()
            .netns
            .inside(|| ask(SHARED, &[&hello], Duration::ZERO))??;
        ensure!(who.as_deref() == Some("node"), "{who:?}");
        Ok(())
    };
    let failure = start_fails_with(&topology, "version: [", &["--takeover"])?;
    ensure!(failure.code == Some(2), "{failure:?}");
    reaches()?;
    ensure!(lb.process().ended()?.is_none());
    let own = Ipv4Addr::new(192, 168, 203, 77);
    topology
        .lb
        .run(&format!("ip address add {own}/24 dev {TENANT_NIC}"))?;
    let more = config
        .clone()
        .network("more", |more| more.nic("tenant", "eth9", "10.9.0.0/24"));
    let taken = config.clone().service("direct-long", |direct| {
        direct.set("listen.0", format!("{own}:444/tcp"))
    });
    for (file, words) in [
        (&more, "network more: there is no interface eth9".to_owned()),
        (&taken, format!("{own} is an address of this host")),
    ] {
        let failure = start_fails_with(&topology, file, &["--takeover"])?;
        ensure!(
            failure.code == Some(1) && failure.stderr.contains(&words),
            "{failure:?}"
        );
        reaches()?;
        ensure!(lb.process().ended()?.is_none());
    }
    lb.process().stop()?;
    // The process has ended: its successor begins as any other.
    let _ended = lb.take_over(&config)?;
    reaches()
}
