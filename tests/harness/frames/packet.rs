//! Frames by name: built from what they mean, checked from scratch.

use std::{
    fmt,
    net::{Ipv4Addr, SocketAddrV4},
};

use lb_common::{
    addr::{Be16, Be32, Mac},
    wire::{
        Packet as _, Slice,
        checksum::{full, pseudo_header},
        header::{ACK, Arp, Ethernet, FIN, Ipv4, RST, SYN, Tcp, Udp},
        parse_ipv4,
    },
};

use crate::frames::six;

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// A TCP or UDP frame over IPv4, with right lengths and checksums.
#[derive(Clone, Debug)]
pub struct Frame {
    source_mac: Mac,
    destination_mac: Mac,
    source: SocketAddrV4,
    destination: SocketAddrV4,
    ttl: u8,
    fragment: u16,
    options: Vec<u8>,
    tcp_options: Vec<u8>,
    window: u16,
    l4: Layer4,
    payload: Vec<u8>,
    padding: usize,
    tags: Vec<(u16, u16)>,
}

#[derive(Clone, Debug)]
enum Layer4 {
    Tcp {
        flags: u8,
        sequence: u32,
        acknowledgment: u32,
    },
    Udp {
        checksum: bool,
    },
}

/// A TCP frame between two `address:port`.
pub fn tcp(source: &str, destination: &str, flags: u8) -> Frame {
    Frame::new(
        source,
        destination,
        Layer4::Tcp {
            flags,
            sequence: 0,
            acknowledgment: 0,
        },
    )
}

/// A UDP frame between two `address:port`.
pub fn udp(source: &str, destination: &str) -> Frame {
    Frame::new(source, destination, Layer4::Udp { checksum: true })
}

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

impl Frame {
    fn new(source: &str, destination: &str, l4: Layer4) -> Self {
        Self {
            source_mac: Mac::default(),
            destination_mac: Mac::default(),
            source: source.parse().expect("a source address:port"),
            destination: destination.parse().expect("a destination address:port"),
            ttl: 64,
            fragment: 0x4000,
            options: Vec::new(),
            tcp_options: Vec::new(),
            window: u16::MAX,
            l4,
            payload: Vec::new(),
            padding: 0,
            tags: Vec::new(),
        }
    }

    /// From one station to another.
    #[must_use]
    pub fn between(mut self, source: Mac, destination: Mac) -> Self {
        (self.source_mac, self.destination_mac) = (source, destination);
        self
    }

    /// TCP sequence and acknowledgment number.
    #[must_use]
    pub fn numbers(mut self, sequence: u32, acknowledgment: u32) -> Self {
        if let Layer4::Tcp { flags, .. } = self.l4 {
            self.l4 = Layer4::Tcp {
                flags,
                sequence,
                acknowledgment,
            };
        }
        self
    }

    /// With these bytes behind the headers.
    #[must_use]
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// With this time to live.
    #[must_use]
    pub const fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// With this flags and fragment offset field.
    #[must_use]
    pub const fn fragment(mut self, field: u16) -> Self {
        self.fragment = field;
        self
    }

    /// With IP options; their length is a multiple of four.
    #[must_use]
    pub fn options(mut self, options: &[u8]) -> Self {
        self.options = options.to_vec();
        self
    }

    /// With TCP options; their length is a multiple of four.
    #[must_use]
    pub fn tcp_options(mut self, options: &[u8]) -> Self {
        self.tcp_options = options.to_vec();
        self
    }

    /// With this window in the TCP header.
    #[must_use]
    pub const fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    /// With this many bytes of Ethernet padding behind the packet.
    #[must_use]
    pub const fn padding(mut self, bytes: usize) -> Self {
        self.padding = bytes;
        self
    }

    /// With one more VLAN tag, inside those that it has: protocol and control information.
    #[must_use]
    pub fn tagged(mut self, protocol: u16, tci: u16) -> Self {
        self.tags.push((protocol, tci));
        self
    }

    /// Without a UDP checksum.
    #[must_use]
    pub fn without_checksum(mut self) -> Self {
        self.l4 = Layer4::Udp { checksum: false };
        self
    }

    /// The frame's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let segment = self.segment();
        let header_words = 5 + self.options.len() / 4;
        let total = u16::try_from(header_words * 4 + segment.len()).expect("a packet below 64 KiB");
        let mut ip = vec![
            0x40 | u8::try_from(header_words).expect("at most 15 words"),
            0,
        ];
        ip.extend(total.to_be_bytes());
        ip.extend([0x12, 0x34]);
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, self.protocol(), 0, 0]);
        ip.extend(self.source.ip().octets());
        ip.extend(self.destination.ip().octets());
        ip.extend(&self.options);
        let checksum = full(&ip, 0).get().to_be_bytes();
        ip[10..12].copy_from_slice(&checksum);

        let mut bytes = Vec::new();
        bytes.extend(self.destination_mac.bytes());
        bytes.extend(self.source_mac.bytes());
        for (protocol, tci) in &self.tags {
            bytes.extend(protocol.to_be_bytes());
            bytes.extend(tci.to_be_bytes());
        }
        bytes.extend([8, 0]);
        bytes.extend(ip);
        bytes.extend(segment);
        bytes.extend(vec![0; self.padding]);
        bytes
    }

    /// As [`Self::bytes`], with the checksum as a kernel's stack leaves it to the interface: the sum of
    /// the pseudo-header, not inverted. Without tags and padding.
    pub fn open_checksum(&self) -> Vec<u8> {
        let mut bytes = self.bytes();
        let segment = self.segment();
        let first = bytes.len() - segment.len();
        let at = first + if self.protocol() == 17 { 6 } else { 16 };
        let sum = !full(&[], self.pseudo(&segment)).get();
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    const fn protocol(&self) -> u8 {
        match self.l4 {
            Layer4::Tcp { .. } => 6,
            Layer4::Udp { .. } => 17,
        }
    }

    fn segment(&self) -> Vec<u8> {
        let mut segment = Vec::new();
        segment.extend(self.source.port().to_be_bytes());
        segment.extend(self.destination.port().to_be_bytes());
        let at = match self.l4 {
            Layer4::Tcp {
                flags,
                sequence,
                acknowledgment,
            } => {
                segment.extend(sequence.to_be_bytes());
                segment.extend(acknowledgment.to_be_bytes());
                let words = u8::try_from(5 + self.tcp_options.len() / 4).expect("at most 15 words");
                segment.extend([words << 4, flags]);
                segment.extend(self.window.to_be_bytes());
                segment.extend([0; 4]);
                segment.extend(&self.tcp_options);
                Some(16)
            }
            Layer4::Udp { checksum } => {
                let length =
                    u16::try_from(8 + self.payload.len()).expect("a datagram below 64 KiB");
                segment.extend(length.to_be_bytes());
                segment.extend([0, 0]);
                checksum.then_some(6)
            }
        };
        segment.extend(&self.payload);
        if let Some(at) = at {
            let checksum = match full(&segment, self.pseudo(&segment)).get() {
                0 if self.protocol() == 17 => 0xffff,
                checksum => checksum,
            };
            segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        segment
    }

    /// The sum of the pseudo-header of a segment.
    fn pseudo(&self, segment: &[u8]) -> u64 {
        let length = u16::try_from(segment.len()).expect("a segment below 64 KiB");
        let (source, destination) = (*self.source.ip(), *self.destination.ip());
        pseudo_header(source.into(), destination.into(), self.protocol(), length)
    }
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
