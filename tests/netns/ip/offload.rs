//! What offloads do to frames before and behind us: FEATURES A24, RELIABILITY 18 and 19.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpListener, TcpStream},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    frames::{packet, raw::RawPort},
    netns::Netns,
    oracle::wire::Wire,
    poll,
    product::lb::Lb,
    servers::echo::EchoServer,
    topology::{
        ADDRESS, BRIDGE, DNS, DNS_NODE_PORT, ECHO, ECHO_NODE_PORT, LB_PORT, MGMT_NIC, OneIp, SNAT,
        TENANT_NIC, Topology, mac_of,
    },
    traffic::{client, conn_pair},
};

use crate::flows::life::{AT_ONCE, LIMIT, config, config_of, udp_client, udp_server};

/// The longest first segment, without TCP timestamps.
const LONGEST: usize = 1460;
/// Of how many lengths one is tried, but for the long tier.
const STEP: usize = 7;
const BULK: u64 = 2_000_000;
/// The UDP checksum in a frame without tag and options.
const CHECKSUM: std::ops::Range<usize> = 40..42;

/// RELIABILITY 18: a UDP checksum that was never computed is not computed on the way, either way.
#[privileged_test]
fn reliability_18_a_udp_checksum_of_zero_stays_zero() -> Result<()> {
    for is_generic in [false, true] {
        let topology = Topology::poc()?;
        if is_generic {
            make_generic(&topology)?;
        }
        let _lb = Lb::start(&topology, &config())?;
        let [client, node] = [topology.client(), &topology.nodes[0]];
        let socket = udp_client(client)?;
        let server = udp_server(&topology)?;
        let at_node = Wire::received(&node.netns, "eth0", "udp", topology.dir())?;
        let at_client = Wire::received(&client.netns, "eth0", "udp", topology.dir())?;

        let from = socket.local_addr().context("its address")?.to_string();
        let request = packet::udp(&from, &DNS.to_string())
            .payload(b"request")
            .without_checksum();
        let hops = [mac_of(&client.netns, "eth0")?, topology.mac(TENANT_NIC)?];
        RawPort::open(&client.netns, "eth0")?.send(&request.between(hops[0], hops[1]).bytes())?;
        let mut word = [0; 7];
        let (_, snat) = server.recv_from(&mut word).context("the request")?;
        assert_eq!(&word, b"request");
        let from = SocketAddrV4::new(node.address, DNS_NODE_PORT).to_string();
        let reply = packet::udp(&from, &snat.to_string())
            .payload(b"a reply")
            .without_checksum();
        let hops = [mac_of(&node.netns, "eth0")?, topology.mac(MGMT_NIC)?];
        RawPort::open(&node.netns, "eth0")?.send(&reply.between(hops[0], hops[1]).bytes())?;
        socket.recv(&mut word).context("the reply")?;
        assert_eq!(&word, b"a reply");

        for wire in [at_node, at_client] {
            let frames = wire.stop()?;
            let sums: Vec<&[u8]> = frames.iter().map(|frame| &frame[CHECKSUM]).collect();
            assert_eq!(sums, [[0, 0]]);
        }
    }
    Ok(())
}

/// A24, RELIABILITY 19: hosts that leave checksums and segments to their NICs, and NICs that join
/// segments, with a veth for a NIC.
#[privileged_test]
fn a24_reliability_19_offloads_of_hosts_spoil_nothing_in_native_mode() -> Result<()> {
    let topology = Topology::poc()?;
    matrix(&topology, "native")
}

/// The same where the kernel has made a packet buffer before us, for hosts that cut their segments
/// themselves: what is longer than an MTU cannot be redirected in generic mode.
#[privileged_test]
fn a24_reliability_19_offloads_of_hosts_spoil_nothing_in_generic_mode() -> Result<()> {
    let topology = Topology::poc()?;
    make_generic(&topology)?;
    matrix(&topology, "generic")
}

/// A client that leaves checksums to its NIC is refused in generic mode as well, also where a port on the way back
/// computes them: the kernel has noted of the segment, and so of its reset, where that is to be done.
#[privileged_test]
fn reliability_19_a_refusal_in_generic_mode_is_whole_for_who_leaves_checksums_open() -> Result<()> {
    let topology = Topology::poc()?;
    make_generic(&topology)?;
    let empty = config_of(&[]);
    let lb = Lb::start(&topology, &empty)?;
    let client = topology.client();
    set(&client.netns, "eth0", "tx on")?;
    set(&topology.tenant_lan, LB_PORT, "tx on")?;
    topology.lb.run(&format!("ethtool -K {TENANT_NIC} tx on"))?;
    for tx in ["on", "off"] {
        set(&topology.tenant_lan, "p-c1", &format!("tx {tx}"))?;
        let time = conn_pair::refused(client, ECHO).with_context(|| format!("tx {tx}"))?;
        ensure!(time < AT_ONCE, "{time:?} with tx {tx}");
    }
    assert_eq!(lb.refused("no_backend")?, 2, "{:?}", lb.drops()?);
    Ok(())
}

/// The same with guests behind a bridge of the host, whose frames are of a local stack; as in generic
/// mode, they cut their segments themselves.
#[privileged_test]
fn a24_reliability_19_offloads_of_guests_spoil_nothing_on_a_bridge() -> Result<()> {
    let one = OneIp::build()?;
    let lb = Lb::start_with(&one, crate::lab::one_ip::CONFIG, &["--no-careful"])?;
    for network in lb.status()?.networks {
        assert_eq!(network.mode, "generic", "{network:?}");
    }
    let servers = one.backends.iter().map(|guest| {
        let address = SocketAddrV4::new(guest.address, ECHO_NODE_PORT);
        EchoServer::start(&guest.netns, address, guest.name)
    });
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let to = SocketAddrV4::new(ADDRESS, 7000);
    for tx in ["off", "on"] {
        let whole = format!("tx {tx} tso off gso off");
        for (host, lan) in one
            .backends
            .iter()
            .map(|guest| (guest, &one.lb))
            .chain(one.clients.iter().map(|client| (client, &one.uplink_lan)))
        {
            set(&host.netns, "eth0", &whole)?;
            set(
                lan,
                &format!("p-{}", host.name),
                &format!("{whole} gro off"),
            )?;
        }
        set(&one.uplink_lan, LB_PORT, &whole)?;
        one.lb.run(&format!("ethtool -K {TENANT_NIC} tx {tx}"))?;
        let what = || format!("tx {tx}, {BRIDGE}: {:?}", lb.drops());
        bulk(&one.clients[0].netns, to).with_context(what)?;
    }
    Ok(())
}

/// Gives the load balancer an interface that has no native XDP: then everything is generic.
pub(crate) fn make_generic(topology: &Topology) -> Result<()> {
    topology
        .lb
        .run(&format!("ip link set dev {MGMT_NIC} mtu 9000"))?;
    topology
        .mgmt_lan
        .run(&format!("ip link set dev {LB_PORT} mtu 9000"))
        .map(drop)
}

/// Every combination of offloads, with everything that goes through.
fn matrix(topology: &Topology, mode: &str) -> Result<()> {
    let [client, node] = [topology.client(), &topology.nodes[0]];
    for host in [client, node] {
        host.netns.set_sysctl("ipv4/tcp_timestamps", "0")?;
    }
    // The first data must not wait for more sockets than a port has room for.
    let echo = SocketAddrV4::new(node.address, ECHO_NODE_PORT + 1);
    let _server = EchoServer::start(&node.netns, echo, node.name)?;
    let bulk_to = SocketAddrV4::new(*ECHO.ip(), ECHO.port() + 1);
    let config = config()
        .mgmt_pool("bulk-a", [echo])
        .tcp_service("bulk-a", bulk_to);
    let lb = Lb::start(topology, &config)?;
    for network in lb.status()?.networks {
        assert_eq!(network.mode, mode, "{network:?}");
    }
    let joins: &[&str] = match mode {
        "native" => &["gro off", "gro on"],
        _ => &["gro off tso off gso off"],
    };
    for tx in ["off", "on"] {
        for gro in joins {
            let offloads = format!("tx {tx} {gro}");
            for (lan, host) in [(&topology.tenant_lan, client), (&topology.mgmt_lan, node)] {
                set(&host.netns, "eth0", &offloads)?;
                set(lan, &format!("p-{}", host.name), &offloads)?;
                set(lan, LB_PORT, &offloads)?;
            }
            for own in ["off", tx] {
                for nic in [TENANT_NIC, MGMT_NIC] {
                    topology.lb.run(&format!("ethtool -K {nic} tx {own}"))?;
                }
                let what = || format!("{offloads}, own tx {own}: {:?}", lb.drops());
                let echoed = client.netns.inside(|| client::echo(bulk_to, "a word"))?;
                assert_eq!(echoed.with_context(what)?, "a word");
                first_segments(topology).with_context(what)?;
                datagrams(topology).with_context(what)?;
                bulk(&client.netns, bulk_to).with_context(what)?;
            }
        }
    }
    Ok(())
}

/// Sends a first data segment of every length each way, in connections of their own.
fn first_segments(topology: &Topology) -> Result<()> {
    let node = &topology.nodes[0];
    let address = SocketAddrV4::new(node.address, ECHO_NODE_PORT);
    let listener = node.netns.inside(|| TcpListener::bind(address))??;
    listener
        .set_nonblocking(true)
        .context("accept with a deadline")?;
    let is_long = std::env::var_os("LB_TEST_LONG").is_some();
    let step = if is_long { 1 } else { STEP };
    let lengths = (1..=LONGEST).step_by(step).chain([LONGEST - 1, LONGEST]);
    topology.client().netns.inside(|| {
        for length in lengths {
            first_segment(&listener, length).with_context(|| format!("{length} bytes"))?;
        }
        Ok(())
    })?
}

fn first_segment(listener: &TcpListener, length: usize) -> Result<()> {
    let client = client::open(None, ECHO)?;
    let [request, reply] = [3, 5].map(|seed| data(length, seed));
    (&client).write_all(&request).context("send the request")?;
    let server = poll::until("a connection", LIMIT, || match listener.accept() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        accepted => Ok(Some(accepted.context("accept")?.0)),
    })?;
    server.set_nonblocking(false).context("wait for data")?;
    arrives(&server, &request).context("the request")?;
    (&server).write_all(&reply).context("send the reply")?;
    arrives(&client, &reply).context("the reply")?;
    conn_pair::reset(client)
}

fn arrives(mut to: &TcpStream, data: &[u8]) -> Result<()> {
    to.set_read_timeout(Some(LIMIT))
        .context("set the read timeout")?;
    let mut got = vec![0; data.len()];
    to.read_exact(&mut got).context("receive")?;
    ensure!(got == data, "other bytes than were sent: {got:02x?}");
    Ok(())
}

/// Datagrams of all lengths that fit into a frame, and of some that do not.
fn datagrams(topology: &Topology) -> Result<()> {
    let server = udp_server(topology)?;
    let socket = udp_client(topology.client())?;
    let mut place = vec![0; 1 << 16];
    for length in (0..=1472).step_by(46).chain([1471, 1473, 4000]) {
        let sent = data(length, 7);
        socket.send(&sent).context("send")?;
        let (count, from) = server
            .recv_from(&mut place)
            .with_context(|| format!("{length} bytes"))?;
        ensure!(
            from.ip() == SNAT && place[..count] == sent,
            "{length} bytes to the backend"
        );
        server.send_to(&sent, from).context("answer")?;
        let count = socket
            .recv(&mut place)
            .with_context(|| format!("{length} bytes back"))?;
        ensure!(place[..count] == sent, "{length} bytes to the client");
    }
    Ok(())
}

fn bulk(client: &Netns, to: SocketAddrV4) -> Result<()> {
    let up = client.inside(|| client::upload(to, BULK, 1))??;
    ensure!(up.sent == up.received, "an upload arrives broken");
    let down = client.inside(|| client::download(to, BULK, 2))??;
    ensure!(down.sent == down.received, "a download arrives broken");
    println!(
        "{} and {} Mbit/s",
        up.megabits_per_second(),
        down.megabits_per_second()
    );
    Ok(())
}

/// Segments that no two connections and no two directions have in common.
fn data(length: usize, seed: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from((at * seed + length) % 251).unwrap_or_default();
    (0..length).map(byte).collect()
}

fn set(netns: &Netns, device: &str, offloads: &str) -> Result<()> {
    netns
        .run(&format!("ethtool -K {device} {offloads}"))
        .map(drop)
}
