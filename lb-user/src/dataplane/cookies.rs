//! The keys of SYN cookies, in the data plane's memory.

use std::{
    io,
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use lb_common::maps::cookies::{COOKIE_KEYS, CookieKey, CookieKeys};
use rustix::rand::{GetRandomFlags, getrandom};

use super::{
    flows::{coarse_now, monotonic_us},
    mapped::MappedArray,
};

/// The mapped array `COOKIES`. One process writes it at a time.
#[derive(Debug)]
pub struct Cookies {
    keys: MappedArray<CookieKeys>,
}

/// Places of words in the record.
const EPOCH: usize = 0;
const BEAT: usize = 1;
/// Of those of eight bytes: the first of the key of an even epoch, and of an odd one.
const EVEN: usize = 1;
const ODD: usize = 3;
const ZERO_TIME: usize = 5;

impl Cookies {
    /// Maps the array that is pinned in `folder`, and makes keys if there are none: others would refuse clients that were
    /// answered by an earlier process.
    ///
    /// # Errors
    ///
    /// If the pin is missing, the kernel refuses the mapping, or has no random numbers.
    pub fn open(folder: &Path) -> Result<Self> {
        let keys = MappedArray::open(folder, "COOKIES")?;
        let cookies = Self { keys };
        if cookies.epoch() == 0 {
            cookies.turn()?;
            cookies.turn()?;
        }
        Ok(cookies)
    }

    /// Copies the keys of the array that is pinned in the folder `from` to that in `to`, which has none yet.
    ///
    /// # Errors
    ///
    /// If a pin is missing, or the kernel refuses a mapping.
    pub fn take_keys(from: &Path, to: &Path) -> Result<()> {
        let [from, to] = [from, to].map(|folder| MappedArray::open(folder, "COOKIES"));
        copy(&from?, &to?);
        Ok(())
    }

    fn epoch(&self) -> u32 {
        let epoch = self.keys.word(COOKIE_KEYS, EPOCH);
        epoch.map_or(0, |epoch| epoch.load(Ordering::Acquire))
    }

    /// Begins the next epoch, with a new key: the key first, so that no SYN is answered by the one that it replaces.
    ///
    /// # Errors
    ///
    /// If the kernel has no random numbers.
    pub fn turn(&self) -> io::Result<()> {
        let next = self.epoch().wrapping_add(1);
        let first = if next & 1 == 0 { EVEN } else { ODD };
        let CookieKey { low, high } = CookieKey {
            low: random()?,
            high: random()?,
        };
        for (place, half) in [(first, low), (first + 1, high)] {
            if let Some(word) = self.keys.long_word(COOKIE_KEYS, place) {
                word.store(half, Ordering::Relaxed);
            }
        }
        if let Some(epoch) = self.keys.word(COOKIE_KEYS, EPOCH) {
            epoch.store(next, Ordering::Release);
        }
        Ok(())
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
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let running = Duration::from_micros(monotonic_us());
    let zero = since.unwrap_or_default().saturating_sub(running);
    u64::try_from(zero.as_millis()).unwrap_or_default()
}

fn copy(from: &MappedArray<CookieKeys>, to: &MappedArray<CookieKeys>) {
    let has_none = to.read(COOKIE_KEYS).is_some_and(|keys| keys.epoch == 0);
    if let Some(keys) = from.read(COOKIE_KEYS).filter(|_| has_none) {
        to.write(COOKIE_KEYS, keys);
    }
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes[..], GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_copied_to_an_array_without_any() {
        let [one, other] = [(), ()].map(|()| Cookies {
            keys: MappedArray::anonymous(1),
        });
        one.turn().unwrap();
        copy(&one.keys, &other.keys);
        let [of_one, of_other] =
            [&one, &other].map(|cookies| cookies.keys.read(COOKIE_KEYS).unwrap());
        assert_eq!(of_one, of_other);
        other.turn().unwrap();
        let own = other.keys.read(COOKIE_KEYS);
        copy(&one.keys, &other.keys);
        assert_eq!(other.keys.read(COOKIE_KEYS), own);
    }

    #[test]
    fn an_epoch_has_a_key_of_its_own_and_the_one_before_keeps_its() {
        let cookies = Cookies {
            keys: MappedArray::anonymous(1),
        };
        let read = || cookies.keys.read(COOKIE_KEYS).unwrap();
        let mut before = read();
        for epoch in 1..6 {
            cookies.turn().unwrap();
            let now = read();
            assert_eq!(now.epoch, epoch);
            assert_ne!(now.key(epoch), CookieKey::default());
            assert_ne!(now.key(epoch), before.key(epoch));
            assert_eq!(now.key(epoch - 1), before.key(epoch - 1));
            assert_eq!((now.beat, now.zero_time), (0, 0));
            before = now;
        }
        cookies.beat();
        let now = coarse_now().unwrap();
        assert!(now.wrapping_sub(read().beat) < 1000);
        let noted = Duration::from_millis(read().zero_time) + Duration::from_micros(monotonic_us());
        let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(real.abs_diff(noted) < Duration::from_secs(1), "{noted:?}");
        assert_eq!(read().keys, before.keys);
    }
}
