//! `cargo xtask reference`: the page of the configuration, written by the test that compares it.

use std::process::ExitCode;

use anyhow::Result;

use crate::{setup, stock::Purpose};

/// What has the test write the page first.
const WRITE: &str = "LB_WRITE_REFERENCE";

/// The test, by a part of its name.
const TEST: &str = "config::tests::reference";

/// # Errors
/// When set-up or the test fails.
pub(crate) fn write() -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Check, false)?;
    workspace
        .cargo()
        .args(["test", "--package", "lb-user", "--lib", TEST])
        .env("AYA_BUILD_SKIP", "1")
        .env(WRITE, "1")
        .run()?;
    Ok(ExitCode::SUCCESS)
}
