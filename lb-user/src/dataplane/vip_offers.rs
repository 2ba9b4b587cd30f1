//! What SYN-ACKs by cookies offer the clients of services.

use std::{path::Path, sync::Arc};

use anyhow::Result;
use lb_common::maps::vip_offer::VipOffer;

use super::mapped::MappedArray;

/// The mapped array `VIP_OFFERS`.
#[derive(Clone, Debug)]
pub struct VipOffers(Arc<MappedArray<u64>>);

impl VipOffers {
    /// Maps the array that is pinned in `folder`, with what backends agreed to for an earlier process.
    ///
    /// # Errors
    ///
    /// If the pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self(Arc::new(MappedArray::open(folder, "VIP_OFFERS")?)))
    }

    /// From now on SYN-ACKs for the service with this id offer just this.
    pub fn set(&self, service: u16, offer: VipOffer) {
        if self.of(service) != offer {
            self.0.write(service.into(), offer.word());
        }
    }

    /// From now on they offer no more than this; a segment size below `least` does not count.
    pub fn lower(&self, service: u16, offer: VipOffer, least: u16) {
        self.set(service, self.of(service).and_from(offer, least));
    }

    fn of(&self, service: u16) -> VipOffer {
        VipOffer::from_word(self.0.read(service.into()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use lb_common::maps::vip_offer::{LACKS_SACK, LACKS_TIMES, LEAST_OFFERED_MSS};

    use super::*;

    #[test]
    fn the_least_offer_counts_until_another_one_is_set() {
        let offers = VipOffers(Arc::new(MappedArray::anonymous(3)));
        let offer = |mss, lacks| VipOffer { mss, lacks };
        for (backend, expected) in [
            (offer(1400, 0), offer(1400, 0)),
            (offer(1420, LACKS_TIMES), offer(1400, LACKS_TIMES)),
            (
                offer(1300, LACKS_SACK),
                offer(1300, LACKS_TIMES | LACKS_SACK),
            ),
        ] {
            offers.lower(2, backend, LEAST_OFFERED_MSS);
            assert_eq!(offers.of(2), expected);
        }
        assert_eq!(offers.of(1), VipOffer::default());
        offers.set(2, VipOffer::default());
        assert_eq!(offers.of(2), VipOffer::default());
        // No such service.
        offers.lower(3, offer(1300, 0), LEAST_OFFERED_MSS);
    }
}
