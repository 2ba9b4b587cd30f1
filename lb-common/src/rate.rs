//! How often a thing may happen in a network, on one CPU: token buckets.
//!
//! Each kind has a bucket of its own, so that a flood of one keeps no other waiting, and each network has its own
//! ones, so that it harms itself alone.

use crate::pod::pod_struct;

pod_struct! {
    /// How often a thing may still happen. 8 bytes.
    pub struct Bucket {
        /// So many times.
        pub tokens: u32,
        /// Coarse time of the last look, as `Flow::last_seen`.
        pub seen: u32,
    }
}

/// How a bucket is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that come in with each unit of coarse time: 954 times as many in a second.
    pub refill: u32,
    /// The most that it holds.
    pub burst: u32,
}

impl Rate {
    #[inline(always)]
    const fn new(refill: u32, burst: u32) -> Self {
        Self { refill, burst }
    }
}

impl Bucket {
    /// Takes one token out, if there is one.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "at most the burst")]
    pub const fn take(&mut self, now: u32, rate: Rate) -> bool {
        let gained = now.wrapping_sub(self.seen) as u64 * rate.refill as u64;
        let tokens = gained + self.tokens as u64;
        let is_full = tokens > rate.burst as u64;
        self.seen = now;
        self.tokens = if is_full { rate.burst } else { tokens as u32 };
        if self.tokens == 0 {
            return false;
        }
        self.tokens -= 1;
        true
    }

    /// Whether more than half of the burst has been taken out, and not come in again.
    #[inline(always)]
    pub const fn is_low(&self, now: u32, rate: Rate) -> bool {
        let gained = now.wrapping_sub(self.seen) as u64 * rate.refill as u64;
        gained + (self.tokens as u64) < rate.burst as u64 / 2
    }
}

/// Resets, errors and replies to echo requests: about a thousand a second.
pub const REFUSALS: Rate = Rate::new(1, 1000);
/// ARP requests and neighbour solicitations that are answered: 7,600 a second. All stations of a /20 may send
/// one at once, because a VIP has just been announced.
pub const QUESTIONS: Rate = Rate::new(8, 4096);
/// Answers to the cell's own requests: as many as [`QUESTIONS`], because it sends one for each of its
/// backends, of which there are thousands, about every 5 s, and for all of them at a start.
pub const REPLIES: Rate = QUESTIONS;
/// Announcements of stations that got no request. The others are found by the cell's own requests.
pub const NOTICES: Rate = Rate::new(1, 1000);
/// Questions for groups, of which a querier sends one in two minutes (RFC 3810 section 9.2).
pub const QUERIES: Rate = Rate::new(1, 100);
/// SYNs to shared VIPs: 61,000 a second, several times what the process behind them accepts, so that a flood in the
/// network leaves its clients most of theirs. The kernel answers them by cookies then, which take no memory, and a
/// part of a CPU.
pub const SYNS: Rate = Rate::new(64, 16_384);
/// Segments to sockets of the cell from ends that it has not spoken to: as many. A new connection has a few until
/// the cell's first one; of those that were silent for long, and after an upgrade of all, each has the first here.
pub const STRANGERS: Rate = SYNS;
/// Data behind a wrong number, which no socket of the cell has, and any segment with one to a service without names: a cookie that was
/// guessed. Beyond about a thousand a second
/// a number alone opens nothing any more: of 2^24 of them one is right.
pub const GUESSES: Rate = Rate::new(1, 1000);
/// ICMP errors about segments of the cell. One is enough, and TCP does without it.
pub const ERRORS: Rate = Rate::new(1, 1000);

pod_struct! {
    /// What a CPU keeps of a network for all that is not an answer to a packet. 64 bytes.
    pub struct Rates {
        /// See [`QUESTIONS`].
        pub questions: Bucket,
        /// See [`REPLIES`].
        pub replies: Bucket,
        /// See [`NOTICES`].
        pub notices: Bucket,
        /// See [`QUERIES`].
        pub queries: Bucket,
        /// See [`SYNS`].
        pub syns: Bucket,
        /// See [`STRANGERS`].
        pub strangers: Bucket,
        /// See [`ERRORS`].
        pub errors: Bucket,
        /// See [`GUESSES`].
        pub guesses: Bucket,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bucket: &mut Bucket, now: u32, rate: Rate) -> u32 {
        let all = 0..100_000;
        all.map(|_| u32::from(bucket.take(now, rate))).sum()
    }

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        for rate in [REFUSALS, QUESTIONS, QUERIES, SYNS, STRANGERS] {
            let Rate { refill, burst } = rate;
            let mut bucket = Bucket::default();
            assert_eq!(taken(&mut bucket, 0, rate), 0, "nothing has come in yet");
            assert_eq!(taken(&mut bucket, 10, rate), 10 * refill);
            assert_eq!(taken(&mut bucket, 10, rate), 0);
            assert_eq!(taken(&mut bucket, 100_000, rate), burst);
            assert_eq!(taken(&mut bucket, 100_001, rate), refill);
            assert!(bucket.is_low(100_001 + burst / refill / 2 - 1, rate));
            assert!(!bucket.is_low(100_001 + burst / refill / 2 + 1, rate));
            bucket.seen = u32::MAX;
            assert_eq!(taken(&mut bucket, 1, rate), 2 * refill, "over the wrap");
            assert_eq!(taken(&mut bucket, 0, rate), burst, "as long ago as can be");
        }
    }
}
