//! What the tests of a flow's life share: one client, one backend, one service each of TCP and UDP.

use std::{
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    oracle::{ids, query::Flow},
    poll,
    product::{config::Config, lb::Lb},
    topology::{DNS, DNS_NODE_PORT, ECHO, ECHO_NODE_PORT, Host, Topology, VIP},
    traffic::conn_pair::Line,
};

/// The first node.
const NODE: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 105);
/// Long against anything that must happen, short against a default timeout.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// Where no service listens.
const NO_SERVICE: SocketAddrV4 = SocketAddrV4::new(VIP, 9);
/// What must come at once comes within this.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(200);

/// The first node behind one service each of TCP and UDP.
pub(crate) fn config() -> Config {
    config_of(&[NODE])
}

/// The same services with these nodes behind them.
pub(crate) fn config_of(nodes: &[Ipv4Addr]) -> Config {
    let backends = |port| nodes.iter().map(move |&node| SocketAddrV4::new(node, port));
    Config::poc()
        .mgmt_pool("echo-a", backends(ECHO_NODE_PORT))
        .mgmt_pool("dns-a", backends(DNS_NODE_PORT))
        .tcp_service("echo-a", ECHO)
        .service("dns-a", |dns| dns.on("tenant-a").udp(DNS).pool("dns-a"))
}

/// A line from the first client to the first node through the TCP service.
pub(crate) fn line(topology: &Topology) -> Result<Line<'_>> {
    Line::new(topology.client(), ECHO, &topology.nodes[0], ECHO_NODE_PORT)
}

/// A socket of `client` that talks to the UDP service alone.
pub(crate) fn udp_client(client: &Host) -> Result<UdpSocket> {
    let socket = client.netns.inside(|| -> Result<UdpSocket> {
        let socket = UdpSocket::bind((client.address, 0)).context("make a UDP socket")?;
        socket.connect(DNS).context("connect it")?;
        Ok(socket)
    })??;
    socket
        .set_read_timeout(Some(LIMIT))
        .context("set the read timeout")?;
    Ok(socket)
}

/// The socket of the UDP service at the first node.
pub(crate) fn udp_server(topology: &Topology) -> Result<UdpSocket> {
    let node = &topology.nodes[0];
    let socket = node
        .netns
        .inside(|| UdpSocket::bind((node.address, DNS_NODE_PORT)))?
        .context("listen for datagrams")?;
    socket
        .set_read_timeout(Some(LIMIT))
        .context("set the read timeout")?;
    Ok(socket)
}

/// Sends datagrams to a port without a service, which are dropped and counted.
pub(crate) fn send_without_service(topology: &Topology, count: usize) -> Result<()> {
    let client = topology.client();
    client.netns.inside(|| -> Result<()> {
        let socket = UdpSocket::bind((client.address, 0))?;
        for _ in 0..count {
            socket.send_to(b"?", NO_SERVICE)?;
        }
        Ok(())
    })?
}

/// The only live flow there is.
pub(crate) fn only_flow(lb: &Lb<'_>) -> Result<Flow> {
    let flows = lb.flows()?;
    ensure!(flows.len() == 1, "one flow, not {flows:?}");
    flows.into_iter().next().context("a flow")
}

/// Waits until both ends of the only flow, which is idle, have answered a probe. From then on an end
/// is known to answer.
pub(crate) fn wait_for_answers(lb: &Lb<'_>) -> Result<()> {
    let before = only_flow(lb)?;
    poll::until("an answer of each end", LIMIT, || {
        let now = only_flow(lb)?;
        let answered =
            now.bytes_request > before.bytes_request && now.bytes_reply > before.bytes_reply;
        Ok(answered.then_some(()))
    })
}

/// Waits until no flow is live; then every id is in the queue exactly once, and no network's usage counts
/// any.
pub(crate) fn ensure_all_ids_are_free(topology: &Topology, lb: &Lb<'_>) -> Result<()> {
    let status = poll::until("no live flows", LIMIT, || {
        let status = lb.status()?;
        let used: u64 = status.networks.iter().map(|network| network.flows).sum();
        Ok((status.flows.live == 0 && used == 0).then_some(status))
    })
    .with_context(|| format!("{:?}", lb.status()))?;
    ensure!(
        status.flows.free == status.flows.capacity,
        "ids are lost: {:?}",
        status.flows
    );
    let mut queued = ids::queued(topology.run())?;
    let length = queued.len();
    queued.sort_unstable();
    queued.dedup();
    ensure!(
        [length, queued.len()] == [usize::try_from(status.flows.capacity)?; 2],
        "{length} ids in the queue, {} of them different, {:?}",
        queued.len(),
        status.flows
    );
    ensure!(lb.flows()?.is_empty(), "{:?}", lb.flows()?);
    Ok(())
}
