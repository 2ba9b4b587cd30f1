//! One test in a process of its own, and its log.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    api_server,
    cmd::{Cmd, text_of},
    run,
    test::PRESERVED,
    workspace::Workspace,
};

/// A test that is still running then hangs; its process is killed. In the long tier some run for an hour.
const HANG_TIMEOUT: Duration = Duration::from_secs(600);
const HANG_TIMEOUT_LONG: Duration = Duration::from_secs(2 * 3600);
/// How long a test that hangs may take to end by SIGTERM.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The test binary, and how it is run.
#[derive(Debug)]
pub(super) struct Program<'a> {
    workspace: &'a Workspace,
    binary: PathBuf,
    long: bool,
    /// The folder of all logs.
    pub(super) logs: PathBuf,
}

/// How a test ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) name: String,
    pub(super) time: Duration,
    /// All that it has printed.
    pub(super) log: String,
    /// Nothing if it passed.
    pub(super) failure: Option<String>,
    /// What ran when it began.
    pub(super) beside: Vec<String>,
}

/// Lines of a failure that are shown of it.
const MAX_CAUSE_LINES: usize = 4;

impl Ended {
    pub(super) const fn passed(&self) -> bool {
        self.failure.is_none()
    }

    /// The test and why it failed, in one line: the panic or error in its log, or how its process ended.
    pub(super) fn cause(&self) -> String {
        let begins = |line: &&str| !line.starts_with("Error: ") && !line.contains("panicked at ");
        let lines = self.log.lines().skip_while(begins);
        let lines: Vec<&str> = lines
            .map(str::trim)
            .take_while(|line| !line.eq_ignore_ascii_case("stack backtrace:"))
            .filter(|line| !line.is_empty())
            .take(MAX_CAUSE_LINES)
            .collect();
        let ended = self.failure.as_deref().unwrap_or_default();
        match lines.is_empty() {
            true => format!("{}: {ended}", self.name),
            false => format!("{}: {}", self.name, lines.join(" ")),
        }
    }
}

impl<'a> Program<'a> {
    /// # Errors
    /// When the folder of logs cannot be made.
    pub(super) fn new(workspace: &'a Workspace, binary: PathBuf, long: bool) -> Result<Self> {
        let logs = workspace.target.join("netns");
        fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        Ok(Self {
            workspace,
            binary,
            long,
            logs,
        })
    }

    /// The names of all tests.
    ///
    /// # Errors
    /// When the binary does not list them.
    pub(super) fn list(&self) -> Result<Vec<String>> {
        let list =
            Cmd::new(&self.binary).args(["--list", "--include-ignored", "--format", "terse"]);
        let output = list.output()?;
        let text = text_of(&output);
        if !output.status.success() {
            bail!("list the tests of {}: {text}", self.binary.display());
        }
        let name = |line: &str| line.strip_suffix(": test").map(str::to_owned);
        Ok(text.lines().filter_map(name).collect())
    }

    /// Runs one test to its end.
    pub(super) fn run(&self, name: String, beside: Vec<String>) -> Ended {
        let log = self.logs.join(format!("{}.log", name.replace("::", ".")));
        let start = Instant::now();
        let failure = self.run_into(&name, &log).err();
        Ended {
            time: start.elapsed(),
            log: fs::read(&log)
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .unwrap_or_default(),
            failure: failure.map(|error| format!("{error:#}")),
            name,
            beside,
        }
    }

    fn run_into(&self, name: &str, log: &Path) -> Result<()> {
        let file = File::create(log).with_context(|| format!("create {}", log.display()))?;
        self.command(name).run_into(file)
    }

    /// The line that runs a test, as root, with what it may need of our environment.
    fn command(&self, name: &str) -> Cmd {
        let hang = match self.long {
            true => HANG_TIMEOUT_LONG,
            false => HANG_TIMEOUT,
        };
        let command = match self.workspace.is_root() {
            true => self.workspace.command("timeout"),
            false => self
                .workspace
                .command("sudo")
                .arg(format!("--preserve-env={}", PRESERVED.join(",")))
                .arg("timeout"),
        };
        let command = command
            .arg(format!("--kill-after={}", KILL_TIMEOUT.as_secs()))
            .arg(hang.as_secs().to_string())
            .arg(&self.binary)
            .args(["--exact", name, "--include-ignored", "--nocapture"])
            .dir(&self.workspace.root.join("tests"))
            .env("LB_BIN", run::lb(self.workspace))
            .env("LB_TEST_REPORT", "1")
            .env("LB_TEST_REQUIRE", "1")
            .env("RUST_BACKTRACE", "1");
        let command = match api_server::path(self.workspace) {
            Some(path) => command.env(api_server::VARIABLE, path),
            None => command,
        };
        match self.long {
            true => command.env("LB_TEST_LONG", "1"),
            false => command,
        }
    }
}
