//! ICMP messages of IPv4: built byte by byte, and read as they were on a wire.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Context as _, Result, ensure};
use lb_common::{addr::Mac, wire::checksum::full};

use crate::{frames::raw, oracle::wire};

/// An echo is answered.
pub const ECHO_REPLY: (u8, u8) = (0, 0);
/// Asks for an echo.
pub const ECHO_REQUEST: (u8, u8) = (8, 0);
/// No socket listens at the port.
pub const PORT_UNREACHABLE: (u8, u8) = (3, 3);
/// Larger than the next link, and not to be cut.
pub const TOO_BIG: (u8, u8) = (3, 4);
/// The time to live was used up on the way.
pub const TIME_EXCEEDED: (u8, u8) = (11, 0);

/// Bytes in front of the IPv4 header.
const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options.
const IPV4: usize = 20;
/// Bytes of an ICMP header.
const ICMP: usize = 8;
/// What every error quotes of the packet behind its IPv4 header (RFC 792).
pub const QUOTED: usize = 8;

/// One message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Message {
    /// Its sender.
    pub from: Ipv4Addr,
    /// Its receiver.
    pub to: Ipv4Addr,
    /// Its type and code.
    pub kind: (u8, u8),
    /// The rest of its header: identifier and number of an echo, the MTU of "too big".
    pub rest: u32,
    /// What is behind its header.
    pub body: Vec<u8>,
}

/// The packet that an error is about, as far as the error quotes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Quote {
    /// The sender of the quoted packet.
    pub from: SocketAddrV4,
    /// Its receiver.
    pub to: SocketAddrV4,
    /// Its protocol.
    pub protocol: u8,
    /// The first bytes of its layer-4 header.
    pub l4: [u8; QUOTED],
}

impl Message {
    /// A "too big" for this MTU, as a router sends it that had the frame `about` in its hands.
    #[must_use]
    pub fn too_big(from: Ipv4Addr, to: Ipv4Addr, mtu: u16, about: &[u8]) -> Self {
        let header = usize::from(about[ETHERNET] & 15) * 4;
        Self {
            from,
            to,
            kind: TOO_BIG,
            rest: mtu.into(),
            body: about[ETHERNET..ETHERNET + header + QUOTED].to_vec(),
        }
    }

    /// The frame that carries it from one station to another, with right checksums.
    ///
    /// # Panics
    ///
    /// When it is longer than an IPv4 packet can be.
    #[must_use]
    pub fn frame(&self, [source, destination]: [Mac; 2], ttl: u8) -> Vec<u8> {
        let (kind, code) = self.kind;
        let mut icmp = vec![kind, code, 0, 0];
        icmp.extend(self.rest.to_be_bytes());
        icmp.extend(&self.body);
        let sum = full(&icmp, 0).get().to_be_bytes();
        icmp[2..4].copy_from_slice(&sum);
        let length = u16::try_from(IPV4 + icmp.len()).expect("an IPv4 packet");
        let [high, low] = length.to_be_bytes();
        let mut ip = vec![0x45, 0, high, low, 0, 1, 0x40, 0, ttl, 1, 0, 0];
        ip.extend(self.from.octets());
        ip.extend(self.to.octets());
        let sum = full(&ip, 0).get().to_be_bytes();
        ip[10..12].copy_from_slice(&sum);
        ip.extend(icmp);
        raw::ethernet(source, destination, 0x0800, &ip)
    }

    /// Reads a frame; `None` for one that has no ICMP message.
    ///
    /// # Errors
    ///
    /// When a checksum of the message is wrong.
    pub fn read(frame: &[u8]) -> Result<Option<Self>> {
        const PROTOCOL: u8 = 1;
        let Some((from, to)) = wire::ipv4(frame) else {
            return Ok(None);
        };
        let ip = frame.get(ETHERNET..).context("an IPv4 header")?;
        if ip.get(9) != Some(&PROTOCOL) {
            return Ok(None);
        }
        let header = usize::from(ip[0] & 15) * 4;
        let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        let icmp = ip.get(header..total).context("a whole packet")?;
        ensure!(full(&ip[..header], 0).raw() == 0, "its header: {ip:02x?}");
        ensure!(full(icmp, 0).raw() == 0, "its checksum: {icmp:02x?}");
        let (head, body) = icmp.split_at_checked(ICMP).context("an ICMP header")?;
        Ok(Some(Self {
            from,
            to,
            kind: (head[0], head[1]),
            rest: u32::from_be_bytes([head[4], head[5], head[6], head[7]]),
            body: body.to_vec(),
        }))
    }

    /// The packet that it quotes.
    ///
    /// # Errors
    ///
    /// When it quotes too little, or a header whose checksum is wrong.
    pub fn quote(&self) -> Result<Quote> {
        let ip = &self.body;
        let header = usize::from(ip.first().context("no quote")? & 15) * 4;
        let l4 = ip
            .get(header..header + QUOTED)
            .context("too short a quote")?;
        let l4: [u8; QUOTED] = l4.try_into()?;
        ensure!(
            full(&ip[..header], 0).raw() == 0,
            "the header in it: {ip:02x?}"
        );
        let end = |at: usize, port: [u8; 2]| {
            let address = Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
            SocketAddrV4::new(address, u16::from_be_bytes(port))
        };
        Ok(Quote {
            from: end(12, [l4[0], l4[1]]),
            to: end(16, [l4[2], l4[3]]),
            protocol: ip[9],
            l4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::packet;

    #[test]
    fn a_message_is_read_as_it_was_built() {
        let about = packet::udp("10.0.0.1:1000", "10.0.0.2:53").payload(b"a question");
        let [from, to] = ["10.0.0.9", "10.0.0.1"].map(|text| text.parse().expect("an address"));
        let message = Message::too_big(from, to, 1280, &about.bytes());
        let mut frame = message.frame([Mac::default(); 2], 64);
        let read = Message::read(&frame).expect("right checksums");
        assert_eq!(read, Some(message.clone()));
        let quote = message.quote().expect("a quote");
        assert_eq!(quote.from.to_string(), "10.0.0.1:1000");
        assert_eq!(quote.to.to_string(), "10.0.0.2:53");
        assert_eq!((quote.protocol, quote.l4[4..6].to_vec()), (17, vec![0, 18]));

        frame[60] ^= 1;
        assert!(Message::read(&frame).is_err());
        assert_eq!(Message::read(&about.bytes()).expect("no error"), None);
    }
}
