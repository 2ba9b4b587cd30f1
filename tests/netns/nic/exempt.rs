//! Neighbours that are watched are exempt from the garbage collection of the kernel's one table, as long as
//! they are.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr, SocketAddrV4},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    topology::{DNS6, ECHO, ECHO_NODE_PORT, Topology, address6},
};

use crate::{flows::life::LIMIT, nic::neighbours::in_cell};

/// A backend that is taken out is forgotten when no flow can have it any more.
const FORGOTTEN: Duration = Duration::from_secs(30);

/// A gateway and an address that do not exist.
const ABSENT: [&str; 4] = ["10.32.96.1", "10.32.96.199", "fd00:32::1", "fd00:32::199"];

/// Backends of both families, on the link or behind a gateway.
fn config(addresses: &[IpAddr]) -> Config {
    let of = |is_ipv6: bool| {
        let addresses = addresses.iter().filter(move |one| one.is_ipv6() == is_ipv6);
        addresses.map(|&address| SocketAddr::new(address, ECHO_NODE_PORT))
    };
    Config::poc_dual()
        .network("mgmt", |mgmt| {
            mgmt.with(
                "routes: [{ to: 172.30.0.0/24, via: 10.32.96.1 }, { to: 'fd00:30::/64', via: 'fd00:32::1' }]",
            )
        })
        .mgmt_pool("four", of(false))
        .mgmt_pool("six", of(true))
        .tcp_service("four", ECHO)
        .service("six", |six| six.on("tenant-a").udp(DNS6).pool("six"))
        .set("defaults.pool.drain_timeout", "0s")
}

/// The addresses that `ip neigh` says this of in the cell of the backends.
fn exempt(topology: &Topology) -> Result<BTreeSet<IpAddr>> {
    let entries = in_cell(topology, &["ip", "neigh", "show", "nud", "all"])?;
    let lines = entries
        .lines()
        .filter(|line| line.contains(" extern_learn"));
    let address = |line: &str| -> Result<IpAddr> {
        let word = line.split_whitespace().next().context("an address")?;
        word.parse().with_context(|| format!("read {line:?}"))
    };
    lines.map(address).collect()
}

/// Waits until just these are exempt, and the groups that are asked for those of IPv6 (RFC 4291 section 2.7.1).
fn wait_for(topology: &Topology, wanted: &[IpAddr]) -> Result<()> {
    let group = |address: &IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => {
            let [.., high, low] = address.segments();
            let group = [0xff02, 0, 0, 0, 0, 1, 0xff00 | high & 0xff, low];
            Some(IpAddr::from(group))
        }
    };
    let groups = wanted.iter().filter_map(group);
    let wanted: BTreeSet<IpAddr> = wanted.iter().copied().chain(groups).collect();
    let waited = poll::until("the neighbours that are exempt", FORGOTTEN, || {
        Ok((exempt(topology)? == wanted).then_some(()))
    });
    waited.with_context(|| format!("{wanted:?} wanted, {:?}", exempt(topology)))
}

/// Backends and gateways, there or not; and none of them for longer than it is in the file, whichever process
/// began to watch it.
#[privileged_test]
fn watched_neighbours_are_exempt_until_they_are_watched_no_more() -> Result<()> {
    let topology = Topology::poc()?;
    topology.add_ipv6()?;
    let absent = ABSENT.map(|address| address.parse());
    let [gateway, no_host, gateway6, no_host6] = absent;
    let (gateway, no_host, gateway6, no_host6) = (gateway?, no_host?, gateway6?, no_host6?);
    let [one, two, ..] = &topology.nodes[..] else {
        anyhow::bail!("there are four nodes");
    };
    let [one, two, one6, two6] = [
        one.address.into(),
        two.address.into(),
        address6(one).into(),
        address6(two).into(),
    ];
    let (far, far6): (IpAddr, IpAddr) = ("172.30.0.7".parse()?, "fd00:30::7".parse()?);

    let all = config(&[one, no_host, far, one6, no_host6, far6]);
    let mut lb = Lb::start(&topology, &all)?;
    wait_for(
        &topology,
        &[one, no_host, gateway, one6, no_host6, gateway6],
    )?;
    // They are asked for, and answer, as any other.
    poll::until("neighbours that are found, or not", LIMIT, || {
        let entries = in_cell(&topology, &["ip", "neigh", "show"])?;
        let has = |address: IpAddr, word: &str| {
            let begin = format!("{address} ");
            let mut lines = entries.lines();
            lines.any(|line| line.starts_with(&begin) && line.ends_with(word))
        };
        let found = [one, one6].iter().all(|one| has(*one, "REACHABLE "));
        let mut lost = [no_host, gateway, no_host6, gateway6].into_iter();
        let lost = lost.all(|one| has(one, "INCOMPLETE ") || has(one, "FAILED "));
        Ok((found && lost).then_some(()))
    })?;

    let less = config(&[one, two, one6, two6]);
    let mut before = lb.take_over(&less)?;
    before.wait_for_end(LIMIT)?;
    wait_for(&topology, &[one, two, one6, two6])?;
    // As the process before does when it asks once more, after the next one has read the entries.
    for asked in ["ff02::1:ff00:199", "fd00:32::199"] {
        let entry = ["dev", "cell", "use", "extern_learn"];
        let words = ["ip", "neigh", "replace", asked];
        in_cell(&topology, &[&words[..], &entry].concat())?;
    }
    wait_for(&topology, &[one, two, one6, two6])?;
    let other = config(&[two, far, two6]);
    lb.reload(&other)?;
    wait_for(&topology, &[one, two, gateway, one6, two6])?;
    lb.kill()?;
    lb.restart(&other)?;
    wait_for(&topology, &[two, gateway, two6])
}

/// The host's own table is the host's.
#[privileged_test]
fn neighbours_of_the_host_itself_are_left_as_they_are() -> Result<()> {
    let topology = Topology::poc()?;
    let host = &topology.lb;
    host.ip_batch("addr add 10.32.96.50/20 dev eth1\n")?;
    let node = topology.nodes[0].address;
    let config = Config::poc()
        .network("mgmt", |mgmt| {
            mgmt.set("address", "host").snat_ports(20_000, 29_999)
        })
        .mgmt_pool("echo", [SocketAddrV4::new(node, ECHO_NODE_PORT)])
        .tcp_service("echo", ECHO);
    let lb = Lb::start(&topology, &config)?;
    poll::until("the next hop", LIMIT, || {
        let mut backends = lb.backends()?.into_iter();
        Ok(backends
            .all(|backend| backend.next_hop.is_some())
            .then_some(()))
    })?;
    let entries = host.run("ip neigh show")?;
    ensure!(
        entries.contains(&node.to_string()) && !entries.contains("extern_learn"),
        "{entries}"
    );
    Ok(())
}
