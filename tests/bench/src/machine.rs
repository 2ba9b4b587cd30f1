//! What the figures were measured on, and how quiet it was.

use std::{fs, thread, time::Instant};

use anyhow::{Context as _, Result};
use nix::{
    sys::utsname::uname,
    time::{ClockId, clock_gettime},
};
use serde::Serialize;

use crate::measure::Spread;

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) jit: bool,
    /// How much longer than the fastest the same work took, again and again, as a share: 0 is silence.
    pub(crate) noise: Spread,
    /// The share of a CPU that the work asked for and did not get.
    pub(crate) stolen: f64,
}

impl Machine {
    /// Looks around; takes about a second.
    pub(crate) fn look() -> Result<Self> {
        let name = uname().context("ask for the kernel's name")?;
        let cpus = fs::read_to_string("/proc/cpuinfo").context("read the CPU's name")?;
        let model = cpus.lines().find(|line| line.starts_with("model name"));
        let model = model.and_then(|line| line.split_once(": "));
        let (noise, stolen) = noise()?;
        Ok(Self {
            kernel: name.release().to_string_lossy().into_owned(),
            cpu: model.map_or("unknown", |(_, model)| model).to_owned(),
            cpus: thread::available_parallelism()?.get(),
            jit: fs::read_to_string("/proc/sys/net/core/bpf_jit_enable")
                .is_ok_and(|text| text.trim() != "0"),
            noise,
            stolen,
        })
    }
}

/// Times the same arithmetic many times: what differs is not of the work.
fn noise() -> Result<(Spread, f64)> {
    let (wall, cpu) = (Instant::now(), spent()?);
    let mut times = Vec::new();
    while wall.elapsed().as_millis() < 1000 {
        let begun = spent()?;
        let mut word = 1_u64;
        for step in 0..1_000_000_u64 {
            word = std::hint::black_box(word.rotate_left(5) ^ step);
        }
        times.push(spent()? - begun);
    }
    let (wall, cpu) = (wall.elapsed().as_secs_f64(), spent()? - cpu);
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
    let noise = Spread::of(times.into_iter().map(|time| time / fastest - 1.0));
    Ok((noise.context("no time")?, (1.0 - cpu / wall).max(0.0)))
}

/// The CPU time of this thread, in seconds.
pub(crate) fn spent() -> Result<f64> {
    let time =
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("read the thread's clock")?;
    Ok(std::time::Duration::from(time).as_secs_f64())
}
