//! The carrier of a NIC: whether a frame that is sent out of it leaves it.
#![expect(unsafe_code, reason = "the flags of a NIC come by an ioctl")]

use std::{
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use nix::{
    errno::Errno,
    libc::{self, c_int},
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

mod ioctl {
    nix::ioctl_readwrite_bad!(name, nix::libc::SIOCGIFNAME, nix::libc::ifreq);
    nix::ioctl_readwrite_bad!(flags, nix::libc::SIOCGIFFLAGS, nix::libc::ifreq);
    nix::ioctl_readwrite_bad!(ethtool, nix::libc::SIOCETHTOOL, nix::libc::ifreq);
}

/// `ETHTOOL_GLINK`.
const GET_LINK: u32 = 0x0a;

/// The carrier of one NIC of the namespace where this was opened, whichever namespace the caller is in.
/// Clones are of the same NIC.
#[derive(Clone, Debug)]
pub struct Carrier {
    socket: Arc<OwnedFd>,
    ifindex: Arc<AtomicU32>,
}

impl Carrier {
    /// Of the NIC with this index in the namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a socket.
    pub fn open(ifindex: u32) -> nix::Result<Self> {
        let socket = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        Ok(Self {
            socket: Arc::new(socket),
            ifindex: Arc::new(AtomicU32::new(ifindex)),
        })
    }

    /// From now on it is that of the NIC with this index, which has taken the other's place.
    pub fn follow(&self, ifindex: u32) {
        self.ifindex.store(ifindex, Ordering::Relaxed);
    }

    /// Whether it is there; a NIC that is gone has none.
    pub fn is_there(&self) -> bool {
        let ifindex = self.ifindex.load(Ordering::Relaxed);
        let socket = self.socket.as_fd();
        is_running(socket, ifindex).unwrap_or(false) && has_link(socket, ifindex).unwrap_or(false)
    }
}

/// Whether an interface of the socket's namespace is up and has a carrier, as far as the kernel knows. It
/// learns of a lost carrier up to a second later.
pub(super) fn is_running(socket: BorrowedFd<'_>, ifindex: u32) -> nix::Result<bool> {
    let mut request = request(socket, ifindex)?;
    // SAFETY: the call reads the name of a live ifreq, which the kernel has terminated, and writes
    // the flags.
    unsafe { ioctl::flags(socket.as_raw_fd(), &raw mut request) }?;
    // SAFETY: the kernel has just written this field; any bits are a valid integer.
    let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    Ok(flags & libc::IFF_RUNNING != 0)
}

/// Whether the driver has a link now, if it reports that at all. May wait for the process that changes
/// interfaces.
fn has_link(socket: BorrowedFd<'_>, ifindex: u32) -> nix::Result<bool> {
    let mut request = request(socket, ifindex)?;
    let mut answer: [u32; 2] = [GET_LINK, 0];
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // SAFETY: the call reads the name and the pointer of a live ifreq, and writes to the live words
    // behind it, which are as many as the command has.
    match unsafe { ioctl::ethtool(socket.as_raw_fd(), &raw mut request) } {
        Err(Errno::EOPNOTSUPP) => Ok(true),
        asked => asked.map(|_| answer[1] != 0),
    }
}

/// A request about an interface, by the name that it has now.
fn request(socket: BorrowedFd<'_>, ifindex: u32) -> nix::Result<libc::ifreq> {
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_ifindex: c_int::try_from(ifindex).map_err(|_| Errno::ENODEV)?,
        },
    };
    // SAFETY: the call reads the index of a live ifreq and writes the name.
    unsafe { ioctl::name(socket.as_raw_fd(), &raw mut request) }?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_that_is_not_there_has_no_carrier() {
        assert!(Carrier::open(1).unwrap().is_there());
        for ifindex in [0x7fff_ffff, u32::MAX] {
            assert!(!Carrier::open(ifindex).unwrap().is_there());
        }
    }

    #[test]
    fn another_nic_is_followed_wherever_the_carrier_is_asked_for() {
        let carrier = Carrier::open(0x7fff_ffff).unwrap();
        let asked = carrier.clone();
        carrier.follow(1);
        assert!(asked.is_there());
    }
}
