//! BPF_PROG_TEST_RUN of a program with a different packet each time: `vary` of `tests/switch`, which writes
//! the next of many into the frame, and then calls it.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    ops::Range,
};

use anyhow::{Context as _, Result, ensure};
use aya::{
    Ebpf, EbpfLoader, TestRun as _, TestRunOptions,
    maps::{Array, MapData, ProgramArray},
    programs::{Xdp, XdpMode},
};

use crate::{
    product::{cpu::context, program::Action},
    topology::switch::PATH,
};

/// Bytes of a frame that are written: of a longer one too few.
const LONG: usize = 80;
/// Bytes of the shortest frame.
const SHORT: usize = 60;
/// What a program may add to a frame.
const ROOM: usize = 128;

/// Which end of a frame is another one in each turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varied {
    /// Address and port of the sender.
    Source,
    /// Those of the receiver.
    Destination,
}

/// The packets of a run, one after the other and then from the first one again.
#[derive(Clone, Debug)]
pub struct Packets {
    /// One frame, or two in turns: of 60 or 80 bytes, see [`padded`]. Where an end varies they are TCP without
    /// tag and IP options, with 0.0.0.0:0 for this end, and with zeros for the last two octets of the other.
    pub frames: Vec<Vec<u8>>,
    /// The end that differs, and the places of what it is in the table of turns.
    pub varied: Option<(Varied, Range<u32>)>,
}

/// What a varied packet has of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The end that varies.
    pub end: SocketAddrV4,
    /// The other end; its first two octets are those of the frame.
    pub other: Ipv4Addr,
}

/// `vary`, and the program that does nothing.
pub struct Vary {
    object: Ebpf,
    target: ProgramArray<MapData>,
    plan: Array<MapData, [u32; 6]>,
    frames: Array<MapData, [u64; 10]>,
    turns: Array<MapData, u64>,
    /// The frames' first bytes, as TEST_RUN is given them.
    first: Vec<u8>,
}

impl Vary {
    /// Loads the programs, with a table of so many turns.
    ///
    /// # Errors
    ///
    /// When the kernel refuses one.
    pub fn load(turns: u32) -> Result<Self> {
        let mut object = EbpfLoader::new()
            .map_max_entries("VARY_TURNS", turns)
            .load(PATH)
            .context("load the programs of the bench's path")?;
        for name in ["empty", "vary"] {
            let loaded = program(&mut object, name)?.load();
            loaded.with_context(|| format!("load program {name} of the bench's path"))?;
        }
        let mut map = |name: &str| {
            let map = object.take_map(name);
            map.with_context(|| format!("the bench's path has no map {name}"))
        };
        Ok(Self {
            target: map("VARY_TARGET")?.try_into()?,
            plan: map("VARY_PLAN")?.try_into()?,
            frames: map("VARY_FRAMES")?.try_into()?,
            turns: map("VARY_TURNS")?.try_into()?,
            object,
            first: Vec::new(),
        })
    }

    /// Puts the program that varies packets on an interface that no packets come in at: the kernel keeps a
    /// direct call for what is on one, which every run would else make and remove, and wait for all CPUs.
    ///
    /// # Errors
    ///
    /// When there is no such interface, or it has a program.
    pub fn settle(&mut self, interface: u32) -> Result<()> {
        let attached = program(&mut self.object, "vary")?.attach(interface, XdpMode::Skb);
        let attached = attached.map(drop);
        attached.with_context(|| format!("put `vary` on interface {interface}"))
    }

    /// Calls `program` from now on.
    ///
    /// # Errors
    ///
    /// When it is not of the same kind as `vary`.
    pub fn call(&mut self, program: &Xdp) -> Result<()> {
        let set = self.target.set(0, program.fd()?, 0);
        set.context("call the program from the one that varies packets")
    }

    /// Calls the program that does nothing: then a run costs what it costs by itself.
    ///
    /// # Errors
    ///
    /// As for [`Self::call`].
    pub fn call_nothing(&mut self) -> Result<()> {
        let empty = program(&mut self.object, "empty")?.fd()?.try_clone()?;
        let set = self.target.set(0, &empty, 0);
        set.context("call the program that does nothing")
    }

    /// Writes turns into the table from the place `first` on, and gives their places.
    ///
    /// # Errors
    ///
    /// When the table is too small.
    pub fn write_turns(
        &mut self,
        first: u32,
        turns: impl IntoIterator<Item = Turn>,
    ) -> Result<Range<u32>> {
        let mut place = first;
        for Turn { end, other } in turns {
            let [a, b, c, d] = end.ip().octets();
            let [high, low] = end.port().to_be_bytes();
            let [_, _, y, z] = other.octets();
            let turn = u64::from_ne_bytes([a, b, c, d, high, low, y, z]);
            let set = self.turns.set(place, &turn, 0);
            set.with_context(|| format!("write turn {place}"))?;
            place += 1;
        }
        Ok(first..place)
    }

    /// Loads the programs once more, with an empty table of the same size, for another CPU.
    ///
    /// # Errors
    ///
    /// As for [`Self::load`].
    pub fn another(&self) -> Result<Self> {
        Self::load(self.turns.len())
    }

    /// Copies turns from another one's table, to the same places.
    ///
    /// # Errors
    ///
    /// When one of the tables is too small.
    pub fn copy_turns(&mut self, other: &Self, places: Range<u32>) -> Result<()> {
        for place in places {
            let turn = other.turns.get(&place, 0);
            let turn = turn.with_context(|| format!("read turn {place}"))?;
            let set = self.turns.set(place, &turn, 0);
            set.with_context(|| format!("write turn {place}"))?;
        }
        Ok(())
    }

    /// Makes the first of `packets` the next one.
    ///
    /// # Errors
    ///
    /// When the frames have not the lengths that they must have.
    pub fn prepare(&mut self, packets: &Packets) -> Result<()> {
        let Packets { frames, varied } = packets;
        let first = frames.first().context("no frame")?;
        ensure!(frames.len() <= 2, "{} frames", frames.len());
        for (index, frame) in (0..).zip(frames) {
            let length = frame.len();
            ensure!(
                length == first.len() && [SHORT, LONG].contains(&length),
                "a frame of {length} bytes"
            );
            self.frames.set(index, &words(frame), 0)?;
        }
        self.first.clone_from(first);
        let last = u32::try_from(frames.len() - 1)?;
        let (turns, first, varied) = match varied {
            None => (last + 1, 0, 0),
            Some((Varied::Source, turns)) => (turns.end - turns.start, turns.start, 1),
            Some((Varied::Destination, turns)) => (turns.end - turns.start, turns.start, 2),
        };
        let plan = [turns, 0, first, varied, last, 0];
        self.plan.set(0, &plan, 0).context("write the plan")
    }

    /// Runs the program on the next packets, as they come in at the interface `ingress`: what became of the
    /// last one.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or the last action is none of the four.
    pub fn run(&mut self, ingress: u32, times: u32) -> Result<(Action, Vec<u8>)> {
        let context = context(ingress, u32::try_from(self.first.len())?);
        let mut out = vec![0; LONG + ROOM];
        let options = TestRunOptions {
            data_in: Some(&self.first),
            data_out: Some(&mut out),
            ctx_in: Some(&context),
            repeat: times,
            ..TestRunOptions::default()
        };
        let run = program(&mut self.object, "vary")?.test_run(options);
        let run = run.context("BPF_PROG_TEST_RUN")?;
        out.truncate(run.data_size_out as usize);
        let action = Action::of(run.return_value);
        let action = action.with_context(|| format!("XDP action {}", run.return_value))?;
        Ok((action, out))
    }
}

/// A frame with Ethernet padding up to the next length that [`Packets`] may have.
#[must_use]
pub fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    let length = if frame.len() > SHORT { LONG } else { SHORT };
    frame.resize(length.max(frame.len()), 0);
    frame
}

fn program<'o>(object: &'o mut Ebpf, name: &str) -> Result<&'o mut Xdp> {
    let program = object.program_mut(name);
    let program = program.with_context(|| format!("the bench's path has no program {name}"))?;
    Ok(program.try_into()?)
}

/// The words of a frame's first bytes.
fn words(frame: &[u8]) -> [u64; 10] {
    let mut words = [0; 10];
    for (word, bytes) in words.iter_mut().zip(frame.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    words
}
