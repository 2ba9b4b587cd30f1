//! `cargo xtask reference` and `man`: what is generated from the declarations of lb-user, which this crate cannot read.
//! The tests that look at it write it.

use std::process::ExitCode;

use anyhow::Result;

use crate::{cmd::Cmd, setup, stock::Purpose, workspace::Workspace};

/// What has the tests write the files first.
const WRITE: &str = "LB_WRITE_REFERENCE";

/// What has them write the manual pages into a folder.
const MAN_FOLDER: &str = "LB_MAN_FOLDER";

/// The pages of docs/ that are generated, and the comments of the example.
///
/// # Errors
/// When set-up or a test fails.
pub(crate) fn write() -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Check, false)?;
    tests(&workspace).env(WRITE, "1").run()?;
    Ok(ExitCode::SUCCESS)
}

/// The manual pages.
///
/// # Errors
/// When set-up or the test fails.
pub(crate) fn man() -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Man, false)?;
    let folder = workspace.target.join("man");
    tests(&workspace)
        .arg("man::")
        .env(MAN_FOLDER, &folder)
        .run()?;
    println!("{}", folder.display());
    Ok(ExitCode::SUCCESS)
}

fn tests(workspace: &Workspace) -> Cmd {
    workspace
        .cargo()
        .args(["test", "--package", "lb-user", "--test", "reference"])
        .env("AYA_BUILD_SKIP", "1")
}
