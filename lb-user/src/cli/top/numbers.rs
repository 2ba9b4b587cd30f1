//! Numbers that fit into a column.

/// A count, of four digits at most: `12k`.
pub(super) fn count(count: u64) -> String {
    with_unit(count as f64)
}

/// What comes a second; of less than ten the tenths as well.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{rate:.1}"),
        _ => with_unit(rate),
    }
}

/// Bytes a second as bits a second.
pub(super) fn bits(bytes: f64) -> String {
    with_unit(bytes * 8.0)
}

fn with_unit(number: f64) -> String {
    let units = ["", "k", "M", "G", "T", "P", "E"];
    let mut number = number;
    for unit in units {
        if number < 9999.5 {
            return format!("{number:.0}{unit}");
        }
        number /= 1000.0;
    }
    format!("{number:.0}Z")
}

/// A time of less than an hour or so.
pub(super) fn time(seconds: f64) -> String {
    let micros = seconds * 1_000_000.0;
    match micros {
        ..1000.0 => format!("{micros:.0} us"),
        ..10_000.0 => format!("{:.1} ms", micros / 1000.0),
        ..1_000_000.0 => format!("{:.0} ms", micros / 1000.0),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_at_most() {
        for (number, text) in [
            (0, "0"),
            (9999, "9999"),
            (10_000, "10k"),
            (9_999_999, "10M"),
            (u64::MAX, "18E"),
        ] {
            assert_eq!(count(number), text);
        }
        for (number, text) in [(0.0, "0"), (0.25, "0.2"), (9.99, "10.0"), (10.4, "10")] {
            assert_eq!(rate(number), text);
        }
        assert_eq!(bits(1_250_000.0), "10M");
    }

    #[test]
    fn a_time_has_the_unit_that_it_needs() {
        for (seconds, text) in [
            (0.000_064, "64 us"),
            (0.001_26, "1.3 ms"),
            (0.0256, "26 ms"),
            (2.0, "2.0 s"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }
}
