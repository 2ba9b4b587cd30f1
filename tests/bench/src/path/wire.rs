//! The wire of a path: the programs at its ports, and the stream of segments that is made and checked there.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use aya::{
    Pod,
    maps::{HashMap, MapData},
};
use lb_tests::{
    netns::Netns,
    product::cpu,
    topology::{
        mac_of,
        path::{ENDS, NICS, Path},
    },
};
use nix::{errno::Errno, net::if_::if_nametoindex};

use crate::{
    path::programs::Programs,
    path::segments::{Came, Stream, Wanted},
};

#[repr(C)]
#[derive(Clone, Copy)]
struct Crossing {
    macs: [u8; 12],
    port: u32,
}

// SAFETY: only numbers, without padding: 12 bytes and a word.
unsafe impl Pod for Crossing {}

/// Which programs are at the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// Everything goes to the client and the server.
    Open,
    /// Segments of a stream are made on the clients' side and end on the backends' side.
    Stream,
}

/// The programs of one path.
#[derive(Debug)]
pub(crate) struct Wire {
    programs: Programs,
    /// Interface index of the port where a stream begins.
    start: u32,
    /// From the client to the load balancer.
    macs: [u8; 12],
}

impl Wire {
    /// Joins the ports of the path's wire.
    ///
    /// # Errors
    ///
    /// When the kernel refuses a program or a port has one.
    pub(crate) fn plug(path: &Path, ports: Ports) -> Result<Self> {
        let mut programs = Programs::new()?;
        for ((_, near), (far, _)) in NICS.into_iter().zip(ENDS) {
            let [near_index, far_index] = [index(&path.wire, near)?, index(&path.wire, far)?];
            let mut opposite: HashMap<&mut MapData, u32, u32> = programs.map("OPPOSITE")?;
            opposite.insert(&near_index, &far_index, 0)?;
            opposite.insert(&far_index, &near_index, 0)?;
            let program = match (ports, near) {
                (Ports::Open, _) => "wire",
                (Ports::Stream, "w0") => "back",
                (Ports::Stream, _) => "sink",
            };
            attach(&mut programs, program, &path.wire, near)?;
            attach(&mut programs, "wire", &path.wire, far)?;
        }
        let macs = (mac_of(&path.lb, "eth0")?, mac_of(&path.client.netns, "c0")?);
        Ok(Self {
            programs,
            start: index(&path.wire, "w0")?,
            macs: joined(macs.0.bytes(), macs.1.bytes()),
        })
    }

    /// Puts the least that a path needs into the load balancer's place: one NIC's frames go out of the other.
    ///
    /// # Errors
    ///
    /// As for [`Self::plug`].
    pub(crate) fn make_bare(&mut self, path: &Path) -> Result<()> {
        let [(tenant, _), (mgmt, _), _] = NICS;
        let ends = [&path.client.netns, &path.server.netns];
        for ((from, to), (end, netns)) in [(mgmt, tenant), (tenant, mgmt)]
            .into_iter()
            .zip(["c0", "s1"].into_iter().zip(ends))
        {
            let (next, own) = (mac_of(netns, end)?, mac_of(&path.lb, to)?);
            let crossing = Crossing {
                macs: joined(next.bytes(), own.bytes()),
                port: index(&path.lb, to)?,
            };
            let mut crossings: HashMap<&mut MapData, u32, Crossing> =
                self.programs.map("CROSSINGS")?;
            crossings.insert(&index(&path.lb, from)?, &crossing, 0)?;
            attach(&mut self.programs, "bare", &path.lb, from)?;
        }
        Ok(())
    }

    /// Says what is sent and what is expected from now on.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub(crate) fn expect(&mut self, stream: Stream, wanted: Wanted) -> Result<()> {
        let macs = self.macs;
        self.programs.expect(&Stream { macs, ..stream }, &wanted)
    }

    /// Sends so many segments of `length` bytes, with their Ethernet headers, on the second CPU; the CPU time of the
    /// whole path for one, in nanoseconds.
    ///
    /// # Errors
    ///
    /// When not exactly that came which should.
    pub(crate) fn send(
        &mut self,
        path: &Path,
        program: &str,
        segments: u32,
        length: usize,
        wanted: Came,
    ) -> Result<f64> {
        let [_, cpu] = cpu::two()?;
        let before = self.programs.came()?;
        let (start, programs) = (self.start, &mut self.programs);
        let spent = path
            .wire
            .inside(|| programs.run((program, start), cpu, (segments, length), || {}))?
            .with_context(|| format!("send {segments} segments"))?;
        self.wait(&before, segments, wanted)?;
        Ok(spent / f64::from(segments))
    }

    /// Sends by `work`, which gets the index of the port where a stream begins, in the namespace of the wire.
    ///
    /// # Errors
    ///
    /// As `work`, and when not exactly that came which should.
    pub(crate) fn send_by<T: Send>(
        &mut self,
        path: &Path,
        segments: u32,
        wanted: Came,
        work: impl FnOnce(u32) -> Result<T> + Send,
    ) -> Result<T> {
        let before = self.programs.came()?;
        let start = self.start;
        let done = path.wire.inside(|| work(start))??;
        self.wait(&before, segments, wanted)?;
        Ok(done)
    }

    /// Waits until exactly that has come which should.
    fn wait(&mut self, before: &Came, segments: u32, wanted: Came) -> Result<()> {
        let begun = Instant::now();
        loop {
            let came = self.programs.came()?.since(before);
            if let Some((what, count)) = came.wrong().next() {
                bail!("{count} {what} of {segments} segments");
            }
            if came == wanted {
                return Ok(());
            }
            // The last of them may be on their way.
            ensure!(
                begun.elapsed() < Duration::from_secs(1),
                "right, opening, and answers are {:?} of {segments} segments, not {:?}",
                came.good(),
                wanted.good()
            );
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The MAC addresses of a stream, from the client to the load balancer.
    pub(crate) const fn macs(&self) -> [u8; 12] {
        self.macs
    }
}

/// Both addresses in the order of a frame.
pub(crate) fn joined(destination: [u8; 6], source: [u8; 6]) -> [u8; 12] {
    let mut macs = [0; 12];
    let bytes = destination.into_iter().chain(source);
    macs.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    macs
}

fn attach(programs: &mut Programs, name: &str, netns: &Netns, port: &str) -> Result<()> {
    let index = index(netns, port)?;
    netns
        .inside(|| programs.attach(name, index))?
        .with_context(|| format!("at {port} of {}", netns.name()))
}

/// The index of an interface of a namespace.
pub(super) fn index(netns: &Netns, port: &str) -> Result<u32> {
    let index: Result<u32, Errno> = netns.inside(|| if_nametoindex(port))?;
    index.with_context(|| format!("find {port} of {}", netns.name()))
}
