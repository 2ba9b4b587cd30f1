//! Networks in namespaces, with the load balancer's host between them.
//!
//! Every veth is born inside the namespaces it joins, so a run never makes an interface on the
//! machine. Offloads are set so that frames reach the NICs of `lb` as a wire would bring them, at
//! most one MTU long and with full checksums: see `OFFLOADS` and `GRO`.

mod clusters;
mod one_ip;
mod pair;
pub mod path;
mod poc;
mod router;
mod six;
pub mod switch;
mod trunk;

use std::{
    fs::{self, Permissions},
    net::Ipv4Addr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_common::addr::Mac;
use tempfile::TempDir;

pub use self::{
    clusters::{CLUSTERS_CONFIG, Cluster, Clusters, ONE_ADDRESS, ONE_SNAT},
    one_ip::{ADDRESS, BRIDGE, GATEWAY, OneIp},
    pair::{BoxName, MARKER, PEER_SNAT, SYNC_NIC, SyncLan, TwoBoxes},
    poc::{
        API, API_NODE_PORT, CONFIG, DNS, DNS_NODE_PORT, ECHO, ECHO_NODE_PORT, SNAT, Topology, VIP,
    },
    router::Routed,
    six::{DNS6, ECHO6, SNAT6, VIP6, address6},
    trunk::{
        APPS, APPS_HTTP, APPS_HTTP_NODE_PORT, APPS_HTTPS, APPS_HTTPS_NODE_PORT, LAB_CONFIG,
        MGMT_VLAN, NodePorts, POC_CONFIG, TENANT_SNAT, Tenant, Trunk,
    },
};
use crate::{leftovers::Run, netns::Netns, poll, process, topology::switch::Switch};

/// The NIC of the load balancer towards tenants.
pub const TENANT_NIC: &str = "eth0";
/// The NIC of the load balancer on the management LAN.
pub const MGMT_NIC: &str = "eth1";
/// The switch port of the load balancer's NIC, in each switch; of the first one, where there are two.
pub const LB_PORT: &str = "p-lb";

/// For both ends of every veth: the sender writes full checksums, and cuts segments itself because
/// TSO goes with them. Without this a frame carries only the sum of the pseudo header, which an
/// incremental update turns into a wrong one. A tag goes into the frame instead of beside it.
pub(crate) const OFFLOADS: [&str; 6] = [
    "tx",
    "off",
    "txvlan",
    "off",
    "tx-vlan-stag-hw-insert",
    "off",
];
/// For the switch port of the load balancer's NICs: what GRO joins there is cut again on its way out
/// of the switch. Everywhere else it stays off, so that a capture shows frames as they were sent.
const GRO: [&str; 2] = ["gro", "on"];

/// How long a switch may take until all of its ports forward.
const SETTLE: Duration = Duration::from_secs(20);

const NODES: [(&str, Ipv4Addr); 4] = [
    ("n1", Ipv4Addr::new(10, 32, 96, 105)),
    ("n2", Ipv4Addr::new(10, 32, 96, 106)),
    ("n3", Ipv4Addr::new(10, 32, 96, 107)),
    ("n4", Ipv4Addr::new(10, 32, 96, 108)),
];
const TENANT_PREFIX_BITS: u8 = 24;
const MGMT_PREFIX_BITS: u8 = 20;

/// One host on a LAN, with one interface `eth0`.
#[derive(Debug)]
pub struct Host {
    /// Its short name: `c1`, `n4`.
    pub name: &'static str,
    /// Where it lives.
    pub netns: Netns,
    /// Its only address.
    pub address: Ipv4Addr,
}

/// What every run has: the load balancer's host, a folder and a name.
#[derive(Debug)]
pub struct Site {
    /// The load balancer's host.
    pub lb: Netns,
    dir: TempDir,
    // Last, so that the name is free only when everything that carries it is gone.
    run: Run,
}

impl Site {
    fn new() -> Result<Self> {
        let run = Run::new()?;
        mount_bpffs()?;
        Ok(Self {
            lb: Netns::create(format!("{}-lb", run.name()))?,
            dir: folder(run.name())?,
            run,
        })
    }

    /// The name of the run, which is also the instance name of its `lb`.
    pub fn run(&self) -> &str {
        self.run.name()
    }

    /// A folder for logs and configurations that everyone may read; removed with the run.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file into the folder of the run.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.dir().join(name);
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// The MAC address of a NIC of the load balancer's host.
    ///
    /// # Errors
    ///
    /// When there is no such NIC.
    pub fn mac(&self, nic: &str) -> Result<Mac> {
        mac_of(&self.lb, nic)
    }

    /// A namespace with a bridge `br0` that forwards from its first moment and says nothing itself.
    fn switch(&self, name: &str) -> Result<Netns> {
        let netns = Netns::create(format!("{}-{name}", self.run()))?;
        add_bridge(&netns, "br0")?;
        Ok(netns)
    }

    fn hosts(&self, wanted: &[(&'static str, Ipv4Addr)]) -> Result<Vec<Host>> {
        let hosts = wanted.iter();
        hosts
            .map(|&(name, address)| self.host(name, address))
            .collect()
    }

    fn host(&self, name: &'static str, address: Ipv4Addr) -> Result<Host> {
        Ok(Host {
            name,
            netns: Netns::create(format!("{}-{name}", self.run()))?,
            address,
        })
    }

    /// Plugs a NIC of the load balancer into `bridge` of a switch.
    fn join(&self, lan: &Netns, bridge: &str, nic: &str) -> Result<()> {
        self.join_by_queues(lan, bridge, nic, 1)
    }

    /// The same with a NIC of many queues.
    fn join_by_queues(&self, lan: &Netns, bridge: &str, nic: &str, queues: usize) -> Result<()> {
        self.join_at(lan, bridge, LB_PORT, nic, queues)
    }

    /// The same at a port of this name, of which a switch has one for each load balancer.
    fn join_at(
        &self,
        lan: &Netns,
        bridge: &str,
        port: &str,
        nic: &str,
        queues: usize,
    ) -> Result<()> {
        plug(lan, bridge, port, &self.lb, nic, queues)?;
        set(lan, port, &GRO)?;
        self.lb.ip_batch(&format!("link set {nic} up\n"))
    }
}

/// The MAC address of an interface.
///
/// # Errors
///
/// When there is none.
pub fn mac_of(netns: &Netns, interface: &str) -> Result<Mac> {
    let text = netns.run(&format!("ip -o link show dev {interface}"))?;
    let mut words = text.split_ascii_whitespace();
    words.find(|word| *word == "link/ether");
    let digits = words.next().context("the interface has a MAC")?;
    let mut bytes = [0; 6];
    for (byte, word) in bytes.iter_mut().zip(digits.split(':')) {
        *byte = u8::from_str_radix(word, 16).with_context(|| format!("MAC {digits:?}"))?;
    }
    Ok(Mac::new(bytes))
}

/// Plugs the `eth0` of every host into `bridge` of a switch.
fn join_hosts(lan: &Netns, bridge: &str, hosts: &[Host], prefix_bits: u8) -> Result<()> {
    for host in hosts {
        plug(
            lan,
            bridge,
            &format!("p-{}", host.name),
            &host.netns,
            "eth0",
            1,
        )?;
        host.netns.ip_batch(&format!(
            "addr add {}/{prefix_bits} dev eth0\nlink set eth0 up\n",
            host.address,
        ))?;
    }
    Ok(())
}

/// Joins a bridge of a switch and `device` in another namespace by a veth pair with this many queues;
/// the port is up afterwards.
fn plug(
    lan: &Netns,
    bridge: &str,
    port: &str,
    netns: &Netns,
    device: &str,
    queues: usize,
) -> Result<()> {
    let each = format!("numtxqueues {queues} numrxqueues {queues}");
    lan.ip_batch(&format!(
        "link add {port} {each} type veth peer name {device} netns {} {each}\n\
         link set {port} master {bridge}\n",
        netns.name(),
    ))?;
    set(lan, port, &OFFLOADS)?;
    set(netns, device, &OFFLOADS)?;
    lan.ip_batch(&format!("link set {port} up\n"))
}

/// Waits until every port of the switch forwards: the kernel opens them a moment after they are up,
/// and a frame that comes earlier is lost.
fn settle(lan: &Netns) -> Result<()> {
    poll::until("forwarding switch ports", SETTLE, || {
        let ports = lan.run("bridge link show")?;
        let is_open = |line: &str| line.contains(" state forwarding ");
        Ok(ports.lines().all(is_open).then_some(()))
    })
}

pub(crate) fn set(netns: &Netns, device: &str, features: &[&str]) -> Result<()> {
    process::succeed(netns.command("ethtool").args(["-K", device]).args(features)).map(drop)
}

fn add_bridge(netns: &Netns, name: &str) -> Result<()> {
    netns.ip_batch(&format!(
        "link add {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
         link set {name} up\n"
    ))
}

fn folder(run: &str) -> Result<TempDir> {
    let dir = tempfile::Builder::new()
        .prefix(&format!("{run}-"))
        .tempdir()
        .context("make a temporary folder")?;
    // A test starts `lb` as another user, who must be able to read its configuration.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755))
        .context("open the temporary folder for reading")?;
    Ok(dir)
}

/// Mounts a BPF file system where every system keeps it, if there is none: a container has none.
fn mount_bpffs() -> Result<()> {
    const PLACE: &str = "/sys/fs/bpf";
    // Two mounts on top of each other would hide the pins that were made between them.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mounts = fs::read_to_string("/proc/self/mounts").context("read the mounts")?;
    if !mounts.contains(&format!(" {PLACE} bpf ")) {
        process::succeed(Command::new("mount").args(["-t", "bpf", "bpf", PLACE]))?;
    }
    Ok(())
}
