//! A NIC of either host, and what can be wrong with it.

use std::io;

use anyhow::{Context as _, Error, Result, ensure};
use lb_user::network::link::{self, Link};
use nix::errno::Errno;

/// The largest frames have as much behind their Ethernet header, in bytes.
const MTU: u32 = 1500;

/// Looks up a NIC of the calling thread's namespace.
///
/// # Errors
///
/// When there is none, or it is too small for the largest frames.
pub(super) fn find(name: &str) -> Result<Link> {
    let link = link::with_netlink(async |handle| link::find(&handle, name).await)?;
    let link = link.with_context(|| format!("this host has no interface {name}"))?;
    ensure!(
        link.mtu >= MTU,
        "{name} has an MTU of {}, and the largest frames of the bench need {MTU}",
        link.mtu
    );
    Ok(link)
}

/// Says why a NIC takes no XDP program.
pub(super) fn refused(name: &str, error: Error) -> Error {
    let mut causes = error.chain();
    let cause = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
    let code = cause.and_then(io::Error::raw_os_error).map(Errno::from_raw);
    let why = match code {
        Some(Errno::EOPNOTSUPP) => "its driver has no native XDP, which the generator needs",
        Some(Errno::EBUSY | Errno::EEXIST) => "it has an XDP program already",
        _ => "its driver refuses native XDP, as many do with an MTU above 3498",
    };
    error.context(format!("{name}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: Errno) -> String {
        let error = io::Error::from_raw_os_error(code as i32);
        let error = Error::from(error).context("attach back");
        format!("{:#}", refused("eth5", error))
    }

    #[test]
    fn a_nic_that_takes_no_program_is_named_with_the_reason() {
        let none = said(Errno::EOPNOTSUPP);
        assert!(
            none.starts_with("eth5: its driver has no native XDP"),
            "{none}"
        );
        assert!(none.contains("attach back"), "{none}");
        assert!(said(Errno::EBUSY).contains("already"));
        assert!(said(Errno::EINVAL).contains("MTU"));
    }
}
