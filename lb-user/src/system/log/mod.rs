//! The log of this process, on standard error: as text, as JSON, or as the journal reads it.

mod line;

use std::{
    env,
    fmt::{self, Display, Formatter},
    fs::{File, Metadata},
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
};

use tracing_subscriber::EnvFilter;

use self::line::{LineFormat, LinePrefix};

/// How a line of the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Time, level, subject and message, for people.
    Text,
    /// One object of JSON.
    Json,
    /// As text, without the time, and with the level as the journal reads it (sd-daemon(3)).
    Journal,
}

impl LogFormat {
    pub(crate) const ALL: [Self; 3] = [Self::Text, Self::Json, Self::Journal];

    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.to_string() == name)
    }
}

impl Display for LogFormat {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Journal => "journal",
        })
    }
}

/// Logs to standard error what `filter` lets pass. Without a `format`, as standard error has it: the journal, or text.
pub(crate) fn init(filter: EnvFilter, format: Option<LogFormat>, has_colors: bool) {
    let is_journal = is_journal();
    let format = format.unwrap_or(match is_journal {
        true => LogFormat::Journal,
        false => LogFormat::Text,
    });
    let line = LineFormat {
        is_json: format == LogFormat::Json,
        prefix: match (format, is_journal) {
            (LogFormat::Journal, _) | (_, true) => LinePrefix::Priority,
            _ => LinePrefix::None,
        },
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(has_colors && format == LogFormat::Text && !is_journal)
        // It would print that a line cannot be printed, and panic of that.
        .log_internal_errors(false)
        .event_format(line)
        .with_writer(io::stderr)
        .init();
}

/// Whether standard error leads to the journal.
fn is_journal() -> bool {
    let error = io::stderr().as_fd().try_clone_to_owned();
    let found = error.and_then(|error| File::from(error).metadata());
    found.is_ok_and(|found| leads_to_journal(&found))
}

/// Whether this is the socket of the journal, as systemd names it (systemd.exec(5)).
pub(crate) fn leads_to_journal(found: &Metadata) -> bool {
    let journal = format!("{}:{}", found.dev(), found.ino());
    env::var("JOURNAL_STREAM").is_ok_and(|stream| stream == journal)
}
