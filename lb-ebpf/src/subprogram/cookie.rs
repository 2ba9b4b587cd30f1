//! What a SYN offers, what the number is that a segment acknowledges, and its timestamps.

use lb_common::{
    addr::Be32,
    splice::SegmentTimes,
    syn_cookie::{
        CookieStanding,
        offer::{SynOffer, SynOptions},
    },
};

/// A [`CookieStanding`]: its kind in the upper half, the clock of a right one in the lower half.
#[derive(Clone, Copy)]
pub(crate) struct Judged(u64);

impl Judged {
    const WRONG: u64 = 0;
    const LATER: u64 = 1 << 32;
    const RIGHT: u64 = 2 << 32;

    #[inline(always)]
    pub(crate) const fn of(standing: CookieStanding) -> Self {
        Self(match standing {
            CookieStanding::Wrong => Self::WRONG,
            CookieStanding::Later => Self::LATER,
            CookieStanding::Right { clock } => Self::RIGHT | clock as u64,
        })
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn standing(self) -> CookieStanding {
        if self.0 >= Self::RIGHT {
            CookieStanding::Right {
                clock: self.0 as u32,
            }
        } else if self.0 >= Self::LATER {
            CookieStanding::Later
        } else {
            CookieStanding::Wrong
        }
    }
}

/// [`SynOptions`]: the sender's clock in the lower half, the bits of the offer above it, then whether there is a clock,
/// and the segment size. Of a SYN without a header there are none.
#[derive(Clone, Copy)]
pub(crate) struct SynBits(u64);

impl SynBits {
    const OFFER_SHIFT: u32 = 32;
    const HAS_TIME: u64 = 1 << 40;
    const IS_THERE: u64 = 1 << 41;
    const MSS_SHIFT: u32 = 48;

    #[inline(always)]
    pub(crate) fn of(options: Option<SynOptions>) -> Self {
        let Some(options) = options else {
            return Self(0);
        };
        let (has_time, time) = match options.time {
            Some(time) => (Self::HAS_TIME, time.raw()),
            None => (0, 0),
        };
        let mss = u64::from(options.mss) << Self::MSS_SHIFT;
        let offer = u64::from(options.offer.bits()) << Self::OFFER_SHIFT;
        Self(Self::IS_THERE | mss | has_time | offer | u64::from(time))
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn options(self) -> Option<SynOptions> {
        if self.0 & Self::IS_THERE == 0 {
            return None;
        }
        let time = Be32::from_raw(self.0 as u32);
        Some(SynOptions {
            offer: SynOffer::from_bits((self.0 >> Self::OFFER_SHIFT) as u8),
            mss: (self.0 >> Self::MSS_SHIFT) as u16,
            time: if self.0 & Self::HAS_TIME != 0 {
                Some(time)
            } else {
                None
            },
        })
    }
}

/// [`SegmentTimes`]: the sender's clock above the echo. Two zeros are none.
#[derive(Clone, Copy)]
pub(crate) struct TimesBits(u64);

impl TimesBits {
    #[inline(always)]
    pub(crate) const fn of(times: Option<SegmentTimes>) -> Self {
        Self(match times {
            Some(SegmentTimes { value, echo }) => (value as u64) << 32 | echo as u64,
            None => 0,
        })
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn times(self) -> Option<SegmentTimes> {
        if self.0 == 0 {
            return None;
        }
        Some(SegmentTimes {
            value: (self.0 >> 32) as u32,
            echo: self.0 as u32,
        })
    }
}
