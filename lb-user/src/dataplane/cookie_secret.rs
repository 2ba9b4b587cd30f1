//! The secret that the keys of SYN cookies are made of: boxes with the same one take each other's cookies.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lb_common::maps::cookies::CookieKey;
use ring::hmac;

/// How long an epoch is.
pub const EPOCH_TIME: Duration = Duration::from_secs(64);

/// A secret of any length.
pub struct CookieSecret(hmac::Key);

impl CookieSecret {
    /// Of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The key of an epoch: the first half of its HMAC-SHA256 (RFC 2104).
    #[must_use]
    pub fn key(&self, epoch: u32) -> CookieKey {
        let message = [b"lb SYN cookies".as_slice(), &epoch.to_be_bytes()].concat();
        let tag = hmac::sign(&self.0, &message);
        let (halves, _) = tag.as_ref().as_chunks();
        let half =
            |index: usize| u64::from_be_bytes(halves.get(index).copied().unwrap_or_default());
        CookieKey {
            low: half(0),
            high: half(1),
        }
    }
}

impl fmt::Debug for CookieSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieSecret")
    }
}

/// The epoch of this moment, by the wall clock, so that it is that of all boxes; never 0.
#[must_use]
pub fn epoch_at(time: SystemTime) -> u32 {
    let seconds = since_1970(time).as_secs() / EPOCH_TIME.as_secs();
    u32::try_from(seconds).unwrap_or(u32::MAX).max(1)
}

/// How long that epoch still is.
#[must_use]
pub fn rest_of_epoch(time: SystemTime) -> Duration {
    let begun = since_1970(time).as_nanos() % EPOCH_TIME.as_nanos();
    EPOCH_TIME.saturating_sub(Duration::from_nanos(
        u64::try_from(begun).unwrap_or_default(),
    ))
}

fn since_1970(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_that_of_its_secret_and_its_epoch() {
        let secret = CookieSecret::new(b"a secret");
        let same = CookieSecret::new(b"a secret");
        assert_eq!(secret.key(7), same.key(7));
        assert_ne!(secret.key(7), secret.key(8));
        assert_ne!(secret.key(7), CookieSecret::new(b"another").key(7));
        assert_ne!(secret.key(7).low, secret.key(7).high);
        assert_eq!(format!("{secret:?}"), "CookieSecret");
    }

    #[test]
    fn epochs_are_those_of_the_wall_clock() {
        let at = |milliseconds| UNIX_EPOCH + Duration::from_millis(milliseconds);
        for (time, epoch, rest) in [
            (at(0), 1, 64_000),
            (at(64_000), 1, 64_000),
            (at(127_999), 1, 1),
            (at(128_000), 2, 64_000),
        ] {
            assert_eq!(epoch_at(time), epoch);
            assert_eq!(rest_of_epoch(time), Duration::from_millis(rest));
        }
        assert_eq!(epoch_at(UNIX_EPOCH - Duration::from_secs(1)), 1);
    }
}
