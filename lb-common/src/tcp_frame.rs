//! Whole TCP frames without data, for what XDP cannot do because it has no timer: resets
//! of flows that ended, and keepalive probes. Over IPv4, or over IPv6 (RFC 8200).

use core::net::IpAddr;

use network_types::{eth::EtherType, ip::IpProto};

use crate::{
    addr::{Be16, Be32, Be128, Mac},
    reject::v4::{ReplyAddresses, write_ip},
    wire::{
        Packet as _, Slice, Tag,
        checksum::Sum,
        header::{Ethernet, Ipv4, Ipv6, TaggedEthernet, Tcp},
    },
};

const TCP_BYTES: u16 = 20;
/// The longest frame.
const MAX_FRAME: usize = size_of::<TaggedEthernet>() + size_of::<Ipv6>() + size_of::<Tcp>();
const _: () = assert!(size_of::<Tcp>() == TCP_BYTES as usize);

/// Hops of an IPv6 packet, as of an IPv4 one.
const HOP_LIMIT: u8 = 64;

/// Source and destination, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentAddresses {
    /// Over IPv4.
    V4 {
        /// Source address.
        from: Be32,
        /// Destination address.
        to: Be32,
    },
    /// Over IPv6.
    V6 {
        /// Source address.
        from: Be128,
        /// Destination address.
        to: Be128,
    },
}

impl Default for SegmentAddresses {
    fn default() -> Self {
        let none = Be32::new(0);
        Self::V4 {
            from: none,
            to: none,
        }
    }
}

impl SegmentAddresses {
    /// From one address to another; none if one is of IPv4 and the other of IPv6.
    pub fn new(from: IpAddr, to: IpAddr) -> Option<Self> {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => Some(Self::V4 {
                from: from.into(),
                to: to.into(),
            }),
            (IpAddr::V6(from), IpAddr::V6(to)) => Some(Self::V6 {
                from: from.into(),
                to: to.into(),
            }),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }

    const fn header_bytes(&self) -> usize {
        match self {
            Self::V4 { .. } => size_of::<Ipv4>(),
            Self::V6 { .. } => size_of::<Ipv6>(),
        }
    }

    const fn ethertype(&self) -> Be16 {
        Be16::from_raw(match self {
            Self::V4 { .. } => EtherType::Ipv4 as u16,
            Self::V6 { .. } => EtherType::Ipv6 as u16,
        })
    }

    /// The sum of the pseudo-header of a bare segment (RFC 9293 section 3.1, RFC 8200 section 8.1).
    fn pseudo_header(&self) -> Sum {
        let sum = Sum::default()
            .add16(Be16::new(u16::from(IpProto::Tcp as u8)))
            .add16(Be16::new(TCP_BYTES));
        match self {
            Self::V4 { from, to } => sum.add32(*from).add32(*to),
            Self::V6 { from, to } => sum.add128(*from).add128(*to),
        }
    }
}

/// A TCP segment without data and options, and the way it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BareSegment {
    /// MAC of the NIC that it leaves by.
    pub source_mac: Mac,
    /// MAC of the next hop.
    pub destination_mac: Mac,
    /// 802.1Q VLAN id, 0 for an untagged frame.
    pub vlan: u16,
    /// Source and destination.
    pub addresses: SegmentAddresses,
    /// Source port.
    pub source_port: Be16,
    /// Destination port.
    pub destination_port: Be16,
    /// Sequence number.
    pub sequence: Be32,
    /// Acknowledgment number.
    pub acknowledgment: Be32,
    /// The TCP flags.
    pub flags: u8,
    /// Receive window, unscaled.
    pub window: u16,
}

/// The bytes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameBytes {
    bytes: [u8; MAX_FRAME],
    length: usize,
}

impl AsRef<[u8]> for FrameBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

impl BareSegment {
    /// The frame, with right checksums.
    pub fn frame(&self) -> FrameBytes {
        let mut bytes = [0; MAX_FRAME];
        // The buffer has room for every header, so there is always a frame.
        let written = self.write(&Slice::new(&mut bytes));
        debug_assert!(written.is_some(), "a header beyond the end of the frame");
        let length = written.unwrap_or_default();
        FrameBytes { bytes, length }
    }

    /// Writes the headers; how many bytes they have.
    fn write(&self, frame: &Slice<'_>) -> Option<usize> {
        let ethernet: &Ethernet = frame.header(0)?;
        ethernet.destination.set(self.destination_mac);
        ethernet.source.set(self.source_mac);
        let ethertype = self.addresses.ethertype();
        let ip_at = if self.vlan == 0 {
            ethernet.ethertype.set(ethertype);
            size_of::<Ethernet>()
        } else {
            let tagged: &TaggedEthernet = frame.header(0)?;
            let tag = Tag::of(self.vlan);
            tagged.protocol.set(tag.protocol);
            tagged.tci.set(tag.tci);
            tagged.ethertype.set(ethertype);
            size_of::<TaggedEthernet>()
        };
        match self.addresses {
            SegmentAddresses::V4 { from, to } => {
                let ip: &Ipv4 = frame.header(ip_at)?;
                write_ip(
                    ip,
                    ReplyAddresses { from, to },
                    TCP_BYTES,
                    IpProto::Tcp as u8,
                );
            }
            SegmentAddresses::V6 { from, to } => write_ipv6(frame.header(ip_at)?, from, to),
        }
        let tcp_at = ip_at.checked_add(self.addresses.header_bytes())?;
        self.write_tcp(frame.header(tcp_at)?);
        tcp_at.checked_add(size_of::<Tcp>())
    }

    fn write_tcp(&self, tcp: &Tcp) {
        let window = Be16::new(self.window);
        tcp.source.set(self.source_port);
        tcp.destination.set(self.destination_port);
        tcp.sequence.set(self.sequence);
        tcp.acknowledgment.set(self.acknowledgment);
        tcp.data_offset.set(5 << 4);
        tcp.flags.set(self.flags);
        tcp.window.set(window);
        tcp.urgent.set(Be16::default());
        let sum = self
            .addresses
            .pseudo_header()
            .add16(self.source_port)
            .add16(self.destination_port)
            .add32(self.sequence)
            .add32(self.acknowledgment)
            .add16(Be16::new(5 << 12 | u16::from(self.flags)))
            .add16(window);
        tcp.checksum.set(sum.checksum());
    }
}

/// Writes the IPv6 header of a bare segment (RFC 8200 section 3), without traffic class or flow label.
fn write_ipv6(ip: &Ipv6, from: Be128, to: Be128) {
    ip.version_class_label.set(Be32::new(6 << 28));
    ip.payload_length.set(Be16::new(TCP_BYTES));
    ip.next_header.set(IpProto::Tcp as u8);
    ip.hop_limit.set(HOP_LIMIT);
    ip.source.set(from);
    ip.destination.set(to);
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::wire::{
        Chain, L4,
        checksum::{full, pseudo_header},
        header::{ACK, RST},
        parse_ipv4, parse_ipv6,
    };

    fn reset(vlan: u16) -> BareSegment {
        BareSegment {
            source_mac: Mac::new([2, 0, 0, 0, 0, 1]),
            destination_mac: Mac::new([2, 0, 0, 0, 0, 2]),
            vlan,
            addresses: SegmentAddresses::V4 {
                from: Ipv4Addr::new(192, 168, 203, 110).into(),
                to: Ipv4Addr::new(192, 168, 203, 50).into(),
            },
            source_port: Be16::new(6443),
            destination_port: Be16::new(40000),
            sequence: Be32::new(0xffff_fff0),
            acknowledgment: Be32::new(1000),
            flags: RST | ACK,
            window: 0,
        }
    }

    const VIP: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0xcb, 0, 0, 0, 0x110);
    const CLIENT: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, 7);

    fn reset_over_ipv6(vlan: u16) -> BareSegment {
        BareSegment {
            addresses: SegmentAddresses::V6 {
                from: VIP.into(),
                to: CLIENT.into(),
            },
            ..reset(vlan)
        }
    }

    #[test]
    fn every_byte_of_a_reset_over_ipv6() {
        let frame = reset_over_ipv6(0).frame();
        let bytes = frame.as_ref();
        assert_eq!(
            bytes[..14],
            [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]
        );
        assert_eq!(bytes[14..22], [0x60, 0, 0, 0, 0, 20, 6, 64]);
        assert_eq!(bytes[22..38], VIP.octets());
        assert_eq!(bytes[38..54], CLIENT.octets());
        let over_ipv4 = reset(0).frame();
        assert_eq!(
            bytes[54..70],
            over_ipv4.as_ref()[34..50],
            "up to the window"
        );
        assert_eq!(bytes[72..], [0, 0], "urgent pointer, and nothing behind it");
        // By hand: the words of both addresses, length and next header.
        let words = bytes[54..70].chunks(2);
        let words = words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        let sum = words.sum::<u32>() + 2 * 0xfd00 + 0xcb + 0x110 + 0x1c + 20 + 6;
        let sum = (sum >> 16) + (sum & 0xffff);
        let checksum = !u16::try_from((sum >> 16) + (sum & 0xffff)).unwrap();
        assert_eq!(bytes[70..72], checksum.to_be_bytes());
        let tagged = reset_over_ipv6(2003).frame();
        let tagged = tagged.as_ref();
        assert_eq!(tagged[..12], bytes[..12]);
        assert_eq!(tagged[12..16], [0x81, 0, 0x07, 0xd3]);
        assert_eq!(tagged[16..], bytes[12..]);
    }

    #[test]
    fn nobody_sends_from_one_family_to_the_other() {
        let one: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        let other: IpAddr = VIP.into();
        assert_eq!(SegmentAddresses::new(one, other), None);
        assert_eq!(SegmentAddresses::new(other, one), None);
        let wanted = SegmentAddresses::V6 {
            from: VIP.into(),
            to: CLIENT.into(),
        };
        assert_eq!(SegmentAddresses::new(other, CLIENT.into()), Some(wanted));
        assert!(matches!(
            SegmentAddresses::new(one, one),
            Some(SegmentAddresses::V4 { .. })
        ));
    }

    #[test]
    fn every_byte_of_a_reset() {
        let frame = reset(0).frame();
        let bytes = frame.as_ref();
        assert_eq!(bytes[..14], [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        assert_eq!(bytes[14..24], [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6]);
        assert_eq!(bytes[26..34], [192, 168, 203, 110, 192, 168, 203, 50]);
        assert_eq!(bytes[34..38], [0x19, 0x2b, 0x9c, 0x40], "ports");
        assert_eq!(bytes[38..42], [0xff, 0xff, 0xff, 0xf0], "sequence");
        assert_eq!(bytes[42..46], [0, 0, 3, 0xe8], "acknowledgment");
        assert_eq!(bytes[46..50], [0x50, 0x14, 0, 0], "flags, window");
        assert_eq!(bytes[52..], [0, 0], "urgent pointer, and nothing behind it");
    }

    #[test]
    fn a_tag_stands_between_the_addresses_and_the_type() {
        let (tagged, untagged) = (reset(2003).frame(), reset(0).frame());
        let (tagged, untagged) = (tagged.as_ref(), untagged.as_ref());
        assert_eq!(tagged[..12], untagged[..12]);
        assert_eq!(tagged[12..16], [0x81, 0, 0x07, 0xd3]);
        assert_eq!(tagged[16..], untagged[12..]);
    }

    #[test]
    fn the_checksums_are_those_of_the_whole_frame() {
        let mut state = 1u32;
        for round in 0..10_000 {
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state
            };
            let low = |random: u32| u16::try_from(random >> 16).unwrap();
            let segment = BareSegment {
                addresses: SegmentAddresses::V4 {
                    from: Be32::new(next()),
                    to: Be32::new(next()),
                },
                source_port: Be16::new(low(next())),
                destination_port: Be16::new(low(next())),
                sequence: Be32::new(next()),
                acknowledgment: Be32::new(next()),
                flags: if round % 2 == 0 { ACK } else { RST | ACK },
                window: low(next()),
                ..reset(0)
            };
            let frame = segment.frame();
            let bytes = frame.as_ref();
            assert_eq!(full(&bytes[14..34], 0).raw(), 0, "IP checksum");
            let SegmentAddresses::V4 { from, to } = segment.addresses else {
                panic!("not IPv4");
            };
            let pseudo = pseudo_header(from, to, 6, 20);
            assert_eq!(full(&bytes[34..], pseudo).raw(), 0, "TCP checksum");
            let over_ipv6 = BareSegment {
                addresses: SegmentAddresses::V6 {
                    from: Be128::from_raw([(); 4].map(|()| next())),
                    to: Be128::from_raw([(); 4].map(|()| next())),
                },
                ..segment
            };
            let frame = over_ipv6.frame();
            let bytes = frame.as_ref();
            // The pseudo-header of RFC 8200 section 8.1: addresses, length, zeros, next header.
            let mut pseudo = bytes[22..54].to_vec();
            pseudo.extend([0, 0, 0, 20, 0, 0, 0, 6]);
            let whole = [&pseudo, &bytes[54..]].concat();
            assert_eq!(full(&whole, 0).raw(), 0, "TCP checksum over IPv6");
        }
    }

    #[test]
    fn the_parser_of_ipv6_reads_what_was_written() {
        let segment = reset_over_ipv6(0);
        let mut bytes = segment.frame().as_ref().to_vec();
        let packet = Slice::new(&mut bytes);
        let ethernet: &Ethernet = packet.header(0).unwrap();
        let ip: &Ipv6 = packet.header(14).unwrap();
        let chain = Chain::walk(&packet, ip).unwrap();
        let parsed = parse_ipv6(&packet, ethernet, ip, chain).unwrap();
        assert_eq!((parsed.payload, parsed.l4.protocol()), (0, 6));
        assert_eq!(parsed.l4.ports(), (Be16::new(6443), Be16::new(40000)));
        assert_eq!(parsed.ip.source.get(), VIP.into());
        assert_eq!(parsed.ip.destination.get(), CLIENT.into());
        assert_eq!(parsed.ip.hop_limit.get(), 64);
    }

    #[test]
    fn the_parser_reads_what_was_written() {
        let segment = BareSegment {
            window: 512,
            ..reset(0)
        };
        let mut bytes = segment.frame().as_ref().to_vec();
        let packet = Slice::new(&mut bytes);
        let ethernet: &Ethernet = packet.header(0).unwrap();
        let parsed = parse_ipv4(&packet, ethernet, packet.header(14).unwrap()).unwrap();
        let L4::Tcp(tcp) = parsed.l4 else {
            panic!("not TCP");
        };
        assert_eq!(parsed.payload, 0);
        assert_eq!(tcp.sequence.get(), segment.sequence);
        assert_eq!(tcp.acknowledgment.get(), segment.acknowledgment);
        assert_eq!((tcp.flags.get(), tcp.window.get().get()), (RST | ACK, 512));
    }
}
