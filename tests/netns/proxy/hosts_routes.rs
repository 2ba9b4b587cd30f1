//! Where requests of a shared VIP go, and from which ports: FEATURES B3, B10, B17. nginx and curl.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Write as _},
    net::{SocketAddr, SocketAddrV4, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use lb_common::maps::snat::{FIRST_LEG_PORT, FIRST_LOCAL_PORT};
use lb_tests::{
    poll,
    product::{config::Keys, lb::Lb},
    topology::{ADDRESS, GATEWAY, Host, OneIp, SNAT, Topology},
};

use crate::proxy::{
    hosts::{PORT, SHARED, Site, connect, curl, http_servers, send},
    sni::{counted, counted_refusal, requests},
};

/// How long a thing may take that takes no time.
const SOON: Duration = Duration::from_secs(10);
/// Requests to a pool of two of which one refuses.
const REQUESTS: u64 = 20;
/// Names that are spread over the nodes, and of how many that may stay one may move.
const NAMES: usize = 120;
const FEW: usize = 20;

/// Connections to backends come from the ports that are kept for them, and no two from the same.
#[privileged_test]
fn b3_a_backend_sees_a_port_for_legs() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let listener = site.listen()?;
    listener.set_nonblocking(true)?;
    let routes = "routes: [{ names: [d.lab], pool: d }]";
    let _lb = Lb::start(&topology, &site.config_on(SHARED, routes))?;
    let mut ends: Vec<(TcpStream, TcpStream)> = Vec::new();
    let mut ports = Vec::new();
    for _ in 0..5 {
        let mut stream = connect(topology.client())?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: d.lab\r\n\r\n")?;
        let accepted = || match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            accepted => Ok(Some(accepted?)),
        };
        let (backend, from) = poll::until("a connection at the backend", SOON, accepted)?;
        let SocketAddr::V4(from) = from else {
            bail!("a client by IPv6");
        };
        ensure!(*from.ip() == SNAT, "{from}");
        let legs = FIRST_LEG_PORT..FIRST_LOCAL_PORT;
        ensure!(legs == (57_344..64_512), "{legs:?}");
        ensure!(legs.contains(&from.port()), "{from}");
        ports.push(from.port());
        ends.push((stream, backend));
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), ends.len());
    Ok(())
}

/// B10: a Host is for the clients that it is for, and for others it is unknown, under whatever it is.
#[privileged_test]
fn b10_a_host_of_others_is_denied() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let [mine, other] = &topology.clients[..] else {
        bail!("there are two clients");
    };
    let routes = "routes: [{ names: [a.lab], pool: a }, { names: ['*.lab'], pool: b }]";
    let mine_alone = [format!("{}/32", mine.address)];
    let routes = Keys::from(routes).set("routes.0.from", mine_alone);
    let lb = Lb::start(&topology, &site.config_on(SHARED, routes))?;
    for (client, host, expected) in [
        (mine, "a.lab", "200 a"),
        (other, "a.lab", "421 421"),
        (other, "A.Lab.:80", "421 421"),
        (other, "x.lab", "200 b"),
        (mine, "x.lab", "200 b"),
    ] {
        let found = answered(client, host)?;
        ensure!(
            found == expected,
            "{} asks for {host}: {found}",
            client.name
        );
    }
    assert_eq!(counted_refusal(&lb, "deny_tenant_name")?, 2);
    assert_eq!(counted_refusal(&lb, "no_match")?, 0);
    Ok(())
}

/// An expression is for whole Hosts, and a connection that is closed gets no answer.
#[privileged_test]
fn b3_an_expression_leads_there_and_all_else_is_closed() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let routes = r"no_match: close, routes: [{ regex: ['x-[0-9]+\.lab'], pool: a }]";
    let lb = Lb::start(&topology, &site.config_on(SHARED, routes))?;
    let client = topology.client();
    for (host, expected) in [
        ("x-1.lab", "200 a"),
        ("X-23.LAB:80", "200 a"),
        ("x-a.lab", ""),
        ("x-1.lab.evil.lab", ""),
        ("y.x-1.lab", ""),
        ("x-1xlab", ""),
    ] {
        let found = answered(client, host)?;
        ensure!(found == expected, "{host}: {found}");
    }
    assert_eq!(counted_refusal(&lb, "no_match")?, 4);
    Ok(())
}

/// With `balance: host` a node that is taken out takes its own Hosts along, and few others.
#[privileged_test]
fn b3_hosts_stay_when_another_node_goes() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let routes = "balance: host, routes: [{ names: [\"*.all.lab\"], pool: all }]";
    let config = site.config_on(SHARED, routes);
    let lb = Lb::start(&topology, &config)?;
    let nodes = || -> Result<BTreeMap<usize, String>> {
        let ask = |name| {
            Ok((
                name,
                answered(topology.client(), &format!("h{name}.all.lab"))?,
            ))
        };
        (0..NAMES).map(ask).collect()
    };
    let before = nodes()?;
    let two = config.clone().pool("all", |all| all.without("backends", 2));
    lb.reload(&two)?;
    let after = nodes()?;
    let (gone, others): (Vec<usize>, Vec<usize>) =
        (0..NAMES).partition(|name| before[name] == "200 c");
    ensure!(
        gone.len() > NAMES / 5 && others.len() > NAMES / 2,
        "{before:?}"
    );
    for node in ["200 a", "200 b"] {
        ensure!(gone.iter().any(|name| after[name] == node), "{after:?}");
    }
    ensure!(
        after
            .values()
            .all(|node| node == "200 a" || node == "200 b"),
        "{after:?}"
    );
    let moved = others
        .iter()
        .filter(|name| before[*name] != after[*name])
        .count();
    println!(
        "{} went with their node, {moved} of {} others moved",
        gone.len(),
        others.len()
    );
    ensure!(moved * FEW <= others.len(), "{moved} of {}", others.len());
    // The node comes back, and so do its Hosts.
    lb.reload(&config)?;
    assert_eq!(nodes()?, before);
    Ok(())
}

/// B17: where the first backend refuses the client sees nothing of it.
#[privileged_test]
fn b17_a_backend_that_refuses_requests_is_not_seen() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    // No socket listens on the fourth.
    let both = [&topology.nodes[3], &topology.nodes[0]];
    let both = both.map(|node| SocketAddrV4::new(node.address, PORT));
    let routes = "routes: [{ names: [both.lab], pool: both }]";
    let config = site.config_on(SHARED, routes).mgmt_pool("both", both);
    let lb = Lb::start(&topology, &config)?;
    for _ in 0..REQUESTS {
        let found = answered(topology.client(), "both.lab")?;
        ensure!(found == "200 a", "{found}");
    }
    let counted = counted(&lb, "redispatched")?;
    ensure!(
        (1..=REQUESTS).contains(&counted),
        "{counted} went to another one"
    );
    Ok(())
}

/// The status that a request for this Host is answered with, and the first word of the body, which is who answers,
/// or the status again; nothing if it is closed on.
fn answered(client: &Host, host: &str) -> Result<String> {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = send(client, &request).with_context(|| host.to_owned())?;
    if answer.is_empty() {
        return Ok(answer);
    }
    let status = answer.split(' ').nth(1).context("a status")?;
    let (_, body) = answer.split_once("\r\n\r\n").context("a head")?;
    let name = body.split(' ').next().unwrap_or_default();
    Ok(format!("{status} {name}"))
}

/// The guests behind a bridge as `a.lab`, `b.lab` and all of them, on the host's own address.
const ON_HOST: &str = r#"
version: 1
networks:
  public:
    role: uplink
    interface: eth0
    address: host
    prefixes: [203.0.113.0/24]
    routes: [{ to: 0.0.0.0/0, via: 203.0.113.1 }]
    sources: any
  guests:
    role: mgmt
    interface: virbr0
    address: host
    prefixes: [192.168.126.0/24]
    snat: [{ address: 192.168.126.1, ports: 10000-29999 }]
defaults:
  pool: { network: guests }
pools:
  a: { backends: ["192.168.126.11:31080"] }
  b: { backends: ["192.168.126.12:31080"] }
services:
  shared:
    network: public
    listen: ["203.0.113.10:80/tcp"]
    http: { routes: [{ names: [a.lab], pool: a }, { names: [b.lab], pool: b }] }
"#;

/// On a network whose VIP is the host's own address two Hosts of one connection reach two guests, from on the
/// wire and from behind a router; and an unknown one gets an error.
#[privileged_test]
fn b3_hosts_are_told_apart_on_the_hosts_own_address() -> Result<()> {
    let one = OneIp::build()?;
    let _servers = http_servers(&one, &one.backends)?;
    let lb = Lb::start_with(&one, ON_HOST, &["--no-careful"])?;
    let ask = |host: &str| format!("-H Host:{host} -w %{{num_connects}} http://{ADDRESS}/");
    for client in one.clients.iter().chain([&one.far.host]) {
        let words = format!("{} --next -s -S {}", ask("a.lab"), ask("B.lab"));
        let address = client.address;
        let expected = format!("a a.lab {address} {GATEWAY};1b b.lab {address} {GATEWAY};0");
        let said = curl(client, &words)?;
        ensure!(said == expected, "{}: {said}", client.name);
        let words = format!("-o /dev/null -w %{{http_code}} -H Host:c.lab http://{ADDRESS}/");
        let said = curl(client, &words)?;
        ensure!(said == "421", "{}: {said}", client.name);
    }
    // Two requests of each on one connection, and one on another, which has none that is served.
    assert_eq!(counted(&lb, "routed")?, 3);
    assert_eq!(requests(&lb, "routed")?, 6);
    assert_eq!(counted_refusal(&lb, "no_match")?, 3);
    Ok(())
}
