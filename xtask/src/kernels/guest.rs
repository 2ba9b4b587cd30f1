//! What a guest has printed: the lines of tests/kernels/guest.sh.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Result, bail};

/// The titles of the table.
pub(super) const TITLES: [&str; 9] = [
    "kernel", "loads", "verified", "veth", "virtio", "packet", "netns", "lab", "seconds",
];

/// What a guest has printed.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// Whether it came to the end of its steps.
    pub(super) is_whole: bool,
    /// The steps, and how each ended.
    steps: Vec<(String, String)>,
    facts: BTreeMap<String, Vec<String>>,
}

impl Report {
    pub(super) fn read(output: &str) -> Self {
        let mut report = Self::default();
        for line in output.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match *words.as_slice() {
                ["STEP", name, result, ..] => {
                    report.steps.push((name.to_owned(), result.to_owned()));
                }
                ["FACT", name, ref values @ ..] => {
                    let known = report.facts.entry(name.to_owned()).or_default();
                    known.extend(values.iter().map(|&value| value.to_owned()));
                }
                ["END"] => report.is_whole = true,
                _ => {}
            }
        }
        report
    }

    fn result(&self, step: &str) -> Option<&str> {
        let found = self.steps.iter().find(|(name, _)| name == step);
        found.map(|(_, result)| result.as_str())
    }

    /// Whether all of these steps were done, and well.
    ///
    /// # Errors
    /// Those that were not.
    pub(super) fn judged(&self, steps: &[&str]) -> Result<()> {
        let bad = steps.iter().filter(|step| self.result(step) != Some("ok"));
        let bad: Vec<_> = bad
            .map(|step| format!("{step}: {}", self.result(step).unwrap_or("not reached")))
            .collect();
        if !bad.is_empty() {
            bail!("{}", bad.join(", "));
        }
        Ok(())
    }

    fn fact(&self, name: &str) -> String {
        let values = self.facts.get(name).map(|values| values.join(" "));
        values.unwrap_or_else(|| "-".to_owned())
    }

    /// A row of the table.
    pub(super) fn row(&self, package: &str, time: Duration) -> Vec<String> {
        let loads = match (self.result("load"), self.result("refuse")) {
            (Some("ok"), _) => "yes",
            (_, Some("ok")) => "refused",
            _ => "NO",
        };
        let of = |step: &str| match self.result(step) {
            Some("ok") | None => self.fact(step),
            Some(result) => format!("{result} ({})", self.fact(step)),
        };
        let lab = self.result("lab").unwrap_or("-").to_owned();
        let kernel = match self.facts.get("kernel") {
            Some(release) => release.join(" "),
            None => package.to_owned(),
        };
        let seconds = time.as_secs().to_string();
        let verified = self.fact("verified");
        [
            kernel,
            loads.to_owned(),
            verified,
            self.fact("veth"),
            self.fact("virtio"),
            of("packet"),
            of("netns"),
            lab,
            seconds,
        ]
        .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "FACT kernel 6.1.0-56-cloud-amd64\n  | STEP by the way\nFACT verified 363996\n\
                        STEP verifier ok 4.1\nFACT veth native IPv4\nSTEP load ok 6.0\nFACT veth handed-over\n\
                        FACT packet 250 of 251\nSTEP packet FAILED 60.2\nEND\n";

    #[test]
    fn steps_that_failed_or_were_not_reached_are_named() {
        let report = Report::read(SAID);
        assert!(report.is_whole);
        assert!(report.judged(&["verifier", "load"]).is_ok());
        let error = report.judged(&["load", "packet", "lab"]).unwrap_err();
        assert_eq!(error.to_string(), "packet: FAILED, lab: not reached");
        assert!(!Report::read("STEP load ok 6.0\n").is_whole);
    }

    #[test]
    fn a_row_says_what_was_found() {
        let row = Report::read(SAID).row("linux-image-x", Duration::from_millis(61_900));
        let expected = [
            "6.1.0-56-cloud-amd64",
            "yes",
            "363996",
            "native IPv4 handed-over",
            "-",
            "FAILED (250 of 251)",
            "-",
            "-",
            "61",
        ];
        assert_eq!(row, expected);
        let refused =
            Report::read("STEP refuse ok 1.0\nEND\n").row("linux-image-x", Duration::ZERO);
        assert_eq!(
            refused.get(..2),
            Some(&["linux-image-x", "refused"].map(str::to_owned)[..])
        );
    }
}
