//! Sysctls of a cell: set, and read back.

use std::{fs, io, path::Path};

use anyhow::{Context as _, Result, ensure};
use lb_common::maps::snat::FIRST_LOCAL_PORT;

/// What every cell relies on; the keys are paths under `/proc/sys/net`.
const CELL: &[(&str, &str)] = &[
    // A cell ends packets, it never forwards one.
    ("ipv4/ip_forward", "0"),
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
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// Sets the sysctls of the calling thread's namespace, which must be a cell.
///
/// # Errors
///
/// If one cannot be written, or holds another value afterwards.
pub(super) fn set_cell() -> Result<()> {
    for (key, value) in CELL {
        set(key, value)?;
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
    for (key, value) in [
        ("neigh", "base_reachable_time_ms", "5000"),
        ("neigh", "delay_first_probe_time", "1"),
        ("conf", "arp_accept", "0"),
        ("conf", "drop_gratuitous_arp", "0"),
    ]
    .map(|(kind, key, value)| (format!("ipv4/{kind}/{interface}/{key}"), value))
    {
        set(&key, value)?;
    }
    Ok(())
}

/// Turns IPv6 off on an interface of the host that only carries frames for a cell.
///
/// # Errors
///
/// As [`set_cell`].
pub(super) fn disable_ipv6(interface: &str) -> Result<()> {
    set(&format!("ipv6/conf/{interface}/disable_ipv6"), "1")
}

fn set(key: &str, value: &str) -> Result<()> {
    let path = Path::new("/proc/sys/net").join(key);
    let name = format!("net/{key}");
    match fs::write(&path, value) {
        // A kernel without IPv6 has none to disable.
        Err(error) if error.kind() == io::ErrorKind::NotFound && key.starts_with("ipv6/") => {
            return Ok(());
        }
        result => result.with_context(|| format!("set sysctl {name} to {value}"))?,
    }
    let found = fs::read_to_string(&path).with_context(|| format!("read sysctl {name}"))?;
    ensure!(
        found.trim() == value,
        "sysctl {name}: set to {value}, but it reads {}",
        found.trim()
    );
    Ok(())
}
