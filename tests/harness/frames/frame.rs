//! TCP, UDP and ICMP frames over IPv4 and IPv6, with right lengths and checksums.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lb_common::{
    addr::Mac,
    wire::checksum::{self, full},
};

use super::six::{self, Extension, number};

/// The flag of IPv4 that forbids fragments.
const DONT_FRAGMENT: u16 = 0x4000;

/// A frame. What is not said stands as a plain sender would have it.
#[derive(Clone, Debug)]
pub struct Frame {
    source_mac: Mac,
    destination_mac: Mac,
    tags: Vec<(u16, u16)>,
    ip: Ip,
    ttl: u8,
    upper: Upper,
    payload: Vec<u8>,
    padding: usize,
}

#[derive(Clone, Debug)]
enum Ip {
    V4 {
        ends: [Ipv4Addr; 2],
        identification: u16,
        fragment: u16,
        options: Vec<u8>,
    },
    V6 {
        ends: [Ipv6Addr; 2],
        class_and_label: u32,
        extensions: Vec<Extension>,
    },
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

/// A TCP frame between two `address:port` of one family.
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

/// A UDP frame between two `address:port` of one family.
#[must_use]
pub fn udp(source: &str, destination: &str) -> Frame {
    between_ports(source, destination, |ports| Upper::Udp {
        ports,
        checksum: true,
    })
}

/// An ICMP or ICMPv6 message of this type and code between two addresses, with `rest` in the second word.
#[must_use]
pub fn icmp(source: &str, destination: &str, kind: (u8, u8), rest: u32) -> Frame {
    let ends = [source, destination].map(|text| text.parse().expect("an address"));
    Frame::new(ends, Upper::Icmp { kind, rest })
}

fn between_ports(source: &str, destination: &str, upper: impl FnOnce([u16; 2]) -> Upper) -> Frame {
    let end = |text: &str| -> SocketAddr { text.parse().expect("an address:port") };
    let ends = [source, destination].map(end);
    Frame::new(ends.map(|end| end.ip()), upper(ends.map(|end| end.port())))
}

impl Ip {
    fn new(ends: [IpAddr; 2], upper: &Upper) -> Self {
        match ends {
            [IpAddr::V4(source), IpAddr::V4(destination)] => {
                let (identification, fragment) = match upper {
                    Upper::Icmp { .. } => (0x4321, 0),
                    _ => (0x1234, DONT_FRAGMENT),
                };
                Self::V4 {
                    ends: [source, destination],
                    identification,
                    fragment,
                    options: Vec::new(),
                }
            }
            [IpAddr::V6(source), IpAddr::V6(destination)] => Self::V6 {
                ends: [source, destination],
                class_and_label: 0,
                extensions: Vec::new(),
            },
            ends => panic!("two families: {ends:?}"),
        }
    }

    /// The header of a packet, with extension headers and options, before `length` bytes of this protocol.
    fn header(&self, ttl: u8, protocol: u8, length: usize) -> Vec<u8> {
        match self {
            Self::V4 {
                ends,
                identification,
                fragment,
                options,
            } => {
                let words = u8::try_from(5 + options.len() / 4).expect("at most 15 words");
                let total = u16::try_from(usize::from(words) * 4 + length).expect("below 64 KiB");
                let mut header = vec![0x40 | words, 0];
                header.extend(
                    [total, *identification, *fragment]
                        .map(u16::to_be_bytes)
                        .concat(),
                );
                header.extend([ttl, protocol, 0, 0]);
                header.extend(ends.map(|end| end.octets()).concat());
                header.extend(options);
                let sum = full(&header, 0).get().to_be_bytes();
                header[10..12].copy_from_slice(&sum);
                header
            }
            Self::V6 {
                ends,
                class_and_label,
                extensions,
            } => {
                let numbers = extensions.iter().map(Extension::number);
                let numbers: Vec<u8> = numbers.chain([protocol]).collect();
                let chain = extensions.iter().zip(&numbers[1..]);
                let chain: Vec<u8> = chain
                    .flat_map(|(header, next)| header.bytes(*next))
                    .collect();
                let length = u16::try_from(chain.len() + length).expect("below 64 KiB");
                let mut header = (6_u32 << 28 | class_and_label).to_be_bytes().to_vec();
                header.extend(length.to_be_bytes());
                header.extend([numbers[0], ttl]);
                header.extend(ends.map(|end| end.octets()).concat());
                header.extend(chain);
                header
            }
        }
    }

    /// The sum of the pseudo-header of a segment of this length.
    fn pseudo(&self, protocol: u8, length: usize) -> u64 {
        match self {
            Self::V4 { .. } if protocol == number::ICMP_V4 => 0,
            Self::V4 { ends, .. } => {
                let [source, destination] = *ends;
                let length = u16::try_from(length).expect("a segment below 64 KiB");
                checksum::pseudo_header(source.into(), destination.into(), protocol, length)
            }
            Self::V6 { ends, .. } => {
                let mut addresses = [0; 32];
                addresses.copy_from_slice(&ends.map(|end| end.octets()).concat());
                six::pseudo_header(&addresses, length, protocol)
            }
        }
    }
}

impl Frame {
    fn new(ends: [IpAddr; 2], upper: Upper) -> Self {
        Self {
            source_mac: Mac::default(),
            destination_mac: Mac::default(),
            tags: Vec::new(),
            ip: Ip::new(ends, &upper),
            ttl: 64,
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

    /// With this time to live, which is the hop limit of IPv6.
    #[must_use]
    pub const fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// With this identification.
    ///
    /// # Panics
    ///
    /// For a frame of IPv6.
    #[must_use]
    pub fn identification(mut self, new: u16) -> Self {
        let Ip::V4 { identification, .. } = &mut self.ip else {
            panic!("IPv6 has a header of its own for fragments");
        };
        *identification = new;
        self
    }

    /// With this flags and fragment offset field.
    ///
    /// # Panics
    ///
    /// For a frame of IPv6.
    #[must_use]
    pub fn fragment(mut self, field: u16) -> Self {
        let Ip::V4 { fragment, .. } = &mut self.ip else {
            panic!("IPv6 has a header of its own for fragments");
        };
        *fragment = field;
        self
    }

    /// With IP options; their length is a multiple of four.
    ///
    /// # Panics
    ///
    /// For a frame of IPv6.
    #[must_use]
    pub fn options(mut self, new: &[u8]) -> Self {
        let Ip::V4 { options, .. } = &mut self.ip else {
            panic!("IPv6 has headers of their own for options");
        };
        *options = new.to_vec();
        self
    }

    /// With this traffic class and flow label.
    ///
    /// # Panics
    ///
    /// For a frame of IPv4.
    #[must_use]
    pub fn class_and_label(mut self, class: u8, label: u32) -> Self {
        let Ip::V6 {
            class_and_label, ..
        } = &mut self.ip
        else {
            panic!("IPv4 has no flow label");
        };
        *class_and_label = u32::from(class) << 20 | label;
        self
    }

    /// With one more header in front of what it carries.
    ///
    /// # Panics
    ///
    /// For a frame of IPv4.
    #[must_use]
    pub fn extension(mut self, extension: Extension) -> Self {
        let Ip::V6 { extensions, .. } = &mut self.ip else {
            panic!("IPv4 has no extension headers");
        };
        extensions.push(extension);
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

    /// The frame's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = [self.destination_mac, self.source_mac]
            .map(Mac::bytes)
            .concat();
        for (protocol, tci) in &self.tags {
            bytes.extend([*protocol, *tci].map(u16::to_be_bytes).concat());
        }
        let ethertype: u16 = match self.ip {
            Ip::V4 { .. } => 0x0800,
            Ip::V6 { .. } => 0x86dd,
        };
        bytes.extend(ethertype.to_be_bytes());
        [bytes, self.packet(), vec![0; self.padding]].concat()
    }

    /// As [`Self::bytes`], with the checksum as a kernel's stack leaves it to the interface: the sum of
    /// the pseudo-header, not inverted. Without padding.
    #[must_use]
    pub fn open_checksum(&self) -> Vec<u8> {
        let mut bytes = self.bytes();
        let length = self.segment().len();
        if let Some(place) = self.checksum_place() {
            let at = bytes.len() - length + place;
            let sum = !full(&[], self.ip.pseudo(self.protocol(), length)).get();
            bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        }
        bytes
    }

    /// What the frame carries: the IP packet.
    #[must_use]
    pub fn packet(&self) -> Vec<u8> {
        let segment = self.segment();
        let header = self.ip.header(self.ttl, self.protocol(), segment.len());
        [header, segment].concat()
    }

    const fn protocol(&self) -> u8 {
        match (&self.upper, &self.ip) {
            (Upper::Tcp { .. }, _) => number::TCP,
            (Upper::Udp { .. }, _) => number::UDP,
            (Upper::Icmp { .. }, Ip::V4 { .. }) => number::ICMP_V4,
            (Upper::Icmp { .. }, Ip::V6 { .. }) => number::ICMP,
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
            let pseudo = self.ip.pseudo(self.protocol(), segment.len());
            let checksum = match full(&segment, pseudo).get() {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::packet::{Decoded, check, flags::SYN_ONLY};

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
    fn built_messages_of_ipv4_pass_the_check_and_broken_ones_do_not() {
        for body in [&b""[..], b"odd", b"even"] {
            let message = icmp("10.0.0.1", "10.0.0.2", (8, 0), 0x1234_0001);
            let bytes = message.options(&[1, 1, 1, 1]).payload(body).bytes();
            assert_eq!(check(&bytes), Ok(()));
            let mut broken = bytes.clone();
            *broken.last_mut().expect("a byte") ^= 1;
            assert!(check(&broken).is_err(), "a changed byte");
        }
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
