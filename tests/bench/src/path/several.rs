//! A stream that several CPUs send at once, each its own flows, through the path and to the sink on that CPU alone.

use std::{sync::Barrier, thread};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::{
    contestants::Stand,
    load::{Load, ends},
    programs::Programs,
    segments::{Came, Stream, parts},
};

/// The CPUs that send.
#[derive(Debug)]
pub(crate) struct Several(Vec<Generator>);

/// One of them, with programs that know its part of the stream.
#[derive(Debug)]
struct Generator {
    programs: Programs,
    cpu: usize,
    segments: u32,
}

impl Several {
    /// # Errors
    ///
    /// When the kernel refuses the programs.
    pub(crate) fn new(cpus: &[usize]) -> Result<Self> {
        let generators = cpus.iter().map(|&cpu| {
            Ok(Generator {
                programs: Programs::new()?,
                cpu,
                segments: 0,
            })
        });
        Ok(Self(generators.collect::<Result<_>>()?))
    }

    /// Sends a load through a contestant; how many packets a second all CPUs together carry, by the CPU time that each has
    /// spent from the wire to the wire, if it can be seen.
    ///
    /// # Errors
    ///
    /// When one packet did not arrive as it should.
    pub(crate) fn measure(&mut self, stand: &mut Stand<'_>, load: Load) -> Result<Option<f64>> {
        let alone = self
            .alone(stand, load)
            .context("generators and sinks alone")?;
        let spent = self.through(stand, load)?;
        let rates = spent.iter().zip(&alone).map(|(spent, alone)| {
            let own = spent - alone;
            (own > 0.0).then_some(1e9 / own)
        });
        Ok(rates.sum())
    }

    /// The CPU time of one packet on each CPU, in nanoseconds.
    fn through(&mut self, stand: &mut Stand<'_>, load: Load) -> Result<Vec<f64>> {
        let [generate, _] = load.kind.programs();
        self.expect(stand, load, stand.who.translates())?;
        let (stream, wanted) = ends(load, stand.who.translates());
        stand.wire.expect(stream, wanted)?;
        let path = stand.path;
        stand
            .wire
            .send_by(path, load.segments, load.came(), |port| {
                self.send(generate, port, load.length())
            })
    }

    /// The same of generators and sinks without a path between them.
    fn alone(&mut self, stand: &mut Stand<'_>, load: Load) -> Result<Vec<f64>> {
        let [_, dry] = load.kind.programs();
        self.expect(stand, load, false)?;
        let before = self.came()?;
        let path = stand.path;
        let nothing = Came::right(0);
        let spent = stand
            .wire
            .send_by(path, 0, nothing, |port| self.send(dry, port, load.length()))?;
        for ((now, before), generator) in self.came()?.into_iter().zip(&before).zip(&self.0) {
            let segments = generator.segments;
            let wanted = Load { segments, ..load }.came();
            let came = now.since(before);
            ensure!(came == wanted, "{came:?} instead of {wanted:?}");
        }
        Ok(spent)
    }

    /// Says what each sends.
    fn expect(&mut self, stand: &Stand<'_>, load: Load, to_vip: bool) -> Result<()> {
        let (stream, wanted) = ends(load, to_vip);
        let macs = stand.wire.macs();
        let parts = parts(&stream, load.segments, self.0.len())?;
        ensure!(parts.len() == self.0.len(), "a CPU has no flow to send");
        for (generator, (stream, segments)) in self.0.iter_mut().zip(parts) {
            generator.segments = segments;
            let stream = Stream { macs, ..stream };
            generator.programs.expect(&stream, &wanted)?;
        }
        Ok(())
    }

    fn came(&mut self) -> Result<Vec<Came>> {
        let each = self.0.iter_mut();
        each.map(|generator| generator.programs.came()).collect()
    }

    /// Begins on all CPUs at the same moment, in the namespace that the calling thread is in.
    fn send(&mut self, program: &str, port: u32, length: usize) -> Result<Vec<f64>> {
        let together = Barrier::new(self.0.len());
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .0
                .iter_mut()
                .map(|generator| {
                    let together = &together;
                    scope.spawn(move || generator.run((program, port), length, together))
                })
                .collect();
            let ended = threads.into_iter().map(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|_| Err(anyhow!("a generator has panicked")))
            });
            ended.collect()
        })
    }
}

impl Generator {
    fn run(&mut self, program: (&str, u32), length: usize, together: &Barrier) -> Result<f64> {
        let segments = self.segments;
        let ready = || {
            together.wait();
        };
        let spent = self
            .programs
            .run(program, self.cpu, (segments, length), ready)
            .with_context(|| format!("send {segments} segments on CPU {}", self.cpu))?;
        Ok(spent / f64::from(segments))
    }
}
