//! What SYN-ACKs by cookies offer the clients of a service: not more than its backends agree to, since a client has its
//! SYN-ACK before it has a backend.

use crate::{splice::DEFAULT_MSS, syn_cookie::offer::SynOptions};

/// What the SYN-ACKs of a service offer at most, as one word of a map, which both sides change: the lower 16 bits are
/// [`VipOffer::mss`], and above them are [`VipOffer::lacks`]. Two that change it at a time may lose one change, which is made
/// again with the next backend that agrees to less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VipOffer {
    /// Most bytes in a segment from a client; 0: as many as its network carries.
    pub mss: u16,
    /// The `LACKS_` bits.
    pub lacks: u16,
}

/// A backend has no timestamps (RFC 7323 section 3).
pub const LACKS_TIMES: u16 = 1;
/// No window scale (RFC 7323 section 2).
pub const LACKS_SCALE: u16 = 2;
/// No selective acknowledgments (RFC 2018).
pub const LACKS_SACK: u16 = 4;

/// The least segment size that clients are held to for the sake of one backend, in bytes: what every path of IPv6 carries, and
/// nearly every one of IPv4. Of a backend that takes less the connections are copied.
pub const LEAST_OFFERED_MSS: u16 = 1220;
/// The same of a service whose connections no process could copy: any.
pub const ANY_OFFERED_MSS: u16 = 1;

impl VipOffer {
    /// As the map has it.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        (self.lacks as u64) << 16 | self.mss as u64
    }

    /// That of a word of the map.
    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "parts of the word are meant"
    )]
    pub const fn from_word(word: u64) -> Self {
        Self {
            mss: word as u16,
            lacks: (word >> 16) as u16,
        }
    }

    /// The least of both, for a shared VIP. A segment size below [`LEAST_OFFERED_MSS`] does not count.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        self.and_from(other, LEAST_OFFERED_MSS)
    }

    /// The least of both, where a segment size below `least` does not count.
    #[inline(always)]
    #[must_use]
    pub const fn and_from(self, other: Self, least: u16) -> Self {
        let is_less = self.mss == 0 || other.mss < self.mss;
        Self {
            mss: if other.mss >= least && is_less {
                other.mss
            } else {
                self.mss
            },
            lacks: self.lacks | other.lacks,
        }
    }

    /// Most bytes in a segment from a client whose network carries `most`.
    #[inline(always)]
    pub const fn announced(self, most: u16) -> u16 {
        if self.mss != 0 && self.mss < most {
            self.mss
        } else {
            most
        }
    }

    /// The options that are agreed to with a client that has sent these.
    #[inline(always)]
    #[must_use]
    pub const fn agreed(self, options: SynOptions) -> SynOptions {
        let SynOptions {
            mut offer,
            mss,
            time,
        } = options;
        offer.has_sack &= self.lacks & LACKS_SACK == 0;
        if self.lacks & LACKS_SCALE != 0 {
            offer.scale = None;
        }
        let time = if self.lacks & LACKS_TIMES == 0 {
            time
        } else {
            None
        };
        SynOptions { offer, mss, time }
    }

    /// What a backend agrees to that takes segments of `mss` bytes and has sent these options to a client that has offered
    /// timestamps and a scale, or not.
    #[inline(always)]
    pub const fn of(mss: u16, options: SynOptions, has_times: bool, has_scale: bool) -> Self {
        let mut lacks = 0;
        if has_times && options.time.is_none() {
            lacks |= LACKS_TIMES;
        }
        if has_scale && options.offer.scale.is_none() {
            lacks |= LACKS_SCALE;
        }
        Self { mss, lacks }
    }
}

/// Most bytes in a segment to a backend whose SYN-ACK has this size, 0 for none (RFC 9293 section 3.7.1), on a network that
/// carries `most`.
#[inline(always)]
pub const fn taken(mss: u16, most: u16) -> u16 {
    let mss = if mss == 0 { DEFAULT_MSS } else { mss };
    if mss < most { mss } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{addr::Be32, syn_cookie::offer::SynOffer};

    const ALL: SynOptions = SynOptions {
        offer: SynOffer {
            mss_class: 7,
            has_sack: true,
            scale: Some(9),
        },
        mss: 1460,
        time: Some(Be32::new(7)),
    };

    #[test]
    fn a_word_has_all_of_it() {
        for mss in [0, 1220, 1460, u16::MAX] {
            for lacks in 0..8 {
                let offer = VipOffer { mss, lacks };
                assert_eq!(VipOffer::from_word(offer.word()), offer);
            }
        }
        // That of an earlier version.
        assert_eq!(
            VipOffer::from_word(1360),
            VipOffer {
                mss: 1360,
                lacks: 0
            }
        );
    }

    #[test]
    fn the_least_of_all_backends_is_offered() {
        let of = |mss, lacks| VipOffer { mss, lacks };
        let all = of(0, 0)
            .and(of(1400, LACKS_SACK))
            .and(of(1420, LACKS_TIMES));
        assert_eq!(all, of(1400, LACKS_SACK | LACKS_TIMES));
        for (mss, expected) in [(1300, 1300), (1220, 1220), (1219, 1400), (0, 1400)] {
            assert_eq!(all.and(of(mss, 0)).mss, expected);
        }
        for (mss, announced) in [(0, 1460), (1400, 1400), (1460, 1460), (8960, 1460)] {
            assert_eq!(of(mss, 0).announced(1460), announced);
        }
    }

    #[test]
    fn an_option_that_a_backend_lacks_is_not_agreed_to() {
        let agreed = |lacks| {
            let SynOptions { offer, time, .. } = VipOffer { mss: 0, lacks }.agreed(ALL);
            (time.is_some(), offer.scale.is_some(), offer.has_sack)
        };
        assert_eq!(agreed(0), (true, true, true));
        assert_eq!(agreed(LACKS_TIMES), (false, true, true));
        assert_eq!(agreed(LACKS_SCALE), (true, false, true));
        assert_eq!(agreed(LACKS_SACK), (true, true, false));
        assert_eq!(
            agreed(LACKS_TIMES | LACKS_SCALE | LACKS_SACK),
            (false, false, false)
        );
    }

    #[test]
    fn a_backend_lacks_what_it_was_offered_and_has_not_sent() {
        let bare = SynOptions {
            offer: SynOffer::from_bits(15),
            time: None,
            ..ALL
        };
        for (options, has_times, has_scale, lacks) in [
            (ALL, true, true, 0),
            (bare, true, true, LACKS_TIMES | LACKS_SCALE),
            (bare, false, true, LACKS_SCALE),
            (bare, true, false, LACKS_TIMES),
            (bare, false, false, 0),
        ] {
            let of = VipOffer::of(1300, options, has_times, has_scale);
            assert_eq!(of, VipOffer { mss: 1300, lacks });
        }
        assert_eq!(
            [taken(0, 1460), taken(1400, 1460), taken(9000, 1460)],
            [536, 1400, 1460]
        );
    }
}
