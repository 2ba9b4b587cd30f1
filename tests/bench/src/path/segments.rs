//! A stream of segments: what is sent, what is expected, and what has come of it.

use std::fs;

use anyhow::{Context as _, Result, bail};
use aya::{
    Pod, TestRun as _, TestRunAttrs, TestRunOptions,
    maps::{Array, MapData, PerCpuArray},
};
use lb_tests::product::cpu;
use serde::{Deserialize, Serialize};

use crate::{machine, path::programs::Programs};

/// What is sent; see `tests/switch/src/generate.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stream {
    pub(crate) macs: [u8; 12],
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) spread: u32,
    pub(crate) port: u32,
    pub(crate) ports: u32,
    pub(crate) first: u32,
    pub(crate) flows: u32,
    pub(crate) step: u32,
    pub(crate) opens: u32,
    pub(crate) data: u32,
}

// SAFETY: only numbers, without padding: 12 bytes and ten words.
unsafe impl Pod for Stream {}

/// What is expected; see `tests/switch/src/sink.rs`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) backend: u32,
    pub(crate) backends: u32,
    pub(crate) port: u32,
    pub(crate) vip: u32,
    pub(crate) vips: u32,
    pub(crate) answers: u32,
    pub(crate) follows: u32,
}

// SAFETY: only numbers of one size.
unsafe impl Pod for Wanted {}

/// What came, in the order of `Came` in `tests/switch/src/sink.rs`.
const CAME: [&str; 8] = [
    "right",
    "opening",
    "answers",
    "wrong checksums",
    "wrong lengths",
    "wrong addresses",
    "unknown flows",
    "flows that moved",
];

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Came {
    counts: [u64; CAME.len()],
}

impl Came {
    /// What is more than there was before.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        for (now, before) in self.counts.iter_mut().zip(before.counts) {
            *now -= before;
        }
        self
    }

    /// Segments that were right, those that open connections, and answers to them.
    pub(crate) fn good(&self) -> [u64; 3] {
        let [right, opening, answers, ..] = self.counts;
        [right, opening, answers]
    }

    /// How many segments have come, whatever they were.
    pub(crate) fn all(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// So many segments with data.
    pub(crate) const fn right(count: u64) -> Self {
        let counts = [count, 0, 0, 0, 0, 0, 0, 0];
        Self { counts }
    }

    /// So many that open connections, and as many answers to them as clients have heard.
    pub(crate) const fn opening(count: u64, answers: u64) -> Self {
        let counts = [0, count, answers, 0, 0, 0, 0, 0];
        Self { counts }
    }

    /// Kinds that should not come, and how many have.
    pub(crate) fn wrong(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = CAME.into_iter().zip(self.counts);
        all.skip(3).filter(|(_, count)| *count > 0)
    }
}

/// The largest number of frames that the kernel makes at a time, as with a NIC.
const BATCH: u32 = 64;
/// Segments of one call, which a signal cannot interrupt for longer than this takes.
pub(crate) const CALL: u32 = 1 << 20;

impl Programs {
    /// Says what is sent and what is expected from now on.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn expect(&mut self, stream: &Stream, wanted: &Wanted) -> Result<()> {
        let mut streams: Array<&mut MapData, Stream> = self.map("STREAM")?;
        streams.set(0, stream, 0)?;
        let mut made: Array<&mut MapData, u64> = self.map("MADE")?;
        made.set(0, &0, 0)?;
        let mut wants: Array<&mut MapData, Wanted> = self.map("WANTED")?;
        wants.set(0, wanted, 0)?;
        Ok(())
    }

    /// What has come since the programs were loaded.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn came(&mut self) -> Result<Came> {
        let came: PerCpuArray<&mut MapData, u64> = self.map("CAME")?;
        let mut counts = [0; CAME.len()];
        for (index, count) in (0..).zip(&mut counts) {
            *count = came.get(&index, 0)?.iter().sum();
        }
        Ok(Came { counts })
    }

    /// Makes so many segments of `length` bytes, with their Ethernet headers, and sends them out of an interface of this
    /// thread's namespace, on this CPU, where all that comes of them in soft interrupts runs, too; not before `ready`
    /// returns. The CPU time of both, in nanoseconds.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn run(
        &mut self,
        (program, port): (&str, u32),
        cpu: usize,
        (segments, length): (u32, usize),
        ready: impl FnOnce(),
    ) -> Result<f64> {
        let bound = cpu::bind(cpu).and_then(|()| softirq(cpu));
        // Others may wait for this one.
        ready();
        let before = machine::spent()? * 1e9 + bound?;
        self.make(program, port, segments, length)?;
        Ok(machine::spent()? * 1e9 + softirq(cpu)? - before)
    }

    /// Makes and sends them on the CPU that this thread is on.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn make(
        &mut self,
        program: &str,
        port: u32,
        segments: u32,
        length: usize,
    ) -> Result<()> {
        let frame = vec![0; length];
        let context = cpu::context(port, u32::try_from(length)?);
        let program = self.program(program)?;
        let mut left = segments;
        while left > 0 {
            let now = left.min(CALL);
            let options = TestRunOptions {
                data_in: Some(&frame),
                ctx_in: Some(&context),
                repeat: now,
                attrs: TestRunAttrs::new().xdp_live_frames(BATCH),
                ..TestRunOptions::default()
            };
            program.test_run(options).context("run the generator")?;
            left -= now;
        }
        Ok(())
    }
}

/// The CPU time of the kernel's thread for soft interrupts, in nanoseconds.
fn softirq(cpu: usize) -> Result<f64> {
    let name = format!("ksoftirqd/{cpu}");
    for task in fs::read_dir("/proc").context("read the processes")? {
        let folder = task.context("read a process")?.path();
        let Ok(comm) = fs::read_to_string(folder.join("comm")) else {
            continue;
        };
        if comm.trim() == name {
            let times = fs::read_to_string(folder.join("schedstat")).context("its times")?;
            let time = times.split(' ').next().context("its time on a CPU")?;
            return Ok(time.parse()?);
        }
    }
    bail!("no thread {name}")
}

/// A stream for each of so many senders, of flows of its own, and how many segments it has.
///
/// # Errors
///
/// For more senders than can be counted.
pub(crate) fn parts(stream: &Stream, segments: u32, senders: usize) -> Result<Vec<(Stream, u32)>> {
    let count = u32::try_from(senders).context("count the senders")?;
    let (mut flow, mut sent) = (stream.first, 0);
    let mut parts = Vec::new();
    for place in 1..=count {
        let end = |all: u32| u64::from(all) * u64::from(place) / u64::from(count);
        let next = stream.first + u32::try_from(end(stream.flows))?;
        let until = u32::try_from(end(segments))?;
        // There is no request for no segments, or for those of no flow: they are of the next one.
        if next > flow && until > sent {
            let (first, flows) = (flow, next - flow);
            let own = Stream {
                first,
                flows,
                ..*stream
            };
            parts.push((own, until - sent));
            (flow, sent) = (next, until);
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(first: u32, flows: u32, segments: u32, senders: usize) -> Vec<[u32; 3]> {
        let stream = Stream {
            first,
            flows,
            ..Stream::default()
        };
        let parts = parts(&stream, segments, senders).unwrap().into_iter();
        parts
            .map(|(part, segments)| [part.first, part.flows, segments])
            .collect()
    }

    #[test]
    fn one_sender_has_the_whole_stream() {
        assert_eq!(split(1000, 250, 250, 1), [[1000, 250, 250]]);
    }

    #[test]
    fn senders_share_flows_and_segments_without_a_rest() {
        let parts = split(1000, 250, 250, 4);
        assert_eq!(
            parts,
            [
                [1000, 62, 62],
                [1062, 63, 63],
                [1125, 62, 62],
                [1187, 63, 63]
            ]
        );
        let all = split(0, 1 << 15, 20_000_000, 3);
        assert_eq!(all.iter().map(|part| part[1]).sum::<u32>(), 1 << 15);
        assert_eq!(all.iter().map(|part| part[2]).sum::<u32>(), 20_000_000);
    }

    #[test]
    fn a_sender_without_a_flow_leaves_its_segments_to_the_next() {
        assert_eq!(split(7, 1, 5, 2), [[7, 1, 5]]);
    }
}
