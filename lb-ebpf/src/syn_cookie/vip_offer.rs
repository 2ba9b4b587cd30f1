//! What SYN-ACKs to the clients of a service offer: less once a backend has agreed to less.

use lb_common::maps::vip_offer::{ANY_OFFERED_MSS, LEAST_OFFERED_MSS, VipOffer};

use crate::{maps::VIP_OFFERS, subprogram::SynBits};

/// That of a service.
#[inline(always)]
pub(super) fn of(service: u32) -> VipOffer {
    VIP_OFFERS
        .get(service)
        .map(|word| VipOffer::from_word(*word))
        .unwrap_or_default()
}

/// What is agreed to with a client of this service that has sent these options, as [`SynBits`]. A subprogram, for the instructions
/// that it takes to verify.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_agreed(service: u32, options: u64) -> u64 {
    let options = SynBits::from_raw(options).options();
    SynBits::of(options.map(|options| of(service).agreed(options))).raw()
}

/// From now on this service offers no more than the [`VipOffer`] of this word; `is_plain` is 1 of one without names, whose clients
/// no process serves. Returns 0. A subprogram, for its own stack.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn lb_lower_offer(service: u32, word: u64, is_plain: u32) -> u32 {
    if let Some(offer) = VIP_OFFERS.get_ptr_mut(service) {
        // SAFETY: a live value of an array map, aligned to eight bytes; see `VipOffer` for races.
        let known = unsafe { offer.read_volatile() };
        let least = match is_plain {
            0 => LEAST_OFFERED_MSS,
            _ => ANY_OFFERED_MSS,
        };
        let lower = VipOffer::from_word(known).and_from(VipOffer::from_word(word), least);
        // SAFETY: the same.
        unsafe { offer.write_volatile(lower.word()) };
    }
    0
}
