//! An echo request becomes its own reply, and an error goes on to the end that had sent what
//! it quotes, with the quote as that end had sent it (RFC 5508 section 4).
//!
//! Nothing here verifies a checksum: a wrong one stays wrong, as in `parse`.

use network_types::ip::IpProto;

use crate::{
    addr::{Be16, Be32},
    nat::Translation,
    verdict::DropReason,
    wire::{
        FRAGMENT_MASK, N16, OFFSET_MASK, Packet,
        checksum::Delta,
        header::{Ethernet, Icmp, Ipv4, Quoted},
        ipv4_lengths,
    },
};

/// Type and code of "fragmentation needed and DF set".
const UNREACHABLE: u8 = 3;
const FRAGMENTATION_NEEDED: u8 = 4;
/// Hops of what we make ourselves.
pub(crate) const TTL: u8 = 64;
/// Where the checksum stands in a TCP header, and in a UDP header.
pub(crate) const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
/// How far a quoted sequence number may be beyond what its receiver has acknowledged: more than is
/// in flight on almost any path (16 MiB), and a guess hits one time in 256. What is in flight beyond
/// it loses nothing: the first bytes that are not acknowledged are as large, and are quoted as well.
const IN_FLIGHT: u32 = 1 << 24;

/// The least MTU of a client's path that is reported to a backend, in bytes of an IP packet: what every
/// network of IPv6 carries (RFC 8200 section 5). A host keeps the MTU of a path by its destination, which is
/// a SNAT address for a backend, and behind that are all clients: one of them could make the packets of all
/// others small. A client that has less has segments that fit by the `mss` of its network.
pub const MTU_FLOOR: u16 = 1280;

/// What an ICMP message wants (RFC 792).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An echo request.
    Echo,
    /// Unreachable, time exceeded, parameter problem.
    Error,
    /// Redirect and source quench (RFC 6633): errors that no host should act on.
    Advice,
    /// Anything else.
    Other,
}

/// An ICMP message whose header is inside its packet.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The Ethernet header.
    pub ethernet: &'a Ethernet,
    /// The IPv4 header.
    pub ip: &'a Ipv4,
    /// The ICMP header.
    pub icmp: &'a Icmp,
    /// Where the ICMP header begins, in bytes from the frame's first.
    at: usize,
    /// Where the packet ends; padding does not count.
    end: usize,
}

/// What an error quotes: the headers of a packet that was sent.
#[derive(Clone, Copy, Debug)]
pub struct Quote<'a> {
    /// Its IPv4 header.
    pub ip: &'a Ipv4,
    /// The beginning of its layer-4 header.
    pub l4: &'a Quoted,
    /// Where that is.
    at: usize,
}

/// Parses the layers above `ethernet`, where the protocol of `ip` is ICMP.
///
/// # Errors
///
/// `Malformed` where a length lies, `Fragment` for any fragment.
#[inline(always)]
pub fn parse<'a, P: Packet>(
    packet: &'a P,
    ethernet: &'a Ethernet,
    ip: &'a Ipv4,
) -> Result<Message<'a>, DropReason> {
    let (header_bytes, total) = ipv4_lengths(packet, ip)?;
    if ip.fragment.get().get() & FRAGMENT_MASK != 0 {
        return Err(DropReason::Fragment);
    }
    if total - header_bytes < size_of::<Icmp>() {
        return Err(DropReason::Malformed);
    }
    let at = size_of::<Ethernet>() + header_bytes;
    Ok(Message {
        ethernet,
        ip,
        icmp: packet.header(at).ok_or(DropReason::Malformed)?,
        at,
        end: size_of::<Ethernet>() + total,
    })
}

impl Message<'_> {
    /// What it wants.
    #[inline(always)]
    pub fn kind(&self) -> Kind {
        match (self.icmp.kind.get(), self.icmp.code.get()) {
            (8, 0) => Kind::Echo,
            (3 | 11 | 12, _) => Kind::Error,
            (4 | 5, _) => Kind::Advice,
            _ => Kind::Other,
        }
    }

    /// Turns an echo request into its reply. Identification and "don't fragment" stay: what is unique
    /// from there to here is unique from here to there.
    #[inline(always)]
    pub fn answer(&self) {
        let (us, sender) = (self.ethernet.destination.get(), self.ethernet.source.get());
        self.ethernet.destination.set(sender);
        self.ethernet.source.set(us);
        let (us, sender) = (self.ip.destination.get(), self.ip.source.get());
        self.ip.destination.set(sender);
        self.ip.source.set(us);
        set_ttl(self.ip, TTL, Delta::default());
        let sum = Delta::default().change16(Be16::new(8 << 8), Be16::default());
        self.icmp.kind.set(0);
        self.icmp.checksum.set(sum.apply(self.icmp.checksum.get()));
    }

    /// What an error quotes.
    ///
    /// # Errors
    ///
    /// `Malformed` if that is not even an IP header and eight bytes, `IcmpUnrelated` if it cannot be
    /// of a flow.
    #[inline(always)]
    pub fn quote<'a, P: Packet>(&self, packet: &'a P) -> Result<Quote<'a>, DropReason> {
        let start = self.at + size_of::<Icmp>();
        if start + size_of::<Ipv4>() > self.end {
            return Err(DropReason::Malformed);
        }
        let ip: &Ipv4 = packet.header(start).ok_or(DropReason::Malformed)?;
        let version_ihl = ip.version_ihl.get();
        let header_bytes = usize::from(version_ihl & 15) * 4;
        let at = start + header_bytes;
        if version_ihl >> 4 != 4
            || header_bytes < size_of::<Ipv4>()
            || at + size_of::<Quoted>() > self.end
        {
            return Err(DropReason::Malformed);
        }
        let protocol = ip.protocol.get();
        let is_ours = protocol == IpProto::Tcp as u8 || protocol == IpProto::Udp as u8;
        if !is_ours || ip.fragment.get().get() & OFFSET_MASK != 0 {
            return Err(DropReason::IcmpUnrelated);
        }
        let l4 = packet.header(at).ok_or(DropReason::Malformed)?;
        Ok(Quote { ip, l4, at })
    }

    /// Bounds the MTU of an error about what was sent to a client, before [`Self::translate`]: below
    /// [`MTU_FLOOR`] it becomes that, also where a router reports none (RFC 1191 section 5). Returns whether
    /// it was raised. Other errors than "fragmentation needed" have none.
    ///
    /// # Errors
    ///
    /// `MtuImplausible` if what is quoted fits the MTU that the backend would get.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub fn bound_mtu(&self, quote: &Quote<'_>) -> Result<bool, DropReason> {
        let icmp = self.icmp;
        if icmp.kind.get() != UNREACHABLE || icmp.code.get() != FRAGMENTATION_NEEDED {
            return Ok(false);
        }
        let rest = icmp.rest.get();
        let said = rest.get() as u16;
        let raised = said < MTU_FLOOR;
        let mtu = if raised { MTU_FLOOR } else { said };
        if quote.ip.total_length.get().get() <= mtu {
            return Err(DropReason::MtuImplausible);
        }
        if raised {
            let new = Be32::new(rest.get() & 0xffff_0000 | u32::from(mtu));
            let sum = Delta::default().change32(rest, new);
            icmp.rest.set(new);
            icmp.checksum.set(sum.apply(icmp.checksum.get()));
        }
        Ok(raised)
    }

    /// Makes an error one of the end that `to` names: the quote becomes the packet that this end had sent,
    /// and the error's source the address that it had sent it to, whichever router reported it. So neither
    /// end sees an address of the other's side. One hop goes off the time to live.
    ///
    /// `ahead` is taken off the sequence number: what that of a packet with a splice is ahead of what this
    /// end had sent, else 0. Extensions behind the quote (RFC 4884) stay as they are.
    #[inline(always)]
    pub fn translate<P: Packet>(
        &self,
        packet: &P,
        quote: &Quote<'_>,
        to: &Translation,
        ahead: u32,
    ) {
        let inner = quote.ip;
        let addresses = Delta::default()
            .change32(inner.source.get(), to.source)
            .change32(inner.destination.get(), to.destination);
        let old_sum = inner.checksum.get();
        let new_sum = addresses.apply(old_sum);
        inner.source.set(to.source);
        inner.destination.set(to.destination);
        inner.checksum.set(new_sum);

        let l4 = quote.l4;
        let old_rest = l4.rest.get();
        let new_rest = Be32::new(old_rest.get().wrapping_sub(ahead));
        let tuple = addresses
            .change16(l4.source.get(), to.source_port)
            .change16(l4.destination.get(), to.destination_port)
            .change32(old_rest, new_rest);
        l4.source.set(to.source_port);
        l4.destination.set(to.destination_port);
        l4.rest.set(new_rest);
        let is_udp = inner.protocol.get() == IpProto::Udp as u8;
        let at = quote.at + if is_udp { UDP_CHECKSUM } else { TCP_CHECKSUM };
        let mut message = tuple.change16(old_sum, new_sum);
        if at + size_of::<N16>() <= self.end
            && let Some(checksum) = packet.header::<N16>(at)
        {
            let old = checksum.get();
            let new = if is_udp {
                tuple.apply_udp(old)
            } else {
                tuple.apply(old)
            };
            checksum.set(new);
            message = message.change16(old, new);
        }
        let icmp = self.icmp;
        icmp.checksum.set(message.apply(icmp.checksum.get()));

        let outer = Delta::default()
            .change32(self.ip.source.get(), to.destination)
            .change32(self.ip.destination.get(), to.source);
        self.ip.source.set(to.destination);
        self.ip.destination.set(to.source);
        set_ttl(self.ip, self.ip.ttl.get().wrapping_sub(1), outer);
    }
}

impl Quote<'_> {
    /// Whether the flow may have sent this segment: its receiver has acknowledged all before `expected` (host
    /// order). A sender off the path cannot know the number (RFC 5927 section 4.1). One less than expected is
    /// the number of a SYN and of a keepalive probe. A UDP packet has none.
    #[inline(always)]
    pub fn is_plausible(&self, expected: u32) -> bool {
        if self.ip.protocol.get() == IpProto::Udp as u8 {
            return true;
        }
        is_in_flight(self.l4.rest.get().get(), expected)
    }
}

/// Whether this sequence number is one that its receiver may get, which has acknowledged all before
/// `expected`; both in host order.
#[inline(always)]
pub(crate) const fn is_in_flight(sequence: u32, expected: u32) -> bool {
    sequence.wrapping_sub(expected.wrapping_sub(1)) < IN_FLIGHT
}

/// Sets the time to live, and the header's checksum after that and `changes`.
#[inline(always)]
fn set_ttl(ip: &Ipv4, ttl: u8, changes: Delta) {
    let sum = changes.change16(
        Be16::new(u16::from_be_bytes([ip.ttl.get(), 0])),
        Be16::new(u16::from_be_bytes([ttl, 0])),
    );
    ip.ttl.set(ttl);
    ip.checksum.set(sum.apply(ip.checksum.get()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        addr::{Be32, Mac},
        wire::{
            Slice,
            checksum::{full, pseudo_header},
        },
    };

    const ROUTER: [u8; 4] = [10, 32, 100, 1];
    const SNAT: [u8; 4] = [10, 32, 96, 50];
    const NODE: [u8; 4] = [10, 32, 96, 105];
    const VIP: [u8; 4] = [192, 168, 203, 110];
    const CLIENT: [u8; 4] = [192, 168, 203, 50];

    /// An IP packet with right checksums behind the IP header `options`.
    fn ip(protocol: u8, [from, to]: [[u8; 4]; 2], options: usize, payload: &[u8]) -> Vec<u8> {
        let total = u16::try_from(20 + options + payload.len()).unwrap();
        let mut bytes = vec![0x45 + u8::try_from(options / 4).unwrap(), 0];
        bytes.extend(total.to_be_bytes());
        bytes.extend([0x12, 0x34, 0, 0, 61, protocol, 0, 0]);
        bytes.extend([from, to].concat());
        bytes.extend(vec![1; options]);
        let sum = full(&bytes, 0).raw().to_ne_bytes();
        bytes[10..12].copy_from_slice(&sum);
        bytes.extend(payload);
        bytes
    }

    /// A segment or datagram of 30 bytes whose checksum is right, but for UDP without one.
    fn l4(protocol: u8, ends: [[u8; 4]; 2], ports: [u16; 2], checksum: bool) -> Vec<u8> {
        let mut bytes = ports.map(u16::to_be_bytes).concat();
        let at = if protocol == 6 {
            bytes.extend([0, 1, 2, 3, 4, 5, 6, 7, 0x50, 0x10, 1, 2, 0, 0, 0, 0]);
            16
        } else {
            bytes.extend([0, 30, 0, 0]);
            6
        };
        bytes.resize(30, 0xab);
        if checksum {
            let [from, to] = ends.map(|end| Be32::new(u32::from_be_bytes(end)));
            let sum = full(&bytes, pseudo_header(from, to, protocol, 30));
            bytes[at..at + 2].copy_from_slice(&sum.raw().to_ne_bytes());
        }
        bytes
    }

    fn frame(outer: &[u8]) -> Vec<u8> {
        [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0], outer].concat()
    }

    fn message([kind, code]: [u8; 2], body: &[u8]) -> Vec<u8> {
        let mut bytes = [&[kind, code, 0, 0, 0, 0, 5, 0], body].concat();
        let sum = full(&bytes, 0).raw().to_ne_bytes();
        bytes[2..4].copy_from_slice(&sum);
        bytes
    }

    fn with<T>(bytes: &mut [u8], then: impl FnOnce(&Slice<'_>, &Message<'_>) -> T) -> T {
        let packet = Slice::new(bytes);
        let ethernet = packet.header::<Ethernet>(0).unwrap();
        let message = parse(&packet, ethernet, packet.header(14).unwrap()).unwrap();
        then(&packet, &message)
    }

    /// For both protocols, every length of the quote and options of both headers: what comes out is
    /// what another stack would have made of the other packet, with every checksum recomputed.
    #[test]
    fn a_translated_error_is_the_error_about_the_other_packet() {
        for (protocol, checksum) in [(6, true), (17, true), (17, false)] {
            let sent = l4(protocol, [SNAT, NODE], [1024, 30918], checksum);
            let wanted = l4(protocol, [CLIENT, VIP], [40000, 6443], checksum);
            for (options, length) in [0, 4, 40]
                .into_iter()
                .flat_map(|o| (8..=30).map(move |l| (o, l)))
            {
                let mut wanted = wanted.clone();
                if protocol == 6 && length == 17 {
                    wanted[16] = sent[16];
                }
                let quote = |ends, l4: &[u8]| {
                    let whole = ip(protocol, ends, options, l4);
                    whole[..20 + options + length].to_vec()
                };
                let body = message([3, 4], &quote([SNAT, NODE], &sent));
                let mut bytes = frame(&ip(1, [ROUTER, SNAT], options, &body));
                // Padding is no part of the quote.
                bytes.extend([0x55; 24]);
                with(&mut bytes, |packet, message| {
                    let quote = message.quote(packet).unwrap();
                    let [source, destination] =
                        [CLIENT, VIP].map(|end| Be32::new(u32::from_be_bytes(end)));
                    let to = Translation {
                        source,
                        destination,
                        source_port: Be16::new(40000),
                        destination_port: Be16::new(6443),
                    };
                    message.translate(packet, &quote, &to, 0);
                });
                let body = message([3, 4], &quote([CLIENT, VIP], &wanted));
                let mut outer = ip(1, [VIP, CLIENT], options, &body);
                outer[8] = 60;
                outer[10..12].fill(0);
                let sum = full(&outer[..20 + options], 0).raw().to_ne_bytes();
                outer[10..12].copy_from_slice(&sum);
                outer.extend([0x55; 24]);
                assert_eq!(bytes, frame(&outer), "{protocol} {options} {length}");
            }
        }
    }

    #[test]
    fn an_echo_request_becomes_its_reply() {
        for length in 0..64 {
            let body = vec![7; length];
            let mut bytes = frame(&ip(1, [CLIENT, VIP], 0, &message([8, 0], &body)));
            with(&mut bytes, |_, message| {
                assert_eq!(message.kind(), Kind::Echo);
                message.answer();
                assert_eq!(message.ethernet.source.get(), Mac::new([2, 0, 0, 0, 0, 1]));
            });
            let mut outer = ip(1, [VIP, CLIENT], 0, &message([0, 0], &body));
            outer[8] = 64;
            outer[10..12].fill(0);
            let sum = full(&outer[..20], 0).raw().to_ne_bytes();
            outer[10..12].copy_from_slice(&sum);
            assert_eq!(bytes[14..], outer);
        }
    }

    /// For every MTU around the floor and the length that is quoted, and each other type and code: the
    /// message is that of a router that had reported the bounded MTU, with its checksum computed anew.
    #[test]
    fn an_mtu_is_bounded_by_the_floor_and_by_what_is_quoted() {
        let sent = |total: u16| {
            let mut quoted = ip(6, [VIP, CLIENT], 0, &[0xab; 8]);
            quoted[2..4].copy_from_slice(&total.to_be_bytes());
            quoted
        };
        let error = |kind, beside: u8, mtu: u16, total| {
            let [high, low] = mtu.to_be_bytes();
            let mut body = message(kind, &sent(total));
            body[4..8].copy_from_slice(&[0, beside, high, low]);
            body[2..4].fill(0);
            let sum = full(&body, 0).raw().to_ne_bytes();
            body[2..4].copy_from_slice(&sum);
            frame(&ip(1, [ROUTER, VIP], 0, &body))
        };
        let bound = |bytes: &mut [u8]| {
            with(bytes, |packet, message| {
                message.bound_mtu(&message.quote(packet).unwrap())
            })
        };
        let around = [
            0, 1, 67, 68, 552, 1279, 1280, 1281, 1499, 1500, 1501, 65_535,
        ];
        for (mtu, total) in around.into_iter().flat_map(|a| around.map(|b| (a, b))) {
            for beside in [0, 32] {
                let mut bytes = error([3, 4], beside, mtu, total);
                let before = bytes.clone();
                let found = bound(&mut bytes);
                if total <= mtu.max(1280) {
                    assert_eq!(found, Err(DropReason::MtuImplausible), "{mtu} {total}");
                    assert_eq!(bytes, before);
                } else {
                    assert_eq!(found, Ok(mtu < 1280), "{mtu} {total}");
                    assert_eq!(bytes, error([3, 4], beside, mtu.max(1280), total));
                }
            }
        }
        for kind in [[3, 0], [3, 1], [3, 3], [3, 5], [11, 4], [12, 4]] {
            let mut bytes = error(kind, 0, 68, 100);
            assert_eq!(bound(&mut bytes), Ok(false), "{kind:?}");
            assert_eq!(bytes, error(kind, 0, 68, 100));
        }
    }

    #[test]
    fn types_say_what_a_message_wants() {
        let kind = |kind, code| {
            let mut bytes = frame(&ip(1, [ROUTER, SNAT], 0, &message([kind, code], &[])));
            with(&mut bytes, |_, message| message.kind())
        };
        for number in 0..=255 {
            let wanted = match number {
                8 => Kind::Echo,
                3 | 11 | 12 => Kind::Error,
                4 | 5 => Kind::Advice,
                _ => Kind::Other,
            };
            assert_eq!(kind(number, 0), wanted, "{number}");
        }
        assert_eq!((kind(8, 1), kind(3, 4)), (Kind::Other, Kind::Error));
    }

    /// No length of the frame, and no value of its length fields, leads beyond its end.
    #[test]
    fn lengths_that_lie_are_malformed() {
        let segment = l4(6, [SNAT, NODE], [1024, 30918], true);
        let quoted = ip(6, [SNAT, NODE], 0, &segment[..8]);
        let whole = frame(&ip(1, [ROUTER, SNAT], 0, &message([11, 0], &quoted)));
        let judge = |mut bytes: Vec<u8>| {
            let packet = Slice::new(&mut bytes);
            let ethernet = packet.header::<Ethernet>(0).ok_or(DropReason::Malformed)?;
            let ip = packet.header(14).ok_or(DropReason::Malformed)?;
            let message = parse(&packet, ethernet, ip)?;
            message.quote(&packet).map(|_| ())
        };
        assert_eq!(judge(whole.clone()), Ok(()));
        for length in 0..whole.len() {
            let cut = whole[..length].to_vec();
            assert_eq!(judge(cut), Err(DropReason::Malformed), "{length}");
            if length >= 34 {
                // The frame is whole, the IP length is not.
                let mut short = whole.clone();
                short[17] = u8::try_from(length - 14).unwrap();
                assert_eq!(judge(short), Err(DropReason::Malformed), "{length}");
            }
        }
        for (at, value) in [(14, 0x44), (14, 0x4f), (42, 0x44), (42, 0x46), (42, 0x65)] {
            let mut lying = whole.clone();
            lying[at] = value;
            assert_eq!(judge(lying), Err(DropReason::Malformed), "{at} {value:x}");
        }
        for (at, value, reason) in [
            (20, 0x20, DropReason::Fragment),
            (21, 1, DropReason::Fragment),
            (49, 1, DropReason::IcmpUnrelated),
            (51, 1, DropReason::IcmpUnrelated),
        ] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(judge(other), Err(reason), "{at}");
        }
        let mut first = whole;
        first[48] = 0x20;
        assert_eq!(judge(first), Ok(()), "a first fragment has ports");
    }

    #[test]
    fn a_plausible_number_is_one_in_256() {
        let plausible = |protocol, sequence: u32, expected| {
            let mut segment = l4(6, [SNAT, NODE], [1024, 30918], true);
            segment[4..8].copy_from_slice(&sequence.to_be_bytes());
            let body = message([11, 0], &ip(protocol, [SNAT, NODE], 0, &segment));
            let mut bytes = frame(&ip(1, [ROUTER, SNAT], 0, &body));
            with(&mut bytes, |packet, message| {
                message.quote(packet).unwrap().is_plausible(expected)
            })
        };
        for expected in [1001, 0, 1, u32::MAX] {
            let at = |offset: i32| plausible(6, expected.wrapping_add_signed(offset), expected);
            assert_eq!([at(-2), at(-1), at(0)], [false, true, true]);
            assert_eq!([at((1 << 24) - 2), at((1 << 24) - 1)], [true, false]);
        }
        assert!(plausible(17, 0, 1 << 31), "UDP has no numbers");
    }
}
