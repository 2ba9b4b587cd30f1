//! `lb plan`, `lb reload` and `lb confirm`.

use std::{
    path::{self, Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result};

use super::{
    arguments::Show,
    ask::{self, RefusedCommand, command},
};
use crate::{
    api::{Changes, Request},
    config::time_text,
    daemon::migrate::refused_start,
    dataplane::pins::Pins,
    system::output,
};

/// Exit code of a plan with changes, as of `terraform plan -detailed-exitcode` and the like: not that of a failure.
const CHANGES: u8 = 3;

/// How changes are put into words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wording<'i> {
    /// Whether they are made already.
    pub(super) applied: bool,
    /// Whether with each operation on the maps.
    pub(super) operations: bool,
    pub(super) instance: &'i str,
}

/// The exit code says whether anything changes.
pub(super) fn plan(file: &Path, operations: bool, show: &Show) -> Result<ExitCode> {
    if let Some(why) = refused_start(&Pins::new(&show.instance.name))? {
        output::print_error(why);
    }
    let file = absolute(file)?;
    let changes = ask::order(&Request::Plan { file }, operations, show)?;
    Ok(match changes {
        true => ExitCode::from(CHANGES),
        false => ExitCode::SUCCESS,
    })
}

pub(super) fn reload(file: Option<&Path>, confirm: Option<Duration>, show: &Show) -> Result<()> {
    let request = Request::Reload {
        file: file.map(absolute).transpose()?,
        confirm_seconds: confirm.map(|time| time.as_secs()),
    };
    ask::order(&request, false, show).map(drop)
}

pub(super) fn confirm(show: &Show) -> Result<()> {
    ask::order(&Request::Confirm, false, show).map(drop)
}

/// A path that means the same to another process: no standard input, pipe or descriptor of this one.
fn absolute(file: &Path) -> Result<PathBuf> {
    let is_of_this_process = match file.metadata() {
        Ok(found) => !found.is_file() && !found.is_dir(),
        // The control plane says what is wrong with a file that is not there.
        Err(_) => file == Path::new("-"),
    };
    if is_of_this_process {
        return Err(RefusedCommand::usage(format!(
            "{} is no file that the control plane can read; write the configuration to one, or check it alone: \
             `lb check -`",
            file.display()
        ))
        .into());
    }
    path::absolute(file).with_context(|| format!("find {}", file.display()))
}

/// What changes, or has changed: a key a line, then what ends with it, then warnings. The operations on the maps where
/// they are wanted, or where they are all: what was changed by hand, and is mended.
pub(super) fn words(changes: Changes, how: &Wording<'_>) -> Vec<String> {
    let is_empty = changes.is_empty();
    let Changes {
        keys,
        operations,
        ends,
        warnings,
        confirm_seconds,
    } = changes;
    let with_operations = how.operations || keys.is_empty();
    let mut lines = keys;
    if with_operations {
        lines.extend(operations);
    }
    if is_empty {
        lines.push("nothing changes".to_owned());
    } else if how.applied {
        lines.push("applied".to_owned());
    }
    lines.extend(ends.iter().map(|flows| format!("ends: {flows}")));
    lines.extend(warnings.iter().map(|words| format!("warning: {words}")));
    if let Some(seconds) = confirm_seconds {
        let confirm = command("confirm", how.instance);
        lines.push(format!(
            "goes back to what was before in {}, unless you confirm: `{confirm}`",
            time_text(Duration::from_secs(seconds))
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes() -> Changes {
        Changes {
            keys: vec!["pool p: backend a: added".to_owned()],
            operations: vec!["set backend p/a".to_owned(), "set pool p".to_owned()],
            ends: vec!["service api-a: every flow".to_owned()],
            warnings: vec!["pool p: slow".to_owned()],
            confirm_seconds: Some(90),
        }
    }

    fn wording(applied: bool, operations: bool, instance: &str) -> Wording<'_> {
        Wording {
            applied,
            operations,
            instance,
        }
    }

    #[test]
    fn a_plan_has_a_line_for_each_key_and_what_comes_of_them() {
        assert_eq!(
            words(changes(), &wording(false, false, "lab")),
            [
                "pool p: backend a: added",
                "ends: service api-a: every flow",
                "warning: pool p: slow",
                "goes back to what was before in 1m30s, unless you confirm: \
                 `lb confirm --instance lab`",
            ]
        );
    }

    #[test]
    fn a_reload_says_that_it_is_applied() {
        let lines = words(changes(), &wording(true, false, "main"));
        assert_eq!(lines[1], "applied");
        assert!(lines[4].ends_with("`lb confirm`"), "{}", lines[4]);
    }

    #[test]
    fn operations_are_there_where_they_are_wanted_or_nothing_else_is() {
        let operations = ["set backend p/a", "set pool p"];
        let lines = words(changes(), &wording(false, true, "main"));
        assert_eq!(lines[1..3], operations);
        let mended = Changes {
            keys: Vec::new(),
            ..changes()
        };
        assert_eq!(
            words(mended, &wording(false, false, "main"))[..2],
            operations
        );
    }

    #[test]
    fn without_changes_nothing_changes() {
        for applied in [false, true] {
            let lines = words(Changes::default(), &wording(applied, true, "main"));
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

    #[test]
    fn standard_input_is_no_file_of_the_control_plane() {
        for file in ["-", "/dev/null"] {
            let error = absolute(Path::new(file)).unwrap_err();
            let refused = error.downcast_ref::<RefusedCommand>().unwrap();
            let words = refused.to_string();
            assert!(words.contains(&format!("{file} is no file")), "{words}");
            assert!(words.contains("`lb check -`"), "{words}");
        }
    }
}
