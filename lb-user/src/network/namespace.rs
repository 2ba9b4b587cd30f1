//! Network namespaces by name, as `ip netns` keeps them.

use std::{
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context as _, Result, anyhow};
use nix::{
    getsockopt_impl, libc,
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, setns, unshare},
    sys::socket::{AddressFamily, SockFlag, SockType, getsockopt, socket, sockopt::GetStruct},
    unistd::geteuid,
};

const FOLDER: &str = "/run/netns";

/// The number of a socket's network namespace, which no other one ever has.
#[derive(Clone, Copy, Debug)]
struct Cookie;

getsockopt_impl!(
    Cookie,
    libc::SOL_SOCKET,
    libc::SO_NETNS_COOKIE,
    u64,
    GetStruct<u64>
);

/// The file that keeps the namespace `name` alive.
pub fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// The inode of the calling thread's namespace, which no other one has meanwhile (namespaces(7)); 0 if the
/// kernel does not report it.
pub fn own() -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let file = fs::metadata("/proc/thread-self/ns/net");
    file.map(|file| file.ino()).unwrap_or_default()
}

/// Whether it exists.
pub fn exists(name: &str) -> bool {
    is_namespace(&path(name))
}

/// Creates the namespace, or finds it: one that outlived its process is adopted. Returns whether it
/// is new.
///
/// # Errors
///
/// If the kernel refuses the namespace or the mount that keeps it.
pub fn create(name: &str) -> Result<bool> {
    if exists(name) {
        return Ok(false);
    }
    let path = path(name);
    fs::create_dir_all(FOLDER).with_context(|| format!("create {FOLDER}"))?;
    File::create(&path).with_context(|| {
        format!(
            "create {}; for a user without root `lb prepare` does it",
            path.display()
        )
    })?;
    on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET).context("create a network namespace")?;
        mount(
            Some("/proc/thread-self/ns/net"),
            &path,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        )
        .with_context(|| format!("mount the namespace at {}", path.display()))
    })?;
    Ok(true)
}

/// Removes the namespace and everything in it; one that does not exist is none. What was prepared for another
/// user than root stays, empty, if that user does it.
///
/// # Errors
///
/// If it cannot be unmounted or its file not removed.
pub fn remove(name: &str) -> Result<()> {
    let path = path(name);
    if !path.exists() || !geteuid().is_root() {
        return Ok(());
    }
    if is_namespace(&path) {
        umount2(&path, MntFlags::MNT_DETACH)
            .with_context(|| format!("unmount {}", path.display()))?;
    }
    fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
}

/// The names of all namespaces that begin with `prefix`.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn list(prefix: &str) -> Result<Vec<String>> {
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("read {FOLDER}")),
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with(prefix)).collect())
}

/// Moves the calling thread into the namespace for good.
///
/// # Errors
///
/// If the namespace does not exist or may not be entered.
pub fn enter(name: &str) -> Result<()> {
    let path = path(name);
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    setns(&file, CloneFlags::CLONE_NEWNET).with_context(|| format!("enter namespace {name}"))
}

/// Runs `work` inside the namespace, on a thread of its own.
///
/// # Errors
///
/// Those of [`enter`] and of `work`.
pub fn inside<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    on_own_thread(|| {
        enter(name)?;
        work()
    })
}

/// Whether a socket was made in the namespace that the calling thread is in.
///
/// # Errors
///
/// The kernel's error.
pub fn is_here(socket: &impl AsFd) -> io::Result<bool> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let here = self::socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    Ok(getsockopt(socket, Cookie)? == getsockopt(&here, Cookie)?)
}

/// Does it on a thread of its own, which begins in the namespaces of the calling one.
///
/// # Errors
///
/// If it fails, or panics.
pub(super) fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|_| Err(anyhow!("the namespace thread panicked")))
}

/// Whether something is mounted there; a plain file is a leftover of a crash in between.
fn is_namespace(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev());
    matches!((device(path), device(Path::new(FOLDER))), (Ok(own), Ok(folder)) if own != folder)
}
