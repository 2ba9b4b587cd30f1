//! A goal on a line: what it must reach, what it aims at, and where it is.

use serde::Serialize;

use crate::{
    report::scale::tenth,
    report::{Goal, Wanted},
};

/// The line's length; what is beyond its end stands at its end.
pub(crate) const LENGTH: f64 = 200.0;

/// Places on the line, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Gauge {
    pub(crate) must: f64,
    /// From here to there the aim is reached.
    pub(crate) aim: [f64; 2],
    /// The least, the median and the most.
    pub(crate) measured: Option<[f64; 3]>,
}

impl Gauge {
    /// None where there is no goal.
    pub(crate) fn of(goal: &Goal) -> Option<Self> {
        let Wanted { must, aim } = goal.wanted?;
        // Room for what is better than the aim, and for what is worse than what must be.
        let measured = goal.measured.map_or(0.0, |measured| measured.most);
        let end = 1.1 * measured.min(3.0 * must.max(aim));
        let end = end.max(1.3 * must.max(aim));
        let at = |value: f64| tenth((value / end).clamp(0.0, 1.0) * LENGTH);
        Some(Self {
            must: at(must),
            aim: match goal.less_is_better {
                true => [0.0, at(aim)],
                false => [at(aim), LENGTH],
            },
            measured: goal
                .measured
                .map(|measured| [measured.least, measured.median, measured.most].map(at)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    fn gauge(must: f64, aim: f64, measured: &[f64]) -> Gauge {
        let measured = Spread::of(measured.iter().copied());
        Gauge::of(&Goal::new("", [must, aim], measured)).expect("a goal")
    }

    #[test]
    fn the_aim_is_on_the_side_of_the_better() {
        let more = gauge(4.5, 6.0, &[5.0]);
        assert!(more.must < more.aim[0] && more.aim[1] == LENGTH);
        let less = gauge(2.0, 1.6, &[]);
        assert!(less.aim[0] == 0.0 && less.aim[1] < less.must && less.must < LENGTH);
        assert_eq!(less.measured, None);
    }

    #[test]
    fn what_is_far_away_is_at_the_end() {
        let [least, median, most] = gauge(4.5, 6.0, &[1.0, 5.0, 600.0])
            .measured
            .expect("a value");
        assert!(least < median && median < most);
        assert_eq!(most, LENGTH);
    }
}
