//! Frames by name: built from what they mean, checked from scratch.

use std::{fmt, net::Ipv4Addr};

use lb_common::{
    addr::{Be16, Be32, Mac},
    wire::{
        Packet as _, Slice,
        checksum::{full, pseudo_header},
        header::{ACK, Arp, Ethernet, FIN, Ipv4, RST, SYN, Tcp, Udp},
        parse_ipv4,
    },
};

pub use crate::frames::frame::{Frame, icmp, tcp, udp};
use crate::frames::six;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// An ARP frame: `operation` 1 asks, 2 answers.
pub fn arp(operation: u8, source: Mac, sender: &str, target_mac: Mac, target: &str) -> Vec<u8> {
    let address = |text: &str| text.parse::<Ipv4Addr>().expect("an address").octets();
    let destination = if operation == 1 {
        Mac::BROADCAST
    } else {
        target_mac
    };
    let mut bytes = Vec::new();
    bytes.extend(destination.bytes());
    bytes.extend(source.bytes());
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    bytes.extend(source.bytes());
    bytes.extend(address(sender));
    bytes.extend(if operation == 1 {
        [0; 6]
    } else {
        target_mac.bytes()
    });
    bytes.extend(address(target));
    bytes
}

/// A frame without its outer 802.1Q tag, and the tag's control information.
pub fn untagged(bytes: &[u8]) -> (Option<u16>, Vec<u8>) {
    match bytes {
        [
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            0x81,
            0,
            high,
            low,
            rest @ ..,
        ] => {
            let tci = u16::from_be_bytes([*high, *low]);
            (Some(tci), [&bytes[..12], rest].concat())
        }
        _ => (None, bytes.to_vec()),
    }
}

/// `bytes` with an 802.1Q tag behind the addresses.
pub fn tag(bytes: &[u8], tci: u16) -> Vec<u8> {
    let tag = [&[0x81, 0], tci.to_be_bytes().as_slice()].concat();
    [&bytes[..12], &tag, &bytes[12..]].concat()
}

/// Whether every checksum of an IP frame is right, computed from all of its bytes; a UDP checksum
/// of zero counts as right over IPv4.
///
/// # Errors
///
/// Which one is wrong.
pub fn check(bytes: &[u8]) -> Result<(), String> {
    if bytes.get(12..ETHERNET) == Some(&[0x86, 0xdd]) {
        return six::check(bytes);
    }
    let header = usize::from(bytes[ETHERNET] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    let ip = &bytes[ETHERNET..ETHERNET + header];
    if full(ip, 0).raw() != 0 {
        return Err("the IP header checksum is wrong".to_owned());
    }
    let segment = &bytes[ETHERNET + header..ETHERNET + total];
    let protocol = ip[9];
    if protocol == 17 && segment[6..8] == [0, 0] {
        return Ok(());
    }
    let address = |at: usize| {
        Be32::new(u32::from_be_bytes([
            ip[at],
            ip[at + 1],
            ip[at + 2],
            ip[at + 3],
        ]))
    };
    let length = u16::try_from(segment.len()).map_err(|error| error.to_string())?;
    let pseudo = match protocol {
        1 => 0,
        _ => pseudo_header(address(12), address(16), protocol, length),
    };
    if full(segment, pseudo).raw() != 0 {
        return Err(format!("the checksum of protocol {protocol} is wrong"));
    }
    Ok(())
}

/// A frame in words, for the message of a failed test.
pub struct Decoded<'a>(pub &'a [u8]);

impl fmt::Display for Decoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = self.0.to_vec();
        let packet = Slice::new(&mut copy);
        let Some(ethernet) = packet.header::<Ethernet>(0) else {
            return write!(f, "{} bytes, no Ethernet header", self.0.len());
        };
        let (source, destination) = (ethernet.source.get(), ethernet.destination.get());
        write!(
            f,
            "{source} > {destination} type {:04x}",
            ethernet.ethertype.get().get()
        )?;
        if let Some(arp) = packet.header::<Arp>(ETHERNET)
            && ethernet.ethertype.get() == Be16::new(0x806)
        {
            return write!(
                f,
                " ARP {} {:?} > {:?}",
                arp.operation.get().get(),
                arp.sender.get(),
                arp.target.get()
            );
        }
        if ethernet.ethertype.get() == Be16::new(0x86dd) {
            return match six::read(self.0) {
                Ok(read) => write!(f, " {read}"),
                Err(wrong) => write!(f, " IPv6 ({wrong})"),
            };
        }
        let Some(ip) = packet.header::<Ipv4>(ETHERNET) else {
            return write!(f, ", {} bytes", self.0.len());
        };
        let ends = (ip.source.get(), ip.destination.get());
        write!(f, " IPv4 {:?} > {:?} ttl {}", ends.0, ends.1, ip.ttl.get())?;
        if let Ok(frame) = parse_ipv4(&packet, ethernet, ip) {
            let (source, destination) = frame.l4.ports();
            write!(
                f,
                " protocol {} ports {source:?} > {destination:?}",
                frame.l4.protocol()
            )?;
            write!(f, " payload {}", frame.payload)?;
        }
        if let Err(wrong) = check(self.0) {
            write!(f, " ({wrong})")?;
        }
        Ok(())
    }
}

/// TCP flags by name.
pub mod flags {
    use super::{ACK, FIN, RST, SYN};

    /// Opens a connection.
    pub const SYN_ONLY: u8 = SYN;
    /// Answers a SYN.
    pub const SYN_ACK: u8 = SYN | ACK;
    /// Data or acknowledgment.
    pub const ACK_ONLY: u8 = ACK;
    /// No more data.
    pub const FIN_ACK: u8 = FIN | ACK;
    /// Resets, without an acknowledgment.
    pub const RST_ONLY: u8 = RST;
    /// Refuses a SYN.
    pub const RST_ACK: u8 = RST | ACK;
}

/// Offset of the layer-4 header in a frame without IP options.
pub const L4: usize = ETHERNET + size_of::<Ipv4>();
const _: () = assert!(size_of::<Tcp>() == 20 && size_of::<Udp>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_frames_pass_the_check_and_broken_ones_do_not() {
        let frames = [
            tcp("192.168.203.50:40000", "192.168.203.110:6443", SYN).bytes(),
            tcp("10.0.0.1:1", "10.0.0.2:2", ACK)
                .payload(b"odd")
                .options(&[1, 1, 1, 0])
                .bytes(),
            udp("10.0.0.1:1", "10.0.0.2:2")
                .payload(b"datagram")
                .padding(5)
                .bytes(),
            udp("10.0.0.1:1", "10.0.0.2:2").without_checksum().bytes(),
        ];
        for frame in frames {
            assert_eq!(check(&frame), Ok(()), "{}", Decoded(&frame));
            let mut broken = frame.clone();
            broken[ETHERNET + 15] ^= 1;
            assert!(check(&broken).is_err(), "a changed address");
        }
    }
}
