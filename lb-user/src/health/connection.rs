//! The connection of a check: opened from an address of the cell, and closed so that the backend sees nothing
//! but a client that has gone.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use lb_common::maps::vip_offer::{LACKS_SACK, LACKS_SCALE, LACKS_TIMES, VipOffer};
use nix::sys::socket::{setsockopt, sockopt::IpBindAddressNoPort};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::probe::Fault;
use crate::system::tcp_info::{Info, SACK, SCALE, STAMP_BYTES, TIMESTAMPS};

/// How long a backend may take to close its side as well.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);
/// Bytes that it may still send meanwhile. What comes after that is met with a reset.
const MAX_UNREAD: usize = 256 * 1024;

/// Opens a connection to `address` from `source`, or from anywhere if that is unspecified.
pub(super) async fn connect(source: IpAddr, address: SocketAddr) -> Result<TcpStream, Fault> {
    let socket = socket(source).map_err(|error| {
        let doing = format!("open a socket from {source}");
        Fault::Ours(anyhow::Error::new(error).context(doing))
    })?;
    let connected = socket.connect(address).await;
    connected.map_err(|error| failed(source, address, error))
}

/// What the backend has agreed to of all the options, which our kernel offers; none if the kernel does not say.
pub(super) fn agreed(stream: &TcpStream) -> Option<VipOffer> {
    let info = Info::of(stream).ok()?;
    let lacks = [
        (TIMESTAMPS, LACKS_TIMES),
        (SCALE, LACKS_SCALE),
        (SACK, LACKS_SACK),
    ];
    let lacks = lacks.into_iter().filter(|(option, _)| !info.has(*option));
    let stamps = if info.has(TIMESTAMPS) { STAMP_BYTES } else { 0 };
    Some(VipOffer {
        mss: u16::try_from(info.send_mss + stamps).unwrap_or(u16::MAX),
        lacks: lacks.fold(0, |lacks, (_, lack)| lacks | lack),
    })
}

/// Sends this to the backend, before anything else.
pub(super) async fn send(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), Fault> {
    let sent = stream.write_all(bytes).await;
    sent.map_err(|error| Fault::Dead(words(&error)))
}

/// A socket whose port is chosen when it connects, and shared with those that are connected to
/// others.
pub(super) fn socket(source: IpAddr) -> io::Result<TcpSocket> {
    let socket = match source {
        IpAddr::V4(_) => TcpSocket::new_v4()?,
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    setsockopt(&socket, IpBindAddressNoPort, &true)?;
    socket.bind(SocketAddr::new(source, 0))?;
    Ok(socket)
}

/// What it means that a connection was not made. What this host lacks is no verdict on a backend.
fn failed(source: IpAddr, address: SocketAddr, error: io::Error) -> Fault {
    use io::ErrorKind as Kind;
    let is_unreachable = matches!(
        error.kind(),
        Kind::NetworkUnreachable | Kind::HostUnreachable
    );
    let is_ours = matches!(
        error.kind(),
        Kind::AddrNotAvailable
            | Kind::AddrInUse
            | Kind::OutOfMemory
            | Kind::PermissionDenied
            | Kind::InvalidInput
    ) || matches!(
        error.raw_os_error(),
        Some(nix::libc::EMFILE | nix::libc::ENFILE | nix::libc::ENOBUFS | nix::libc::ENETDOWN)
    );
    if is_ours || is_unreachable && !has_route(source, address) {
        let doing = format!("connect to {address}");
        return Fault::Ours(anyhow::Error::new(error).context(doing));
    }
    match error.kind() {
        Kind::ConnectionRefused | Kind::ConnectionReset | Kind::ConnectionAborted => {
            Fault::Dead(words(&error))
        }
        _ => Fault::Lost(words(&error)),
    }
}

/// Whether this host, or the cell, has a way to `address`: where it has none, the error is its own, and no
/// router's ICMP error. To connect a socket of UDP sends nothing.
fn has_route(source: IpAddr, address: SocketAddr) -> bool {
    UdpSocket::bind((source, 0)).is_ok_and(|socket| socket.connect(address).is_ok())
}

/// An error of the network in words, without its number.
pub(super) fn words(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    let words = match error.kind() {
        Kind::ConnectionRefused => "connection refused",
        Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => "connection reset",
        Kind::HostUnreachable => "no route to host",
        Kind::NetworkUnreachable => "network unreachable",
        Kind::UnexpectedEof => "connection closed",
        Kind::TimedOut => "connection timed out",
        _ => return error.to_string(),
    };
    words.to_owned()
}

/// Closes this side, and waits shortly until the backend has closed its own: a close with bytes unread sends a
/// reset, which some servers log.
pub(super) async fn close(mut stream: TcpStream) {
    let last_words = async {
        stream.shutdown().await?;
        let mut unread = [0; 4096];
        let mut left = MAX_UNREAD;
        while left > 0 {
            match stream.read(&mut unread).await? {
                0 => break,
                bytes => left = left.saturating_sub(bytes),
            }
        }
        io::Result::Ok(())
    };
    // Closed with the socket in any case.
    let _gone = timeout(CLOSE_TIMEOUT, last_words).await;
}
