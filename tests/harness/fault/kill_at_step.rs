//! A process that is killed just before one of its steps: a change of a pinned map, a pin, a link of a
//! program, a name in the file system, a change of the kernel's networks. Between two steps no other
//! process sees a difference, so a process that dies before each of them once has died everywhere.
//!
//! Of a connection that is handed over, what its threads do with sockets are steps as well: see
//! [`kill_in_hand_over`].

use std::{
    collections::BTreeMap,
    ffi::c_void,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow};
use aya::maps::MapData;
use lb_user::dataplane::pins::Pins;
use nix::{
    errno::Errno,
    libc,
    sys::{
        ptrace::{self, Options},
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid},
    },
    unistd::Pid,
};

/// Commands of bpf(2) that change something of a map, by the number of the kernel's `bpf_cmd`.
const OF_MAPS: [u64; 2] = [2, 3];
/// Those that change what others see and are not of a map: a pin, a new link, a link's program.
const OF_OTHERS: [u64; 3] = [6, 28, 29];
/// Changes of names in the file system.
const OF_FILES: [libc::c_long; 9] = [
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mount,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_umount2,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];
/// First letters of the threads that serve shared VIPs.
const FRONT: &str = "vip-";
/// `BPF_MAP_LOOKUP_AND_DELETE_ELEM`: an id is taken from a queue.
const TAKE: u64 = 21;
/// What the thread of a connection does with its sockets, with a name for it.
const OF_SOCKETS: [(libc::c_long, &str); 10] = [
    (libc::SYS_accept4, "accept"),
    (libc::SYS_bind, "bind"),
    (libc::SYS_close, "close"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_getsockopt, "getsockopt"),
    (libc::SYS_recvfrom, "receive"),
    (libc::SYS_sendto, "send"),
    (libc::SYS_setsockopt, "setsockopt"),
    (libc::SYS_socket, "socket"),
    (libc::SYS_splice, "splice"),
];
/// What an entry into the kernel has for a result.
const ENTERS: i64 = -(Errno::ENOSYS as i64);
/// In a message of rtnetlink: questions have this in the lower two bits of their type.
const QUESTION: u16 = 2;

/// A thread that follows a process step by step.
#[derive(Debug)]
pub struct Doom {
    thread: JoinHandle<Result<Followed>>,
    enough: Arc<AtomicBool>,
}

/// What became of it.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// The steps that it made.
    pub steps: Vec<String>,
    /// The one that it did not make: it was killed before.
    pub killed: Option<String>,
}

/// The step before which a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// By its number among all, from 0. Threads make the numbers differ from one run to the next.
    Step(usize),
    /// By its number, from 0, among those of this name.
    Of(&'static str, usize),
}

impl Moment {
    /// Whether this is it, after these.
    fn is_now(self, steps: &[String], step: &str) -> bool {
        match self {
            Self::Step(number) => steps.len() == number,
            Self::Of(name, number) => {
                let before = steps.iter().filter(|before| *before == name).count();
                step == name && before == number
            }
        }
    }
}

/// Follows the process `pid` of `instance` and kills it at this moment.
///
/// # Errors
///
/// When it cannot be followed.
pub fn kill_before(instance: &str, pid: u32, moment: Moment) -> Result<Doom> {
    start(instance, &[pid], moment, Watch::Changes)
}

/// The same; the process `other` is killed at the same moment, before it can notice.
///
/// # Errors
///
/// As for [`kill_before`].
pub fn kill_both_before(instance: &str, pid: u32, other: u32, moment: Moment) -> Result<Doom> {
    start(instance, &[pid, other], moment, Watch::Changes)
}

/// The same for the steps by which the next connection of a shared VIP gets its backend: what the threads
/// of shared VIPs do with sockets and maps, from its accept on, or from where its client's socket is made.
///
/// # Errors
///
/// As for [`kill_before`].
pub fn kill_in_hand_over(instance: &str, pid: u32, moment: Moment) -> Result<Doom> {
    start(instance, &[pid], moment, Watch::HandOver { begun: false })
}

/// What counts as a step.
#[derive(Clone, Copy, Debug)]
enum Watch {
    Changes,
    HandOver { begun: bool },
}

impl Watch {
    fn step(&mut self, task: Pid, maps: &BTreeMap<u32, String>) -> Option<String> {
        match self {
            Self::Changes => step(task, maps),
            Self::HandOver { begun } => {
                let step = hand_over_step(task, maps)?;
                *begun |= matches!(step.as_str(), "accept" | "socket");
                begun.then_some(step)
            }
        }
    }
}

/// The first of these processes is followed, and all of them are killed, the first one last.
fn start(instance: &str, pids: &[u32], moment: Moment, watch: Watch) -> Result<Doom> {
    let enough = Arc::new(AtomicBool::new(false));
    let pids = pids
        .iter()
        .map(|pid| i32::try_from(*pid).map(Pid::from_raw));
    let pids = pids.collect::<Result<Vec<_>, _>>()?;
    let maps = pinned(instance);
    let (ready, is_ready) = std::sync::mpsc::channel();
    let for_thread = Arc::clone(&enough);
    // The thread that traces a process must be the one that waits for it.
    let thread = thread::Builder::new()
        .name("doom".to_owned())
        .spawn(move || {
            let seized = seize(pids[0]);
            // The caller waits for it, and nothing else does.
            let _heard = ready.send(());
            seized?;
            follow(&pids, &maps, (moment, watch), &for_thread)
        })
        .context("start a thread")?;
    is_ready.recv().context("the thread has ended")?;
    Ok(Doom { thread, enough })
}

impl Doom {
    /// Whether it has come to its end.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets the process go, if it was not killed; what it has done.
    ///
    /// # Errors
    ///
    /// When it could not be followed.
    pub fn end(self) -> Result<Followed> {
        self.enough.store(true, Ordering::Release);
        let followed = self.thread.join();
        followed.map_err(|_| anyhow!("who follows a process panicked"))?
    }
}

/// The pinned maps: their names by their ids.
fn pinned(instance: &str) -> BTreeMap<u32, String> {
    let folder = Pins::new(instance).maps();
    let entries = fs::read_dir(folder).into_iter().flatten();
    let map = |path: std::path::PathBuf| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((MapData::from_pin(&path).ok()?.info().ok()?.id(), name))
    };
    entries
        .filter_map(|entry| map(entry.ok()?.path()))
        .collect()
}

/// Begins to follow every thread of a process, and those that they start.
fn seize(pid: Pid) -> Result<()> {
    let options = Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE;
    let folder = format!("/proc/{pid}/task");
    for task in fs::read_dir(&folder).with_context(|| format!("read {folder}"))? {
        let name = task.context("read a thread")?.file_name();
        let Some(task) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let task = Pid::from_raw(task);
        match ptrace::seize(task, options) {
            // It has ended meanwhile, or its creator was followed already.
            Err(Errno::ESRCH | Errno::EPERM) => continue,
            seized => seized.with_context(|| format!("follow {task}"))?,
        }
        ptrace::interrupt(task).with_context(|| format!("stop {task}"))?;
    }
    Ok(())
}

/// Returning from here detaches from every process that is still traced.
fn follow(
    pids: &[Pid],
    maps: &BTreeMap<u32, String>,
    (moment, mut watch): (Moment, Watch),
    enough: &AtomicBool,
) -> Result<Followed> {
    let mut followed = Followed::default();
    loop {
        // Its end is for the one who has started it to hear of: here it is only looked at.
        let any = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
        let ours = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let next = match waitid(Id::All, any | ours) {
            Err(Errno::ECHILD) => return Ok(followed),
            Err(Errno::EINTR) => continue,
            next => next.context("wait for a thread")?,
        };
        let task = next.pid();
        let ends = matches!(next, WaitStatus::Exited(..) | WaitStatus::Signaled(..));
        if ends && task == Some(pids[0]) {
            return Ok(followed);
        }
        let status = waitpid(task, Some(ours)).context("take in what it does")?;
        let (task, signal) = match status {
            WaitStatus::PtraceSyscall(task) => {
                if followed.killed.is_none()
                    && let Some(step) = watch.step(task, maps)
                {
                    if moment.is_now(&followed.steps, &step) {
                        for pid in pids.iter().rev() {
                            kill(*pid, Signal::SIGKILL).with_context(|| format!("kill {pid}"))?;
                        }
                        followed.killed = Some(step);
                        continue;
                    }
                    followed.steps.push(step);
                }
                (task, None)
            }
            WaitStatus::Stopped(task, signal) => (task, Some(signal)),
            WaitStatus::PtraceEvent(task, ..) => (task, None),
            _ => continue,
        };
        if followed.killed.is_none() && enough.load(Ordering::Acquire) {
            return Ok(followed);
        }
        match ptrace::syscall(task, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).context("let it go on"),
        }
    }
}

/// The step that a thread which stands before a call of the kernel is about to make.
fn step(task: Pid, maps: &BTreeMap<u32, String>) -> Option<String> {
    let (call, registers) = entered(task)?;
    match call {
        libc::SYS_bpf if OF_OTHERS.contains(&registers.rdi) => {
            Some(format!("bpf {}", registers.rdi))
        }
        libc::SYS_bpf if OF_MAPS.contains(&registers.rdi) => of_map(task, &registers, maps),
        libc::SYS_sendto if registers.r8 != 0 => {
            let netlink = u64::try_from(libc::AF_NETLINK).ok()?;
            let is_netlink = word(task, registers.r8)? & 0xffff == netlink;
            let kind = u16::try_from(word(task, registers.rsi + 4)? & 0xffff).ok()?;
            (is_netlink && kind & 3 != QUESTION).then(|| format!("rtnetlink {kind}"))
        }
        call if OF_FILES.contains(&call) => Some(format!("call {call}")),
        _ => None,
    }
}

/// The same of a thread that serves shared VIPs.
fn hand_over_step(task: Pid, maps: &BTreeMap<u32, String>) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{task}/comm")).ok()?;
    if !name.starts_with(FRONT) {
        return None;
    }
    let (call, registers) = entered(task)?;
    if call == libc::SYS_bpf {
        let is_change = OF_MAPS.contains(&registers.rdi) || registers.rdi == TAKE;
        return is_change
            .then(|| of_map(task, &registers, maps).unwrap_or_else(|| "bpf".to_owned()));
    }
    let (_, name) = OF_SOCKETS.iter().find(|(number, _)| *number == call)?;
    Some(match *name {
        "getsockopt" | "setsockopt" => format!("{name} {}.{}", registers.rsi, registers.rdx),
        name => name.to_owned(),
    })
}

/// The call of the kernel that a thread stands before.
fn entered(task: Pid) -> Option<(libc::c_long, libc::user_regs_struct)> {
    let registers = ptrace::getregs(task).ok()?;
    if registers.rax.cast_signed() != ENTERS {
        return None;
    }
    let call = libc::c_long::try_from(registers.orig_rax).ok()?;
    Some((call, registers))
}

/// A call of bpf(2) that is about a pinned map.
fn of_map(
    task: Pid,
    registers: &libc::user_regs_struct,
    maps: &BTreeMap<u32, String>,
) -> Option<String> {
    let file = word(task, registers.rsi)? & 0xffff_ffff;
    let info = fs::read_to_string(format!("/proc/{task}/fdinfo/{file}")).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("map_id:"))?;
    let name = maps.get(&id.trim().parse().ok()?)?;
    Some(format!("bpf {} of {name}", registers.rdi))
}

/// Eight bytes of its memory.
fn word(task: Pid, address: u64) -> Option<u64> {
    let address = std::ptr::without_provenance_mut::<c_void>(usize::try_from(address).ok()?);
    ptrace::read(task, address).ok().map(i64::cast_unsigned)
}
