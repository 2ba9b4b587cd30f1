//! Frames that no kernel stack would send, put on a wire byte by byte.

use std::{
    net::Ipv4Addr,
    os::fd::{AsRawFd as _, OwnedFd},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use lb_common::{addr::Mac, wire::checksum::full};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::socket::{
        AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrLike as _, sendto, socket,
    },
};

use crate::{netns::Netns, poll};

/// Bytes of both addresses of an Ethernet header: a tag comes behind them.
const ADDRESSES: usize = 12;

/// The Ethernet type of an 802.1Q tag.
pub const DOT1Q: u16 = 0x8100;
/// The Ethernet type of an 802.1ad service tag.
pub const DOT1AD: u16 = 0x88a8;

/// How long a ring may be full.
const ROOM: Duration = Duration::from_secs(5);

/// An interface to send frames out of.
#[derive(Debug)]
pub struct RawPort {
    socket: OwnedFd,
    interface: LinkAddr,
}

impl RawPort {
    /// Opens `interface` of `netns`.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn open(netns: &Netns, interface: &str) -> Result<Self> {
        netns
            .inside(|| open_here(interface))?
            .with_context(|| format!("open {interface} of {}", netns.name()))
    }

    /// Sends one frame. While no CPU has the time to empty the ring of a veth no frame is taken.
    ///
    /// # Errors
    ///
    /// When the interface does not take it.
    pub fn send(&self, frame: &[u8]) -> Result<()> {
        let Self { socket, interface } = self;
        let sent = poll::until("room for a frame", ROOM, || {
            match sendto(socket.as_raw_fd(), frame, interface, MsgFlags::empty()) {
                Err(Errno::ENOBUFS) => Ok(None),
                sent => sent.context("send a frame").map(Some),
            }
        })?;
        ensure!(sent == frame.len(), "{sent} of {} bytes sent", frame.len());
        Ok(())
    }
}

fn open_here(interface: &str) -> Result<RawPort> {
    // No protocol: this socket receives nothing.
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .context("make a packet socket")?;
    let interface = getifaddrs()
        .context("list the interfaces")?
        .filter(|found| found.interface_name == interface)
        .find_map(|found| found.address?.as_link_addr().copied())
        .context("no such interface")?;
    ensure!(interface.family() == Some(AddressFamily::Packet), "no link");
    Ok(RawPort { socket, interface })
}

/// The frame with one more tag in front of those it has.
#[must_use]
pub fn tagged(frame: &[u8], kind: u16, control: u16) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(ADDRESSES.min(frame.len()));
    let tag = [kind.to_be_bytes(), control.to_be_bytes()].concat();
    [addresses, &tag, rest].concat()
}

/// A frame with this Ethernet type and payload, padded to the shortest length.
#[must_use]
pub fn ethernet(source: Mac, destination: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    const SHORTEST: usize = 60;
    let [source, destination] = [source, destination].map(Mac::bytes);
    let kind = kind.to_be_bytes();
    let mut frame = [&destination[..], &source, &kind, payload].concat();
    frame.resize(frame.len().max(SHORTEST), 0);
    frame
}

/// An ICMP echo request with right checksums.
#[must_use]
pub fn echo_request(
    [source_mac, destination_mac]: [Mac; 2],
    source: Ipv4Addr,
    destination: Ipv4Addr,
) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x6c, 0x62, 0, 1];
    icmp.extend([0x55; 24]);
    let sum = full(&icmp, 0).get().to_be_bytes();
    icmp[2..4].copy_from_slice(&sum);
    let length = u8::try_from(20 + icmp.len()).expect("a short packet");
    let mut ip = vec![0x45, 0, 0, length, 0, 1, 0x40, 0, 64, 1, 0, 0];
    ip.extend(source.octets());
    ip.extend(destination.octets());
    let sum = full(&ip, 0).get().to_be_bytes();
    ip[10..12].copy_from_slice(&sum);
    ip.extend(icmp);
    ethernet(source_mac, destination_mac, 0x0800, &ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tag_put_on_is_the_outer_one() {
        let frame = ethernet(Mac::default(), Mac::BROADCAST, 0x88cc, &[1, 2, 3]);
        let double = tagged(&tagged(&frame, DOT1Q, 2004), DOT1AD, 2003);
        assert_eq!(double.len(), frame.len() + 8);
        assert_eq!(
            double[12..22],
            [0x88, 0xa8, 0x07, 0xd3, 0x81, 0, 0x07, 0xd4, 0x88, 0xcc]
        );
    }

    #[test]
    fn an_echo_request_has_right_checksums() {
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().expect("an address"));
        let frame = echo_request([Mac::default(); 2], a, b);
        for part in [&frame[14..34], &frame[34..66]] {
            assert_eq!(full(part, 0).raw(), 0);
        }
    }
}
