//! When an event was: the data plane's time as that of the wall.

use std::{
    fmt::{self, Display, Formatter},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Result;
use lb_common::maps::flow::TIME_SHIFT;

use crate::dataplane::flows::coarse_now;

/// Both clocks, read at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogClock {
    coarse: u32,
    wall: SystemTime,
}

impl LogClock {
    pub(super) fn now() -> Result<Self> {
        Ok(Self {
            coarse: coarse_now()?,
            wall: SystemTime::now(),
        })
    }

    /// The time of the wall clock at `time`, had it not been set since.
    pub(super) fn at(&self, time: u32) -> Stamp {
        let age = Duration::from_millis(millis_since(time, self.coarse));
        Stamp(self.wall.checked_sub(age).unwrap_or(UNIX_EPOCH))
    }
}

/// A point in time as RFC 3339 has it, in UTC, with milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp(pub(crate) SystemTime);

impl Display for Stamp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let since = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
        let (year, month, day) = date(days);
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let (second, millis) = (second % 60, since.subsec_millis());
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z"
        )
    }
}

/// Year, month and day that many days after 1970-01-01.
///
/// Years are taken to begin in March: then the leap day is the last one, and the lengths of the
/// months repeat every five, which have 153 days.
const fn date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01, in eras of 400 years.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march = (5 * day + 2) / 153;
    let day = day - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = 400 * era + year + (month <= 2) as u64;
    (year, month, day)
}

/// How far ahead of a reader's clock a packet can be that came while it read: about a minute.
const JUST_NOW: u32 = 1 << 16;

/// Milliseconds from one [time](coarse_now) to a later one, right over the wrap.
fn millis(from: u32, to: u32) -> u64 {
    (u64::from(to.wrapping_sub(from)) << TIME_SHIFT) / 1_000_000
}

/// Milliseconds since `seen`. A packet that came since `now` was read came just now.
pub(crate) fn millis_since(seen: u32, now: u32) -> u64 {
    if seen.wrapping_sub(now) < JUST_NOW {
        0
    } else {
        millis(seen, now)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use super::*;

    /// A clock whose time is `coarse` at `millis` after 1970.
    pub(in crate::flows::log) fn clock(coarse: u32, millis: u64) -> LogClock {
        LogClock {
            coarse,
            wall: UNIX_EPOCH + Duration::from_millis(millis),
        }
    }

    fn stamp(seconds: u64) -> String {
        clock(0, seconds * 1000).at(0).to_string()
    }

    #[test]
    fn dates_are_those_of_date() {
        // 1970; the ends of February and of years; leap years and those that are none; our time.
        let seconds = [
            0,
            5_097_599,
            5_097_600,
            68_169_599,
            68_169_600,
            951_782_399,
            951_782_400,
            951_868_800,
            978_307_199,
            978_307_200,
            1_763_745_296,
            4_107_542_399,
            4_107_542_400,
            13_574_563_200,
            253_402_300_799,
        ];
        for seconds in seconds {
            let output = Command::new("date")
                .args([
                    "-u",
                    "-d",
                    &format!("@{seconds}"),
                    "+%Y-%m-%dT%H:%M:%S.000Z",
                ])
                .output()
                .unwrap();
            let wanted = String::from_utf8(output.stdout).unwrap();
            assert_eq!(stamp(seconds), wanted.trim_end());
        }
    }

    #[test]
    fn an_event_was_as_long_ago_as_the_data_plane_says() {
        let clock = clock(5000, 1_000_000_000_789);
        assert_eq!(clock.at(5000).to_string(), "2001-09-09T01:46:40.789Z");
        // A thousand times 2^20 ns.
        assert_eq!(clock.at(4000).to_string(), "2001-09-09T01:46:39.741Z");
        // It came since the clock was read.
        assert_eq!(clock.at(5001).to_string(), "2001-09-09T01:46:40.789Z");
    }

    #[test]
    fn both_clocks_are_read() {
        let before = SystemTime::now();
        let clock = LogClock::now().unwrap();
        let Stamp(now) = clock.at(clock.coarse);
        assert!(before <= now && now <= SystemTime::now());
    }

    #[test]
    fn times_are_right_over_the_wrap() {
        assert_eq!(millis(0, 1000), 1048);
        assert_eq!(millis(u32::MAX, 999), 1048);
        assert_eq!(millis_since(5, 5), 0);
        assert_eq!(millis_since(6, 5), 0, "it came meanwhile");
        assert_eq!(millis_since(0, u32::MAX), 0, "over the wrap as well");
        let month = u32::try_from((30u64 * 86_400 * 1_000_000_000) >> TIME_SHIFT).unwrap();
        assert_eq!(millis_since(7, month + 7) / 86_400_000, 29);
    }
}
