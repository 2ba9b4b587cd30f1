//! ICMPv6 (RFC 4443), as `icmp` is for IPv4: an echo request becomes its own reply, and an error goes
//! on to the end that had sent what it quotes, with the quote as that end had sent it.
//!
//! The checksum covers the addresses of the message's own packet as well (RFC 8200 section 8.1). Neighbour
//! discovery does not come here.

use network_types::ip::IpProto;

use crate::{
    addr::{Be16, Be32, Be128},
    icmp::{Kind, MTU_FLOOR, TCP_CHECKSUM, TTL, is_in_flight},
    nat::Translation,
    verdict::DropReason,
    wire::{
        Chain, N16, Packet,
        checksum::Delta,
        header::{Ethernet, FragmentHeader, Icmp, Ipv6, Quoted},
        ipv6_length,
    },
};

/// Types (RFC 4443 sections 3 and 4): errors are the first four.
const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// The number of the fragment header (RFC 8200 section 4.5).
const FRAGMENT: u8 = 44;

/// An ICMPv6 message whose header is inside its packet.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The Ethernet header.
    pub ethernet: &'a Ethernet,
    /// The IPv6 header.
    pub ip: &'a Ipv6,
    /// The ICMPv6 header, which has the fields of ICMP.
    pub icmp: &'a Icmp,
    /// Where that begins, in bytes from the frame's first.
    at: usize,
    /// Where the packet ends; padding does not count.
    end: usize,
}

/// What an error quotes: the headers of a packet that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Quote<'a> {
    /// Its IPv6 header.
    pub ip: &'a Ipv6,
    /// The beginning of its layer-4 header.
    pub l4: &'a Quoted,
    /// The number of the layer-4 protocol.
    pub protocol: u8,
    /// Where layer 4 begins.
    at: usize,
}

/// Parses the layers above `ethernet`, where the protocol behind `chain` is ICMPv6.
///
/// # Errors
///
/// `Malformed` where a length lies, `Fragment` for any fragment that is not the whole packet (RFC 6946).
#[inline(always)]
pub fn parse<'a, P: Packet>(
    packet: &'a P,
    ethernet: &'a Ethernet,
    ip: &'a Ipv6,
    chain: Chain,
) -> Result<Message<'a>, DropReason> {
    let payload = ipv6_length(packet, ip)?;
    if chain.fragment_at().is_some() {
        let fragment = chain.fragment(packet).ok_or(DropReason::Malformed)?;
        if fragment.offset() != 0 || fragment.more() {
            return Err(DropReason::Fragment);
        }
    }
    if chain.bytes() + size_of::<Icmp>() > payload {
        return Err(DropReason::Malformed);
    }
    let at = chain.end();
    Ok(Message {
        ethernet,
        ip,
        icmp: packet.header(at).ok_or(DropReason::Malformed)?,
        at,
        end: size_of::<Ethernet>() + size_of::<Ipv6>() + payload,
    })
}

impl Message<'_> {
    /// What it wants. An echo request behind extension headers is none: its reply would carry them back.
    #[inline(always)]
    pub fn kind(&self) -> Kind {
        match (self.icmp.kind.get(), self.icmp.code.get()) {
            (ECHO_REQUEST, 0) if self.is_plain() => Kind::Echo,
            (UNREACHABLE..=PARAMETER_PROBLEM, _) => Kind::Error,
            _ => Kind::Other,
        }
    }

    /// Whether there are no extension headers before it.
    #[inline(always)]
    pub const fn is_plain(&self) -> bool {
        self.at == size_of::<Ethernet>() + size_of::<Ipv6>()
    }

    /// Turns an echo request into its reply. The addresses change places, which their sum does not show.
    #[inline(always)]
    pub fn answer(&self) {
        let (us, sender) = (self.ethernet.destination.get(), self.ethernet.source.get());
        self.ethernet.destination.set(sender);
        self.ethernet.source.set(us);
        let (us, sender) = (self.ip.destination.get(), self.ip.source.get());
        self.ip.destination.set(sender);
        self.ip.source.set(us);
        self.ip.hop_limit.set(TTL);
        let sum = Delta::default().change16(kind_and_code(ECHO_REQUEST), kind_and_code(ECHO_REPLY));
        self.icmp.kind.set(ECHO_REPLY);
        self.icmp.checksum.set(sum.apply(self.icmp.checksum.get()));
    }

    /// What an error quotes. Behind its IPv6 header there may be one fragment header, of a first fragment;
    /// what has other extension headers is not looked through.
    ///
    /// # Errors
    ///
    /// `Malformed` if that is not even an IPv6 header and eight bytes of layer 4, `IcmpUnrelated` if it
    /// cannot be of a flow.
    #[inline(always)]
    pub fn quote<'a, P: Packet>(&self, packet: &'a P) -> Result<Quote<'a>, DropReason> {
        let start = self.at + size_of::<Icmp>();
        let mut at = start + size_of::<Ipv6>();
        if at + size_of::<Quoted>() > self.end {
            return Err(DropReason::Malformed);
        }
        let ip: &Ipv6 = packet.header(start).ok_or(DropReason::Malformed)?;
        if ip.version_class_label.get().get() >> 28 != 6 {
            return Err(DropReason::Malformed);
        }
        let mut protocol = ip.next_header.get();
        if protocol == FRAGMENT {
            let fragment: &FragmentHeader = packet.header(at).ok_or(DropReason::Malformed)?;
            if fragment.offset() != 0 {
                return Err(DropReason::IcmpUnrelated);
            }
            protocol = fragment.next_header.get();
            at += size_of::<FragmentHeader>();
        }
        if protocol != IpProto::Tcp as u8 && protocol != IpProto::Udp as u8 {
            return Err(DropReason::IcmpUnrelated);
        }
        if at + size_of::<Quoted>() > self.end {
            return Err(DropReason::Malformed);
        }
        let l4 = packet.header(at).ok_or(DropReason::Malformed)?;
        Ok(Quote {
            ip,
            l4,
            protocol,
            at,
        })
    }

    /// Judges the MTU of an error about what was sent to a client. Unlike that of IPv4 one below
    /// [`MTU_FLOOR`] is not raised: no router reports it (RFC 8200 section 5). Other errors than "packet too
    /// big" have none.
    ///
    /// # Errors
    ///
    /// `MtuImplausible` if it is below the floor, or what is quoted fits it.
    #[inline(always)]
    pub fn check_mtu(&self, quote: &Quote<'_>) -> Result<(), DropReason> {
        if self.icmp.kind.get() != TOO_BIG {
            return Ok(());
        }
        let said = self.icmp.rest.get().get();
        let quoted = usize::from(quote.ip.payload_length.get().get()) + size_of::<Ipv6>();
        if said < u32::from(MTU_FLOOR) || quoted <= said as usize {
            return Err(DropReason::MtuImplausible);
        }
        Ok(())
    }

    /// Makes an error one of the end that `to` names: the quote becomes the packet that this end had sent,
    /// and the error's source the address that it had sent it to, whichever router reported it. So neither
    /// end sees an address of the other's side. One hop goes off the hop limit.
    ///
    /// Extensions behind the quote (RFC 4884) and the MTU stay as they are.
    #[inline(always)]
    pub fn translate<P: Packet>(&self, packet: &P, quote: &Quote<'_>, to: &Translation<Be128>) {
        let inner = quote.ip;
        let tuple = Delta::default()
            .change128(inner.source.get(), to.source)
            .change128(inner.destination.get(), to.destination);
        inner.source.set(to.source);
        inner.destination.set(to.destination);

        let l4 = quote.l4;
        let tuple = tuple
            .change16(l4.source.get(), to.source_port)
            .change16(l4.destination.get(), to.destination_port);
        l4.source.set(to.source_port);
        l4.destination.set(to.destination_port);
        let message = follow(packet, quote, self.end, tuple);

        // No sum of the IPv6 header has to follow: there is none. The message's covers the addresses.
        let (ip, icmp) = (self.ip, self.icmp);
        let message = message
            .change128(ip.source.get(), to.destination)
            .change128(ip.destination.get(), to.source);
        ip.source.set(to.destination);
        ip.destination.set(to.source);
        ip.hop_limit.set(ip.hop_limit.get().wrapping_sub(1));
        icmp.checksum.set(message.apply(icmp.checksum.get()));
    }
}

/// Updates the checksum of a quoted layer-4 header, if the quote goes so far before it ends at `end`. Gives
/// the changes of the whole quote: `tuple`, and that one.
#[inline(always)]
fn follow<P: Packet>(packet: &P, quote: &Quote<'_>, end: usize, tuple: Delta) -> Delta {
    if quote.protocol == IpProto::Udp as u8 {
        // The lower half of what is behind the ports.
        let rest = quote.l4.rest.get();
        let [length, old] = halves(rest);
        let new = tuple.apply_udp(old);
        quote.l4.rest.set(whole(length, new));
        return tuple.change16(old, new);
    }
    let at = quote.at + TCP_CHECKSUM;
    if at + size_of::<N16>() > end {
        return tuple;
    }
    match packet.header::<N16>(at) {
        Some(checksum) => {
            let old = checksum.get();
            let new = tuple.apply(old);
            checksum.set(new);
            tuple.change16(old, new)
        }
        None => tuple,
    }
}

/// The two 16-bit fields in 32 bits.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "each half has the width that it is made of"
)]
const fn halves(both: Be32) -> [Be16; 2] {
    [
        Be16::new((both.get() >> 16) as u16),
        Be16::new(both.get() as u16),
    ]
}

/// The reverse of [`halves`].
#[inline(always)]
const fn whole(first: Be16, second: Be16) -> Be32 {
    Be32::new((first.get() as u32) << 16 | second.get() as u32)
}

impl Quote<'_> {
    /// Whether the flow may have sent this segment: its receiver has acknowledged all before
    /// `expected` (host order). As for IPv4; a UDP packet has no number.
    #[inline(always)]
    pub fn is_plausible(&self, expected: u32) -> bool {
        self.protocol == IpProto::Udp as u8 || is_in_flight(self.l4.rest.get().get(), expected)
    }
}

/// The first two bytes of a message whose code is 0.
const fn kind_and_code(kind: u8) -> Be16 {
    Be16::new((kind as u16) << 8)
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;
    use crate::{
        addr::Mac,
        wire::{
            Slice,
            checksum::{full, pseudo_header6},
        },
    };

    const ROUTER: &str = "fd00:100::1";
    const SNAT: &str = "fd00:100::50";
    const NODE: &str = "fd00:100::105";
    const VIP: &str = "fd00:203::110";
    const CLIENT: &str = "fd00:203::50";

    fn address(text: &str) -> Be128 {
        Be128::from(text.parse::<Ipv6Addr>().unwrap())
    }

    /// What layer 4 of so many bytes between these ends adds to its checksum.
    fn pseudo([from, to]: [&str; 2], protocol: u8, bytes: usize) -> u64 {
        let bytes = u16::try_from(bytes).unwrap();
        pseudo_header6(address(from), address(to), protocol, bytes)
    }

    /// An IPv6 packet whose extension headers, the first of which has the number `next`, are in `payload`.
    fn ip(next: u8, [from, to]: [&str; 2], payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 1, 2, 3];
        bytes.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        bytes.extend([next, 61]);
        for end in [from, to] {
            bytes.extend(end.parse::<Ipv6Addr>().unwrap().octets());
        }
        bytes.extend(payload);
        bytes
    }

    /// A segment or datagram of 30 bytes whose checksum is right.
    fn l4(protocol: u8, ends: [&str; 2], ports: [u16; 2]) -> Vec<u8> {
        let mut bytes = ports.map(u16::to_be_bytes).concat();
        let at = if protocol == 6 {
            bytes.extend([0, 1, 2, 3, 4, 5, 6, 7, 0x50, 0x10, 1, 2, 0, 0, 0, 0]);
            16
        } else {
            bytes.extend([0, 30, 0, 0]);
            6
        };
        bytes.resize(30, 0xab);
        let sum = full(&bytes, pseudo(ends, protocol, 30));
        bytes[at..at + 2].copy_from_slice(&sum.raw().to_ne_bytes());
        bytes
    }

    fn frame(outer: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd], outer].concat()
    }

    fn message(ends: [&str; 2], [kind, code]: [u8; 2], body: &[u8]) -> Vec<u8> {
        let mut bytes = [&[kind, code, 0, 0, 0, 0, 5, 0], body].concat();
        let sum = full(&bytes, pseudo(ends, 58, bytes.len()));
        bytes[2..4].copy_from_slice(&sum.raw().to_ne_bytes());
        bytes
    }

    fn parsed<T>(
        bytes: &mut [u8],
        then: impl FnOnce(&Slice<'_>, &Message<'_>) -> Result<T, DropReason>,
    ) -> Result<T, DropReason> {
        let packet = Slice::new(bytes);
        let ethernet = packet.header(0).ok_or(DropReason::Malformed)?;
        let ip = packet.header(14).ok_or(DropReason::Malformed)?;
        let chain = Chain::walk(&packet, ip)?;
        then(&packet, &parse(&packet, ethernet, ip, chain)?)
    }

    fn with<T>(bytes: &mut [u8], then: impl FnOnce(&Slice<'_>, &Message<'_>) -> T) -> T {
        parsed(bytes, |packet, message| Ok(then(packet, message))).unwrap()
    }

    /// Eight bytes of destination options, before `next`.
    const fn options(next: u8) -> [u8; 8] {
        [next, 0, 1, 4, 0, 0, 0, 0]
    }

    /// The header of a first fragment, before `next`.
    const fn first(next: u8) -> [u8; 8] {
        [next, 0, 0, 1, 9, 8, 7, 6]
    }

    /// For both protocols, every length of the quote, with and without a fragment header in it, and options
    /// outside: what comes out is what another stack would have made of the other packet, with every
    /// checksum recomputed.
    #[test]
    fn a_translated_error_is_the_error_about_the_other_packet() {
        let cases = [6, 17].into_iter().flat_map(|protocol| {
            let both = [false, true];
            let kinds = both.map(|fragment| both.map(|options| (fragment, options)));
            let kinds = kinds.into_iter().flatten();
            kinds.flat_map(move |kind| (8..=30).map(move |length| (protocol, kind, length)))
        });
        for (protocol, (fragment, extended), length) in cases {
            let quote = |ends, ports, other: Option<&[u8]>| {
                let mut l4 = l4(protocol, ends, ports);
                if let (6, 17, Some(other)) = (protocol, length, other) {
                    // Half a checksum is not updated.
                    l4[16] = other[16];
                }
                let (next, headers) = if fragment {
                    (44, first(protocol).to_vec())
                } else {
                    (protocol, Vec::new())
                };
                let payload = [headers.clone(), l4].concat();
                ip(next, ends, &payload)[..40 + headers.len() + length].to_vec()
            };
            let outer = |ends, quote: &[u8]| {
                let message = message(ends, [2, 0], quote);
                let mut bytes = frame(&if extended {
                    ip(60, ends, &[&options(58), &message[..]].concat())
                } else {
                    ip(58, ends, &message)
                });
                // Padding is no part of the quote.
                bytes.extend([0x55; 24]);
                bytes
            };
            let sent = l4(protocol, [SNAT, NODE], [1024, 30918]);
            let mut bytes = outer([ROUTER, SNAT], &quote([SNAT, NODE], [1024, 30918], None));
            with(&mut bytes, |packet, message| {
                assert_eq!(message.kind(), Kind::Error);
                let quote = message.quote(packet).unwrap();
                let to = Translation {
                    source: address(CLIENT),
                    destination: address(VIP),
                    source_port: Be16::new(40000),
                    destination_port: Be16::new(6443),
                };
                message.translate(packet, &quote, &to);
            });
            let quoted = quote([CLIENT, VIP], [40000, 6443], Some(&sent));
            let mut wanted = outer([VIP, CLIENT], &quoted);
            wanted[21] = 60;
            assert_eq!(bytes, wanted, "{protocol} {fragment} {extended} {length}");
        }
    }

    #[test]
    fn an_echo_request_becomes_its_reply() {
        for length in 0..64 {
            let body = vec![7; length];
            let ends = [CLIENT, VIP];
            let mut bytes = frame(&ip(58, ends, &message(ends, [128, 0], &body)));
            with(&mut bytes, |_, message| {
                assert_eq!(message.kind(), Kind::Echo);
                message.answer();
                assert_eq!(message.ethernet.source.get(), Mac::new([2, 0, 0, 0, 0, 1]));
                assert_eq!(message.ethernet.destination.get().bytes()[5], 2);
            });
            let ends = [VIP, CLIENT];
            let mut outer = ip(58, ends, &message(ends, [129, 0], &body));
            outer[7] = 64;
            assert_eq!(bytes[14..], outer);
        }
    }

    #[test]
    fn an_mtu_is_not_below_the_floor_and_not_above_what_is_quoted() {
        let ends = [ROUTER, VIP];
        let check = |kind: u8, mtu: u32, total: u16| {
            let mut quoted = ip(6, [VIP, CLIENT], &[0xab; 8]);
            quoted[4..6].copy_from_slice(&(total - 40).to_be_bytes());
            let mut body = message(ends, [kind, 0], &quoted);
            body[4..8].copy_from_slice(&mtu.to_be_bytes());
            let mut bytes = frame(&ip(58, ends, &body));
            with(&mut bytes, |packet, message| {
                message.check_mtu(&message.quote(packet).unwrap())
            })
        };
        let totals = [40, 1279, 1280, 1281, 1499, 1500, 1501, 65_535];
        let mtus = [
            0,
            68,
            1279,
            1280,
            1281,
            1499,
            1500,
            65_535,
            65_536,
            0x0001_0500,
            u32::MAX,
        ];
        for (mtu, total) in mtus
            .into_iter()
            .flat_map(|mtu| totals.map(|total| (mtu, total)))
        {
            let believed = mtu >= 1280 && u32::from(total) > mtu;
            let wanted = believed.then_some(()).ok_or(DropReason::MtuImplausible);
            assert_eq!(check(2, mtu, total), wanted, "{mtu} {total}");
            for other in [1, 3, 4] {
                assert_eq!(check(other, mtu, total), Ok(()), "{other}");
            }
        }
    }

    #[test]
    fn types_say_what_a_message_wants() {
        let ends = [ROUTER, SNAT];
        let kind = |kind, code| {
            let mut bytes = frame(&ip(58, ends, &message(ends, [kind, code], &[])));
            with(&mut bytes, |_, message| message.kind())
        };
        for number in 0..=255 {
            let wanted = match number {
                128 => Kind::Echo,
                1..=4 => Kind::Error,
                _ => Kind::Other,
            };
            assert_eq!(kind(number, 0), wanted, "{number}");
        }
        assert_eq!((kind(128, 1), kind(1, 4)), (Kind::Other, Kind::Error));
        let echo = message(ends, [128, 0], &[]);
        let mut bytes = frame(&ip(60, ends, &[&options(58), &echo[..]].concat()));
        let kind = with(&mut bytes, |_, message| message.kind());
        assert_eq!(kind, Kind::Other, "behind options");
    }

    fn judge(mut bytes: Vec<u8>) -> Result<(), DropReason> {
        parsed(&mut bytes, |packet, message| {
            message.quote(packet).map(|_| ())
        })
    }

    /// No length of the frame, and no value of its length fields, leads beyond its end.
    #[test]
    fn lengths_that_lie_are_malformed() {
        let ends = [ROUTER, SNAT];
        let segment = l4(6, [SNAT, NODE], [1024, 30918]);
        let plain = ip(6, [SNAT, NODE], &segment[..8]);
        let fragment = ip(44, [SNAT, NODE], &[&first(6), &segment[..8]].concat());
        for quoted in [plain, fragment] {
            let whole = frame(&ip(58, ends, &message(ends, [3, 0], &quoted)));
            assert_eq!(judge(whole.clone()), Ok(()));
            for length in 0..whole.len() {
                let cut = whole[..length].to_vec();
                assert_eq!(judge(cut), Err(DropReason::Malformed), "{length}");
                if length >= 54 {
                    // The frame is whole, the IP length is not.
                    let mut short = whole.clone();
                    short[19] = u8::try_from(length - 54).unwrap();
                    assert_eq!(judge(short), Err(DropReason::Malformed), "{length}");
                }
            }
            for at in [14, 62] {
                let mut lying = whole.clone();
                lying[at] = 0x45;
                assert_eq!(judge(lying), Err(DropReason::Malformed), "version at {at}");
            }
        }
    }

    #[test]
    fn a_quote_that_cannot_be_of_a_flow_is_unrelated() {
        let ends = [ROUTER, SNAT];
        let segment = l4(6, [SNAT, NODE], [1024, 30918]);
        let about = |next: u8, headers: &[u8]| {
            let quoted = ip(next, [SNAT, NODE], &[headers, &segment[..]].concat());
            judge(frame(&ip(58, ends, &message(ends, [3, 0], &quoted))))
        };
        let unrelated = Err(DropReason::IcmpUnrelated);
        assert_eq!((about(6, &[]), about(17, &[])), (Ok(()), Ok(())));
        assert_eq!((about(58, &[]), about(59, &[])), (unrelated, unrelated));
        assert_eq!(about(60, &options(6)), unrelated);
        assert_eq!(about(44, &first(6)), Ok(()));
        assert_eq!(about(44, &first(58)), unrelated);
        assert_eq!(about(44, &first(44)), unrelated, "another one behind");
        let mut later = first(6);
        later[3] = 8;
        assert_eq!(about(44, &later), unrelated);
        later[3] = 6;
        assert_eq!(about(44, &later), Ok(()), "reserved bits are no offset");
    }

    #[test]
    fn a_message_in_pieces_is_none() {
        let ends = [ROUTER, SNAT];
        let quoted = ip(6, [SNAT, NODE], &l4(6, [SNAT, NODE], [1024, 30918]));
        let message = message(ends, [3, 0], &quoted);
        let piece = |field: u8| {
            let header = [58, 0, 0, field, 1, 2, 3, 4];
            judge(frame(&ip(44, ends, &[&header[..], &message].concat())))
        };
        assert_eq!(piece(0), Ok(()), "the only piece");
        assert_eq!(piece(1), Err(DropReason::Fragment));
        assert_eq!(piece(8), Err(DropReason::Fragment));
        assert_eq!(piece(9), Err(DropReason::Fragment));
    }

    #[test]
    fn a_plausible_number_is_one_in_256() {
        let ends = [ROUTER, SNAT];
        let plausible = |protocol, sequence: u32, expected| {
            let mut segment = l4(6, [SNAT, NODE], [1024, 30918]);
            segment[4..8].copy_from_slice(&sequence.to_be_bytes());
            let body = message(ends, [3, 0], &ip(protocol, [SNAT, NODE], &segment));
            let mut bytes = frame(&ip(58, ends, &body));
            with(&mut bytes, |packet, message| {
                message.quote(packet).unwrap().is_plausible(expected)
            })
        };
        for expected in [1001, 0, u32::MAX] {
            let at = |offset: i32| plausible(6, expected.wrapping_add_signed(offset), expected);
            assert_eq!([at(-2), at(-1), at(0)], [false, true, true]);
            assert_eq!([at((1 << 24) - 2), at((1 << 24) - 1)], [true, false]);
        }
        assert!(plausible(17, 0, 1 << 31), "UDP has no numbers");
    }
}
