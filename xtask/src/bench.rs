//! `cargo xtask bench`: build as the user, then become lb-bench, as root.

use std::{fs, process::ExitCode};

use anyhow::{Context as _, Result};

use crate::{cmd::Cmd, run, setup, stock::Purpose, workspace::Workspace};

/// Sets up, builds and measures; on success this does not return, because xtask becomes the program.
///
/// # Errors
/// When set-up, the build or the start fails.
pub(crate) fn bench(words: &[String], yes: bool) -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Bench, yes)?;
    run::build(&workspace)?;
    Err(command(&workspace, words)?.exec())
}

/// lb-bench with these arguments. Its report goes to the target folder, in a folder that is the user's; lb-bench
/// gives the user what it writes there.
///
/// # Errors
/// When the folder cannot be made.
pub(crate) fn command(workspace: &Workspace, words: &[String]) -> Result<Cmd> {
    let folder = workspace.target.join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let program = run::binary(workspace, "lb-bench");
    let command = run::elevated(workspace, &program, &[("LB_BIN", run::lb(workspace))]);
    Ok(command.arg("--output").arg(folder).args(words))
}
