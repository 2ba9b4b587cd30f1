//! One network namespace as a guard: made with the calm settings that every namespace of a test
//! needs, removed on drop.
//!
//! Programs enter it through `nsenter --net`, never `ip netns exec`: the latter mounts a fresh
//! /sys, which hides the pins under /sys/fs/bpf. Code enters it on a thread of its own, because
//! the namespace belongs to the thread that calls `setns`.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};

use crate::{process, product::cpu};

/// Where `ip netns` keeps its namespaces.
pub const FOLDER: &str = "/run/netns";

/// Set before any link comes up. No IPv6: router solicitations and listener reports would move the
/// counters that tests compare exactly. `ip_forward` is inherited from the machine, so it is set.
const SYSCTLS: [(&str, &str); 3] = [
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    ("ipv4/ip_forward", "0"),
];

/// Of an interface that has IPv6 all the same, `disable_ipv6` last: nothing that no test has asked for is
/// said, except that groups are joined, which cannot be switched off (RFC 3810).
const IPV6: [(&str, &str); 8] = [
    ("addr_gen_mode", "1"),
    ("accept_ra", "0"),
    ("autoconf", "0"),
    ("accept_redirects", "0"),
    ("router_solicitations", "0"),
    ("dad_transmits", "0"),
    ("ndisc_notify", "0"),
    ("disable_ipv6", "0"),
];

/// A network namespace under /run/netns that is removed on drop.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Makes the namespace: no IPv6, no forwarding, loopback up.
    ///
    /// # Errors
    ///
    /// When the name is taken or the privileges are missing.
    pub fn create(name: String) -> Result<Self> {
        process::succeed(Command::new("ip").args(["netns", "add", &name]))?;
        let netns = Self { name };
        for (key, value) in SYSCTLS {
            netns.set_sysctl(key, value)?;
        }
        netns.ip_batch("link set lo up\n")?;
        Ok(netns)
    }

    /// Its name as `ip netns` knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    pub fn path(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// A command that will run inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net={FOLDER}/{}", self.name))
            .arg(program);
        command
    }

    /// Runs `line`, split at spaces, inside and returns its standard output.
    ///
    /// # Errors
    ///
    /// When it does not exit with 0.
    pub fn run(&self, line: &str) -> Result<String> {
        process::succeed(&mut self.split(line)?)
    }

    /// Runs `line`, split at spaces, inside; its exit code is for the caller to judge.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn try_run(&self, line: &str) -> Result<Output> {
        process::finish(&mut self.split(line)?)
    }

    /// Runs lines of `ip` commands (without the word `ip`) in one process.
    ///
    /// # Errors
    ///
    /// When one of them fails; the later ones are not run.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        let mut child = Command::new("ip")
            .args(["-n", &self.name, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("start ip -batch")?;
        child
            .stdin
            .take()
            .context("ip -batch has a standard input")?
            .write_all(lines.as_bytes())
            .context("write to ip -batch")?;
        let output = child.wait_with_output().context("wait for ip -batch")?;
        ensure!(
            output.status.success(),
            "ip -n {} -batch: {}\n{lines}",
            self.name,
            String::from_utf8_lossy(&output.stderr).trim(),
        );
        Ok(())
    }

    /// Reads a key below /proc/sys/net, with slashes.
    ///
    /// # Errors
    ///
    /// When there is no such key.
    pub fn sysctl(&self, key: &str) -> Result<String> {
        let path = Path::new("/proc/sys/net").join(key);
        let text = self.inside(|| fs::read_to_string(&path))?;
        Ok(text
            .with_context(|| format!("read {}", path.display()))?
            .trim()
            .to_owned())
    }

    /// Writes a key below /proc/sys/net and reads it back.
    ///
    /// # Errors
    ///
    /// When it does not then have the value.
    pub fn set_sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = Path::new("/proc/sys/net").join(key);
        self.inside(|| fs::write(&path, value))?
            .with_context(|| format!("write {}", path.display()))?;
        let now = self.sysctl(key)?;
        ensure!(now == value, "{key} in {} is {now}, not {value}", self.name);
        Ok(())
    }

    /// Gives `interface` IPv6 with these addresses and no other ones: `fd00::1/64`.
    ///
    /// # Errors
    ///
    /// When there is no such interface, or it has one of the addresses.
    pub fn add_ipv6(&self, interface: &str, addresses: &[String]) -> Result<()> {
        // What is said to an address of one's own goes by this.
        self.set_sysctl("ipv6/conf/lo/disable_ipv6", "0")?;
        for (key, value) in IPV6 {
            self.set_sysctl(&format!("ipv6/conf/{interface}/{key}"), value)?;
        }
        let add = |address| format!("addr add {address} dev {interface} nodad\n");
        self.ip_batch(&addresses.iter().map(add).collect::<String>())
    }

    /// Makes a CPU, one of the first 32, send out of this queue of an interface.
    ///
    /// # Errors
    ///
    /// When there is no such queue, or the kernel cannot do that (`CONFIG_XPS`).
    pub fn steer(&self, interface: &str, queue: usize, cpu: usize) -> Result<()> {
        let file = format!("/sys/class/net/{interface}/queues/tx-{queue}/xps_cpus");
        self.write_sys(&file, &format!("{:x}", 1_u32 << cpu))
    }

    /// Has the kernel handle all packets of a flow on one CPU, as behind a NIC that has queues: for what many connections come
    /// in at. Of a veth packets come on any CPU, and Linux 6.18 was seen to reset a connection of which the end of the
    /// handshake and the first data come on two at the same moment: it finds no socket for the data, presumably because its
    /// look-up takes no lock while the socket takes the place of its request. A capture on both sides of the box showed that: the
    /// reset comes from the kernel of the backend, which takes the connection all the same.
    ///
    /// # Errors
    ///
    /// When there is no such interface, or the kernel cannot do that (`CONFIG_RPS`).
    pub fn keep_flows_on_a_cpu(&self, interface: &str) -> Result<()> {
        let cpus = cpu::all()?.into_iter().filter(|cpu| *cpu < 32);
        let mask = cpus.fold(0_u32, |mask, cpu| mask | 1 << cpu);
        let file = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        self.write_sys(&file, &format!("{mask:x}"))
    }

    /// Gives each NAPI of an interface a thread of its own, `napi/<interface>-<id>`.
    ///
    /// # Errors
    ///
    /// When there is no such interface, or the kernel cannot do that.
    pub fn thread_napi(&self, interface: &str) -> Result<()> {
        self.write_sys(&format!("/sys/class/net/{interface}/threaded"), "1")
    }

    /// Writes a file for which /sys must be that of the namespace.
    fn write_sys(&self, file: &str, value: &str) -> Result<()> {
        let write = format!("echo {value} > {file}");
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.name, "sh", "-c", &write]);
        process::succeed(&mut inside).map(drop)
    }

    /// Runs `work` on a thread inside and waits for it; threads that it starts are inside too.
    ///
    /// # Errors
    ///
    /// When the namespace cannot be entered.
    ///
    /// # Panics
    ///
    /// When `work` does.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let path = self.path();
        thread::scope(|scope| {
            let worker = scope.spawn(|| enter(&path).map(|()| work()));
            match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Starts `work` on a thread inside.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let path = self.path();
        thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                enter(&path)?;
                work()
            })
            .map_err(|error| anyhow!(error).context("start a thread"))
    }

    fn split(&self, line: &str) -> Result<Command> {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().context("an empty command line")?);
        command.args(words);
        Ok(command)
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.name) {
            process::complain(format_args!("{error:#}"));
        }
    }
}

/// Removes a namespace by name; what still runs in it keeps it alive without a name.
///
/// # Errors
///
/// When there is none.
pub fn remove(name: &str) -> Result<()> {
    process::succeed(Command::new("ip").args(["netns", "del", name])).map(drop)
}

/// Moves the calling thread into the namespace at `path`.
fn enter(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter {}", path.display()))
}
