//! The units of the product under a systemd of its own, in the load balancer's host of a topology.
//!
//! It is process 1 of a pid namespace and has mounts of its own (`systemd/boot.sh`): it sees the cells and
//! pins of the machine, and nothing else of it can be changed.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    poll,
    process::{self, Process},
    product::lb::binary,
    topology::Site,
};

const BOOT: &str = include_str!("systemd/boot.sh");
const SERVICE: &str = include_str!("../../../config/systemd/lb.service");
const USERS: &str = include_str!("../../../config/systemd/lb-sysusers.conf");
/// Where options of `lb run` are.
const OPTIONS: &str = "lb.env";
/// What every unit asks for, and nothing here needs.
const TARGETS: [&str; 5] = ["sysinit", "basic", "shutdown", "network", "test"];
/// How long it may take to be there.
const BOOTS: Duration = Duration::from_secs(20);
/// How long a job of a unit may take, in seconds.
const JOB_SECS: &str = "90";
/// How long a unit may take until it runs again.
const RESTART: Duration = Duration::from_secs(60);

/// A running systemd with the units of `lb`; on drop it is ended, and `lb down` removes the data plane.
#[derive(Debug)]
pub struct Systemd<'t> {
    site: &'t Site,
    process: Process,
    /// Its process, as it is called outside.
    init: u32,
}

impl<'t> Systemd<'t> {
    /// Starts it with the units for this configuration; `settings` are lines of `[Service]` that stand
    /// behind those of `lb.service`. No unit is started.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn boot(site: &'t Site, config: &str, settings: &str) -> Result<Self> {
        write_units(site, config, settings)?;
        write_users(site)?;
        let boot = site.write("boot.sh", BOOT)?;
        let words = "-pfmuiC --propagation unchanged --kill-child sh";
        let mut args: Vec<_> = words.split(' ').map(Path::new).collect();
        args.extend([boot.as_path(), site.dir()]);
        let process = Process::start(&site.lb.path(), site.dir(), "systemd", "unshare", &args)?;
        let booted = Self {
            site,
            init: child_of(process.id())?,
            process,
        };
        let is_there = || {
            let state = booted.systemctl("is-system-running")?;
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            Ok((state == "running").then_some(()))
        };
        poll::until("systemd", BOOTS, is_there).with_context(|| booted.process.stderr())?;
        Ok(booted)
    }

    /// Runs `systemctl` with these words; its exit code is for the caller to judge.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn systemctl(&self, words: &str) -> Result<Output> {
        process::finish(self.inside("systemctl").args(words.split(' ')))
    }

    /// The same, and it must exit with 0.
    ///
    /// # Errors
    ///
    /// When it does not, with the last words of `lb`.
    pub fn succeed(&self, words: &str) -> Result<String> {
        let mut command = self.inside("systemctl");
        process::succeed(command.args(words.split(' '))).with_context(|| self.words())
    }

    /// A property of `lb.service`.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn property(&self, name: &str) -> Result<String> {
        let text = self.succeed(&format!("show lb --value -p {name}"))?;
        Ok(text.trim().to_owned())
    }

    /// The processes that the unit has.
    ///
    /// # Errors
    ///
    /// When it has never run.
    pub fn processes(&self) -> Result<Vec<String>> {
        let group = "/sys/fs/cgroup/system.slice/lb.service/cgroup.procs";
        let text = process::succeed(self.inside("cat").arg(group))?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The words that a process was started with; none if there is none.
    ///
    /// # Errors
    ///
    /// When systemd does not answer.
    pub fn arguments(&self, pid: &str) -> Result<Vec<String>> {
        let file = format!("/proc/{pid}/cmdline");
        let output = process::finish(self.inside("cat").arg(file))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split_terminator('\0').map(str::to_owned).collect())
    }

    /// What `/proc` says of the threads of a process, one after the other.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn threads(&self, pid: &str) -> Result<String> {
        // Some may have gone meanwhile.
        let script = format!("cat /proc/{pid}/task/*/status 2>/dev/null; true");
        process::succeed(self.inside("sh").args(["-c", &script]))
    }

    /// Ends a process, if it is there still.
    ///
    /// # Errors
    ///
    /// When systemd does not answer.
    pub fn kill(&self, pid: &str) -> Result<()> {
        process::finish(self.inside("kill").args(["-KILL", pid])).map(drop)
    }

    /// Waits until another main process than this one is active; which.
    ///
    /// # Errors
    ///
    /// When none comes.
    pub fn another(&self, before: &str) -> Result<String> {
        let another = || {
            let text = self.succeed("show lb --value -p MainPID,ActiveState")?;
            let (pid, state) = text.trim().split_once('\n').context("two properties")?;
            Ok((state == "active" && pid != before && pid != "0").then(|| pid.to_owned()))
        };
        poll::until("another process", RESTART, another).with_context(|| self.words())
    }

    /// Runs `lb` as root and with these words, beside the unit; what it says on standard error, and whether
    /// it has succeeded.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn by_hand(&self, words: &[&str]) -> Result<(bool, String)> {
        let program = self.site.dir().join("lb");
        let mut command = self.inside(&program.display().to_string());
        command.args(words).args(["--instance", self.site.run()]);
        let output = process::finish(&mut command)?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok((output.status.success(), said))
    }

    /// The configuration that the units are for.
    pub fn config(&self) -> PathBuf {
        self.site.dir().join("lb.yaml")
    }

    /// The mount namespaces of systemd and of a process.
    ///
    /// # Errors
    ///
    /// When there is no such process.
    pub fn mounts(&self, pid: &str) -> Result<[String; 2]> {
        let mounts = |pid: &str| {
            let mut command = self.inside("readlink");
            process::succeed(command.arg(format!("/proc/{pid}/ns/mnt")))
        };
        Ok([mounts("1")?, mounts(pid)?])
    }

    /// What `systemd-analyze` with these words and the folder of the units says.
    ///
    /// # Errors
    ///
    /// When it does not exit with 0.
    pub fn analyze(&self, words: &[&str]) -> Result<String> {
        let units = units(self.site);
        let mut command = self.inside("systemd-analyze");
        command.env("SYSTEMD_UNIT_PATH", &units).current_dir("/");
        let output = process::finish(command.args(words))?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        ensure!(output.status.success(), "{}: {text}", output.status);
        Ok(text)
    }

    /// Where a unit of this name is.
    pub fn unit(&self, name: &str) -> PathBuf {
        units(self.site).join(name)
    }

    /// Puts another configuration in the place of the one that the units are for.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, config: &str) -> Result<()> {
        self.site.write("lb.yaml", config).map(drop)
    }

    /// Gives `lb run` these options from the next start or reload on.
    ///
    /// # Errors
    ///
    /// When they cannot be written.
    pub fn set_options(&self, options: &str) -> Result<()> {
        let text = format!("LB_OPTIONS={options}\n");
        self.site.write(OPTIONS, &text).map(drop)
    }

    /// What the processes of `lb.service` have said last.
    pub fn words(&self) -> String {
        let log = fs::read_to_string(self.site.dir().join("lb.log"));
        format!(
            "the last words of lb: {}",
            process::tail(&log.unwrap_or_default())
        )
    }

    fn inside(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=1", JOB_SECS, "nsenter", "--target"]);
        command.arg(self.init.to_string());
        command.args(["--mount", "--pid", "--cgroup", "--", program]);
        command
    }

    fn end(&mut self) -> Result<()> {
        // Everything in its namespaces ends with it, also what ignores other signals.
        kill(Pid::from_raw(i32::try_from(self.init)?), Signal::SIGKILL)?;
        self.process.wait_for_end(BOOTS)?;
        let mut down = self.site.lb.command(binary("LB_BIN", "lb")?);
        process::succeed(down.args(["down", "--instance", self.site.run()])).map(drop)
    }
}

impl Drop for Systemd<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            process::complain(format_args!("{error:#}"));
        }
    }
}

fn units(site: &Site) -> PathBuf {
    site.dir().join("units")
}

fn child_of(parent: u32) -> Result<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    poll::until("a child of unshare", BOOTS, || {
        let children = fs::read_to_string(&path).context("read the children of unshare")?;
        Ok(children.trim().parse().ok())
    })
}

fn write_units(site: &Site, config: &str, settings: &str) -> Result<()> {
    let folder = units(site);
    fs::create_dir_all(folder.join("lb.service.d"))?;
    let file = site.write("lb.yaml", config)?;
    // The workspace may lie where no other user can read.
    let program = site.dir().join("lb");
    fs::copy(binary("LB_BIN", "lb")?, &program).context("copy lb")?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    let real = |unit: &str| {
        let file = format!("{} --instance {}", file.display(), site.run());
        unit.replace("/usr/bin/lb", &program.display().to_string())
            .replace("/etc/lb/lb.yaml", &file)
            .replace("=lb/main", &format!("=lb/{}", site.run()))
            .replace(
                "/etc/lb/lb.env",
                &site.dir().join(OPTIONS).display().to_string(),
            )
    };
    let log = site.dir().join("lb.log");
    let settings = format!(
        "[Service]\nStandardOutput=append:{}\nStandardError=inherit\n{}",
        log.display(),
        real(settings)
    );
    fs::write(folder.join("lb.service"), real(SERVICE))?;
    fs::write(folder.join("lb.service.d/test.conf"), settings)?;
    for target in TARGETS {
        let text = "[Unit]\nDefaultDependencies=no\n";
        fs::write(folder.join(format!("{target}.target")), text)?;
    }
    Ok(())
}

/// The users of the machine, and that of the units.
fn write_users(site: &Site) -> Result<()> {
    let root = site.dir().join("users");
    fs::create_dir_all(root.join("etc"))?;
    for file in ["passwd", "group"] {
        fs::copy(Path::new("/etc").join(file), root.join("etc").join(file))?;
    }
    let users = site.write("sysusers.conf", USERS)?;
    let mut command = Command::new("systemd-sysusers");
    process::succeed(command.arg("--root").arg(&root).arg(&users)).map(drop)
}
