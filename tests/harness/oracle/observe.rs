//! What the kernel says about a host, in its own words: links and their counters, its IP stack,
//! its packet filter.

use std::net::IpAddr;

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::netns::Netns;

/// One interface.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The XDP program on it.
    pub xdp: Option<Xdp>,
    /// Packets received, as the driver counts them: before XDP decides.
    pub rx_packets: u64,
}

/// An attached XDP program.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Xdp {
    /// Whether the driver runs it, before the kernel makes a packet buffer.
    pub native: bool,
    /// Its id, new with every load.
    pub program: u64,
}

/// The links of a namespace, with counters and programs.
///
/// # Errors
///
/// When `ip` fails or changed its form.
pub fn links(netns: &Netns) -> Result<Vec<Link>> {
    let text = netns.run("ip -j -d -s link show")?;
    let raw: Vec<RawLink> = serde_json::from_str(&text).context("read `ip -j -d -s link show`")?;
    Ok(raw.into_iter().map(Link::from).collect())
}

/// One link by name.
///
/// # Errors
///
/// When there is none.
pub fn link(netns: &Netns, name: &str) -> Result<Link> {
    links(netns)?
        .into_iter()
        .find(|link| link.name == name)
        .with_context(|| format!("no {name} in {}", netns.name()))
}

/// Packets that each queue of an interface has given to its XDP program, as the driver counts them.
///
/// # Errors
///
/// When `ethtool` fails.
pub fn xdp_packets(netns: &Netns, interface: &str) -> Result<Vec<u64>> {
    by_queue(netns, interface, "_xdp_packets")
}

/// Packets that XDP sent out of a veth, and for which the ring at its other end had no place.
///
/// # Errors
///
/// When `ethtool` fails.
pub fn ring_drops(netns: &Netns, interface: &str) -> Result<u64> {
    let drops = by_queue(netns, interface, "_xdp_xmit_errors")?;
    Ok(drops.iter().sum())
}

/// What a driver counts under names that end so, one for each queue.
fn by_queue(netns: &Netns, interface: &str, end: &str) -> Result<Vec<u64>> {
    let text = netns.run(&format!("ethtool -S {interface}"))?;
    let lines = text.lines().filter_map(|line| line.trim().split_once(": "));
    let ours = lines.filter(|(name, _)| name.ends_with(end));
    ours.map(|(_, count)| {
        count
            .parse()
            .with_context(|| format!("a count of {interface}"))
    })
    .collect()
}

/// IPv4 packets that the namespace's own stack received so far (`Ip: InReceives`).
///
/// # Errors
///
/// When the kernel's table has no such column.
pub fn ip_in_receives(netns: &Netns) -> Result<u64> {
    snmp(netns, "Ip: ", "InReceives")
}

/// Echo replies that the namespace's own stack received so far.
///
/// # Errors
///
/// When the kernel's table has no such column.
pub fn echo_replies(netns: &Netns) -> Result<u64> {
    snmp(netns, "Icmp: ", "InEchoReps")
}

/// TCP connections of the namespace's own stack that ended by a reset of either end, and resets that it
/// sent.
///
/// # Errors
///
/// As for [`ip_in_receives`].
pub fn tcp_resets(netns: &Netns) -> Result<u64> {
    Ok(snmp(netns, "Tcp: ", "EstabResets")? + snmp(netns, "Tcp: ", "OutRsts")?)
}

/// TCP connections of the namespace's own stack that stood and then ended at once: by a reset of either end.
///
/// # Errors
///
/// As for [`ip_in_receives`].
pub fn tcp_broken(netns: &Netns) -> Result<u64> {
    snmp(netns, "Tcp: ", "EstabResets")
}

/// Selective acknowledgments that the namespace's own stack got of bytes that it had not sent, or that were
/// acknowledged already.
///
/// # Errors
///
/// As for [`ip_in_receives`].
pub fn sacks_discarded(netns: &Netns) -> Result<u64> {
    let table = netns.run("cat /proc/net/netstat")?;
    column(&table, "TcpExt: ", "TCPSACKDiscard")
}

/// Segments whose checksum is wrong that the stack of `netns` has dropped.
///
/// # Errors
///
/// When it has no such counter.
pub fn wrong_checksums(netns: &Netns) -> Result<u64> {
    snmp(netns, "Tcp: ", "InCsumErrors")
}

/// Segments that the TCP of `netns` has sent once more.
///
/// # Errors
///
/// When it has no such counter.
pub fn segments_repeated(netns: &Netns) -> Result<u64> {
    snmp(netns, "Tcp: ", "RetransSegs")
}

/// A count of the kernel's stack.
fn snmp(netns: &Netns, protocol: &str, name: &str) -> Result<u64> {
    column(&netns.run("cat /proc/net/snmp")?, protocol, name)
}

/// One column of the row of a protocol.
fn column(table: &str, protocol: &str, name: &str) -> Result<u64> {
    let mut rows = table.lines().filter_map(|line| line.strip_prefix(protocol));
    let (names, values) = (
        rows.next().with_context(|| format!("{protocol}no names"))?,
        rows.next().with_context(|| format!("{protocol}no row"))?,
    );
    let column = names.split(' ').position(|found| found == name);
    let column = column.with_context(|| format!("{protocol}no {name}"))?;
    let value = values.split(' ').nth(column).context("a short row")?;
    value
        .parse()
        .with_context(|| format!("{name} is {value:?}"))
}

/// IPv6 packets that the namespace's own stack received so far, also those that it then discards
/// because it has no IPv6.
///
/// # Errors
///
/// When the kernel's table has no such line.
pub fn ip6_in_receives(netns: &Netns) -> Result<u64> {
    let table = netns.run("cat /proc/net/snmp6")?;
    let line = table
        .lines()
        .find_map(|line| line.strip_prefix("Ip6InReceives"))
        .context("no Ip6InReceives")?;
    line.trim()
        .parse()
        .with_context(|| format!("Ip6InReceives is {line:?}"))
}

/// What the namespace has learnt of the way to `to`: how large a packet may be. `None` while it goes
/// by its interface and its routes.
///
/// # Errors
///
/// When it has no route.
pub fn path_mtu(netns: &Netns, to: impl Into<IpAddr>) -> Result<Option<u32>> {
    let to = to.into();
    let text = netns.run(&format!("ip route get {to}"))?;
    let mut words = text.split_ascii_whitespace();
    if !words.any(|word| word == "mtu") {
        return Ok(None);
    }
    let mtu = words.find(|word| *word != "lock").context("an MTU")?;
    let mtu = mtu.parse().with_context(|| format!("MTU {mtu:?}"))?;
    Ok(Some(mtu))
}

/// The nftables rules of the namespace; empty when there are none.
///
/// # Errors
///
/// When `nft` fails.
pub fn nft_rules(netns: &Netns) -> Result<String> {
    Ok(netns.run("nft list ruleset")?.trim().to_owned())
}

/// The IPv4 addresses of the namespace except loopback's, one line each.
///
/// # Errors
///
/// When `ip` fails.
pub fn addresses(netns: &Netns) -> Result<Vec<String>> {
    let text = netns.run("ip -4 -o addr show")?;
    let lines = text.lines().filter(|line| !line.contains(" lo "));
    Ok(lines.map(str::to_owned).collect())
}

#[derive(Deserialize)]
struct RawLink {
    ifname: String,
    xdp: Option<RawXdp>,
    stats64: RawStats,
}

#[derive(Deserialize)]
struct RawXdp {
    mode: u8,
    prog: Option<RawProgram>,
}

#[derive(Deserialize)]
struct RawProgram {
    id: u64,
}

#[derive(Deserialize)]
struct RawStats {
    rx: RawCounters,
}

#[derive(Deserialize)]
struct RawCounters {
    packets: u64,
}

impl From<RawLink> for Link {
    fn from(raw: RawLink) -> Self {
        /// `XDP_ATTACHED_DRV` of linux/if_link.h.
        const DRIVER: u8 = 1;
        let RawLink {
            ifname,
            xdp,
            stats64,
        } = raw;
        Self {
            name: ifname,
            xdp: xdp.and_then(|RawXdp { mode, prog }| {
                prog.map(|RawProgram { id }| Xdp {
                    native: mode == DRIVER,
                    program: id,
                })
            }),
            rx_packets: stats64.rx.packets,
        }
    }
}
