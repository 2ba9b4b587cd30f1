//! The keys of SYN cookies, in the data plane's memory.

use std::{
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use lb_common::maps::{
    cookies::{COOKIE_KEYS, CookieKey, CookieKeys},
    flow::TIME_SHIFT,
};

use super::{
    cookie_secret::{CookieSecret, epoch_at, rest_of_epoch},
    flows::{coarse_now, monotonic_us},
    mapped::MappedArray,
};

/// The mapped array `COOKIES`. One process writes it at a time.
#[derive(Debug)]
pub struct Cookies {
    keys: MappedArray<CookieKeys>,
    secret: CookieSecret,
}

/// Places of words in the record.
const EPOCH: usize = 0;
const BEAT: usize = 1;
/// Of those of eight bytes: the first of the key of an even epoch, and of an odd one.
const EVEN: usize = 1;
const ODD: usize = 3;
const ZERO_TIME: usize = 5;
/// Of those of four bytes.
const OFFSET: usize = 12;
const _: () = assert!(std::mem::offset_of!(CookieKeys, offset) == OFFSET * size_of::<u32>());
/// How far the offset may be from that of the wall clock, in units of coarse time: 100 ms.
const SLACK: u32 = 100_000_000 >> TIME_SHIFT;

impl Cookies {
    /// Maps the array that is pinned in `folder`, for the keys of this secret.
    ///
    /// # Errors
    ///
    /// If the pin is missing, or the kernel refuses the mapping.
    pub fn open(folder: &Path, secret: CookieSecret) -> Result<Self> {
        let keys = MappedArray::open(folder, "COOKIES")?;
        Ok(Self { keys, secret })
    }

    fn epoch(&self) -> u32 {
        let epoch = self.keys.word(COOKIE_KEYS, EPOCH);
        epoch.map_or(0, |epoch| epoch.load(Ordering::Acquire))
    }

    /// Goes on to the epoch of this moment, if there is another one; how long it still is.
    ///
    /// The key of the epoch before is the one that SYNs were answered by until now, also where no process has gone on for a while, or
    /// the wall clock was set: so no client that is connecting is refused.
    pub fn follow(&self, time: SystemTime) -> Duration {
        self.set_clock();
        let (now, before) = (epoch_at(time), self.epoch());
        let key = self.secret.key(now);
        let read = self.keys.read(COOKIE_KEYS).unwrap_or_default();
        if before != now || read.key(now) != key {
            let last = match before {
                0 => self.secret.key(now.wrapping_sub(1)),
                epoch => read.key(epoch),
            };
            // In two steps: no SYN is answered by a key while that is written.
            self.begin(now.wrapping_sub(1), last);
            self.begin(now, key);
        }
        rest_of_epoch(time)
    }

    /// Has the data plane's clock go by the wall clock.
    fn set_clock(&self) {
        if let Some(word) = self.keys.word(COOKIE_KEYS, OFFSET) {
            let (known, offset) = (word.load(Ordering::Relaxed), offset());
            // Or the clocks of clients would go back and forth with what it takes to read ours.
            if offset.wrapping_sub(known).wrapping_add(SLACK) > 2 * SLACK {
                word.store(offset, Ordering::Relaxed);
            }
        }
    }

    /// Begins an epoch: its key first.
    fn begin(&self, epoch: u32, CookieKey { low, high }: CookieKey) {
        let first = if epoch & 1 == 0 { EVEN } else { ODD };
        for (place, half) in [(first, low), (first + 1, high)] {
            if let Some(word) = self.keys.long_word(COOKIE_KEYS, place) {
                word.store(half, Ordering::Relaxed);
            }
        }
        if let Some(word) = self.keys.word(COOKIE_KEYS, EPOCH) {
            word.store(epoch, Ordering::Release);
        }
    }

    /// Notes that a process takes hellos, and what time it is.
    pub fn beat(&self) {
        if let Some(word) = self.keys.long_word(COOKIE_KEYS, ZERO_TIME) {
            word.store(zero_time(), Ordering::Relaxed);
        }
        if let (Some(beat), Ok(now)) = (self.keys.word(COOKIE_KEYS, BEAT), coarse_now()) {
            beat.store(now, Ordering::Relaxed);
        }
    }
}

/// Unix time in milliseconds at the zero of the monotonic clock.
fn zero_time() -> u64 {
    u64::try_from(zero().as_millis()).unwrap_or_default()
}

/// The same in units of coarse time, as far as 32 bits have it.
fn offset() -> u32 {
    let coarse = zero().as_nanos() >> TIME_SHIFT & u128::from(u32::MAX);
    u32::try_from(coarse).unwrap_or_default()
}

/// Unix time at the zero of the monotonic clock.
fn zero() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let running = Duration::from_micros(monotonic_us());
    since.unwrap_or_default().saturating_sub(running)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataplane::cookie_secret::EPOCH_TIME;

    fn cookies() -> Cookies {
        Cookies {
            keys: MappedArray::anonymous(1),
            secret: CookieSecret::new(b"of the group"),
        }
    }

    fn at(epoch: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(epoch * EPOCH_TIME.as_secs() + 4)
    }

    #[test]
    fn an_epoch_has_a_key_of_its_own_and_the_one_before_keeps_its() {
        let cookies = cookies();
        let read = || cookies.keys.read(COOKIE_KEYS).unwrap();
        for epoch in 7..12 {
            let rest = cookies.follow(at(epoch));
            assert_eq!(rest, EPOCH_TIME - Duration::from_secs(4));
            let (now, epoch) = (read(), u32::try_from(epoch).unwrap());
            assert_eq!(now.epoch, epoch);
            for epoch in [epoch, epoch - 1] {
                assert_eq!(now.key(epoch), cookies.secret.key(epoch));
            }
            cookies.follow(at(u64::from(epoch)));
            assert_eq!(read(), now, "the same epoch");
        }
    }

    /// After a time without a process, and where the wall clock was set.
    #[test]
    fn the_last_key_is_good_for_one_more_epoch_whenever_that_was() {
        for (last, next) in [(7, 8), (7, 9), (7, 20), (8, 20), (20, 7), (20, 8), (20, 19)] {
            let cookies = cookies();
            cookies.follow(at(last));
            cookies.follow(at(next));
            let now = cookies.keys.read(COOKIE_KEYS).unwrap();
            let [last, next] = [last, next].map(|epoch| u32::try_from(epoch).unwrap());
            assert_eq!(now.epoch, next);
            assert_eq!(now.key(next), cookies.secret.key(next), "{last} {next}");
            assert_eq!(now.key(next - 1), cookies.secret.key(last), "{last} {next}");
        }
    }

    #[test]
    fn another_secret_leaves_the_last_key_of_the_one_before() {
        let first = cookies();
        first.follow(at(7));
        let key = first.secret.key(7);
        let second = Cookies {
            secret: CookieSecret::new(b"another one"),
            ..first
        };
        second.follow(at(7));
        let now = second.keys.read(COOKIE_KEYS).unwrap();
        assert_eq!((now.epoch, now.key(7)), (7, second.secret.key(7)));
        assert_eq!(now.key(6), key);
    }

    #[test]
    fn a_beat_says_what_time_it_is() {
        let cookies = cookies();
        let read = || cookies.keys.read(COOKIE_KEYS).unwrap();
        assert_eq!((read().beat, read().zero_time, read().offset), (0, 0, 0));
        cookies.beat();
        cookies.follow(at(7));
        let now = coarse_now().unwrap();
        assert!(now.wrapping_sub(read().beat) < 1000);
        let noted = Duration::from_millis(read().zero_time) + Duration::from_micros(monotonic_us());
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(real.abs_diff(noted) < Duration::from_secs(1), "{noted:?}");
        // Coarse time with the offset is the wall clock's.
        let coarse = u32::try_from(real.as_nanos() >> TIME_SHIFT & u128::from(u32::MAX)).unwrap();
        let group = now.wrapping_add(read().offset);
        assert!(coarse.wrapping_sub(group).wrapping_add(1000) < 2000);
        // It stays while the wall clock goes on as it does.
        let before = read().offset;
        cookies.follow(at(7));
        assert_eq!(read().offset, before);
        let word = cookies.keys.word(COOKIE_KEYS, OFFSET).unwrap();
        word.store(before.wrapping_add(10_000), Ordering::Relaxed);
        cookies.follow(at(7));
        assert!(read().offset.abs_diff(before) <= SLACK);
    }
}
