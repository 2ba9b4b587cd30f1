//! A box that is full: the configuration of the largest size that FEATURES K11 asks for, and what it costs.

use std::{fmt::Write as _, fs, net::Ipv4Addr, net::SocketAddrV4, thread, time::Duration};

use anyhow::{Context as _, Result};

use crate::{
    product::config::Config,
    topology::{Topology, VIP},
};

/// The VIP and port of the service that answers.
pub const SERVED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
/// The port of its backend, on the first node.
const SERVES: u16 = 9_000;
/// The first port of the other backends, which nothing listens at.
const FIRST_PORT: usize = 10_000;
/// The first of the other VIPs.
const FIRST_VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 1);
/// How long idle time is measured, and how often: the least counts.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_WINDOWS: usize = 3;

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// How many pools.
    pub pools: usize,
    /// Backends of each pool.
    pub backends: usize,
    /// How many VIPs.
    pub vips: usize,
    /// How many services, on all VIPs.
    pub services: usize,
}

impl Size {
    /// All of it.
    pub const FULL: Self = Self::tenths(10);
    /// A tenth of it.
    pub const TENTH: Self = Self::tenths(1);

    const fn tenths(tenths: usize) -> Self {
        Self {
            pools: 25 * tenths,
            backends: 256,
            vips: 100 * tenths,
            services: 1_000 * tenths,
        }
    }

    /// The file. Of the first `changed` pools one backend is another one.
    ///
    /// # Errors
    ///
    /// When it is no size of a configuration.
    pub fn file(self, topology: &Topology, changed: usize) -> Result<String> {
        let served = Config::poc()
            .network("tenant-a", |network| {
                network.set("prefixes", ["192.168.0.0/16"])
            })
            .mgmt_pool("served", [served_by(topology)])
            .tcp_service("served", SERVED);
        let (networks, rest) = served.split_once("pools:\n").context("pools")?;
        let (pools, services) = rest.split_once("services:\n").context("services")?;
        let mut text = format!("{networks}watch: false\n");
        text += "limits: { services: 11000, backends: 65535, pools: 300 }\n";
        write!(text, "pools:\n{pools}")?;
        for pool in 0..self.pools {
            let backends = self.backends_of(pool, pool < changed, topology);
            writeln!(
                text,
                "  p{pool}: {{ network: mgmt, backends: [{backends}] }}"
            )?;
        }
        write!(text, "services:\n{services}")?;
        for service in 0..self.services {
            let vip = u32::from(FIRST_VIP) + u32::try_from(service % self.vips)?;
            let (vip, port) = (Ipv4Addr::from(vip), 1_000 + service / self.vips);
            let pool = service % self.pools;
            writeln!(
                text,
                "  s{service}: {{ network: tenant-a, listen: [\"{vip}:{port}/tcp\"], pool: p{pool} }}"
            )?;
        }
        Ok(text)
    }

    fn backends_of(self, pool: usize, is_changed: bool, topology: &Topology) -> String {
        let nodes = &topology.nodes;
        let first = FIRST_PORT + pool * self.backends.div_ceil(nodes.len());
        let backend = |index: usize| {
            let (node, port) = (&nodes[index % nodes.len()], first + index / nodes.len());
            format!("\"{}:{port}\"", node.address)
        };
        let skipped = usize::from(is_changed);
        let backends = (skipped..self.backends + skipped).map(backend);
        backends.collect::<Vec<_>>().join(", ")
    }
}

/// The backend of the service that answers.
pub fn served_by(topology: &Topology) -> SocketAddrV4 {
    SocketAddrV4::new(topology.nodes[0].address, SERVES)
}

/// What a process takes of a CPU when nothing happens, in percent: the least of some windows.
///
/// # Errors
///
/// When there is no such process.
pub fn idle(process: u32) -> Result<f64> {
    let window = |_| {
        let before = spent(process)?;
        thread::sleep(IDLE);
        let took = spent(process)?.saturating_sub(before);
        Ok(took.as_secs_f64() / IDLE.as_secs_f64() * 100.0)
    };
    let windows = (0..IDLE_WINDOWS).map(window).collect::<Result<Vec<_>>>()?;
    Ok(windows.into_iter().fold(f64::INFINITY, f64::min))
}

/// The CPU time of a process so far.
fn spent(process: u32) -> Result<Duration> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).context("look at its threads")?;
    let mut all = Duration::ZERO;
    for task in tasks {
        // A thread may have ended meanwhile.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
        all += Duration::from_nanos(ns.unwrap_or_default());
    }
    Ok(all)
}
