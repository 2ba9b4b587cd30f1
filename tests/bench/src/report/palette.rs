//! How each contestant looks, the same in all charts: lb's own colours, and symbols too, because not everyone
//! sees colours.

use serde::Serialize;

use crate::report::Report;

/// The page has this many colours for lb, and for others.
const OURS: usize = 2;
const THEIRS: usize = 7;

/// Outlines around 0: what marks a point.
const SYMBOLS: [&str; 8] = [
    "M-4-4H4V4H-4Z",
    "M0-5.5 5.5 0 0 5.5-5.5 0Z",
    "M0-5 5 4H-5Z",
    "M0 5-5-4H5Z",
    "M-5-2H-2V-5H2V-2H5V2H2V5H-2V2H-5Z",
    "M-2-5H2V5H-2Z",
    "M-5-2H5V2H-5Z",
    "M0-5.5 5-1 3 5H-3L-5-1Z",
];
const CIRCLE: &str = "M-5 0A5 5 0 1 1 5 0 5 5 0 1 1-5 0Z";

/// A class of the page's style sheet, and a symbol's outline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Style {
    pub(crate) class: String,
    pub(crate) symbol: &'static str,
    pub(crate) ours: bool,
}

/// The contestants of a report in the order of the charts; of ours, `lb` is the first.
#[derive(Clone, Debug)]
pub(crate) struct Palette {
    ours: Vec<String>,
    theirs: Vec<String>,
}

impl Palette {
    pub(crate) fn of(report: &Report) -> Self {
        let charts = report.suites.iter().flat_map(|suite| &suite.charts);
        let names = charts
            .flat_map(|chart| &chart.series)
            .map(|series| &series.name);
        let lb = "lb".to_owned();
        let (mut ours, mut theirs) = (vec![lb], Vec::new());
        for name in names {
            let names: &mut Vec<String> = if is_ours(name) {
                &mut ours
            } else {
                &mut theirs
            };
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        Self { ours, theirs }
    }

    pub(crate) fn style(&self, name: &str) -> Style {
        let ours = is_ours(name);
        let names = if ours { &self.ours } else { &self.theirs };
        let place = names.iter().position(|one| one == name).unwrap_or(0);
        let (kind, colours) = if ours { ("lb", OURS) } else { ("c", THEIRS) };
        // Ours take them from the end, so that they meet the others' late.
        let symbol = match (ours, place) {
            (true, 0) => Some(&CIRCLE),
            (true, place) => SYMBOLS.iter().rev().cycle().nth(place - 1),
            (false, place) => SYMBOLS.iter().cycle().nth(place),
        };
        Style {
            class: format!("{kind}{}", place % colours),
            symbol: symbol.unwrap_or(&CIRCLE),
            ours,
        }
    }
}

/// `lb`, and `lb` with something said of it.
fn is_ours(name: &str) -> bool {
    let rest = name.strip_prefix("lb");
    rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn lb_and_what_is_said_of_it_are_ours() {
        for name in ["lb", "lb, request", "lb (hand-off)"] {
            assert!(is_ours(name), "{name}");
        }
        for name in ["bare", "lbx", "loxilb", ""] {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn everyone_looks_different() {
        let palette = Palette::of(&sample::report());
        let names = palette.ours.iter().chain(&palette.theirs);
        let styles: Vec<_> = names.map(|name| palette.style(name)).collect();
        for (place, style) in styles.iter().enumerate() {
            assert!(!styles[..place].contains(style), "{style:?}");
        }
        assert_eq!(palette.style("lb").class, "lb0");
    }
}
