//! Bytes and packets of a flow in one direction, in one word of its entry: both are counted by one addition and one
//! store, and the entry stays one cache line.
//!
//! | bits | what |
//! |---|---|
//! | 0..36 | bytes of frames |
//! | 36 | the bytes are full: 64 GiB |
//! | 37..62 | packets |
//! | 62 | the packets are full: 2^25 |
//! | 63 | no data have come in this direction, and the other bits are as below |
//!
//! Until then it is the word of a flow that waits for its backend:
//!
//! | bits | what |
//! |---|---|
//! | 0..45 | when the wait began, in microseconds of the monotonic clock; it begins anew after a year |
//! | 45..59 | bytes of frames without data |
//! | 59..63 | such frames |
//!
//! What is full is spilled: it goes over to the counts of the flow's service, backend and network at once, and to
//! what the map `SPILLED` has of the flow.

use crate::pod::pod_struct;

const PACKETS_AT: u32 = 37;
const FULL_BYTES: u64 = 1 << 36;
const FULL_PACKETS: u64 = 1 << 62;
const UNANSWERED: u64 = 1 << 63;
const WAIT_BYTES_AT: u32 = 45;
const WAIT_PACKETS_AT: u32 = 59;
const SINCE_MASK: u64 = (1 << WAIT_BYTES_AT) - 1;
const MAX_WAIT_BYTES: u64 = (1 << (WAIT_PACKETS_AT - WAIT_BYTES_AT)) - 1;
const MAX_WAIT_PACKETS: u64 = 15;
const BYTES_MASK: u64 = (1 << PACKETS_AT) - 1;

/// The word of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic(u64);

/// A number of bytes and of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of frames.
    pub bytes: u64,
    /// Frames.
    pub packets: u64,
}

/// Places of the map `SPILLED`.
pub const SPILL_PLACES: u32 = 4096;

/// The place of a flow in the map `SPILLED`.
#[inline(always)]
pub const fn spill_place(id: u32) -> u32 {
    id % SPILL_PLACES
}

pod_struct! {
    /// What a flow has spilled, at its [`spill_place`]. 40 bytes. Of two such flows with the same place, which each have
    /// 64 GiB or 33 million packets, it is the later one that has spilled: the other is shown without.
    pub struct Spilled {
        /// Id of the flow.
        pub id: u32,
        /// Generation of its entry.
        pub generation: u32,
        /// Bytes from the client.
        pub bytes_request: u64,
        /// Packets from the client.
        pub packets_request: u64,
        /// Bytes from the backend.
        pub bytes_reply: u64,
        /// Packets from the backend.
        pub packets_reply: u64,
    }
}

impl Spilled {
    /// With so much more from the client and the backend.
    #[inline(always)]
    pub const fn plus(self, sent: Amount, received: Amount) -> Self {
        Self {
            id: self.id,
            generation: self.generation,
            bytes_request: self.bytes_request.wrapping_add(sent.bytes),
            packets_request: self.packets_request.wrapping_add(sent.packets),
            bytes_reply: self.bytes_reply.wrapping_add(received.bytes),
            packets_reply: self.packets_reply.wrapping_add(received.packets),
        }
    }
}

impl Traffic {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// The word of an entry.
    #[inline(always)]
    pub const fn from_raw(word: u64) -> Self {
        Self(word)
    }

    /// As it stands in an entry.
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// One packet with so many bytes.
    #[inline(always)]
    pub const fn one(bytes: u64) -> Self {
        Self::NONE.plus(bytes)
    }

    /// One packet with so many bytes more: less than 64 GiB.
    #[inline(always)]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes + (1 << PACKETS_AT)))
    }

    /// Of the replies of a flow that waits for its backend since this time of the monotonic clock, in microseconds.
    #[inline(always)]
    pub const fn unanswered_since(us: u64) -> Self {
        Self(us & SINCE_MASK | UNANSWERED)
    }

    /// Whether it waits still.
    #[inline(always)]
    pub const fn is_unanswered(self) -> bool {
        self.0 & UNANSWERED != 0
    }

    /// How long it has waited at this time, in microseconds.
    #[inline(always)]
    pub const fn waited(self, now_us: u64) -> u64 {
        now_us.wrapping_sub(self.0) & SINCE_MASK
    }

    /// The same with a frame without data, of so many bytes, while it waits; none where there is no room for it.
    #[inline(always)]
    pub const fn wait(self, bytes: u64) -> Option<Self> {
        let so_far = self.amount();
        let has_room = so_far.packets < MAX_WAIT_PACKETS && so_far.bytes + bytes <= MAX_WAIT_BYTES;
        match has_room {
            false => None,
            true => Some(Self(
                self.0 + (bytes << WAIT_BYTES_AT) + (1 << WAIT_PACKETS_AT),
            )),
        }
    }

    /// What the next packet adds to: the wait is over.
    #[inline(always)]
    pub const fn begun(self) -> Self {
        match self.is_unanswered() {
            false => self,
            true => {
                let Amount { bytes, packets } = self.amount();
                Self(packets << PACKETS_AT | bytes)
            }
        }
    }

    /// How much there is.
    #[inline(always)]
    pub const fn amount(self) -> Amount {
        match self.is_unanswered() {
            false => Amount {
                bytes: self.0 & BYTES_MASK,
                packets: self.0 >> PACKETS_AT,
            },
            true => Amount {
                bytes: self.0 >> WAIT_BYTES_AT & MAX_WAIT_BYTES,
                packets: self.0 >> WAIT_PACKETS_AT & MAX_WAIT_PACKETS,
            },
        }
    }

    /// Whether something is to be spilled; never of one that is unanswered.
    #[inline(always)]
    pub const fn is_full(self) -> bool {
        self.0 & (FULL_BYTES | FULL_PACKETS) != 0
    }

    /// What is spilled, and what stays.
    #[inline(always)]
    pub const fn spill(self) -> (Amount, Self) {
        let word = self.begun().0;
        let (bytes, packets) = (word & FULL_BYTES, word & FULL_PACKETS);
        let amount = Amount {
            bytes,
            packets: packets >> PACKETS_AT,
        };
        (amount, Self(word & !bytes & !packets))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn amount(bytes: u64, packets: u64) -> Amount {
        Amount { bytes, packets }
    }

    #[test]
    fn bytes_and_packets_are_counted_apart() {
        let word = Traffic::one(60).plus(1514).plus(0);
        assert_eq!(word.amount(), amount(1574, 3));
        assert_eq!(Traffic::from_raw(word.raw()), word);
        assert!(!word.is_unanswered() && !word.is_full());
    }

    #[test]
    fn what_waits_has_a_time_and_no_data() {
        // More than a year after the clock began.
        let since = (3 << WAIT_BYTES_AT) + 1_234_567;
        let word = Traffic::unanswered_since(since);
        assert!(word.is_unanswered() && !Traffic::one(60).is_unanswered());
        assert_eq!(word.waited(since + 20_000), 20_000);
        assert_eq!(
            Traffic::unanswered_since(SINCE_MASK).waited(SINCE_MASK + 5),
            5
        );
        assert_eq!(word.amount(), Amount::default());
        assert_eq!(word.begun().plus(74).amount(), amount(74, 1));
        let later = word.wait(66).unwrap().wait(1514).unwrap();
        assert_eq!(
            (later.amount(), later.waited(since + 7)),
            (amount(1580, 2), 7)
        );
        assert_eq!(later.begun().plus(100).amount(), amount(1680, 3));
        assert!(!later.begun().is_unanswered());
    }

    #[test]
    fn what_waits_takes_few_packets() {
        let mut word = Traffic::unanswered_since(SINCE_MASK);
        for packets in 1..=MAX_WAIT_PACKETS {
            word = word.wait(66).unwrap();
            assert_eq!(word.amount(), amount(66 * packets, packets));
        }
        assert_eq!(word.wait(0), None);
        assert_eq!(word.waited(SINCE_MASK), 0);
        let word = Traffic::unanswered_since(0).wait(MAX_WAIT_BYTES).unwrap();
        assert_eq!(word.wait(1), None);
        assert_eq!(word.begun().amount(), amount(MAX_WAIT_BYTES, 1));
    }

    /// A word that spills whenever it is full loses nothing, at the greatest sizes and counts.
    #[test]
    fn nothing_is_lost_by_spilling() {
        for (bytes, packets) in [(65_549, 3 << 20), (0, 3 << 25), (1514, 5 << 24)] {
            let (mut word, mut spilled) = (Traffic::NONE, Amount::default());
            for _ in 0..packets {
                word = word.plus(bytes);
                if word.is_full() {
                    let (more, rest) = word.spill();
                    assert!(more != Amount::default() && !rest.is_full());
                    spilled.bytes += more.bytes;
                    spilled.packets += more.packets;
                    word = rest;
                }
            }
            let rest = word.amount();
            let sum = amount(spilled.bytes + rest.bytes, spilled.packets + rest.packets);
            assert_eq!(sum, amount(bytes * packets, packets));
        }
    }
}
