//! A time that an operator names.

use jiff::{Timestamp, civil, tz::TimeZone};

/// A time as exact as it was written: a second, or a millisecond where there is a fraction. In milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The first millisecond of it.
    pub(crate) first: i64,
    /// The last one.
    pub(crate) last: i64,
}

impl Moment {
    /// Reads RFC 3339 with an offset, or a time of the day at `now` in UTC.
    ///
    /// # Errors
    ///
    /// What was found and expected.
    pub(crate) fn read(text: &str, now: Timestamp) -> Result<Self, String> {
        let time = text.parse::<Timestamp>().or_else(|error| {
            // A date is not left out.
            let clock = text.get(2..3).filter(|colon| *colon == ":");
            let clock: Option<civil::Time> = clock.and_then(|_| text.parse().ok());
            let clock = clock.ok_or_else(|| {
                format!(
                    "{error}; expected a time with an offset, as 2026-11-26T11:28:42.332Z or \
                     2026-11-26T12:28:42+01:00, or one of today in UTC, as 11:28:42"
                )
            })?;
            let today = TimeZone::UTC.to_datetime(now).date();
            let time = TimeZone::UTC.to_timestamp(today.to_datetime(clock));
            time.map_err(|error| error.to_string())
        })?;
        if time > now {
            return Err(format!("{time} is not over yet"));
        }
        let first = time.as_millisecond();
        let is_second = !text.contains('.') && first.rem_euclid(1000) == 0;
        let last = first.saturating_add(if is_second { 999 } else { 0 });
        Ok(Self { first, last })
    }
}

/// A time of the log, in milliseconds since 1970.
pub(super) fn millis(text: &str) -> Option<i64> {
    let time: Timestamp = text.parse().ok()?;
    Some(time.as_millisecond())
}

/// The same as the log writes it.
pub(super) fn stamp(millis: i64) -> Option<String> {
    let time = Timestamp::from_millisecond(millis).ok()?;
    Some(format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(i64, i64), String> {
        // 2026-11-26T11:28:42.332Z
        let now = Timestamp::from_millisecond(1_795_692_522_332).unwrap();
        Moment::read(text, now).map(|moment| (moment.first, moment.last))
    }

    #[test]
    fn a_time_is_as_exact_as_it_is_written() {
        const SECOND: i64 = 1_795_692_522_000;
        let second = Ok((SECOND, SECOND + 999));
        for text in [
            "2026-11-26T11:28:42Z",
            "2026-11-26T12:28:42+01:00",
            "2026-11-26 11:28:42Z",
            "11:28:42",
        ] {
            assert_eq!(read(text), second, "{text}");
        }
        for text in ["2026-11-26T11:28:42.331Z", "11:28:42.331"] {
            assert_eq!(read(text), Ok((SECOND + 331, SECOND + 331)), "{text}");
        }
        assert_eq!(read("11:28:42.0"), Ok((SECOND, SECOND)));
        assert_eq!(read("1970-01-01T00:00:00Z"), Ok((0, 999)));
    }

    #[test]
    fn what_is_no_time_or_not_over_is_refused() {
        for text in [
            "",
            "now",
            "2026-11-26",
            "2026-11-26T11:28:42",
            "25:00:00",
            "1795692522",
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains("or one of today in UTC"), "{text}: {error}");
        }
        for text in ["11:28:43", "2026-11-27T00:00:00Z", "9999-01-01T00:00:00Z"] {
            assert!(
                read(text).unwrap_err().ends_with("is not over yet"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_time_of_the_log_is_read_as_it_is_written() {
        for text in ["2026-11-26T11:28:42.332Z", "1970-01-01T00:00:00.000Z"] {
            assert_eq!(millis(text).and_then(stamp).as_deref(), Some(text));
        }
        assert_eq!(millis("x"), None);
    }
}
