//! The host: what it must offer before anything is made on it.

pub(crate) mod addresses;
pub(crate) mod leaving;
mod lock;
pub mod neighbours;
pub mod prepare;

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    net::IpAddr,
    path::Path,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    mount::{MsFlags, mount},
    sys::{
        statfs::{BPF_FS_MAGIC, statfs},
        utsname::uname,
    },
};
use rtnetlink::Handle;

pub(crate) use self::addresses::interfaces_with;
pub use self::lock::{IsRunning, Lock, is_process};

use crate::{
    config::{self, Config, TCP_IP_BYTES},
    dataplane::pins::BPFFS,
    network::link::{self, Bridge, Link},
    system::privileges,
};

/// The oldest kernel with all that the data plane needs: that of RHEL 9. Compare-and-swap in BPF
/// programs came with 5.12, the coarse clock with 5.11.
const OLDEST_KERNEL: (u32, u32) = (5, 14);

/// The least MTU of a link with IPv6, in bytes (RFC 8200 section 5); with less the kernel turns it off.
const IPV6_MTU: u32 = 1280;

/// Checks privileges and kernel, and mounts bpffs where it is not.
///
/// # Errors
///
/// What is missing, in words.
pub fn check() -> Result<()> {
    let missing = privileges::missing()?;
    ensure!(
        missing.is_empty(),
        "no privileges: {} missing; run lb as root, or after `lb prepare` as a user who has these, of \
         which CAP_SYS_ADMIN is for the start only",
        missing.join(", ")
    );
    kernel(&uname()?.release().to_string_lossy())?;
    // A user that may not read this of another user's process gets no warning.
    if let Ok(first) = fs::read_link("/proc/1/ns/mnt")
        && fs::read_link("/proc/self/ns/mnt").ok() != Some(first)
    {
        tracing::warn!(
            "running in a mount namespace of its own (`ip netns exec`, a container, some units): \
             pins and cells are seen by no other process, and gone when it ends"
        );
    }
    if mount_bpffs()? {
        tracing::info!("mounted bpffs at {BPFFS}");
    }
    Ok(())
}

/// Whether a kernel of this release has what the data plane needs. One whose version cannot be read is tried.
fn kernel(release: &str) -> Result<()> {
    let (major, minor) = OLDEST_KERNEL;
    ensure!(
        version(release).is_none_or(|version| version >= OLDEST_KERNEL),
        "this is kernel {release}, and lb needs {major}.{minor} or later: older ones lack what its eBPF \
         programs are made of (compare-and-swap, the coarse clock); boot a newer kernel"
    );
    Ok(())
}

/// Mounts bpffs where every system has it, if it is not there; whether it was not.
fn mount_bpffs() -> Result<bool> {
    if statfs(BPFFS).map(|fs| fs.filesystem_type()) == Ok(BPF_FS_MAGIC) {
        return Ok(false);
    }
    let (kind, flags) = (Some("bpf"), MsFlags::empty());
    mount(kind, BPFFS, kind, flags, None::<&str>)
        .with_context(|| format!("mount bpffs at {BPFFS}"))?;
    Ok(true)
}

/// The interfaces of all networks.
///
/// `ours` says whether an XDP program on the interface with that index is one of this instance, and
/// `may_lack` whether a network may be without its interface for now. VIPs and SNAT addresses that the
/// host has itself are refused too, but where they must be the host's.
///
/// # Errors
///
/// Everything that is wrong with any of them, a line each.
pub fn interfaces(
    config: &Config,
    ours: impl Fn(u32) -> bool + Sync,
    may_lack: impl Fn(&str) -> bool + Sync,
) -> Result<BTreeMap<String, Link>> {
    let mut problems = Vec::new();
    let found = link::with_netlink(async |handle| {
        let mut found = BTreeMap::new();
        for network in &config.networks {
            let name = &network.name;
            match interface(&handle, network, &ours).await {
                Ok(Some(link)) => {
                    problems.extend(too_large(network, &link));
                    found.insert(name.clone(), link);
                }
                Ok(None) if may_lack(name) => {}
                Ok(None) => {
                    let interface = &network.interface;
                    problems.push(format!("network {name}: there is no interface {interface}"));
                }
                Err(error) => problems.push(format!("network {name}: {error:#}")),
            }
        }
        Ok(found)
    })?;
    let lacks = |name: &str| may_lack(name) && !found.contains_key(name);
    problems.extend(without_ipv6(config));
    problems.extend(addresses::own_addresses(config, lacks));
    problems.extend(addresses::ephemeral_ports(config)?);
    problems.extend(addresses::listeners(config));
    if !problems.is_empty() {
        bail!(problems.join("\n"));
    }
    Ok(found)
}

/// The interface of a network, if there is one; `ours` as for [`interfaces`].
///
/// # Errors
///
/// Why it is of no use.
pub async fn interface(
    handle: &Handle,
    network: &config::Network,
    ours: impl Fn(u32) -> bool,
) -> Result<Option<Link>> {
    let interface = &network.interface;
    let Some(link) = link::find(handle, interface).await? else {
        return Ok(None);
    };
    let hides_tags = |bridge: Bridge| bridge.vlan_filtering || network.vlan.is_some();
    ensure!(
        !link.bridge.is_some_and(hides_tags),
        "interface {interface} is a bridge, which hides VLAN tags from XDP: use its port, or a bridge \
         without vlan_filtering and without vlan"
    );
    ensure!(
        link.xdp.is_none() || ours(link.ifindex),
        "interface {interface} already runs an XDP program of another owner; `ip link show dev \
         {interface}` names it, and if it is another instance of lb, `lb down --instance NAME` \
         removes it"
    );
    if let Some(problem) = too_small(network, &link) {
        bail!(problem);
    }
    Ok(Some(link))
}

/// A kernel without IPv6 under networks that have it.
fn without_ipv6(config: &Config) -> Option<String> {
    let network = config.networks.iter().find(|network| network.has_ipv6())?;
    (!Path::new("/proc/sys/net/ipv6/conf").exists()).then(|| {
        format!(
            "network {} has IPv6 prefixes, but this kernel has no IPv6: start it without ipv6.disable=1, \
             or take them out",
            network.name
        )
    })
}

/// An interface that IPv6 is asked for, but has no room for it.
fn too_small(network: &config::Network, link: &Link) -> Option<String> {
    (network.has_ipv6() && link.mtu < IPV6_MTU).then(|| {
        format!(
            "interface {} has an MTU of {}, and IPv6 needs {IPV6_MTU}: raise it, or take the IPv6 prefixes \
             of this network out",
            network.interface, link.mtu
        )
    })
}

/// A segment size that is asked for, but does not fit into the packets of the interface.
fn too_large(network: &config::Network, link: &Link) -> Option<String> {
    let (mss, most) = (network.mss?, link.mtu.saturating_sub(TCP_IP_BYTES.into()));
    (u32::from(mss) > most).then(|| {
        format!(
            "network {}: its mss is {mss}, but {} has an MTU of {}, which has room for {most}",
            network.name, network.interface, link.mtu
        )
    })
}

/// The interfaces whose loss would lock the operator out: those of the default route and of this SSH session, each
/// in words.
pub fn access_interfaces(config: &Config) -> Vec<String> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let routes = read("/proc/net/route");
    let routes6 = read("/proc/net/ipv6_route");
    let session = env::var("SSH_CONNECTION")
        .ok()
        .and_then(|session| ssh_server(&session));
    let mut problems = Vec::new();
    let interfaces: BTreeSet<&String> = (config.networks.iter())
        .map(|network| &network.interface)
        .collect();
    for interface in interfaces {
        if default_route(&routes, interface) || default_route6(&routes6, interface) {
            problems.push(format!("interface {interface} carries the default route"));
        }
        let carries = |session| {
            addresses::addresses().any(|(name, address)| name == *interface && address == session)
        };
        if session.is_some_and(carries) {
            problems.push(format!("interface {interface} carries this SSH session"));
        }
    }
    problems
}

/// Whether `/proc/net/route` has a default route over `interface`.
fn default_route(routes: &str, interface: &str) -> bool {
    routes.lines().skip(1).any(|line| {
        let mut columns = line.split_ascii_whitespace();
        columns.next() == Some(interface) && columns.next() == Some("00000000")
    })
}

/// Whether `/proc/net/ipv6_route` has one: destination and prefix length stand first, and the interface last.
fn default_route6(routes: &str, interface: &str) -> bool {
    routes.lines().any(|line| {
        let mut columns = line.split_ascii_whitespace();
        let to_all =
            [columns.next(), columns.next()] == [Some("0".repeat(32).as_str()), Some("00")];
        to_all && columns.next_back() == Some(interface)
    })
}

/// The server's address in `SSH_CONNECTION`: the third of its four words.
fn ssh_server(session: &str) -> Option<IpAddr> {
    session.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// Major and minor version of a kernel release such as `6.1.0-28-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|character: char| !character.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use lb_common::addr::Mac;

    use super::*;

    fn network(keys: &str) -> config::Network {
        let text = format!(
            "version: 1\nnetworks:\n  a: {{ role: mgmt, interface: eth1, {keys} \
             prefixes: [10.0.0.0/24] }}\n"
        );
        config::parse("f", &text).unwrap().networks.remove(0)
    }

    fn link(mtu: u32) -> Link {
        Link {
            ifindex: 2,
            mac: Mac::default(),
            mtu,
            up: true,
            running: true,
            carriers: 1,
            peer: None,
            xdp: None,
            bridge: None,
        }
    }

    #[test]
    fn a_kernel_that_is_too_old_is_refused_with_the_reason() {
        for release in [
            "5.14.0-362.el9.x86_64",
            "6.1.0-56-amd64",
            "10.0.0",
            "custom",
        ] {
            assert!(kernel(release).is_ok(), "{release}");
        }
        for release in ["5.13.19", "4.18.0-553.el8", "5.10.0-46-amd64"] {
            let said = kernel(release).unwrap_err().to_string();
            let begin = format!("this is kernel {release}, and lb needs 5.14 or later: ");
            assert!(said.starts_with(&begin), "{said}");
        }
    }

    #[test]
    fn a_segment_must_fit_into_a_packet() {
        let said = network("mss: 1460,");
        assert_eq!(too_large(&said, &link(1500)), None);
        assert_eq!(
            too_large(&said, &link(1499)).as_deref(),
            Some(
                "network a: its mss is 1460, but eth1 has an MTU of 1499, which has room for 1459"
            )
        );
        assert_eq!(too_large(&network(""), &link(68)), None);
    }

    #[test]
    fn ipv6_needs_an_mtu() {
        let mut network = network("");
        assert_eq!(too_small(&network, &link(1279)), None);
        network.prefixes.push("2001:db8::/64".parse().unwrap());
        assert_eq!(too_small(&network, &link(1280)), None);
        let problem = too_small(&network, &link(1279)).unwrap();
        let words = "interface eth1 has an MTU of 1279, and IPv6 needs 1280: ";
        assert!(problem.starts_with(words), "{problem}");
    }

    #[test]
    fn the_operators_own_way_in_is_recognised() {
        let routes =
            "Iface\tDestination\tGateway\neth0\t00000000\t0100A8C0\neth1\t0060200A\t00000000\n";
        assert!(default_route(routes, "eth0") && !default_route(routes, "eth1"));
        let routes6 = "\
            fd000032000000000000000000000000 40 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n\
            00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
            fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth1\n\
            00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n";
        assert!(default_route6(routes6, "eth1") && !default_route6(routes6, "eth0"));
        assert!(!default_route6("", "eth1"));
        let session = ssh_server("192.0.2.7 50000 198.51.100.4 22");
        assert_eq!(session, Some(IpAddr::from([198, 51, 100, 4])));
        assert_eq!(ssh_server("nonsense"), None);
    }

    #[test]
    fn kernel_releases_are_compared_by_number() {
        assert_eq!(version("5.14.0-503.el9.x86_64"), Some((5, 14)));
        assert_eq!(version("6.18.44-fc"), Some((6, 18)));
        assert!(version("5.4.0").unwrap() < OLDEST_KERNEL);
        assert_eq!(version("weird"), None);
    }
}
