//! A time as JSON has it: one unit for all of them.

use std::{borrow::Cow, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize as _, Deserializer, Serialize, Serializer, de::Error as _};

/// A time: in JSON a number of seconds, with milliseconds behind the point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds {
    millis: u64,
}

impl Seconds {
    /// So many milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self { millis }
    }

    /// In milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.millis
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.millis as f64 / 1000.0)
    }
}

/// As [`Seconds`], of a number of microseconds, all of which are behind the point.
///
/// # Errors
///
/// That of the serializer.
pub fn of_micros<S: Serializer>(micros: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(*micros as f64 / 1_000_000.0)
}

/// The reverse of [`of_micros`].
///
/// # Errors
///
/// If it is no number of seconds.
pub fn to_micros<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    let time = Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)?;
    u64::try_from(time.as_micros()).map_err(D::Error::custom)
}

impl JsonSchema for Seconds {
    fn schema_name() -> Cow<'static, str> {
        "Seconds".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_of_seconds_to_the_millisecond() {
        for (millis, json) in [
            (0, "0.0"),
            (1, "0.001"),
            (1234, "1.234"),
            (59_000, "59.0"),
            (90_061_001, "90061.001"),
            (31_536_000_999, "31536000.999"),
        ] {
            let seconds = Seconds::from_millis(millis);
            assert_eq!(serde_json::to_string(&seconds).unwrap(), json);
            assert_eq!(seconds.as_millis(), millis);
        }
    }
}
