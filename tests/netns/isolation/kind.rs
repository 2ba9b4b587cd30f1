//! Kinds of connections, each of which is answered by the tenant's own server.

use std::{
    fmt,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::{packet, raw::RawPort},
    servers::teller,
    topology::{DNS, ECHO, ECHO6, Host},
    traffic::hello::named,
};

use super::scene::{NAME, SHARED, WEB};
use crate::policy::allow::cut;

/// In which a new connection must be answered: two lost SYNs (1 + 2 s) are no failure.
const IN_TIME: Duration = Duration::from_secs(4);
/// How long a datagram is waited for until it is sent again.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the second fragment of a datagram comes after the first one.
const LATE: Duration = Duration::from_secs(1);
/// The flag of every fragment but the last, and where the identification stands in a frame without a tag.
const MORE: u16 = 0x2000;
const ID: usize = 18;
/// A kind of connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// UDP to an L4 VIP.
    Datagram,
    /// TCP to an L4 VIP.
    Echo,
    /// The same by IPv6.
    Echo6,
    /// A datagram in two fragments, the second of which comes late.
    Pieces,
    /// A ClientHello to a shared VIP.
    Shared,
    /// An HTTP request to a shared VIP.
    Web,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Datagram => "UDP",
            Self::Echo => "TCP",
            Self::Echo6 => "TCP over IPv6",
            Self::Pieces => "UDP in fragments",
            Self::Shared => "hellos",
            Self::Web => "requests",
        })
    }
}

/// The client that is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client<'t> {
    pub(super) host: &'t Host,
    /// Its tenant, which has a name in all answers.
    pub(super) tenant: &'static str,
    /// Its station, and that of `lb`.
    pub(super) hops: [Mac; 2],
}

impl Kind {
    /// One connection, and the time until it was answered.
    pub(super) fn attempt(self, client: &Client<'_>) -> Result<Duration> {
        let (tenant, start) = (client.tenant, Instant::now());
        let answer = match self {
            Self::Datagram => return datagram(client, send_whole),
            Self::Pieces => return datagram(client, |socket| send_in_pieces(socket, client)),
            Self::Echo => asked(ECHO.into(), b"who\n")?,
            Self::Echo6 => asked(ECHO6.into(), b"who\n")?,
            Self::Shared => {
                let stream = connect(SHARED.into())?;
                teller::ask_on(stream, &[&hello()], Duration::ZERO)?.context("closed")?
            }
            Self::Web => asked(WEB.into(), request().as_bytes())?,
        };
        let elapsed = start.elapsed();
        ensure!(answer.contains(tenant), "{answer:?} is not of {tenant}");
        ensure!(elapsed <= IN_TIME, "answered after {elapsed:.1?}");
        Ok(elapsed)
    }
}

pub(super) fn hello() -> Vec<u8> {
    named(NAME.as_bytes())
}

fn request() -> String {
    format!("GET / HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n")
}

pub(super) fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, IN_TIME).context("connect")?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IN_TIME))?;
    Ok(stream)
}

/// What comes back for these words, as far as it comes in one piece.
fn asked(to: SocketAddr, words: &[u8]) -> Result<String> {
    let mut stream = connect(to)?;
    stream.write_all(words).context("ask")?;
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).context("hear an answer")?;
    ensure!(length > 0, "closed without an answer");
    answer.truncate(length);
    Ok(String::from_utf8(answer)?)
}

/// A question that is answered; as a resolver does, it is asked again when nothing comes.
fn datagram(client: &Client<'_>, send: impl Fn(&UdpSocket) -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    let socket = UdpSocket::bind((client.host.address, 0))?;
    socket.connect(DNS)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    while start.elapsed() < IN_TIME {
        send(&socket)?;
        let mut answer = [0; 64];
        if let Ok(length) = socket.recv(&mut answer) {
            let question = &question()[..length];
            ensure!(&answer[..length] == question, "{answer:?} came back");
            return Ok(start.elapsed());
        }
    }
    Err(anyhow!("no answer"))
}

/// More than the server gives back.
fn question() -> Vec<u8> {
    b"question".repeat(15)
}

fn send_whole(socket: &UdpSocket) -> Result<()> {
    socket.send(&question()).context("send").map(drop)
}

/// Sends the question as two fragments, with a pause between.
fn send_in_pieces(socket: &UdpSocket, client: &Client<'_>) -> Result<()> {
    static IDS: AtomicU16 = AtomicU16::new(1);
    let from = socket.local_addr()?.to_string();
    let frame = packet::udp(&from, &DNS.to_string()).fragment(0);
    let frame = frame.between(client.hops[0], client.hops[1]);
    let mut frame = frame.payload(&question()).bytes();
    let id = IDS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    frame[ID..ID + 2].copy_from_slice(&id);
    let port = RawPort::open(&client.host.netns, "eth0")?;
    port.send(&cut(&frame, 0..64, MORE))?;
    thread::sleep(LATE);
    port.send(&cut(&frame, 64..128, 8))
}
