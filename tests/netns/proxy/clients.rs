//! Programs that people use, through a shared VIP routed by SNI, to nginx: FEATURES B1.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::{
        identity::Identity,
        peers::{Peers, Serves},
        teller::{END, Teller},
    },
    topology::{ADDRESS, GATEWAY, Host, OneIp, SNAT, Site, Topology},
    traffic::{
        post_quantum,
        programs::{Named, Tls, chromium_tls, curl_tls, go_tls, node_tls, python_tls},
    },
};
use rustls::NamedGroup;

use crate::{
    lab::one_ip,
    proxy::{
        bind::{ensure_all_bound, hellos},
        bind_two::SEGMENT,
        sni::{NAMES, PORT, ROUTES, SHARED, config},
    },
};

/// How long nginx may take to write down what it has answered.
const SOON: Duration = Duration::from_secs(5);
/// What a client offers whose hello is longer.
const PROTOCOLS: [&str; 3] = ["h2", "http/1.1", "acme-tls/1"];
/// How clients choose a version of HTTP, and how nginx calls it.
const HTTP: [(&str, &str); 2] = [("2", "HTTP/2.0"), ("1.1", "HTTP/1.1")];

/// curl in HTTP/2 and HTTP/1.1, and Python, each in TLS 1.2 and TLS 1.3, are served by the node that has the name
/// that they ask for, and by no other.
#[privileged_test]
fn b1_real_clients_reach_the_server_of_the_name() -> Result<()> {
    let topology = Topology::poc()?;
    let servers = servers(&topology, &topology.nodes)?;
    let lb = Lb::start(&topology, &config(&topology, ROUTES))?;
    ensure_served(&[topology.client()], SHARED, &servers, SNAT)?;
    let hellos = hellos(&lb)?;
    assert_eq!(hellos.keys().collect::<Vec<_>>(), ["bound"], "{hellos:?}");
    Ok(())
}

/// Node, Go and Chromium, whose hellos are of one segment and of two: XDP opens all of their connections.
#[privileged_test]
fn b1_node_go_and_a_browser_reach_the_server_of_the_name() -> Result<()> {
    let topology = Topology::poc()?;
    let servers = servers(&topology, &topology.nodes)?;
    let lb = Lb::start(&topology, &config(&topology, ROUTES))?;
    let client = topology.client();
    for (name, peers) in NAMES.into_iter().zip(&servers) {
        let to = Named {
            name,
            at: SHARED,
            certificate: peers.certificate(),
        };
        let folder = topology.dir().join(format!("chromium-{name}"));
        for answer in [
            node_tls(client, &to)?,
            go_tls(client, &to, topology.dir())?,
            chromium_tls(client, &to, &folder)?,
        ] {
            assert_eq!((&answer.node[..], *answer.peer.ip()), (name, SNAT));
        }
    }
    let hellos = hellos(&lb)?;
    println!("{hellos:?}");
    assert_eq!(hellos.keys().collect::<Vec<_>>(), ["bound"], "{hellos:?}");
    Ok(())
}

/// rustls with a post-quantum key, whose hello is of two segments, or nearly: what both ends send comes there, and XDP opens all of
/// the connections.
#[privileged_test]
fn b1_a_post_quantum_client_reaches_the_server_of_the_name() -> Result<()> {
    let topology = Topology::poc()?;
    let authority = Identity::create(&topology, "authority", &[])?;
    let servers = NAMES.iter().zip(&topology.nodes).map(|(name, host)| {
        let identity = authority.sign(&topology, name)?;
        let at = SocketAddrV4::new(host.address, PORT);
        post_quantum::serve(&host.netns, at, name, &identity)
    });
    let _servers: Vec<Teller> = servers.collect::<Result<_>>()?;
    let lb = Lb::start(&topology, &config(&topology, ROUTES))?;
    let data: Vec<u8> = (0..=250).cycle().take(1 << 20).collect();
    let mut hellos_sent = Vec::new();
    for (name, protocols) in NAMES
        .into_iter()
        .flat_map(|name| [(name, &[][..]), (name, &PROTOCOLS)])
    {
        let to = Named {
            name,
            at: SHARED,
            certificate: authority.certificate(),
        };
        let ask = || post_quantum::ask(&to, protocols, &data);
        let session = topology.client().netns.inside(ask)??;
        assert_eq!(session.group, Some(NamedGroup::X25519MLKEM768), "{name}");
        let wanted = [name.as_bytes(), &[END], &data].concat();
        ensure!(session.received == wanted, "other bytes of {name}");
        hellos_sent.push(session.hello);
    }
    println!("hellos of {hellos_sent:?} bytes");
    ensure!(
        hellos_sent.iter().any(|bytes| *bytes > SEGMENT),
        "{hellos_sent:?}"
    );
    ensure_all_bound(&lb, hellos_sent.len())
}

/// The same where the VIP is the host's only address: for clients beside it and behind a router.
#[privileged_test]
fn b1_names_of_the_hosts_only_address_reach_their_servers() -> Result<()> {
    let one = OneIp::build()?;
    let servers = servers(&one, &one.backends)?;
    let _lb = Lb::start_with(&one, &on_the_only_address(&one), &["--no-careful"])?;
    let clients = [&one.clients[0], &one.clients[1], &one.far.host];
    let shared = SocketAddrV4::new(ADDRESS, SHARED.port());
    ensure_served(&clients, shared, &servers, GATEWAY)
}

/// A server for each of the names, with a certificate of its own.
fn servers<'t>(site: &Site, hosts: &'t [Host]) -> Result<Vec<Peers<'t>>> {
    let start = |(name, host): (&&str, &'t Host)| {
        let serves = Serves {
            name: (*name).to_owned(),
            https: Some(PORT),
            http2: true,
            ..Serves::default()
        };
        Peers::start_on(site, Identity::create(site, name, &[])?, [(host, serves)])
    };
    NAMES.iter().zip(hosts).map(start).collect()
}

/// Asks for each name as each client in every way. Each answer says who has answered; and in the end each
/// server has had what was for it, and nothing else.
fn ensure_served(
    clients: &[&Host],
    at: SocketAddrV4,
    servers: &[Peers<'_>],
    seen_as: Ipv4Addr,
) -> Result<()> {
    let mut expected = Vec::new();
    for (name, peers) in NAMES.into_iter().zip(servers) {
        let certificate = peers.certificate();
        let to = Named {
            name,
            at,
            certificate,
        };
        let mut requests = Vec::new();
        for (client, tls) in clients
            .iter()
            .flat_map(|client| [(client, Tls::V12), (client, Tls::V13)])
        {
            let asked = || format!("{name} by {tls:?} from {}", client.name);
            for (http, logged) in HTTP {
                let (answer, spoken) = curl_tls(client, &to, tls, http).with_context(asked)?;
                let who = (&answer.node[..], *answer.peer.ip(), &spoken[..]);
                assert_eq!(who, (name, seen_as, http), "{}", asked());
                requests.push(format!("/version {logged} {} {name}", tls.name()));
            }
            let answer = python_tls(client, &to, tls).with_context(asked)?;
            let who = (&answer.node[..], *answer.peer.ip());
            assert_eq!(who, (name, seen_as), "{}", asked());
            requests.push(format!("/version HTTP/1.1 {} {name}", tls.name()));
        }
        expected.push(requests);
    }
    for (peers, expected) in servers.iter().zip(expected) {
        let server = &peers.nodes()[0];
        let logged = poll::until("all requests are logged", SOON, || {
            let logged = server.http_requests()?;
            Ok((logged.len() >= expected.len()).then_some(logged))
        })?;
        assert_eq!(logged, expected);
    }
    Ok(())
}

/// The configuration of [`one_ip`], and the names at its address.
fn on_the_only_address(one: &OneIp) -> Config {
    let pools = ["a", "b", "c"].iter().zip(&one.backends);
    let config = pools.fold(Config::read(one_ip::CONFIG), |config, (pool, host)| {
        let address = SocketAddrV4::new(host.address, PORT);
        config.pool(pool, |pool| pool.backends([address]))
    });
    config.service("shared", |shared| {
        let at = SocketAddrV4::new(ADDRESS, SHARED.port());
        shared.tcp(at).set("sni", Keys::from(ROUTES))
    })
}
