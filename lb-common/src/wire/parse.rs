//! The headers of a frame, and whether they agree with its length.
//!
//! Assumes Ethernet without a VLAN tag. Does not verify checksums: a wrong one stays wrong through
//! an incremental update, so the receiver still sees it.

use network_types::ip::IpProto;

use super::{
    Chain, Packet,
    header::{ACK, Ethernet, Ipv4, Ipv6, RST, SYN, Tcp, Udp},
};
use crate::{addr::Be16, verdict::DropReason};

/// An IP packet of TCP or UDP whose layer-4 header is complete and inside the packet.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a, I> {
    /// The Ethernet header.
    pub ethernet: &'a Ethernet,
    /// The IP header.
    pub ip: &'a I,
    /// The layer-4 header.
    pub l4: L4<'a>,
    /// Where that begins, in bytes from the frame's first.
    pub at: usize,
    /// Bytes behind the layer-4 header, by the IP length; padding does not count.
    pub payload: u16,
}

/// A packet of IPv4.
pub type Ipv4Frame<'a> = Frame<'a, Ipv4>;
/// A packet of IPv6.
pub type Ipv6Frame<'a> = Frame<'a, Ipv6>;

/// An IP header, of whichever version.
pub trait Ip {
    /// Hops that are left.
    fn hops(&self) -> u8;
    /// Bytes of the packet, this header included.
    fn bytes(&self) -> u32;
}

impl Ip for Ipv4 {
    #[inline(always)]
    fn hops(&self) -> u8 {
        self.ttl.get()
    }

    #[inline(always)]
    fn bytes(&self) -> u32 {
        u32::from(self.total_length.get().get())
    }
}

impl Ip for Ipv6 {
    #[inline(always)]
    fn hops(&self) -> u8 {
        self.hop_limit.get()
    }

    #[inline(always)]
    fn bytes(&self) -> u32 {
        const HEADER: u32 = 40;
        HEADER + u32::from(self.payload_length.get().get())
    }
}

impl Ipv4Frame<'_> {
    /// Whether it is a TCP segment in one piece and without IP options, as every kernel sends them:
    /// what may go between a cell and its network.
    #[inline(always)]
    pub fn is_plain_tcp(&self) -> bool {
        matches!(self.l4, L4::Tcp(_))
            && !self.ip.is_fragment()
            && self.ip.header_bytes() == size_of::<Ipv4>()
    }
}

impl Ipv6Frame<'_> {
    /// As for IPv4: without extension headers.
    #[inline(always)]
    pub fn is_plain_tcp(&self) -> bool {
        matches!(self.l4, L4::Tcp(_)) && self.at == size_of::<Ethernet>() + size_of::<Ipv6>()
    }
}

impl<I> Frame<'_, I> {
    /// Whether it is a TCP segment.
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        matches!(self.l4, L4::Tcp(_))
    }

    /// Whether it is the first segment of a connection.
    #[inline(always)]
    pub fn asks(&self) -> bool {
        match self.l4 {
            L4::Tcp(tcp) => tcp.flags.get() & (SYN | ACK) == SYN,
            L4::Udp(_) => false,
        }
    }

    /// Whether it is the answer to that.
    #[inline(always)]
    pub fn answers(&self) -> bool {
        match self.l4 {
            L4::Tcp(tcp) => tcp.flags.get() & (SYN | ACK) == SYN | ACK,
            L4::Udp(_) => false,
        }
    }

    /// Whether it ends a connection at once.
    #[inline(always)]
    pub fn resets(&self) -> bool {
        matches!(self.l4, L4::Tcp(tcp) if tcp.flags.get() & RST != 0)
    }
}

/// The layer-4 header.
#[derive(Clone, Copy, Debug)]
pub enum L4<'a> {
    /// TCP.
    Tcp(&'a Tcp),
    /// UDP.
    Udp(&'a Udp),
}

impl L4<'_> {
    /// Source and destination port.
    #[inline(always)]
    pub fn ports(&self) -> (Be16, Be16) {
        match self {
            Self::Tcp(tcp) => (tcp.source.get(), tcp.destination.get()),
            Self::Udp(udp) => (udp.source.get(), udp.destination.get()),
        }
    }

    /// The IP protocol number.
    #[inline(always)]
    pub fn protocol(&self) -> u8 {
        match self {
            Self::Tcp(_) => IpProto::Tcp as u8,
            Self::Udp(_) => IpProto::Udp as u8,
        }
    }
}

/// More fragments, and the fragment offset (RFC 791 section 3.1).
pub(crate) const FRAGMENT_MASK: u16 = 0x3fff;
/// The fragment offset alone.
pub(crate) const OFFSET_MASK: u16 = 0x1fff;

/// The bytes of an IPv4 packet's header with its options, and of the whole packet.
///
/// # Errors
///
/// `Malformed` where they contradict each other or the frame.
#[inline(always)]
pub fn ipv4_lengths<P: Packet>(packet: &P, ip: &Ipv4) -> Result<(usize, usize), DropReason> {
    let header_bytes = ip.header_bytes();
    let total = usize::from(ip.total_length.get().get());
    let room = packet.len() - size_of::<Ethernet>();
    if ip.version_ihl.get() >> 4 != 4
        || header_bytes < size_of::<Ipv4>()
        || total < header_bytes
        || total > room
    {
        return Err(DropReason::Malformed);
    }
    Ok((header_bytes, total))
}

/// Parses the layers above `ethernet`, whose ethertype is IPv4. Of a fragmented datagram only the first
/// fragment can be parsed; its payload is what this fragment has of it.
///
/// # Errors
///
/// `Malformed` where a length lies, `UnsupportedProtocol` for anything but TCP and UDP, `Fragment` for
/// a fragment of that or one other than the first, `FragmentTiny` for a first one without the whole
/// layer-4 header, or one behind which no other can follow.
#[inline(always)]
pub fn parse_ipv4<'a, P: Packet>(
    packet: &'a P,
    ethernet: &'a Ethernet,
    ip: &'a Ipv4,
) -> Result<Ipv4Frame<'a>, DropReason> {
    let (header_bytes, total) = ipv4_lengths(packet, ip)?;
    let offset = size_of::<Ethernet>() + header_bytes;
    let room = total - header_bytes;
    let protocol = ip.protocol.get();
    let is_first = ip.is_fragment();
    if is_first {
        check_first(ip, room)?;
    }
    let (l4, payload) = layer4(packet, offset, room, protocol, is_first)?;
    Ok(Frame {
        ethernet,
        ip,
        l4,
        at: offset,
        payload,
    })
}

/// The bytes of an IPv6 packet behind its header.
///
/// # Errors
///
/// `Malformed` where they contradict the frame; also for a jumbogram (RFC 2675), whose length is 0.
#[inline(always)]
pub fn ipv6_length<P: Packet>(packet: &P, ip: &Ipv6) -> Result<usize, DropReason> {
    let payload = usize::from(ip.payload_length.get().get());
    let room = packet.len() - size_of::<Ethernet>();
    let version = ip.version_class_label.get().get() >> 28;
    if version != 6 || payload == 0 || size_of::<Ipv6>() + payload > room {
        return Err(DropReason::Malformed);
    }
    Ok(payload)
}

/// Parses the layers above `ethernet`, whose ethertype is IPv6, and behind whose header there is `chain`. Of
/// a fragmented datagram as for IPv4.
///
/// # Errors
///
/// As for IPv4; and `Malformed` for UDP without a checksum (RFC 8200 section 8.1).
#[inline(always)]
pub fn parse_ipv6<'a, P: Packet>(
    packet: &'a P,
    ethernet: &'a Ethernet,
    ip: &'a Ipv6,
    chain: Chain,
) -> Result<Ipv6Frame<'a>, DropReason> {
    let payload = ipv6_length(packet, ip)?;
    let room = payload
        .checked_sub(chain.bytes())
        .ok_or(DropReason::Malformed)?;
    let protocol = chain.protocol();
    let mut is_first = false;
    if chain.fragment_at().is_some() {
        let fragment = chain.fragment(packet).ok_or(DropReason::Malformed)?;
        if fragment.offset() != 0 {
            return Err(DropReason::Fragment);
        }
        // One that is the whole datagram is none (RFC 6946).
        is_first = fragment.more();
        if is_first {
            check_whole(protocol, room)?;
        }
    }
    let (l4, payload) = layer4(packet, chain.end(), room, protocol, is_first)?;
    if let L4::Udp(udp) = l4
        && udp.checksum.get().raw() == 0
    {
        return Err(DropReason::Malformed);
    }
    Ok(Frame {
        ethernet,
        ip,
        l4,
        at: chain.end(),
        payload,
    })
}

/// The layer-4 header at `offset` of a packet with `room` bytes from there on, and how many are behind it.
#[inline(always)]
fn layer4<P: Packet>(
    packet: &P,
    offset: usize,
    room: usize,
    protocol: u8,
    is_first: bool,
) -> Result<(L4<'_>, u16), DropReason> {
    let (l4, l4_bytes) = if protocol == IpProto::Tcp as u8 {
        let tcp = packet.header::<Tcp>(offset).ok_or(DropReason::Malformed)?;
        let bytes = usize::from(tcp.data_offset.get() >> 4) * 4;
        if bytes < size_of::<Tcp>() {
            return Err(DropReason::Malformed);
        }
        (L4::Tcp(tcp), bytes)
    } else if protocol == IpProto::Udp as u8 {
        let udp = packet.header::<Udp>(offset).ok_or(DropReason::Malformed)?;
        let length = usize::from(udp.length.get().get());
        if length < size_of::<Udp>() || length > room && !is_first {
            return Err(DropReason::Malformed);
        }
        (L4::Udp(udp), size_of::<Udp>())
    } else {
        return Err(DropReason::UnsupportedProtocol);
    };
    let Some(payload) = room.checked_sub(l4_bytes) else {
        return Err(if is_first {
            DropReason::FragmentTiny
        } else {
            DropReason::Malformed
        });
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most the 16-bit total length"
    )]
    let payload = payload as u16;
    Ok((l4, payload))
}

/// Whether a fragment with `room` bytes behind its IP header is the first one of a datagram, and whole by
/// [`check_whole`].
#[inline(always)]
fn check_first(ip: &Ipv4, room: usize) -> Result<(), DropReason> {
    if ip.is_later_fragment() {
        return Err(DropReason::Fragment);
    }
    check_whole(ip.protocol.get(), room)
}

/// Whether a first fragment with `room` bytes of `protocol` has the layer-4 header but for its options.
/// Ethernet padding behind a short one would look like it.
#[inline(always)]
fn check_whole(protocol: u8, room: usize) -> Result<(), DropReason> {
    let needed = if protocol == IpProto::Tcp as u8 {
        size_of::<Tcp>()
    } else {
        size_of::<Udp>()
    };
    if protocol != IpProto::Tcp as u8 && protocol != IpProto::Udp as u8 {
        Err(DropReason::Fragment)
    } else if room < needed || !room.is_multiple_of(8) {
        Err(DropReason::FragmentTiny)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {

    use super::{super::Slice, *};

    /// 14 bytes of Ethernet, 20 of IPv4, then `l4`; `total` as given.
    fn frame(protocol: u8, total: u16, l4: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0]);
        bytes.extend(total.to_be_bytes());
        bytes.extend([
            0, 1, 0x40, 0, 64, protocol, 0, 0, 192, 168, 203, 50, 192, 168, 203, 110,
        ]);
        bytes.extend(l4);
        bytes
    }

    fn parse(mut bytes: Vec<u8>) -> Result<(u8, u16, u16, u16), DropReason> {
        let packet = Slice::new(&mut bytes);
        let ethernet = packet.header::<Ethernet>(0).ok_or(DropReason::Malformed)?;
        let ip = packet.header::<Ipv4>(14).ok_or(DropReason::Malformed)?;
        let frame = parse_ipv4(&packet, ethernet, ip)?;
        let (source, destination) = frame.l4.ports();
        Ok((
            frame.l4.protocol(),
            source.get(),
            destination.get(),
            frame.payload,
        ))
    }

    fn tcp() -> Vec<u8> {
        let mut tcp = vec![0u8; 20];
        tcp[..4].copy_from_slice(&[0x9c, 0x40, 0x19, 0x2b]);
        tcp[12] = 5 << 4;
        tcp
    }

    #[test]
    fn a_tcp_segment_is_parsed_and_padding_is_no_payload() {
        assert_eq!(parse(frame(6, 40, &tcp())), Ok((6, 40000, 6443, 0)));
        let padded = [tcp(), vec![0; 6]].concat();
        assert_eq!(parse(frame(6, 40, &padded)), Ok((6, 40000, 6443, 0)));
        assert_eq!(parse(frame(6, 46, &padded)), Ok((6, 40000, 6443, 6)));
    }

    #[test]
    fn ip_options_move_the_layer_4_header() {
        let mut bytes = frame(6, 44, &[]);
        bytes[14] = 0x46;
        bytes.extend([1, 1, 1, 1]);
        bytes.extend(tcp());
        assert_eq!(parse(bytes), Ok((6, 40000, 6443, 0)));
    }

    #[test]
    fn lying_lengths_are_malformed() {
        let udp = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
        assert_eq!(parse(frame(17, 28, &udp)), Ok((17, 40000, 53, 0)));
        let cases: [(&str, Vec<u8>); 9] = [
            ("total length beyond the frame", frame(6, 41, &tcp())),
            ("total length below the header", frame(6, 19, &tcp())),
            ("total length cuts the TCP header", frame(6, 39, &tcp())),
            (
                "UDP length beyond the packet",
                frame(17, 28, &[0x9c, 0x40, 0, 53, 0, 9, 0, 0]),
            ),
            (
                "UDP length below its header",
                frame(17, 28, &[0x9c, 0x40, 0, 53, 0, 7, 0, 0]),
            ),
            ("header length below 20", {
                let mut bytes = frame(6, 40, &tcp());
                bytes[14] = 0x44;
                // Four bytes early there is a TCP header as well.
                bytes[42] = 5 << 4;
                bytes
            }),
            ("data offset beyond the packet", {
                let mut bytes = frame(6, 40, &tcp());
                bytes[46] = 6 << 4;
                bytes
            }),
            ("data offset below 20", {
                let mut bytes = frame(6, 40, &tcp());
                bytes[46] = 4 << 4;
                bytes
            }),
            ("another IP version", {
                let mut bytes = frame(6, 40, &tcp());
                bytes[14] = 0x65;
                bytes
            }),
        ];
        for (what, bytes) in cases {
            assert_eq!(parse(bytes), Err(DropReason::Malformed), "{what}");
        }
    }

    #[test]
    fn later_fragments_and_other_protocols_have_their_own_reasons() {
        let mut later = frame(6, 40, &tcp());
        later[21] = 1;
        assert_eq!(parse(later), Err(DropReason::Fragment));
        let mut icmp = frame(1, 28, &[8; 8]);
        assert_eq!(parse(icmp.clone()), Err(DropReason::UnsupportedProtocol));
        icmp[20] = 0x20;
        assert_eq!(parse(icmp), Err(DropReason::Fragment));
    }

    #[test]
    fn a_first_fragment_is_parsed_if_it_has_the_whole_header() {
        let padded = |protocol, l4: &[u8], padding: u8| {
            let total = u16::try_from(20 + l4.len()).unwrap();
            let mut bytes = frame(protocol, total, l4);
            bytes[20] = 0x20;
            bytes.extend([padding; 40]);
            parse(bytes)
        };
        // Padding is no part of it, whatever it looks like.
        let first = |protocol, l4: &[u8]| {
            let parsed = padded(protocol, l4, 0x50);
            assert_eq!(padded(protocol, l4, 0), parsed);
            parsed
        };
        let tiny = Err(DropReason::FragmentTiny);
        let mut segment = [tcp(), vec![7; 28]].concat();
        assert_eq!(first(6, &segment[..24]), Ok((6, 40000, 6443, 4)));
        assert_eq!(first(6, &segment), Ok((6, 40000, 6443, 28)));
        for length in [0, 8, 16, 20, 23, 25] {
            assert_eq!(first(6, &segment[..length]), tiny, "{length} bytes");
        }
        segment[12] = 8 << 4;
        assert_eq!(first(6, &segment[..24]), tiny, "options in the next one");
        assert_eq!(first(6, &segment[..32]), Ok((6, 40000, 6443, 0)));
        segment[12] = 4 << 4;
        assert_eq!(first(6, &segment[..32]), Err(DropReason::Malformed));
        // The length of a UDP datagram goes on in the other fragments.
        let udp = [0x9c, 0x40, 0, 53, 5, 200, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(first(17, &udp), Ok((17, 40000, 53, 8)));
        assert_eq!(first(17, &udp[..8]), Ok((17, 40000, 53, 0)));
        assert_eq!(first(17, &udp[..12]), tiny);
        let lying = [0x9c, 0x40, 0, 53, 0, 7, 0, 0];
        assert_eq!(first(17, &lying), Err(DropReason::Malformed));
    }

    #[test]
    fn every_truncation_has_an_answer() {
        let whole = frame(6, 40, &tcp());
        for length in 0..whole.len() {
            assert_eq!(
                parse(whole[..length].to_vec()),
                Err(DropReason::Malformed),
                "{length}"
            );
        }
    }

    /// 14 bytes of Ethernet, 40 of IPv6 whose payload is `behind`, the first header of which is `next`.
    fn frame6(next: u8, behind: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from([
            2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0,
        ]);
        bytes.extend(u16::try_from(behind.len()).unwrap().to_be_bytes());
        bytes.extend([next, 64]);
        bytes.extend([0xfd; 32]);
        bytes.extend(behind);
        bytes
    }

    fn parse6(mut bytes: Vec<u8>) -> Result<(u8, u16, u16, u16), DropReason> {
        let packet = Slice::new(&mut bytes);
        let ethernet = packet.header::<Ethernet>(0).ok_or(DropReason::Malformed)?;
        let ip = packet.header::<Ipv6>(14).ok_or(DropReason::Malformed)?;
        let chain = Chain::walk(&packet, ip)?;
        let frame = parse_ipv6(&packet, ethernet, ip, chain)?;
        assert_eq!(frame.at, chain.end());
        assert_eq!(
            (frame.ip.hops(), chain.protocol()),
            (64, frame.l4.protocol())
        );
        let (source, destination) = frame.l4.ports();
        Ok((
            frame.l4.protocol(),
            source.get(),
            destination.get(),
            frame.payload,
        ))
    }

    const UDP: [u8; 8] = [0x9c, 0x40, 0, 53, 0, 8, 1, 2];

    /// A fragment header before `next`.
    fn piece(next: u8, field: u16) -> [u8; 8] {
        let [high, low] = field.to_be_bytes();
        [next, 0, high, low, 1, 2, 3, 4]
    }

    #[test]
    fn a_packet_of_ipv6_is_parsed_and_padding_is_no_payload() {
        let padded = [frame6(6, &tcp()), vec![0; 6]].concat();
        assert_eq!(parse6(padded), Ok((6, 40000, 6443, 0)));
        let long = [tcp(), vec![0; 6]].concat();
        assert_eq!(parse6(frame6(6, &long)), Ok((6, 40000, 6443, 6)));
        assert_eq!(parse6(frame6(17, &UDP)), Ok((17, 40000, 53, 0)));
        let mut bytes = frame6(17, &UDP);
        let packet = Slice::new(&mut bytes);
        assert_eq!(packet.header::<Ipv6>(14).unwrap().bytes(), 48);
    }

    #[test]
    fn extension_headers_move_the_layer_4_header() {
        let options = [6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let extended = [&options[..], &tcp(), &[1, 2, 3]].concat();
        assert_eq!(parse6(frame6(60, &extended)), Ok((6, 40000, 6443, 3)));
        let plain = |bytes: &mut Vec<u8>| {
            let packet = Slice::new(bytes);
            let ip = packet.header(14).unwrap();
            let chain = Chain::walk(&packet, ip).unwrap();
            let ethernet = packet.header(0).unwrap();
            parse_ipv6(&packet, ethernet, ip, chain)
                .unwrap()
                .is_plain_tcp()
        };
        assert!(plain(&mut frame6(6, &tcp())) && !plain(&mut frame6(17, &UDP)));
        assert!(!plain(&mut frame6(60, &extended)));
    }

    #[test]
    fn lying_lengths_are_malformed_in_ipv6() {
        let options = [6, 0, 1, 4, 0, 0, 0, 0];
        let extended = frame6(60, &[&options[..], &tcp()].concat());
        let cases: [(&str, Vec<u8>, usize, u8); 12] = [
            ("payload beyond the frame", frame6(6, &tcp()), 19, 21),
            ("a jumbogram", frame6(6, &tcp()), 19, 0),
            ("payload cuts the TCP header", frame6(6, &tcp()), 19, 19),
            ("payload ends before the chain", extended.clone(), 19, 7),
            ("payload ends with the chain", extended.clone(), 19, 8),
            (
                "payload cuts what is behind the chain",
                extended.clone(),
                19,
                27,
            ),
            ("the chain goes beyond the packet", extended, 55, 3),
            ("UDP length beyond the packet", frame6(17, &UDP), 59, 9),
            ("UDP length below its header", frame6(17, &UDP), 59, 7),
            (
                "data offset beyond the packet",
                frame6(6, &tcp()),
                66,
                6 << 4,
            ),
            ("data offset below 20", frame6(6, &tcp()), 66, 4 << 4),
            ("another IP version", frame6(6, &tcp()), 14, 0x45),
        ];
        for (what, mut bytes, at, value) in cases {
            bytes[at] = value;
            assert_eq!(parse6(bytes), Err(DropReason::Malformed), "{what}");
        }
    }

    #[test]
    fn udp_over_ipv6_has_a_checksum() {
        let bare = [0x9c, 0x40, 0, 53, 0, 8, 0, 0];
        assert_eq!(parse6(frame6(17, &bare)), Err(DropReason::Malformed));
        let first = [&piece(17, 1)[..], &bare].concat();
        assert_eq!(parse6(frame6(44, &first)), Err(DropReason::Malformed));
    }

    #[test]
    fn other_protocols_and_later_fragments_of_ipv6_have_their_own_reasons() {
        for protocol in [1, 50, 51, 58, 59, 132] {
            let found = parse6(frame6(protocol, &[8; 64]));
            assert_eq!(found, Err(DropReason::UnsupportedProtocol), "{protocol}");
        }
        let behind =
            |field, next, l4: &[u8]| parse6(frame6(44, &[&piece(next, field)[..], l4].concat()));
        assert_eq!(behind(8, 6, &tcp()), Err(DropReason::Fragment));
        assert_eq!(behind(0xfff8, 17, &UDP), Err(DropReason::Fragment));
        assert_eq!(behind(1, 58, &[0; 16]), Err(DropReason::Fragment));
        assert_eq!(
            behind(0, 58, &[0; 16]),
            Err(DropReason::UnsupportedProtocol)
        );
    }

    #[test]
    fn a_fragment_that_is_the_whole_packet_is_none() {
        let behind =
            |field, next, l4: &[u8]| parse6(frame6(44, &[&piece(next, field)[..], l4].concat()));
        let segment = [tcp(), vec![7; 3]].concat();
        assert_eq!(behind(0, 6, &segment), Ok((6, 40000, 6443, 3)));
        assert_eq!(
            behind(6, 6, &segment),
            Ok((6, 40000, 6443, 3)),
            "reserved bits"
        );
        assert_eq!(behind(0, 17, &UDP), Ok((17, 40000, 53, 0)));
        let long = [0x9c, 0x40, 0, 53, 0, 9, 1, 2];
        assert_eq!(
            behind(0, 17, &long),
            Err(DropReason::Malformed),
            "no others follow"
        );
    }

    #[test]
    fn a_first_fragment_of_ipv6_is_parsed_if_it_has_the_whole_header() {
        let first = |next, l4: &[u8]| {
            let padded = |padding: u8| {
                let mut bytes = frame6(44, &[&piece(next, 1)[..], l4].concat());
                bytes.extend([padding; 40]);
                parse6(bytes)
            };
            // Padding is no part of it, whatever it looks like.
            assert_eq!(padded(0x50), padded(0));
            padded(0)
        };
        let tiny = Err(DropReason::FragmentTiny);
        let mut segment = [tcp(), vec![7; 28]].concat();
        assert_eq!(first(6, &segment[..24]), Ok((6, 40000, 6443, 4)));
        for length in [0, 8, 16, 20, 23, 25] {
            assert_eq!(first(6, &segment[..length]), tiny, "{length} bytes");
        }
        segment[12] = 8 << 4;
        assert_eq!(first(6, &segment[..24]), tiny, "options in the next one");
        let udp = [0x9c, 0x40, 0, 53, 5, 200, 1, 2, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(first(17, &udp), Ok((17, 40000, 53, 8)));
        assert_eq!(first(17, &udp[..12]), tiny);
    }

    #[test]
    fn every_truncation_of_ipv6_has_an_answer() {
        let extended = [&piece(6, 0)[..], &tcp()].concat();
        for whole in [frame6(6, &tcp()), frame6(44, &extended)] {
            for length in 0..whole.len() {
                let found = parse6(whole[..length].to_vec());
                assert_eq!(found, Err(DropReason::Malformed), "{length}");
            }
        }
    }
}
