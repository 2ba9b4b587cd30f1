//! Child processes: one-shot commands whose failure is an error, and daemons that end with their
//! guard.
//!
//! A daemon is killed by its own pid and by the kernel when the thread that started it dies
//! (`setpriv --pdeathsig`), so a killed run leaves no servers behind. It has a process group of its
//! own: Ctrl-C on the terminal reaches the lab only, which ends its children in order.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::poll;

/// How long a daemon may take to end after SIGTERM before it is killed: a socket that captures closes when no
/// other test holds the kernel's lock of all networks.
const GRACE: Duration = Duration::from_secs(20);

/// What every daemon is started through, see [`launch_through`].
static LAUNCHER: OnceLock<Vec<OsString>> = OnceLock::new();

/// Starts all later daemons as `launcher... program args...`.
///
/// A child inherits the signal mask, and a program that blocks SIGTERM to clean up in order would
/// have children deaf to it. Such a program names a launcher that unblocks and executes the rest.
///
/// # Errors
///
/// When a launcher is already set.
pub fn launch_through(launcher: Vec<OsString>) -> Result<()> {
    LAUNCHER
        .set(launcher)
        .map_err(|_| anyhow!("the launcher is set already"))
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
///
/// When it cannot be started or does not exit with 0; the text has its arguments and its stderr.
pub fn succeed(command: &mut Command) -> Result<String> {
    let output = finish(command)?;
    ensure!(
        output.status.success(),
        "{}: {}: {}{}",
        describe(command),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim(),
        String::from_utf8_lossy(&output.stdout).trim(),
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command to its end, whatever its exit code is.
///
/// # Errors
///
/// When it cannot be started.
pub fn finish(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", describe(command)))
}

/// Which of `programs` are not on PATH.
pub fn missing<'p>(programs: &[&'p str]) -> Vec<&'p str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let is_missing = |program: &&&str| !folders.iter().any(|f| f.join(program).is_file());
    programs.iter().filter(is_missing).copied().collect()
}

/// A running daemon with its standard output and standard error in two files.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts `program` in the network namespace `netns` (a path); its output goes to
    /// `<dir>/<name>.out` and `<dir>/<name>.err`.
    ///
    /// # Errors
    ///
    /// When the files or the process cannot be made.
    pub fn start(
        netns: &Path,
        dir: &Path,
        name: &str,
        program: impl AsRef<OsStr>,
        args: &[impl AsRef<OsStr>],
    ) -> Result<Self> {
        let mut words: Vec<OsString> = LAUNCHER.get().cloned().unwrap_or_default();
        let mut net = OsString::from("--net=");
        net.push(netns);
        words.extend(["nsenter".into(), net]);
        words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsString::from));
        words.push(program.as_ref().to_owned());
        words.extend(args.iter().map(|arg| arg.as_ref().to_owned()));

        let (stdout, stderr) = (
            dir.join(format!("{name}.out")),
            dir.join(format!("{name}.err")),
        );
        let create =
            |path: &Path| File::create(path).with_context(|| format!("create {}", path.display()));
        let (program, args) = words.split_first().context("a command has a first word")?;
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(create(&stdout)?)
            .stderr(create(&stderr)?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            stdout,
            stderr,
        })
    }

    /// The process id; the programs in front of it (`nsenter`, `setpriv`) replace themselves.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The CPU time of its threads with this name together.
    ///
    /// # Errors
    ///
    /// When it has no such thread.
    pub fn cpu_time(&self, thread: &str) -> Result<Duration> {
        Ok(self.cpu_times(thread)?.into_values().sum())
    }

    /// The CPU time of each of its threads with this name, by its id.
    ///
    /// # Errors
    ///
    /// When it has no such thread.
    pub fn cpu_times(&self, thread: &str) -> Result<BTreeMap<i32, Duration>> {
        let threads = self.threads(thread)?;
        let times = threads.into_iter().map(|thread| {
            let path = format!("/proc/{}/task/{thread}/schedstat", self.id());
            let text = fs::read_to_string(path).context("its times")?;
            let ns = text.split(' ').next().context("its time on a CPU")?;
            Ok((thread, Duration::from_nanos(ns.parse()?)))
        });
        times.collect()
    }

    /// Whether it waits for something to come, with nothing to do: proc_pid_stat(5). Of a process with one thread.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub fn is_asleep(&self) -> Result<bool> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.id()));
        let text = text.with_context(|| format!("look at {}", self.name))?;
        // The name before it may have spaces and brackets.
        let (_, rest) = text.rsplit_once(')').context("a name in brackets")?;
        Ok(rest.trim_start().starts_with('S'))
    }

    /// The ids of its threads with this name.
    ///
    /// # Errors
    ///
    /// When it has no such thread.
    pub fn threads(&self, thread: &str) -> Result<Vec<i32>> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.id()));
        let mut found = Vec::new();
        for task in fs::read_dir(&tasks).with_context(|| format!("read {}", tasks.display()))? {
            let task = task.context("read a thread")?;
            // One that has ended meanwhile has no name.
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.trim() == thread {
                let id = task.file_name().into_string().ok();
                found.push(id.context("an id is a number")?.parse()?);
            }
        }
        ensure!(!found.is_empty(), "{} has no thread {thread}", self.name);
        Ok(found)
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }

    /// Waits for a line of standard output that begins with `start`.
    ///
    /// # Errors
    ///
    /// When the process ends first, or after `limit`; with the end of its standard error.
    pub fn wait_for_stdout(&mut self, start: &str, limit: Duration) -> Result<String> {
        self.wait_for(start, limit, |process, start| {
            let text = process.stdout();
            text.lines()
                .find(|line| line.starts_with(start))
                .map(str::to_owned)
        })
    }

    /// Waits for a line of standard error that contains `part`.
    ///
    /// # Errors
    ///
    /// As for [`Self::wait_for_stdout`].
    pub fn wait_for_stderr(&mut self, part: &str, limit: Duration) -> Result<String> {
        self.wait_for(part, limit, |process, part| {
            let text = process.stderr();
            text.lines()
                .find(|line| line.contains(part))
                .map(str::to_owned)
        })
    }

    /// The exit status if the process has ended.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to tell.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("wait for {}", self.name))
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    ///
    /// After `limit`.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("end of {}", self.name);
        poll::until(&what, limit, || self.ended())
    }

    /// Sends `signal` to the process, if it still runs.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        // A child that was not waited for keeps its pid, so this cannot reach a stranger.
        if self.ended()?.is_none() {
            let pid = Pid::from_raw(i32::try_from(self.child.id())?);
            kill(pid, signal).with_context(|| format!("send {signal} to {}", self.name))?;
        }
        Ok(())
    }

    /// Ends the process: SIGTERM, and SIGKILL if it does not end in time.
    ///
    /// # Errors
    ///
    /// When it had to be killed.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        match self.wait_for_end(GRACE) {
            Ok(status) => Ok(status),
            Err(error) => {
                self.signal(Signal::SIGKILL)?;
                self.child.wait().context("wait for a killed process")?;
                Err(error.context(format!("{} did not end on SIGTERM", self.name)))
            }
        }
    }

    fn wait_for(
        &mut self,
        words: &str,
        limit: Duration,
        find: impl Fn(&Self, &str) -> Option<String>,
    ) -> Result<String> {
        let what = format!("`{words}` from {}", self.name);
        let waited = poll::until(&what, limit, || {
            // Looked at in this order, so that the last words of a process that ended count.
            let ended = self.ended()?;
            match (find(self, words), ended) {
                (Some(line), _) => Ok(Some(line)),
                (None, None) => Ok(None),
                (None, Some(status)) => bail!("{} ended: {status}", self.name),
            }
        });
        waited.with_context(|| format!("its last words: {}", tail(&self.stderr())))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            complain(format_args!("{error:#}"));
        }
    }
}

/// Says on standard error what a guard could not do.
///
/// The reader may be gone (`lab 2>&1 | head`). The macro for this panics then, which in a
/// drop ends the program before the other guards have removed what is theirs.
pub fn complain(words: fmt::Arguments<'_>) {
    let _unheard: io::Result<()> = writeln!(io::stderr(), "{words}");
}

/// The last lines of a log, for an error text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let start = lines.len().saturating_sub(15);
    lines.get(start..).unwrap_or_default().join("\n")
}

fn describe(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    words.join(" ")
}

fn read(path: &Path) -> String {
    // A log may end inside a character while it is written; that must not end the test.
    fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}
