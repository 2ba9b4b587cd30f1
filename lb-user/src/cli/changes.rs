//! `lb plan`, `lb reload` and `lb confirm`.

use std::{
    path::{self, Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    arguments::Show,
    ask::{self, command},
};
use crate::{
    api::{Changes, Request},
    daemon::migrate::refused_start,
    dataplane::pins::Pins,
};

pub(super) fn plan(file: &Path, show: &Show) -> Result<()> {
    if let Some(why) = refused_start(&Pins::new(&show.instance.name))? {
        eprintln!("{why}");
    }
    let file = absolute(file)?;
    ask::order(&Request::Plan { file }, show)
}

pub(super) fn reload(file: Option<&Path>, confirm: Option<Duration>, show: &Show) -> Result<()> {
    let request = Request::Reload {
        file: file.map(absolute).transpose()?,
        confirm_seconds: confirm.map(|time| time.as_secs()),
    };
    ask::order(&request, show)
}

pub(super) fn confirm(show: &Show) -> Result<()> {
    ask::order(&Request::Confirm, show)
}

/// A path that means the same to another process.
fn absolute(file: &Path) -> Result<PathBuf> {
    path::absolute(file).with_context(|| format!("find {}", file.display()))
}

/// What changes, or has changed: an operation a line, then what ends with it, then warnings.
pub(super) fn words(changes: Changes, applied: bool, instance: &str) -> Vec<String> {
    let Changes {
        operations,
        ends,
        warnings,
        confirm_seconds,
    } = changes;
    let mut lines = operations;
    if lines.is_empty() {
        lines.push("nothing changes".to_owned());
    } else if applied {
        lines.push("applied".to_owned());
    }
    lines.extend(ends.iter().map(|flows| format!("ends: {flows}")));
    lines.extend(warnings.iter().map(|words| format!("warning: {words}")));
    if let Some(seconds) = confirm_seconds {
        let confirm = command("confirm", instance);
        lines.push(format!(
            "goes back to what was before in {seconds} s, unless you confirm: `{confirm}`"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Changes {
        Changes {
            operations: vec!["set backend p/a".to_owned(), "set pool p".to_owned()],
            ends: vec!["service api-a: every flow".to_owned()],
            warnings: vec!["pool p: slow".to_owned()],
            confirm_seconds: Some(30),
        }
    }

    #[test]
    fn a_plan_has_a_line_for_each_operation_and_what_comes_of_them() {
        assert_eq!(
            words(changes(), false, "lab"),
            [
                "set backend p/a",
                "set pool p",
                "ends: service api-a: every flow",
                "warning: pool p: slow",
                "goes back to what was before in 30 s, unless you confirm: \
                 `lb confirm --instance lab`",
            ]
        );
    }

    #[test]
    fn a_reload_says_that_it_is_applied() {
        let lines = words(changes(), true, "main");
        assert_eq!(lines[2], "applied");
        assert!(lines[5].ends_with("`lb confirm`"), "{}", lines[5]);
    }

    #[test]
    fn without_operations_nothing_changes() {
        for applied in [false, true] {
            let lines = words(Changes::default(), applied, "main");
            assert_eq!(lines, ["nothing changes"]);
        }
    }

    #[test]
    fn a_file_is_named_from_the_root() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            absolute(Path::new("a/lb.yaml")).unwrap(),
            here.join("a/lb.yaml")
        );
        assert_eq!(absolute(Path::new("/a")).unwrap(), Path::new("/a"));
        assert!(absolute(Path::new("")).is_err());
    }
}
