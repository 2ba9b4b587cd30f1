//! Datagrams in parts: FEATURES A15, RELIABILITY 15.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::{addr::Mac, wire::header::SYN};
use lb_tests::{
    frames::{packet, raw::RawPort},
    oracle::wire::Wire,
    poll,
    product::lb::Lb,
    topology::{DNS, ECHO, Host, LB_PORT, SNAT, TENANT_NIC, Topology, mac_of},
};

use crate::{
    flows::life::{LIMIT, config, udp_client, udp_server},
    ip::offload::make_generic,
    policy::allow::cut,
};

/// The flag of every fragment but the last.
const MORE: u16 = 0x2000;
/// What an Ethernet frame carries.
const MTU: usize = 1500;
/// Where things stand in a frame without tag and options.
const ID: usize = 18;
const FIELD: usize = 20;
const L4: usize = 34;

/// A15: datagrams of many sizes to a VIP and their answers, cut by the kernels at both ends.
#[privileged_test]
fn a15_a_datagram_of_4000_bytes_is_answered_by_4000_bytes() -> Result<()> {
    for is_generic in [false, true] {
        let topology = Topology::poc()?;
        if is_generic {
            make_generic(&topology)?;
        }
        let lb = Lb::start(&topology, &config())?;
        let [client, node] = [topology.client(), &topology.nodes[0]];
        let at_node = Wire::received(&node.netns, "eth0", "udp", topology.dir())?;
        let at_client = Wire::received(&client.netns, "eth0", "udp", topology.dir())?;
        let server = udp_server(&topology)?;
        let socket = udp_client(client)?;
        let sizes = [4000, 1473, 1480, 2952, 2953, 9000, 40_000, 65_507];
        for size in sizes {
            let request = bytes(size, 3);
            socket.send(&request).context("send")?;
            let (got, from) =
                receive(&server).with_context(|| format!("{size} bytes: {:?}", lb.drops()))?;
            assert!(got == request, "{} bytes of {size}, or others", got.len());
            let reply = bytes(size, 5);
            server.send_to(&reply, from).context("answer")?;
            let (got, _) =
                receive(&socket).with_context(|| format!("{size} bytes: {:?}", lb.drops()))?;
            assert!(got == reply, "{} bytes of {size}, or others", got.len());
        }
        let expected: usize = sizes.iter().map(|size| (size + 8).div_ceil(MTU - 20)).sum();
        for wire in [at_node, at_client] {
            wire.wait_for("all fragments", expected, LIMIT, |_| true)?;
            let frames = wire.stop()?;
            assert_eq!(frames.len(), expected);
            for frame in &frames {
                ensure!(word(frame, FIELD) & 0x4000 == 0, "DF: {frame:02x?}");
            }
            let mut ids: Vec<u16> = frames.iter().map(|frame| word(frame, ID)).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), sizes.len(), "an id for each datagram");
        }
    }
    Ok(())
}

/// Clients choose their ids themselves; behind the one SNAT address they must not meet.
#[privileged_test]
fn reliability_15_clients_with_the_same_id_get_their_own_data() -> Result<()> {
    const ROUNDS: u8 = 30;
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let server = udp_server(&topology)?;
    let at_node = Wire::received(&topology.nodes[0].netns, "eth0", "udp", topology.dir())?;
    let hosts: Vec<&Host> = topology.clients.iter().chain(&topology.workers).collect();
    let stations = hosts.iter().map(|host| {
        Ok((
            RawPort::open(&host.netns, "eth0")?,
            udp_client(host)?,
            hops(&topology, host)?,
        ))
    });
    let stations = stations.collect::<Result<Vec<_>>>()?;
    for round in 0..ROUNDS {
        let datagrams: Vec<Vec<u8>> = stations
            .iter()
            .zip(0_u8..)
            .map(|((_, socket, [from, to]), number)| {
                let source = socket.local_addr()?.to_string();
                let payload = bytes(2000, round.wrapping_mul(4) + number);
                let frame = packet::udp(&source, &DNS.to_string());
                Ok(frame
                    .between(*from, *to)
                    .fragment(0)
                    .payload(&payload)
                    .bytes())
            })
            .collect::<Result<_>>()?;
        // All first parts, then all second ones, in another order: each with the same id.
        for ((port, ..), datagram) in stations.iter().zip(&datagrams) {
            port.send(&cut(datagram, 0..1000, MORE))?;
        }
        for ((port, ..), datagram) in stations.iter().zip(&datagrams).rev() {
            port.send(&cut(datagram, 1000..2008, 125))?;
        }
        let mut got = Vec::new();
        for _ in &stations {
            let (datagram, from) =
                receive(&server).with_context(|| format!("round {round}: {:?}", lb.drops()))?;
            server.send_to(&datagram[..8], from).context("answer")?;
            got.push(datagram);
        }
        for ((_, socket, _), datagram) in stations.iter().zip(&datagrams) {
            let payload = datagram[L4 + 8..].to_vec();
            ensure!(
                got.contains(&payload),
                "round {round}: a datagram is lost or mixed"
            );
            let (answer, _) = receive(socket)?;
            assert_eq!(
                answer,
                payload[..8],
                "round {round}: another client's answer"
            );
        }
    }
    let sent = usize::from(ROUNDS) * stations.len();
    at_node.wait_for("all fragments", 2 * sent, LIMIT, |_| true)?;
    let frames = at_node.stop()?;
    let mut ids: Vec<u16> = frames.iter().map(|frame| word(frame, ID)).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((frames.len(), ids.len()), (2 * sent, sent), "{ids:x?}");
    Ok(())
}

/// Fragments that only an attacker or a broken router makes.
#[privileged_test]
fn reliability_15_tiny_overlapping_and_early_fragments_are_dropped() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let server = udp_server(&topology)?;
    server
        .set_read_timeout(Some(Duration::from_millis(300)))
        .context("wait for a moment only")?;
    let client = topology.client();
    let [from, to] = hops(&topology, client)?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let out = Wire::received(&topology.mgmt_lan, LB_PORT, "ip", topology.dir())?;

    // Each from a port of its own, and each with an id of its own.
    let mut id = 0x5000;
    let mut datagram = |port: u16| {
        id += 1;
        let source = format!("{}:{port}", client.address);
        let frame = packet::udp(&source, &DNS.to_string()).fragment(0);
        with_id(frame.between(from, to).payload(&bytes(120, 9)).bytes(), id)
    };
    let syn = packet::tcp(&format!("{}:999", client.address), &ECHO.to_string(), SYN);
    let syn = with_id(syn.between(from, to).payload(&[7; 64]).bytes(), 0x4000);
    let udp = datagram(1001);
    let cases: [(&str, &str, Vec<Vec<u8>>, u64); 9] = [
        (
            "8 bytes of TCP",
            "fragment_tiny",
            vec![cut(&syn, 0..8, MORE)],
            1,
        ),
        (
            "its flags in the second",
            "fragment_early",
            vec![cut(&syn, 8..24, MORE | 1), cut(&syn, 24..84, 3)],
            2,
        ),
        (
            "no multiple of eight",
            "fragment_tiny",
            vec![cut(&udp, 0..60, MORE)],
            1,
        ),
        (
            "a rest alone",
            "fragment_early",
            vec![cut(&udp, 64..128, 8)],
            1,
        ),
        (
            "the rest first",
            "fragment_early",
            {
                let udp = datagram(1002);
                vec![cut(&udp, 64..128, 8)]
            },
            1,
        ),
        (
            "into the first one",
            "fragment_overlap",
            {
                let udp = datagram(1003);
                vec![cut(&udp, 0..64, MORE), cut(&udp, 56..128, 7)]
            },
            1,
        ),
        (
            "over the header",
            "fragment_overlap",
            {
                let udp = datagram(1004);
                vec![cut(&udp, 0..64, MORE), cut(&udp, 8..128, 1)]
            },
            1,
        ),
        (
            "into the second one",
            "fragment_overlap",
            {
                let udp = datagram(1005);
                vec![
                    cut(&udp, 0..64, MORE),
                    cut(&udp, 64..96, MORE | 8),
                    cut(&udp, 88..128, 11),
                ]
            },
            1,
        ),
        (
            "beyond the longest packet",
            "malformed",
            {
                let udp = datagram(1006);
                vec![cut(&udp, 0..64, MORE), cut(&udp, 64..128, 0x1fff)]
            },
            1,
        ),
    ];
    for (what, reason, frames, dropped) in cases {
        let before = lb.dropped(reason)?;
        let seen = out.frames()?.len();
        frames.iter().try_for_each(|frame| port.send(frame))?;
        poll::until(what, LIMIT, || {
            Ok((lb.dropped(reason)? >= before + dropped).then_some(()))
        })
        .with_context(|| format!("{:?}", lb.drops()))?;
        assert_eq!(lb.dropped(reason)?, before + dropped, "{what}");
        let passed = frames.len() - usize::try_from(dropped)?;
        poll::until(what, LIMIT, || {
            Ok((out.frames()?.len() >= seen + passed).then_some(()))
        })?;
        let came = receive(&server);
        assert!(came.is_err(), "{what}: {came:02x?}");
        let all = out.frames()?;
        let new = &all[seen..];
        assert_eq!(new.len(), passed, "{what}: {new:02x?}");
        for (sent, got) in frames.iter().zip(new) {
            assert_eq!(word(got, FIELD), word(sent, FIELD), "{what}: {got:02x?}");
        }
    }
    // What is spoilt once stays so: not even the right rest of it passes now.
    let udp = datagram(1007);
    for part in [
        cut(&udp, 0..64, MORE),
        cut(&udp, 56..128, 7),
        cut(&udp, 64..128, 8),
    ] {
        port.send(&part)?;
    }
    let came = receive(&server);
    assert!(came.is_err(), "{came:02x?}");
    Ok(())
}

/// In whatever order a network brings them, as long as the first is the first.
#[privileged_test]
fn reliability_15_fragments_out_of_order_and_twice_make_one_datagram() -> Result<()> {
    let topology = Topology::poc()?;
    let lb = Lb::start(&topology, &config())?;
    let server = udp_server(&topology)?;
    let client = topology.client();
    let [from, to] = hops(&topology, client)?;
    let port = RawPort::open(&client.netns, "eth0")?;
    let parts = [0..32, 32..64, 64..96, 96..128];
    let orders: [&[usize]; 5] = [
        &[0, 1, 2, 3],
        &[0, 2, 1, 3],
        &[0, 3, 1, 2],
        &[0, 3, 2, 1],
        &[0, 0, 1, 2, 3],
    ];
    for (order, id) in orders.iter().zip(0x6000..) {
        let frame = packet::udp(&format!("{}:2000", client.address), &DNS.to_string());
        let payload = bytes(120, 1);
        let frame = frame
            .fragment(0)
            .between(from, to)
            .payload(&payload)
            .bytes();
        let frame = with_id(frame, id);
        for &number in *order {
            let more = if number == 3 { 0 } else { MORE };
            let field = more | u16::try_from(parts[number].start / 8)?;
            port.send(&cut(&frame, parts[number].clone(), field))?;
        }
        let (got, peer) =
            receive(&server).with_context(|| format!("{order:?}: {:?}", lb.drops()))?;
        assert_eq!(got, payload, "{order:?}");
        assert_eq!(peer.ip(), SNAT, "{order:?}");
    }
    Ok(())
}

/// First fragments whose rest never comes: they cost their sender one flow, and others nothing.
#[privileged_test]
fn reliability_15_a_flood_of_first_fragments_costs_others_nothing() -> Result<()> {
    const FLOOD: u16 = 20_000;
    let topology = Topology::poc()?;
    // The node itself must have room for the flood: all of it is from one address.
    let node = &topology.nodes[0].netns;
    node.set_sysctl("ipv4/ipfrag_high_thresh", "268435456")?;
    let lb = Lb::start(&topology, &config())?;
    let server = udp_server(&topology)?;
    let [client, flooder] = [topology.client(), &topology.clients[1]];
    let socket = udp_client(client)?;
    let [from, to] = hops(&topology, flooder)?;
    let port = RawPort::open(&flooder.netns, "eth0")?;
    let source = format!("{}:3000", flooder.address);
    let frame = packet::udp(&source, &DNS.to_string()).fragment(0);
    let frame = frame.between(from, to).payload(&bytes(120, 1)).bytes();
    for id in 0..FLOOD {
        port.send(&cut(&with_id(frame.clone(), id), 0..64, MORE))?;
        if id % 1000 == 0 {
            let request = bytes(4000, 2);
            socket.send(&request).context("send")?;
            let (got, _) = receive(&server).with_context(|| format!("{:?}", lb.drops()))?;
            assert!(got == request, "{} bytes", got.len());
        }
    }
    let status = lb.status()?;
    assert_eq!(status.flows.live, 2, "{status:?}");
    Ok(())
}

/// The frame with this identification.
fn with_id(mut frame: Vec<u8>, id: u16) -> Vec<u8> {
    frame[ID..ID + 2].copy_from_slice(&id.to_be_bytes());
    // `cut` computes the checksum of each part anew.
    frame
}

fn word(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Bytes that are not the same anywhere near.
fn bytes(count: usize, seed: u8) -> Vec<u8> {
    let step = |at: usize| u8::try_from((at * 7 + at / 251) % 251).unwrap_or_default();
    (0..count).map(|at| step(at).wrapping_add(seed)).collect()
}

fn receive(socket: &UdpSocket) -> Result<(Vec<u8>, SocketAddr)> {
    let mut datagram = vec![0; 1 << 16];
    let (length, from) = socket.recv_from(&mut datagram).context("a datagram")?;
    datagram.truncate(length);
    Ok((datagram, from))
}

fn hops(topology: &Topology, from: &Host) -> Result<[Mac; 2]> {
    Ok([mac_of(&from.netns, "eth0")?, topology.mac(TENANT_NIC)?])
}
