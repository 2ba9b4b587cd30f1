//! Figures as text: three significant digits, because the rounds agree on no more.

use std::time::Duration;

use crate::measure::{Better, Chart, Spread};

/// Where there is no figure.
pub(crate) const NONE: &str = "-";

/// Three significant digits, and from 10 000 on a letter for the thousands: `0.0821`, `170`, `16.4k`.
pub(crate) fn figure(value: f64) -> String {
    let short = format!("{value:.2e}");
    let (Some((_, exponent)), true) = (short.split_once('e'), value.is_finite()) else {
        return NONE.to_owned();
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let rounded = short.parse().unwrap_or(value);
    let (power, letter) = letter(exponent);
    // A count has no digits after the point.
    let digits = match value.fract() == 0.0 && power == 0 {
        true => 0,
        false => usize::try_from(2 - (exponent - power)).unwrap_or(0),
    };
    format!("{:.digits$}{letter}", rounded / 10_f64.powi(power))
}

/// The power of ten that a figure of this size is given in, and its letter.
pub(crate) fn letter(exponent: i32) -> (i32, &'static str) {
    match exponent {
        9.. => (9, "G"),
        6.. => (6, "M"),
        4.. => (3, "k"),
        _ => (0, ""),
    }
}

/// `170 [132-174]`, or the only value that there is.
pub(crate) fn spread(spread: Spread, text: impl Fn(f64) -> String) -> String {
    let (median, ends) = parts(spread, text);
    median + &ends
}

/// `0.53`: as many digits after the point as count.
pub(crate) fn times(ratio: f64) -> String {
    match ratio.abs() {
        0.001..0.0995 => format!("{ratio:.3}"),
        0.0995..9.995 => format!("{ratio:.2}"),
        9.995..99.95 => format!("{ratio:.1}"),
        _ => figure(ratio),
    }
}

/// The middle, and ` [132-174]`, which is empty where there was one round only.
pub(crate) fn parts(spread: Spread, text: impl Fn(f64) -> String) -> (String, String) {
    let Spread {
        median,
        least,
        most,
    } = spread;
    if least.total_cmp(&most).is_eq() {
        return (text(median), String::new());
    }
    let dash = if least < 0.0 { " to " } else { "-" };
    let ends = format!(" [{}{dash}{}]", text(least), text(most));
    (text(median), ends)
}

/// `2.1 %`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// `4 min 12 s`.
pub(crate) fn duration(seconds: f64) -> String {
    let seconds = Duration::try_from_secs_f64(seconds).map_or(0, |time| time.as_secs());
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// What the values of a chart are: `ns, less is better`.
pub(crate) fn unit(chart: &Chart) -> String {
    let better = match chart.better {
        Better::Less => "less is better",
        Better::More => "more is better",
    };
    format!("{}, {better}", chart.unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        for (value, text) in [
            (0.0, "0"),
            (0.082_14, "0.0821"),
            (0.5349, "0.535"),
            (7.0, "7"),
            (9.996, "10.0"),
            (12.34, "12.3"),
            (1686.0, "1690"),
            (9999.0, "10.0k"),
            (16_400.0, "16.4k"),
            (999_600.0, "1.00M"),
            (3e9, "3.00G"),
            (-1.25, "-1.25"),
            (f64::NAN, NONE),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn both_ends_are_told_unless_there_is_one_value() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).expect("values");
        assert_eq!(spread(of(&[132.0, 170.0, 174.0]), figure), "170 [132-174]");
        assert_eq!(spread(of(&[170.0]), figure), "170");
        assert_eq!(spread(of(&[-3.0, -1.0, 2.0]), figure), "-1 [-3 to 2]");
        assert_eq!(spread(of(&[0.059, 0.5, 12.0]), times), "0.50 [0.059-12.0]");
    }

    #[test]
    fn a_duration_in_minutes_and_seconds() {
        assert_eq!(duration(59.9), "59 s");
        assert_eq!(duration(252.0), "4 min 12 s");
    }
}
