//! What this machine is: facts only, gathered without changing anything. `preflight` judges them.

use std::{
    env, fs,
    io::IsTerminal as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use crate::{
    cmd::{Cmd, text_of},
    workspace::Workspace,
};

/// Everything that preflight decides on.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) os: String,
    pub(crate) arch: String,
    /// As in /proc/sys/kernel/osrelease.
    pub(crate) kernel: String,
    pub(crate) wsl: bool,
    /// The sign that this is a container, if there is one.
    pub(crate) container: Option<String>,
    pub(crate) btf: bool,
    pub(crate) lockdown: Lockdown,
    pub(crate) bpffs: bool,
    pub(crate) veth: Veth,
    pub(crate) privilege: Privilege,
    pub(crate) disks: Vec<Disk>,
    /// Root through sudo in another user's checkout: what is built would belong to root.
    pub(crate) sudo_in_users_checkout: bool,
}

/// Kernel lockdown, see kernel_lockdown(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lockdown {
    Confidentiality,
    Integrity,
    Off,
}

/// How root work can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privilege {
    /// sudo is there but wants a password, and there is no terminal to ask on.
    SudoCannotAsk,
    NoSudo,
    Root,
    /// sudo is there and will ask for a password on the terminal.
    SudoAsks,
    SudoWithoutPassword,
}

/// Free space where something will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    pub(crate) free_kib: u64,
}

/// Whether a veth pair can be made in a fresh network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Veth {
    Failed(String),
    NotTried,
    Works,
}

impl Host {
    pub(crate) fn gather(workspace: &Workspace) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let privilege = privilege(workspace);
        Self {
            os: env::consts::OS.to_owned(),
            arch: env::consts::ARCH.to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            wsl: is_wsl(&read("/proc/version")),
            container: container(
                Path::new("/.dockerenv").exists(),
                &read("/run/systemd/container"),
                Path::new("/run/.containerenv").exists(),
                &read("/proc/1/cgroup"),
            ),
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            lockdown: lockdown(&read("/sys/kernel/security/lockdown")),
            bpffs: bpffs_mounted(&read("/proc/mounts")),
            veth: veth(workspace, privilege),
            privilege,
            disks: [&workspace.target, &workspace.cache]
                .into_iter()
                .filter_map(|dir| disk(workspace, dir))
                .collect(),
            sudo_in_users_checkout: workspace.is_root()
                && env::var("SUDO_UID").is_ok_and(|uid| uid != "0")
                && workspace.root.metadata().is_ok_and(|meta| meta.uid() != 0),
        }
    }
}

/// `5.14.0-570.el9.x86_64` -> (5, 14).
pub(crate) fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.parse().ok()?;
    Some((major, minor))
}

fn is_wsl(proc_version: &str) -> bool {
    proc_version.to_ascii_lowercase().contains("microsoft")
}

/// `systemd` is /run/systemd/container, which systemd-nspawn and podman fill with their name.
fn container(docker: bool, systemd: &str, podman: bool, cgroup_of_init: &str) -> Option<String> {
    let runtimes = ["docker", "kubepods", "libpod", "lxc"];
    let by_cgroup = runtimes
        .into_iter()
        .find(|runtime| cgroup_of_init.contains(runtime));
    let systemd = systemd.trim();
    match by_cgroup {
        _ if docker => Some("/.dockerenv exists".to_owned()),
        _ if podman => Some("/run/.containerenv exists".to_owned()),
        _ if !systemd.is_empty() => Some(format!("/run/systemd/container says {systemd}")),
        Some(runtime) => Some(format!("the cgroup of process 1 names {runtime}")),
        None => None,
    }
}

/// The file lists all levels, the one in force in brackets; kernels without lockdown have none.
fn lockdown(levels: &str) -> Lockdown {
    if levels.contains("[confidentiality]") {
        Lockdown::Confidentiality
    } else if levels.contains("[integrity]") {
        Lockdown::Integrity
    } else {
        Lockdown::Off
    }
}

/// Whether a bpf file system is mounted exactly at /sys/fs/bpf.
fn bpffs_mounted(mounts: &str) -> bool {
    let mut mounted = mounts.lines().map(|line| line.split(' ').skip(1).take(2));
    mounted.any(|fields| fields.eq(["/sys/fs/bpf", "bpf"]))
}

/// The fourth column of the last line of `df -Pk`.
fn free_kib(df: &str) -> Option<u64> {
    df.lines().last()?.split_whitespace().nth(3)?.parse().ok()
}

/// Free space at `dir`, or at the nearest folder above it that exists already.
fn disk(workspace: &Workspace, dir: &Path) -> Option<Disk> {
    let existing = dir.ancestors().find(|dir| dir.exists())?;
    let df = workspace.command("df").arg("-Pk").arg(existing).probe()?;
    Some(Disk {
        dir: dir.to_owned(),
        free_kib: free_kib(&df)?,
    })
}

fn privilege(workspace: &Workspace) -> Privilege {
    if workspace.is_root() {
        return Privilege::Root;
    }
    if workspace.find("sudo").is_none() {
        return Privilege::NoSudo;
    }
    let quiet = workspace
        .command("sudo")
        .args(["-n", "true"])
        .probe()
        .is_some();
    match (quiet, std::io::stdin().is_terminal()) {
        (true, _) => Privilege::SudoWithoutPassword,
        (false, true) => Privilege::SudoAsks,
        (false, false) => Privilege::SudoCannotAsk,
    }
}

/// Makes a veth pair in a namespace of its own and removes both. It does not ask for a password:
/// where one is needed, a user namespace does instead, and where that is forbidden it is left out.
fn veth(workspace: &Workspace, privilege: Privilege) -> Veth {
    const PAIR: [&str; 8] = [
        "link", "add", "lbp0", "type", "veth", "peer", "name", "lbp1",
    ];

    if workspace.find("ip").is_none() {
        return Veth::NotTried;
    }
    if !matches!(privilege, Privilege::Root | Privilege::SudoWithoutPassword) {
        let unshared = workspace.command("unshare").args(["-Urn", "ip"]).args(PAIR);
        return if unshared.probe().is_some() {
            Veth::Works
        } else {
            Veth::NotTried
        };
    }
    let namespace = format!("lb-preflight-{}", std::process::id());
    let ip = |words: &[&str]| tried(workspace.as_root("ip").args(words));
    let made = ip(&["netns", "add", &namespace]).and_then(|()| {
        let in_namespace = ["-n", &namespace];
        ip(&[&in_namespace[..], &PAIR[..]].concat())
    });
    // A namespace that could not be made completely may still have left its name behind.
    let removed = ip(&["netns", "del", &namespace]);
    match made.and(removed) {
        Ok(()) => Veth::Works,
        Err(reason) => Veth::Failed(reason),
    }
}

/// Runs silently; the error is what the command printed.
fn tried(cmd: Cmd) -> Result<(), String> {
    match cmd.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(text_of(&output).trim().replace('\n', "; ")),
        Err(error) => Err(format!("{error:#}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_of_distributions_are_understood() {
        assert_eq!(kernel_version("5.14.0-570.el9.x86_64"), Some((5, 14)));
        assert_eq!(kernel_version("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(kernel_version("6.1-rc3"), Some((6, 1)));
        assert_eq!(kernel_version("unknown"), None);
    }

    #[test]
    fn bpffs_counts_only_where_lb_pins() {
        assert!(bpffs_mounted(
            "proc /proc proc rw 0 0\nbpf /sys/fs/bpf bpf rw,mode=700 0 0\n"
        ));
        assert!(!bpffs_mounted("bpf /run/bpf bpf rw 0 0\n"));
        assert!(!bpffs_mounted("tmpfs /sys/fs/bpf tmpfs rw 0 0\n"));
        assert!(!bpffs_mounted(""));
    }

    #[test]
    fn lockdown_is_the_level_in_brackets() {
        assert_eq!(lockdown("[none] integrity confidentiality"), Lockdown::Off);
        assert_eq!(
            lockdown("none [integrity] confidentiality"),
            Lockdown::Integrity
        );
        assert_eq!(
            lockdown("none integrity [confidentiality]"),
            Lockdown::Confidentiality
        );
        assert_eq!(lockdown(""), Lockdown::Off);
    }

    #[test]
    fn containers_and_wsl_are_recognised() {
        assert!(is_wsl("Linux version 5.15.0-microsoft-standard-WSL2"));
        assert!(!is_wsl("Linux version 6.1.0-40-amd64"));
        assert_eq!(container(false, "", false, "0::/init.scope"), None);
        let by_cgroup = container(false, "", false, "12:pids:/docker/0123abcd");
        assert_eq!(
            by_cgroup.as_deref(),
            Some("the cgroup of process 1 names docker")
        );
        let nspawn = container(false, "systemd-nspawn\n", false, "0::/");
        assert_eq!(
            nspawn.as_deref(),
            Some("/run/systemd/container says systemd-nspawn")
        );
    }

    #[test]
    fn free_space_is_the_available_column() {
        let df = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                  /dev/vda 263174212 12840000 82000000 14% /\n";
        assert_eq!(free_kib(df), Some(82_000_000));
        assert_eq!(free_kib(""), None);
    }
}
