//! Requests to the running control plane.

use std::{
    fmt::{self, Display, Formatter},
    process::ExitCode,
};

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    USAGE,
    arguments::{Format, Show},
    changes::{self, Wording},
    color, new_process, print,
};
use crate::{
    admin::client::{self, Failure},
    api::{Answer, Changes, ControlStatus, Filter, FlowLine, Request},
    model::seconds::Seconds,
};

/// The control plane, or the command line itself, has refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusedCommand {
    usage: bool,
    reasons: Vec<String>,
}

impl RefusedCommand {
    /// Because of the request itself.
    pub(super) fn usage(reason: String) -> Self {
        Self {
            usage: true,
            reasons: vec![reason],
        }
    }

    pub(super) fn exit_code(&self) -> ExitCode {
        match self.usage {
            true => ExitCode::from(USAGE),
            false => ExitCode::FAILURE,
        }
    }
}

impl Display for RefusedCommand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reasons.join("\n"))
    }
}

impl std::error::Error for RefusedCommand {}

/// The answer of `-o json` of what changes something, or would.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum ChangeReport<'a> {
    /// It is done.
    Done {
        /// What came of it, a line each, for people.
        lines: &'a [String],
    },
    /// What a plan would change, or a reload has.
    Changes {
        /// What changes in the configuration, in the words of the file.
        keys: &'a [String],
        /// The map operations in their order, a line each; none if nothing changes.
        operations: &'a [String],
        /// Flows that end with it, as `service api-a: every flow`.
        ends: &'a [String],
        /// What the operator should know.
        warnings: &'a [String],
        /// Until when it must be confirmed, from now.
        #[schemars(with = "Option<Seconds>")]
        confirm_seconds: Option<u64>,
    },
    /// It is refused, or failed.
    Refused {
        /// Whether the configuration or the request is wrong, and not the host.
        usage: bool,
        /// Every reason, a line each.
        reasons: &'a [String],
    },
}

impl<'a> ChangeReport<'a> {
    /// Of an answer to a change.
    fn of(answer: &'a Answer) -> Result<Self> {
        Ok(match answer {
            Answer::Done { lines } => Self::Done { lines },
            Answer::Changes(Changes {
                keys,
                operations,
                ends,
                warnings,
                confirm_seconds,
            }) => Self::Changes {
                keys,
                operations,
                ends,
                warnings,
                confirm_seconds: *confirm_seconds,
            },
            Answer::Refused { usage, reasons } => Self::Refused {
                usage: *usage,
                reasons,
            },
            Answer::Health(_)
            | Answer::NewProcess { .. }
            | Answer::Legs { .. }
            | Answer::RefusedNames { .. }
            | Answer::Ha(_)
            | Answer::Events { .. } => bail!(OTHER_ANSWER),
        })
    }
}

/// Has something done, and prints what comes of it, with the operations on the maps if they are wanted; returns whether
/// the configuration or a map changes.
pub(super) fn order(request: &Request, operations: bool, show: &Show) -> Result<bool> {
    let instance = &show.instance.name;
    request.check().map_err(RefusedCommand::usage)?;
    let answer = match client::ask(instance, request)? {
        Answer::NewProcess {
            changes,
            file,
            process,
            unit,
        } => {
            new_process::start(instance, &file, process, unit.as_deref())?;
            Answer::Changes(changes)
        }
        answer => answer,
    };
    if show.output.format == Format::Json {
        print::report(&ChangeReport::of(&answer)?)?;
    }
    let changes = matches!(&answer, Answer::Changes(changes) if !changes.is_empty());
    let how = Wording {
        applied: matches!(request, Request::Reload { .. }),
        operations,
        instance,
    };
    let paint = match &answer {
        Answer::Changes(_) => color::change,
        _ => str::to_owned,
    };
    for line in words(answer, &how)? {
        if show.output.format == Format::Table {
            print::line(paint(&line))?;
        }
    }
    Ok(changes)
}

/// An answer in words for people; a refusal is an error.
fn words(answer: Answer, how: &Wording<'_>) -> Result<Vec<String>> {
    match answer {
        Answer::Done { lines } => Ok(lines),
        Answer::Changes(changes) => Ok(changes::words(changes, how)),
        Answer::Refused { usage, reasons } => Err(RefusedCommand { usage, reasons }.into()),
        Answer::Health(_)
        | Answer::NewProcess { .. }
        | Answer::Legs { .. }
        | Answer::RefusedNames { .. }
        | Answer::Ha(_)
        | Answer::Events { .. } => bail!(OTHER_ANSWER),
    }
}

/// Where the control plane stands, or why that is not known.
pub(super) fn health(instance: &str) -> Result<ControlStatus, String> {
    match client::ask(instance, &Request::Health) {
        Ok(Answer::Health(status)) => Ok(status),
        Ok(Answer::Refused { reasons, .. }) => Err(reasons.join(", ")),
        Ok(_) => Err(OTHER_ANSWER.to_owned()),
        Err(Failure::NotRunning { .. }) => {
            Err("no control plane runs (`lb run` starts it)".to_owned())
        }
        Err(failure) => Err(failure.to_string()),
    }
}

/// The connections of shared VIPs that are meant. They live in the control plane: without one there are
/// none.
pub(super) fn legs(instance: &str, filter: &Filter) -> Vec<FlowLine> {
    match client::ask(instance, &Request::Legs(filter.clone())) {
        Ok(Answer::Legs { legs }) => legs,
        _ => Vec::new(),
    }
}

/// The error for an answer to another request.
pub(super) const OTHER_ANSWER: &str =
    "the control plane answers something else: it is of another version than this `lb`";

/// How to write a command for this instance.
pub(super) fn command(words: &str, instance: &str) -> String {
    match instance {
        "main" => format!("lb {words}"),
        other => format!("lb {words} --instance {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::report::Versioned;

    const PLAN: Wording<'_> = Wording {
        applied: false,
        operations: false,
        instance: "main",
    };

    #[test]
    fn a_refusal_says_every_reason_and_whose_fault_it_is() {
        let refused = |usage| {
            let reasons = vec!["a:1: b".to_owned(), "a:2: c".to_owned()];
            let error = words(Answer::Refused { usage, reasons }, &PLAN).unwrap_err();
            error.downcast::<RefusedCommand>().unwrap()
        };
        assert_eq!(refused(true).to_string(), "a:1: b\na:2: c");
        assert_eq!(refused(true).exit_code(), ExitCode::from(2));
        assert_eq!(refused(false).exit_code(), ExitCode::FAILURE);
    }

    #[test]
    fn a_change_is_in_json_what_became_of_it() {
        let json = |answer: &Answer| {
            let report = Versioned::new(ChangeReport::of(answer).unwrap());
            serde_json::to_string(&report).unwrap()
        };
        let lines = vec!["kept".to_owned()];
        assert_eq!(
            json(&Answer::Done { lines }),
            r#"{"version":1,"answer":"done","lines":["kept"]}"#
        );
        assert_eq!(
            json(&Answer::Changes(Changes::default())),
            concat!(
                r#"{"version":1,"answer":"changes","keys":[],"operations":[],"ends":[],"#,
                r#""warnings":[],"confirm_seconds":null}"#
            )
        );
        let reasons = vec!["no".to_owned()];
        assert_eq!(
            json(&Answer::Refused {
                usage: true,
                reasons
            }),
            r#"{"version":1,"answer":"refused","usage":true,"reasons":["no"]}"#
        );
        let other = Answer::Events { events: Vec::new() };
        assert!(ChangeReport::of(&other).is_err());
    }

    #[test]
    fn an_answer_to_another_question_is_an_error() {
        let other = Answer::Events { events: vec![] };
        let error = words(other, &PLAN).unwrap_err();
        assert!(error.to_string().contains("another version"));
        let lines = vec!["pool p: b drains".to_owned()];
        let done = Answer::Done {
            lines: lines.clone(),
        };
        assert_eq!(words(done, &PLAN).unwrap(), lines);
    }

    #[test]
    fn a_command_names_its_instance_if_it_is_not_the_usual_one() {
        assert_eq!(command("confirm", "main"), "lb confirm");
        assert_eq!(command("confirm", "lab"), "lb confirm --instance lab");
    }
}
