//! The axis of the values.

use serde::Serialize;

use crate::{measure::Spread, report::figure};

/// A line across the plane.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Tick {
    pub(crate) y: f64,
    pub(crate) text: String,
}

/// From values to places on the picture, with round ticks; 0 is always there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    lowest: f64,
    highest: f64,
    /// From a tick to the next: 1, 2 or 5 times a power of ten.
    step: f64,
    /// That power.
    power: i32,
    top: f64,
    bottom: f64,
}

impl Scale {
    /// Of values from the place `bottom` up to the place `top`.
    pub(crate) fn of<'a>(
        values: impl IntoIterator<Item = &'a Spread>,
        top: f64,
        bottom: f64,
    ) -> Self {
        let values = values.into_iter();
        let all = values.flat_map(|value| [value.least, value.median, value.most]);
        let (least, most) = all
            .filter(|value| value.is_finite())
            .fold((0.0, 0.0), |(least, most): (f64, f64), value| {
                (least.min(value), most.max(value))
            });
        let range = most - least;
        let range = if range > 1e-12 { range } else { 1.0 };
        let (step, power) = round_step(range / 5.0);
        Self {
            lowest: (least / step).floor() * step,
            highest: (most / step).ceil().max(1.0) * step,
            step,
            power,
            top,
            bottom,
        }
    }

    /// The place of a value; an end where it is beyond that.
    pub(crate) fn y(&self, value: f64) -> f64 {
        let value = value.clamp(self.lowest, self.highest);
        let share = (value - self.lowest) / (self.highest - self.lowest);
        tenth(self.bottom - share * (self.bottom - self.top))
    }

    pub(crate) fn ticks(&self) -> Vec<Tick> {
        // All in the unit of the largest, or the axis is no scale to the eye.
        let largest = self.highest.max(-self.lowest);
        let (power, letter) = figure::letter(exponent(largest));
        let digits = usize::try_from(power - self.power).unwrap_or(0);
        let mut ticks = Vec::new();
        let mut value = self.lowest;
        while value < self.highest + self.step / 2.0 {
            // A sum of steps misses 0 by a little.
            let tidy = (value / self.step).round() * self.step;
            let text = match tidy == 0.0 {
                true => "0".to_owned(),
                false => format!("{:.digits$}{letter}", tidy / 10_f64.powi(power)),
            };
            let y = self.y(tidy);
            ticks.push(Tick { y, text });
            value += self.step;
        }
        ticks
    }
}

/// The next of 1, 2 and 5 times a power of ten, and that power.
fn round_step(least: f64) -> (f64, i32) {
    let power = exponent(least);
    let unit = 10_f64.powi(power);
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * unit >= least);
    factor.map_or((10.0 * unit, power + 1), |factor| (factor * unit, power))
}

/// The power of ten of the first digit.
fn exponent(value: f64) -> i32 {
    let text = format!("{value:e}");
    let power = text
        .split_once('e')
        .and_then(|(_, power)| power.parse().ok());
    power.unwrap_or(0)
}

/// Places to a tenth: more would be bytes for nothing.
pub(crate) fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ticks' texts over these values, and where each value is on an axis from 100 up to 0.
    fn axis(values: &[f64]) -> (Vec<String>, Vec<f64>) {
        let spread = Spread::of(values.iter().copied());
        let scale = Scale::of(spread.as_ref(), 0.0, 100.0);
        let texts = scale.ticks().into_iter().map(|tick| tick.text);
        (
            texts.collect(),
            values.iter().map(|value| scale.y(*value)).collect(),
        )
    }

    #[test]
    fn ticks_are_round_and_begin_at_0() {
        for (most, texts) in [
            (97.0, "0 20 40 60 80 100"),
            (1686.0, "0 500 1000 1500 2000"),
            (0.53, "0.0 0.2 0.4 0.6"),
            (16_400.0, "0 5k 10k 15k 20k"),
            (2_400_000.0, "0 0.5M 1.0M 1.5M 2.0M 2.5M"),
            (5.0, "0 1 2 3 4 5"),
        ] {
            assert_eq!(axis(&[most]).0.join(" "), texts.replace("0.0 ", "0 "));
        }
    }

    #[test]
    fn a_value_is_where_its_ticks_say() {
        assert_eq!(axis(&[0.0, 50.0, 100.0]).1, [100.0, 50.0, 0.0]);
    }

    #[test]
    fn less_than_0_is_below_0() {
        let (texts, places) = axis(&[-1.0, 0.0, 4.0]);
        assert_eq!(texts, ["-1", "0", "1", "2", "3", "4"]);
        assert_eq!(places, [100.0, 80.0, 0.0]);
    }

    #[test]
    fn nothing_and_0_have_an_axis() {
        assert_eq!(axis(&[]).0, axis(&[0.0]).0);
        assert_eq!(axis(&[1e-320]).0, axis(&[0.0]).0);
        assert_eq!(axis(&[f64::INFINITY, 0.0]).1, [0.0, 100.0]);
    }
}
