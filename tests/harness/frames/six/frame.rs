//! TCP, UDP and ICMPv6 frames over IPv6, with right lengths and checksums.

use std::net::{Ipv6Addr, SocketAddrV6};

use lb_common::{addr::Mac, wire::checksum::full};

use super::{Extension, number, pseudo_header};

/// A frame. What is not said stands as a plain sender would have it.
#[derive(Clone, Debug)]
pub struct Frame {
    source_mac: Mac,
    destination_mac: Mac,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hops: u8,
    class_and_label: u32,
    extensions: Vec<Extension>,
    upper: Upper,
    payload: Vec<u8>,
    padding: usize,
}

#[derive(Clone, Debug)]
enum Upper {
    Tcp {
        ports: [u16; 2],
        flags: u8,
        sequence: u32,
        acknowledgment: u32,
        window: u16,
        options: Vec<u8>,
    },
    Udp {
        ports: [u16; 2],
        /// Whether it has one: without, no host takes it over IPv6.
        checksum: bool,
    },
    Icmp {
        kind: (u8, u8),
        rest: u32,
    },
}

/// A TCP frame between two `[address]:port`.
#[must_use]
pub fn tcp(source: &str, destination: &str, flags: u8) -> Frame {
    between_ports(source, destination, |ports| Upper::Tcp {
        ports,
        flags,
        sequence: 0,
        acknowledgment: 0,
        window: u16::MAX,
        options: Vec::new(),
    })
}

/// A UDP frame between two `[address]:port`.
#[must_use]
pub fn udp(source: &str, destination: &str) -> Frame {
    between_ports(source, destination, |ports| Upper::Udp {
        ports,
        checksum: true,
    })
}

/// An ICMPv6 message of this type and code between two addresses, with `rest` in the second word.
#[must_use]
pub fn icmp(source: &str, destination: &str, kind: (u8, u8), rest: u32) -> Frame {
    let address = |text: &str| text.parse().expect("an IPv6 address");
    let ends = [source, destination].map(address);
    Frame::new(ends, Upper::Icmp { kind, rest })
}

fn between_ports(source: &str, destination: &str, upper: impl FnOnce([u16; 2]) -> Upper) -> Frame {
    let end = |text: &str| -> SocketAddrV6 { text.parse().expect("an [address]:port") };
    let [source, destination] = [source, destination].map(end);
    let ports = [source.port(), destination.port()];
    Frame::new([*source.ip(), *destination.ip()], upper(ports))
}

impl Frame {
    const fn new([source, destination]: [Ipv6Addr; 2], upper: Upper) -> Self {
        Self {
            source_mac: Mac::new([0; 6]),
            destination_mac: Mac::new([0; 6]),
            source,
            destination,
            hops: 64,
            class_and_label: 0,
            extensions: Vec::new(),
            upper,
            payload: Vec::new(),
            padding: 0,
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
    pub fn numbers(mut self, new_sequence: u32, new_acknowledgment: u32) -> Self {
        if let Upper::Tcp {
            sequence,
            acknowledgment,
            ..
        } = &mut self.upper
        {
            (*sequence, *acknowledgment) = (new_sequence, new_acknowledgment);
        }
        self
    }

    /// With TCP options; their length is a multiple of four.
    #[must_use]
    pub fn tcp_options(mut self, new: &[u8]) -> Self {
        if let Upper::Tcp { options, .. } = &mut self.upper {
            *options = new.to_vec();
        }
        self
    }

    /// With this window in the TCP header.
    #[must_use]
    pub fn window(mut self, new: u16) -> Self {
        if let Upper::Tcp { window, .. } = &mut self.upper {
            *window = new;
        }
        self
    }

    /// With a UDP checksum of zero.
    #[must_use]
    pub fn without_checksum(mut self) -> Self {
        if let Upper::Udp { checksum, .. } = &mut self.upper {
            *checksum = false;
        }
        self
    }

    /// With these bytes behind the headers.
    #[must_use]
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// With this hop limit.
    #[must_use]
    pub const fn hops(mut self, hops: u8) -> Self {
        self.hops = hops;
        self
    }

    /// With this traffic class and flow label.
    #[must_use]
    pub fn class_and_label(mut self, class: u8, label: u32) -> Self {
        self.class_and_label = u32::from(class) << 20 | label;
        self
    }

    /// With one more header in front of what it carries.
    #[must_use]
    pub fn extension(mut self, extension: Extension) -> Self {
        self.extensions.push(extension);
        self
    }

    /// With this many bytes of Ethernet padding behind the packet.
    #[must_use]
    pub const fn padding(mut self, bytes: usize) -> Self {
        self.padding = bytes;
        self
    }

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let [destination, source] = [self.destination_mac, self.source_mac].map(Mac::bytes);
        let head = [&destination[..], &source, &[0x86, 0xdd]].concat();
        [head, self.packet(), vec![0; self.padding]].concat()
    }

    /// As [`Self::bytes`], with the checksum as a kernel's stack leaves it to the interface: the sum of
    /// the pseudo-header, not inverted. Without padding.
    #[must_use]
    pub fn open_checksum(&self) -> Vec<u8> {
        let mut bytes = self.bytes();
        let segment = self.segment();
        if let Some(place) = self.checksum_place() {
            let at = bytes.len() - segment.len() + place;
            let sum = !full(&[], self.pseudo(segment.len())).get();
            bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// What the frame carries: the IPv6 packet.
    #[must_use]
    pub fn packet(&self) -> Vec<u8> {
        let numbers = self.extensions.iter().map(Extension::number);
        let numbers: Vec<u8> = numbers.chain([self.protocol()]).collect();
        let mut chain = Vec::new();
        for (extension, next) in self.extensions.iter().zip(&numbers[1..]) {
            chain.extend(extension.bytes(*next));
        }
        let segment = self.segment();
        let length = u16::try_from(chain.len() + segment.len()).expect("a packet below 64 KiB");

        let mut packet = (6_u32 << 28 | self.class_and_label).to_be_bytes().to_vec();
        packet.extend(length.to_be_bytes());
        packet.extend([numbers[0], self.hops]);
        packet.extend(self.source.octets());
        packet.extend(self.destination.octets());
        [packet, chain, segment].concat()
    }

    const fn protocol(&self) -> u8 {
        match self.upper {
            Upper::Tcp { .. } => number::TCP,
            Upper::Udp { .. } => number::UDP,
            Upper::Icmp { .. } => number::ICMP,
        }
    }

    /// Where the checksum stands in the segment, if it has one.
    const fn checksum_place(&self) -> Option<usize> {
        match self.upper {
            Upper::Tcp { .. } => Some(16),
            Upper::Udp { checksum: true, .. } => Some(6),
            Upper::Udp { .. } => None,
            Upper::Icmp { .. } => Some(2),
        }
    }

    fn segment(&self) -> Vec<u8> {
        let mut segment = [self.upper_header(), self.payload.clone()].concat();
        if let Some(at) = self.checksum_place() {
            let checksum = match full(&segment, self.pseudo(segment.len())).get() {
                0 if self.protocol() == number::UDP => 0xffff,
                checksum => checksum,
            };
            segment[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        segment
    }

    /// The header of what is carried, with a checksum of zero.
    fn upper_header(&self) -> Vec<u8> {
        match &self.upper {
            Upper::Tcp {
                ports,
                flags,
                sequence,
                acknowledgment,
                window,
                options,
            } => {
                let words = u8::try_from(5 + options.len() / 4).expect("at most 15 words");
                let mut header = ports.map(u16::to_be_bytes).concat();
                header.extend(sequence.to_be_bytes());
                header.extend(acknowledgment.to_be_bytes());
                header.extend([words << 4, *flags]);
                header.extend(window.to_be_bytes());
                header.extend([0; 4]);
                header.extend(options);
                header
            }
            Upper::Udp { ports, .. } => {
                let length = u16::try_from(8 + self.payload.len()).expect("below 64 KiB");
                let [source, destination] = *ports;
                [source, destination, length, 0]
                    .map(u16::to_be_bytes)
                    .concat()
            }
            Upper::Icmp {
                kind: (kind, code),
                rest,
            } => [[*kind, *code, 0, 0], rest.to_be_bytes()].concat(),
        }
    }

    /// The sum of the pseudo-header of a segment of this length.
    fn pseudo(&self, length: usize) -> u64 {
        let mut addresses = [0; 32];
        addresses[..16].copy_from_slice(&self.source.octets());
        addresses[16..].copy_from_slice(&self.destination.octets());
        pseudo_header(&addresses, length, self.protocol())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{
        packet::{Decoded, flags::SYN_ONLY},
        six::check,
    };

    const A: &str = "[fd00:203::50]:40000";
    const B: &str = "[fd00:203::110]:6443";

    #[test]
    fn built_frames_pass_the_check_and_broken_ones_do_not() {
        let frames = [
            tcp(A, B, SYN_ONLY).tcp_options(&[2, 4, 5, 0xa0]),
            tcp(A, B, SYN_ONLY).payload(b"odd").padding(5),
            udp(A, B)
                .payload(b"datagram")
                .class_and_label(0xb8, 0x12345),
            udp(A, B)
                .extension(Extension::HopByHop(vec![]))
                .payload(&[1]),
            tcp(A, B, SYN_ONLY).extension(Extension::Fragment { field: 0, id: 7 }),
            icmp("fd00:203::50", "fd00:203::110", (128, 0), 7).payload(b"abc"),
        ];
        for frame in frames {
            let bytes = frame.bytes();
            assert_eq!(check(&bytes), Ok(()), "{}", Decoded(&bytes));
            for at in [14 + 15, 14 + 31, bytes.len() - 1 - frame.padding] {
                let mut broken = bytes.clone();
                broken[at] ^= 1;
                assert!(check(&broken).is_err(), "byte {at} of {}", Decoded(&bytes));
            }
        }
        let bare = udp(A, B).without_checksum().bytes();
        assert!(check(&bare).is_err(), "no checksum");
    }

    #[test]
    fn an_open_checksum_is_that_of_the_pseudo_header() {
        let frame = udp(A, B).payload(b"who?");
        let bytes = frame.open_checksum();
        let whole = frame.bytes();
        assert_eq!(bytes[..60], whole[..60]);
        assert_eq!(bytes[62..], whole[62..]);
        // fd00 0203 + 50, fd00 0203 + 110, length 12, protocol 17: carries folded.
        let sum: u32 = 2 * (0xfd00 + 0x0203) + 0x50 + 0x110 + 12 + 17;
        let sum = (sum >> 16) + (sum & 0xffff);
        assert_eq!(u32::from(u16::from_be_bytes([bytes[60], bytes[61]])), sum);
    }
}
