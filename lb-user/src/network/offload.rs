//! Offloads of a veth end: transmit checksums off, GRO on.
//!
//! A frame from a kernel stack must carry its whole checksum before XDP sees it, and a veth end
//! takes redirected frames only with NAPI, which GRO switches on. There is no netlink library for
//! these two yet, so this is the one place with an ioctl (`ethtool_value`, linux/ethtool.h).
#![expect(unsafe_code, reason = "SIOCETHTOOL takes a pointer inside an ifreq")]

use std::os::fd::AsRawFd as _;

use anyhow::{Context as _, Result, ensure};
use nix::{
    libc::{self, c_char},
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

const GET_TX_CHECKSUM: u32 = 0x16;
const SET_TX_CHECKSUM: u32 = 0x17;
const GET_GRO: u32 = 0x2b;
const SET_GRO: u32 = 0x2c;

mod ioctl {
    nix::ioctl_readwrite_bad!(ethtool, nix::libc::SIOCETHTOOL, nix::libc::ifreq);
}

/// Prepares a veth end of the calling thread's namespace for XDP redirects.
///
/// # Errors
///
/// If the interface does not exist, or a setting does not hold.
pub(super) fn prepare(interface: &str) -> Result<()> {
    set(
        interface,
        "tx checksum offload",
        SET_TX_CHECKSUM,
        GET_TX_CHECKSUM,
        0,
    )?;
    set(interface, "GRO", SET_GRO, GET_GRO, 1)
}

fn set(interface: &str, what: &str, set: u32, get: u32, wanted: u32) -> Result<()> {
    call(interface, set, wanted)
        .with_context(|| format!("set {what} of {interface} to {wanted}"))?;
    let found = call(interface, get, 0).with_context(|| format!("read {what} of {interface}"))?;
    ensure!(
        found == wanted,
        "{what} of {interface}: set to {wanted}, but it reads {found}"
    );
    Ok(())
}

fn call(interface: &str, command: u32, data: u32) -> Result<u32> {
    ensure!(
        interface.len() < libc::IFNAMSIZ,
        "{interface} is no interface name"
    );
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let mut value = Value { command, data };
    let mut name: [c_char; libc::IFNAMSIZ] = [0; libc::IFNAMSIZ];
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
    let mut request = libc::ifreq {
        ifr_name: name,
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_data: (&raw mut value).cast(),
        },
    };
    // SAFETY: the request holds a terminated name and a pointer to a live `ethtool_value`, which is
    // all that these four commands read and write.
    unsafe { ioctl::ethtool(socket.as_raw_fd(), &raw mut request) }?;
    Ok(value.data)
}
