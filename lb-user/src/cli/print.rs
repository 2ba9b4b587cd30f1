//! Standard output.

use std::{fmt::Display, io::ErrorKind, process};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::{model::report::Versioned, system::output};

/// Prints a line, or several. A reader that has closed the pipe, as `head` does, wants no more: that ends the
/// program, as SIGPIPE would.
pub(super) fn line(text: impl Display) -> Result<()> {
    match output::print(text) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => process::exit(0),
        written => written.context("write to standard output"),
    }
}

/// Prints a command's answer as JSON, for programs.
pub(super) fn report(content: &impl Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(&Versioned::new(content)).context("write JSON")?)
}

/// Prints one of many answers as a line of JSON.
pub(super) fn report_line(content: &impl Serialize) -> Result<()> {
    line(serde_json::to_string(&Versioned::new(content)).context("write JSON")?)
}
