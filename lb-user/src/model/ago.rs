//! A time for people.

use std::time::Duration;

use crate::config::time_text;

/// A time in milliseconds for people: a minute matters more than its milliseconds.
pub(crate) fn ago(ms: u64) -> String {
    let whole = match ms {
        0..1000 => ms,
        1000..3_600_000 => ms - ms % 1000,
        _ => ms - ms % 60_000,
    };
    time_text(Duration::from_millis(whole))
}

/// As [`ago`], from seconds.
pub(crate) fn ago_seconds(seconds: u64) -> String {
    ago(seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_as_exact_as_it_matters() {
        for (ms, text) in [
            (0, "0s"),
            (7, "7ms"),
            (999, "999ms"),
            (1999, "1s"),
            (3_599_999, "59m59s"),
            (3_600_000, "1h"),
            (90_061_001, "1d1h1m"),
        ] {
            assert_eq!(ago(ms), text);
        }
        assert_eq!(ago_seconds(3661), "1h1m");
        assert!(!ago_seconds(u64::MAX).is_empty());
    }
}
