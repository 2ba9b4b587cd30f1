//! `--careful`: the interfaces of the operator's own way in are not taken without a word.

use std::io::{self, IsTerminal as _};

use anyhow::{Result, ensure};

use super::run::Options;
use crate::{config::Config, control::applied::is_applied, dataplane::pins::Pins, host};

/// Refuses interfaces that carry this session or the default route, where that may lock the operator out.
pub(super) fn refuse_access_interfaces(
    options: &Options,
    pins: &Pins,
    config: &Config,
) -> Result<()> {
    let was_applied = pins.exist() || is_applied(pins);
    let careful = is_careful(options.careful, io::stdin().is_terminal(), was_applied);
    if !careful || options.confirm.is_some() {
        return Ok(());
    }
    let problems = host::access_interfaces(config);
    // What is up already is not undone.
    let confirm = match pins.exist() {
        true => "",
        false => "`--confirm 60s`: everything is taken down again unless you confirm, or ",
    };
    ensure!(
        problems.is_empty(),
        "{}; add {confirm}`--no-careful`: it is taken as any other",
        problems.join("\n")
    );
    Ok(())
}

/// Whether such interfaces are refused: as `asked`, or else on a terminal, and where nothing was ever
/// applied. What has no terminal is a unit or a script, which must come up again over what it has made.
fn is_careful(asked: Option<bool>, on_terminal: bool, was_applied: bool) -> bool {
    asked.unwrap_or(on_terminal || !was_applied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_asked_and_a_unit_comes_up_again() {
        for (asked, on_terminal, was_applied, careful) in [
            (None, true, true, true),
            (None, true, false, true),
            (None, false, false, true),
            (None, false, true, false),
            (Some(true), false, true, true),
            (Some(false), true, false, false),
            (Some(false), false, false, false),
        ] {
            assert_eq!(is_careful(asked, on_terminal, was_applied), careful);
        }
    }
}
