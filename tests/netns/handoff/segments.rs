//! Connections with small segments on one side or the other: carried by XDP if they fit, copied if not.
//! FEATURES B15.

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{Host, Topology},
};

use crate::{
    handoff::{
        connections::{HANDED_OVER, outcomes},
        opener::{BOUND, Opener},
    },
    proxy::{
        pipe::carry,
        relayed::{fast_line, wait_for},
    },
};

const BYTES: u64 = 2 << 20;
/// Words each way, in segments of their own.
const WORDS: usize = 50;
/// Connections of each kind.
const EACH: u64 = 3;

/// Which end takes small segments, and by what.
#[derive(Clone, Copy, Debug)]
enum Small {
    /// The route says so.
    Route,
    /// The link does.
    Link,
}

/// B15: whether XDP or the process carries it, all of it arrives.
#[privileged_test]
fn b15_ends_that_take_small_segments_get_all() -> Result<()> {
    small_segments_get_all(Opener::Process)
}

/// The same where XDP opens what it can.
#[privileged_test]
fn b15_ends_of_bound_connections_that_take_small_segments_get_all() -> Result<()> {
    small_segments_get_all(Opener::Xdp)
}

fn small_segments_get_all(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let lb = Lb::start(&topology, &opener.config(&topology))?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    let hosts = [(client, "192.168.203.0/24"), (node, "10.32.96.0/20")];
    let usual: [Option<Small>; 2] = [None, None];
    let mut all = 0;
    for ends in [
        [Some(Small::Route), None],
        [None, Some(Small::Route)],
        [Some(Small::Link), None],
        [None, Some(Small::Link)],
        [Some(Small::Route); 2],
        usual,
    ] {
        for ((host, prefix), small) in hosts.into_iter().zip(ends) {
            make(host, prefix, small)?;
        }
        for number in 0..EACH {
            let talk = || -> Result<()> {
                let pair = line.open()?;
                (0..WORDS).try_for_each(|_| pair.talk())?;
                carry(&pair.client, &pair.server, BYTES)?;
                carry(&pair.server, &pair.client, BYTES + 1)?;
                pair.talk()
            };
            talk().with_context(|| format!("{ends:?}, connection {number}"))?;
        }
        all += EACH;
        let outcomes = outcomes(&lb)?;
        println!("{ends:?}: so far {outcomes:?}");
        let known = [HANDED_OVER, BOUND, "segment_size"].map(|outcome| outcomes.get(outcome));
        let sum: u64 = known.into_iter().flatten().sum();
        ensure!(sum == all, "{outcomes:?}");
    }
    wait_for(&lb, 0)
}

/// Makes a host one that takes small segments, or one as others.
fn make(host: &Host, prefix: &str, small: Option<Small>) -> Result<()> {
    let (mtu, mss) = match small {
        None => (1500, ""),
        Some(Small::Link) => (576, ""),
        Some(Small::Route) => (1500, " advmss 536"),
    };
    let address = host.address;
    host.netns.ip_batch(&format!(
        "link set eth0 mtu {mtu}\n\
         route replace {prefix} dev eth0 proto kernel scope link src {address}{mss}\n"
    ))
}
