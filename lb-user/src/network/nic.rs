//! Their settings while our program runs on them, and how they were before.
//!
//! A NIC that strips VLAN tags would make a tenant's frames look untagged, one that filters VLANs drops those
//! of tenants, and one that joins frames makes what no switch would have sent. One with IPv6 must receive the
//! groups of addresses that the host does not have.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use nix::net::if_::{if_indextoname, if_nametoindex};

use super::{link, offload};

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

/// In a record what has been switched on; all else was switched off.
const ALL_GROUPS: &str = "allmulticast";

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
            tracing::info!(
                interface,
                feature = name,
                "switched off a feature of the NIC"
            );
        } else if let (true, Some(why)) = (tagged, effect.refuses_tags()) {
            bail!(
                "interface {interface} cannot carry tagged networks: it does not let {name} be \
                 switched off, so {why}"
            );
        } else {
            tracing::warn!(
                interface,
                feature = name,
                "the feature stays on: the driver does not let it be switched off"
            );
        }
    }
    Ok(())
}

/// Has a NIC receive what is sent to any group, and remembers it for [`restore_all`]: the solicitation for an
/// IPv6 address goes to a group that is made of it (RFC 4291 section 2.7.1).
///
/// # Errors
///
/// If the kernel refuses.
pub fn hear_all_groups(runtime: &Path, ifindex: u32) -> Result<()> {
    let hears = link::with_netlink(async |handle| link::hears_all_groups(&handle, ifindex).await)?;
    if hears {
        return Ok(());
    }
    let interface = if_indextoname(ifindex).context("the name of the interface")?;
    let interface = interface.to_string_lossy();
    remember(&record(runtime, ifindex), &interface, ALL_GROUPS)?;
    set_all_groups(ifindex, true)?;
    tracing::info!(interface = %interface, feature = ALL_GROUPS, "switched on a feature of the NIC");
    Ok(())
}

fn set_all_groups(ifindex: u32, all: bool) -> Result<()> {
    link::with_netlink(async |handle| link::hear_all_groups(&handle, ifindex, all).await)
}

/// Puts back what [`prepare`] and [`hear_all_groups`] have changed, on every NIC that is still there.
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

/// Puts back what is in the record; what the NIC does not take back stays in it.
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
        let restored = match feature {
            ALL_GROUPS => set_all_groups(ifindex, false),
            _ => offload::set(interface, feature, true),
        };
        if let Err(error) = restored {
            tracing::warn!("{feature} of {interface} stays as it is: {error:#}");
            left.push_str(line);
            left.push('\n');
        }
    }
    if left.is_empty() {
        return fs::remove_file(record).with_context(|| format!("remove {}", record.display()));
    }
    crate::system::files::write(record, left.as_bytes())
}

fn remember(record: &Path, interface: &str, feature: &str) -> Result<()> {
    let before = fs::read_to_string(record).unwrap_or_default();
    let line = format!("{interface} {feature}");
    if before.lines().any(|known| known == line) {
        return Ok(());
    }
    crate::system::files::write(record, format!("{before}{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};
    use rtnetlink::LinkVeth;

    use super::*;
    use crate::network::namespace;

    /// With no room for another one, what a NIC was like before is still known.
    #[test]
    fn a_record_that_cannot_be_written_is_as_before() {
        let folder = tempfile::tempdir().unwrap();
        let record = record(folder.path(), 3);
        remember(&record, "n1", "rx-lro").unwrap();
        let before = fs::read(&record).unwrap();
        // Where it is written first.
        fs::create_dir(folder.path().join("nic-3.new")).unwrap();
        assert!(remember(&record, "n1", "rx-gro").is_err());
        assert_eq!(fs::read(&record).unwrap(), before);
    }

    #[test]
    #[ignore = "needs CAP_NET_ADMIN and CAP_SYS_ADMIN"]
    fn a_nic_hears_all_groups_until_it_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let runtime = folder.path();
        let hears = |ifindex| {
            link::with_netlink(async |handle| link::hears_all_groups(&handle, ifindex).await)
        };
        let all = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let nics = link::with_netlink(async |handle| {
                let pair = LinkVeth::new("n1", "n2").build();
                handle.link().add(pair).execute().await?;
                let one = link::find(&handle, "n1").await?.unwrap();
                Ok([one.ifindex, one.peer.unwrap()])
            })?;
            // Another process has set it on one of them before.
            set_all_groups(nics[1], true)?;
            for _twice in 0..2 {
                for nic in nics {
                    hear_all_groups(runtime, nic)?;
                    assert!(hears(nic)?);
                }
            }
            restore_unused(runtime, &BTreeSet::from(nics))?;
            assert!(hears(nics[0])?);
            restore_all(runtime)?;
            assert_eq!((hears(nics[0])?, hears(nics[1])?), (false, true));
            Ok(())
        };
        namespace::on_own_thread(all).unwrap();
        assert_eq!(fs::read_dir(runtime).unwrap().count(), 0);
    }
}
