//! Something done at a fixed rate for as long as something else takes.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};

use crate::netns::Netns;

/// What is due within this time is done in one go: a shorter sleep is not kept.
const TICK: Duration = Duration::from_millis(2);
/// What was missed for longer than this is not made up for: the rate is a ceiling.
const LATE: Duration = Duration::from_millis(20);

/// A rate, and the threads that keep it together.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Steps per second.
    pub per_second: u32,
    /// More than one where a step waits for an answer.
    pub threads: u32,
}

/// What was done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Steps.
    pub steps: u64,
    /// The time that they took.
    pub elapsed: Duration,
}

impl Done {
    /// The rate that was achieved.
    pub fn per_second(&self) -> f64 {
        // Far fewer than 2^32 steps.
        f64::from(u32::try_from(self.steps).unwrap_or(u32::MAX)) / self.elapsed.as_secs_f64()
    }
}

impl Pace {
    /// Calls `step` with 0, 1, 2 and so on inside `netns` until `work` has ended.
    ///
    /// # Errors
    ///
    /// When one of both fails; the first failure of a step ends its thread.
    pub fn beside<T>(
        self,
        netns: &Netns,
        step: &(dyn Fn(u64) -> Result<()> + Sync),
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Done)> {
        let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
        let start = Instant::now();
        let (worked, kept) = thread::scope(|scope| {
            let keeping = scope.spawn(|| netns.inside(|| self.keep(step, &stop, &steps)));
            let worked = work();
            stop.store(true, Ordering::Release);
            let kept = keeping.join().map_err(|_| anyhow!("a step panicked"));
            (worked, kept)
        });
        let done = Done {
            steps: steps.into_inner(),
            elapsed: start.elapsed(),
        };
        kept???;
        Ok((worked?, done))
    }

    fn keep(
        self,
        step: &(dyn Fn(u64) -> Result<()> + Sync),
        stop: &AtomicBool,
        steps: &AtomicU64,
    ) -> Result<()> {
        thread::scope(|scope| {
            let thread = |first: u32| scope.spawn(move || self.run(first, step, stop, steps));
            let threads: Vec<_> = (0..self.threads).map(thread).collect();
            threads.into_iter().try_for_each(|thread| {
                let ran = thread.join();
                ran.map_err(|_| anyhow!("a step panicked"))?
            })
        })
    }

    /// One of the threads: each step whose number it has.
    fn run(
        self,
        first: u32,
        step: &(dyn Fn(u64) -> Result<()> + Sync),
        stop: &AtomicBool,
        steps: &AtomicU64,
    ) -> Result<()> {
        let each = f64::from(self.threads) / f64::from(self.per_second);
        let (mut number, mut due) = (u64::from(first), Instant::now());
        while !stop.load(Ordering::Acquire) {
            let now = Instant::now();
            due = due.max(now.checked_sub(LATE).unwrap_or(now));
            while due <= now + TICK {
                step(number).with_context(|| format!("step {number}"))?;
                steps.fetch_add(1, Ordering::Relaxed);
                number += u64::from(self.threads);
                due += Duration::from_secs_f64(each);
            }
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}
