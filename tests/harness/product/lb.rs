//! The product itself: runs `lb` in the host namespace of a topology and asks it questions.

use std::{
    fs::{self, Permissions},
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde::de::DeserializeOwned;

use crate::{
    oracle::query::{Backend, Drop as DropCount, Flow, Service, Status, Who, list},
    process::{self, Process},
    product::report,
    topology::Site,
};

/// How many were launched.
static LAUNCHED: AtomicU32 = AtomicU32::new(0);
/// How long `lb run` may take until it says `ready`: the first load verifies the programs.
const START: Duration = Duration::from_secs(60);
/// How long a start that must fail may take until it has failed.
const FAIL: Duration = Duration::from_secs(60);
/// How long a killed process may take to be gone.
const END: Duration = Duration::from_secs(10);
/// For one-shot commands of `lb`, in seconds; `timeout` kills one that hangs.
const ANSWER_SECS: &str = "30";
/// A user that every system has and that owns nothing.
pub const USER: u32 = 65534;

/// A running `lb run`; on drop it is stopped and `lb down` removes its data plane.
#[derive(Debug)]
pub struct Lb<'t> {
    site: &'t Site,
    /// What it is started by, the program itself last.
    program: Vec<String>,
    process: Process,
    is_down: bool,
}

impl<'t> Lb<'t> {
    /// Starts `lb run` with `config` as the instance of this topology; ready when this returns.
    ///
    /// # Errors
    ///
    /// When it ends or stays silent, with its last words; nothing of it is left then.
    pub fn start(site: &'t Site, config: &str) -> Result<Self> {
        Self::start_with(site, config, &[])
    }

    /// As [`Self::start`], with more options.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_with(site: &'t Site, config: &str, options: &[&str]) -> Result<Self> {
        Self::start_by(
            site,
            config,
            vec![as_text(&binary("LB_BIN", "lb")?)?],
            options,
        )
    }

    /// Prepares the host for a user who owns nothing, and starts `lb run` as that user, who has only these
    /// capabilities.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_unprivileged(site: &'t Site, config: &str, capabilities: &str) -> Result<Self> {
        prepare(site, config, USER)?;
        Self::start_by(site, config, unprivileged(site, capabilities)?, &[])
    }

    /// As [`Self::start`], by words such as `prlimit --nofile=256`, which execute what comes after them.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn start_through(site: &'t Site, config: &str, words: &[&str]) -> Result<Self> {
        let words = words.iter().map(|&word| word.to_owned());
        let program = as_text(&binary("LB_BIN", "lb")?)?;
        Self::start_by(site, config, words.chain([program]).collect(), &[])
    }

    fn start_by(
        site: &'t Site,
        config: &str,
        program: Vec<String>,
        options: &[&str],
    ) -> Result<Self> {
        let process = launch(site, site.run(), config, &program, options)?;
        let mut lb = Self {
            site,
            program,
            process,
            is_down: false,
        };
        lb.process.wait_for_stdout("ready", START)?;
        Ok(lb)
    }

    /// From now on it is started as root.
    ///
    /// # Errors
    ///
    /// When there is no program.
    pub fn set_root(&mut self) -> Result<()> {
        self.program = vec![as_text(&binary("LB_BIN", "lb")?)?];
        Ok(())
    }

    /// From now on it is started as that user, with these capabilities.
    ///
    /// # Errors
    ///
    /// When the program cannot be copied to where he can read it.
    pub fn set_capabilities(&mut self, capabilities: &str) -> Result<()> {
        self.program = unprivileged(self.site, capabilities)?;
        Ok(())
    }

    /// Starts `lb run` again over the data plane of a process that has ended.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn restart(&mut self, config: &str) -> Result<()> {
        self.begin_restart(config)?;
        self.process.wait_for_stdout("ready", START).map(drop)
    }

    /// From now on it is started as root, with everything in the log.
    ///
    /// # Errors
    ///
    /// When there is no program.
    pub fn set_full_log(&mut self) -> Result<()> {
        let program = as_text(&binary("LB_BIN", "lb")?)?;
        self.program = vec!["env".to_owned(), "LB_LOG=debug".to_owned(), program];
        Ok(())
    }

    /// As [`Self::restart`], with everything in the log.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn restart_with_full_log(&mut self, config: &str) -> Result<()> {
        let program = self.program.clone();
        self.set_full_log()?;
        let started = self.restart(config);
        self.program = program;
        started
    }

    /// As [`Self::restart`], but does not wait until it is ready.
    ///
    /// # Errors
    ///
    /// When the process cannot be made.
    pub fn begin_restart(&mut self, config: &str) -> Result<()> {
        self.begin_restart_with(config, &[])
    }

    /// As [`Self::begin_restart`], with more options.
    ///
    /// # Errors
    ///
    /// As for [`Self::begin_restart`].
    pub fn begin_restart_with(&mut self, config: &str, options: &[&str]) -> Result<()> {
        let (site, run) = (self.site, self.site.run());
        self.process = launch(site, run, config, &self.program, options)?;
        Ok(())
    }

    /// As [`Self::restart`], with more options.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn restart_with(&mut self, config: &str, options: &[&str]) -> Result<()> {
        self.begin_restart_with(config, options)?;
        self.process.wait_for_stdout("ready", START).map(drop)
    }

    /// Starts another `lb run`, which takes over from the one that runs; that one, which goes on with what
    /// it carries.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn take_over(&mut self, config: &str) -> Result<Process> {
        self.take_over_with(config, &[])
    }

    /// As [`Self::take_over`], with more options.
    ///
    /// # Errors
    ///
    /// As for [`Self::start`].
    pub fn take_over_with(&mut self, config: &str, options: &[&str]) -> Result<Process> {
        let before = self.begin_take_over(config, options)?;
        match self.process.wait_for_stdout("ready", START) {
            Ok(_) => Ok(before),
            Err(error) => {
                // It has taken nothing over.
                self.process = before;
                Err(error)
            }
        }
    }

    /// The process that was to be taken over from is the one that runs.
    pub fn follow(&mut self, process: Process) {
        self.process = process;
    }

    /// As [`Self::take_over`], but does not wait until the next one is ready.
    ///
    /// # Errors
    ///
    /// When the process cannot be made.
    pub fn begin_take_over(&mut self, config: &str, options: &[&str]) -> Result<Process> {
        let (site, run) = (self.site, self.site.run());
        let options: Vec<&str> = [&["--takeover"], options].concat();
        let next = launch(site, run, config, &self.program, &options)?;
        Ok(std::mem::replace(&mut self.process, next))
    }

    /// Ends the process in the middle of whatever it does.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait_for_end(END).map(drop)
    }

    /// The site that it runs in.
    pub(crate) const fn site(&self) -> &'t Site {
        self.site
    }

    /// `lb`, for one question; a hanging one is killed.
    pub(crate) fn command(&self) -> Result<Command> {
        one_shot(self.site)
    }

    /// The process of `lb run`.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The id of the process of `lb run`.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// `lb status`.
    ///
    /// # Errors
    ///
    /// When it fails or its form has changed; so for all questions.
    pub fn status(&self) -> Result<Status> {
        let text = self.answer(&["status"])?;
        serde_json::from_str(&text).with_context(|| format!("read lb status: {text}"))
    }

    /// `lb services`.
    ///
    /// # Errors
    ///
    /// As for [`Self::status`].
    pub fn services(&self) -> Result<Vec<Service>> {
        self.ask_list(&["services"], "services")
    }

    /// `lb backends`.
    ///
    /// # Errors
    ///
    /// As for [`Self::status`].
    pub fn backends(&self) -> Result<Vec<Backend>> {
        self.ask_list(&["backends"], "backends")
    }

    /// `lb flows`.
    ///
    /// # Errors
    ///
    /// As for [`Self::status`].
    pub fn flows(&self) -> Result<Vec<Flow>> {
        self.ask_list(&["flows"], "flows")
    }

    /// `lb drops`.
    ///
    /// # Errors
    ///
    /// As for [`Self::status`].
    pub fn drops(&self) -> Result<Vec<DropCount>> {
        self.ask_list(&["drops"], "drops")
    }

    /// The same in a line, for what a test that fails says; or why it cannot be known.
    pub fn drops_in_a_line(&self) -> String {
        let line = |drop: DropCount| {
            let DropCount {
                hook,
                network,
                reason,
                ..
            } = &drop;
            format!("{hook} {network} {reason} {}", drop.dropped)
        };
        match self.drops() {
            Ok(drops) => drops.into_iter().map(line).collect::<Vec<_>>().join(", "),
            Err(error) => format!("{error:#}"),
        }
    }

    /// How many packets were dropped at NICs for `reason`, by its label.
    ///
    /// # Errors
    ///
    /// As for [`Self::status`].
    pub fn dropped(&self, reason: &str) -> Result<u64> {
        let drops = self.drops()?.into_iter();
        let ours = drops.filter(|drop| drop.hook == "nic" && drop.reason == reason);
        Ok(ours.map(|drop| drop.dropped).sum())
    }

    /// How many packets were answered with a refusal at NICs for `reason`, by its label.
    ///
    /// # Errors
    ///
    /// As for [`Self::status`].
    pub fn refused(&self, reason: &str) -> Result<u64> {
        let drops = self.drops()?.into_iter();
        let ours = drops.filter(|drop| drop.hook == "nic" && drop.reason == reason);
        Ok(ours.map(|drop| drop.refused).sum())
    }

    /// `lb who SNATIP:PORT`: the flows that have the port, or had it last.
    ///
    /// # Errors
    ///
    /// As for [`Self::status`], and when it is no SNAT port.
    pub fn who(&self, snat: impl Into<SocketAddr>) -> Result<Vec<Who>> {
        let snat: SocketAddr = snat.into();
        self.ask_list(&["who", &snat.to_string()], "flows")
    }

    /// Stops the process and runs `lb down`.
    ///
    /// # Errors
    ///
    /// When the process does not end on SIGTERM, or `lb down` fails.
    pub fn down(mut self) -> Result<()> {
        self.remove()
    }

    fn ask_list<T: DeserializeOwned>(&self, words: &[&str], key: &str) -> Result<Vec<T>> {
        let text = self.answer(words)?;
        list(&text, key).with_context(|| format!("read lb {}: {text}", words.join(" ")))
    }

    /// An answer in JSON.
    fn answer(&self, words: &[&str]) -> Result<String> {
        let mut command = one_shot(self.site)?;
        command.args(words);
        command.args(["--instance", self.site.run(), "-o", "json"]);
        process::succeed(&mut command)
    }

    fn remove(&mut self) -> Result<()> {
        self.is_down = true;
        let stopped = self.process.stop().map(drop);
        // Also after a process that had to be killed: its programs are still attached.
        let mut command = one_shot(self.site)?;
        process::succeed(command.args(["down", "--instance", self.site.run()]))?;
        stopped
    }
}

impl Drop for Lb<'_> {
    fn drop(&mut self) {
        if self.is_down {
            return;
        }
        report::print(self);
        if let Err(error) = self.remove() {
            process::complain(format_args!("{error:#}"));
        }
    }
}

/// How a start that must fail ended.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Failure {
    /// The last line of standard error: the one message an operator reads first.
    pub fn message(&self) -> &str {
        self.stderr
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default()
    }
}

/// Runs `lb run` as `instance` and waits until it has failed.
///
/// # Errors
///
/// When it is still running after a minute; it is ended then.
pub fn start_fails(site: &Site, instance: &str, config: &str) -> Result<Failure> {
    let program = [as_text(&binary("LB_BIN", "lb")?)?];
    wait_for_failure(launch(site, instance, config, &program, &[])?)
}

/// Runs `lb run` with more options and waits until it has ended.
///
/// # Errors
///
/// As for [`start_fails`].
pub fn start_fails_with(site: &Site, config: &str, options: &[&str]) -> Result<Failure> {
    let program = [as_text(&binary("LB_BIN", "lb")?)?];
    let process = launch(site, site.run(), config, &program, options)?;
    wait_for_failure(process)
}

/// Runs `lb run` as a user without any privilege and waits until it has failed.
///
/// # Errors
///
/// As for [`start_fails`].
pub fn start_fails_without_privileges(site: &Site, config: &str) -> Result<Failure> {
    start_fails_unprivileged(site, config, "-all", &[])
}

/// Runs `lb run` with these options as a user who has these capabilities, and waits until it has failed.
///
/// # Errors
///
/// As for [`start_fails`].
pub fn start_fails_unprivileged(
    site: &Site,
    config: &str,
    capabilities: &str,
    options: &[&str],
) -> Result<Failure> {
    let program = unprivileged(site, capabilities)?;
    wait_for_failure(launch(site, site.run(), config, &program, options)?)
}

/// Runs `lb prepare` for a user; what it says.
///
/// # Errors
///
/// When it fails.
pub fn prepare(site: &Site, config: &str, user: u32) -> Result<String> {
    let file = site.write("prepare.yaml", config)?;
    let mut command = one_shot(site)?;
    command.args(["prepare", "--instance", site.run()]);
    command.arg("--config").arg(file);
    process::succeed(command.args(["--user", &user.to_string()]))
}

/// `lb` as a user who owns nothing and has these capabilities, in the words of setpriv.
///
/// # Errors
///
/// When the program cannot be copied.
pub fn unprivileged(site: &Site, capabilities: &str) -> Result<Vec<String>> {
    // The workspace may lie where no other user can read.
    let copy = site.dir().join("lb");
    if !copy.exists() {
        fs::copy(binary("LB_BIN", "lb")?, &copy).context("copy lb")?;
        fs::set_permissions(&copy, Permissions::from_mode(0o755)).context("let others run lb")?;
    }
    Ok(vec![
        "setpriv".to_owned(),
        format!("--reuid={USER}"),
        format!("--regid={USER}"),
        "--clear-groups".to_owned(),
        format!("--inh-caps={capabilities}"),
        format!("--ambient-caps={capabilities}"),
        format!("--bounding-set={capabilities}"),
        "--".to_owned(),
        as_text(&copy)?,
    ])
}

/// Runs `lb check` on a configuration.
///
/// # Errors
///
/// When it cannot be started, or hangs.
pub fn check(config: &str) -> Result<Failure> {
    let dir = tempfile::tempdir().context("make a temporary folder")?;
    let file = dir.path().join("lb.yaml");
    fs::write(&file, config).context("write a configuration")?;
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", ANSWER_SECS]);
    command.arg(binary("LB_BIN", "lb")?).arg("check").arg(&file);
    let output = process::finish(&mut command)?;
    Ok(Failure {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

fn wait_for_failure(mut process: Process) -> Result<Failure> {
    let status = process.wait_for_end(FAIL)?;
    Ok(Failure {
        code: status.code(),
        stdout: process.stdout(),
        stderr: process.stderr(),
    })
}

/// The path of a binary of the workspace: from the environment, else from the release folder
/// beside the running program.
///
/// # Errors
///
/// When there is none; the text says how to build it.
pub fn binary(variable: &str, name: &str) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().context("find the running program")?;
    program
        .ancestors()
        .skip(1)
        .flat_map(|folder| {
            let beside = folder.ends_with("release").then(|| folder.join(name));
            beside
                .into_iter()
                .chain([folder.join("release").join(name)])
        })
        .find(|path| path.is_file())
        .with_context(|| format!("no {name}: `cargo build --release`, or set {variable}"))
}

/// Starts the words of `program` with the arguments of `lb run`.
fn launch(
    site: &Site,
    instance: &str,
    config: &str,
    program: &[String],
    options: &[&str],
) -> Result<Process> {
    let config = as_text(&site.write(&format!("{instance}.yaml"), config)?)?;
    let (program, wrapped) = program.split_first().context("a program has a name")?;
    let run = ["run", "-c", &config, "--instance", instance];
    let wrapped = wrapped.iter().map(String::as_str);
    let args: Vec<&str> = wrapped.chain(run).chain(options.iter().copied()).collect();
    // One that goes on beside the next one has its own output.
    let number = LAUNCHED.fetch_add(1, Ordering::Relaxed);
    Process::start(
        &site.lb.path(),
        site.dir(),
        &format!("lb-{instance}-{number}"),
        program,
        &args,
    )
}

fn one_shot(site: &Site) -> Result<Command> {
    let mut command = site.lb.command("timeout");
    command
        .args(["--kill-after=1", ANSWER_SECS])
        .arg(binary("LB_BIN", "lb")?);
    Ok(command)
}

fn as_text(path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not text", path.display()))?;
    Ok(text.to_owned())
}
