//! Threads that are bound to a CPU each, so that two of them do things at the same moment, and the
//! program that they run.

use std::{
    hint,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use anyhow::{Context as _, Result};
use aya::{TestRun as _, TestRunOptions, programs::Xdp};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use crate::{
    frames::packet::Decoded,
    product::program::{Action, Port},
};

/// How often a thread looks for the other one before it lets another process use its CPU.
const LOOKS: u32 = 20_000;

/// Two CPUs that this process may use; the same one twice where there is no other.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn two() -> Result<[usize; 2]> {
    let mut cpus = all()?.into_iter();
    let first = cpus.next().context("a CPU")?;
    Ok([first, cpus.next().unwrap_or(first)])
}

/// All CPUs that the calling thread may use, in order.
///
/// # Errors
///
/// When the kernel does not tell.
pub fn all() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("read the CPUs of this process")?;
    let is_allowed = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    Ok((0..CpuSet::count()).filter(is_allowed).collect())
}

/// Binds the calling thread to a CPU.
///
/// # Errors
///
/// When it may not run there.
pub fn bind(cpu: usize) -> Result<()> {
    let mut only = CpuSet::new();
    only.set(cpu).with_context(|| format!("name CPU {cpu}"))?;
    sched_setaffinity(Pid::from_raw(0), &only).with_context(|| format!("run on CPU {cpu}"))
}

/// Where two threads meet, to go on at the same moment.
#[derive(Debug, Default)]
pub struct Meeting {
    turns: [AtomicU32; 2],
}

/// The place of one of the two threads. The other one waits no longer when it is dropped.
#[derive(Debug)]
pub struct Seat<'m> {
    mine: &'m AtomicU32,
    other: &'m AtomicU32,
}

/// The turn of a thread that has gone.
const GONE: u32 = u32::MAX;

impl Meeting {
    /// The places of both threads.
    pub fn seats(&self) -> [Seat<'_>; 2] {
        let [a, b] = &self.turns;
        [(a, b), (b, a)].map(|(mine, other)| Seat { mine, other })
    }
}

impl Seat<'_> {
    /// Waits for the other thread; false if that one has gone.
    pub fn meet(&self) -> bool {
        let turn = self.mine.fetch_add(1, Ordering::SeqCst) + 1;
        let mut looks = 0_u32;
        loop {
            match self.other.load(Ordering::SeqCst) {
                GONE => return false,
                other if other >= turn => return true,
                _ => looks = looks.wrapping_add(1),
            }
            match looks % LOOKS {
                0 => thread::yield_now(),
                _ => hint::spin_loop(),
            }
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.mine.store(GONE, Ordering::SeqCst);
    }
}

/// Numbers that differ from thread to thread and are the same in every run.
#[derive(Clone, Copy, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of their own for every seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(((self.0 >> 32) * u64::from(end)) >> 32).unwrap_or(0)
    }
}

/// `lb_nic` on the NICs of a `DataPlane`, to be run by any thread.
#[derive(Clone, Copy, Debug)]
pub struct Nic<'p> {
    program: &'p Xdp,
    ports: [u32; 2],
}

impl<'p> Nic<'p> {
    pub(crate) const fn new(program: &'p Xdp, ports: [u32; 2]) -> Self {
        Self { program, ports }
    }

    /// Runs it on one frame.
    ///
    /// # Panics
    ///
    /// For a port that is none of the two NICs.
    pub fn run(&self, port: Port, frame: &[u8]) -> (Action, Vec<u8>) {
        let ingress = match port {
            Port::Tenant => self.ports[0],
            Port::Mgmt => self.ports[1],
            other => panic!("{other:?} is no NIC"),
        };
        run(self.program, ingress, frame, 1).0
    }
}

/// Most bytes that a program adds to a frame: an ACK becomes a segment of a hello.
const MAX_GROWTH: usize = 2048;

/// Runs a program `repeat` times on the same memory: action, frame, and the kernel's mean duration in
/// nanoseconds.
pub(crate) fn run(
    program: &Xdp,
    ingress: u32,
    frame: &[u8],
    repeat: u32,
) -> ((Action, Vec<u8>), u64) {
    let length = u32::try_from(frame.len()).expect("a frame below 4 GiB");
    let context = context(ingress, length);
    let mut out = vec![0; frame.len() + MAX_GROWTH];
    let options = TestRunOptions {
        data_in: Some(frame),
        data_out: Some(&mut out),
        ctx_in: Some(&context),
        repeat,
        ..TestRunOptions::default()
    };
    let result = program
        .test_run(options)
        .expect("the kernel runs the program");
    out.truncate(result.data_size_out as usize);
    let returned = result.return_value;
    let action = Action::of(returned)
        .unwrap_or_else(|| panic!("XDP action {returned} for {}", Decoded(frame)));
    let nanoseconds = u64::try_from(result.duration.as_nanos()).expect("a short run");
    ((action, out), nanoseconds)
}

/// The context of a frame of `length` bytes that came in at the interface `ingress`: struct xdp_md, whose
/// words are data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
pub fn context(ingress: u32, length: u32) -> Vec<u8> {
    let words = [0, length, 0, ingress, 0, 0];
    words
        .iter()
        .flat_map(|word: &u32| word.to_ne_bytes())
        .collect()
}
