//! Sysctls of a cell: set, and read back.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::maps::snat::FIRST_LOCAL_PORT;

/// A key, as a path under `/proc/sys/net`, and its value.
type Setting = (String, String);

/// What every cell relies on; the keys are paths under `/proc/sys/net`.
const CELL: &[(&str, &str)] = &[
    // A cell ends packets, it never forwards one.
    ("ipv4/ip_forward", "0"),
    ("ipv6/conf/all/forwarding", "0"),
    // Replies to a client behind a router go back the way its packets came, whatever the routes are.
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    // Answer ARP only for addresses of the interface that got the request, and send it from the best of them.
    ("ipv4/conf/all/arp_ignore", "1"),
    ("ipv4/conf/all/arp_announce", "2"),
    // An announcement is taken from a station that is known already; no other fills the kernel's one
    // neighbour table.
    ("ipv4/conf/all/arp_accept", "0"),
    ("ipv4/conf/all/drop_gratuitous_arp", "0"),
    // The cell announces its addresses when its MAC is set.
    ("ipv4/conf/all/arp_notify", "1"),
    // An address that takes the place of another one of its prefix does not go with that.
    ("ipv4/conf/all/promote_secondaries", "1"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_source_route", "0"),
    ("ipv4/tcp_syncookies", "1"),
    // Each SYN-ACK to a source that does not exist sends one more ARP request for it: three, and after 7 s it
    // is forgotten. A client that is there repeats its SYN, and most send first.
    ("ipv4/tcp_synack_retries", "2"),
    // Shared VIPs listen at any port, with no capability for the low ones. No other process is there.
    ("ipv4/ip_unprivileged_port_start", "0"),
    // The end that closes first keeps the port for a minute, and checks share a thousand. With timestamps it
    // may be had again a second later (RFC 6191).
    ("ipv4/tcp_timestamps", "1"),
    ("ipv4/tcp_tw_reuse", "1"),
    // Only where the inner end needs it; see `IPV6`.
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/all/disable_ipv6", "1"),
];

/// What IPv6 is in the inner end of a cell. The last of them turns it on.
const IPV6: &[(&str, &str)] = &[
    // Nothing but the addresses that it is given, and none from a station on the link.
    ("addr_gen_mode", "1"),
    ("use_tempaddr", "0"),
    ("autoconf", "0"),
    ("accept_ra", "0"),
    ("router_solicitations", "0"),
    ("accept_redirects", "0"),
    // Below zero: no routing header at all.
    ("accept_source_route", "-1"),
    ("forwarding", "0"),
    ("proxy_ndp", "0"),
    // Its addresses are in the maps or not; a neighbour can take none of them away.
    ("accept_dad", "0"),
    ("dad_transmits", "0"),
    // As for ARP: it announces its addresses when its MAC is set, and takes unsolicited advertisements.
    ("ndisc_notify", "1"),
    ("drop_unsolicited_na", "0"),
    ("disable_ipv6", "0"),
];

/// Sets the sysctls of the calling thread's namespace, which must be a cell.
///
/// # Errors
///
/// If one cannot be written, or holds another value afterwards.
pub(super) fn set_cell() -> Result<()> {
    let mut all = of_cell();
    all.try_for_each(|(key, value)| set_if_there(&key, &value))
}

fn of_cell() -> impl Iterator<Item = Setting> {
    let fixed = CELL
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()));
    let ports = format!("{FIRST_LOCAL_PORT}\t65535");
    fixed.chain([("ipv4/ip_local_port_range".to_owned(), ports)])
}

/// The sysctls of a cell with the inner end `interface` that have other values than they were given, in words.
///
/// # Errors
///
/// If one cannot be read.
pub(super) fn changed_in_cell(interface: &str, speaks_ipv6: bool) -> Result<Vec<String>> {
    let ipv6 = speaks_ipv6.then(|| of_ipv6(interface));
    changed(
        of_cell()
            .chain(of_neighbours(interface))
            .chain(ipv6.into_iter().flatten()),
    )
}

/// As [`changed_in_cell`], of what carries frames for a cell.
///
/// # Errors
///
/// If one cannot be read.
pub(super) fn changed_outside(interface: &str) -> Result<Vec<String>> {
    changed([without_ipv6(interface)].into_iter())
}

fn changed(settings: impl Iterator<Item = Setting>) -> Result<Vec<String>> {
    let mut changed = Vec::new();
    for (key, value) in settings.filter(|(key, _)| path(key).exists()) {
        let name = format!("net/{key}");
        let found =
            fs::read_to_string(path(&key)).with_context(|| format!("read sysctl {name}"))?;
        let found = found.trim();
        if found != value {
            changed.push(format!("sysctl {name} was {found} instead of {value}"));
        }
    }
    Ok(changed)
}

/// Sets how the inner end `interface` keeps its neighbours: a backend that is gone, or has moved to another MAC
/// without an announcement, is noticed within about 2 s instead of a minute, and a station that is not known yet
/// is not added by its announcement.
///
/// # Errors
///
/// As [`set_cell`].
pub(super) fn set_neighbours(interface: &str) -> Result<()> {
    set_all(of_neighbours(interface))
}

fn of_neighbours(interface: &str) -> impl Iterator<Item = Setting> {
    let unasked = ["arp_accept", "drop_gratuitous_arp"];
    let unasked = unasked.map(|key| (format!("ipv4/conf/{interface}/{key}"), "0".to_owned()));
    unasked.into_iter().chain(of_probes("ipv4", interface))
}

/// Turns IPv6 on in the inner end `interface`, which is down, or has it already.
///
/// # Errors
///
/// As [`set_cell`]; also if the kernel has no IPv6, or the MTU has no room for it.
pub(super) fn enable_ipv6(interface: &str) -> Result<()> {
    set_all(of_ipv6(interface))
}

fn of_ipv6(interface: &str) -> impl Iterator<Item = Setting> {
    let settings = IPV6.iter().map(move |&(key, value)| {
        let key = format!("ipv6/conf/{interface}/{key}");
        (key, value.to_owned())
    });
    settings.chain(of_probes("ipv6", interface))
}

/// Turns IPv6 off on an interface: of the host, if it only carries frames for a cell, or of a cell whose
/// network has none.
///
/// # Errors
///
/// As [`set_cell`].
pub(super) fn disable_ipv6(interface: &str) -> Result<()> {
    let (key, value) = without_ipv6(interface);
    set_if_there(&key, &value)
}

fn without_ipv6(interface: &str) -> Setting {
    (
        format!("ipv6/conf/{interface}/disable_ipv6"),
        "1".to_owned(),
    )
}

/// How soon a neighbour is probed, and how often, until it is given up. Times are in milliseconds, the delay in
/// seconds.
fn of_probes(family: &str, interface: &str) -> impl Iterator<Item = Setting> {
    let settings = [
        // The kernel takes 0.5 to 1.5 times as much, by chance: each target is stale when it is used again, a
        // second later, and is probed by one frame a second as long as it answers.
        ("base_reachable_time_ms", "600"),
        ("delay_first_probe_time", "0"),
        // Two probes to the MAC that is known, one to all stations: three lost frames, or 0.9 s without an
        // answer, and the neighbour is given up.
        ("retrans_time_ms", "300"),
        ("ucast_solicit", "2"),
        ("mcast_resolicit", "1"),
        // Once. An entry cannot be forced out of the kernel's one table while it is solicited, 0.3 s for each
        // time, and SYNs to a shared VIP may have sources that do not exist. A client that is there repeats its
        // SYN after a second, and backends are solicited every second.
        ("mcast_solicit", "1"),
    ];
    let settings = settings.map(|(key, value)| {
        let key = format!("{family}/neigh/{interface}/{key}");
        (key, value.to_owned())
    });
    settings.into_iter()
}

fn set_all(mut settings: impl Iterator<Item = Setting>) -> Result<()> {
    settings.try_for_each(|(key, value)| set(&key, &value))
}

/// A kernel without IPv6 has none to disable.
fn set_if_there(key: &str, value: &str) -> Result<()> {
    if key.starts_with("ipv6/") && !path(key).exists() {
        return Ok(());
    }
    set(key, value)
}

fn set(key: &str, value: &str) -> Result<()> {
    let path = path(key);
    let name = format!("net/{key}");
    let read = || fs::read_to_string(&path).with_context(|| format!("read sysctl {name}"));
    // What it is already is not set: `all` would be set anew in each interface.
    if read()?.trim() == value {
        return Ok(());
    }
    fs::write(&path, value).with_context(|| format!("set sysctl {name} to {value}"))?;
    let found = read()?;
    ensure!(
        found.trim() == value,
        "sysctl {name}: set to {value}, but it reads {}",
        found.trim()
    );
    Ok(())
}

/// The file of a sysctl, in the namespace of the calling thread.
fn path(key: &str) -> PathBuf {
    Path::new("/proc/sys/net").join(key)
}
