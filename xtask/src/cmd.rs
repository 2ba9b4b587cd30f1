//! One child process: prints what it runs, runs it, and names it when it fails.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, ExitStatus, Output, Stdio},
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::progress::Progress;

/// A command and the line that shows it to the operator.
pub(crate) struct Cmd {
    command: Command,
    shown_env: Vec<String>,
    shown_words: Vec<String>,
}

impl Cmd {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            shown_env: Vec::new(),
            shown_words: vec![shown(program.as_ref())],
            command: Command::new(program),
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.shown_words.push(shown(arg.as_ref()));
        self.command.arg(arg);
        self
    }

    pub(crate) fn args(self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }

    /// Sets a variable that the operator would need too when running the line by hand.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.shown_env
            .push(format!("{name}={}", shown(value.as_ref())));
        self.command.env(name, value);
        self
    }

    /// Sets a variable that is not worth showing.
    pub(crate) fn quiet_env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Runs with the operator's terminal. The child's own output says what went wrong.
    ///
    /// # Errors
    /// When it cannot be started or does not succeed.
    pub(crate) fn run(mut self) -> Result<()> {
        let line = self.announce();
        let status = self
            .command
            .status()
            .with_context(|| format!("start `{line}`"))?;
        if !status.success() {
            bail!("`{line}`: {}", words_of(status));
        }
        Ok(())
    }

    /// Runs beside the bar of `progress`, which what it prints would tear: that is printed when it fails, and all of
    /// it as usual where there is no bar.
    ///
    /// # Errors
    /// When it cannot be started or does not succeed.
    pub(crate) fn run_beside(self, progress: &mut Progress) -> Result<()> {
        if !progress.is_live() {
            return self.run();
        }
        let line = self.line();
        let output = self.output()?;
        if !output.status.success() {
            progress.line(text_of(&output).trim_end());
            bail!("`{line}`: {}", words_of(output.status));
        }
        Ok(())
    }

    /// Runs without saying so, and writes both its streams into `file`.
    ///
    /// # Errors
    /// When it cannot be started or does not succeed.
    pub(crate) fn run_into(mut self, file: File) -> Result<()> {
        let line = self.line();
        let errors = file.try_clone().context("use a log for both streams")?;
        let status = self
            .command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .status()
            .with_context(|| format!("start `{line}`"))?;
        if !status.success() {
            bail!("`{line}`: {}", words_of(status));
        }
        Ok(())
    }

    /// Runs silently and returns what it printed, whatever its exit status is.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn output(mut self) -> Result<Output> {
        let line = self.line();
        self.command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("start `{line}`"))
    }

    /// Like `output`, but prints what it runs: for steps whose output must be read.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn announced_output(self) -> Result<Output> {
        let _shown = self.announce();
        self.output()
    }

    /// Standard output of a probe; `None` when it is not there or does not succeed.
    pub(crate) fn probe(self) -> Option<String> {
        let output = self.output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Becomes the command: signals reach it directly, and its exit code is ours. So Ctrl-C
    /// cannot end xtask while the child still cleans up.
    pub(crate) fn exec(mut self) -> anyhow::Error {
        let line = self.announce();
        let error = self.command.exec();
        anyhow!(error).context(format!("start `{line}`"))
    }

    fn announce(&self) -> String {
        let line = self.line();
        eprintln!("+ {line}");
        line
    }

    fn line(&self) -> String {
        let words: Vec<&str> = self
            .shown_env
            .iter()
            .chain(&self.shown_words)
            .map(String::as_str)
            .collect();
        words.join(" ")
    }
}

/// Where `name` is on `path`, if it is an executable file there.
pub(crate) fn find(name: &str, path: &OsStr) -> Option<std::path::PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;

    std::env::split_paths(path)
        .map(|dir| dir.join(name))
        .find(|file| {
            file.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// Both streams of a child, for reading and for showing.
pub(crate) fn text_of(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("{stdout}{stderr}")
}

/// `exit status 1`, or the signal that ended it.
fn words_of(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;

    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended without a status".to_owned(),
    }
}

/// A word as the operator can paste it into a shell.
fn shown(word: &OsStr) -> String {
    let text = OsString::from(word).to_string_lossy().into_owned();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./,:@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    // The separator of CARGO_ENCODED_RUSTFLAGS is not printable; the other case is rare.
    let printable = text.replace('\u{1f}', "\\x1f").replace('\'', r"'\''");
    let dollar = if text.contains('\u{1f}') { "$" } else { "" };
    format!("{dollar}'{printable}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shown_line_can_be_pasted() {
        let cmd = Cmd::new("cargo")
            .arg("+1.98.0")
            .arg("a b")
            .env("RUNNER", "sudo -n");
        assert_eq!(cmd.line(), "RUNNER='sudo -n' cargo +1.98.0 'a b'");
    }

    #[test]
    fn the_separator_of_encoded_flags_is_made_visible() {
        assert_eq!(shown(OsStr::new("-a\u{1f}-b")), r"$'-a\x1f-b'");
    }

    #[test]
    fn a_failure_names_the_command_and_its_status() {
        let error = Cmd::new("sh").args(["-c", "exit 3"]).run().unwrap_err();
        assert_eq!(error.to_string(), "`sh -c 'exit 3'`: exit status 3");
        assert!(Cmd::new("/nonexistent").run().is_err());
        let mut progress = Progress::new("test", 1);
        let failed = Cmd::new("sh").args(["-c", "exit 4"]);
        let error = failed.run_beside(&mut progress).unwrap_err();
        assert_eq!(error.to_string(), "`sh -c 'exit 4'`: exit status 4");
    }
}
