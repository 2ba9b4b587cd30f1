//! Gratuitous ARP: a station says to everybody that it has another MAC now. What a network shares with the
//! host goes to the host, and never to the cell, so it is read there.
#![expect(
    unsafe_code,
    reason = "tokio waits for a file only if it is promised to stay"
)]

use std::{
    io,
    net::{IpAddr, Ipv4Addr},
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::{
    libc,
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, socket},
};
use tokio::io::unix::AsyncFd;

use super::raw;

/// Bytes of an ARP message about IPv4 addresses on Ethernet, and how it begins.
const LENGTH: usize = 28;
const HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Opens the socket that hears all ARP which comes to the stack of the calling thread's namespace.
///
/// # Errors
///
/// If the kernel refuses.
pub(super) fn open() -> nix::Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Packet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None::<SockProtocol>,
    )?;
    // No index: of all interfaces, also of those that come.
    bind(socket.as_raw_fd(), &raw::link_address(0, libc::ETH_P_ARP)?)?;
    Ok(socket)
}

/// Lets the runtime of the calling thread wait for a socket.
///
/// # Errors
///
/// If it cannot.
pub(super) fn register(socket: &OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    let socket = socket.try_clone()?;
    // SAFETY: an owned descriptor is the same one until it is dropped, and open until then.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// The next station that says where it is.
///
/// # Errors
///
/// If the socket fails.
pub(super) async fn next(socket: &AsyncFd<OwnedFd>) -> io::Result<IpAddr> {
    loop {
        let mut ready = socket.readable().await?;
        let mut message = [0; LENGTH];
        let received = ready.try_io(|socket| {
            let flags = MsgFlags::MSG_DONTWAIT;
            Ok(recv(socket.as_raw_fd(), &mut message, flags)?)
        });
        // Else there was none.
        if let Ok(length) = received
            && length? == LENGTH
            && let Some(address) = station(&message)
        {
            return Ok(address.into());
        }
    }
}

/// Whose message it is, if he speaks of himself.
fn station(message: &[u8; LENGTH]) -> Option<Ipv4Addr> {
    let address = |at: usize| {
        let bytes: [u8; 4] = message.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    let (sender, target) = (address(14)?, address(24)?);
    (message.starts_with(&HEADER) && sender == target).then_some(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_speaks_of_himself_is_a_station() {
        let node = [10, 32, 96, 105];
        let message = |sender: [u8; 4], target: [u8; 4]| {
            let mut message = [0; LENGTH];
            message[..6].copy_from_slice(&HEADER);
            message[7] = 1;
            message[14..18].copy_from_slice(&sender);
            message[24..].copy_from_slice(&target);
            message
        };
        assert_eq!(station(&message(node, node)), Some(Ipv4Addr::from(node)));
        assert_eq!(station(&message(node, [10, 32, 96, 50])), None);
        let mut other = message(node, node);
        other[1] = 6;
        assert_eq!(station(&other), None, "not of Ethernet");
    }
}
