//! The raw socket: whole frames out of NICs, past all of the host's routing and filters.
//!
//! One socket for all NICs, which receives nothing. A frame that does not go out at once is given up: no
//! thread waits for a NIC. The kernel takes frames for a NIC without carrier and drops them, so the carrier
//! is checked first.
#![expect(
    unsafe_code,
    reason = "nix makes no link address from an index, and many messages go out by one call"
)]

use std::{
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    ptr,
};

use nix::{
    errno::Errno,
    libc::{self, c_int},
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrLike as _,
        sendto, socket,
    },
};

use super::carrier::is_running;

/// Frames that one system call sends.
const AT_ONCE: usize = 64;

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
pub struct RawSocket(Option<OwnedFd>);

impl RawSocket {
    /// Sends a whole frame out of the NIC with this index. Never waits.
    pub fn send(&mut self, ifindex: u32, frame: &[u8]) -> Sent {
        match self.try_send(ifindex, frame) {
            Ok(()) => Sent::Yes,
            Err(Errno::EAGAIN | Errno::ENOBUFS) => Sent::Full,
            Err(error) => Sent::No(error),
        }
    }

    /// Sends whole frames, each out of the NIC with the index beside it, in as few system calls as
    /// there can be. Stops at the first that does not go out: how many went out before it, and what
    /// became of that one. Never waits.
    pub fn send_all(&mut self, frames: &[(u32, impl AsRef<[u8]>)]) -> (usize, Sent) {
        let mut sent = 0;
        while let Some(rest) = frames.get(sent..).filter(|rest| !rest.is_empty()) {
            match self.try_send_all(rest) {
                Ok(0) | Err(Errno::EAGAIN | Errno::ENOBUFS) => return (sent, Sent::Full),
                Ok(some) => sent += some,
                Err(error) => return (sent, Sent::No(error)),
            }
        }
        (sent, Sent::Yes)
    }

    /// Whether a frame that is sent out of this NIC leaves it.
    pub fn has_carrier(&mut self, ifindex: u32) -> bool {
        self.socket()
            .and_then(|socket| is_running(socket.as_fd(), ifindex))
            .unwrap_or(false)
    }

    fn try_send(&mut self, ifindex: u32, frame: &[u8]) -> nix::Result<()> {
        let socket = self.socket()?;
        if !is_running(socket.as_fd(), ifindex)? {
            return Err(Errno::ENETDOWN);
        }
        let to = link_address(ifindex, 0)?;
        sendto(socket.as_raw_fd(), frame, &to, MsgFlags::MSG_DONTWAIT).map(drop)
    }

    /// Sends the first frames, as far as their NICs run; an error is that of the very first.
    fn try_send_all(&mut self, frames: &[(u32, impl AsRef<[u8]>)]) -> nix::Result<usize> {
        let socket = self.socket()?;
        let mut addresses: Vec<libc::sockaddr_ll> = Vec::with_capacity(AT_ONCE);
        let mut slices: Vec<libc::iovec> = Vec::with_capacity(AT_ONCE);
        let mut asked = None;
        for (ifindex, frame) in frames.iter().take(AT_ONCE) {
            if asked != Some(*ifindex) {
                let runs = is_running(socket.as_fd(), *ifindex);
                match runs.and_then(|runs| runs.then_some(()).ok_or(Errno::ENETDOWN)) {
                    Ok(()) => asked = Some(*ifindex),
                    Err(error) if slices.is_empty() => return Err(error),
                    Err(_) => break,
                }
            }
            addresses.push(socket_address(*ifindex, 0)?);
            slices.push(libc::iovec {
                iov_base: frame.as_ref().as_ptr().cast_mut().cast(),
                iov_len: frame.as_ref().len(),
            });
        }
        send_messages(socket, &mut addresses, &mut slices)
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

/// An interface, by its index, and the protocol that is received there; to send a whole frame there is
/// none.
pub(super) fn link_address(ifindex: u32, protocol: c_int) -> nix::Result<LinkAddr> {
    let address = socket_address(ifindex, protocol)?;
    let length = u32::try_from(size_of_val(&address)).ok();
    // SAFETY: the pointer is to a live sockaddr_ll, whose length and family are set.
    unsafe { LinkAddr::from_raw((&raw const address).cast(), length) }.ok_or(Errno::EINVAL)
}

fn socket_address(ifindex: u32, protocol: c_int) -> nix::Result<libc::sockaddr_ll> {
    Ok(libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(|_| Errno::EAFNOSUPPORT)?,
        sll_protocol: u16::try_from(protocol)
            .map_err(|_| Errno::EPROTONOSUPPORT)?
            .to_be(),
        sll_ifindex: index(ifindex)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    })
}

/// Sends one message of each slice to the address beside it. How many were sent.
fn send_messages(
    socket: &OwnedFd,
    addresses: &mut [libc::sockaddr_ll],
    slices: &mut [libc::iovec],
) -> nix::Result<usize> {
    let length = u32::try_from(size_of::<libc::sockaddr_ll>()).map_err(|_| Errno::EINVAL)?;
    let pairs = addresses.iter_mut().zip(slices);
    let mut messages: Vec<libc::mmsghdr> = pairs
        .map(|(address, slice)| libc::mmsghdr {
            msg_hdr: libc::msghdr {
                msg_name: ptr::from_mut(address).cast(),
                msg_namelen: length,
                msg_iov: slice,
                msg_iovlen: 1,
                msg_control: ptr::null_mut(),
                msg_controllen: 0,
                msg_flags: 0,
            },
            msg_len: 0,
        })
        .collect();
    let count = u32::try_from(messages.len()).map_err(|_| Errno::EINVAL)?;
    let (fd, first, flags) = (
        socket.as_raw_fd(),
        messages.as_mut_ptr(),
        MsgFlags::MSG_DONTWAIT.bits(),
    );
    // SAFETY: the kernel reads `count` live messages, each with a live address and a slice of a live
    // frame, and writes the length of each message that was sent into it.
    let sent = unsafe { libc::sendmmsg(fd, first, count, flags) };
    usize::try_from(Errno::result(sent)?).map_err(|_| Errno::EINVAL)
}

fn index(ifindex: u32) -> nix::Result<c_int> {
    c_int::try_from(ifindex).map_err(|_| Errno::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_address_is_an_index() {
        let loopback = link_address(1, 0).unwrap();
        assert_eq!((loopback.ifindex(), loopback.protocol()), (1, 0));
        assert_eq!(link_address(u32::MAX, 0), Err(Errno::ENODEV));
    }

    #[test]
    #[ignore = "needs CAP_NET_RAW"]
    fn a_nic_that_is_not_there_is_an_error_and_nothing_waits() {
        let mut nics = RawSocket::default();
        for ifindex in [u32::MAX, 0x7fff_ffff] {
            assert_eq!(nics.send(ifindex, &[0; 60]), Sent::No(Errno::ENODEV));
            assert!(!nics.has_carrier(ifindex));
        }
    }

    #[test]
    #[ignore = "needs CAP_NET_RAW"]
    fn many_frames_go_out_up_to_the_first_that_does_not() {
        use nix::sys::socket::{recv, setsockopt, sockopt::RcvBuf, sockopt::ReceiveTimeout};
        use nix::sys::time::{TimeVal, TimeValLike as _};
        const GOOD: u8 = 150;
        let listener = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::EthAll,
        )
        .unwrap();
        setsockopt(&listener, ReceiveTimeout, &TimeVal::seconds(5)).unwrap();
        setsockopt(&listener, RcvBuf, &(1 << 20)).unwrap();
        let frame = |number: u8| {
            let text = b"lb: one of many frames";
            [[0; 12].as_slice(), &[0x88, 0xb5], text, &[number]].concat()
        };
        let mut frames: Vec<_> = (0..GOOD).map(|number| (1, frame(number))).collect();
        let mut nics = RawSocket::default();
        assert_eq!(nics.send_all(&[(1, [0u8; 60]); 0]), (0, Sent::Yes));
        frames.insert(usize::from(GOOD), (0x7fff_ffff, frame(GOOD)));
        frames.push((1, frame(GOOD + 1)));
        let (sent, last) = nics.send_all(&frames);
        assert_eq!((sent, last), (usize::from(GOOD), Sent::No(Errno::ENODEV)));
        let mut buffer = [0; 2048];
        let mut next = 0;
        while next < GOOD {
            let length = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
            // Each is seen on its way out, and on its way in.
            if buffer[..length] == frame(next) {
                next += 1;
            }
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
        // An ethertype for experiments (IEEE 802), and a text that no other process sends.
        let frame = [[0; 12].as_slice(), &[0x88, 0xb5], b"lb: a whole frame"].concat();
        assert_eq!(RawSocket::default().send(1, &frame), Sent::Yes);
        let mut buffer = [0; 2048];
        loop {
            let length = recv(listener.as_raw_fd(), &mut buffer, MsgFlags::empty()).unwrap();
            if buffer[..length] == frame {
                return;
            }
        }
    }
}
