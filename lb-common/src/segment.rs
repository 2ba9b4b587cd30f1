//! segment: whole TCP frames without data, for what XDP cannot do because it has no timer: resets
//! of flows that ended, and keepalive probes.

use network_types::{eth::EtherType, ip::IpProto};

use crate::{
    addr::{Be16, Be32, Mac},
    answer::{Ends, write_ip},
    wire::{
        Packet as _, Slice, Tag,
        checksum::Sum,
        header::{Ethernet, Ipv4, TaggedEthernet, Tcp},
    },
};

const TCP_BYTES: u16 = 20;
const UNTAGGED: usize = size_of::<Ethernet>() + size_of::<Ipv4>() + size_of::<Tcp>();
const TAGGED: usize = size_of::<TaggedEthernet>() + size_of::<Ipv4>() + size_of::<Tcp>();
const _: () = assert!(size_of::<Tcp>() == TCP_BYTES as usize);

/// A TCP segment without data and options, and the way it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BareSegment {
    /// MAC of the NIC that it leaves by.
    pub source_mac: Mac,
    /// MAC of the next hop.
    pub destination_mac: Mac,
    /// 802.1Q VLAN id, 0 for an untagged frame.
    pub vlan: u16,
    /// Source address.
    pub source: Be32,
    /// Destination address.
    pub destination: Be32,
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
pub struct Frame {
    bytes: [u8; TAGGED],
    length: usize,
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }
}

impl BareSegment {
    /// The frame, with right checksums.
    pub fn frame(&self) -> Frame {
        let length = if self.vlan == 0 { UNTAGGED } else { TAGGED };
        let mut bytes = [0; TAGGED];
        // The buffer has room for every header, so there is always a frame.
        let written = self.write(&Slice::new(&mut bytes), length);
        debug_assert!(written.is_some(), "a header beyond the end of the frame");
        Frame { bytes, length }
    }

    fn write(&self, frame: &Slice<'_>, length: usize) -> Option<()> {
        let ethernet: &Ethernet = frame.header(0)?;
        ethernet.destination.set(self.destination_mac);
        ethernet.source.set(self.source_mac);
        let ethertype = Be16::from_raw(EtherType::Ipv4 as u16);
        if self.vlan == 0 {
            ethernet.ethertype.set(ethertype);
        } else {
            let tagged: &TaggedEthernet = frame.header(0)?;
            let tag = Tag::of(self.vlan);
            tagged.protocol.set(tag.protocol);
            tagged.tci.set(tag.tci);
            tagged.ethertype.set(ethertype);
        }
        let tcp_at = length.checked_sub(size_of::<Tcp>())?;
        let ip: &Ipv4 = frame.header(tcp_at.checked_sub(size_of::<Ipv4>())?)?;
        let ends = Ends {
            from: self.source,
            to: self.destination,
        };
        write_ip(ip, ends, TCP_BYTES, IpProto::Tcp as u8);
        self.write_tcp(frame.header(tcp_at)?);
        Some(())
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
        let sum = Sum::default()
            .add32(self.source)
            .add32(self.destination)
            .add16(Be16::new(u16::from(IpProto::Tcp as u8)))
            .add16(Be16::new(TCP_BYTES))
            .add16(self.source_port)
            .add16(self.destination_port)
            .add32(self.sequence)
            .add32(self.acknowledgment)
            .add16(Be16::new(5 << 12 | u16::from(self.flags)))
            .add16(window);
        tcp.checksum.set(sum.checksum());
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::wire::{
        L4,
        checksum::{full, pseudo_header},
        header::{ACK, RST},
        parse_ipv4,
    };

    fn reset(vlan: u16) -> BareSegment {
        BareSegment {
            source_mac: Mac::new([2, 0, 0, 0, 0, 1]),
            destination_mac: Mac::new([2, 0, 0, 0, 0, 2]),
            vlan,
            source: Ipv4Addr::new(192, 168, 203, 110).into(),
            destination: Ipv4Addr::new(192, 168, 203, 50).into(),
            source_port: Be16::new(6443),
            destination_port: Be16::new(40000),
            sequence: Be32::new(0xffff_fff0),
            acknowledgment: Be32::new(1000),
            flags: RST | ACK,
            window: 0,
        }
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
                source: Be32::new(next()),
                destination: Be32::new(next()),
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
            let pseudo = pseudo_header(segment.source, segment.destination, 6, 20);
            assert_eq!(full(&bytes[34..], pseudo).raw(), 0, "TCP checksum");
        }
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
