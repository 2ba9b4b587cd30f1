//! What ICMP shows of the other side, which is nothing: RELIABILITY 17.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::{addr::Mac, wire::header::SYN};
use lb_tests::{
    frames::{
        icmp_message::{
            ECHO_REPLY, ECHO_REQUEST, Message, PORT_UNREACHABLE, QUOTED, TIME_EXCEEDED,
        },
        packet,
        raw::RawPort,
        segment::Segment,
    },
    oracle::{
        observe,
        wire::{self, Wire},
    },
    poll,
    product::lb::Lb,
    topology::{
        ADDRESS, DNS, ECHO, ECHO_NODE_PORT, Host, OneIp, SNAT, TENANT_NIC, Topology, VIP, mac_of,
    },
    traffic::ping::{Ping, ping},
};

use crate::flows::life::{LIMIT, config, config_of, line, udp_client};

/// Where the layer-4 header begins in a frame without tag and options, and what an error quotes of it.
const L4: usize = 34;
const QUOTE: Range<usize> = L4..L4 + QUOTED;
/// Identifies our echo requests.
const IDENTIFIER: u32 = 0x6c62 << 16;

/// No socket listens at the backend: the client's socket gets the error, in the name of the VIP.
#[privileged_test]
fn reliability_17_port_unreachable_reaches_the_client_without_an_address_of_the_hub() -> Result<()>
{
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let client = topology.client();
    let at_client = Wire::received(&client.netns, "eth0", "", topology.dir())?;
    for length in [0, 1, 100, 1472] {
        let socket = udp_client(client)?;
        socket.send(&vec![3; length]).context("send")?;
        let refused = socket.recv(&mut [0]).map_err(|error| error.kind());
        assert_eq!(
            refused,
            Err(ErrorKind::ConnectionRefused),
            "{length} bytes: {:?}",
            lb.drops()?
        );
    }
    let is_error = |frame: &[u8]| matches!(Message::read(frame), Ok(Some(_)));
    at_client.wait_for("port unreachables", 4, LIMIT, is_error)?;
    let frames = at_client.stop()?;
    let mut count = 0;
    for frame in &frames {
        ensure_no_hub(&topology, &[], frame)?;
        let Some(message) = Message::read(frame)? else {
            continue;
        };
        count += 1;
        assert_eq!((message.from, message.kind), (VIP, PORT_UNREACHABLE));
        let quote = message.quote()?;
        assert_eq!(
            (*quote.from.ip(), quote.to, quote.protocol),
            (client.address, DNS, 17)
        );
    }
    assert_eq!(count, 4, "{frames:02x?}");
    Ok(())
}

/// A traceroute to a service sees the VIP at every hop, and its own packets in every quote.
#[privileged_test]
fn reliability_17_a_traceroute_sees_nothing_but_the_vip() -> Result<()> {
    let topology = Topology::poc()?;
    let far = topology.add_routed_node()?;
    let config = config_of(&[far.host.address]).network("mgmt", |mgmt| mgmt.route(&far));
    let lb = Lb::start(&topology, &config)?;
    let client = topology.client();
    let _line = lb_tests::traffic::conn_pair::Line::new(client, ECHO, &far.host, ECHO_NODE_PORT)?;
    let hops = hops(&topology, client)?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let at_client = Wire::received(&client.netns, "eth0", "", topology.dir())?;

    // The load balancer and the router are in the way, the node is the third.
    for ttl in 1..=4_u8 {
        let from = |base: u16| SocketAddrV4::new(client.address, base + u16::from(ttl)).to_string();
        let syn = packet::tcp(&from(20_000), &ECHO.to_string(), SYN).numbers(7, 0);
        let syn = syn.between(hops[0], hops[1]).ttl(ttl).bytes();
        port.send(&syn)?;
        let datagram = packet::udp(&from(30_000), &DNS.to_string()).payload(&[5; 32]);
        let datagram = datagram.between(hops[0], hops[1]).ttl(ttl).bytes();
        port.send(&datagram)?;
        let request = echo(client.address, IDENTIFIER | u32::from(ttl), &[6; 32]);
        port.send(&request.frame(hops, ttl))?;

        let what = |name: &str| format!("{name} with ttl {ttl}: {:?}", lb.drops());
        let is_syn_ack = |frame: &[u8]| {
            Segment::read(frame).is_some_and(|answer| {
                (answer.from, answer.to.to_string()) == (ECHO, from(20_000))
                    && answer.acknowledgment == 8
            })
        };
        at_client
            .wait_for("TCP", 1, LIMIT, |frame| match ttl {
                1 | 2 => is_quoted(frame, TIME_EXCEEDED, &syn),
                _ => is_syn_ack(frame),
            })
            .with_context(|| what("TCP"))?;
        at_client
            .wait_for("UDP", 1, LIMIT, |frame| match ttl {
                1 | 2 => is_quoted(frame, TIME_EXCEEDED, &datagram),
                _ => is_quoted(frame, PORT_UNREACHABLE, &datagram),
            })
            .with_context(|| what("UDP"))?;
        at_client
            .wait_for("echo", 1, LIMIT, |frame| is_reply(frame, &request))
            .with_context(|| what("echo"))?;
    }
    for frame in at_client.stop()? {
        ensure_no_hub(&topology, &[far.host.address, far.via], &frame)?;
        if let Some((from, _)) = wire::ipv4(&frame) {
            assert_eq!(from, VIP, "{frame:02x?}");
        }
    }
    Ok(())
}

/// An echo request to a VIP comes back whole, whatever its length.
#[privileged_test]
fn reliability_17_a_vip_answers_echo_requests_of_any_length() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let client = topology.client();
    assert_eq!(ping(&client.netns, VIP)?, Ping::Answered);
    let port = RawPort::open(&client.netns, "eth0")?;
    let hops = hops(&topology, client)?;
    let at_client = Wire::received(&client.netns, "eth0", "icmp", topology.dir())?;
    for length in (0..=1472_u32).step_by(46) {
        let payload: Vec<u8> = (0..length).map(|at| (at % 251).to_le_bytes()[0]).collect();
        let request = echo(client.address, IDENTIFIER | length, &payload);
        port.send(&request.frame(hops, 64))?;
        at_client
            .wait_for("an echo", 1, LIMIT, |frame| is_reply(frame, &request))
            .with_context(|| format!("{length} bytes: {:?}", lb.drops()))?;
    }
    // No other address answers: neither the SNAT address nor one that is not ours.
    assert_eq!(ping(&topology.nodes[0].netns, SNAT)?, Ping::Lost);
    Ok(())
}

/// A flood of echo requests is answered in part, and flows go on beside it.
#[privileged_test]
fn reliability_17_echo_replies_are_limited_and_flows_go_on() -> Result<()> {
    const ROUNDS: u32 = 40;
    const FLOOD: u32 = 1000;
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let pair = line(&topology)?.open()?;
    let flooder = &topology.clients[1];
    let port = RawPort::open(&flooder.netns, "eth0")?;
    let hops = hops(&topology, flooder)?;
    let before = observe::echo_replies(&flooder.netns)?;
    for round in 0..ROUNDS {
        for number in 0..FLOOD {
            let request = echo(flooder.address, round * FLOOD + number, &[1; 56]);
            port.send(&request.frame(hops, 64))?;
        }
        pair.talk()?;
    }
    let limited = lb.dropped("rate_limited")?;
    let answered = observe::echo_replies(&flooder.netns)? - before;
    println!(
        "{} requests: {answered} answered, {limited} not",
        ROUNDS * FLOOD
    );
    ensure!(
        answered > 0 && limited > 0,
        "{answered} answered, {limited} not"
    );
    ensure!(
        answered + limited <= u64::from(ROUNDS * FLOOD),
        "{answered} answered, {limited} not"
    );
    // The flood is over: pings are answered again.
    poll::until("an answer", LIMIT, || {
        let answered = ping(&topology.client().netns, VIP)? == Ping::Answered;
        Ok(answered.then_some(()))
    })
}

/// Where the VIP is the host's own address, the echo is the host's.
#[privileged_test]
fn reliability_17_the_echo_of_the_hosts_own_address_is_the_hosts() -> Result<()> {
    let one = OneIp::build()?;
    let lb = Lb::start_with(&one, crate::lab::one_ip::CONFIG, &["--no-careful"])?;
    for (ignores, expected) in [
        ("0", Ping::Answered),
        ("1", Ping::Lost),
        ("0", Ping::Answered),
    ] {
        one.lb.set_sysctl("ipv4/icmp_echo_ignore_all", ignores)?;
        for host in [&one.clients[0], &one.far.host] {
            assert_eq!(ping(&host.netns, ADDRESS)?, expected, "{}", host.name);
        }
    }
    assert_eq!(lb.dropped("rate_limited")?, 0);
    Ok(())
}

/// No address of the management network is anywhere in a frame.
fn ensure_no_hub(topology: &Topology, more: &[Ipv4Addr], frame: &[u8]) -> Result<()> {
    let nodes = topology.nodes.iter().map(|node| node.address);
    for address in nodes.chain([SNAT]).chain(more.iter().copied()) {
        let shows = frame.windows(4).any(|bytes| bytes == address.octets());
        ensure!(!shows, "{address} is in {frame:02x?}");
    }
    Ok(())
}

/// Whether a frame is an error of the VIP that quotes `sent`: its addresses, and its layer-4 header
/// byte by byte.
fn is_quoted(frame: &[u8], kind: (u8, u8), sent: &[u8]) -> bool {
    let Ok(Some(message)) = Message::read(frame) else {
        return false;
    };
    let (Ok(quote), Some(ends)) = (message.quote(), wire::ipv4(sent)) else {
        return false;
    };
    (message.from, message.to, message.kind) == (VIP, ends.0, kind)
        && (*quote.from.ip(), *quote.to.ip()) == ends
        && Some(&quote.l4[..]) == sent.get(QUOTE)
}

/// Whether a frame is the reply to an echo request, whole.
fn is_reply(frame: &[u8], request: &Message) -> bool {
    let reply = Message {
        from: request.to,
        to: request.from,
        kind: ECHO_REPLY,
        ..request.clone()
    };
    Message::read(frame).is_ok_and(|read| read == Some(reply))
}

fn echo(from: Ipv4Addr, rest: u32, payload: &[u8]) -> Message {
    Message {
        from,
        to: VIP,
        kind: ECHO_REQUEST,
        rest,
        body: payload.to_vec(),
    }
}

fn hops(topology: &Topology, from: &Host) -> Result<[Mac; 2]> {
    Ok([mac_of(&from.netns, "eth0")?, topology.mac(TENANT_NIC)?])
}
