//! The control plane is killed, and the next one finds everything as it was: FEATURES A28.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{SocketAddrV4, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::links::links,
    product::{config::Config, lb::Lb},
    topology::{DNS, DNS_NODE_PORT, ECHO, TENANT_NIC, Topology, VIP},
    traffic::conn_pair::refused,
};

use crate::{
    flows::life::{LIMIT, ensure_all_ids_are_free, send_without_service, udp_client, udp_server},
    health::verdicts::{Site, alive, connect, wait_for},
    lifecycle::remains::{self, Remains, WITHOUT_SERVICE, disturb},
};

/// Connections that live through it.
const KEPT: usize = 20;
/// Most flows that the service may have at a time.
const MAX_FLOWS: usize = KEPT + 5;

fn lasts() -> Duration {
    Duration::from_secs(match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 60,
        None => 5,
    })
}

/// Three nodes that are asked, and one that serves datagrams.
fn config(site: &Site<'_>) -> Config {
    let node = SocketAddrV4::new(site.topology.nodes[0].address, DNS_NODE_PORT);
    remains::config(site)
        .service("echo-a", |service| service.set("max_flows", MAX_FLOWS))
        .mgmt_pool("dns-a", [node])
        .service("dns-a", |dns| dns.on("tenant-a").udp(DNS).pool("dns-a"))
}

/// A datagram each way.
fn exchange(client: &UdpSocket, server: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 16];
    client.send(b"question")?;
    let (length, from) = server.recv_from(&mut buffer).context("at the node")?;
    ensure!(&buffer[..length] == b"question");
    server.send_to(b"answer", from)?;
    let length = client.recv(&mut buffer).context("at the client")?;
    ensure!(&buffer[..length] == b"answer");
    Ok(())
}

/// The bytes each way of these connections, by their clients.
fn bytes(lb: &Lb<'_>, kept: &[TcpStream]) -> Result<BTreeMap<String, [u64; 2]>> {
    let clients = kept
        .iter()
        .map(|connection| Ok(connection.local_addr()?.to_string()));
    let clients: BTreeSet<String> = clients.collect::<Result<_>>()?;
    let flows = lb.flows()?.into_iter();
    let ours = flows.filter(|flow| flow.protocol == "tcp" && clients.contains(&flow.client));
    let bytes = ours.map(|flow| (flow.client, [flow.bytes_request, flow.bytes_reply]));
    let bytes: BTreeMap<_, _> = bytes.collect();
    ensure!(bytes.len() == kept.len(), "{bytes:?} of {clients:?}");
    Ok(bytes)
}

/// No flow has carried less than it had before.
fn ensure_not_less(
    now: &BTreeMap<String, [u64; 2]>,
    before: &BTreeMap<String, [u64; 2]>,
) -> Result<()> {
    for (client, before) in before {
        let now = now.get(client).context("a flow is gone")?;
        let goes_on = now.iter().zip(before).all(|(now, before)| now >= before);
        ensure!(goes_on, "{client}: {before:?} bytes, then {now:?}");
    }
    Ok(())
}

/// The client asks anew where the VIP is, and gets an answer.
fn find_vip_anew(topology: &Topology, site: &Site<'_>) -> Result<()> {
    let client = &topology.client().netns;
    client.run("ip neigh flush dev eth0")?;
    site.who(1)?;
    let neighbour = client.run(&format!("ip neigh show {VIP}"))?;
    let mac = topology.mac(TENANT_NIC)?.to_string();
    ensure!(neighbour.contains(&mac), "{neighbour}, not {mac}");
    Ok(())
}

/// Flows go on and begin without a control plane, and cells answer; then ids, cells, counts, verdicts,
/// overrides and what a service uses are what they were, and a size that the file would have otherwise
/// stays.
#[privileged_test]
fn a28_a_killed_control_plane_leaves_everything_as_it_was() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 3)?;
    let config = config(&site);
    site.health[1].refuse();
    let mut lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "dead", "up", "up"], LIMIT)?;
    let first = disturb(&lb, &topology)?;
    let kept = connect(&topology, KEPT)?;
    kept.iter().try_for_each(alive)?;
    let (client, server) = (udp_client(topology.client())?, udp_server(&topology)?);
    exchange(&client, &server)?;
    let mut remains = Remains::of(&lb, &topology)?;
    let (before, carried) = (lb.status()?, bytes(&lb, &kept)?);
    assert_eq!(lb.dropped("no_service")?, u64::try_from(WITHOUT_SERVICE)?);
    assert_eq!(before.flows.live, u64::try_from(KEPT + 1)?);
    let links_before = links(topology.run())?;

    lb.kill()?;
    // It answers again, and no check sees it.
    site.health[1].answer(200);
    // Open to the end: two that follow one another may have the same port, and so the same flow.
    let mut opened = Vec::new();
    let until = Instant::now() + lasts();
    while Instant::now() < until {
        kept.iter().try_for_each(alive)?;
        find_vip_anew(&topology, &site)?;
        let who: BTreeSet<String> = site.who(10)?.into_keys().collect();
        assert_eq!(who, BTreeSet::from([first.clone()]));
        exchange(&client, &server)?;
        let another = udp_client(topology.client())?;
        exchange(&another, &server)?;
        opened.push(another);
        thread::sleep(Duration::from_millis(300));
    }
    send_without_service(&topology, 3)?;
    let dead = lb.status()?;
    let sent = u64::try_from(KEPT + 10 * opened.len())?;
    ensure!(
        dead.verdicts.nic.total > before.verdicts.nic.total + 2 * sent,
        "{before:?}, {dead:?}"
    );
    assert_eq!(dead.verdicts.nic.total, dead.verdicts.nic.sum());
    assert_eq!(
        dead.networks[1].flows,
        before.networks[1].flows + u64::try_from(opened.len())?
    );
    remains.ensure_kept(&lb)?;
    let (counts, carried_dead) = (remains.counts().clone(), bytes(&lb, &kept)?);
    ensure_not_less(&carried_dead, &carried)?;

    lb.restart(&config.clone().set("limits.handed_over", 1000))?;
    let after = lb.status()?;
    remains.ensure_known(&lb)?;
    let no_service = "nic tenant-a dropped no_service";
    assert_eq!(remains.counts().get(no_service)?, counts.get(no_service)?);
    assert_eq!(counts.get(no_service)?, u64::try_from(WITHOUT_SERVICE + 3)?);
    ensure!(after.verdicts.nic.forwarded >= dead.verdicts.nic.forwarded);
    ensure_not_less(&bytes(&lb, &kept)?, &carried_dead)?;
    assert_eq!(after.flows.live, dead.flows.live);
    ensure_size_is_said(&lb.process().stderr())?;
    for (name, link) in links(topology.run())? {
        assert_eq!(link.id, links_before[&name].id, "{name}");
        assert_ne!(link.program, links_before[&name].program, "{name}");
    }
    kept.iter().try_for_each(alive)?;
    exchange(&client, &server)?;
    assert_eq!(site.who(20)?.into_keys().collect::<Vec<_>>(), [first]);
    // What the service uses is known: five are left.
    let more = connect(&topology, MAX_FLOWS - KEPT)?;
    more.iter().try_for_each(alive)?;
    refused(topology.client(), ECHO)?;
    drop((kept, more));
    drop(client);
    lb.tell(&["flows", "--kill", "--all"])?.done()?;
    ensure_all_ids_are_free(&topology, &lb)
}

/// A size of the file that what runs does not have.
fn ensure_size_is_said(said: &str) -> Result<()> {
    let size = said.lines().find(|line| line.contains("map=\"SPLICES\""));
    let size = size.with_context(|| format!("not a word of the size: {said}"))?;
    for words in [
        "the running data plane keeps its size; `lb down` and a new start would change it",
        "size=65537",
        "wanted=1001",
    ] {
        ensure!(size.contains(words), "{size}");
    }
    Ok(())
}
