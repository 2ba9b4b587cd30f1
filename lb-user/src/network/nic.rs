//! NICs: their settings while our program runs on them, and how they were before.
//!
//! A NIC that strips VLAN tags would make a tenant's frames look untagged, one that filters VLANs
//! drops those of tenants, and one that joins frames makes what no switch would have sent.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use nix::net::if_::if_nametoindex;

use super::offload;

/// What must be off on every NIC, by kernel name, and what it does if it stays on. Stripped service
/// tags would hide the tag behind them as well.
const OFF: [(&str, Effect); 4] = [
    ("rx-vlan-hw-parse", Effect::HidesTags),
    ("rx-vlan-stag-hw-parse", Effect::HidesTags),
    ("rx-vlan-filter", Effect::DropsVlans),
    ("rx-lro", Effect::Joins),
];
/// What must also be off where the program runs in the kernel's stack: frames are joined before it.
const OFF_IN_GENERIC_MODE: [(&str, Effect); 2] =
    [("rx-gro", Effect::Joins), ("rx-gro-hw", Effect::Joins)];

/// What a feature does that stays on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    HidesTags,
    DropsVlans,
    Joins,
}

impl Effect {
    /// Why a NIC with it cannot carry tagged networks, if it cannot.
    const fn refuses_tags(self) -> Option<&'static str> {
        match self {
            Self::HidesTags => Some("XDP does not see VLAN tags"),
            Self::DropsVlans => Some("it drops the frames of VLANs that the host does not have"),
            Self::Joins => None,
        }
    }
}

/// Drivers whose frames may come straight from a kernel's stack: of this host, of another one's
/// guests, or of the hypervisor.
const OF_STACKS: [&str; 5] = ["veth", "bridge", "tun", "virtio_net", "vif"];

/// Whether frames on `interface` may have checksums that a kernel's stack has left to it.
///
/// # Errors
///
/// If the interface does not exist.
pub fn leaves_checksums(interface: &str) -> Result<bool> {
    let driver = offload::driver(interface)?;
    Ok(OF_STACKS.iter().any(|stack| *stack == driver))
}

/// The file that keeps what was on before, in the folder `runtime`.
fn record(runtime: &Path, ifindex: u32) -> PathBuf {
    runtime.join(format!("nic-{ifindex}"))
}

/// Switches off on `interface` what XDP cannot work with, and remembers it for [`restore_all`].
///
/// # Errors
///
/// If a setting that changes VLAN tags cannot be switched off and the NIC has `tagged` networks.
pub fn prepare(
    runtime: &Path,
    interface: &str,
    ifindex: u32,
    tagged: bool,
    generic: bool,
) -> Result<()> {
    let more: &[_] = if generic { &OFF_IN_GENERIC_MODE } else { &[] };
    for &(name, effect) in OFF.iter().chain(more) {
        let feature = offload::feature(interface, name)?;
        let Some(feature) = feature.filter(|feature| feature.active) else {
            continue;
        };
        if feature.changeable {
            // Remembered first: a crash in between restores what did not change.
            remember(&record(runtime, ifindex), interface, name)?;
            offload::set(interface, name, false)?;
            tracing::info!(interface, feature = name, "switched off");
        } else if let (true, Some(why)) = (tagged, effect.refuses_tags()) {
            bail!(
                "interface {interface} cannot carry tagged networks: it does not let {name} be \
                 switched off, so {why}"
            );
        } else {
            tracing::warn!(
                interface,
                feature = name,
                "stays on: the driver does not let it off"
            );
        }
    }
    Ok(())
}

/// Puts back what [`prepare`] switched off, on every NIC that is still there.
///
/// # Errors
///
/// If a record cannot be read. What a NIC does not take back is only logged.
pub fn restore_all(runtime: &Path) -> Result<()> {
    restore_unused(runtime, &BTreeSet::new())
}

/// As [`restore_all`], but for the NICs whose index is in `used`.
///
/// # Errors
///
/// As [`restore_all`].
pub fn restore_unused(runtime: &Path, used: &BTreeSet<u32>) -> Result<()> {
    let entries = match fs::read_dir(runtime) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("read {}", runtime.display())),
    };
    for entry in entries {
        let name = entry?.file_name();
        let ifindex = name.to_str().and_then(|name| name.strip_prefix("nic-"));
        let ifindex: Option<u32> = ifindex.and_then(|ifindex| ifindex.parse().ok());
        if let Some(ifindex) = ifindex.filter(|ifindex| !used.contains(ifindex)) {
            restore(&record(runtime, ifindex), ifindex)?;
        }
    }
    Ok(())
}

/// Puts back what the record says; what the NIC does not take back stays in it.
fn restore(record: &Path, ifindex: u32) -> Result<()> {
    let text = fs::read_to_string(record).with_context(|| format!("read {}", record.display()))?;
    let mut left = String::new();
    for line in text.lines() {
        let Some((interface, feature)) = line.split_once(' ') else {
            continue;
        };
        if if_nametoindex(interface) != Ok(ifindex) {
            // The NIC is gone, and another one may have its name.
            continue;
        }
        if let Err(error) = offload::set(interface, feature, true) {
            tracing::warn!("{feature} of {interface} stays off: {error:#}");
            left.push_str(line);
            left.push('\n');
        }
    }
    if left.is_empty() {
        return fs::remove_file(record).with_context(|| format!("remove {}", record.display()));
    }
    fs::write(record, left).with_context(|| format!("write {}", record.display()))
}

fn remember(record: &Path, interface: &str, feature: &str) -> Result<()> {
    let before = fs::read_to_string(record).unwrap_or_default();
    let line = format!("{interface} {feature}");
    if before.lines().any(|known| known == line) {
        return Ok(());
    }
    fs::write(record, format!("{before}{line}\n"))
        .with_context(|| format!("write {}", record.display()))
}
