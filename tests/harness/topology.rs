//! The networks of the user's proof of concept in namespaces: a tenant LAN with two clients, a
//! management LAN with four hub nodes, and the load balancer's host between them.
//!
//! ```text
//!  c1 .50   c2 .51                                   n1 .105  n2 .106  n3 .107  n4 .108
//!    |        |                                         |        |        |        |
//!  [ tlan: bridge ] ---- eth0 [ lb, no address ] eth1 ---- [ mlan: bridge          ]
//!  192.168.203.0/24             ip_forward=0                 10.32.96.0/20
//! ```
//!
//! Every veth is born inside the namespaces it joins, so a run never makes an interface on the
//! machine. Offloads are set so that frames reach the NICs of `lb` as a wire would bring them, at
//! most one MTU long and with full checksums: see `OFFLOADS` and `GRO`.

use std::{
    fs::{self, Permissions},
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{leftovers::Run, netns::Netns, process};

/// The configuration that the lab ships, for exactly this topology.
pub const CONFIG: &str = include_str!("../../config/lab.yaml");

/// The address that tenants know.
pub const VIP: Ipv4Addr = Ipv4Addr::new(192, 168, 203, 110);
/// The only address that backends see.
pub const SNAT: Ipv4Addr = Ipv4Addr::new(10, 32, 96, 50);
/// `api-a`: TLS to nginx.
pub const API: SocketAddrV4 = SocketAddrV4::new(VIP, 6443);
/// `dns-a`: UDP to dnsmasq.
pub const DNS: SocketAddrV4 = SocketAddrV4::new(VIP, 53);
/// `echo-a`: TCP to the harness's own server.
pub const ECHO: SocketAddrV4 = SocketAddrV4::new(VIP, 7000);
/// NodePort behind `api-a`.
pub const API_NODE_PORT: u16 = 30918;
/// NodePort behind `dns-a`.
pub const DNS_NODE_PORT: u16 = 30053;
/// NodePort behind `echo-a`.
pub const ECHO_NODE_PORT: u16 = 30700;

/// The NIC of the load balancer on the tenant LAN.
pub const TENANT_NIC: &str = "eth0";
/// The NIC of the load balancer on the management LAN.
pub const MGMT_NIC: &str = "eth1";

const CLIENTS: [(&str, Ipv4Addr); 2] = [
    ("c1", Ipv4Addr::new(192, 168, 203, 50)),
    ("c2", Ipv4Addr::new(192, 168, 203, 51)),
];
const NODES: [(&str, Ipv4Addr); 4] = [
    ("n1", Ipv4Addr::new(10, 32, 96, 105)),
    ("n2", Ipv4Addr::new(10, 32, 96, 106)),
    ("n3", Ipv4Addr::new(10, 32, 96, 107)),
    ("n4", Ipv4Addr::new(10, 32, 96, 108)),
];
const TENANT_PREFIX_BITS: u8 = 24;
const MGMT_PREFIX_BITS: u8 = 20;

/// For both ends of every veth: the sender writes full checksums, and cuts segments itself because
/// TSO goes with them. Without this a frame carries only the sum of the pseudo header, which an
/// incremental update turns into a wrong one.
const OFFLOADS: [&str; 2] = ["tx", "off"];
/// For the switch port of the load balancer's NICs. GRO makes a veth poll its queue, and without
/// that (or a program) on the peer, the kernel drops every frame that XDP redirects into the NIC.
/// What GRO joins there is cut again on its way out of the switch. Everywhere else it stays off, so
/// that a capture shows frames as they were sent.
const GRO: [&str; 2] = ["gro", "on"];

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

/// The namespaces of one run; all go with it.
#[derive(Debug)]
pub struct Topology {
    /// The load balancer's host.
    pub lb: Netns,
    /// Tenant hosts.
    pub clients: Vec<Host>,
    /// Hub nodes.
    pub nodes: Vec<Host>,
    /// The switch of the tenant LAN.
    pub tenant_lan: Netns,
    /// The switch of the management LAN.
    pub mgmt_lan: Netns,
    dir: TempDir,
    // Last, so that the name is free only when everything that carries it is gone.
    run: Run,
}

impl Topology {
    /// Builds the proof of concept: two clients, four nodes, one load balancer host.
    ///
    /// # Errors
    ///
    /// When a namespace or link cannot be made; what was made is removed.
    pub fn poc() -> Result<Self> {
        let name_of_run = Run::new()?;
        let run = name_of_run.name();
        mount_bpffs()?;
        let topology = Self {
            lb: Netns::create(format!("{run}-lb"))?,
            tenant_lan: switch(run, "tlan")?,
            mgmt_lan: switch(run, "mlan")?,
            clients: hosts(run, &CLIENTS)?,
            nodes: hosts(run, &NODES)?,
            dir: folder(run)?,
            run: name_of_run,
        };
        topology.join(
            &topology.tenant_lan,
            TENANT_NIC,
            &topology.clients,
            TENANT_PREFIX_BITS,
        )?;
        topology.join(
            &topology.mgmt_lan,
            MGMT_NIC,
            &topology.nodes,
            MGMT_PREFIX_BITS,
        )?;
        Ok(topology)
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

    /// The first client.
    ///
    /// # Panics
    ///
    /// Never: a topology has two.
    pub fn client(&self) -> &Host {
        self.clients.first().expect("a topology has clients")
    }

    /// Gives the load balancer's host one more NIC, connected to nothing that talks.
    ///
    /// # Errors
    ///
    /// When the name is taken.
    pub fn add_idle_nic(&self, name: &str) -> Result<()> {
        self.lb.ip_batch(&format!(
            "link add {name} type veth peer name p-{name} netns {}\nlink set {name} up\n",
            self.tenant_lan.name(),
        ))?;
        self.tenant_lan.ip_batch(&format!("link set p-{name} up\n"))
    }

    /// Takes the tenant NIC out of the load balancer's host and puts a new one in its place.
    ///
    /// # Errors
    ///
    /// When the old one is gone already.
    pub fn replace_tenant_nic(&self) -> Result<()> {
        self.lb.ip_batch(&format!("link del {TENANT_NIC}\n"))?;
        plug(&self.tenant_lan, "lb", &self.lb, TENANT_NIC)?;
        set(&self.tenant_lan, "p-lb", &GRO)?;
        self.lb.ip_batch(&format!("link set {TENANT_NIC} up\n"))
    }

    /// Plugs `lb`'s `nic` and the `eth0` of every host into a switch.
    fn join(&self, lan: &Netns, nic: &str, hosts: &[Host], prefix_bits: u8) -> Result<()> {
        plug(lan, "lb", &self.lb, nic)?;
        set(lan, "p-lb", &GRO)?;
        self.lb.ip_batch(&format!("link set {nic} up\n"))?;
        for host in hosts {
            plug(lan, host.name, &host.netns, "eth0")?;
            host.netns.ip_batch(&format!(
                "addr add {}/{prefix_bits} dev eth0\nlink set eth0 up\n",
                host.address,
            ))?;
        }
        Ok(())
    }
}

/// Joins a switch and `device` in another namespace by a veth pair; the port is up afterwards.
fn plug(lan: &Netns, port: &str, netns: &Netns, device: &str) -> Result<()> {
    lan.ip_batch(&format!(
        "link add p-{port} type veth peer name {device} netns {}\nlink set p-{port} master br0\n",
        netns.name(),
    ))?;
    set(lan, &format!("p-{port}"), &OFFLOADS)?;
    set(netns, device, &OFFLOADS)?;
    lan.ip_batch(&format!("link set p-{port} up\n"))
}

fn set(netns: &Netns, device: &str, features: &[&str]) -> Result<()> {
    process::succeed(netns.command("ethtool").args(["-K", device]).args(features)).map(drop)
}

/// A namespace with a bridge that forwards from its first moment and says nothing itself.
fn switch(run: &str, name: &str) -> Result<Netns> {
    let netns = Netns::create(format!("{run}-{name}"))?;
    netns.ip_batch(
        "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set br0 up\n",
    )?;
    Ok(netns)
}

fn hosts(run: &str, wanted: &[(&'static str, Ipv4Addr)]) -> Result<Vec<Host>> {
    wanted
        .iter()
        .map(|&(name, address)| {
            let netns = Netns::create(format!("{run}-{name}"))?;
            Ok(Host {
                name,
                netns,
                address,
            })
        })
        .collect()
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
