//! Proxies in front of a shared VIP say who their clients are: FEATURES B12.

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    process::Process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{Teller, ask_on},
    topology::{Host, Topology},
    traffic::{
        client::open,
        hello::{TLS12, hello as nameless, named},
    },
};
use serde_json::json;

use crate::proxy::{
    hosts::curl,
    proxy_out,
    sni::{PORT, SHARED, ask, counted, counted_refusal, reaches, tls_servers},
};

/// Where the proxy says that its client is.
const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// Where a proxy listens.
const FRONT: u16 = 8443;
const SOON: Duration = Duration::from_secs(10);

/// The first three nodes as the pools `a`, `b` and `c`: two clusters, and names for the clients of this source.
/// The first client is the proxy.
fn config(topology: &Topology, from: &str) -> Config {
    let proxies = [format!("{}/32", topology.clients[0].address)];
    let sni = json!({
        "proxy_protocol_from": proxies,
        "hello_timeout": "1s",
        "routes": [
            { "cluster_ids": ["cluster-a"], "proxies": proxies, "pool": "a" },
            { "cluster_ids": ["cluster-b"], "proxies": proxies, "pool": "b" },
            { "names": ["c.lab"], "from": [from], "pool": "c" },
            { "names": ["b.lab"], "pool": "b" },
        ],
    });
    crate::proxy::sni::config(topology, sni)
}

/// A header of this command, with the addresses of a client and a cluster if it is of one.
fn header(command: u8, client: Ipv4Addr, cluster: &str) -> Vec<u8> {
    let mut rest = [client.octets(), SHARED.ip().octets()].concat();
    rest.extend([4660_u16, SHARED.port()].map(u16::to_be_bytes).concat());
    if !cluster.is_empty() {
        let length = u16::try_from(cluster.len()).unwrap_or(u16::MAX);
        rest.push(0x20);
        rest.extend(length.to_be_bytes());
        rest.extend(cluster.as_bytes());
    }
    let length = u16::try_from(rest.len()).unwrap_or(u16::MAX).to_be_bytes();
    [
        b"\r\n\r\n\0\r\nQUIT\n",
        &[0x20 | command, 0x11][..],
        &length,
        &rest,
    ]
    .concat()
}

/// The node that answers a client that sends these pieces and a hello: it has got the hello alone. None if the
/// client is refused.
fn who(client: &Host, pieces: &[&[u8]], hello: &[u8]) -> Result<Option<String>> {
    let mut stream = client.netns.inside(|| open(None, SHARED))??;
    stream.set_nodelay(true)?;
    for piece in pieces {
        // A connection that is refused at once is closed.
        if stream.write_all(piece).is_err() {
            return Ok(None);
        }
    }
    ask_on(stream, &[hello], Duration::ZERO)
}

/// Nodes that say `a`, `b` and `c`, once they have heard something.
fn tellers(topology: &Topology) -> Result<Vec<Teller>> {
    let nodes = ["a", "b", "c"].iter().zip(&topology.nodes);
    let start = |(name, node): (&&str, &Host)| {
        Teller::start_listening(&node.netns, SocketAddrV4::new(node.address, PORT), name)
    };
    nodes.map(start).collect()
}

/// B12: by the cluster that the proxy says, with the same hello; and everything is handed over all the same.
#[privileged_test]
fn b12_a_proxy_says_of_which_cluster_its_client_is() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, "203.0.113.0/24"))?;
    let proxy = &topology.clients[0];
    let (none, far) = (nameless(TLS12, &[]), named(b"c.lab"));
    let other = Ipv4Addr::new(198, 51, 100, 7);
    let cases = [
        (header(1, FAR, "cluster-a"), &none, Some("a")),
        (header(1, FAR, "cluster-b"), &none, Some("b")),
        // Whatever name there is; and a name where the cluster is unknown.
        (header(1, FAR, "cluster-a"), &far, Some("a")),
        (header(1, FAR, "cluster-c"), &far, Some("c")),
        (header(1, FAR, ""), &far, Some("c")),
        // What the proxy says of the client counts for `from`; and of itself, its own address.
        (header(1, other, ""), &far, None),
        (header(0, FAR, ""), &far, None),
        (header(1, FAR, ""), &none, None),
    ];
    for (header, hello, expected) in &cases {
        let said = who(proxy, &[header], hello)?;
        assert_eq!(said.as_deref(), *expected, "{}", header.escape_ascii());
        // In one piece with the hello, and byte by byte.
        let both = [&header[..], hello].concat();
        let (last, first) = both.split_last().context("bytes")?;
        ensure_same(proxy, &[first], &[*last], (header, *expected))?;
        let bytes: Vec<&[u8]> = header.chunks(1).collect();
        let said = who(proxy, &bytes, hello)?;
        assert_eq!(said.as_deref(), *expected);
    }
    let reached = 3 * cases.iter().filter(|case| case.2.is_some()).count();
    assert_eq!(counted(&lb, "handed_over")?, u64::try_from(reached)?);
    assert_eq!(counted_refusal(&lb, "no_name")?, 3);
    assert_eq!(counted_refusal(&lb, "deny_tenant_name")?, 6);
    Ok(())
}

/// B12: a proxy of one cluster cannot say that its client is of another, whatever it says of the client's address
/// or asks for; with no header its own is read.
#[privileged_test]
fn b12_a_cluster_is_named_by_its_own_proxies() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let [one, other] = [0, 1].map(|client| topology.clients[client].address);
    let [of_one, of_other] = [one, other].map(|proxy| format!("{proxy}/32"));
    let sni = json!({
        "proxy_protocol_from": [of_one, of_other],
        "hello_timeout": "1s",
        "routes": [
            { "cluster_ids": ["cluster-a"], "proxies": [of_one], "pool": "a" },
            { "cluster_ids": ["cluster-b"], "proxies": [of_other], "pool": "b" },
            { "names": ["c.lab"], "pool": "c" },
        ],
    });
    let lb = Lb::start(&topology, &crate::proxy::sni::config(&topology, sni))?;
    let hello = named(b"c.lab");
    let of = |cluster| header(1, FAR, cluster);
    for (client, cluster, expected) in [
        (0, "cluster-a", Some("a")),
        (1, "cluster-b", Some("b")),
        (0, "cluster-b", None),
        (1, "cluster-a", None),
        // It is of no cluster.
        (1, "cluster-c", Some("c")),
    ] {
        let said = who(&topology.clients[client], &[&of(cluster)], &hello)?;
        assert_eq!(said.as_deref(), expected, "{client} {cluster}");
    }
    assert_eq!(counted_refusal(&lb, "deny_tenant_name")?, 2);
    Ok(())
}

/// As [`who`], where the pieces are all but the last byte of the hello: its name alone is compared.
fn ensure_same(
    client: &Host,
    pieces: &[&[u8]],
    last: &[u8],
    (header, expected): (&[u8], Option<&str>),
) -> Result<()> {
    use std::io::Read as _;
    let mut stream = client.netns.inside(|| open(None, SHARED))??;
    stream.set_read_timeout(Some(SOON))?;
    for piece in pieces.iter().chain([&last]) {
        stream.write_all(piece)?;
    }
    let mut said = [0];
    let name = match stream.read(&mut said) {
        Ok(1) if said[0].is_ascii_lowercase() => Some(char::from(said[0]).to_string()),
        _ => None,
    };
    ensure!(
        name.as_deref() == expected,
        "{name:?}, not {expected:?}: {}",
        header.escape_ascii()
    );
    Ok(())
}

/// B12: a client that is no proxy may not send a header, and a proxy must; both are counted and reach no server.
#[privileged_test]
fn b12_only_who_is_a_proxy_says_who_his_client_is() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let lb = Lb::start(&topology, &config(&topology, "203.0.113.0/24"))?;
    let [proxy, stranger] = [&topology.clients[0], &topology.clients[1]];
    let (hello, header) = (named(b"b.lab"), header(1, FAR, "cluster-a"));
    assert_eq!(who(stranger, &[], &hello)?.as_deref(), Some("b"));
    assert_eq!(who(stranger, &[&header], &hello)?, None);
    assert_eq!(counted_refusal(&lb, "no_proxy")?, 1);
    assert_eq!(who(proxy, &[], &hello)?, None);
    let old = b"PROXY TCP4 203.0.113.7 192.168.203.110 4660 443\r\n";
    assert_eq!(who(proxy, &[old], &hello)?, None);
    let broken = [&header[..12], &[0x21, 0x11, 0, 3, 1, 2, 3]].concat();
    assert_eq!(who(proxy, &[&broken], &hello)?, None);
    assert_eq!(counted_refusal(&lb, "proxy_header")?, 3);
    // A proxy that sends no more.
    assert_eq!(who(proxy, &[&header[..20]], b"")?, None);
    assert_eq!(who(proxy, &[&header], b"")?, None);
    assert_eq!(counted_refusal(&lb, "timeout")?, 2);
    assert_eq!(counted(&lb, "routed")?, 1);
    assert_eq!(who(proxy, &[&header], &hello)?.as_deref(), Some("a"));
    Ok(())
}

/// HAProxy with `send-proxy-v2` on a host, in front of the shared VIP.
fn haproxy(topology: &Topology, host: &Host) -> Result<Process> {
    let text = format!(
        "defaults
  mode tcp
  timeout connect 10s
  timeout client 10s
  timeout server 10s
listen front
  bind {}:{FRONT}
  server vip {SHARED} send-proxy-v2 proxy-v2-options unique-id
  unique-id-format %ci-%cp
",
        host.address
    );
    let file = topology.write("front.cfg", &text)?;
    let words = ["-db", "-f", file.to_str().context("a path")?];
    let dir = topology.dir();
    let process = Process::start(&host.netns.path(), dir, "front", "haproxy", &words)?;
    poll::until("HAProxy listens", SOON, || {
        let listening = host.netns.run("ss -Hltn")?;
        Ok(listening.contains(&format!(":{FRONT} ")).then_some(()))
    })
    .with_context(|| process.stderr())?;
    Ok(process)
}

/// B12: HAProxy in front. What it says of a client decides whether a name is for him, and TLS comes through.
#[privileged_test]
fn b12_haproxy_in_front_is_believed() -> Result<()> {
    let topology = Topology::poc()?;
    let _servers = tls_servers(&topology, &topology.nodes)?;
    let [proxy, client] = [&topology.clients[0], &topology.clients[1]];
    let _front = haproxy(&topology, proxy)?;
    let from = format!("{}/32", client.address);
    let lb = Lb::start(&topology, &config(&topology, &from))?;
    let front = format!("-connect {}:{FRONT}", proxy.address);
    for version in ["-tls1_2", "-tls1_3"] {
        // The last word of the two counts.
        reaches(
            client,
            Some("c.lab"),
            "c.lab",
            &format!("{version} {front}"),
        )?;
    }
    let said = ask(proxy, Some("c.lab"), &front)?;
    ensure!(!said.contains("c.lab,") && said.contains("alert"), "{said}");
    assert_eq!(counted(&lb, "handed_over")?, 2);
    assert_eq!(counted_refusal(&lb, "deny_tenant_name")?, 1);
    Ok(())
}

/// B11, B12: HAProxy in front, and HAProxy as the backend, which gets what the first one has sent.
#[privileged_test]
fn b12_what_a_proxy_says_its_backend_is_told() -> Result<()> {
    let topology = Topology::poc()?;
    let backend = proxy_out::haproxy(&topology)?;
    let [proxy, client] = [&topology.clients[0], &topology.clients[1]];
    let _front = haproxy(&topology, proxy)?;
    let from = [format!("{}/32", proxy.address)];
    let from = |shared: Keys| shared.set("sni.proxy_protocol_from", from);
    let config = proxy_out::config(&topology).service("shared", from);
    let lb = Lb::start(&topology, &config)?;
    let at = proxy.address;
    let words = format!(
        "-k --resolve a.lab:{FRONT}:{at} -w ;%{{local_ip}}:%{{local_port}} https://a.lab:{FRONT}/"
    );
    let said = curl(client, &words)?;
    let from: SocketAddrV4 = said.strip_prefix("served;").context("an answer")?.parse()?;
    ensure!(*from.ip() == client.address, "{from}");
    let id = proxy_out::logged(&backend, from, &format!("{at}:{FRONT}"), "a.lab")?;
    assert_eq!(id, format!("{}-{}", from.ip(), from.port()));
    assert_eq!(counted(&lb, "handed_over")?, 1);
    Ok(())
}
