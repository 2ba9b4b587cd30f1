//! ICMP echo from a raw socket, so that no ping program is needed.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    os::fd::AsRawFd as _,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, recvfrom,
            sendto, setsockopt, socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

use crate::netns::Netns;

/// Echo requests per call.
const REQUESTS: u16 = 3;
/// How long to wait for the reply to each.
const TIMEOUT: Duration = Duration::from_millis(700);
/// Tells our replies from those to other sockets of the namespace.
const IDENTIFIER: u16 = 0x6c62;

const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;

/// What the echo requests met with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ping {
    /// One was answered.
    Answered,
    /// They were sent and none was answered.
    Lost,
    /// There is no route to send them on.
    NoRoute,
}

/// Pings `to` from inside `netns`, up to three times.
///
/// # Errors
///
/// When no raw socket can be made, or sending fails for another reason than a missing route.
pub fn ping(netns: &Netns, to: Ipv4Addr) -> Result<Ping> {
    netns
        .inside(|| ping_here(to))?
        .with_context(|| format!("ping {to} from {}", netns.name()))
}

fn ping_here(to: Ipv4Addr) -> Result<Ping> {
    let fd = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Icmp,
    )
    .context("make a raw socket")?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::milliseconds(100))
        .context("set the receive timeout")?;
    let address = SockaddrIn::from(SocketAddrV4::new(to, 0));
    for sequence in 1..=REQUESTS {
        match sendto(
            fd.as_raw_fd(),
            &request(sequence),
            &address,
            MsgFlags::empty(),
        ) {
            Ok(_) => {}
            Err(Errno::ENETUNREACH) => return Ok(Ping::NoRoute),
            // What the kernel says when no host answered ARP for an earlier request.
            Err(Errno::EHOSTUNREACH) => continue,
            Err(error) => return Err(error).context("send"),
        }
        let deadline = Instant::now() + TIMEOUT;
        while Instant::now() < deadline {
            let mut packet = [0; 128];
            match recvfrom::<SockaddrIn>(fd.as_raw_fd(), &mut packet) {
                Ok((_, Some(from))) if from.ip() == to && is_reply(&packet) => {
                    return Ok(Ping::Answered);
                }
                Ok(_) | Err(Errno::EAGAIN | Errno::EHOSTUNREACH) => {}
                Err(error) => return Err(error).context("receive"),
            }
        }
    }
    Ok(Ping::Lost)
}

/// An echo request with its checksum (RFC 1071).
fn request(sequence: u16) -> [u8; 8] {
    let words = [u16::from(ECHO_REQUEST) << 8, 0, IDENTIFIER, sequence];
    let sum = words.iter().fold(0_u16, |sum, &word| {
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    });
    let [[a, b], _, [e, f], [g, h]] = words.map(u16::to_be_bytes);
    let [c, d] = (!sum).to_be_bytes();
    [a, b, c, d, e, f, g, h]
}

/// Whether an IPv4 packet, as a raw socket receives it, is a reply to us.
fn is_reply(packet: &[u8]) -> bool {
    let header = packet
        .first()
        .map_or(0, |byte| usize::from(byte & 0x0f) * 4);
    let message = packet.get(header..).unwrap_or_default();
    let [high, low] = IDENTIFIER.to_be_bytes();
    matches!(message, [ECHO_REPLY, _, _, _, id @ .., ] if id.starts_with(&[high, low]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_sums_up_to_all_ones() {
        let bytes = request(0x1234);
        let sum: u32 = bytes
            .chunks(2)
            .map(|pair| {
                pair.iter()
                    .fold(0, |word, &byte| word << 8 | u32::from(byte))
            })
            .sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn only_an_echo_reply_with_our_identifier_counts() {
        let mut packet = [0; 28];
        packet[0] = 0x45;
        packet[24..26].copy_from_slice(&IDENTIFIER.to_be_bytes());
        assert!(is_reply(&packet));
        packet[20] = ECHO_REQUEST;
        assert!(!is_reply(&packet));
        assert!(!is_reply(&[]));
    }
}
