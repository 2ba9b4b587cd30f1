//! Where the parts of a chart are: the page only places them. Lengths are those of the picture's own
//! coordinates; y grows downwards.

use serde::Serialize;

use crate::{
    measure::{Chart, Shape, Spread},
    report::columns::{Columns, LEFT, Place, RIGHT},
    report::figure,
    report::scale::{Scale, Tick, tenth},
};

const HEIGHT: f64 = 330.0;
/// Above the plane of the values.
const TOP: f64 = 36.0;
/// Below it: a line of the columns' names, and the name of the axis.
const LINE: f64 = 16.0;
const AXIS: f64 = 30.0;
/// What a bar needs for its value at its end.
const LABEL: f64 = 33.0;

/// A chart's picture.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Plot {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Whether it takes a whole row of the page.
    pub(crate) whole: bool,
    /// The plane of the values.
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) top: f64,
    pub(crate) bottom: f64,
    /// Where the value 0 is.
    pub(crate) zero: f64,
    pub(crate) ticks: Vec<Tick>,
    pub(crate) places: Vec<Place>,
    /// For each series, its values from left to right.
    pub(crate) marks: Vec<Vec<Mark>>,
    /// For each series, the points of its lines: a value that is missing ends one. Empty with bars.
    pub(crate) lines: Vec<Vec<String>>,
    /// The width of a bar; 0 with lines.
    pub(crate) bar: f64,
    /// Whether there is room for a value at the end of each bar.
    pub(crate) labels: bool,
    /// Whether there is no value at all.
    pub(crate) empty: bool,
}

/// A value with both its ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Mark {
    /// The middle of the bar, or the point.
    pub(crate) x: f64,
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// The upper end of the bar from the value 0, and its height.
    pub(crate) bar_top: f64,
    pub(crate) bar_height: f64,
    /// The line of a label beyond the end.
    pub(crate) label: f64,
    pub(crate) short: String,
    pub(crate) title: String,
}

impl Plot {
    pub(crate) fn of(chart: &Chart) -> Self {
        let columns = Columns::of(chart);
        let bottom = HEIGHT - AXIS - LINE * columns.lines();
        let values = chart.series.iter().flat_map(|series| &series.values);
        let scale = Scale::of(values.flatten(), TOP, bottom);
        let rows = 0..chart.series.len();
        let marks: Vec<_> = rows
            .map(|row| marks(chart, row, &columns, &scale))
            .collect();
        let (lines, bar) = match chart.shape {
            Shape::Bars => (Vec::new(), tenth(columns.step - 2.0)),
            Shape::Lines => (marks.iter().map(|marks| lines(marks)).collect(), 0.0),
        };
        Self {
            width: columns.width,
            height: HEIGHT,
            whole: columns.whole,
            left: LEFT,
            right: columns.width - RIGHT,
            top: TOP,
            bottom,
            zero: scale.y(0.0),
            ticks: scale.ticks(),
            lines,
            bar,
            labels: chart.shape == Shape::Bars && columns.step >= LABEL,
            places: columns.places,
            empty: marks.iter().flatten().all(Option::is_none),
            marks: marks
                .into_iter()
                .map(|marks| marks.into_iter().flatten().collect())
                .collect(),
        }
    }
}

/// A series' values at their places; nothing where none was measured.
fn marks(chart: &Chart, row: usize, columns: &Columns, scale: &Scale) -> Vec<Option<Mark>> {
    let Some(series) = chart.series.get(row) else {
        return Vec::new();
    };
    let mark = |(column, value): (usize, &Option<Spread>)| {
        let value = (*value).filter(|value| value.median.is_finite())?;
        let name = chart.columns.get(column)?;
        let [median, least, most] = [value.median, value.least, value.most].map(|y| scale.y(y));
        Some(Mark {
            x: columns.x(row, column)?,
            median,
            least,
            most,
            bar_top: median.min(scale.y(0.0)),
            bar_height: tenth((median - scale.y(0.0)).abs()),
            label: match value.median < 0.0 {
                true => least + 14.0,
                false => most - 5.0,
            },
            short: figure::figure(value.median),
            title: format!(
                "{}, {name}: {} {}",
                series.name,
                figure::spread(value, figure::figure),
                chart.unit
            ),
        })
    };
    series.values.iter().enumerate().map(mark).collect()
}

/// The points of each unbroken part.
fn lines(marks: &[Option<Mark>]) -> Vec<String> {
    let parts = marks.split(Option::is_none);
    let parts = parts.filter(|part| !part.is_empty()).map(|part| {
        let points = part.iter().flatten();
        let points = points.map(|mark| format!("{},{}", mark.x, mark.median));
        points.collect::<Vec<_>>().join(" ")
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Better, Rounds};

    /// Of two contestants in columns, a value of each.
    fn plot(shape: Shape, columns: &[&str], values: [&[Option<f64>]; 2]) -> Plot {
        let mut rounds = Rounds::new(["lb", "other"], columns.iter().copied(), Better::Less);
        for (contestant, values) in values.into_iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                if let Some(value) = value {
                    rounds.add(0, contestant, column, value * 0.5);
                    rounds.add(1, contestant, column, *value);
                }
            }
        }
        Plot::of(&rounds.chart("t", "ns", "flows", shape, None))
    }

    #[test]
    fn bars_stand_on_0_and_beside_one_another() {
        let plot = plot(
            Shape::Bars,
            &["1k", "1M"],
            [&[Some(10.0), Some(5.0)], &[Some(20.0), None]],
        );
        let [lb, other] = [&plot.marks[0], &plot.marks[1]];
        assert_eq!((lb.len(), other.len()), (2, 1));
        assert_eq!(plot.zero, plot.bottom);
        for bar in lb.iter().chain(other) {
            assert!(
                (bar.bar_top + bar.bar_height - plot.zero).abs() < 0.11,
                "{bar:?}"
            );
            assert!(bar.most <= bar.median && bar.median < bar.least);
        }
        assert!((lb[0].bar_height * 2.0 - other[0].bar_height).abs() < 0.11);
        assert!(lb[0].x + plot.bar < other[0].x);
        assert!(plot.labels && !plot.whole && plot.lines.is_empty());
        assert_eq!(other[0].title, "other, 1k: 15 [10-20] ns");
    }

    #[test]
    fn below_0_bars_hang() {
        let below = plot(Shape::Bars, &["1k"], [&[Some(-2.0)], &[Some(4.0)]]);
        let [lb, other] = [&below.marks[0][0], &below.marks[1][0]];
        assert_eq!(lb.bar_top, below.zero);
        assert!(below.zero < below.bottom && lb.label > lb.least && other.label < other.most);
        assert!(!below.empty && plot(Shape::Bars, &["1k"], [&[None], &[None]]).empty);
    }

    #[test]
    fn a_missing_value_breaks_the_line() {
        let all = [Some(1.0), None, Some(3.0), Some(4.0)];
        let plot = plot(Shape::Lines, &["1", "2", "3", "4"], [&all, &[Some(2.0); 4]]);
        assert_eq!(plot.lines.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(plot.lines[0][1].split(' ').count(), 2);
        assert_eq!(plot.bar, 0.0);
    }

    #[test]
    fn nothing_leaves_the_picture() {
        let columns = ["a very long name of a column", "another", "x"];
        for shape in [Shape::Bars, Shape::Lines] {
            let plot = plot(shape, &columns, [&[Some(1e6); 3], &[Some(3.0); 3]]);
            let half = plot.bar / 2.0;
            for mark in plot.marks.iter().flatten() {
                assert!(mark.x - half >= plot.left && mark.x + half <= plot.right);
                assert!(mark.most >= plot.top && mark.least <= plot.bottom);
            }
            assert!(plot.places[0].lines.len() > 1);
            assert!(plot.bottom + LINE * 2.0 < plot.height);
        }
    }
}
