//! What preflight found: one line each, and what the operator should do about it.

use anyhow::{Result, bail};

use crate::table;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Ok,
    Warn,
    Stop,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) checked: &'static str,
    pub(crate) found: String,
    /// What the operator should do; empty when all is well.
    advice: String,
}

impl Finding {
    pub(crate) fn ok(checked: &'static str, found: impl Into<String>) -> Self {
        Self {
            level: Level::Ok,
            checked,
            found: found.into(),
            advice: String::new(),
        }
    }

    pub(crate) fn warn(checked: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self {
            level: Level::Warn,
            checked,
            found: found.into(),
            advice: advice.to_owned(),
        }
    }

    pub(crate) fn stop(
        checked: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            level: Level::Stop,
            checked,
            found: found.into(),
            advice: advice.into(),
        }
    }
}

/// Prints every finding.
///
/// # Errors
/// When any of them is a stop.
pub(crate) fn report(findings: &[Finding]) -> Result<()> {
    let rows: Vec<Vec<String>> = findings
        .iter()
        .map(|finding| {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Warn => "warn",
                Level::Stop => "STOP",
            };
            vec![
                level.to_owned(),
                finding.checked.to_owned(),
                finding.found.clone(),
            ]
        })
        .collect();
    eprintln!("preflight");
    for (line, finding) in table::lines(&rows).iter().zip(findings) {
        eprintln!("  {line}");
        if !finding.advice.is_empty() {
            eprintln!("        -> {}", finding.advice);
        }
    }
    let stops = findings
        .iter()
        .filter(|finding| finding.level == Level::Stop)
        .count();
    if stops > 0 {
        bail!(
            "preflight: {stops} of the findings above must be put right first; nothing was installed"
        );
    }
    Ok(())
}
