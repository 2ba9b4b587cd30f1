//! Addresses and ports of the host: those that `lb` must not take from it, and those that it must
//! have.

use std::{collections::BTreeSet, fs, io, net::IpAddr};

use anyhow::{Context as _, Result};
use nix::ifaddrs::getifaddrs;

use crate::config::{Config, Network, Snat};

/// VIPs and SNAT addresses that are the host's own: XDP would take its traffic, SSH included. And
/// those of networks with `address: host` that are not on their interface, unless that `lacks`.
pub(super) fn own_addresses(config: &Config, lacks: impl Fn(&str) -> bool) -> Vec<String> {
    let host: BTreeSet<(String, IpAddr)> = addresses().collect();
    let mut problems = BTreeSet::new();
    for network in &config.networks {
        let Network {
            name, interface, ..
        } = network;
        for (what, address) in our_addresses(config, network) {
            let is_vip_only = !network.snat.iter().any(|snat| snat.address == address);
            if !network.host && host.iter().any(|(_, own)| *own == address) {
                problems.insert(format!(
                    "{what}: {address} is an address of this host; give lb one that nothing else has"
                ));
            }
            let is_there = match is_vip_only {
                // Its machines may reach the host by any of its addresses.
                true => host.iter().any(|(_, own)| *own == address),
                false => host.contains(&(interface.clone(), address)),
            };
            if network.host && !is_there && !lacks(name) {
                problems.insert(format!(
                    "{what}: this host does not have {address} on interface {interface}, which \
                     network {name} with `address: host` needs"
                ));
            }
        }
    }
    problems.into_iter().collect()
}

/// The VIPs and SNAT addresses of a network, each with the object that has it.
fn our_addresses(config: &Config, network: &Network) -> Vec<(String, IpAddr)> {
    let snat = network.snat.iter();
    let snat = snat.map(|snat| (format!("network {}: snat", network.name), snat.address));
    let services = config.services.iter();
    let services = services.filter(|service| service.network == network.name);
    let vips = services.flat_map(|service| {
        let what = format!("service {}: listen", service.name);
        let listen = service.listen.iter();
        listen.map(move |listen| (what.clone(), listen.address))
    });
    snat.chain(vips).collect()
}

/// SNAT ports that the host may give to a connection of its own: XDP would take its replies.
pub(super) fn ephemeral_ports(config: &Config) -> Result<Vec<String>> {
    let mut snats = Vec::new();
    for network in config.networks.iter().filter(|network| network.host) {
        snats.extend(network.snat.iter().map(|snat| (&network.name, snat)));
    }
    if snats.is_empty() {
        return Ok(Vec::new());
    }
    let read = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::read_to_string(&path).with_context(|| format!("read {path}"))
    };
    let (range, reserved) = (
        read("ip_local_port_range")?,
        read("ip_local_reserved_ports")?,
    );
    let clash = |snat: &Snat| first_ephemeral(snat, &range, &reserved);
    let problems = snats.into_iter().filter_map(|(network, snat)| {
        let port = clash(snat)?;
        let last = snat.first_port + (snat.ports - 1);
        Some(format!(
            "network {network}: snat: the host may use port {port} of {} itself (sysctl \
             net.ipv4.ip_local_port_range is {}); use other ports, or reserve them: sysctl -w \
             net.ipv4.ip_local_reserved_ports={}-{last}",
            snat.address,
            range.trim().replace('\t', " "),
            snat.first_port,
        ))
    });
    Ok(problems.collect())
}

/// SNAT ports of host networks on which a process of the host listens: XDP would take what is for them.
pub(super) fn listeners(config: &Config) -> Vec<String> {
    let mut listening = BTreeSet::new();
    for (protocol, state) in [("tcp", "0A"), ("tcp6", "0A"), ("udp", "07"), ("udp6", "07")] {
        let table = fs::read_to_string(format!("/proc/thread-self/net/{protocol}"));
        let ports = listening_ports(&table.unwrap_or_default(), state);
        listening.extend(ports.into_iter().map(|port| (port, protocol)));
    }
    let mut problems = Vec::new();
    for network in config.networks.iter().filter(|network| network.host) {
        for snat in &network.snat {
            let ours = snat.first_port..=snat.first_port + (snat.ports - 1);
            let clash = listening.iter().find(|(port, _)| ours.contains(port));
            problems.extend(clash.map(|(port, protocol)| {
                format!(
                    "network {}: snat: a process of this host listens on {protocol} port {port}, \
                     which is among the ports of {}; use other ports (`ss -lntup` names it)",
                    network.name, snat.address
                )
            }));
        }
    }
    problems
}

/// Local ports of the sockets in `state` in a table of `/proc/net`.
fn listening_ports(table: &str, state: &str) -> Vec<u16> {
    let sockets = table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (local, _, found) = (columns.next()?, columns.next()?, columns.next()?);
        let (_, port) = local.rsplit_once(':')?;
        (found == state).then_some(u16::from_str_radix(port, 16).ok()?)
    });
    sockets.collect()
}

/// The first port of `snat` inside the host's ephemeral `range` and not `reserved`, both as the
/// sysctls write them: `first last`, and a list of ports and ranges.
fn first_ephemeral(snat: &Snat, range: &str, reserved: &str) -> Option<u16> {
    let mut ends = range
        .split_ascii_whitespace()
        .filter_map(|end| end.parse().ok());
    let (first, last): (u16, u16) = (ends.next()?, ends.next()?);
    let reserved: Vec<(u16, u16)> = reserved
        .trim()
        .split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        })
        .collect();
    let is_reserved = |port| {
        reserved
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&port))
    };
    let snat_last = snat.first_port.saturating_add(snat.ports - 1);
    (snat.first_port.max(first)..=snat_last.min(last)).find(|&port| !is_reserved(port))
}

/// The interfaces that have an address.
pub(crate) fn interfaces_with(address: IpAddr) -> impl Iterator<Item = String> {
    let address = address.to_canonical();
    addresses().filter_map(move |(interface, own)| (own == address).then_some(interface))
}

/// Interface and address of every address of the host.
pub(super) fn addresses() -> impl Iterator<Item = (String, IpAddr)> {
    read_addresses().into_iter().flatten()
}

/// The same.
///
/// # Errors
///
/// If the kernel does not say.
pub(crate) fn read_addresses() -> io::Result<impl Iterator<Item = (String, IpAddr)>> {
    let all = getifaddrs()?;
    let named = all.filter_map(|found| {
        let storage = found.address?;
        let v4 = storage.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        let v6 = || storage.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()));
        // An address with a label (`eth0:1`) is one of its interface all the same.
        let interface = found.interface_name.split(':').next().unwrap_or_default();
        Some((interface.to_owned(), v4.or_else(v6)?))
    });
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listening_sockets_are_read_from_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue
   0: 00000000:55C6 00000000:0000 0A 00000000:00000000 00:00000000
   1: 0100007F:4E20 0100007F:9C40 01 00000000:00000000 00:00000000
   2: 00000000000000000000000000000000:7530 00000000000000000000000000000000:0000 0A x
";
        assert_eq!(listening_ports(table, "0A"), [0x55c6, 30_000]);
        assert_eq!(listening_ports(table, "07"), Vec::<u16>::new());
        assert_eq!(listening_ports("", "0A"), Vec::<u16>::new());
    }

    #[test]
    fn a_port_that_the_host_may_take_is_found() {
        let snat = |first_port, ports| Snat {
            address: IpAddr::from([192, 168, 126, 1]),
            first_port,
            ports,
        };
        let range = "32768\t60999\n";
        let clash = |snat: Snat, reserved| first_ephemeral(&snat, range, reserved);
        assert_eq!(
            clash(snat(20_000, 12_768), "\n"),
            None,
            "ends in front of the range"
        );
        assert_eq!(clash(snat(20_000, 12_769), "\n"), Some(32_768));
        assert_eq!(clash(snat(61_000, 4_536), "\n"), None, "begins behind it");
        assert_eq!(clash(snat(40_000, 100), "40000-40098\n"), Some(40_099));
        assert_eq!(
            clash(snat(40_000, 100), "22,40000-40050,40051-40099\n"),
            None
        );
    }
}
