//! Backends that agree to less than XDP has promised a client before it had one: what they lack is not promised any more.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    netns::Netns,
    poll,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    topology::Topology,
    traffic::{client::open, hello::named},
};

use nix::sys::socket::{getsockopt, sockopt::TcpMaxSeg};

use crate::{
    health::verdicts::{FAST, SOON},
    proxy::{
        bind::hellos,
        guard::teller,
        sni::{self, PORT, SHARED},
    },
};

/// An option that a kernel offers or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpOption {
    Times,
    Scale,
}

impl TcpOption {
    const ALL: [Self; 2] = [Self::Times, Self::Scale];

    /// Its switch.
    const fn sysctl(self) -> &'static str {
        match self {
            Self::Times => "ipv4/tcp_timestamps",
            Self::Scale => "ipv4/tcp_window_scaling",
        }
    }

    /// Whether the kernel of a client has it of this connection.
    fn is_had(self, client: &Netns, stream: &TcpStream) -> Result<bool> {
        if self == Self::Times {
            // Timestamps take of each segment.
            return Ok(getsockopt(stream, TcpMaxSeg)? == WHOLE - STAMPS);
        }
        let (own, peer) = (stream.local_addr()?, stream.peer_addr()?);
        let seen = client.run(&format!("ss -Htin src {own} dst {peer}"))?;
        ensure!(seen.contains("cwnd:"), "no connection: {seen}");
        Ok(seen.contains(" wscale:"))
    }
}

/// Bytes in a segment, and how many of them timestamps take.
const WHOLE: u32 = 1460;
const STAMPS: u32 = 12;

/// The first two nodes behind `both.lab`, with these keys of their pool.
fn config(topology: &Topology, pool: impl Into<Keys>) -> Config {
    let nodes = topology.nodes[..2].iter();
    let nodes = nodes.map(|node| SocketAddrV4::new(node.address, PORT));
    sni::config(topology, "routes: [{ names: [both.lab], pool: both }]")
        .mgmt_pool("both", nodes)
        .pool("both", |both| both.with(pool))
}

fn count(lb: &Lb<'_>, end: &str) -> Result<u64> {
    Ok(hellos(lb)?.get(end).copied().unwrap_or_default())
}

/// A connection that its backend has answered.
fn connect(client: &Netns) -> Result<TcpStream> {
    let mut stream = client.inside(|| open(None, SHARED))??;
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(&named(b"both.lab"))?;
    let mut name = [0; 5];
    stream.read_exact(&mut name).context("the backend's name")?;
    ensure!(name == *b"right", "{name:?}");
    Ok(stream)
}

/// Without checks: the first client of such a backend goes to the process, and later ones get no more than it agrees to.
#[privileged_test]
fn what_a_backend_lacks_is_remembered() -> Result<()> {
    let topology = Topology::poc()?;
    let [one, other] = [0, 1].map(|node| teller(&topology.nodes[node], "right"));
    let _tellers = (one?, other?);
    let client = &topology.client().netns;
    for option in TcpOption::ALL {
        let lb = Lb::start(&topology, &config(&topology, ""))?;
        let without = &topology.nodes[1].netns;
        without.set_sysctl(option.sysctl(), "0")?;
        let mut clients = 0;
        while count(&lb, "disagreed")? == 0 {
            ensure!(clients < 50, "no client has come to the other backend");
            let stream = connect(client)?;
            ensure!(option.is_had(client, &stream)?, "before it was known");
            clients += 1;
        }
        for _ in 0..20 {
            let stream = connect(client)?;
            ensure!(!option.is_had(client, &stream)?, "it is promised still");
        }
        assert_eq!(count(&lb, "bound")?, clients + 19);
        println!("{option:?}: {clients} clients until it was known");
        without.set_sysctl(option.sysctl(), "1")?;
    }
    Ok(())
}

/// With checks no client meets it; and once all backends have the option, clients have it again.
#[privileged_test]
fn checks_find_what_all_backends_agree_to() -> Result<()> {
    let topology = Topology::poc()?;
    let [one, other] = [0, 1].map(|node| teller(&topology.nodes[node], "right"));
    let _tellers = (one?, other?);
    let client = &topology.client().netns;
    let without = &topology.nodes[1].netns;
    for option in TcpOption::ALL {
        without.set_sysctl(option.sysctl(), "0")?;
        let checked = format!("health: {{ tcp: {{}}, {FAST} }}");
        let lb = Lb::start(&topology, &config(&topology, checked.as_str()))?;
        let promised = |wanted: bool| {
            poll::until("the promise", SOON, || {
                let stream = connect(client)?;
                Ok((option.is_had(client, &stream)? == wanted).then_some(()))
            })
        };
        promised(false)?;
        let before = count(&lb, "bound")?;
        for _ in 0..20 {
            connect(client)?;
        }
        assert_eq!(count(&lb, "bound")?, before + 20);
        without.set_sysctl(option.sysctl(), "1")?;
        promised(true)?;
        let before = count(&lb, "bound")?;
        for _ in 0..20 {
            connect(client)?;
        }
        assert_eq!(count(&lb, "bound")?, before + 20);
    }
    Ok(())
}
