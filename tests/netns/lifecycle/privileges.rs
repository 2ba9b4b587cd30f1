//! Least privilege: FEATURES H6. What runs has two or three capabilities in each thread, whichever user started it, and
//! does with these all that it does as root.

use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    leftovers,
    oracle::observe,
    poll,
    process::{self, Process},
    product::{
        config::Config,
        lb::{Lb, USER, prepare, start_fails_unprivileged},
    },
    servers::teller::{Teller, ask},
    topology::{Host, TENANT_NIC, Topology, VIP},
    traffic::{
        client,
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use nix::sys::signal::Signal;

use crate::{
    flows::life::LIMIT,
    health::verdicts::wait_for,
    lifecycle::confirm::{Unconfirmed, down},
};

const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
const DIRECT: SocketAddrV4 = SocketAddrV4::new(VIP, 8443);
/// A VIP that a reload adds.
const ADDED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 168, 203, 111), 9000);
/// The same for nodes alone, before the tenants' network is there.
const ARM: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 60);
const SHARED_ARM: SocketAddrV4 = SocketAddrV4::new(ARM, 443);
const DIRECT_ARM: SocketAddrV4 = SocketAddrV4::new(ARM, 8443);
const NAME: &str = "a.lab";
/// Where the node serves those that come and go, and those that stay.
const PORT: u16 = 31443;
const LONG_PORT: u16 = 31444;

/// What a start needs, and what the bounding set can be changed with, in the words of setpriv.
const OF_START: &str = "-all,+bpf,+net_admin,+net_raw,+perfmon,+sys_admin";
pub(crate) const ALL: &str = "-all,+bpf,+net_admin,+net_raw,+perfmon,+sys_admin,+setpcap";
/// CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
pub(crate) const KEPT: &str = "0000008000003000";
/// What threads keep that hear clients and backends: no CAP_NET_RAW.
pub(crate) const OF_LISTENERS: &str = "0000008000001000";
/// The first letters of their names.
pub(crate) const LISTENERS: [&str; 3] = ["vip-", "health-", "hellos"];
/// What a start has that may not change its bounding set.
const BOUND: &str = "000000c000203000";
pub(crate) const NONE: &str = "0000000000000000";

/// With the least that is needed, or with a VIP, a pool and a SNAT address more.
fn config(topology: &Topology, more: bool) -> Config {
    let config = pools(Config::poc(), topology).service("shared", |shared| {
        shared.on("tenant-a").tcp(SHARED).with(ROUTES)
    });
    let config = direct(config);
    let long = SocketAddrV4::new(topology.nodes[0].address, LONG_PORT);
    match more {
        true => config
            .network("mgmt", |mgmt| mgmt.push("snat", "10.32.96.51"))
            .mgmt_pool("added", [long])
            .tcp_service("added", ADDED),
        false => config,
    }
}

const ROUTES: &str = "sni: { routes: [{ names: [a.lab], pool: short }] }";

fn pools(config: Config, topology: &Topology) -> Config {
    let at = |port| [SocketAddrV4::new(topology.nodes[0].address, port)];
    let check = "health: { tcp: {}, interval: 100ms, timeout: 100ms, fall: 1, rise: 1 }";
    config
        .mgmt_pool("short", at(PORT))
        .pool("short", |short| short.with(check))
        .mgmt_pool("long", at(LONG_PORT))
}

fn direct(config: Config) -> Config {
    config.tcp_service_to("direct", DIRECT, "long")
}

/// For nodes alone, or also for tenants.
fn config_of_arm(topology: &Topology, tenants: bool) -> Config {
    let networks = match tenants {
        true => Config::poc(),
        false => Config::new().mgmt(),
    };
    let config = pools(networks, topology)
        .service("shared-arm", |shared| {
            shared.on("mgmt").tcp(SHARED_ARM).with(ROUTES)
        })
        .service("direct-arm", |direct| {
            direct.on("mgmt").tcp(DIRECT_ARM).pool("long")
        });
    match tenants {
        true => direct(config),
        false => config,
    }
}

/// What `/proc` says of each thread; those that come and go are left out if they have gone.
fn threads(id: u32) -> Result<Vec<String>> {
    let tasks = fs::read_dir(format!("/proc/{id}/task"))?;
    let statuses =
        tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    Ok(statuses.collect())
}

fn has_line(status: &str, key: &str, wanted: &str) -> bool {
    let line = format!("{key}:\t{wanted}");
    status.lines().any(|found| found == line)
}

/// Every thread of every kind has exactly what is kept, for ever.
pub(crate) fn ensure_kept(topology: &Topology, id: u32, uid: u32, bounds: &str) -> Result<()> {
    let threads = threads(id)?;
    let uids = format!("{uid}\t{uid}\t{uid}\t{uid}");
    for status in &threads {
        let name = status.lines().find_map(|line| line.strip_prefix("Name:\t"));
        let name = name.context("a thread without a name")?;
        let kept = match LISTENERS.iter().any(|kind| name.starts_with(kind)) {
            true => OF_LISTENERS,
            false => KEPT,
        };
        let wanted = [
            ("Uid", uids.as_str()),
            ("CapInh", NONE),
            ("CapPrm", kept),
            ("CapEff", kept),
            ("CapBnd", if bounds == KEPT { kept } else { bounds }),
            ("CapAmb", NONE),
            ("NoNewPrivs", "1"),
        ];
        for (key, wanted) in wanted {
            ensure!(
                has_line(status, key, wanted),
                "{key} is not {wanted}: {status}"
            );
        }
    }
    let cell = format!("lb.{}.mgmt", topology.run());
    for kind in [
        "lb",
        "expiry",
        "neighbours-1",
        "vip-tenant-a",
        "health-mgmt",
        &cell,
    ] {
        let kind: String = kind.chars().take(15).collect();
        let is_there = threads.iter().any(|status| has_line(status, "Name", &kind));
        ensure!(is_there, "no thread {kind}: {threads:?}");
    }
    Ok(())
}

/// A client reaches the node by a shared VIP.
fn reach(client: &Host, vip: SocketAddrV4) -> Result<()> {
    let hello = named(NAME.as_bytes());
    let ask = || ask(vip, &[&hello], Duration::ZERO);
    let who = client.netns.inside(ask)??;
    ensure!(who.as_deref() == Some("node"), "{who:?}");
    Ok(())
}

fn teller(topology: &Topology) -> Result<Teller> {
    let node = &topology.nodes[0];
    Teller::start_listening(&node.netns, SocketAddrV4::new(node.address, PORT), "node")
}

/// Everything that a running process does, it does without being root: flows, shared VIPs, checks, reloads
/// and what follows from them, NICs that come back, a take-over; and so does the next one after a kill.
#[privileged_test]
fn h6_a_user_runs_it_with_four_capabilities() -> Result<()> {
    let topology = Topology::poc()?;
    let [least, more] = [false, true].map(|more| config(&topology, more));
    let node = &topology.nodes[0];
    let server = teller(&topology)?;
    let line = Line::new(topology.client(), DIRECT, node, LONG_PORT)?;
    let mut lb = Lb::start_unprivileged(&topology, &least, ALL)?;
    ensure_kept(&topology, lb.process().id(), USER, KEPT)?;
    let pair = line.open()?;
    reach(topology.client(), SHARED)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    drop(server);
    wait_for(&lb, &["dead", "up"], LIMIT)?;
    let _server = teller(&topology)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;

    lb.reload(&more)?;
    let mut added = (0..20)
        .map(|_| line.open_at(ADDED))
        .collect::<Result<Vec<_>>>()?;
    let sources: BTreeSet<_> = added.iter().map(|pair| *pair.snat.ip()).collect();
    ensure!(
        sources.len() == 2,
        "both SNAT addresses are used, not {sources:?}"
    );
    pair.talk()?;
    ensure_kept(&topology, lb.process().id(), USER, KEPT)?;
    ensure_come_back(&topology, &mut lb, &pair)?;
    added.iter().try_for_each(Pair::talk)?;

    // Ids of the new address, too, are put back by the thread that ends flows.
    lb.tell(&["flows", "--service", "added", "--kill"])?
        .done()?;
    poll::until("the end of the killed flows", LIMIT, || {
        Ok((lb.status()?.flows.live == 1).then_some(()))
    })?;
    // What was added is taken off the cell when the sweep has found that no flow has it.
    lb.reload(&least)?;
    added.clear();
    poll::until("the address to be taken off", LIMIT * 3, || {
        let cell = format!("--net=/run/netns/lb.{}.mgmt", topology.run());
        let addresses =
            process::succeed(Command::new("nsenter").args([&cell, "ip", "-o", "address"]))?;
        Ok((!addresses.contains("10.32.96.51")).then_some(()))
    })?;

    let said = lb.process().stderr();
    ensure!(!said.contains("is lost"), "{said}");
    let mut before = lb.take_over(&least)?;
    ensure_kept(&topology, lb.process().id(), USER, KEPT)?;
    let status = before.wait_for_end(LIMIT)?;
    ensure!(status.success(), "{status}: {}", before.stderr());
    pair.talk()?;

    // Without CAP_SETPCAP the bounding set stays, which no_new_privs makes worthless.
    lb.kill()?;
    lb.set_capabilities(OF_START)?;
    lb.restart(&least)?;
    ensure_kept(&topology, lb.process().id(), USER, BOUND)?;
    pair.talk()?;
    reach(topology.client(), SHARED)?;
    ensure!(
        !lb.process().stderr().contains("ERROR"),
        "{}",
        lb.process().stderr()
    );
    lb.down()?;
    ensure!(leftovers::traces_of(topology.run()).is_empty());
    Ok(())
}

/// The tenants' NIC is taken out and put in, and is taken in.
fn ensure_come_back(topology: &Topology, lb: &mut Lb<'_>, pair: &Pair) -> Result<()> {
    topology.unplug(TENANT_NIC)?;
    lb.process().wait_for_stderr("is gone", LIMIT)?;
    topology.plug(TENANT_NIC)?;
    poll::until("our program on the new NIC", LIMIT, || {
        Ok(observe::link(&topology.lb, TENANT_NIC)?.xdp)
    })?;
    pair.talk()
}

/// As root it keeps no more, before and after a reload.
#[privileged_test]
fn h6_root_keeps_four_capabilities() -> Result<()> {
    let topology = Topology::poc()?;
    let [least, more] = [false, true].map(|more| config(&topology, more));
    let _server = teller(&topology)?;
    let line = Line::new(topology.client(), ADDED, &topology.nodes[0], LONG_PORT)?;
    let mut lb = Lb::start(&topology, &least)?;
    ensure_kept(&topology, lb.process().id(), 0, KEPT)?;
    lb.reload(&more)?;
    line.open()?.talk()?;
    reach(topology.client(), SHARED)?;
    ensure_kept(&topology, lb.process().id(), 0, KEPT)
}

/// So it does when it has all of them until the operator confirms, also in the threads of before.
#[privileged_test]
fn h6_a_confirmed_start_keeps_four_capabilities() -> Result<()> {
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let config = config(&topology, false).set("log.flows", &log);
    let mut child = Unconfirmed::start(&topology, &config, "60s")?;
    child.confirm()?;
    let mut last = Ok(());
    let kept = poll::until("the capabilities to be given up", LIMIT, || {
        last = ensure_kept(&topology, child.id(), 0, KEPT);
        Ok(last.is_ok().then_some(()))
    });
    last.and(kept)?;
    let threads = threads(child.id())?;
    let writes = |status: &String| has_line(status, "Name", "lb-flow-log");
    ensure!(threads.iter().any(writes), "{threads:?}");
    drop(child);
    down(&topology)
}

/// The data plane goes from root to a user and back, with its flows.
#[privileged_test]
fn h6_a_user_takes_over_what_root_has_left() -> Result<()> {
    let topology = Topology::poc()?;
    let config = config(&topology, false);
    let _server = teller(&topology)?;
    let line = Line::new(topology.client(), DIRECT, &topology.nodes[0], LONG_PORT)?;
    let failure = start_fails_unprivileged(&topology, &config, OF_START, &[])?;
    ensure!(
        failure.code == Some(1) && failure.message().contains("lb prepare"),
        "{failure:?}"
    );
    let mut lb = Lb::start(&topology, &config)?;
    let pair = line.open()?;
    let refused = prepare(&topology, &config, USER).map_err(|error| error.to_string());
    let words = "by another user than nobody: stop it first";
    ensure!(
        refused.as_ref().is_err_and(|said| said.contains(words)),
        "{refused:?}"
    );
    lb.process().stop()?;

    let said = prepare(&topology, &config, USER)?;
    ensure!(said.contains("files and folders to nobody"), "{said}");
    lb.set_capabilities(ALL)?;
    lb.restart(&config)?;
    ensure_kept(&topology, lb.process().id(), USER, KEPT)?;
    pair.talk()?;
    // Nothing is left to do, whether it runs or not.
    let again = prepare(&topology, &config, USER)?;
    ensure!(again.lines().count() == 1, "{again}");
    ensure_nobody_else_asks(&topology)?;
    lb.process().stop()?;
    drop(lb);

    let mut lb = Lb::start_unprivileged(&topology, &config, ALL)?;
    let pair = line.open()?;
    lb.kill()?;
    lb.set_root()?;
    lb.restart(&config)?;
    ensure_kept(&topology, lb.process().id(), 0, KEPT)?;
    lb.reload(&self::config(&topology, true))?;
    pair.talk()
}

/// Another user than root and the one who runs it cannot even connect.
fn ensure_nobody_else_asks(topology: &Topology) -> Result<()> {
    let lb = topology.dir().join("lb");
    let mut command = topology.lb.command("setpriv");
    command.args(["--reuid=65533", "--regid=65533", "--clear-groups", "--"]);
    command
        .arg(lb)
        .args(["reload", "--instance", topology.run()]);
    let said = process::succeed(&mut command).map_err(|error| error.to_string());
    ensure!(
        said.as_ref()
            .is_err_and(|said| said.contains("answers only root and its own user")),
        "{said:?}"
    );
    Ok(())
}

/// A network that a reload cannot bring is brought by a take-over, and no connection notices.
#[privileged_test]
fn h6_a_take_over_adds_a_network_and_nobody_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config_of_arm(&topology, false))?;
    add_network(&topology, lb, || Ok(()))
}

/// The same as a user.
#[privileged_test]
fn h6_a_users_take_over_adds_a_network_and_nobody_is_refused() -> Result<()> {
    let topology = Topology::poc()?;
    let [least, more] = [false, true].map(|tenants| config_of_arm(&topology, tenants));
    let lb = Lb::start_unprivileged(&topology, &least, ALL)?;
    add_network(&topology, lb, || {
        // A process that cannot start takes nothing over.
        let failure = start_fails_unprivileged(&topology, &more, ALL, &["--takeover"])?;
        let cell = format!("lb.{}.tenant-a; `lb prepare", topology.run());
        ensure!(failure.message().contains(&cell), "{failure:?}");
        without_state_folder(&topology, &least)?;
        prepare(&topology, &more, USER).map(drop)
    })
}

/// As a process of before has it, which knows of no folder that outlives a reboot, and keeps what is applied as text.
fn without_state_folder(topology: &Topology, applied: &Config) -> Result<()> {
    let [state, runtime] =
        ["/var/lib/lb", "/run/lb"].map(|folder| Path::new(folder).join(topology.run()));
    fs::remove_file(state.join("applied.json"))?;
    fs::write(runtime.join("applied.yaml"), &**applied)?;
    for entry in fs::read_dir(&state)? {
        process::succeed(Command::new("mv").arg(entry?.path()).arg(&runtime))?;
    }
    fs::remove_dir(&state).context("remove the folder of the state")
}

fn add_network(
    topology: &Topology,
    mut lb: Lb<'_>,
    prepare: impl Fn() -> Result<()>,
) -> Result<()> {
    let (node, near) = (&topology.nodes[0], &topology.nodes[1]);
    let _server = teller(topology)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let line = Line::new(near, DIRECT_ARM, node, LONG_PORT)?;
    let pairs = line.open_many(10)?;
    let more = config_of_arm(topology, true);
    lb.write(&more)?;
    // No process is started by a signal.
    lb.process().signal(Signal::SIGHUP)?;
    let refused = "refused: network tenant-a is new: that needs a new process, which loses nothing";
    lb.process().wait_for_stderr(refused, LIMIT)?;
    let stop = AtomicBool::new(false);
    let before = thread::scope(|scope| -> Result<Process> {
        let load = scope.spawn(|| -> Result<usize> {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                reach(near, SHARED_ARM).with_context(|| format!("connection {count}"))?;
                count += 1;
            }
            Ok(count)
        });
        let before = prepare().and_then(|()| lb.take_over(&more));
        stop.store(true, Ordering::Relaxed);
        let count = load.join().map_err(|_| anyhow!("the load panicked"))??;
        ensure!(count > 10, "{count} connections");
        before
    })?;
    pairs.iter().try_for_each(Pair::talk)?;
    drop(before);
    pairs.iter().try_for_each(Pair::talk)?;
    let opened = topology
        .client()
        .netns
        .inside(|| client::open(None, DIRECT))?;
    opened.map(drop)
}
