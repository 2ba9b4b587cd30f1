//! Connections that are handed over, whatever the scales are of the windows that both ends announce:
//! FEATURES B15.

use std::{
    io::{self, Read, Write as _},
    net::{SocketAddrV4, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_tests::{
    netns::Netns,
    product::lb::Lb,
    topology::{Host, Topology},
    traffic::{client::open_with_room, conn_pair::hear, hello::named},
};
use nix::sys::socket::{setsockopt, sockopt};

use crate::{
    handoff::{connections::outcomes, opener::Opener},
    proxy::{
        pipe::carry_to,
        relayed::{NAME, PORT, SHARED, wait_for},
    },
};

/// Bytes each way of one connection, and of those how many are read before the reader rests.
const BYTES: u64 = 3 << 20;
const AT_A_TIME: usize = 1 << 20;
/// How long it does: until then the window is closed.
const PAUSE: Duration = Duration::from_millis(400);
/// How long all of it may take, which takes three seconds.
const LIMIT: Duration = Duration::from_secs(40);
/// What an end has room for when the connection stands, beyond which its window is closed.
const ROOM: usize = 128 * 1024;
/// The largest scale (RFC 7323 section 2.3).
const LARGEST: u32 = 14;

/// The scale that an end announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// That of every connection.
    Usual,
    /// None at all: it does not know of scales, and so neither does the other end.
    No,
    Of(u32),
}

impl Scale {
    /// How much room has the kernel choose it: its half must have so many bits more than a window has.
    fn room(self) -> Option<usize> {
        match self {
            Self::Usual | Self::No => None,
            Self::Of(scale) => Some(3 << (14 + scale)),
        }
    }
}

/// B15: bytes of both directions are right while windows close and open, and each end knows how much room the
/// other one has.
#[privileged_test]
fn b15_windows_of_all_scales_close_and_open() -> Result<()> {
    windows_close_and_open(Opener::Process)
}

/// The same of connections that XDP opens.
#[privileged_test]
fn b15_windows_of_bound_connections_close_and_open() -> Result<()> {
    windows_close_and_open(Opener::Xdp)
}

fn windows_close_and_open(opener: Opener) -> Result<()> {
    let topology = Topology::poc()?;
    let [client, node] = [topology.client(), &topology.nodes[0]];
    let at = SocketAddrV4::new(node.address, PORT);
    let lb = Lb::start(&topology, &opener.config(&topology))?;
    // What XDP opens has a scale at both ends or at none.
    let none = (opener == Opener::Process).then_some(Scale::No);
    let scales = || (0..=LARGEST).map(Scale::Of).chain(none);
    let of_client = scales().map(|scale| [scale, Scale::Usual]);
    let of_node = scales().map(|scale| [Scale::Usual, scale]);
    let both = [
        [Scale::Of(0), Scale::Of(LARGEST)],
        [Scale::Of(LARGEST), Scale::Of(0)],
    ];
    let cases: Vec<[Scale; 2]> = of_client.chain(of_node).chain(both).collect();
    let ends = cases.iter().map(|&case| {
        let ends = open(client, node, at, case);
        ends.with_context(|| format!("{case:?}"))
    });
    let ends: Vec<[TcpStream; 2]> = ends.collect::<Result<_>>()?;

    thread::scope(|scope| {
        let work = |(case, [client, server]): (&[Scale; 2], &'_ [TcpStream; 2])| {
            let there = thread::scope(|scope| {
                let there = scope.spawn(|| carry(client, server));
                carry(server, client)?;
                there.join().map_err(|_| anyhow!("a transfer panicked"))?
            });
            there.with_context(|| format!("{case:?}"))
        };
        let threads: Vec<_> = cases
            .iter()
            .zip(&ends)
            .map(|each| scope.spawn(move || work(each)))
            .collect();
        let mut ended = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a transfer panicked"))?
        });
        ended.try_for_each(|ended| ended)
    })?;

    for (case, [near, far]) in cases.iter().zip(&ends) {
        for (host, end) in [(client, near), (node, far)] {
            let seen = seen(&host.netns, end)?;
            ensure!(
                seen.contains("rwnd_limited:"),
                "{case:?}: the window of the other end never closed: {seen}"
            );
            let window = seen.split(" snd_wnd:").nth(1).unwrap_or_default();
            let window: usize = window
                .split_whitespace()
                .next()
                .context("a window")?
                .parse()?;
            ensure!(
                (ROOM / 8..2 * ROOM).contains(&window),
                "{case:?}, {}: a window of {window}",
                host.name
            );
        }
    }
    let outcomes = outcomes(&lb)?;
    println!("{outcomes:?}");
    assert_eq!(outcomes[opener.outcome()], u64::try_from(cases.len())?);
    drop(ends);
    wait_for(&lb, 0)
}

/// A connection whose ends have these scales.
fn open(
    client: &Host,
    node: &Host,
    at: SocketAddrV4,
    [near, far]: [Scale; 2],
) -> Result<[TcpStream; 2]> {
    for (host, scale) in [(client, near), (node, far)] {
        let knows = if scale == Scale::No { "0" } else { "1" };
        host.netns.set_sysctl("ipv4/tcp_window_scaling", knows)?;
    }
    let listener = node.netns.inside(|| TcpListener::bind(at))??;
    if let Some(room) = far.room() {
        setsockopt(&listener, sockopt::RcvBufForce, &room)?;
    }
    let hello = named(NAME.as_bytes());
    let room = near.room();
    let mut stream = client.netns.inside(|| open_with_room(room, SHARED))??;
    stream.write_all(&hello)?;
    let (server, _) = listener.accept().context("accept")?;
    server.set_nodelay(true)?;
    hear(&server, &hello)?;
    for (host, end, scale) in [(client, &stream, near), (node, &server, far)] {
        let seen = seen(&host.netns, end)?;
        let is_so = match scale {
            Scale::Usual => seen.contains(" wscale:"),
            Scale::No => !seen.contains(" wscale:"),
            Scale::Of(scale) => {
                let scales = seen.split(" wscale:").nth(1).unwrap_or_default();
                scales
                    .split([',', ' '])
                    .nth(1)
                    .is_some_and(|ours| ours == scale.to_string())
            }
        };
        ensure!(is_so, "{} has {seen}", host.name);
        // The scale stays as it is.
        setsockopt(end, sockopt::RcvBuf, &ROOM)?;
    }
    Ok([stream, server])
}

/// What the kernel says of the end of a connection, in one line.
fn seen(netns: &Netns, end: &TcpStream) -> Result<String> {
    let (own, peer) = (end.local_addr()?, end.peer_addr()?);
    netns.run(&format!("ss -Htin src {own} dst {peer}"))
}

/// Sends bytes to who rests between reading.
fn carry(from: &TcpStream, to: &TcpStream) -> Result<()> {
    let mut slow = Slow {
        from: to,
        left: 0,
        begun: Instant::now(),
    };
    // All have other bytes.
    let seed = u64::from(from.local_addr()?.port()) << 16 | u64::from(to.local_addr()?.port());
    carry_to(from, &mut slow, (BYTES, seed))
}

/// A reader that rests again and again.
struct Slow<'s> {
    from: &'s TcpStream,
    left: usize,
    begun: Instant,
}

impl Read for Slow<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            thread::sleep(PAUSE);
            self.left = AT_A_TIME;
        }
        if self.begun.elapsed() > LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let most = room.len().min(self.left);
        let room = room.get_mut(..most).unwrap_or_default();
        let read = self.from.read(room)?;
        self.left -= read;
        Ok(read)
    }
}
