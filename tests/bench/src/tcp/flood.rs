//! A flood of SYNs beside the connections of a stand, from addresses that nothing answers for.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use lb_tests::{
    frames::raw::RawPort,
    product::cpu,
    topology::{self, path},
    traffic::flood::Flood,
};

use crate::{
    path::configurations::{PORT, VIP},
    tcp::{
        carrier::Carrier,
        stand::{Ask, Stand, Taken},
    },
};

/// SYNs in a second.
pub(crate) const RATE: u64 = 60_000;
/// The addresses that they come from.
const SOURCES: Ipv4Addr = path::address(0, 128, 0);
const SOURCE_BITS: u8 = 17;
/// How many of them.
const COUNT: u32 = 10_000;
/// After so many the flood waits until they are due.
const BURST: u64 = 60;

impl Stand<'_> {
    /// Leaves a CPU to the contestant, as [`part`](Self::part). Answers to the flood go to the client's station, which has none of its
    /// addresses.
    ///
    /// # Errors
    ///
    /// As for [`part`](Self::part), or when the kernel refuses the route.
    pub(crate) fn expect_flood(&mut self) -> Result<()> {
        self.part()?;
        // lb answers the station that has asked, and a kernel the one that it has a route to.
        if !matches!(self.carrier, Carrier::Lb(_)) {
            let client = path::address(0, 1, 1);
            let route = format!("ip route add {SOURCES}/{SOURCE_BITS} via {client}");
            self.path.lb.run(&route)?;
        }
        Ok(())
    }

    /// As [`run`](Self::run), beside the flood; and how many SYNs it has sent in a second.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run), or when the NIC takes no SYN.
    pub(crate) fn run_flooded(&mut self, ask: Ask) -> Result<(Taken, f64)> {
        let (path, cpu) = (self.path, self.cpus.client);
        let stations = [
            topology::mac_of(&path.client.netns, "c0")?,
            topology::mac_of(&path.lb, "eth0")?,
        ];
        let port = RawPort::open(&path.client.netns, "c0")?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let flood = scope.spawn(|| {
                cpu::bind(cpu)?;
                flood(stations, &port, &over)
            });
            let taken = self.run(ask);
            over.store(true, Ordering::Relaxed);
            let sent = flood.join().map_err(|_| anyhow!("the flood panicked"))?;
            Ok((taken?, sent?))
        })
    }
}

fn flood(stations: [lb_common::addr::Mac; 2], port: &RawPort, over: &AtomicBool) -> Result<f64> {
    let first = u32::from(SOURCES);
    let sources = (first..first + COUNT).map(Ipv4Addr::from).collect();
    let mut flood = Flood::new(stations, sources, SocketAddrV4::new(VIP, PORT));
    let begun = Instant::now();
    while !over.load(Ordering::Relaxed) {
        flood.send(port, BURST)?;
        let due = Duration::from_micros(flood.sent() * 1_000_000 / RATE);
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    Ok(flood.sent() as f64 / begun.elapsed().as_secs_f64())
}
