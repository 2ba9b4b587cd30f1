//! `cargo xtask run`: build as the user, then become the lab, or `lb` itself, as root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};

use crate::{args::RunRequest, cmd::Cmd, setup, stock::Purpose, workspace::Workspace};

/// Sets up, builds and runs; on success this does not return, because xtask becomes the program.
///
/// # Errors
/// When the configuration file is not there, or set-up, the build or the start fails.
pub(crate) fn run(request: &RunRequest) -> Result<ExitCode> {
    // Before minutes of set-up, not after.
    let config = request.config.as_deref().map(config_file).transpose()?;
    let workspace = setup::ensure(Purpose::Run, request.yes)?;
    build(&workspace)?;
    let (program, words) = program(request, config.as_deref());
    let command = elevated(
        &workspace,
        &binary(&workspace, program),
        &[("LB_BIN", lb(&workspace))],
    );
    Err(command.args(words).exec())
}

/// Sets up what a build needs, builds `lb`, and prints where it is.
///
/// # Errors
/// When set-up or cargo fails.
pub(crate) fn build_lb(yes: bool) -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Build, yes)?;
    let cargo = workspace.cargo();
    let words = ["build", "--release", "--package", "lb-user", "--bin", "lb"];
    cargo.args(words).run().context("build lb")?;
    println!("{}", lb(&workspace).display());
    Ok(ExitCode::SUCCESS)
}

/// Builds `lb`, the lab and the bench, as the user.
///
/// # Errors
/// When cargo fails; its output says why.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    workspace
        .cargo()
        .args([
            "build",
            "--release",
            "--package",
            "lb-user",
            "--package",
            "lb-tests",
            "--package",
            "lb-bench",
        ])
        .args(["--bin", "lb", "--bin", "lb-lab", "--bin", "lb-bench"])
        .run()
        .context("build lb")
}

/// The built `lb`, as an absolute path.
pub(crate) fn lb(workspace: &Workspace) -> PathBuf {
    binary(workspace, "lb")
}

pub(crate) fn binary(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.target.join("release").join(name)
}

/// An absolute path, because `lb` reads the file again at a reload.
fn config_file(file: &str) -> Result<PathBuf> {
    fs::canonicalize(file).with_context(|| format!("read the configuration {file}"))
}

/// The program and its words.
fn program(request: &RunRequest, config: Option<&Path>) -> (&'static str, Vec<String>) {
    let mut words = Vec::new();
    let name = match config {
        Some(file) => {
            // A lab host is a workstation: an interface that its operator needs is refused
            // unless the change undoes itself.
            words.extend(["run", "--careful", "-c"].map(str::to_owned));
            words.push(file.display().to_string());
            if let Some(time) = &request.confirm {
                words.extend(["--confirm".to_owned(), time.clone()]);
            }
            "lb"
        }
        None => {
            words.extend(request.lab.flag().map(str::to_owned));
            words.extend(request.once.then(|| "--once".to_owned()));
            "lb-lab"
        }
    };
    words.extend(request.extra.iter().cloned());
    (name, words)
}

/// Only this program runs as root, with only these variables of ours. sudo relays signals and
/// returns the program's exit code.
pub(crate) fn elevated(workspace: &Workspace, program: &Path, env: &[(&str, PathBuf)]) -> Cmd {
    // lb tells from SSH_CONNECTION which interface it must not take away.
    let names: Vec<&str> = env
        .iter()
        .map(|(name, _)| *name)
        .chain(["SSH_CONNECTION"])
        .collect();
    let command = if workspace.is_root() {
        Cmd::new(program)
    } else {
        Cmd::new("sudo")
            .arg(format!("--preserve-env={}", names.join(",")))
            .arg(program)
    };
    let with_path = command.quiet_env("PATH", workspace.path());
    env.iter()
        .fold(with_path, |command, (name, value)| command.env(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Lab;

    #[test]
    fn without_a_configuration_it_is_the_lab() {
        let extra = vec!["-v".to_owned()];
        let request = RunRequest {
            once: true,
            lab: Lab::Poc,
            extra,
            ..RunRequest::default()
        };
        assert_eq!(
            program(&request, None),
            ("lb-lab", vec!["--poc".into(), "--once".into(), "-v".into()])
        );
    }

    #[test]
    fn with_a_configuration_it_is_lb_on_this_host() {
        let request = RunRequest {
            confirm: Some("60s".to_owned()),
            ..RunRequest::default()
        };
        let words =
            ["run", "--careful", "-c", "/etc/lb.yaml", "--confirm", "60s"].map(str::to_owned);
        assert_eq!(
            program(&request, Some(Path::new("/etc/lb.yaml"))),
            ("lb", words.into())
        );
    }
}
