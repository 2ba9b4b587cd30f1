//! FEATURES A15: datagrams in parts to an IPv6 VIP.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{frames::six::read, oracle::wire::Wire, product::lb::Lb, topology::SNAT6};

use super::given::{config, receive, topology, udp_client, udp_server};
use crate::flows::life::LIMIT;

/// Bytes that a frame carries behind its IPv6 header, and that a kernel puts into one behind the fragment
/// header: also into the last one, which would have room for more.
const ROOM: usize = 1460;
const PART: usize = 1448;

/// How many frames a datagram with so many bytes is.
fn frames_of(size: usize) -> usize {
    let whole = size + 8;
    if whole <= ROOM {
        return 1;
    }
    whole.div_ceil(PART)
}

/// Bytes that are not the same anywhere near.
fn bytes(count: usize, seed: u8) -> Vec<u8> {
    let step = |at: usize| u8::try_from((at * 7 + at / 251) % 251).unwrap_or_default();
    (0..count).map(|at| step(at).wrapping_add(seed)).collect()
}

/// Datagrams of many sizes to a VIP and their answers, cut by the kernels at both ends.
#[privileged_test]
fn a15_a_datagram_of_4000_bytes_is_answered_by_4000_bytes_over_ipv6() -> Result<()> {
    let topology = topology()?;
    let lb = Lb::start(&topology, &config())?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    let ours = "ip6 and (udp or ip6 proto 44)";
    let at_node = Wire::received(&node.netns, "eth0", ours, topology.dir())?;
    let at_client = Wire::received(&client.netns, "eth0", ours, topology.dir())?;
    let server = udp_server(&topology)?;
    let socket = udp_client(client)?;
    let sizes = [4000, 1452, 1453, 2888, 2889, 9000, 40_000, 65_507];
    for size in sizes {
        let request = bytes(size, 3);
        socket.send(&request).context("send")?;
        let (got, from) =
            receive(&server).with_context(|| format!("{size} bytes: {:?}", lb.drops()))?;
        assert!(got == request, "{} bytes of {size}, or others", got.len());
        assert_eq!(from.ip(), SNAT6);
        let reply = bytes(size, 5);
        server.send_to(&reply, from).context("answer")?;
        let (got, _) =
            receive(&socket).with_context(|| format!("{size} bytes: {:?}", lb.drops()))?;
        assert!(got == reply, "{} bytes of {size}, or others", got.len());
    }
    let expected: usize = sizes.into_iter().map(frames_of).sum();
    for wire in [at_node, at_client] {
        wire.wait_for("all fragments", expected, LIMIT, |_| true)?;
        let frames = wire.stop()?;
        assert_eq!(frames.len(), expected);
        let mut ids = Vec::new();
        for frame in &frames {
            let read = read(frame).map_err(anyhow::Error::msg)?;
            ids.extend(read.fragment.map(|(_, id)| id));
        }
        ensure!(ids.len() == expected - 1, "one datagram is whole: {ids:x?}");
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), sizes.len() - 1, "an id for each datagram");
    }
    Ok(())
}

#[test]
fn a_datagram_is_as_many_frames_as_a_kernel_makes_of_it() {
    for (size, frames) in [(1452, 1), (1453, 2), (2888, 2), (2889, 3), (4000, 3)] {
        assert_eq!(frames_of(size), frames, "{size}");
    }
}
