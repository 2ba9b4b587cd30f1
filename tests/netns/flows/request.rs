//! What a client gets and what a backend sees: FEATURES A1, A3 and A13.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddrV4,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_tests::{
    oracle::capture::Capture,
    product::lb::Lb,
    servers::peers::{DNS_NAME, Peers},
    topology::{API, API_NODE_PORT, CONFIG, DNS, ECHO, SNAT, Topology},
    traffic::{client, programs},
};

const LIMIT: Duration = Duration::from_secs(10);

/// A1: VIP:6443 becomes node:30918, and TLS is the node's own.
#[privileged_test]
fn a_request_to_the_vip_arrives_at_the_node_port() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let captures = capture_requests(&topology)?;

    let answer = programs::curl(topology.client(), peers.certificate(), API)?;

    assert_eq!(*answer.peer.ip(), SNAT, "the source that nginx saw");
    for (node, capture) in topology.nodes.iter().zip(captures) {
        if node.name == answer.node {
            capture.wait_for(3, LIMIT)?;
        }
        let frames = capture.stop()?;
        assert_eq!(
            !frames.is_empty(),
            node.name == answer.node,
            "{}: {frames:?}",
            node.name
        );
        for frame in frames {
            assert_eq!(frame.destination_port, Some(API_NODE_PORT), "{frame:?}");
            assert_eq!(frame.source, SNAT, "{frame:?}");
        }
    }
    Ok(())
}

/// A3: backends have no route to tenants, need none, and know the SNAT address alone.
#[privileged_test]
fn backends_need_no_route_to_tenants_and_see_only_the_snat_address() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let captures = capture_requests(&topology)?;

    for node in &topology.nodes {
        for client in &topology.clients {
            assert!(!programs::has_route(node, client.address)?, "{}", node.name);
        }
    }
    for client in &topology.clients {
        programs::curl(client, peers.certificate(), API)?;
        programs::dig(client, DNS, DNS_NAME, "TXT")?;
        client.netns.inside(|| client::who(None, ECHO))??;
    }

    assert_eq!(
        peers.sources()?,
        BTreeSet::from([SNAT]),
        "what the servers saw"
    );
    for capture in captures {
        for frame in capture.stop()? {
            assert_eq!(frame.source, SNAT, "{frame:?}");
        }
    }
    Ok(())
}

/// A13: a UDP service answers, and the answer comes from the VIP.
#[privileged_test]
fn a_dns_answer_comes_from_the_vip() -> Result<()> {
    let topology = Topology::poc()?;
    let peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();
    let filter = format!("ip dst host {}", client.address);
    let capture = Capture::start(&client.netns, "eth0", &filter, topology.dir())?;

    let answers = programs::dig(client, DNS, DNS_NAME, "TXT")?;

    let [node] = answers.as_slice() else {
        panic!("one node answers, not {answers:?}")
    };
    let answered = topology.nodes.iter().any(|known| known.name == *node);
    assert!(answered, "{node} is no node");
    capture.wait_for(1, LIMIT)?;
    for frame in capture.stop()? {
        let source = (frame.source, frame.source_port);
        assert_eq!(source, (*DNS.ip(), Some(DNS.port())), "{frame:?}");
    }
    let sources = peers.nodes().iter().map(|node| node.dns_sources());
    let sources: BTreeSet<_> = sources
        .collect::<Result<Vec<_>>>()?
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(sources, BTreeSet::from([SNAT]));
    Ok(())
}

/// Every node gets its part: 96 connections miss one of four nodes once in 10^11 runs.
#[privileged_test]
fn connections_are_spread_over_all_nodes() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let _lb = Lb::start(&topology, CONFIG)?;

    let mut nodes = BTreeSet::new();
    for client in &topology.clients {
        for _ in 0..48 {
            nodes.insert(client.netns.inside(|| client::who(None, ECHO))??.node);
        }
    }

    let all = topology
        .nodes
        .iter()
        .map(|node| node.name.to_owned())
        .collect();
    assert_eq!(nodes, all);
    Ok(())
}

/// An operator finds a connection with both of its tuples, and it goes when the client goes.
#[privileged_test]
fn a_flow_is_listed_with_what_both_sides_see() -> Result<()> {
    let topology = Topology::poc()?;
    let _peers = Peers::start(&topology)?;
    let lb = Lb::start(&topology, CONFIG)?;
    let client = topology.client();

    let mut stream = client.netns.inside(|| client::open(None, ECHO))??;
    stream.write_all(b"who\n").context("ask")?;
    let mut answer = String::new();
    BufReader::new(&stream)
        .read_line(&mut answer)
        .context("read the answer")?;
    let seen: SocketAddrV4 = answer
        .split_whitespace()
        .nth(1)
        .context("a peer")?
        .parse()?;

    let flows = lb.flows()?;
    let [flow] = flows.as_slice() else {
        panic!("one flow, not {flows:?}")
    };
    assert_eq!(flow.client, stream.local_addr()?.to_string());
    assert_eq!(flow.vip, ECHO.to_string());
    assert_eq!(flow.snat, seen.to_string());
    assert_eq!(
        (flow.protocol.as_str(), flow.state.as_str()),
        ("tcp", "established")
    );
    assert_eq!(flow.service, "echo-a");
    let backends = lb.backends()?;
    let backend = backends
        .iter()
        .find(|backend| backend.address == flow.backend);
    let backend = backend.with_context(|| format!("{} is no backend", flow.backend))?;
    assert!(backend.next_hop.is_some(), "{backend:?}");
    Ok(())
}

/// Captures everything that arrives at each node and is meant for it.
fn capture_requests(topology: &Topology) -> Result<Vec<Capture>> {
    topology
        .nodes
        .iter()
        .map(|node| {
            let filter = format!("ip and dst host {}", node.address);
            Capture::start(&node.netns, "eth0", &filter, topology.dir())
        })
        .collect()
}
