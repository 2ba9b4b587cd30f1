//! The segment sizes that clients of shared VIPs are held to, as SYN-ACKs by cookies have them.

use std::{path::Path, sync::Arc};

use anyhow::Result;

use super::mapped::MappedArray;

/// The mapped array `VIP_MSS`.
#[derive(Clone, Debug)]
pub struct VipMss(Arc<MappedArray<u64>>);

impl VipMss {
    /// Maps the array that is pinned in `folder`, with what backends took for an earlier process.
    ///
    /// # Errors
    ///
    /// If the pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self(Arc::new(MappedArray::open(folder, "VIP_MSS")?)))
    }

    /// From now on SYN-ACKs for the service with this id announce what its clients' network carries.
    pub fn forget(&self, service: u16) {
        self.0.write(service.into(), 0);
    }

    /// From now on SYN-ACKs for the service with this id announce no larger segments.
    pub fn limit(&self, service: u16, mss: u16) {
        let known = self.0.read(service.into()).unwrap_or_default();
        if known == 0 || u64::from(mss) < known {
            self.0.write(service.into(), mss.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_size_counts() {
        let sizes = VipMss(Arc::new(MappedArray::anonymous(3)));
        for (mss, expected) in [(1400, 1400), (1420, 1400), (1300, 1300)] {
            sizes.limit(2, mss);
            assert_eq!(sizes.0.read(2), Some(expected));
        }
        assert_eq!(sizes.0.read(1), Some(0));
        sizes.forget(2);
        assert_eq!(sizes.0.read(2), Some(0));
        sizes.limit(3, 1300);
    }
}
