//! As for IPv4: a frame that cannot be served becomes the refusal of its own sender.
//!
//! Answers have no extension headers, whatever the frame had. They share the rate of those of IPv4.

use network_types::ip::IpProto;

use crate::{
    addr::{Be16, Be32},
    reject::v4::{Reset, TCP_BYTES, TTL, pseudo},
    wire::{
        Ipv6Frame, L4, Packet,
        checksum::Sum,
        header::{Ethernet, Icmp, Ipv6, RST, Tcp},
    },
};

/// Bytes that an ICMPv6 error adds in front of the packet that it quotes.
pub const ICMP6_BYTES: usize = size_of::<Ipv6>() + size_of::<Icmp>();
/// Bytes of the frame of a reset.
pub const RESET6_BYTES: usize = HEADERS + size_of::<Tcp>();

/// Where an answer's layer 4 begins, in bytes from the frame's first.
const HEADERS: usize = size_of::<Ethernet>() + size_of::<Ipv6>();

/// Bytes that an error quotes of a packet that may be short: the IPv6 header and eight bytes.
const MIN_QUOTE: usize = size_of::<Ipv6>() + 8;
/// Bytes that "too big" quotes: such a packet has them, whatever extension headers we carry for it. More
/// would be better (RFC 4443 section 3.2), but no host needs it, and it has to be summed.
const MAX_QUOTE: usize = 128;
/// Most bytes of extension headers, so that [`MAX_QUOTE`] has eight bytes of layer 4 behind them.
const MAX_EXTENSIONS: usize = MAX_QUOTE - MIN_QUOTE;

/// The error of an ICMPv6 message (RFC 4443 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp6Error {
    kind: u8,
    code: u8,
    rest: Be32,
}

impl Icmp6Error {
    /// No socket listens on the port. The one that makes a socket fail at once.
    pub const PORT_UNREACHABLE: Self = Self::new(1, 4, 0);
    /// The hop limit was used up on the way.
    pub const TIME_EXCEEDED: Self = Self::new(3, 0, 0);

    /// The way on carries this many bytes, and no router on it cuts a packet (RFC 8201).
    #[inline(always)]
    pub const fn too_big(mtu: u32) -> Self {
        Self::new(TOO_BIG, 0, mtu)
    }

    #[inline(always)]
    const fn new(kind: u8, code: u8, rest: u32) -> Self {
        Self {
            kind,
            code,
            rest: Be32::new(rest),
        }
    }

    /// Bytes of the frame that [`error`] makes of this error: what is behind them is to be cut off.
    #[inline(always)]
    pub const fn frame_bytes(self) -> usize {
        size_of::<Ethernet>() + ICMP6_BYTES + self.quoted()
    }

    /// Bytes that it quotes.
    #[inline(always)]
    const fn quoted(self) -> usize {
        if self.kind == TOO_BIG {
            MAX_QUOTE
        } else {
            MIN_QUOTE
        }
    }
}

/// The type of "packet too big".
const TOO_BIG: u8 = 2;

/// Turns a TCP segment into the reset of its sender (RFC 9293 section 3.10.7.1), in the first
/// [`RESET6_BYTES`] of the frame. `None` for a reset, and for UDP.
#[inline(always)]
pub fn reset<P: Packet>(packet: &P, frame: &Ipv6Frame<'_>) -> Option<()> {
    let reset = Reset::of(frame)?;
    if !is_from_one(frame) {
        return None;
    }
    let (us, sender) = (
        frame.ethernet.destination.get(),
        frame.ethernet.source.get(),
    );
    frame.ethernet.destination.set(sender);
    frame.ethernet.source.set(us);
    let ip = frame.ip;
    let (us, sender) = (ip.destination.get(), ip.source.get());
    ip.source.set(us);
    ip.destination.set(sender);
    write_ip(ip, TCP_BYTES, IpProto::Tcp as u8);
    let addresses = Sum::default().add128(us).add128(sender);
    // Where extension headers stood there may be none now.
    reset.write(packet.header(HEADERS)?, addresses);
    Some(())
}

/// Leaves the checksum of the reset that [`reset`] has made open, as `answer::reopen`.
#[inline(always)]
pub fn reopen<P: Packet>(packet: &P) -> Option<()> {
    let ip: &Ipv6 = packet.header(size_of::<Ethernet>())?;
    let tcp: &Tcp = packet.header(HEADERS)?;
    let addresses = Sum::default()
        .add128(ip.source.get())
        .add128(ip.destination.get());
    tcp.checksum.set(pseudo(addresses).open());
    Some(())
}

/// Writes all but the addresses of the header of a packet of ours.
#[inline(always)]
fn write_ip(ip: &Ipv6, payload: u16, protocol: u8) {
    ip.version_class_label.set(Be32::new(6 << 28));
    ip.payload_length.set(Be16::new(payload));
    ip.next_header.set(protocol);
    ip.hop_limit.set(TTL);
}

/// Whether a frame comes from one station, and from an address that one may have.
#[inline(always)]
fn is_from_one(frame: &Ipv6Frame<'_>) -> bool {
    !frame.ethernet.source.get().is_group() && !frame.ip.source.get().is_bogon()
}

/// Whether a frame can be answered by [`error()`] with this error (RFC 4443 section 2.4). A reset is never
/// answered; what has extension headers only if it is too big, because then it is long enough.
#[inline(always)]
pub fn is_quotable(frame: &Ipv6Frame<'_>, error: Icmp6Error) -> bool {
    let is_reset = matches!(frame.l4, L4::Tcp(tcp) if tcp.flags.get() & RST != 0);
    let most = if error.kind == TOO_BIG {
        MAX_EXTENSIONS
    } else {
        0
    };
    let length = size_of::<Ipv6>() + usize::from(frame.ip.payload_length.get().get());
    !is_reset && is_from_one(frame) && frame.at <= HEADERS + most && length >= error.quoted()
}

/// Writes an ICMPv6 error in front of a [quotable](is_quotable) packet, whose frame has been given
/// [`ICMP6_BYTES`] more in front; the first [`Icmp6Error::frame_bytes`] are the answer.
#[inline(always)]
pub fn error<P: Packet>(packet: &P, error: Icmp6Error) -> Option<()> {
    let old: &Ethernet = packet.header(ICMP6_BYTES)?;
    let ethernet: &Ethernet = packet.header(0)?;
    ethernet.destination.set(old.source.get());
    ethernet.source.set(old.destination.get());
    ethernet.ethertype.set(Be16::new(0x86dd));
    let at = size_of::<Ethernet>() + ICMP6_BYTES;
    let quoted = if error.kind == TOO_BIG {
        packet.sum::<MAX_QUOTE>(at)?
    } else {
        packet.sum::<MIN_QUOTE>(at)?
    };
    #[expect(clippy::cast_possible_truncation, reason = "far below 2^16")]
    let length = (size_of::<Icmp>() + error.quoted()) as u16;
    let protocol = IpProto::Ipv6Icmp as u8;
    let ip: &Ipv6 = packet.header(size_of::<Ethernet>())?;
    write_ip(ip, length, protocol);
    let sum = Sum::default()
        .add_sum(quoted)
        .add16(Be16::new(length))
        .add16(Be16::new(u16::from(protocol)))
        .add16(Be16::new(
            u16::from(error.kind) << 8 | u16::from(error.code),
        ))
        .add32(error.rest);
    // One after the other: the BPF stack has no room for two addresses to wait.
    let quoted: &Ipv6 = packet.header(at)?;
    let us = quoted.destination.get();
    ip.source.set(us);
    let sum = sum.add128(us);
    let sender = quoted.source.get();
    ip.destination.set(sender);
    let sum = sum.add128(sender);
    let icmp: &Icmp = packet.header(HEADERS)?;
    icmp.kind.set(error.kind);
    icmp.code.set(error.code);
    icmp.rest.set(error.rest);
    icmp.checksum.set(sum.checksum());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        addr::Be128,
        reject::v4::tests::tcp,
        wire::{
            Chain, Slice,
            checksum::{full, pseudo_header6},
            header::{ACK, SYN},
            parse_ipv6,
        },
    };

    const CLIENT: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const US: [u8; 6] = [2, 0, 0, 0, 0, 1];

    /// The client's address, and the VIP.
    fn ends() -> [[u8; 16]; 2] {
        ["fd00:1::50", "fd00:1::110"].map(|text| {
            let address: core::net::Ipv6Addr = text.parse().unwrap();
            address.octets()
        })
    }

    /// A frame from the client to us; checksums are not needed, but for UDP there must be one.
    fn frame(protocol: u8, extensions: &[u8], l4: &[u8], payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(extensions.len() + l4.len() + payload.len()).unwrap();
        let mut bytes = [US.as_slice(), &CLIENT, &[0x86, 0xdd, 0x61, 2, 3, 4]].concat();
        bytes.extend(length.to_be_bytes());
        bytes.extend([if extensions.is_empty() { protocol } else { 60 }, 7]);
        bytes.extend(ends().concat());
        bytes.extend([extensions, l4, payload].concat());
        bytes
    }

    /// So many bytes of destination options, before `protocol`.
    fn padding(protocol: u8, bytes: usize) -> Vec<u8> {
        let mut options = vec![0; bytes];
        if let [next, length, ..] = &mut options[..] {
            (*next, *length) = (protocol, u8::try_from(bytes / 8 - 1).unwrap());
        }
        options
    }

    fn with<T>(bytes: &mut [u8], then: impl FnOnce(&Slice<'_>, &Ipv6Frame<'_>) -> T) -> T {
        let packet = Slice::new(bytes);
        let ip = packet.header(14).unwrap();
        let chain = Chain::walk(&packet, ip).unwrap();
        let ethernet = packet.header(0).unwrap();
        then(&packet, &parse_ipv6(&packet, ethernet, ip, chain).unwrap())
    }

    /// What must stand in front of layer 4 of any answer, and its checksum.
    fn assert_from_us(bytes: &[u8], protocol: u8) {
        let [client, vip] = ends();
        assert_eq!(
            bytes[..14],
            [CLIENT.as_slice(), &US, &[0x86, 0xdd]].concat()
        );
        assert_eq!(bytes[14..18], [0x60, 0, 0, 0]);
        let length = u16::try_from(bytes.len() - 54).unwrap();
        assert_eq!(bytes[18..20], length.to_be_bytes());
        assert_eq!(bytes[20..22], [protocol, 64]);
        assert_eq!(bytes[22..54], [vip, client].concat());
        let [client, vip] =
            [client, vip].map(|octets| Be128::from(core::net::Ipv6Addr::from(octets)));
        let pseudo = pseudo_header6(vip, client, protocol, length);
        assert_eq!(full(&bytes[54..], pseudo).raw(), 0, "checksum");
    }

    #[test]
    fn a_reset_has_the_numbers_that_its_receiver_accepts() {
        let answered = |flags, extensions, payload: &[u8]| {
            let segment = tcp(flags, 1000, 0xffff_fff0);
            let mut bytes = frame(6, &padding(6, extensions), &segment, payload);
            with(&mut bytes, |packet, frame| reset(packet, frame))?;
            let bytes = &bytes[..RESET6_BYTES];
            assert_from_us(bytes, 6);
            assert_eq!(bytes[54..58], [0x19, 0x2b, 0x9c, 0x40], "ports");
            assert_eq!(bytes[68..70], [0, 0], "window");
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            Some((word(58), word(62), bytes[67]))
        };
        assert_eq!(answered(SYN, 0, b"fast"), Some((0, 1005, RST | ACK)));
        assert_eq!(answered(ACK, 0, b"data"), Some((0xffff_fff0, 0, RST)));
        for extensions in [8, 40, 248] {
            let reset = answered(ACK, extensions, b"data");
            assert_eq!(reset, Some((0xffff_fff0, 0, RST)), "{extensions} bytes go");
        }
        assert_eq!(answered(RST | ACK, 0, b""), None);
    }

    #[test]
    fn no_reset_goes_to_a_group_or_to_nobody() {
        let answered = |at: usize, value: u8| {
            let mut bytes = frame(6, &[], &tcp(ACK, 1000, 2000), b"");
            bytes[at] = value;
            with(&mut bytes, |packet, frame| reset(packet, frame)).is_some()
        };
        assert!(answered(6, 2) && answered(22, 0xfd));
        assert!(!answered(6, 3), "a group's MAC");
        assert!(!answered(22, 0xff), "a group's address");
        let mut unspecified = frame(6, &[], &tcp(ACK, 1000, 2000), b"");
        unspecified[22..38].fill(0);
        assert_eq!(
            with(&mut unspecified, |packet, frame| reset(packet, frame)),
            None,
            "no address"
        );
    }

    /// Answers the frame with this error, if it can be: the whole answer, and what it quotes.
    fn told(datagram: &[u8], error: Icmp6Error) -> Option<Vec<u8>> {
        let mut datagram = datagram.to_vec();
        if !with(&mut datagram, |_, frame| is_quotable(frame, error)) {
            return None;
        }
        let mut bytes = [[0xee; ICMP6_BYTES].as_slice(), &datagram].concat();
        super::error(&Slice::new(&mut bytes), error).unwrap();
        bytes.truncate(error.frame_bytes());
        assert_from_us(&bytes, 58);
        assert_eq!(bytes[62..], datagram[14..bytes.len() - ICMP6_BYTES]);
        assert!(bytes.len() <= 14 + 1280);
        Some(bytes[54..62].to_vec())
    }

    const UDP: [u8; 8] = [0x9c, 0x40, 0, 53, 0, 11, 0xab, 0xcd];

    #[test]
    fn an_error_quotes_the_packet() {
        let cases = [
            (Icmp6Error::PORT_UNREACHABLE, [1, 4], [0; 4]),
            (Icmp6Error::TIME_EXCEEDED, [3, 0], [0; 4]),
        ];
        for (error, kind, rest) in cases {
            for datagram in [
                frame(17, &[], &UDP, b"abc"),
                frame(6, &[], &tcp(ACK, 0x1234_5678, 0), b"abc"),
            ] {
                let head = told(&datagram, error).unwrap();
                assert_eq!((&head[..2], &head[4..]), (&kind[..], &rest[..]));
            }
        }
    }

    #[test]
    fn too_big_is_told_to_every_sender_that_we_carry() {
        let long = [7; 1300];
        for extensions in [0, 8, 80] {
            let datagram = frame(6, &padding(6, extensions), &tcp(ACK, 1, 2), &long);
            let head = told(&datagram, Icmp6Error::too_big(0x0001_2345)).unwrap();
            assert_eq!((head[0], head[1]), (2, 0));
            assert_eq!(head[4..], [0, 1, 0x23, 0x45]);
        }
        let beyond = frame(6, &padding(6, 88), &tcp(ACK, 1, 2), &long);
        assert_eq!(told(&beyond, Icmp6Error::too_big(1280)), None);
        let mut first = frame(
            60,
            &[],
            &[17, 0, 0, 1, 1, 2, 3, 4],
            &[UDP.as_slice(), &long[..1296]].concat(),
        );
        first[20] = 44;
        assert!(
            told(&first, Icmp6Error::too_big(1280)).is_some(),
            "a first fragment"
        );
        let short = frame(17, &[], &UDP, b"abc");
        assert_eq!(
            told(&short, Icmp6Error::too_big(1280)),
            None,
            "which cannot be"
        );
    }

    #[test]
    fn what_must_not_be_answered_is_not() {
        let told = |bytes: &[u8]| told(bytes, Icmp6Error::PORT_UNREACHABLE).is_some();
        assert!(told(&frame(17, &[], &UDP, b"abc")));
        assert!(!told(&frame(17, &padding(17, 8), &UDP, b"abc")), "options");
        assert!(told(&frame(6, &[], &tcp(SYN, 0, 0), b"")));
        assert!(!told(&frame(6, &[], &tcp(RST | ACK, 0, 0), b"")));
        let mut group_mac = frame(17, &[], &UDP, b"abc");
        group_mac[6] |= 1;
        assert!(!told(&group_mac));
        let mut group = frame(17, &[], &UDP, b"abc");
        group[22] = 0xff;
        assert!(!told(&group));
    }
}
