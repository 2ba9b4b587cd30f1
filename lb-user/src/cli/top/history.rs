//! What came a second, a while back: for the curve in a row.

use std::collections::{BTreeMap, VecDeque};

use crate::reports::rates::{FlowRate, FlowRates};

/// The looks that a curve has.
const LOOKS: usize = 12;
/// From none to the most.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// New flows a second of each network and service at the latest looks.
#[derive(Debug, Default)]
pub(super) struct Curves {
    networks: BTreeMap<String, VecDeque<f64>>,
    services: BTreeMap<String, VecDeque<f64>>,
}

impl Curves {
    /// Adds a look; what is not in it is forgotten.
    pub(super) fn add(&mut self, rates: &FlowRates) {
        follow(&mut self.networks, &rates.networks);
        follow(&mut self.services, &rates.services);
    }

    /// The curve of a network.
    pub(super) fn network(&self, name: &str) -> String {
        self.networks.get(name).map(curve).unwrap_or_default()
    }

    /// The curve of a service.
    pub(super) fn service(&self, name: &str) -> String {
        self.services.get(name).map(curve).unwrap_or_default()
    }
}

fn follow(all: &mut BTreeMap<String, VecDeque<f64>>, now: &BTreeMap<String, FlowRate>) {
    all.retain(|name, _| now.contains_key(name));
    for (name, rate) in now {
        let known = all.entry(name.clone()).or_default();
        known.push_back(rate.flows);
        while known.len() > LOOKS {
            known.pop_front();
        }
    }
}

/// The newest at the right; of nothing but zeros a line at the bottom.
fn curve(rates: &VecDeque<f64>) -> String {
    let most = rates.iter().copied().fold(0.0, f64::max);
    let bar = |rate: &f64| {
        let parts = BARS.len() - 1;
        let part = if most > 0.0 { rate / most } else { 0.0 };
        let level = (1..=parts).filter(|level| part * parts as f64 > *level as f64 - 0.5);
        BARS.get(level.count()).copied().unwrap_or_default()
    };
    rates.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_goes_from_none_to_the_most() {
        assert_eq!(curve(&[0.0, 0.0].into()), "▁▁");
        assert_eq!(curve(&[0.0, 1.0, 0.5, 7.0].into()), "▁▂▁█");
        assert_eq!(curve(&[0.1, 0.1].into()), "██");
    }

    #[test]
    fn the_oldest_goes_and_so_does_what_is_there_no_more() {
        let rates = |name: &str, flows| FlowRates {
            services: [(
                name.to_owned(),
                FlowRate {
                    flows,
                    ..FlowRate::default()
                },
            )]
            .into(),
            ..FlowRates::default()
        };
        let mut history = Curves::default();
        history.add(&rates("a", 9.0));
        for _ in 0..LOOKS {
            history.add(&rates("a", 1.0));
        }
        assert_eq!(history.service("a"), "█".repeat(LOOKS));
        history.add(&rates("b", 1.0));
        assert_eq!(
            (history.service("a"), history.service("b")),
            (String::new(), "█".to_owned())
        );
    }
}
