//! What a run has found: everything that the table, the JSON file and the HTML page show.

mod columns;
mod figure;
mod gauge;
mod html;
mod palette;
mod plot;
#[cfg(test)]
mod sample;
mod scale;
pub(crate) mod text;

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::{
    machine::Machine,
    measure::{Chart, Spread},
};

/// A run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// With `--quick` figures are of too few packets to be quoted.
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    pub(crate) suites: Vec<Suite>,
}

impl Report {
    /// Writes the report's files into a folder, which is made, and says which. They belong to the folder's owner:
    /// root would leave files in a user's target folder.
    ///
    /// # Errors
    ///
    /// When they cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> Result<[PathBuf; 2]> {
        fs::create_dir_all(folder)
            .with_context(|| format!("make the folder {}", folder.display()))?;
        let owner = fs::metadata(folder).context("ask whose the folder is")?;
        let files = ["report.json", "report.html"].map(|name| folder.join(name));
        let texts = [serde_json::to_string_pretty(self)?, html::page(self)?];
        for (file, text) in files.iter().zip(texts) {
            fs::write(file, text).with_context(|| format!("write {}", file.display()))?;
            chown(file, Some(owner.uid()), Some(owner.gid()))
                .with_context(|| format!("give {} to its owner", file.display()))?;
        }
        Ok(files)
    }
}

/// What one suite has found.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    /// How it was measured, in a few sentences.
    pub(crate) method: String,
    pub(crate) charts: Vec<Chart>,
    /// What was checked, with counts: packets or bytes that were right.
    pub(crate) checked: Vec<String>,
    pub(crate) goals: Vec<Goal>,
    pub(crate) contestants: Vec<Shown>,
    pub(crate) missing: Vec<Missing>,
}

/// Where lb stands, and where it should; a ratio, or what no machine changes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) what: String,
    /// None where a figure is shown without a goal.
    pub(crate) wanted: Option<Wanted>,
    pub(crate) less_is_better: bool,
    pub(crate) measured: Option<Spread>,
}

/// What must be reached, and what is aimed at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Wanted {
    pub(crate) must: f64,
    pub(crate) aim: f64,
}

/// How far lb has come to a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Standing {
    Aim,
    Must,
    Misses,
    NotMeasured,
    NoGoal,
}

impl Goal {
    /// A figure with a goal; the better figures are on the side of the aim.
    pub(crate) fn new(
        what: impl Into<String>,
        [must, aim]: [f64; 2],
        measured: Option<Spread>,
    ) -> Self {
        Self {
            what: what.into(),
            wanted: Some(Wanted { must, aim }),
            less_is_better: aim < must,
            measured,
        }
    }

    /// A gain without a goal.
    pub(crate) fn gain(what: impl Into<String>, measured: Option<Spread>) -> Self {
        Self {
            less_is_better: false,
            ..Self::cost(what, measured)
        }
    }

    /// A cost without a goal.
    pub(crate) fn cost(what: impl Into<String>, measured: Option<Spread>) -> Self {
        Self {
            what: what.into(),
            wanted: None,
            less_is_better: true,
            measured,
        }
    }

    /// By the median.
    pub(crate) fn standing(&self) -> Standing {
        let Some(measured) = self.measured else {
            return Standing::NotMeasured;
        };
        let Some(Wanted { must, aim }) = self.wanted else {
            return Standing::NoGoal;
        };
        let reaches = |goal: f64| match self.less_is_better {
            true => measured.median <= goal,
            false => measured.median >= goal,
        };
        match (reaches(aim), reaches(must)) {
            (true, _) => Standing::Aim,
            (false, true) => Standing::Must,
            (false, false) => Standing::Misses,
        }
    }
}

impl Standing {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Aim => "reaches the aim",
            Self::Must => "reaches the must",
            Self::Misses => "misses",
            Self::NotMeasured => "not measured",
            Self::NoGoal => "has no goal",
        }
    }
}

/// A contestant and how it was set up, in its own language.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Shown {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) configuration: String,
}

/// A contestant that is not there, and why.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Missing {
    pub(crate) name: &'static str,
    pub(crate) why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(must: f64, aim: f64, measured: Option<f64>) -> Standing {
        Goal::new("", [must, aim], Spread::of(measured)).standing()
    }

    #[test]
    fn the_median_says_where_lb_stands() {
        assert_eq!(standing(4.5, 6.0, Some(6.0)), Standing::Aim);
        assert_eq!(standing(4.5, 6.0, Some(5.9)), Standing::Must);
        assert_eq!(standing(4.5, 6.0, Some(4.4)), Standing::Misses);
        assert_eq!(standing(4.5, 6.0, None), Standing::NotMeasured);
    }

    #[test]
    fn less_may_be_better() {
        assert_eq!(standing(2.0, 1.6, Some(1.6)), Standing::Aim);
        assert_eq!(standing(2.0, 1.6, Some(1.7)), Standing::Must);
        assert_eq!(standing(2.0, 1.6, Some(2.1)), Standing::Misses);
    }

    #[test]
    fn a_figure_without_a_goal_reaches_none() {
        let figure = Goal::cost("", Spread::of([1.0]));
        assert_eq!(figure.standing(), Standing::NoGoal);
    }
}
