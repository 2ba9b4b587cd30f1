//! Whole numbers with units, such as `2h10m` or `500ms`.

use std::{ops::RangeInclusive, time::Duration};

use super::{number::number, place::quote};

/// What any time of the configuration may be: flows are looked at a few times a second, and their
/// clock of 32 bits goes round in 52 days.
pub(super) const RANGE: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(30 * 24 * 60 * 60);

/// The one word beside a time.
pub(super) const NEVER: &str = "never";

/// The units in milliseconds, the largest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 24 * 60 * 60 * 1000),
    ("h", 60 * 60 * 1000),
    ("m", 60 * 1000),
    ("s", 1000),
    ("ms", 1),
];

/// A time in [`RANGE`], from numbers with units of which each is smaller than the one before.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    parse_in(text, RANGE)
}

/// As `parse`, for a time in `range`.
pub(crate) fn parse_in(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, String> {
    let time = read(text).ok_or_else(|| {
        format!(
            "{} is not a time; expected whole numbers with units d, h, m, s or ms, such as 30s or \
             2h10m",
            quote(text)
        )
    })?;
    if range.contains(&time) {
        return Ok(time);
    }
    Err(format!(
        "found {}, expected {} to {}",
        quote(text),
        self::text(*range.start()),
        self::text(*range.end())
    ))
}

/// As [`parse`], or none for `never`.
pub(super) fn parse_or_never(text: &str) -> Result<Option<Duration>, String> {
    if text == NEVER {
        return Ok(None);
    }
    parse(text).map(Some)
}

fn read(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut units = UNITS.iter();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (count, behind) = rest.split_at(digits);
        let letters = behind
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(behind.len());
        let (name, behind) = behind.split_at(letters);
        // The units before this one are used up: each comes once, and in order.
        let (_, unit) = units.find(|(unit, _)| *unit == name)?;
        total = total.checked_add(number(count)?.checked_mul(*unit)?)?;
        rest = behind;
    }
    (!text.is_empty()).then(|| Duration::from_millis(total))
}

/// The shortest text that means `time`, in whole milliseconds.
pub(crate) fn text(time: Duration) -> String {
    let mut rest = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, unit) in UNITS {
        if rest >= unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() {
        text.push_str("0s");
    }
    text
}

/// As [`text`], or `never` for none.
pub(super) fn text_or_never(time: Option<Duration>) -> String {
    time.map_or_else(|| NEVER.to_owned(), text)
}

/// Of a time in data, for serde.
pub(super) mod as_text {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::config::duration::{read, text};

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&text(*time))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let found = String::deserialize(deserializer)?;
        read(&found).ok_or_else(|| D::Error::custom(format!("{found:?} is not a time")))
    }
}

/// The same, or null.
pub(super) mod as_text_or_null {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize as _, Serializer};

    use crate::config::duration::text;

    #[derive(Deserialize)]
    struct Text(#[serde(with = "super::as_text")] Duration);

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(text).serialize(serializer)
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = Option::<Text>::deserialize(deserializer)?;
        Ok(text.map(|Text(time)| time))
    }
}

/// The same, or `never`.
pub(super) mod as_text_or_never {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use crate::config::duration::{NEVER, read, text_or_never};

    pub(in crate::config) fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&text_or_never(*time))
    }

    pub(in crate::config) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == NEVER {
            return Ok(None);
        }
        let time = read(&text);
        time.map(Some)
            .ok_or_else(|| D::Error::custom(format!("{text:?} is not a time")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_whole_numbers_with_units() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("2m", 120_000),
            ("2h10m", 7_800_000),
            ("130m", 7_800_000),
            ("1d", 86_400_000),
            ("1s500ms", 1500),
            ("100ms", 100),
            ("30d", 2_592_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in [
            "",
            "30",
            "s",
            "1.5s",
            "-1s",
            "1 s",
            " 1s",
            "1S",
            "10m2h",
            "1s1s",
            "1h30",
            "1w",
            "08s",
            "never",
            "99999999999999999999d",
            "300000000000000000d",
            "1\u{b2}s",
        ] {
            let words = parse(text).unwrap_err();
            assert!(words.contains("is not a time; expected"), "{text}: {words}");
        }
    }

    #[test]
    fn a_time_is_neither_too_short_nor_too_long() {
        for text in ["0s", "99ms", "30d1ms", "721h"] {
            let words = format!("found \"{text}\", expected 100ms to 30d");
            assert_eq!(parse(text), Err(words));
        }
    }

    #[test]
    fn never_is_a_word_beside_times() {
        assert_eq!(parse_or_never("never"), Ok(None));
        assert_eq!(parse_or_never("1s"), Ok(Some(Duration::from_secs(1))));
        assert!(parse_or_never("Never").is_err());
        assert_eq!(text_or_never(None), "never");
    }

    #[test]
    fn a_text_means_its_time() {
        for text in ["100ms", "1s500ms", "2h10m", "30d", "1d1h1m1s1ms"] {
            let time = read(text).unwrap();
            assert_eq!(self::text(time), text);
        }
        assert_eq!(text(Duration::ZERO), "0s");
        assert_eq!(text_or_never(Some(Duration::from_secs(7800))), "2h10m");
    }
}
