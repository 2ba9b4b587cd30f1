//! The raw socket: whole frames out of NICs, past all of the host's routing and filters.
//!
//! One socket for all NICs, which receives nothing. A frame that does not go out at once is given up:
//! nobody waits for a NIC. The kernel takes frames for a NIC without carrier and drops them, so that
//! is asked first.
#![expect(
    unsafe_code,
    reason = "nix makes no link address from an index, and the flags of a NIC come by an ioctl"
)]

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::{
    errno::Errno,
    libc::{self, c_int},
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike as _,
        sendto, socket,
    },
};

mod ioctl {
    nix::ioctl_readwrite_bad!(name, nix::libc::SIOCGIFNAME, nix::libc::ifreq);
    nix::ioctl_readwrite_bad!(flags, nix::libc::SIOCGIFFLAGS, nix::libc::ifreq);
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The NIC's queue has it.
    Yes,
    /// The queue is full.
    Full,
    /// The NIC is gone, down or without carrier, or refuses the frame.
    No(Errno),
}

/// The socket, opened when it is first needed.
#[derive(Debug, Default)]
pub struct Nics(Option<OwnedFd>);

impl Nics {
    /// Sends a whole frame out of the NIC with this index. Never waits.
    pub fn send(&mut self, ifindex: u32, frame: &[u8]) -> Sent {
        match self.try_send(ifindex, frame) {
            Ok(()) => Sent::Yes,
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Sent::Full,
            Err(error) => Sent::No(error),
        }
    }

    /// Whether a frame that is sent out of this NIC leaves it.
    pub fn has_carrier(&mut self, ifindex: u32) -> bool {
        self.socket()
            .and_then(|socket| is_running(socket, ifindex))
            .unwrap_or(false)
    }

    fn try_send(&mut self, ifindex: u32, frame: &[u8]) -> nix::Result<()> {
        let socket = self.socket()?;
        if !is_running(socket, ifindex)? {
            return Err(Errno::ENETDOWN);
        }
        let to = link_address(ifindex)?;
        sendto(socket.as_raw_fd(), frame, &to, MsgFlags::MSG_DONTWAIT).map(drop)
    }

    fn socket(&mut self) -> nix::Result<&OwnedFd> {
        match &mut self.0 {
            Some(socket) => Ok(socket),
            none => Ok(none.insert(open()?)),
        }
    }
}

/// A socket with protocol 0, so that no frame is ever queued to it.
fn open() -> nix::Result<OwnedFd> {
    socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None::<SockProtocol>,
    )
}

/// Where a whole frame is sent: an interface, and no more.
fn link_address(ifindex: u32) -> nix::Result<LinkAddr> {
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(|_| Errno::EAFNOSUPPORT)?,
        sll_protocol: 0,
        sll_ifindex: index(ifindex)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let length = u32::try_from(size_of_val(&address)).ok();
    // SAFETY: the pointer is to a live sockaddr_ll, of which the length and the family are said.
    unsafe { LinkAddr::from_raw((&raw const address).cast(), length) }.ok_or(Errno::EINVAL)
}

/// Whether an interface is up and has a carrier, as far as it knows.
fn is_running(socket: &OwnedFd, ifindex: u32) -> nix::Result<bool> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_ifindex: index(ifindex)?,
        },
    };
    // SAFETY: the call reads the index of a live ifreq and writes the name.
    unsafe { ioctl::name(socket.as_raw_fd(), &raw mut request) }?;
    // SAFETY: the call reads the name of a live ifreq, which the kernel has terminated, and writes
    // the flags.
    unsafe { ioctl::flags(socket.as_raw_fd(), &raw mut request) }?;
    // SAFETY: the kernel has just written this field; any bits are a valid integer.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_RUNNING != 0)
}

fn index(ifindex: u32) -> nix::Result<c_int> {
    c_int::try_from(ifindex).map_err(|_| Errno::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_address_is_an_index() {
        let loopback = link_address(1).unwrap();
        assert_eq!((loopback.ifindex(), loopback.protocol()), (1, 0));
        assert_eq!(link_address(u32::MAX), Err(Errno::ENODEV));
    }

    #[test]
    #[ignore = "needs CAP_NET_RAW"]
    fn a_nic_that_is_not_there_is_an_error_and_nothing_waits() {
        let mut nics = Nics::default();
        for ifindex in [u32::MAX, 0x7fff_ffff] {
            assert_eq!(nics.send(ifindex, &[0; 60]), Sent::No(Errno::ENODEV));
            assert!(!nics.has_carrier(ifindex));
        }
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
