//! Ends that take segments of different sizes get the smaller one as MSS, so that their connections can be
//! handed over all the same.

use anyhow::{Result, ensure};
use lb_tests::{
    product::lb::Lb,
    topology::{Host, Topology},
};
use nix::sys::socket::{getsockopt, sockopt::TcpMaxSeg};

use crate::{
    handoff::{connections::copied, opener::Opener},
    proxy::{pipe::carry, relayed::fast_line},
};

/// What an end takes, as its SYN says; and what is left beside timestamps.
const LESS: u32 = 1360;
const LEAST: u32 = 88;
const STAMPS: u32 = 12;
const BULK: u64 = 4 << 20;

/// From now on what comes from that host says that it takes segments of this size.
fn takes(host: &Host, prefix: &str, mss: u32) -> Result<()> {
    let address = host.address;
    let route = format!("{prefix} dev eth0 proto kernel scope link src {address} advmss {mss}");
    host.netns.run(&format!("ip route replace {route}"))?;
    Ok(())
}

/// How many XDP carries, and how many were copied because of their segments.
fn counts(opener: Opener, lb: &Lb<'_>) -> Result<(u64, u64)> {
    Ok((opener.count(lb)?, copied(lb, "segment_size")?))
}

/// A backend that takes less than the client's network carries, as pods of an overlay do: the first connection
/// is copied, and from then on clients get its size; a process that takes over goes on so.
#[privileged_test]
fn clients_are_told_what_the_backend_takes() -> Result<()> {
    clients_get_the_size_of_the_backend(Opener::Process)
}

/// The same where XDP opens the connections that fit.
#[privileged_test]
fn clients_of_bound_connections_get_the_size_of_the_backend() -> Result<()> {
    clients_get_the_size_of_the_backend(Opener::Xdp)
}

fn clients_get_the_size_of_the_backend(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    takes(&topology.nodes[0], "10.32.96.0/20", LESS)?;
    let line = fast_line(&topology)?;
    let config = opener.config(&topology);
    let mut lb = Lb::start(&topology, &config)?;
    let first = line.open()?;
    assert_eq!(counts(opener, &lb)?, (0, 1));
    ensure!(getsockopt(&first.client, TcpMaxSeg)? > LESS);
    for number in 1..=3 {
        let pair = line.open()?;
        assert_eq!(counts(opener, &lb)?, (number, 1));
        assert_eq!(getsockopt(&pair.client, TcpMaxSeg)?, LESS - STAMPS);
        carry(&pair.client, &pair.server, BULK)?;
        carry(&pair.server, &pair.client, BULK)?;
    }
    carry(&first.client, &first.server, BULK)?;
    lb.take_over(&config)?;
    let pair = line.open()?;
    let all = match opener {
        // Counts of the process begin anew.
        Opener::Process => 1,
        Opener::Xdp => 4,
    };
    assert_eq!(counts(opener, &lb)?, (all, 0));
    assert_eq!(getsockopt(&pair.client, TcpMaxSeg)?, LESS - STAMPS);
    Ok(())
}

/// A client that takes less than the backend's network carries: its backend gets that size at once.
#[privileged_test]
fn a_backend_is_told_what_its_client_takes() -> Result<()> {
    a_backend_gets_the_size_of_its_client(Opener::Process)
}

/// The same where XDP opens the connection.
#[privileged_test]
fn a_backend_of_a_bound_connection_gets_the_size_of_its_client() -> Result<()> {
    a_backend_gets_the_size_of_its_client(Opener::Xdp)
}

fn a_backend_gets_the_size_of_its_client(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let line = fast_line(&topology)?;
    let lb = Lb::start(&topology, &opener.config(&topology))?;
    for (number, mss) in (1..).zip([LESS, 536, LEAST, 100]) {
        takes(topology.client(), "192.168.203.0/24", mss)?;
        let pair = line.open()?;
        assert_eq!(counts(opener, &lb)?, (number, 0), "{mss}");
        // A cookie has one size for all that are less than the default one.
        let known = if mss < 536 { LEAST } else { mss };
        assert_eq!(getsockopt(&pair.server, TcpMaxSeg)?, known - STAMPS);
        carry(&pair.client, &pair.server, BULK / 8)?;
        carry(&pair.server, &pair.client, BULK / 8)?;
    }
    Ok(())
}
