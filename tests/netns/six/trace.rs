//! What a client sees of the way: RELIABILITY 17.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    frames::{
        packet::{
            flags::{SYN_ACK, SYN_ONLY},
            tcp, udp,
        },
        raw::RawPort,
        six::{check, number, read},
    },
    oracle::wire::Wire,
    product::lb::Lb,
    topology::{DNS6, ECHO6, SNAT6, VIP6, address6},
    traffic::conn_pair::say,
};

use super::given::{at, config, hops, open, receive, topology, udp_client, udp_server};
use crate::flows::life::LIMIT;

/// A traceroute to a service sees the VIP at its only hop, and nothing of a node in any frame.
#[privileged_test]
fn reliability_17_a_traceroute_sees_nothing_but_the_vip_over_ipv6() -> Result<()> {
    let topology = topology()?;
    let lb = Lb::start(&topology, &config())?;
    let client = topology.client();
    // So that neighbours are known, and the node's port is open for what comes.
    let pair = open(&topology)?;
    say(&pair.client, &pair.server, b"request")?;
    let [from, to] = hops(&topology, client)?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let seen = Wire::received(&client.netns, "eth0", "ip6", topology.dir())?;
    for (number, hop_limit) in (20_000..).zip([1, 1, 1, 2, 3]) {
        let source = at(client, number).to_string();
        let syn = tcp(&source, &ECHO6.to_string(), SYN_ONLY).ttl(hop_limit);
        port.send(&syn.between(from, to).bytes())?;
        let query = udp(&source, &DNS6.to_string()).ttl(hop_limit).payload(b"?");
        port.send(&query.between(from, to).bytes())?;
    }
    let exceeded = |frame: &[u8]| {
        read(frame).is_ok_and(|read| {
            read.protocol == number::ICMP && read.segment[..2] == [3, 0] && read.source == VIP6
        })
    };
    seen.wait_for("time exceeded", 6, LIMIT, exceeded)
        .with_context(|| format!("{:?}", lb.drops()))?;
    let answers = |frame: &[u8]| {
        read(frame).is_ok_and(|read| {
            read.protocol == number::TCP
                && (read.segment[13] & SYN_ACK == SYN_ACK || read.segment[13] & 4 != 0)
        })
    };
    // The node's end of a SYN with hops to spare: it listens no more, and says so.
    seen.wait_for("an answer to a SYN", 2, LIMIT, answers)
        .with_context(|| format!("{:?}", lb.drops()))?;
    let frames = seen.stop()?;
    for frame in &frames {
        ensure!(check(frame).is_ok(), "{:?} of {frame:02x?}", check(frame));
        for address in [address6(&topology.nodes[0]), SNAT6] {
            let shows = frame.windows(16).any(|bytes| bytes == address.octets());
            ensure!(!shows, "{address} is in {frame:02x?}");
        }
    }
    let told = frames.iter().filter(|frame| exceeded(frame)).count();
    assert_eq!(told, 6, "one for each packet without hops");
    Ok(())
}

/// A port of a node that no socket listens at: its client gets the error from the VIP.
#[privileged_test]
fn reliability_17_an_unreachable_port_is_told_by_the_vip_over_ipv6() -> Result<()> {
    let topology = topology()?;
    let lb = Lb::start(&topology, &config())?;
    let client = topology.client();
    let seen = Wire::received(
        &client.netns,
        "eth0",
        "icmp6 and ip6[40] = 1",
        topology.dir(),
    )?;
    let socket = udp_client(client)?;
    socket.send(b"is a server there?").context("send")?;
    let told = |frame: &[u8]| {
        read(frame).is_ok_and(|read| read.source == VIP6 && read.segment[..2] == [1, 4])
    };
    seen.wait_for("port unreachable", 1, LIMIT, told)
        .with_context(|| format!("{:?}", lb.drops()))?;
    // The client's kernel finds its socket by what is quoted.
    let error = socket.recv(&mut [0; 8]).expect_err("a refusal");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    for frame in seen.stop()? {
        ensure!(check(&frame).is_ok(), "{frame:02x?}");
        for address in [address6(&topology.nodes[0]), SNAT6] {
            let shows = frame.windows(16).any(|bytes| bytes == address.octets());
            ensure!(!shows, "{address} is in {frame:02x?}");
        }
    }
    // A server comes.
    let server = udp_server(&topology)?;
    socket.send(b"now?").context("send")?;
    assert_eq!(receive(&server)?.0, b"now?");
    Ok(())
}
