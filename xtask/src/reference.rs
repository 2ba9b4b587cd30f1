//! `cargo xtask reference`: the pages that are generated and the comments of the example, written by the tests that
//! compare them.

use std::process::ExitCode;

use anyhow::Result;

use crate::{setup, stock::Purpose};

/// What has the tests write the files first.
const WRITE: &str = "LB_WRITE_REFERENCE";

/// The tests.
const TEST: &str = "reference";

/// # Errors
/// When set-up or a test fails.
pub(crate) fn write() -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Check, false)?;
    workspace
        .cargo()
        .args(["test", "--package", "lb-user", "--test", TEST])
        .env("AYA_BUILD_SKIP", "1")
        .env(WRITE, "1")
        .run()?;
    Ok(ExitCode::SUCCESS)
}
