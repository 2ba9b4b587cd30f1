//! What `lb` reports is what is.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    fault::stop_thread::freeze,
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::{ECHO, ECHO_NODE_PORT, ECHO6, LB_PORT, TENANT_NIC, Topology, VIP},
    traffic::client,
};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{
    flows::life::LIMIT,
    handoff::connections::handed_over,
    health::verdicts::{FAST, HEALTH_PORT, Site, connect, wait_for},
    proxy::relayed,
};

/// Connections whose backends are counted.
const CONNECTIONS: u16 = 200;
/// A node that is not there at first.
const ABSENT: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 150);
/// Percentage points that the part of these may be off: four standard deviations.
const OFF: f64 = 13.0;

/// Two nodes that are there, and half of the weight on one that is not; for IPv4 and IPv6.
fn with_an_absent_node() -> Config {
    let at = |node: Ipv4Addr| SocketAddrV4::new(node, ECHO_NODE_PORT);
    let [one, other] = [105, 106].map(|last| at(Ipv4Addr::new(10, 32, 96, last)));
    Config::poc_dual()
        .pool("four", |pool| {
            let pool = pool.on("mgmt");
            pool.push("backends", json!({ "address": one, "weight": 3 }))
                .push("backends", json!({ "address": other, "weight": 1 }))
                .push("backends", json!({ "address": at(ABSENT), "weight": 4 }))
        })
        .mgmt_pool("six", ["[fd00:32::105]:30700", "[fd00:32::150]:30700"])
        .tcp_service("four", ECHO)
        .tcp_service("six", ECHO6)
}

/// A backend without a next hop gets no flow, and its share says so; those of the others are what they get. With and
/// without a control plane.
#[privileged_test]
fn the_share_of_a_backend_is_what_it_gets() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    let site = Site::new(&topology, 2)?;
    let mut lb = Lb::start(&topology, &with_an_absent_node())?;
    let client = &topology.client().netns;
    let mut nodes = Vec::new();
    for _ in 0..CONNECTIONS {
        // Where the entries of four in a row are of the absent node, it is refused.
        let answer = client.inside(|| client::who(None, ECHO))?;
        nodes.extend(answer.ok().map(|answer| answer.node));
    }
    let got = |node: &str| -> Result<f64> {
        let count = nodes.iter().filter(|found| *found == node).count();
        Ok(f64::from(u16::try_from(count)?) * 100.0 / f64::from(CONNECTIONS))
    };
    for kills in [false, true] {
        if kills {
            lb.kill()?;
        }
        let shares: Vec<f64> = lb.backends()?.iter().map(|one| one.share).collect();
        let [first, second, absent, first6, absent6] = shares[..] else {
            anyhow::bail!("{shares:?}");
        };
        ensure!(absent == 0.0 && absent6 == 0.0, "{shares:?}");
        for (node, share) in [("n1", first), ("n2", second)] {
            let got = got(node)?;
            ensure!((got - share).abs() < OFF, "{node} got {got}: {shares:?}");
        }
        // Each is rounded up to hundredths.
        ensure!((80.0..=100.02).contains(&(first + second)), "{shares:?}");
        ensure!((80.0..=100.0).contains(&first6), "{shares:?}");
        let table = lb.tell(&["backends"])?.done()?;
        for (address, share) in [("10.32.96.105:", first), ("10.32.96.150:", 0.0)] {
            let row = table.lines().find(|row| row.contains(address));
            let row = row.unwrap_or_default();
            ensure!(row.contains(&format!(" {share:.0} %")), "{share}: {table}");
        }
    }
    // It comes: its share is that of its weight.
    lb.restart(&with_an_absent_node())?;
    let node = &topology.nodes[2].netns;
    node.run(&format!("ip address add {ABSENT}/20 dev eth0"))?;
    let at = SocketAddrV4::new(ABSENT, ECHO_NODE_PORT);
    let _echo = EchoServer::start(node, at, "n3")?;
    poll::until("the share of the node", LIMIT, || {
        let share = lb.backends()?.get(2).map(|one| one.share);
        Ok(share.filter(|share| (48.0..52.0).contains(share)))
    })?;
    ensure!(site.who(40)?.contains_key("n3"), "it has flows now");
    Ok(())
}

/// After a reload of another file that is not confirmed, the file of before is named, and it is what a reload without
/// a name reads; so it is where a kill came in between.
#[privileged_test]
fn the_file_of_status_is_the_one_that_runs() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let before = site.http("");
    let at = format!("{VIP}:7001/tcp");
    let other = before
        .clone()
        .service("echo-a", |service| service.set("listen.0", at));
    let other = topology.write("other.yaml", &other)?;
    let other = other.to_str().context("a path")?;
    let mut lb = Lb::start(&topology, &before)?;
    let named = |lb: &Lb<'_>| -> Result<String> {
        let status = lb.tell(&["status"])?.done()?;
        let words = status
            .lines()
            .find(|line| line.starts_with("configuration "));
        let words = words.with_context(|| status.clone())?.split_once(',');
        Ok(words.map_or_else(String::new, |(file, _)| file.replace("configuration ", "")))
    };
    let ours = lb.file().to_str().context("a path")?.to_owned();
    for kills in [false, true] {
        lb.tell(&["reload", other, "--confirm", "3s"])?.done()?;
        assert_eq!(named(&lb)?, other);
        if kills {
            lb.kill()?;
            let other = fs::read_to_string(other)?;
            lb.restart(&other)?;
            lb.write(&before)?;
        }
        poll::until("the way back", LIMIT, || {
            let events = lb.events()?.into_iter();
            let kinds = events.filter(|event| event.kind == "rollback");
            Ok((kinds.count() > usize::from(kills)).then_some(()))
        })?;
        assert_eq!(named(&lb)?, ours, "kills: {kills}");
        let listen = lb.services()?[0].listen.clone();
        ensure!(listen.contains(":7000/"), "{listen}");
        lb.tell(&["reload"])?.done()?;
        let listen = lb.services()?[0].listen.clone();
        ensure!(listen.contains(":7000/"), "{listen} after a reload");
    }
    Ok(())
}

/// What an operator does to a backend ends its flows for that reason, and not as if the backend had died.
#[privileged_test]
fn an_end_has_the_reason_that_made_it() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let log = topology.dir().join("flows.json");
    let config = site.http_reset("drain_timeout: 1s").set("log.flows", &log);
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let second = topology.nodes[1].address.to_string();
    let reasons = || -> Result<Vec<String>> {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
        let lines: Vec<serde_json::Value> = lines.collect::<Result<_, _>>()?;
        let ended = lines.iter().filter(|line| {
            let backend = line["backend"].as_str().unwrap_or_default();
            line["event"] == "ended" && backend.starts_with(&second)
        });
        Ok(ended
            .filter_map(|line| line["reason"].as_str().map(str::to_owned))
            .collect())
    };
    for (change, reason) in [
        ("disable", "disabled"),
        ("drain", "drained"),
        ("", "backend_down"),
    ] {
        let connections = connect(&topology, 16)?;
        let before = reasons()?.len();
        if change.is_empty() {
            site.health[1].refuse();
        } else {
            lb.tell(&["backend", change, "n2"])?.done()?;
        }
        let ended = poll::until("ends in the flow log", LIMIT, || {
            let live = lb.flows()?;
            let goes_on = live.iter().any(|flow| flow.backend.starts_with(&second));
            let ended = reasons()?.split_off(before);
            Ok((!goes_on && !ended.is_empty()).then_some(ended))
        })?;
        ensure!(ended.iter().all(|one| one == reason), "{reason}: {ended:?}");
        if !change.is_empty() {
            let events = lb.events()?;
            let mut of_it = events.iter().filter(|event| event.object.contains("/n2@"));
            let last = of_it.next_back().context("an event")?;
            ensure!(last.kind != "health", "{change}: {events:?}");
            lb.tell(&["backend", "enable", "n2"])?.done()?;
        }
        drop(connections);
        poll::until("no flow", LIMIT, || {
            Ok((lb.status()?.flows.live == 0).then_some(()))
        })?;
    }
    site.health[1].answer(200);
    wait_for(&lb, &["up", "up"], LIMIT)?;
    // A process that is killed before it could end them leaves that to the next one, with the reason.
    let _connections = connect(&topology, 16)?;
    let before = reasons()?.len();
    let frozen = freeze(lb.process(), "expiry")?;
    lb.tell(&["backend", "disable", "n2"])?.done()?;
    lb.process().signal(Signal::SIGKILL)?;
    drop(frozen);
    lb.kill()?;
    lb.restart(&config)?;
    let ended = poll::until("ends in the flow log", LIMIT, || {
        let ended = reasons()?.split_off(before);
        Ok((!ended.is_empty()).then_some(ended))
    })?;
    ensure!(ended.iter().all(|one| one == "disabled"), "{ended:?}");
    Ok(())
}

/// A connection of a shared VIP that is handed over has one id and a duration in the flow log; so has one that is
/// copied.
#[privileged_test]
fn a_connection_that_was_handed_over_has_its_duration() -> Result<()> {
    const LASTS: Duration = Duration::from_secs(1);
    let topology = Topology::poc()?;
    let log = topology.dir().join("flows.json");
    let config = relayed::config(&topology).set("log.flows", &log);
    let lb = Lb::start(&topology, &config)?;
    let line = relayed::fast_line(&topology)?;
    for is_copied in [false, true] {
        if is_copied {
            relayed::have_copied(&topology)?;
        }
        let pairs = line.open_many(3)?;
        thread::sleep(LASTS);
        assert_eq!(handed_over(&lb)?, 3, "the first three");
        drop(pairs);
        relayed::wait_for(&lb, 0)?;
    }
    let lines = poll::until("all ends are logged", LIMIT, || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        Ok((text.matches("\"ended\"").count() == 6).then_some(text))
    })?;
    let lines = lines.lines().map(serde_json::from_str::<serde_json::Value>);
    let lines: Vec<serde_json::Value> = lines.collect::<Result<_, _>>()?;
    let (began, ended): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["event"] == "began");
    assert_eq!((began.len(), ended.len()), (6, 6), "{lines:?}");
    for end in ended {
        let mut same = began.iter().filter(|line| line["snat"] == end["snat"]);
        let (begin, other) = (same.next(), same.next());
        ensure!(other.is_none(), "{lines:?}");
        ensure!(
            begin.is_some_and(|line| line["id"] == end["id"]),
            "{lines:?}"
        );
        let duration = end["duration_ms"].as_u64().map(Duration::from_millis);
        // A word each way and the ends take their time, too.
        let most = LASTS + LIMIT;
        ensure!(
            duration.is_some_and(|duration| (LASTS..most).contains(&duration)),
            "{end}"
        );
    }
    Ok(())
}

/// `lb down` over a process that runs changes nothing, and says how that process is stopped; then it takes down.
#[privileged_test]
fn down_says_how_to_stop_what_runs() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let mut lb = Lb::start(&topology, &site.http(""))?;
    let said = lb.tell(&["down"])?;
    assert_eq!(said.code, Some(1), "{said:?}");
    let kill = format!("kill {}", lb.id());
    for part in ["stop it first", "systemctl stop lb", &kill] {
        ensure!(said.stderr.contains(part), "{part} is not in {said:?}");
    }
    ensure!(!said.stderr.contains("already"), "{said:?}");
    assert_eq!(site.who(3)?.len(), 1);
    // As it says.
    lb.process().signal(Signal::SIGTERM)?;
    lb.process().wait_for_end(LIMIT)?;
    assert_eq!(site.who(3)?.len(), 1);
    lb.down()
}

/// A pool that comes with a reload has too few backends up when its first checks say so, and not before; what is said
/// then is said once.
#[privileged_test]
fn a_new_pool_is_no_failure_before_its_first_checks() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let before = site.http("");
    let lb = Lb::start(&topology, &before)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    // One pool whose backends serve, one whose backends refuse.
    let checked = |port: u16| {
        let health = Keys::from(FAST).set("tcp.port", port);
        move |pool: Keys| pool.set("health", health)
    };
    let nodes = ["10.32.96.105:30700", "10.32.96.106:30700"];
    let after = before
        .mgmt_pool("good", nodes)
        .pool("good", checked(HEALTH_PORT))
        .mgmt_pool("bad", nodes)
        .pool("bad", checked(9))
        .tcp_service("good", SocketAddrV4::new(VIP, 7001))
        .tcp_service("bad", SocketAddrV4::new(VIP, 7002));
    lb.reload(&after)?;
    wait_for(&lb, &["up", "up", "up", "up", "dead", "dead"], LIMIT)?;
    let said = poll::until("what is said of the pool that is down", LIMIT, || {
        let events = lb.events()?.into_iter();
        let said = events.filter(|event| event.object.starts_with("pool "));
        let said: Vec<String> = said
            .map(|event| format!("{}: {}", event.object, event.words))
            .collect();
        Ok((!said.is_empty()).then_some(said))
    })?;
    let down = "service down: 2 of 2 backends answer, and none serves: connection refused";
    assert_eq!(said, [format!("pool bad: {down}")]);
    Ok(())
}

/// A veth whose other end has no program takes what is sent back late or never, and `lb status` says so of that NIC
/// alone.
#[privileged_test]
fn a_veth_whose_other_end_has_no_program_is_hinted_at() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 1)?;
    let hints = |lb: &Lb<'_>| -> Result<(Vec<bool>, String)> {
        let networks = lb.status()?.networks.into_iter();
        let lone = networks.map(|network| network.peer_without_program);
        let said = lb.tell(&["status"])?.done()?;
        let hints = said.lines().filter(|line| line.starts_with("hint: "));
        Ok((lone.collect(), hints.collect()))
    };
    let lb = Lb::start(&topology, &site.http(""))?;
    assert_eq!(hints(&lb)?, (vec![false, false], String::new()));
    // Another NIC in the place of the first one, whose other end has nothing.
    topology.unplug(TENANT_NIC)?;
    let netns = topology.lb.name();
    topology.tenant_lan.ip_batch(&format!(
        "link add {LB_PORT} type veth peer name {TENANT_NIC} netns {netns}\n\
         link set {LB_PORT} master br0\nlink set {LB_PORT} up\n"
    ))?;
    topology
        .lb
        .ip_batch(&format!("link set {TENANT_NIC} up\n"))?;
    poll::until("the new NIC", LIMIT, || {
        let networks = lb.status()?.networks;
        let all = networks.iter().all(|network| network.mode == "native");
        Ok(all.then_some(()))
    })?;
    let (lone, said) = hints(&lb)?;
    assert_eq!(lone, [false, true], "mgmt, tenant-a");
    let words =
        "hint: network tenant-a: interface eth0 is a veth whose other end has no XDP program";
    ensure!(said.starts_with(words), "{said}");
    Ok(())
}
