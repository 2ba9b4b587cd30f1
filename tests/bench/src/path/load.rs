//! Packets of many flows through one contestant, and how they are distinguished on both sides.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use lb_tests::{process, topology::path};

use crate::{
    path::configurations::{BACKENDS, NODE_PORT, PORT, VIP},
    path::contestants::Stand,
    path::segments::{Came, Stream, Wanted},
};

/// Connections that are opened at a time: fewer than a ring of half-open ones has places.
const STEP: u32 = 50_000;
/// Bytes of data that make the shortest frame of Ethernet, with its checksum, of TCP by IPv4; and the longest.
pub(crate) const SMALL: u32 = 6;
pub(crate) const LARGE: u32 = 1460;

/// What packets are; see `tests/switch/src/packet.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Udp,
    /// TCP by IPv6.
    Tcp6,
}

impl Kind {
    /// Bytes of headers in front of the data, Ethernet's with them.
    const fn headers(self) -> u32 {
        match self {
            Self::Tcp => 54,
            Self::Udp => 42,
            Self::Tcp6 => 74,
        }
    }

    /// Bytes of data in the shortest frame, or of a flow's number.
    pub(crate) const fn small(self) -> u32 {
        match self {
            Self::Tcp | Self::Tcp6 => SMALL,
            Self::Udp => 18,
        }
    }

    /// The programs that send, and that do without a path.
    pub(super) const fn programs(self) -> [&'static str; 2] {
        match self {
            Self::Tcp => ["generate", "dry"],
            Self::Udp => ["generate_udp", "dry_udp"],
            Self::Tcp6 => ["generate6", "dry6"],
        }
    }
}

/// What is sent in a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    /// The first flow.
    pub(crate) first: u32,
    pub(crate) flows: u32,
    /// From one flow to the next; what has no factor in common with their number reaches all of them.
    pub(crate) step: u32,
    /// Bytes of data, or none to open connections.
    pub(crate) data: Option<u32>,
    pub(crate) segments: u32,
}

impl Load {
    /// Each flow of TCP once.
    pub(crate) const fn each(first: u32, flows: u32, data: Option<u32>) -> Self {
        Self {
            kind: Kind::Tcp,
            first,
            flows,
            step: 1,
            data,
            segments: flows,
        }
    }

    /// The same of packets of another kind: with as few data as they can have, or to open connections.
    pub(crate) const fn of(self, kind: Kind) -> Self {
        let data = match self.data {
            Some(_) => Some(kind.small()),
            None => None,
        };
        Self { kind, data, ..self }
    }

    /// Bytes of a frame.
    pub(crate) fn length(&self) -> usize {
        let data = self.data.unwrap_or_else(|| self.kind.small());
        (self.kind.headers() + data) as usize
    }

    /// What arrives of it.
    pub(super) const fn came(&self) -> Came {
        let all = self.segments as u64;
        match self.data {
            Some(_) => Came::right(all),
            None => Came::opening(all, 0),
        }
    }
}

/// Sends it; the time that one segment took from the wire to the wire, in nanoseconds of CPU, if it can be seen.
///
/// # Errors
///
/// When one did not arrive as it should.
pub(crate) fn measure(stand: &mut Stand<'_>, load: Load) -> Result<Option<f64>> {
    let alone = alone(stand, load).context("generator and sink alone")?;
    let spent = send(stand, load, false)?;
    if spent > alone {
        return Ok(Some(spent - alone));
    }
    process::complain(format_args!(
        "not counted: generator and sink alone took {alone:.0} ns, and all of the path {spent:.0} ns. The machine was busy, or \
         its kernel accounts for soft interrupts apart (CONFIG_IRQ_TIME_ACCOUNTING)"
    ));
    Ok(None)
}

/// Sends a packet over each of the first `flows` connections, which have to go where their first one has gone.
///
/// # Errors
///
/// When one has moved, or does not arrive as it should.
pub(crate) fn stay(stand: &mut Stand<'_>, kind: Kind, flows: u32) -> Result<()> {
    let load = Load::each(0, flows, Some(SMALL)).of(kind);
    send(stand, load, true).map(drop)
}

/// Opens connections from the flow `from` on until there are `to`, each by a handshake where the contestant has state, and
/// sends a packet over each, which says where it goes from now on. Of UDP the handshake is an empty datagram and another
/// one that answers it.
///
/// # Errors
///
/// When one of them is not answered, or is not right.
pub(crate) fn open(stand: &mut Stand<'_>, kind: Kind, from: u32, to: u32) -> Result<()> {
    let mut first = from;
    while first < to {
        let flows = STEP.min(to - first);
        if stand.who.translates() {
            shake_hands(stand, Load::each(first, flows, None).of(kind))?;
        }
        let load = Load::each(first, flows, Some(SMALL)).of(kind);
        send(stand, load, true)?;
        first += flows;
    }
    Ok(())
}

/// Sends the first packet of each flow, and sees that each is answered.
fn shake_hands(stand: &mut Stand<'_>, load: Load) -> Result<()> {
    let (stream, wanted) = ends(load, true);
    let answers = 1;
    stand.wire.expect(stream, Wanted { answers, ..wanted })?;
    let all = u64::from(load.segments);
    let came = Came::opening(all, all);
    let [generate, _] = load.kind.programs();
    let spent = stand
        .wire
        .send(stand.path, generate, load.segments, load.length(), came);
    spent.map(drop)
}

/// With `follow`, each flow has to go where it has gone before.
fn send(stand: &mut Stand<'_>, load: Load, follow: bool) -> Result<f64> {
    let (stream, wanted) = ends(load, stand.who.translates());
    let follows = u32::from(follow);
    stand.wire.expect(stream, Wanted { follows, ..wanted })?;
    let [generate, _] = load.kind.programs();
    stand.wire.send(
        stand.path,
        generate,
        load.segments,
        load.length(),
        load.came(),
    )
}

/// What generator and sink cost without a path between them.
fn alone(stand: &mut Stand<'_>, load: Load) -> Result<f64> {
    let (stream, wanted) = ends(load, false);
    stand.wire.expect(stream, wanted)?;
    let [_, dry] = load.kind.programs();
    stand
        .wire
        .send(stand.path, dry, load.segments, load.length(), load.came())
}

/// Both ends of a load, which goes to the VIP, or to the backends themselves.
pub(super) fn ends(load: Load, to_vip: bool) -> (Stream, Wanted) {
    let first_backend = u32::from(path::address(1, 1, 1));
    let backends = u32::from(BACKENDS);
    let (destination, addresses, port, ports) = if to_vip {
        (u32::from(VIP), 1, PORT, 2)
    } else {
        (first_backend, backends, NODE_PORT, 1)
    };
    let stream = Stream {
        macs: [0; 12],
        source: u32::from(CLIENTS),
        destination,
        spread: addresses - 1,
        port: port.into(),
        ports: ports - 1,
        first: load.first,
        flows: load.flows,
        step: load.step,
        opens: u32::from(load.data.is_none()),
        data: load.data.unwrap_or(0),
    };
    let wanted = Wanted {
        backend: first_backend & 0xffff,
        backends,
        port: NODE_PORT.into(),
        vip: destination,
        vips: addresses,
        answers: 0,
        follows: 0,
    };
    (stream, wanted)
}

/// The first client; each has 32,768 ports.
const CLIENTS: Ipv4Addr = path::address(0, 64, 0);
