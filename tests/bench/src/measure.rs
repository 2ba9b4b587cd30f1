//! What comes of several rounds: medians, and ratios that are taken inside a round, because a machine that is
//! slower in one round is slower for all.

use serde::Serialize;

/// The middle and both ends of what the rounds gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Spread {
    /// Nothing of no values. Of an even number the mean of both in the middle.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_unstable_by(f64::total_cmp);
        Some(Self {
            median: f64::midpoint(
                *values.get((values.len().max(1) - 1) / 2)?,
                *values.get(values.len() / 2)?,
            ),
            least: *values.first()?,
            most: *values.last()?,
        })
    }
}

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    Less,
    More,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shape {
    /// A group of bars for each column.
    Bars,
    /// A line for each contestant; the columns are places on the axis, in order.
    Lines,
}

/// One contestant's row.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// For each column, unless it was not measured.
    pub(crate) values: Vec<Option<Spread>>,
    /// How many times as good as the reference, inside a round; empty where the chart has none.
    pub(crate) ratios: Vec<Option<Spread>>,
}

/// One quantity of several contestants.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) shape: Shape,
    /// What the columns are.
    pub(crate) axis: &'static str,
    pub(crate) columns: Vec<String>,
    /// The contestant that the ratios are to.
    pub(crate) reference: Option<String>,
    pub(crate) series: Vec<Series>,
}

/// What was measured of one quantity, round by round.
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    contestants: Vec<String>,
    columns: Vec<String>,
    better: Better,
    /// By round, contestant and column.
    values: Vec<Vec<Vec<Option<f64>>>>,
}

impl Rounds {
    pub(crate) fn new(
        contestants: impl IntoIterator<Item = impl Into<String>>,
        columns: impl IntoIterator<Item = impl Into<String>>,
        better: Better,
    ) -> Self {
        Self {
            contestants: contestants.into_iter().map(Into::into).collect(),
            columns: columns.into_iter().map(Into::into).collect(),
            better,
            values: Vec::new(),
        }
    }

    /// Notes a value; a round begins with its first.
    pub(crate) fn add(&mut self, round: usize, contestant: usize, column: usize, value: f64) {
        let empty = vec![vec![None; self.columns.len()]; self.contestants.len()];
        if self.values.len() <= round {
            self.values.resize(round + 1, empty);
        }
        let rows = self.values.get_mut(round);
        let cell = rows
            .and_then(|rows| rows.get_mut(contestant))
            .and_then(|row| row.get_mut(column));
        if let Some(cell) = cell {
            *cell = Some(value);
        }
    }

    /// How many times as good one contestant is as another, in a column: the median over the rounds in which
    /// both were measured.
    pub(crate) fn ratio(&self, one: &str, other: &str, column: usize) -> Option<Spread> {
        let [one, other] = [one, other].map(|name| self.place(name));
        let (one, other) = (one?, other?);
        let in_rounds = self.values.iter().filter_map(|round| {
            let [one, other] = [one, other].map(|who| *round.get(who)?.get(column)?);
            Some(match self.better {
                Better::More => one? / other?,
                Better::Less => other? / one?,
            })
        });
        Spread::of(in_rounds.filter(|ratio| ratio.is_finite()))
    }

    /// How many times as much one contestant takes beyond `base` as another takes beyond it, round by round.
    pub(crate) fn beyond(
        &self,
        base: &str,
        [one, other]: [&str; 2],
        column: usize,
    ) -> Option<Spread> {
        let [base, one, other] = [base, one, other].map(|name| self.place(name));
        let (base, one, other) = (base?, one?, other?);
        let in_rounds = self.values.iter().filter_map(|round| {
            let [base, one, other] = [base, one, other].map(|who| *round.get(who)?.get(column)?);
            let base = base?;
            // What takes less than the base says nothing.
            let other = Some(other? - base).filter(|other| *other > 0.0)?;
            Some((one? - base) / other)
        });
        Spread::of(in_rounds)
    }

    /// How many times as much one contestant takes here as it takes in another measurement of the same rounds.
    pub(crate) fn over(&self, other: &Self, who: &str, column: usize) -> Option<Spread> {
        let [here, there] = [self, other].map(|rounds| rounds.place(who));
        let (here, there) = (here?, there?);
        let rounds = self.values.iter().zip(&other.values);
        let in_rounds = rounds.filter_map(|(one, other)| {
            let [one, other] =
                [(one, here), (other, there)].map(|(round, who)| *round.get(who)?.get(column)?);
            Some(one? / other?)
        });
        Spread::of(in_rounds.filter(|ratio| ratio.is_finite()))
    }

    /// How many times as much one contestant took in one column as in another, round by round.
    pub(crate) fn growth(&self, who: &str, from: usize, to: usize) -> Option<Spread> {
        let who = self.place(who)?;
        let in_rounds = self.values.iter().filter_map(|round| {
            let row = round.get(who)?;
            let [from, to] = [from, to].map(|column| row.get(column).copied().flatten());
            Some(to? / from?)
        });
        Spread::of(in_rounds.filter(|ratio| ratio.is_finite()))
    }

    /// A chart of all, with ratios to `reference`.
    pub(crate) fn chart(
        &self,
        title: impl Into<String>,
        unit: &'static str,
        axis: &'static str,
        shape: Shape,
        reference: Option<&str>,
    ) -> Chart {
        let columns = || 0..self.columns.len();
        let series = self
            .contestants
            .iter()
            .enumerate()
            .map(|(who, name)| Series {
                name: name.clone(),
                values: columns().map(|column| self.spread(who, column)).collect(),
                ratios: reference
                    .into_iter()
                    .flat_map(|other| columns().map(|column| self.ratio(name, other, column)))
                    .collect(),
            });
        Chart {
            title: title.into(),
            unit,
            better: self.better,
            shape,
            axis,
            columns: self.columns.clone(),
            reference: reference.map(str::to_owned),
            series: series.collect(),
        }
    }

    /// The values of a contestant in a column.
    pub(crate) fn of(&self, contestant: &str, column: usize) -> Option<Spread> {
        self.spread(self.place(contestant)?, column)
    }

    fn place(&self, contestant: &str) -> Option<usize> {
        self.contestants.iter().position(|name| name == contestant)
    }

    fn spread(&self, contestant: usize, column: usize) -> Option<Spread> {
        let rounds = self.values.iter();
        Spread::of(rounds.filter_map(|round| *round.get(contestant)?.get(column)?))
    }
}

/// The order of contestants: in each round another contestant is the first.
pub(crate) fn turns(round: usize, contestants: usize) -> impl Iterator<Item = usize> {
    (0..contestants).map(move |place| (round + place) % contestants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_values_and_both_ends() {
        let spread = Spread::of([3.0, 1.0, 2.0]);
        let [median, least, most] = [2.0, 1.0, 3.0];
        assert_eq!(
            spread,
            Some(Spread {
                median,
                least,
                most
            })
        );
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_ratio_is_taken_inside_a_round() {
        let mut rounds = Rounds::new(["lb", "other"], ["1k"], Better::Less);
        // The second round is ten times as slow for both.
        for (round, [lb, other]) in [[10.0, 20.0], [100.0, 200.0]].into_iter().enumerate() {
            rounds.add(round, 0, 0, lb);
            rounds.add(round, 1, 0, other);
        }
        let twice = Spread::of([2.0]);
        assert_eq!(rounds.ratio("lb", "other", 0), twice);
        let chart = rounds.chart("t", "ns", "flows", Shape::Bars, Some("other"));
        assert_eq!(chart.series[0].ratios, [twice]);
        assert_eq!(chart.series[0].values, [Spread::of([10.0, 100.0])]);
    }

    #[test]
    fn own_work_is_what_is_beyond_the_base() {
        let mut rounds = Rounds::new(["base", "lb", "nat"], ["1k"], Better::Less);
        for (round, times) in [1.0, 10.0].into_iter().enumerate() {
            for (who, value) in [80.0, 110.0, 100.0].into_iter().enumerate() {
                rounds.add(round, who, 0, value * times);
            }
        }
        let beyond = |base| rounds.beyond(base, ["lb", "nat"], 0);
        assert_eq!(beyond("base"), Spread::of([1.5]));
        assert_eq!(beyond("nat"), None);
        assert_eq!(beyond("absent"), None);
    }

    #[test]
    fn what_was_not_measured_has_no_value() {
        let mut rounds = Rounds::new(["lb", "other"], ["1k", "1M"], Better::More);
        rounds.add(0, 0, 1, 5.0);
        assert_eq!(rounds.ratio("lb", "other", 1), None);
        assert_eq!(rounds.ratio("lb", "absent", 1), None);
        let chart = rounds.chart("t", "ns", "flows", Shape::Lines, None);
        assert_eq!(chart.series[0].values, [None, Spread::of([5.0])]);
        assert!(chart.series[0].ratios.is_empty());
    }

    #[test]
    fn everyone_is_first_once() {
        assert_eq!(turns(0, 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns(4, 3).collect::<Vec<_>>(), [1, 2, 0]);
    }
}
