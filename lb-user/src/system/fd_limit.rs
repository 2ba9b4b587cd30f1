//! How many descriptors the kernel lets this process have, and how many of them checks and shared VIPs may
//! have.
//!
//! An eighth is for checks, five eighths are for shared VIPs, less what is open already when they begin. What
//! is left is for all that must go on whatever clients do: the admin socket, files, interfaces.

use std::{fs, sync::OnceLock};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that a process may have by default: assumed where the limit cannot be raised.
const DEFAULT_DESCRIPTORS: u64 = 1024;

/// The most that checks may have open.
pub(crate) fn of_checks() -> usize {
    all() / 8
}

/// The most that shared VIPs may have open beside what is open now.
pub(crate) fn of_shared_vips() -> usize {
    (all() / 8 * 5).saturating_sub(open())
}

/// All that this process may have: its hard limit, to which the first call raises the soft one.
fn all() -> usize {
    static ALL: OnceLock<usize> = OnceLock::new();
    *ALL.get_or_init(|| {
        let most = raise().unwrap_or_else(|error| {
            tracing::warn!("the limit of open files stays as it is: {error}");
            DEFAULT_DESCRIPTORS
        });
        usize::try_from(most).unwrap_or(usize::MAX)
    })
}

fn raise() -> nix::Result<u64> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    Ok(most)
}

/// How many are open.
fn open() -> usize {
    // Where this cannot be read hardly any are.
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_counts() {
        let before = of_shared_vips();
        let files: Vec<_> = (0..100)
            .map(|_| fs::File::open("/dev/null").unwrap())
            .collect();
        // Other tests open and close some meanwhile.
        assert!(open() >= files.len());
        assert!(of_shared_vips() < before + files.len());
        assert!(of_checks() + before < all());
    }
}
