//! The product as a service: its units under systemd. RELIABILITY 1.

use std::{
    collections::BTreeSet,
    net::SocketAddrV4,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use lb_tests::{
    poll,
    product::{config::Config, systemd::Systemd},
    servers::teller::{Teller, ask, ask_on},
    topology::Topology,
    traffic::{
        client,
        conn_pair::{Line, Pair},
        hello::named,
    },
};

use crate::{
    lifecycle::{
        migrate::age,
        privileges::{KEPT, LISTENERS, NONE, OF_LISTENERS},
        takeover::{DIRECT, LONG, LONG_DIRECT, LONG_PORT, NAME, PORT, SHARED, config},
    },
    proxy::relayed::have_copied,
};

const KILLS: usize = 20;
/// Processes that are killed while they take over, and how much longer each lives than the one before.
const HEIRS: u32 = 8;
const HEIR_STEP: Duration = Duration::from_millis(100);
/// How long no process may be there after it.
const BACK: Duration = Duration::from_secs(10);
/// The most that systemd may find the service exposed, of 100.
const EXPOSURE: u32 = 50;
/// How long a process that has nothing to carry may take to end.
const ENDS: Duration = Duration::from_secs(10);

/// How often the unit is reloaded.
fn reloads() -> usize {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 20,
        None => 5,
    }
}

/// What came of connections that are opened one after the other. None was refused.
#[derive(Debug, Default)]
struct Came {
    served: usize,
    /// They had been taken, and were not served to their end.
    cut: usize,
    longest: Duration,
}

/// Opens connections to `to` until it is stopped.
fn open(topology: &Topology, to: SocketAddrV4, stop: &AtomicBool) -> Result<Came> {
    let hello = named(NAME.as_bytes());
    let mut came = Came::default();
    topology.client().netns.inside(|| {
        while !stop.load(Ordering::Relaxed) {
            let started = Instant::now();
            match ask(to, &[&hello], Duration::ZERO) {
                Ok(Some(who)) if who == "node" => came.served += 1,
                Ok(None) => came.cut += 1,
                Err(error) if !is_refused(&error) => came.cut += 1,
                other => bail!("after {came:?} to {to}: {other:?}"),
            }
            came.longest = came.longest.max(started.elapsed());
            thread::sleep(client::BETWEEN);
        }
        Ok(came)
    })?
}

/// A configuration with one more network, on this interface.
fn with_network(config: Config, interface: &str) -> Config {
    config.network("more", |more| more.nic("tenant", interface, "10.9.0.0/24"))
}

/// Whether there was no connection at all.
fn is_refused(error: &Error) -> bool {
    error.to_string().starts_with("connect to ")
}

/// A host with a server, and the units of `lb` there.
struct Stage<'t> {
    topology: &'t Topology,
    systemd: Systemd<'t>,
    line: Line<'t>,
    _teller: Teller,
}

impl<'t> Stage<'t> {
    fn new(topology: &'t Topology, settings: &str) -> Result<Self> {
        let node = &topology.nodes[0];
        let address = SocketAddrV4::new(node.address, PORT);
        let line = Line::new(topology.client(), LONG, node, LONG_PORT)?;
        Ok(Self {
            topology,
            line: line.saying(named(NAME.as_bytes())),
            _teller: Teller::start(&node.netns, address, "node")?,
            systemd: Systemd::boot(topology, &config(topology), settings)?,
        })
    }

    /// The same, with the unit started: active means ready.
    fn started(topology: &'t Topology, settings: &str) -> Result<Self> {
        let stage = Self::new(topology, settings)?;
        stage.systemd.succeed("start lb")?;
        stage.reaches(SHARED)?;
        stage.reaches(DIRECT)?;
        let words = stage.systemd.property("StatusText")?;
        ensure!(words == "2 networks, 4 services", "{words}");
        Ok(stage)
    }

    fn pid(&self) -> Result<String> {
        self.systemd.property("MainPID")
    }

    fn reaches(&self, to: SocketAddrV4) -> Result<()> {
        let hello = named(NAME.as_bytes());
        let netns = &self.topology.client().netns;
        let who = netns.inside(|| ask(to, &[&hello], Duration::ZERO))??;
        ensure!(who.as_deref() == Some("node"), "{to}: {who:?}");
        Ok(())
    }

    /// Every thread of the main process is that of the user `lb`, and has what is kept. A process that has taken
    /// over prints nowhere.
    fn ensure_least_privilege(&self) -> Result<()> {
        let text = self.systemd.threads(&self.pid()?)?;
        let (listeners, others): (Vec<_>, Vec<_>) =
            text.split_inclusive("\nName:").partition(|thread| {
                LISTENERS
                    .iter()
                    .any(|kind| thread.starts_with(&format!("\t{kind}")))
            });
        ensure!(!listeners.is_empty(), "{text}");
        Self::ensure_kept(&listeners.concat(), OF_LISTENERS)?;
        Self::ensure_kept(&others.concat(), KEPT)
    }

    fn ensure_kept(text: &str, kept: &str) -> Result<()> {
        let kinds = |key: &str| -> BTreeSet<&str> {
            let values = text.lines().filter_map(|line| line.strip_prefix(key));
            values.map(str::trim).collect()
        };
        for (key, wanted) in [
            ("CapInh:", NONE),
            ("CapPrm:", kept),
            ("CapEff:", kept),
            ("CapBnd:", kept),
            ("CapAmb:", NONE),
            ("NoNewPrivs:", "1"),
            ("Seccomp:", "2"),
        ] {
            let found = kinds(key);
            ensure!(found == BTreeSet::from([wanted]), "{key} {found:?}");
        }
        let users = kinds("Uid:");
        ensure!(
            users.len() == 1 && users.iter().all(|user| !user.starts_with("0\t")),
            "{users:?}"
        );
        Ok(())
    }

    /// Kills the process that is to take over, so long after it was started; whether it was there.
    fn reload_and_kill(&self, after: Duration) -> Result<bool> {
        let before = self.systemd.processes()?;
        thread::scope(|scope| {
            let reload = scope.spawn(|| self.systemd.systemctl("reload lb"));
            let heir = || -> Result<Vec<String>> {
                let mut heirs = self.systemd.processes()?;
                heirs.retain(|pid| !before.contains(pid));
                let mut takes_over = Vec::new();
                for pid in heirs {
                    let words = self.systemd.arguments(&pid)?;
                    if words.iter().any(|word| word == "--takeover") {
                        takes_over.push(pid);
                    }
                }
                Ok(takes_over)
            };
            let mut killed = false;
            while !reload.is_finished() {
                if heir()?.is_empty() {
                    continue;
                }
                thread::sleep(after);
                for pid in heir()? {
                    self.systemd.kill(&pid)?;
                    killed = true;
                }
                break;
            }
            reload
                .join()
                .map_err(|_| anyhow!("the reload panicked"))??;
            Ok(killed)
        })
    }

    fn open_direct(&self, count: usize) -> Result<Vec<Pair>> {
        (0..count).map(|_| self.line.open_at(LONG_DIRECT)).collect()
    }

    /// Does this beside connections that come and go; what came of those to the shared VIP.
    fn loaded(&self, what: &str, work: impl FnOnce() -> Result<()>) -> Result<Came> {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let loads = [SHARED, DIRECT].map(|to| {
                let (topology, stop) = (self.topology, &stop);
                scope.spawn(move || open(topology, to, stop))
            });
            let result = work();
            stop.store(true, Ordering::Relaxed);
            let [shared, direct] =
                loads.map(|load| load.join().map_err(|_| anyhow!("the load panicked")));
            let (shared, direct) = (shared??, direct??);
            println!("{what}: shared VIP: {shared:?}, data plane: {direct:?}");
            result?;
            ensure!(shared.served > 0 && direct.served > 0);
            ensure!(direct.cut == 0, "the data plane has lost {direct:?}");
            Ok(shared)
        })
    }
}

/// Twenty kills of the control plane: no client is refused, and what the data plane carries does not notice.
/// Of the shared VIP each kill ends at most the connection that it was about to serve.
#[privileged_test]
fn reliability_1_nobody_is_refused_while_the_process_is_killed() -> Result<()> {
    let topology = Topology::poc()?;
    let stage = Stage::started(&topology, "")?;
    let pairs = stage.open_direct(10)?;
    let mut longest = Duration::ZERO;
    let came = stage.loaded(&format!("{KILLS} kills"), || {
        for round in 1..=KILLS {
            let before = stage.pid()?;
            let killed = Instant::now();
            stage
                .systemd
                .succeed("kill --kill-whom=main --signal=KILL lb")?;
            let back = stage.systemd.another(&before);
            back.with_context(|| format!("kill {round}"))?;
            longest = longest.max(killed.elapsed());
            pairs.iter().try_for_each(Pair::talk)?;
        }
        Ok(())
    })?;
    println!("the longest time without a control plane: {longest:.1?}");
    ensure!(came.cut <= KILLS, "{came:?}");
    let restarts = stage.systemd.property("NRestarts")?;
    ensure!(restarts == KILLS.to_string(), "{restarts} restarts");
    pairs.iter().try_for_each(Pair::talk)
}

/// A reload is a take-over: nothing is refused or cut, the unit follows the new process, and the old one
/// ends without a word when it has nothing left.
#[privileged_test]
fn a_reload_of_the_unit_loses_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    // Each process has some to carry.
    have_copied(&topology)?;
    topology.add_idle_nic("eth2")?;
    let stage = Stage::started(&topology, "")?;
    let systemd = &stage.systemd;
    stage.ensure_least_privilege()?;
    let mut pairs = stage.open_direct(5)?;
    let reloads = reloads();
    let came = stage.loaded(&format!("{reloads} reloads"), || {
        for round in 1..=reloads {
            pairs.push(stage.line.open()?);
            let before = stage.pid()?;
            if round == reloads {
                // One that a reload of the process refuses.
                systemd.write(&with_network(config(&topology), "eth2"))?;
            }
            let reloaded = systemd.succeed("reload lb");
            reloaded.with_context(|| format!("reload {round}"))?;
            ensure!(stage.pid()? != before, "the unit does not follow");
            pairs.iter().try_for_each(Pair::talk)?;
            stage.ensure_least_privilege()?;
        }
        let words = systemd.property("StatusText")?;
        ensure!(words == "3 networks, 4 services", "{words}");
        let before = stage.pid()?;
        for wrong in ["version: [", &with_network(config(&topology), "eth9")] {
            systemd.write(wrong)?;
            ensure!(!systemd.systemctl("reload lb")?.status.success());
            ensure!(stage.pid()? == before, "a wrong file has ended the process");
            pairs.iter().try_for_each(Pair::talk)?;
        }
        systemd.write(&config(&topology))?;
        let file = systemd.config().display().to_string();
        let (has_taken, said) = systemd.by_hand(&["run", "--takeover", "--config", &file])?;
        ensure!(
            !has_taken && said.contains("`systemctl reload lb`"),
            "{said}"
        );
        ensure!(stage.pid()? == before, "a process has taken over by hand");
        pairs.iter().try_for_each(Pair::talk)
    })?;
    ensure!(came.cut == 0, "{came:?}");
    ensure!(systemd.processes()?.len() == 1 + reloads);
    let pid = stage.pid()?;
    drop(pairs);
    poll::until("the end of the old processes", ENDS, || {
        Ok((systemd.processes()?.len() == 1).then_some(()))
    })?;
    ensure!(stage.pid()? == pid);
    ensure!(systemd.property("NRestarts")? == "0");
    ensure!(systemd.property("ActiveState")? == "active");
    // The one that has taken over is watched as the first one was, and its listeners are kept.
    let came = stage.loaded("a kill after it", || {
        systemd.succeed("kill --kill-whom=main --signal=KILL lb")?;
        systemd.another(&pid).map(drop)
    })?;
    ensure!(came.cut <= 1, "{came:?}");
    Ok(())
}

/// A process that takes over and is killed before it is up: whatever it has got by then, there is a control
/// plane again at once, and no client is refused.
#[privileged_test]
fn an_heir_that_is_killed_leaves_nobody_alone() -> Result<()> {
    let topology = Topology::poc()?;
    let stage = Stage::started(&topology, "")?;
    let pairs = stage.open_direct(5)?;
    let (mut killed, mut longest) = (0, Duration::ZERO);
    let came = stage.loaded("heirs that are killed", || {
        for round in 0..HEIRS {
            killed += usize::from(stage.reload_and_kill(round * HEIR_STEP)?);
            let alone = Instant::now();
            let is_back = || {
                let state = stage.systemd.property("ActiveState")?;
                Ok((state == "active" && stage.reaches(SHARED).is_ok()).then_some(()))
            };
            poll::until("a control plane", BACK, is_back)?;
            longest = longest.max(alone.elapsed());
            pairs.iter().try_for_each(Pair::talk)?;
        }
        Ok(())
    })?;
    println!("{killed} killed; the longest time until a shared VIP served: {longest:.1?}");
    ensure!(killed > 1, "{killed} killed");
    ensure!(came.cut <= killed, "{came:?}");
    // Whichever process it is now, the next one takes over from it.
    stage.systemd.succeed("reload lb")?;
    stage.reaches(SHARED)?;
    pairs.iter().try_for_each(Pair::talk)
}

/// An upgrade that cannot adopt what is pinned is refused, and what runs goes on; with the options of the
/// unit it is made, and a start after it adopts again.
#[privileged_test]
fn an_upgrade_of_the_unit_migrates_when_it_is_told_to() -> Result<()> {
    let topology = Topology::poc()?;
    let stage = Stage::started(&topology, "")?;
    let systemd = &stage.systemd;
    let leg = stage.line.open()?;
    let before = stage.pid()?;
    age(&topology)?;
    ensure!(!systemd.systemctl("reload lb")?.status.success());
    let words = systemd.words();
    ensure!(words.contains("`lb run --migrate`"), "{words}");
    ensure!(stage.pid()? == before, "it has ended what runs");
    leg.talk()?;
    stage.reaches(SHARED)?;
    systemd.set_options("--migrate")?;
    systemd.succeed("reload lb")?;
    ensure!(stage.pid()? != before, "no process has taken over");
    // It was a flow, as the refusal has said.
    ensure!(leg.talk().is_err(), "a flow of the other version");
    stage.reaches(SHARED)?;
    stage.reaches(DIRECT)?;
    systemd.set_options("")?;
    let pairs = stage.open_direct(3)?;
    systemd.succeed("restart lb")?;
    stage.reaches(SHARED)?;
    pairs.iter().try_for_each(Pair::talk)
}

/// A network comes with a reload of the unit that `lb reload` has made, and goes by a process of the unit again when it is
/// not confirmed.
#[privileged_test]
fn a_network_comes_to_the_unit_and_is_taken_back() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_idle_nic("eth2")?;
    let stage = Stage::started(&topology, "")?;
    let systemd = &stage.systemd;
    let pairs = stage.open_direct(5)?;
    let more = config(&topology).network("tenant-b", |network| {
        network.nic("tenant", "eth2", "192.168.204.0/24")
    });
    let came = stage.loaded("a network that comes and goes", || {
        let before = stage.pid()?;
        systemd.write(&more)?;
        let (is_done, said) = systemd.by_hand(&["reload", "--confirm", "10s"])?;
        ensure!(is_done, "{said}");
        let with = stage.pid()?;
        let words = systemd.property("StatusText")?;
        ensure!(with != before && words.starts_with("3 networks"), "{words}");
        systemd.another(&with)?;
        poll::until("what was before", BACK, || {
            let words = systemd.property("StatusText")?;
            Ok(words.starts_with("2 networks").then_some(()))
        })
    })?;
    ensure!(came.cut == 0, "{came:?}");
    ensure!(systemd.property("NRestarts")? == "0");
    stage.ensure_least_privilege()?;
    pairs.iter().try_for_each(Pair::talk)
}

/// A control plane that hangs is killed and started anew, also one that has taken over; a stop leaves the
/// data plane, a restart refuses no client.
#[privileged_test]
fn what_hangs_is_started_anew_and_a_stop_ends_no_flow() -> Result<()> {
    let topology = Topology::poc()?;
    let stage = Stage::started(&topology, "WatchdogSec=10s\n")?;
    let systemd = &stage.systemd;
    let pairs = stage.open_direct(5)?;
    let came = stage.loaded("two that hang", || {
        let mut pid = stage.pid()?;
        // A process that reports that it is alive goes on.
        thread::sleep(Duration::from_secs(12));
        ensure!(stage.pid()? == pid, "killed for nothing");
        for is_heir in [false, true] {
            if is_heir {
                systemd.succeed("reload lb")?;
                pid = stage.pid()?;
            }
            systemd.succeed("kill --kill-whom=main --signal=STOP lb")?;
            let hung = Instant::now();
            pid = systemd.another(&pid)?;
            println!("back after {:.1?}", hung.elapsed());
        }
        Ok(())
    })?;
    ensure!(came.cut <= 2, "{came:?}");
    ensure!(systemd.property("NRestarts")? == "2");
    let came = stage.loaded("a restart", || systemd.succeed("restart lb").map(drop))?;
    ensure!(came.cut <= 1, "{came:?}");
    systemd.succeed("stop lb")?;
    ensure!(systemd.property("ActiveState")? == "inactive");
    pairs.iter().try_for_each(Pair::talk)?;
    stage.reaches(DIRECT)?;
    // A client waits with its hello for the process to come.
    let early = topology
        .client()
        .netns
        .inside(|| client::open(None, SHARED))??;
    let early = thread::spawn(move || ask_on(early, &[&named(NAME.as_bytes())], Duration::ZERO));
    systemd.succeed("start lb")?;
    let server = early.join().map_err(|_| anyhow!("the client panicked"))??;
    ensure!(server.as_deref() == Some("node"), "{server:?}");
    stage.reaches(SHARED)?;
    pairs.iter().try_for_each(Pair::talk)
}

/// systemd finds nothing wrong with the units.
#[privileged_test]
fn the_units_are_in_order() -> Result<()> {
    let topology = Topology::poc()?;
    let stage = Stage::new(&topology, "")?;
    let unit = stage.systemd.unit("lb.service").display().to_string();
    let said = stage.systemd.analyze(&["verify", &unit])?;
    ensure!(said.is_empty(), "{said}");
    let exposure = format!("--threshold={EXPOSURE}");
    let security = ["security", "--offline=true", "--no-pager", &exposure, &unit];
    println!("{}", stage.systemd.analyze(&security)?);
    stage.systemd.succeed("start lb")?;
    let [all, own] = stage.systemd.mounts(&stage.pid()?)?;
    ensure!(all == own, "{all} is not {own}");
    Ok(())
}

/// What root prepares is made before each start: after `lb down`, for a network that is new in the file, and
/// not where the file is wrong.
#[privileged_test]
fn each_start_is_prepared() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_idle_nic("eth2")?;
    let stage = Stage::started(&topology, "")?;
    let systemd = &stage.systemd;
    systemd.succeed("stop lb")?;
    let (is_down, said) = systemd.by_hand(&["down"])?;
    ensure!(is_down, "{said}");
    systemd.succeed("start lb")?;
    stage.reaches(SHARED)?;
    let restarted = |words: &str| -> Result<()> {
        systemd.succeed("restart lb")?;
        let said = systemd.property("StatusText")?;
        ensure!(said.starts_with(words), "{said}");
        stage.reaches(SHARED)?;
        stage.reaches(DIRECT)
    };
    systemd.write(&with_network(config(&topology), "eth2"))?;
    restarted("3 networks, 4 services")?;
    ensure!(systemd.property("StatusText")? == "3 networks, 4 services");
    let stale = "3 networks, 4 services; the file is not what is applied: ";
    systemd.write("version: [")?;
    restarted(stale)?;
    systemd.write(&with_network(config(&topology), "eth9"))?;
    restarted(&format!("{stale}network more: there is no interface eth9"))
}
