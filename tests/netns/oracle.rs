//! What the load balancer really sends into a network, seen from the switch port at the other end.

use std::{net::Ipv4Addr, path::Path, time::Duration};

use anyhow::{Result, ensure};
use lb_tests::{
    netns::Netns,
    oracle::wire::{self, Wire},
    servers::peers::DNS_NAME,
    topology::{DNS, Host, LB_PORT},
    traffic::programs,
};

const LIMIT: Duration = Duration::from_secs(10);
/// Where the destination port stands in a UDP frame without tag and options.
const UDP_TO: std::ops::Range<usize> = 36..38;

/// Every frame on a management LAN that came from the load balancer, except ARP.
///
/// Nothing but DNS queries of one allowed client may be in it. The query before the attack shows
/// that the capture sees what passes, the one after it that all of the attack has been handled.
pub(crate) struct Oracle<'t> {
    wire: Wire,
    client: &'t Host,
    node_port: u16,
    queries: usize,
}

impl<'t> Oracle<'t> {
    /// Starts to capture, and sees the first query of `client` arrive.
    pub(crate) fn start(
        mgmt_lan: &Netns,
        dir: &Path,
        client: &'t Host,
        node_port: u16,
    ) -> Result<Self> {
        let wire = Wire::received(mgmt_lan, LB_PORT, "not arp", dir)?;
        let mut oracle = Self {
            wire,
            client,
            node_port,
            queries: 0,
        };
        oracle.see_a_query()?;
        Ok(oracle)
    }

    /// Sees another query arrive, and fails unless queries were all that came.
    pub(crate) fn saw_nothing_else(mut self) -> Result<()> {
        self.see_a_query()?;
        // Other queues of the NIC may be behind the one of the query.
        std::thread::sleep(Duration::from_millis(300));
        let Self {
            wire,
            client: _,
            node_port,
            queries,
        } = self;
        let (ours, others): (Vec<_>, Vec<_>) = wire
            .stop()?
            .into_iter()
            .partition(|frame| is_query(frame, node_port));
        ensure!(others.is_empty(), "{} frames: {others:02x?}", others.len());
        ensure!(ours.len() == queries, "{} queries of {queries}", ours.len());
        Ok(())
    }

    fn see_a_query(&mut self) -> Result<()> {
        programs::dig(self.client, DNS, DNS_NAME, "TXT")?;
        self.queries += 1;
        let port = self.node_port;
        self.wire
            .wait_for("an allowed query", self.queries, LIMIT, |frame| {
                is_query(frame, port)
            })
    }
}

fn is_query(frame: &[u8], port: u16) -> bool {
    const UDP: u8 = 17;
    wire::ipv4(frame).is_some()
        && frame.get(23) == Some(&UDP)
        && frame.get(UDP_TO) == Some(&port.to_be_bytes())
}

/// The frames of a capture that come from or go to `address`.
pub(crate) fn of(frames: &[Vec<u8>], address: Ipv4Addr) -> Vec<&Vec<u8>> {
    let is_of = |frame: &&Vec<u8>| {
        wire::ipv4(frame).is_some_and(|(from, to)| from == address || to == address)
    };
    frames.iter().filter(is_of).collect()
}
