//! A change while connections live: ids stay with their names, and nothing else ends.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::maps::snat::base;
use lb_tests::{
    oracle::ids,
    poll,
    product::{
        config::Config,
        lb::{Lb, start_fails},
    },
    servers::peers::Peers,
    topology::{ECHO, Host, Tenant, Trunk},
    traffic::{ping::ping, secret::SecretFlow},
};

/// Connections of each client.
const FLOWS: u16 = 30;
const ROUNDS: usize = 10;
/// First port of a client's connections.
const PORT: u16 = 20_000;
/// A connection of a network that is gone gets nothing in this time.
const NOTHING: Duration = Duration::from_millis(500);
/// Ids are free again this long after the last flow at the latest.
const FREED: Duration = Duration::from_secs(30);

const FIRST: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 50);

const BEFORE: &str = r#"
version: 1
networks:
  mgmt:     { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50, 10.32.96.51, 10.32.96.52] }
  tenant-a: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24] }
  tenant-b: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24] }
nodes:
  hub: { network: mgmt, addresses: [10.32.96.105, 10.32.96.106, 10.32.96.107, 10.32.96.108] }
pools:
  echo-a: { network: mgmt, backends: { nodes: hub, port: 30700 } }
  echo-b: { network: mgmt, backends: { nodes: hub, port: 30701 } }
services:
  echo-a: { network: tenant-a, listen: ["192.168.203.110:7000/tcp"], pool: echo-a }
  echo-b: { network: tenant-b, listen: ["192.168.203.110:7000/tcp"], pool: echo-b }
limits: { snat_addresses: 4 }
"#;

/// Everything in another order, without the first SNAT address and tenant-b; there is a new SNAT
/// address and a new tenant, on the VLAN and with the addresses of the one that went.
const AFTER: &str = r#"
version: 1
services:
  echo-c: { network: tenant-c, listen: ["192.168.203.110:7000/tcp"], pool: echo-c }
  more-a: { network: tenant-a, listen: ["192.168.203.111:7000/tcp"], pool: echo-a }
  echo-a: { network: tenant-a, listen: ["192.168.203.110:7000/tcp"], pool: echo-a }
pools:
  echo-c: { network: mgmt, backends: { nodes: hub, port: 30701 } }
  none:   { network: mgmt, backends: [] }
  echo-a: { network: mgmt, backends: { nodes: hub, port: 30700 } }
networks:
  tenant-c: { role: tenant, interface: eth0, vlan: 2004, prefixes: [192.168.203.0/24] }
  tenant-a: { role: tenant, interface: eth0, vlan: 2003, prefixes: [192.168.203.0/24] }
  mgmt:     { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.53, 10.32.96.52, 10.32.96.51] }
nodes:
  hub: { network: mgmt, addresses: [10.32.96.108, 10.32.96.106, 10.32.96.107, 10.32.96.105] }
limits: { snat_addresses: 4 }
"#;

/// [`AFTER`] with one address more.
fn wide() -> Config {
    let snat = [54, 53, 52, 51].map(|last| Ipv4Addr::new(10, 32, 96, last));
    Config::read(AFTER).network("mgmt", |mgmt| mgmt.snat(snat))
}

#[privileged_test]
fn a_change_ends_nothing_but_what_was_removed() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, b] = &trunk.tenants;
    let [of_a, of_b] = [
        Peers::start_tenant(&trunk, a)?,
        Peers::start_tenant(&trunk, b)?,
    ];
    let mut lb = Lb::start(&trunk, BEFORE)?;
    let mut stay = open_all(a)?;
    let mut go = open_all(b)?;
    let sources: BTreeSet<_> = stay.iter().map(|flow| *flow.peer().ip()).collect();
    assert_eq!(
        sources.len(),
        3,
        "every SNAT address has flows: {sources:?}"
    );
    rounds(&mut stay)?;
    rounds(&mut go)?;

    lb.process().stop()?;
    // No process is there, and everything goes on.
    rounds(&mut stay)?;
    rounds(&mut go)?;
    while_they_talk(&mut stay, || lb.restart(AFTER))?;

    // None of these is lost, and none of those reaches a server.
    rounds(&mut stay)?;
    for flow in go.iter_mut().take(6) {
        flow.set_patience(NOTHING)?;
        assert!(flow.round().is_err(), "{:?} lives on", flow.local());
    }
    poll::until("the end of the flows of tenant-b", FREED, || {
        let flows = lb.flows()?;
        let all_stay = flows.iter().all(|flow| flow.network == "tenant-a");
        Ok(all_stay.then_some(()))
    })?;
    ensure_ids_are_back(&trunk, &lb)?;
    // The new tenant has the old one's addresses, and its hosts the same ports again.
    go.into_iter().try_for_each(SecretFlow::abort)?;
    let mut new = open_all(b)?;
    let mut more = open_some(a.client(), PORT + FLOWS, FLOWS)?;
    for flow in new.iter().chain(&more) {
        assert_ne!(*flow.peer().ip(), FIRST, "a new flow");
    }
    for flows in [&mut new, &mut more, &mut stay] {
        rounds(flows)?;
    }
    for peers in [&of_a, &of_b] {
        assert_eq!(peers.mixed_up(), Vec::<String>::new());
    }

    ensure_freed(&trunk, &lb, stay)?;
    // The place in the table that came free is there for the next one.
    lb.process().stop()?;
    lb.restart(&wide())?;
    rounds(&mut new)?;
    rounds(&mut more)?;
    assert_eq!(lb.status()?.snat.len(), 4);
    Ok(())
}

/// Every id of the removed address that no flow has is in its queue.
fn ensure_ids_are_back(trunk: &Trunk, lb: &Lb<'_>) -> Result<()> {
    poll::until("the ids of the flows of tenant-b", FREED, || {
        let status = lb.status()?;
        let address = FIRST.to_string();
        let first = status.snat.iter().find(|snat| snat.address == address);
        let first = first.context("the removed address is still there")?.flows;
        ensure!(first.live > 0 && first.live < first.capacity, "{first:?}");
        let mut queued = ids::queued(trunk.run())?;
        queued.retain(|id| *id < base(1));
        queued.sort_unstable();
        queued.dedup();
        let queued = u64::try_from(queued.len())?;
        Ok((queued + first.live == first.capacity).then_some(()))
    })
}

/// The removed address finishes its flows, answers ARP and keeps its place until the last of them
/// has ended; then all of that is over.
fn ensure_freed(trunk: &Trunk, lb: &Lb<'_>, flows: Vec<SecretFlow>) -> Result<()> {
    let (old, others): (Vec<_>, Vec<_>) = flows
        .into_iter()
        .partition(|flow| *flow.peer().ip() == FIRST);
    let status = lb.status()?;
    let first = status
        .snat
        .iter()
        .find(|snat| snat.address == FIRST.to_string());
    let first = first.context("the removed address is still there")?;
    assert!(first.draining, "{first:?}");
    assert_eq!(first.flows.live, u64::try_from(old.len())?, "{first:?}");
    let node = &trunk.nodes[0];
    assert!(answers_arp(node, FIRST)?);

    drop(old);

    poll::until("the removed SNAT address is gone", FREED, || {
        let status = lb.status()?;
        let known = status
            .snat
            .iter()
            .any(|snat| snat.address == FIRST.to_string());
        Ok((!known).then_some(()))
    })?;
    assert!(!answers_arp(node, FIRST)?);
    drop(others);
    Ok(())
}

/// Whether `host` gets an answer with the MAC of `address`.
fn answers_arp(host: &Host, address: Ipv4Addr) -> Result<bool> {
    host.netns.run("ip neigh flush dev eth0")?;
    // Nothing answers the echo itself.
    ping(&host.netns, address)?;
    let neighbour = host.netns.run(&format!("ip neigh show {address}"))?;
    Ok(neighbour.contains("lladdr"))
}

/// More addresses than there is room for are refused, and the running data plane stays as it is.
#[privileged_test]
fn a_change_that_does_not_fit_changes_nothing() -> Result<()> {
    let trunk = Trunk::build()?;
    let [a, _] = &trunk.tenants;
    let _peers = Peers::start_tenant(&trunk, a)?;
    let mut lb = Lb::start(&trunk, BEFORE)?;
    let mut flows = open_all(a)?;
    lb.process().stop()?;
    // Three are taken, one of them only to finish its flows; two more are one too many.
    let wide = wide();

    let failure = start_fails(&trunk, trunk.run(), &wide)?;

    assert_eq!(failure.code, Some(1), "{failure:?}");
    assert!(
        failure.message().contains("no id is left for SNAT address"),
        "{failure:?}"
    );
    rounds(&mut flows)?;
    lb.restart(BEFORE)?;
    rounds(&mut flows)?;
    flows.extend(open_some(a.client(), PORT + FLOWS, 1)?);
    rounds(&mut flows)
}

/// The connections of both clients of a tenant, each answered by the tenant's own control plane.
fn open_all(tenant: &Tenant) -> Result<Vec<SecretFlow>> {
    let mut flows = Vec::new();
    for client in &tenant.clients {
        flows.extend(open_some(client, PORT, FLOWS)?);
    }
    for flow in &flows {
        let server = flow.server();
        ensure!(
            server.starts_with(tenant.name),
            "{server} for {}",
            tenant.name
        );
    }
    Ok(flows)
}

fn open_some(client: &Host, first: u16, count: u16) -> Result<Vec<SecretFlow>> {
    (first..first + count)
        .map(|port| {
            let from = SocketAddrV4::new(client.address, port);
            SecretFlow::open(&client.netns, Some(from), ECHO)
        })
        .collect()
}

/// Runs `work` while the flows talk all the time.
fn while_they_talk(flows: &mut [SecretFlow], work: impl FnOnce() -> Result<()>) -> Result<()> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let talk = scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                flows.iter_mut().try_for_each(SecretFlow::round)?;
            }
            Ok(())
        });
        let worked = work();
        done.store(true, Ordering::Release);
        let talked: Result<()> = talk.join().expect("talking does not panic");
        worked.and(talked)
    })
}

fn rounds(flows: &mut [SecretFlow]) -> Result<()> {
    for _ in 0..ROUNDS {
        flows.iter_mut().try_for_each(SecretFlow::round)?;
    }
    Ok(())
}
