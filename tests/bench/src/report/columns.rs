//! Where a chart's columns are, and each contestant in them.

use serde::Serialize;

use crate::{
    measure::{Chart, Shape},
    report::scale::tenth,
};

/// The picture: half a row of the page, or a whole one where a half is too crowded.
const HALF: f64 = 560.0;
const WHOLE: f64 = 1160.0;
/// Between the picture's sides and the plane of the values.
pub(crate) const LEFT: f64 = 52.0;
pub(crate) const RIGHT: f64 = 8.0;
/// A letter is at most about this wide: on a phone they are larger.
const LETTER: f64 = 9.0;
/// The share of a column that its bars take.
const FILLED: f64 = 0.84;
/// The least that a bar takes of a half, and the most that is good to look at.
const THIN: f64 = 9.0;
const THICK: f64 = 44.0;
/// How far apart the points of two contestants at one place are.
const APART: f64 = 7.0;

/// Columns from left to right.
#[derive(Clone, Debug)]
pub(crate) struct Columns {
    /// Of the picture.
    pub(crate) width: f64,
    /// Whether it takes a whole row of the page.
    pub(crate) whole: bool,
    pub(crate) places: Vec<Place>,
    /// From a contestant to the next.
    pub(crate) step: f64,
    contestants: f64,
}

/// A column: its middle, and its name in lines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Place {
    pub(crate) x: f64,
    pub(crate) lines: Vec<String>,
}

impl Columns {
    pub(crate) fn of(chart: &Chart) -> Self {
        let contestants = count(chart.series.len()).max(1.0);
        let slot = |width: f64| (width - LEFT - RIGHT) / count(chart.columns.len()).max(1.0);
        let share = |slot: f64| slot * FILLED / contestants;
        let words = chart
            .columns
            .iter()
            .flat_map(|name| name.split_whitespace());
        let longest = words.map(text_width).fold(0.0, f64::max);
        let thin = chart.shape == Shape::Bars && share(slot(HALF)) < THIN;
        let whole = thin || longest > slot(HALF);
        let width = if whole { WHOLE } else { HALF };
        let slot = slot(width);
        let places = chart
            .columns
            .iter()
            .enumerate()
            .map(|(column, name)| Place {
                x: tenth(LEFT + slot * (count(column) + 0.5)),
                lines: wrap(name, slot),
            });
        Self {
            width,
            whole,
            places: places.collect(),
            step: share(slot).min(match chart.shape {
                Shape::Bars => THICK,
                Shape::Lines => APART,
            }),
            contestants,
        }
    }

    /// The lines of the longest name.
    pub(crate) fn lines(&self) -> f64 {
        let lines = self.places.iter().map(|place| place.lines.len());
        count(lines.max().unwrap_or(0))
    }

    /// Where a contestant is in a column.
    pub(crate) fn x(&self, contestant: usize, column: usize) -> Option<f64> {
        let aside = self.step * (count(contestant) - (self.contestants - 1.0) / 2.0);
        Some(tenth(self.places.get(column)?.x + aside))
    }
}

/// A name in lines that are no wider than `width`, if its words are not.
fn wrap(name: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line) + text_width(word) + LETTER <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn text_width(text: &str) -> f64 {
    LETTER * count(text.chars().count())
}

#[expect(clippy::cast_precision_loss, reason = "a chart has a handful of each")]
fn count(things: usize) -> f64 {
    things as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Better, Rounds};

    fn columns(shape: Shape, contestants: usize, names: &[&str]) -> Columns {
        let contestants = (0..contestants).map(|name| name.to_string());
        let rounds = Rounds::new(contestants, names.iter().copied(), Better::Less);
        Columns::of(&rounds.chart("t", "ns", "flows", shape, None))
    }

    #[test]
    fn a_crowd_has_a_whole_row() {
        let [few, many] = [6, 8].map(|crowd| columns(Shape::Bars, crowd, &vec!["x"; crowd]));
        assert!(!few.whole);
        assert!(many.whole && many.width > few.width);
        // Points may be nearer to one another than bars.
        assert!(!columns(Shape::Lines, 8, &["x"; 8]).whole);
    }

    #[test]
    fn names_have_lines_and_long_words_a_whole_row() {
        let two = columns(
            Shape::Bars,
            2,
            &["established request", "established reply", "x", "y"],
        );
        assert_eq!(two.lines(), 2.0);
        assert_eq!(two.places[0].lines, ["established", "request"]);
        assert!(!two.whole);
        assert!(columns(Shape::Bars, 2, &["established"; 6]).whole);
    }

    #[test]
    fn contestants_are_around_the_middle() {
        let columns = columns(Shape::Bars, 3, &["1k", "1M"]);
        for (column, place) in columns.places.iter().enumerate() {
            assert_eq!(columns.x(1, column), Some(place.x));
        }
        assert!(columns.x(2, 0) < columns.x(0, 1));
        assert_eq!(columns.x(0, 2), None);
    }
}
