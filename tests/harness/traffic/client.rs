//! The client's side of the echo server: called on a thread inside a client's namespace.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, ensure};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrStorage, bind, connect,
            setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

use crate::{
    topology::Host,
    traffic::pattern::{Digest, Pattern, copy_digest, digest_all},
};

/// Longer than four lost SYNs in a row (1 + 2 + 4 + 8 s), so that a failure is a failure.
const TIMEOUT_SECS: u32 = 20;

/// The server that answered a connection, and the peer that it saw.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The node's short name.
    pub node: String,
    /// The peer as the node saw it.
    pub peer: SocketAddrV4,
}

impl Answer {
    /// Reads a line of the server: `<node> <peer>`.
    ///
    /// # Errors
    ///
    /// When it is no such line.
    pub fn read(line: &str) -> Result<Self> {
        let words = line.trim().split_once(' ');
        let (node, peer) = words.with_context(|| format!("answer {line:?}"))?;
        Ok(Self {
            node: node.to_owned(),
            peer: peer.parse().with_context(|| format!("answer {line:?}"))?,
        })
    }
}

/// One bulk transfer, as seen from both ends.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Payload bytes.
    pub bytes: u64,
    /// Digest at the sender.
    pub sent: Digest,
    /// Digest at the receiver.
    pub received: Digest,
    /// From the connection to the last answer.
    pub elapsed: Duration,
}

impl Transfer {
    /// Payload throughput in megabit per second.
    pub fn megabits_per_second(&self) -> u128 {
        u128::from(self.bytes) * 8 / self.elapsed.as_micros().max(1)
    }
}

/// Connects to `to`, from the address `from` if one is given.
///
/// # Errors
///
/// When no server answers within 20 s, or the connection is refused.
pub fn open(from: Option<Ipv4Addr>, to: SocketAddrV4) -> Result<TcpStream> {
    open_from(from.map(|address| SocketAddrV4::new(address, 0)), to)
}

/// Connects to `to`, from the address and port `from` if they are given. Several connections may
/// share a port, as long as they go to different places.
///
/// # Errors
///
/// As for [`open`].
pub fn open_from(from: Option<SocketAddrV4>, to: SocketAddrV4) -> Result<TcpStream> {
    let fd = tcp(AddressFamily::Inet)?;
    if let Some(from) = from {
        setsockopt(&fd, sockopt::ReuseAddr, &true).context("share the port")?;
        let from = SockaddrIn::from(from);
        bind(fd.as_raw_fd(), &from).with_context(|| format!("bind to {from}"))?;
    }
    connect_to(fd, to.into())
}

/// Connects to `to`, with room for so many bytes that are not read yet: from that, or else from the largest
/// that there may be, follows the scale of the windows.
///
/// # Errors
///
/// As for [`open`].
pub fn open_with_room(room: Option<usize>, to: SocketAddrV4) -> Result<TcpStream> {
    let fd = tcp(AddressFamily::Inet)?;
    if let Some(room) = room {
        setsockopt(&fd, sockopt::RcvBufForce, &room).context("make room")?;
    }
    connect_to(fd, to.into())
}

/// Connects to `to`, of either family, from whatever address the kernel takes.
///
/// # Errors
///
/// As for [`open`].
pub fn open_any(to: SocketAddr) -> Result<TcpStream> {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    connect_to(tcp(family)?, to)
}

fn tcp(family: AddressFamily) -> Result<OwnedFd> {
    let fd =
        socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).context("make a socket")?;
    let patience = TimeVal::seconds(i64::from(TIMEOUT_SECS));
    setsockopt(&fd, sockopt::SendTimeout, &patience).context("set the send timeout")?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &patience).context("set the receive timeout")?;
    Ok(fd)
}

fn connect_to(fd: OwnedFd, to: SocketAddr) -> Result<TcpStream> {
    let address = SockaddrStorage::from(to);
    connect(fd.as_raw_fd(), &address).with_context(|| format!("connect to {to}"))?;
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true).context("send at once")?;
    Ok(stream)
}

/// Whether a connection that failed to [`open`] was there, and reset before the client could run.
pub fn was_reset(error: &Error) -> bool {
    error.downcast_ref() == Some(&Errno::ECONNRESET)
}

/// Whether a connection that failed to [`open`] was refused at once.
pub fn was_refused(error: &Error) -> bool {
    error.downcast_ref() == Some(&Errno::ECONNREFUSED)
}

/// One short connection: connect, ask, read the answer, close.
///
/// # Errors
///
/// When any of it fails, or the server does not close after us.
pub fn who(from: Option<Ipv4Addr>, to: SocketAddrV4) -> Result<Answer> {
    let mut stream = open(from, to)?;
    stream.write_all(b"who\n").context("ask")?;
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    reader.read_line(&mut line).context("read the answer")?;
    let answer = Answer::read(&line)?;
    stream.shutdown(Shutdown::Write).context("close")?;
    let rest = reader
        .read_to_end(&mut Vec::new())
        .context("wait for the server to close")?;
    ensure!(rest == 0, "{rest} bytes after the answer");
    Ok(answer)
}

/// Sends `text` and returns what comes back.
///
/// # Errors
///
/// When any of it fails.
pub fn echo(to: SocketAddrV4, text: &str) -> Result<String> {
    let mut stream = open(None, to)?;
    stream
        .write_all(format!("echo\n{text}").as_bytes())
        .context("send")?;
    stream.shutdown(Shutdown::Write).context("close")?;
    let mut back = String::new();
    stream.read_to_string(&mut back).context("read it back")?;
    Ok(back)
}

/// Sends `bytes` to the server, which digests them too.
///
/// # Errors
///
/// When the connection breaks; different digests are for the caller to compare.
pub fn upload(to: impl Into<SocketAddr>, bytes: u64, seed: u64) -> Result<Transfer> {
    let start = Instant::now();
    let mut stream = open_any(to.into())?;
    stream
        .write_all(format!("sink {bytes}\n").as_bytes())
        .context("ask")?;
    let sent = Pattern::new(seed).send(&mut stream, bytes)?;
    let mut received = String::new();
    BufReader::new(&stream)
        .read_line(&mut received)
        .context("read the digest")?;
    Ok(Transfer {
        bytes,
        sent,
        received: received.trim().to_owned(),
        elapsed: start.elapsed(),
    })
}

/// Receives `bytes` from the server, which digests them too.
///
/// # Errors
///
/// As for [`upload`].
pub fn download(to: impl Into<SocketAddr>, bytes: u64, seed: u64) -> Result<Transfer> {
    let start = Instant::now();
    let mut stream = open_any(to.into())?;
    stream
        .write_all(format!("source {bytes} {seed}\n").as_bytes())
        .context("ask")?;
    let mut reader = BufReader::new(&stream);
    let received = copy_digest(&mut reader, bytes)?;
    let mut sent = String::new();
    reader.read_line(&mut sent).context("read the digest")?;
    Ok(Transfer {
        bytes,
        sent: sent.trim().to_owned(),
        received,
        elapsed: start.elapsed(),
    })
}

/// Sends bytes to the server until it shall `stop`, and takes every one of them back.
///
/// # Errors
///
/// When the connection breaks, or not as many come back; different digests are for the caller to compare.
///
/// # Panics
///
/// Never: the sender does not.
pub fn stream(to: SocketAddrV4, seed: u64, stop: &AtomicBool) -> Result<Transfer> {
    let start = Instant::now();
    let stream = open(None, to)?;
    (&stream).write_all(b"echo\n").context("ask")?;
    let (sent, received) = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let is_over = || stop.load(Ordering::Relaxed);
            let sent = Pattern::new(seed).send_until(&mut &stream, is_over)?;
            stream.shutdown(Shutdown::Write).context("close")?;
            Ok(sent)
        });
        let received = digest_all(&mut &stream);
        let sent: Result<(u64, Digest)> = sender.join().expect("the sender does not panic");
        Ok::<_, Error>((sent?, received?))
    })?;
    ensure!(
        sent.0 == received.0,
        "{} of {} bytes came back",
        received.0,
        sent.0
    );
    Ok(Transfer {
        bytes: sent.0,
        sent: sent.1,
        received: received.1,
        elapsed: start.elapsed(),
    })
}

/// Between connections that come one after the other for long: a client's port rests for a minute, and there
/// are 28,000 of them.
pub const BETWEEN: Duration = Duration::from_millis(2);

/// Runs `work` while a client opens one connection to `to` after the other; `work` sees how many there were.
///
/// # Errors
///
/// When `work` or one of the connections fails.
///
/// # Panics
///
/// Never: the load does not.
pub fn under_load(
    client: &Host,
    to: SocketAddrV4,
    work: impl FnOnce(&AtomicU64) -> Result<()>,
) -> Result<()> {
    let (done, count) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            client.netns.inside(|| {
                while !done.load(Ordering::Acquire) {
                    who(None, to)?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })?
        });
        let worked = work(&count);
        done.store(true, Ordering::Release);
        let loaded: Result<()> = load.join().expect("the load does not panic");
        loaded.and(worked)
    })
}
