//! Raw sockets: whole frames out of a NIC, past all of the host's routing and filters.
//!
//! A socket per NIC, which receives nothing. A frame that does not go out at once is given up:
//! nobody waits for a NIC.

use std::{
    collections::BTreeMap,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind,
        send, socket,
    },
};

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The NIC's queue has it.
    Yes,
    /// The queue is full.
    Full,
    /// The NIC is gone or down, or refuses the frame.
    No(Errno),
}

/// The sockets, opened when they are first needed.
#[derive(Debug, Default)]
pub struct Nics(BTreeMap<u32, OwnedFd>);

impl Nics {
    /// Sends a whole frame out of the NIC with this index. Never waits.
    pub fn send(&mut self, ifindex: u32, frame: &[u8]) -> Sent {
        let socket = match self.socket(ifindex) {
            Ok(socket) => socket,
            Err(error) => return Sent::No(error),
        };
        match send(socket.as_raw_fd(), frame, MsgFlags::MSG_DONTWAIT) {
            Ok(_) => Sent::Yes,
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Sent::Full,
            Err(error) => {
                // A NIC may come back under its index: the next frame opens a new socket.
                self.0.remove(&ifindex);
                Sent::No(error)
            }
        }
    }

    fn socket(&mut self, ifindex: u32) -> nix::Result<&OwnedFd> {
        use std::collections::btree_map::Entry;
        match self.0.entry(ifindex) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(vacant) => Ok(vacant.insert(open(ifindex)?)),
        }
    }
}

/// A socket that is bound to the NIC with protocol 0, so that no frame is ever queued to it.
fn open(ifindex: u32) -> nix::Result<OwnedFd> {
    let address = link_address(ifindex)?.ok_or(Errno::ENODEV)?;
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None::<SockProtocol>,
    )?;
    bind(socket.as_raw_fd(), &address)?;
    Ok(socket)
}

/// The link-layer address of an interface as the kernel tells it, with protocol 0.
fn link_address(ifindex: u32) -> nix::Result<Option<LinkAddr>> {
    let wanted = usize::try_from(ifindex).unwrap_or_default();
    let mut addresses = getifaddrs()?.filter_map(|interface| interface.address);
    let link = |address: SockaddrStorage| address.as_link_addr().copied();
    Ok(addresses.find_map(|address| link(address).filter(|link| link.ifindex() == wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_has_a_link_address_that_can_be_bound_to() {
        let loopback = link_address(1).unwrap().unwrap();
        assert_eq!((loopback.ifindex(), loopback.protocol()), (1, 0));
        assert_eq!(link_address(u32::MAX).unwrap(), None);
    }

    #[test]
    fn a_nic_that_is_not_there_is_an_error_and_nothing_waits() {
        assert_eq!(
            Nics::default().send(u32::MAX, &[0; 60]),
            Sent::No(Errno::ENODEV)
        );
    }

    /// The receiving side of an interface gets what was sent out of it.
    #[test]
    #[ignore = "needs CAP_NET_RAW"]
    fn a_whole_frame_goes_out() {
        use nix::sys::socket::{recv, setsockopt, sockopt::ReceiveTimeout};
        use nix::sys::time::{TimeVal, TimeValLike as _};
        let listener = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )
        .unwrap();
        setsockopt(&listener, ReceiveTimeout, &TimeVal::seconds(5)).unwrap();
        // An ethertype for experiments (IEEE 802), and a text that nobody else sends.
        let frame = [[0; 12].as_slice(), &[0x88, 0xb5], b"lb: a whole frame"].concat();
        assert_eq!(Nics::default().send(1, &frame), Sent::Yes);
        let mut buffer = [0; 2048];
        loop {
            let length = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
            if buffer[..length] == frame {
                return;
            }
        }
    }
}
