//! Sysctls of a cell: set, and read back.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::maps::snat::FIRST_LOCAL_PORT;

/// What every cell relies on; the keys are paths under `/proc/sys/net`.
const CELL: &[(&str, &str)] = &[
    // A cell ends packets, it never forwards one.
    ("ipv4/ip_forward", "0"),
    ("ipv6/conf/all/forwarding", "0"),
    // Replies to a client behind a router come back the way they came, whatever the routes say.
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    // Speak ARP only for addresses of the interface that is asked, and from the best of them.
    ("ipv4/conf/all/arp_ignore", "1"),
    ("ipv4/conf/all/arp_announce", "2"),
    // Who says unasked where he is is heard where he is known already, and nobody fills the kernel's one
    // neighbour table with others.
    ("ipv4/conf/all/arp_accept", "0"),
    ("ipv4/conf/all/drop_gratuitous_arp", "0"),
    // The cell tells where its addresses are when its MAC is set.
    ("ipv4/conf/all/arp_notify", "1"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_source_route", "0"),
    ("ipv4/tcp_syncookies", "1"),
    // Shared VIPs listen at any port, with no capability for the low ones. Nobody else is there.
    ("ipv4/ip_unprivileged_port_start", "0"),
    // Who closes first keeps the port for a minute, and checks share a thousand. With timestamps it may be
    // had again a second later (RFC 6191).
    ("ipv4/tcp_timestamps", "1"),
    ("ipv4/tcp_tw_reuse", "1"),
    // Only where the inner end needs it, which is said there.
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv6/conf/all/disable_ipv6", "1"),
];

/// What IPv6 is in the inner end of a cell. The last of them turns it on.
const IPV6: &[(&str, &str)] = &[
    // Nothing but the addresses that it is given, from nobody on the link.
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
    // As for ARP: it tells where its addresses are when its MAC is set, and hears who says so unasked.
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
    for (key, value) in CELL {
        set_if_there(key, value)?;
    }
    set(
        "ipv4/ip_local_port_range",
        &format!("{FIRST_LOCAL_PORT}\t65535"),
    )
}

/// Sets how the inner end `interface` keeps its neighbours: a backend that moved to another MAC
/// without a word is noticed within about 15 s instead of a minute, and one that nobody has asked for
/// is not kept.
///
/// # Errors
///
/// As [`set_cell`].
pub(super) fn set_neighbours(interface: &str) -> Result<()> {
    for key in ["arp_accept", "drop_gratuitous_arp"] {
        set(&format!("ipv4/conf/{interface}/{key}"), "0")?;
    }
    set_probes("ipv4", interface)
}

/// Turns IPv6 on in the inner end `interface`, which is down, or has it already.
///
/// # Errors
///
/// As [`set_cell`]; also if the kernel has no IPv6, or the MTU has no room for it.
pub(super) fn enable_ipv6(interface: &str) -> Result<()> {
    for (key, value) in IPV6 {
        set(&format!("ipv6/conf/{interface}/{key}"), value)?;
    }
    set_probes("ipv6", interface)
}

/// Turns IPv6 off on an interface: of the host, if it only carries frames for a cell, or of a cell whose
/// network has none.
///
/// # Errors
///
/// As [`set_cell`].
pub(super) fn disable_ipv6(interface: &str) -> Result<()> {
    set_if_there(&format!("ipv6/conf/{interface}/disable_ipv6"), "1")
}

/// Sets how soon a neighbour that was not heard of is asked for, in milliseconds and seconds.
fn set_probes(family: &str, interface: &str) -> Result<()> {
    for (key, value) in [
        ("base_reachable_time_ms", "5000"),
        ("delay_first_probe_time", "1"),
    ] {
        set(&format!("{family}/neigh/{interface}/{key}"), value)?;
    }
    Ok(())
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
