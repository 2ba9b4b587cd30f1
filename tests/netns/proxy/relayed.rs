//! Connections of a shared VIP that this process copies are flows: they are listed, logged, counted, idle and
//! cut as such.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_common::maps::snat::{FIRST_FLOW_PORT, FIRST_LEG_PORT, FIRST_LOCAL_PORT};
use lb_tests::{
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::answers::Answers,
    topology::{SNAT, Topology, VIP},
    traffic::{
        client::open,
        conn_pair::{Line, Pair},
        hello::named,
    },
};
use serde_json::json;

use crate::health::verdicts::{FAST, HEALTH_PORT};

pub(crate) const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
pub(crate) const NAME: &str = "a.lab";
/// Where the node serves.
pub(crate) const PORT: u16 = 31443;
/// How long a thing may take that takes no time.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// The first node behind the shared VIP, as backend `one`. The process opens each connection.
pub(crate) fn config(topology: &Topology) -> Config {
    let node = SocketAddrV4::new(topology.nodes[0].address, PORT);
    let routes = json!([{ "names": [NAME], "pool": "a" }]);
    Config::poc()
        .pool("a", |pool| {
            let backend = json!({ "name": "one", "address": node });
            pool.on("mgmt").push("backends", backend)
        })
        .service("shared", |shared| {
            let shared = shared.on("tenant-a").tcp(SHARED).set("sni.routes", routes);
            shared.set("sni.late_binding", "never")
        })
        .set("timeouts.half_closed", "1s")
}

/// The same with these keys of the service.
pub(super) fn config_with(topology: &Topology, service: &str) -> Config {
    config(topology).service("shared", |shared| shared.with(service))
}

/// Takes their timestamps from the first client's connections, which its backends have: so none of them is
/// handed over.
pub(crate) fn have_copied(topology: &Topology) -> Result<()> {
    let client = &topology.client().netns;
    client.set_sysctl("ipv4/tcp_timestamps", "0")
}

/// From the first client to the first node, with a hello in front; each is copied.
pub(crate) fn line(topology: &Topology) -> Result<Line<'_>> {
    have_copied(topology)?;
    fast_line(topology)
}

/// The same with them: all are.
pub(crate) fn fast_line(topology: &Topology) -> Result<Line<'_>> {
    let line = Line::new(topology.client(), SHARED, &topology.nodes[0], PORT)?;
    Ok(line.saying(named(NAME.as_bytes())))
}

/// The legs that `lb flows` lists.
fn legs(lb: &Lb<'_>) -> Result<usize> {
    Ok(lb.flows()?.len())
}

/// Waits until there are so many legs.
pub(crate) fn wait_for(lb: &Lb<'_>, count: usize) -> Result<()> {
    poll::until("the number of legs", SOON, || {
        Ok((legs(lb)? == count).then_some(()))
    })
}

#[privileged_test]
fn a_leg_is_listed_found_and_killed_like_a_flow() -> Result<()> {
    let topology = Topology::poc()?;
    let line = line(&topology)?;
    let lb = Lb::start(&topology, &config(&topology))?;
    let pairs = line.open_many(3)?;
    for Pair { snat, .. } in &pairs {
        ensure!(*snat.ip() == SNAT, "{snat}");
        // The first one might have been handed over.
        let ports = match *snat == pairs[0].snat {
            true => FIRST_FLOW_PORT..FIRST_LEG_PORT,
            false => FIRST_LEG_PORT..FIRST_LOCAL_PORT,
        };
        ensure!(ports.contains(&snat.port()), "{snat}");
    }
    let flows = lb.flows()?;
    ensure!(flows.len() == 3, "{flows:?}");
    let hello = u64::try_from(named(NAME.as_bytes()).len())?;
    for (flow, pair) in flows.iter().zip(&pairs) {
        ensure!(
            flow.service == "shared" && flow.network == "tenant-a",
            "{flow:?}"
        );
        ensure!(
            flow.client == pair.client.local_addr()?.to_string(),
            "{flow:?}"
        );
        ensure!(
            flow.vip == SHARED.to_string() && flow.snat == pair.snat.to_string(),
            "{flow:?}"
        );
        ensure!(
            flow.backend == format!("{}:{PORT}", topology.nodes[0].address),
            "{flow:?}"
        );
        ensure!(
            flow.state == "established" && flow.protocol == "tcp",
            "{flow:?}"
        );
        // A word each way behind the hello.
        ensure!(
            flow.bytes_request == hello + 7 && flow.bytes_reply == 5,
            "{flow:?}"
        );
    }
    let who = lb.who(pairs[1].snat)?;
    ensure!(who.len() == 1 && who[0].live, "{who:?}");
    let table = lb.tell(&["flows"])?.done()?;
    ensure!(table.matches(NAME).count() == 3, "{table}");
    let snat = pairs[1].snat.to_string();
    let said = lb.tell(&["flows", "--kill", "--snat", &snat])?.done()?;
    ensure!(said.contains("1 flows ended"), "{said}");
    pairs[1].wait_for_resets(SOON)?;
    pairs[0].talk()?;
    pairs[2].talk()?;
    wait_for(&lb, 2)?;
    let said = lb
        .tell(&["flows", "--kill", "--service", "shared"])?
        .done()?;
    ensure!(said.contains("2 flows ended"), "{said}");
    pairs[0].wait_for_resets(SOON)?;
    pairs[2].wait_for_resets(SOON)?;
    wait_for(&lb, 0)
}

#[privileged_test]
fn a_leg_ends_with_its_ends_and_when_it_is_idle() -> Result<()> {
    let topology = Topology::poc()?;
    let line = line(&topology)?;
    let lb = Lb::start(&topology, &config_with(&topology, "idle_timeout: 2s"))?;
    // Both close.
    let pair = line.open()?;
    pair.client.shutdown(Shutdown::Write)?;
    poll::until("the leg is half closed", SOON, || {
        let flows = lb.flows()?;
        Ok((flows.len() == 1 && flows[0].state == "half_closed").then_some(()))
    })?;
    drop(pair);
    wait_for(&lb, 0)?;
    // One closes, and the other has nothing to say.
    let pair = line.open()?;
    pair.client.shutdown(Shutdown::Write)?;
    wait_for(&lb, 0)?;
    drop(pair);
    // Neither end sends anything.
    let pair = line.open()?;
    let [took, _] = pair.wait_for_resets(SOON)?;
    ensure!(took >= Duration::from_millis(1500), "after {took:?}");
    // An end that is reset takes the other with it.
    let Pair { client, server, .. } = line.open()?;
    lb_tests::traffic::conn_pair::reset(server)?;
    lb_tests::traffic::conn_pair::wait_for_reset(&client, SOON)?;
    let Pair { client, server, .. } = line.open()?;
    lb_tests::traffic::conn_pair::reset(client)?;
    lb_tests::traffic::conn_pair::wait_for_reset(&server, SOON)?;
    wait_for(&lb, 0)
}

/// However a connection ends that was copied, or is not made, the port of a flow that it had is free again soon
/// after it.
#[privileged_test]
fn the_port_of_a_copied_connection_is_back_soon_after_it() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config(&topology))?;
    let are_back = |what: &str| {
        let start = Instant::now();
        poll::until(what, SOON, || {
            Ok((lb.status()?.flows.live == 0).then_some(()))
        })?;
        println!("{what}: back after {:.1?}", start.elapsed());
        Ok::<_, anyhow::Error>(())
    };
    let line = fast_line(&topology)?;
    let mut rounds = 0..;
    let mut open_one = || flow_port(&topology, &lb, &line, rounds.next().unwrap_or_default());
    for client_first in [true, false] {
        let Pair { client, server, .. } = open_one()?;
        let (first, second) = match client_first {
            true => (client, server),
            false => (server, client),
        };
        first.shutdown(Shutdown::Write)?;
        second.set_read_timeout(Some(SOON))?;
        ensure!((&second).read(&mut [0])? == 0, "no end");
        drop((second, first));
        are_back(if client_first {
            "the client closes first"
        } else {
            "the backend does"
        })?;
    }
    for by_client in [true, false] {
        let Pair { client, server, .. } = open_one()?;
        let (first, second) = match by_client {
            true => (client, server),
            false => (server, client),
        };
        lb_tests::traffic::conn_pair::reset(first)?;
        lb_tests::traffic::conn_pair::wait_for_reset(&second, SOON)?;
        are_back(if by_client {
            "the client resets"
        } else {
            "the backend does"
        })?;
    }
    // The SYN is not answered, and the client has left by then.
    topology.nodes[0].netns.run("ip link set eth0 down")?;
    have_copied(&topology)?;
    let client = topology.client().netns.inside(|| open(None, SHARED))??;
    (&client).write_all(&named(NAME.as_bytes()))?;
    poll::until("the backend is dialled", SOON, || {
        Ok((lb.status()?.flows.live > 0).then_some(()))
    })?;
    drop(client);
    are_back("no server answers")
}

/// A connection that is copied and has the port of a flow: of the two ends the other one has timestamps each time, so
/// it is not known before that they differ.
fn flow_port(topology: &Topology, lb: &Lb<'_>, line: &Line<'_>, round: u32) -> Result<Pair> {
    let (client, node) = (&topology.client().netns, &topology.nodes[0].netns);
    let (with, without) = if round.is_multiple_of(2) {
        (node, client)
    } else {
        (client, node)
    };
    with.set_sysctl("ipv4/tcp_timestamps", "1")?;
    without.set_sysctl("ipv4/tcp_timestamps", "0")?;
    let pair = line.open()?;
    let ports = FIRST_FLOW_PORT..FIRST_LEG_PORT;
    ensure!(ports.contains(&pair.snat.port()), "{}", pair.snat);
    ensure!(lb.status()?.flows.live > 0, "no port is lent");
    Ok(pair)
}

/// How long a leg may be silent of which one side is closed, as [`config`] says; and in how much more that is
/// seen.
const HALF_CLOSED: Duration = Duration::from_secs(1);
const SEEN: Duration = Duration::from_secs(3);
/// Bytes that a client sends behind the end of the other side.
const BEHIND: usize = 1 << 20;

/// A backend that has said all still hears all, as long as there is something to hear; once there is not, it is
/// reset.
#[privileged_test]
fn a_backend_may_close_its_side_first() -> Result<()> {
    let topology = Topology::poc()?;
    let line = line(&topology)?;
    let lb = Lb::start(&topology, &config(&topology))?;
    // Once to the end in peace, once without one.
    let sent: Vec<u8> = (0..=250).cycle().take(BEHIND).collect();
    let mut heard = vec![0; BEHIND];
    for ends in [true, false] {
        let Pair {
            mut client,
            mut server,
            ..
        } = line.open()?;
        server.shutdown(Shutdown::Write)?;
        client.set_read_timeout(Some(SOON))?;
        ensure!(client.read(&mut [0])? == 0, "no end");
        let flows = lb.flows()?;
        ensure!(
            flows.len() == 1 && flows[0].state == "half_closed",
            "{flows:?}"
        );

        let start = Instant::now();
        thread::scope(|scope| {
            let hear = scope.spawn(|| server.read_exact(&mut heard));
            client.write_all(&sent)?;
            let heard = hear.join().map_err(|_| anyhow!("the server panicked"))?;
            heard.context("hear all")
        })?;
        ensure!(heard == sent, "other bytes arrived");

        if ends {
            client.shutdown(Shutdown::Write)?;
            server.set_read_timeout(Some(SOON))?;
            ensure!(server.read(&mut [0])? == 0, "no end at the server");
        } else {
            lb_tests::traffic::conn_pair::wait_for_reset(&server, SOON)?;
            let took = start.elapsed();
            let time = HALF_CLOSED..HALF_CLOSED + SEEN;
            ensure!(time.contains(&took), "reset after {took:?}");
            poll::until("the client is reset", SOON, || {
                Ok(client.write_all(b"more").is_err().then_some(()))
            })?;
        }
        wait_for(&lb, 0)?;
    }
    Ok(())
}

/// Removing a service or a source ends its flows loudly; removing a backend drains it.
#[privileged_test]
fn a_change_ends_the_legs_that_it_does_not_let_in() -> Result<()> {
    let topology = Topology::poc()?;
    let line = line(&topology)?;
    let whole = config(&topology).pool("a", |pool| pool.set("drain_timeout", "8s"));
    let with = |keys: &str| whole.clone().service("shared", |shared| shared.with(keys));
    let lb = Lb::start(&topology, &whole)?;
    let pair = line.open()?;
    lb.reload(&with("idle_timeout: 3h"))?;
    pair.talk()?;
    lb.reload(&with("deny: [192.168.203.0/24]"))?;
    pair.wait_for_resets(SOON)?;
    lb.reload(&whole)?;
    let pair = line.open()?;
    lb.reload(&whole.clone().without("services", "shared"))?;
    pair.wait_for_resets(SOON)?;
    lb.reload(&whole)?;
    let pair = line.open()?;
    let other = format!("10.32.96.199:{PORT}");
    let other = whole.pool("a", |pool| pool.set("backends.0.address", other));
    lb.reload(&other)?;
    // Beyond the time in which the answers of the others would be heard no more.
    for _ in 0..6 {
        pair.talk()?;
        thread::sleep(Duration::from_secs(1));
    }
    pair.wait_for_resets(2 * SOON)?;
    wait_for(&lb, 0)
}

#[privileged_test]
fn a_dead_backend_ends_its_legs() -> Result<()> {
    let topology = Topology::poc()?;
    let line = line(&topology)?;
    let node = &topology.nodes[0];
    let health = Answers::start(&node.netns, SocketAddrV4::new(node.address, HEALTH_PORT))?;
    let check = Keys::from(FAST).set("http.port", HEALTH_PORT);
    let check = check.set("on_dead", "reset");
    let config = config(&topology).pool("a", |pool| pool.set("health", check));
    let lb = Lb::start(&topology, &config)?;
    let pair = line.open()?;
    drop(health);
    pair.wait_for_resets(SOON)?;
    wait_for(&lb, 0)
}

#[privileged_test]
fn legs_have_budgets_and_stand_in_the_log() -> Result<()> {
    let topology = Topology::poc()?;
    let line = line(&topology)?;
    let log = topology.dir().join("flows.json");
    let config = config_with(&topology, "max_flows: 2").set("log.flows", &log);
    let lb = Lb::start(&topology, &config)?;
    let pairs = line.open_many(2)?;
    ensure!(line.open().is_err(), "a third one");
    let snat = pairs[0].snat;
    drop(pairs);
    wait_for(&lb, 0)?;
    let pair = line.open()?;
    drop(pair);
    wait_for(&lb, 0)?;
    let lines = poll::until("all ends are logged", SOON, || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        Ok((text.matches("\"ended\"").count() == 3).then_some(text))
    })?;
    ensure!(lines.matches("\"began\"").count() == 3, "{lines}");
    let ended = lines.lines().filter(|line| line.contains("\"ended\""));
    let ended: Vec<&str> = ended
        .filter(|line| line.contains(&snat.to_string()))
        .collect();
    ensure!(!ended.is_empty(), "{lines}");
    ensure!(ended[0].contains("\"service\":\"shared\""), "{lines}");
    ensure!(ended[0].contains("\"reason\":\"finished\""), "{lines}");
    Ok(())
}
