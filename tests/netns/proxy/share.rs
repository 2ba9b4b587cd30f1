//! What shared VIPs take for the clients of one tenant they do not take from those of another one.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{self, Teller},
    topology::{Host, Trunk, VIP},
    traffic::{
        client::{open, was_reset},
        conn_pair::reset,
        hello::named,
    },
};
use serde_json::json;

use crate::proxy::hosts::{self, http_servers};

/// The shared VIP of the first tenant, and a VIP of the second one's that the data plane serves alone.
const SHARED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
const OTHER: SocketAddrV4 = SocketAddrV4::new(VIP, 7000);
/// A VIP of both for requests.
const WEB: SocketAddrV4 = SocketAddrV4::new(VIP, 80);
/// Where the nodes serve.
const PORT: u16 = 31443;
const NAME: &str = "a.lab";
/// Connections of the first tenant: half as many again as there are flow ids.
const MANY: usize = 1500;
const AT_ONCE: usize = 8;
/// New connections of the second one, of which each is to succeed.
const FEW: usize = 5;
/// How long it takes at most until the ids are back.
const SOON: Duration = Duration::from_secs(5);

/// What a client does whose connection is not handed over.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// It closes its side right behind its hello.
    Closes,
    /// It resets the connection there.
    Resets,
    /// It has no timestamps, and leaves when it has its answer.
    HasNoTimestamps,
}

/// Connections that cannot be handed over leave the ports of flows to those that need them, whichever way they
/// are made, and give back at once what they had of them.
#[privileged_test]
fn what_is_not_handed_over_takes_no_ids_from_another_tenant() -> Result<()> {
    takes_no_ids_from_another_tenant("never")
}

/// Nor does what XDP opens by itself.
#[privileged_test]
fn what_xdp_opens_takes_no_ids_from_another_tenant() -> Result<()> {
    takes_no_ids_from_another_tenant("always")
}

fn takes_no_ids_from_another_tenant(late_binding: &str) -> Result<()> {
    let trunk = Trunk::build()?;
    let _tellers = tellers(&trunk)?;
    let config = config(&trunk).service("shared", |shared| {
        shared.set("sni.late_binding", late_binding)
    });
    let lb = Lb::start(&trunk, &config)?;
    let [one, other] = [&trunk.tenants[0], &trunk.tenants[1]].map(|tenant| tenant.client());
    connects(other)?;
    for way in [Way::Closes, Way::Resets, Way::HasNoTimestamps] {
        let timestamps = match way {
            Way::HasNoTimestamps => "0",
            Way::Closes | Way::Resets => "1",
        };
        one.netns.set_sysctl("ipv4/tcp_timestamps", timestamps)?;
        let start = Instant::now();
        attack(one, way)?;
        let took = start.elapsed();
        let reached = (0..FEW).filter(|_| connects(other).is_ok()).count();
        let live = lb.status()?.flows.live;
        println!("{way:?}: {MANY} in {took:.1?}; then {reached} of {FEW}, {live} ids are not free");
        assert_eq!(reached, FEW, "{way:?}");
        poll::until("the ids are back", SOON, || {
            Ok((lb.status()?.flows.live == 0).then_some(()))
        })?;
    }
    Ok(())
}

/// A backend that takes such small segments that no client is offered them: each of its connections is copied, and
/// that is found out when it has the port of a flow.
const MTU: u16 = 1200;
/// Connections that are held, and ids that there are: of these sockets may have half, and those of one of two
/// networks as many as are left of that.
const HELD: usize = 500;
const IDS: u16 = 400;
const SHARE: usize = 100;

/// A tenant whose copied connections stay has a share of the ids, and goes on with other ports.
#[privileged_test]
fn sockets_of_one_tenant_have_a_share_of_the_ids() -> Result<()> {
    let trunk = Trunk::build()?;
    let _tellers = tellers(&trunk)?;
    trunk.nodes[0]
        .netns
        .run(&format!("ip link set eth0 mtu {MTU}"))?;
    let config = config(&trunk).network("mgmt", |mgmt| mgmt.snat_ports(20_000, 20_000 + IDS - 1));
    let lb = Lb::start(&trunk, &config)?;
    let [one, other] = [&trunk.tenants[0], &trunk.tenants[1]].map(|tenant| tenant.client());
    let held = hold(one, HELD)?;
    let live = lb.status()?.flows.live;
    println!(
        "{} connections are held, {live} ids are not free",
        held.len()
    );
    assert_eq!(held.len(), HELD);
    for number in 0..FEW {
        connects(other).with_context(|| format!("connection {number}"))?;
    }
    let had = divided(&lb, "t1")?;
    assert_eq!(had["flow_ports"], SHARE);
    assert_eq!(had["leg_ports"], HELD - SHARE);
    drop(held);
    poll::until("the ids are back", SOON, || {
        Ok((lb.status()?.flows.live == 0).then_some(()))
    })?;
    assert_eq!(divided(&lb, "t1")?, serde_json::Value::Null);
    Ok(())
}

/// Descriptors that the process may have.
const FEW_DESCRIPTORS: &[&str] = &["prlimit", "--nofile=280"];

/// A tenant whose connections stay has a share of the descriptors; the other one's clients are served meanwhile.
#[privileged_test]
fn descriptors_are_divided_among_tenants() -> Result<()> {
    let trunk = Trunk::build()?;
    let _tellers = tellers(&trunk)?;
    let lb = Lb::start_through(&trunk, &config(&trunk), FEW_DESCRIPTORS)?;
    let [one, other] = [&trunk.tenants[0], &trunk.tenants[1]].map(|tenant| tenant.client());
    for client in [one, other] {
        // None of them is handed over.
        client.netns.set_sysctl("ipv4/tcp_timestamps", "0")?;
    }
    let held = hold(one, 100)?;
    let status: serde_json::Value = status(&lb)?;
    let refused = &status["shared"]["shared"]["refused"];
    println!("{} connections are held, refused {refused}", held.len());
    ensure!((4..50).contains(&held.len()), "{}", held.len());
    let hello = named(NAME.as_bytes());
    for _ in 0..FEW {
        let reached = other
            .netns
            .inside(|| teller::ask(SHARED, &[&hello], Duration::ZERO))??;
        ensure!(reached.as_deref() == Some("b"), "{reached:?}");
    }
    ensure!(refused["network_share"].as_u64() > Some(0), "{refused}");
    Ok(())
}

/// Requests of the first tenant whose bodies do not come, and how long one may take.
const SLOW: usize = 20;
const BODY: Duration = Duration::from_secs(1);

/// Bodies that do not come take nothing from another tenant, and end in their time; so do requests that a backend
/// does not answer.
#[privileged_test]
fn slow_bodies_of_one_tenant_keep_nobody_else_waiting() -> Result<()> {
    let trunk = Trunk::build()?;
    let _servers = http_servers(&trunk, &trunk.nodes)?;
    let silent = &trunk.nodes[3];
    let _listener = silent
        .netns
        .inside(|| TcpListener::bind((silent.address, hosts::PORT)))??;
    let at = |node: &Host| [SocketAddrV4::new(node.address, hosts::PORT)];
    let routes = |pool: &str| json!([{ "names": [NAME], "pool": pool }]);
    let config = config(&trunk)
        .mgmt_pool("silent", at(silent))
        .mgmt_pool("web", at(&trunk.nodes[0]))
        .service("slow", |slow| {
            let times = Keys::from("body_timeout: 1s, response_timeout: 2s");
            let http = times.set("routes", routes("silent"));
            slow.on("t1").tcp(WEB).set("http", http)
        })
        .service("web", |web| {
            web.on("t2").tcp(WEB).set("http.routes", routes("web"))
        });
    let lb = Lb::start_through(&trunk, &config, FEW_DESCRIPTORS)?;
    let [one, other] = [&trunk.tenants[0], &trunk.tenants[1]].map(|tenant| tenant.client());

    let start = Instant::now();
    let head = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 10\r\n\r\n1");
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        slow.push(one.netns.inside(|| begin(&head))?);
    }
    for number in 0..FEW {
        let said = hosts::curl(other, &format!("-H Host:{NAME} http://{WEB}/"));
        let said = said.with_context(|| format!("request {number}"))?;
        ensure!(said.starts_with(&format!("a {NAME} ")), "{said}");
    }
    let beside = start.elapsed();
    ensure!(
        beside < BODY,
        "the slow ones have ended meanwhile: {beside:?}"
    );
    let answers: Vec<String> = slow.into_iter().flatten().map(hear).collect();
    let late = answers
        .iter()
        .filter(|said| said.starts_with("HTTP/1.1 408 "));
    let (late, took) = (late.count(), start.elapsed());
    println!("{late} of {SLOW} were served, and ended after {took:.1?}");
    ensure!((2..SLOW).contains(&late), "{answers:?}");
    ensure!((BODY..BODY + SOON).contains(&took), "{took:?}");

    let head = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let said = hear(one.netns.inside(|| begin(&head))??);
    ensure!(said.starts_with("HTTP/1.1 504 "), "{said}");
    let status = status(&lb)?;
    let refused = &status["shared"]["slow"]["requests"]["refused"];
    assert_eq!(refused["body_timeout"], late, "{refused}");
    assert_eq!(refused["response_timeout"], 1, "{refused}");
    poll::until("nothing is held", SOON, || {
        Ok(divided(&lb, "t1")?.is_null().then_some(()))
    })
}

/// A connection with this said on it.
fn begin(says: &str) -> Result<TcpStream> {
    let mut stream = open(None, WEB)?;
    // A client that is refused may have been reset by now.
    let _reset = stream.write_all(says.as_bytes());
    Ok(stream)
}

/// All that comes back; nothing, where the connection is reset.
fn hear(mut stream: TcpStream) -> String {
    let mut said = String::new();
    let _reset = stream.read_to_string(&mut said);
    said
}

/// Connections of the first tenant that have a backend and stay, of so many that are tried.
fn hold(client: &Host, count: usize) -> Result<Vec<TcpStream>> {
    let hello = named(NAME.as_bytes());
    let hold = || -> Result<TcpStream> {
        let mut stream = open(None, SHARED)?;
        stream.write_all(&hello)?;
        let mut said = [0; 2];
        stream.read_exact(&mut said)?;
        ensure!(said == [b'a', 0xff], "{said:?}");
        Ok(stream)
    };
    client
        .netns
        .inside(|| (0..count).filter_map(|_| hold().ok()).collect())
}

fn status(lb: &Lb<'_>) -> Result<serde_json::Value> {
    let status = lb.tell(&["status", "-o", "json"])?.done()?;
    Ok(serde_json::from_str(&status)?)
}

/// What the clients of a network have of what is divided.
fn divided(lb: &Lb<'_>, network: &str) -> Result<serde_json::Value> {
    Ok(status(lb)?["divided"][network].clone())
}

/// Two tenants, of which each has a service of its own, whose connections the process opens; the backends of both share a
/// thousand flow ids.
fn config(trunk: &Trunk) -> Config {
    let at = |node: usize| [SocketAddrV4::new(trunk.nodes[node].address, PORT)];
    let routes = |pool: &str| json!([{ "names": [NAME], "pool": pool }]);
    let shared = |shared: Keys| shared.tcp(SHARED).set("sni.late_binding", "never");
    Config::new()
        .mgmt()
        .network("mgmt", |mgmt| mgmt.snat_ports(20_000, 20_999))
        .network("t1", |t1| t1.tenant(2003, "192.168.203.0/24"))
        .network("t2", |t2| t2.tenant(2004, "192.168.203.0/24"))
        .mgmt_pool("a", at(0))
        .mgmt_pool("b", at(1))
        .service("shared", |of_t1| {
            shared(of_t1).on("t1").set("sni.routes", routes("a"))
        })
        .service("of-t2", |of_t2| {
            shared(of_t2).on("t2").set("sni.routes", routes("b"))
        })
        .service("other", |other| other.on("t2").tcp(OTHER).pool("b"))
}

fn tellers(trunk: &Trunk) -> Result<Vec<Teller>> {
    let nodes = trunk.nodes.iter().zip(["a", "b"]);
    let tellers = nodes.map(|(node, name)| {
        let address = SocketAddrV4::new(node.address, PORT);
        Teller::start_listening(&node.netns, address, name)
    });
    tellers.collect()
}

/// A new connection of the second tenant reaches its backend.
fn connects(client: &Host) -> Result<()> {
    let reached = client
        .netns
        .inside(|| teller::ask(OTHER, &[b"hello"], Duration::ZERO))??;
    ensure!(reached.as_deref() == Some("b"), "{reached:?}");
    Ok(())
}

/// Makes all the connections of the first tenant, one after the other on each thread.
fn attack(client: &Host, way: Way) -> Result<()> {
    let hello = named(NAME.as_bytes());
    let go = || -> Result<()> {
        for _ in 0..MANY / AT_ONCE {
            match open(None, SHARED) {
                Err(error) if was_reset(&error) => {}
                stream => go_through(stream?, &hello, way),
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(|| client.netns.inside(go)?))
            .collect();
        let mut ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a client panicked"))?
        });
        ended.try_for_each(|ended| ended)
    })
}

/// To the end of a connection, whatever that is.
fn go_through(mut stream: TcpStream, hello: &[u8], way: Way) {
    let mut through = || -> Result<()> {
        stream.write_all(hello)?;
        match way {
            Way::Resets => return Ok(()),
            Way::Closes => stream.shutdown(Shutdown::Write)?,
            Way::HasNoTimestamps => stream.read_exact(&mut [0; 2])?,
        }
        if matches!(way, Way::HasNoTimestamps) {
            stream.shutdown(Shutdown::Write)?;
        }
        stream.read_to_end(&mut Vec::new())?;
        Ok(())
    };
    // A refusal is what is looked for at the other tenant.
    let _refused = through();
    if matches!(way, Way::Resets) {
        let _gone = reset(stream);
    }
}
