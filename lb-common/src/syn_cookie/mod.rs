//! SYN cookies: the number of our SYN-ACK has in it all that the client has offered, and a part that only the owner of
//! a key can make; so nothing is remembered of a client until it has shown that it receives what is sent to it
//! (Bernstein, "SYN cookies"; RFC 4987 section 3.6).
//!
//! The number, from its highest bit on: 12 bits of a MAC of the tuple and the [`SynOffer`], 12 bits of one of these and of
//! the client's number, and the 8 bits of the offer. A segment that acknowledges a number with both parts right is the
//! first one of its connection. One with the first part right may be another one of a connection that was answered so,
//! and gets no reset. One in 4,096 of those has the second part right as well, and is not taken for the first one where the client has
//! timestamps: our clock begins elsewhere for each number of a client.
//!
//! A key is that of an epoch; the one before stays good, so a number is for at least as long as an epoch takes.

#![expect(
    clippy::cast_possible_truncation,
    reason = "parts of hashes and numbers are meant, and sizes of headers are small"
)]

pub mod answer;
pub mod handshake;
pub mod offer;
pub mod payload;
mod siphash;

use self::{offer::SynOffer, siphash::SipHash};
use crate::maps::{
    cookies::{CookieKey, CookieKeys},
    flow::{PackedKey, TIME_SHIFT},
};

/// How long the timestamp of a SYN-ACK is good, in units of coarse time: two epochs.
pub const MAX_AGE: u32 = ((128 * 1_000_000_000_u64) >> TIME_SHIFT) as u32;
/// How far a clock may seem to be off that belongs to this number of a client, in units of coarse time: somewhat more than an hour.
/// One that begins elsewhere is within that in one of 512 cases.
const MAX_STEP: u32 = 1 << 22;
/// How far the clock of the box that has sent it may be ahead of ours: one second.
pub const MAX_AHEAD: u32 = (1_000_000_000_u64 >> TIME_SHIFT) as u32;

/// Where the parts of a number begin.
const OF_TUPLE_SHIFT: u32 = 20;
const OF_NUMBER_SHIFT: u32 = 8;
const PART: u32 = 0xfff;

/// In a word that the first part is of this is clear, in one that the second part is of it is set.
const WITH_NUMBER: u64 = 1 << 8;

/// What the MACs of a tuple and an offer are, with one key.
#[derive(Clone, Copy)]
struct Macs {
    /// The state behind the tuple.
    tuple: SipHash,
    offer: u8,
}

impl Macs {
    #[inline(always)]
    const fn new(key: CookieKey, tuple: PackedKey, offer: u8) -> Self {
        let hash = SipHash::new([key.low, key.high]);
        Self {
            tuple: hash.absorb(tuple.ends).absorb(tuple.rest),
            offer,
        }
    }

    /// 32 bits, of which the number has the first 12.
    #[inline(always)]
    const fn of_tuple(self) -> u32 {
        self.tuple.absorb(self.offer as u64).finish() as u32
    }

    /// 64 bits of a client whose SYN has this number, of which ours has the first 12; the upper half is where the clock begins.
    #[inline(always)]
    const fn of_number(self, isn: u32) -> u64 {
        let word = (isn as u64) << 32 | WITH_NUMBER | self.offer as u64;
        self.tuple.absorb(word).finish()
    }

    #[inline(always)]
    const fn number(self, of_number: u64) -> u32 {
        (self.of_tuple() & PART) << OF_TUPLE_SHIFT
            | (of_number as u32 & PART) << OF_NUMBER_SHIFT
            | self.offer as u32
    }
}

/// What a SYN is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Our sequence number.
    pub number: u32,
    /// Our clock: a coarse time that begins elsewhere for each tuple and number, so that it shows no client how long we run.
    pub time: u32,
}

impl Cookie {
    /// That of a client whose SYN has this number (host order), `now`, a coarse time.
    #[inline(always)]
    pub const fn new(
        keys: &CookieKeys,
        tuple: PackedKey,
        isn: u32,
        offer: SynOffer,
        now: u32,
    ) -> Self {
        let macs = Macs::new(keys.key(keys.epoch), tuple, offer.bits());
        let of_number = macs.of_number(isn);
        Self {
            number: macs.number(of_number),
            time: now.wrapping_add(clock(of_number, keys)),
        }
    }
}

/// What is added to the coarse time.
#[inline(always)]
const fn clock(of_number: u64, keys: &CookieKeys) -> u32 {
    ((of_number >> 32) as u32).wrapping_add(keys.offset)
}

/// What a number is that a segment acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieStanding {
    /// None that was given to this tuple lately.
    Wrong,
    /// One of this tuple, but the segment's own number is not the first one behind the SYN: it may be a later segment
    /// of a connection that was answered by a cookie.
    Later,
    /// That of the SYN which this segment follows at once.
    Right {
        /// What is added to the coarse time in our timestamps for this tuple and number.
        clock: u32,
    },
}

/// Judges the number that a segment of this tuple acknowledges, less one. `isn` is that of a SYN that would stand right
/// before the segment.
#[inline(always)]
pub const fn judge(keys: &CookieKeys, tuple: PackedKey, isn: u32, number: u32) -> CookieStanding {
    let now = judge_in(keys, keys.epoch, tuple, isn, number);
    if let CookieStanding::Right { .. } = now {
        return now;
    }
    // One in 4,096 numbers of the epoch before looks like a later segment's of this one.
    match judge_in(keys, keys.epoch.wrapping_sub(1), tuple, isn, number) {
        CookieStanding::Wrong => now,
        before => before,
    }
}

#[inline(always)]
const fn judge_in(
    keys: &CookieKeys,
    epoch: u32,
    tuple: PackedKey,
    isn: u32,
    number: u32,
) -> CookieStanding {
    let key = keys.key(epoch);
    let macs = Macs::new(key, tuple, number as u8);
    if (macs.of_tuple() ^ number >> OF_TUPLE_SHIFT) & PART != 0 {
        return CookieStanding::Wrong;
    }
    let of_number = macs.of_number(isn);
    if (of_number as u32 ^ number >> OF_NUMBER_SHIFT) & PART != 0 {
        return CookieStanding::Later;
    }
    CookieStanding::Right {
        clock: clock(of_number, keys),
    }
}

/// Whether a client may echo this timestamp of ours now, a coarse time: it was sent not long ago.
#[inline(always)]
pub const fn is_echo(clock: u32, echo: u32, now: u32) -> bool {
    let age = now.wrapping_add(clock).wrapping_sub(echo);
    age.wrapping_add(MAX_AHEAD) <= MAX_AGE + MAX_AHEAD
}

/// Whether this timestamp was echoed from a SYN-ACK to this number of a client, and not from one to another, whose clock began
/// elsewhere: the wall clock may have been set by an hour meanwhile.
#[inline(always)]
pub const fn is_of_number(clock: u32, echo: u32, now: u32) -> bool {
    let age = now.wrapping_add(clock).wrapping_sub(echo);
    age.wrapping_add(MAX_STEP) <= 2 * MAX_STEP
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        addr::{Be16, Be32},
        maps::flow::FlowKey,
    };

    const KEYS: CookieKeys = CookieKeys {
        epoch: 8,
        beat: 0,
        keys: [CookieKey { low: 1, high: 2 }, CookieKey { low: 3, high: 4 }],
        zero_time: 0,
        offset: 77,
        _reserved: 0,
    };
    const KEY: FlowKey = FlowKey {
        client: Be32::new(0xc0a8_cb32),
        vip: Be32::new(0xc0a8_cb6e),
        client_port: Be16::new(40_000),
        vip_port: Be16::new(6443),
        network: 3,
        protocol: 6,
    };
    const OFFER: SynOffer = SynOffer {
        mss_class: 7,
        has_sack: true,
        scale: Some(7),
    };

    fn cookie(keys: &CookieKeys, now: u32) -> Cookie {
        Cookie::new(keys, KEY.packed(), 0xffff_fff0, OFFER, now)
    }

    fn judge_it(keys: &CookieKeys, key: FlowKey, isn: u32, number: u32) -> CookieStanding {
        judge(keys, key.packed(), isn, number)
    }

    #[test]
    fn a_number_is_right_for_its_tuple_its_syn_and_its_offer() {
        let number = cookie(&KEYS, 0).number;
        let judged = |key, isn, number| judge_it(&KEYS, key, isn, number);
        assert!(matches!(
            judged(KEY, 0xffff_fff0, number),
            CookieStanding::Right { .. }
        ));
        assert_eq!(SynOffer::from_bits(number as u8), OFFER);
        let others = [
            FlowKey {
                client: Be32::new(1),
                ..KEY
            },
            FlowKey {
                vip: Be32::new(1),
                ..KEY
            },
            FlowKey {
                client_port: Be16::new(1),
                ..KEY
            },
            FlowKey {
                vip_port: Be16::new(1),
                ..KEY
            },
            FlowKey { network: 1, ..KEY },
        ];
        for other in others {
            assert_eq!(
                judged(other, 0xffff_fff0, number),
                CookieStanding::Wrong,
                "{other:?}"
            );
        }
        for bit in 0..8 {
            let forged = number ^ 1 << bit;
            assert_eq!(
                judged(KEY, 0xffff_fff0, forged),
                CookieStanding::Wrong,
                "offer {bit}"
            );
        }
        for bit in 8..20 {
            let forged = number ^ 1 << bit;
            assert_eq!(
                judged(KEY, 0xffff_fff0, forged),
                CookieStanding::Later,
                "number {bit}"
            );
        }
        for bit in 20..32 {
            let forged = number ^ 1 << bit;
            assert_eq!(
                judged(KEY, 0xffff_fff0, forged),
                CookieStanding::Wrong,
                "tuple {bit}"
            );
        }
    }

    /// The second segment of a hello is none that a reset is for, and none that is taken for the first one.
    #[test]
    fn a_later_segment_is_known_as_such() {
        let number = cookie(&KEYS, 0).number;
        let later = |bytes| judge_it(&KEYS, KEY, 0xffff_fff0_u32.wrapping_add(bytes), number);
        let right = (1..3000).filter(|bytes| later(*bytes) != CookieStanding::Later);
        // One in 4096 looks like a first one.
        assert!(right.count() < 6);
    }

    #[test]
    fn a_number_is_right_for_two_epochs() {
        let number = cookie(&KEYS, 0).number;
        let mut keys = KEYS;
        keys.turn(CookieKey { low: 5, high: 6 });
        assert_eq!(keys.epoch, 9);
        assert!(matches!(
            judge_it(&keys, KEY, 0xffff_fff0, number),
            CookieStanding::Right { .. }
        ));
        let next = cookie(&keys, 0).number;
        assert_ne!(next, number);
        keys.turn(CookieKey { low: 7, high: 8 });
        assert_eq!(
            judge_it(&keys, KEY, 0xffff_fff0, number),
            CookieStanding::Wrong
        );
        assert!(matches!(
            judge_it(&keys, KEY, 0xffff_fff0, next),
            CookieStanding::Right { .. }
        ));
    }

    /// Also one that looks like a later segment's in the epoch that has begun.
    #[test]
    fn no_turn_of_the_keys_hides_a_right_number() {
        const ISN: u32 = 0xffff_fff0;
        let mut keys = KEYS;
        keys.turn(CookieKey { low: 5, high: 6 });
        let mut hidden = 0;
        for port in 0..u16::MAX {
            let key = FlowKey {
                client_port: Be16::new(port),
                ..KEY
            };
            let Cookie { number, .. } = Cookie::new(&KEYS, key.packed(), ISN, OFFER, 0);
            let now = judge_in(&keys, keys.epoch, key.packed(), ISN, number);
            hidden += u32::from(now == CookieStanding::Later);
            let right = judge_it(&keys, key, ISN, number);
            assert!(matches!(right, CookieStanding::Right { .. }), "{port}");
        }
        // One in 4,096.
        assert!((4..40).contains(&hidden), "{hidden}");
    }

    #[test]
    fn a_clock_goes_on_and_an_echo_grows_old() {
        let Cookie { number, time } = cookie(&KEYS, 1000);
        let CookieStanding::Right { clock } = judge_it(&KEYS, KEY, 0xffff_fff0, number) else {
            panic!("not right");
        };
        assert_eq!(clock.wrapping_add(1000), time);
        assert_eq!(cookie(&KEYS, 1007).time, time.wrapping_add(7));
        assert!(is_echo(clock, time, 1000) && is_echo(clock, time, 1000 + MAX_AGE));
        assert!(!is_echo(clock, time, 1001 + MAX_AGE));
        assert!(is_echo(clock, time.wrapping_add(MAX_AHEAD), 1000));
        let ahead = time.wrapping_add(MAX_AHEAD + 1);
        assert!(!is_echo(clock, ahead, 1000), "of the future");
        // Of a box whose clocks began elsewhere, and whose offset makes up for it.
        let other = CookieKeys {
            offset: KEYS.offset + 400,
            ..KEYS
        };
        let CookieStanding::Right { clock } = judge_it(&other, KEY, 0xffff_fff0, number) else {
            panic!("not right");
        };
        assert!(is_echo(clock, time, 600) && !is_echo(clock, time, 601 + MAX_AGE));
    }

    /// What passes for the first segment has another clock, nearly always.
    #[test]
    fn each_number_of_a_client_has_a_clock_of_its_own() {
        let Cookie { number, time } = cookie(&KEYS, 1000);
        let mut passed = 0;
        let mut taken = 0;
        for bytes in 0..2_000_000_u32 {
            let isn = 0xffff_fff0_u32.wrapping_add(bytes);
            if let CookieStanding::Right { clock } = judge_it(&KEYS, KEY, isn, number) {
                passed += 1;
                taken += u32::from(is_of_number(clock, time, 1000));
            }
        }
        assert!((420..560).contains(&passed), "{passed}");
        assert!((1..8).contains(&taken), "{taken}");
        let other = FlowKey {
            client_port: Be16::new(7),
            ..KEY
        };
        let other = Cookie::new(&KEYS, other.packed(), 0xffff_fff0, OFFER, 1000);
        assert_ne!(other.time, time);
    }
}
