//! Checksums that a kernel's stack has left to the interface.
//!
//! A stack that sends over veth, virtio or tap writes the sum of the pseudo-header alone, for the
//! interface to add the rest. That this is still to be done stands beside the frame, where an XDP
//! program does not see it; so such a frame is recognised by that sum. One in 65,536 whole checksums
//! is equal to it as well: computed again, it is the same. That of a fragment is not looked at: a stack
//! computes what it cuts, and what is here is a part of what it covers.

use network_types::ip::IpProto;

use crate::{
    addr::Be16,
    wire::{
        Ipv4Frame, Ipv6Frame, L4, N16, N32, Packet,
        checksum::{fold, pseudo_header, pseudo_header6},
        header::{Ethernet, Ipv4, Ipv6, Tcp, Udp},
    },
};

/// The longest frame that is summed: 9,000 bytes and an Ethernet header with a tag.
pub const LONGEST: usize = 9018;

/// The checksum is whole, or there is none.
pub const WHOLE: u32 = 0;
/// It is the sum of the pseudo-header alone.
pub const OPEN: u32 = 1;
/// As [`OPEN`], in a frame that is too long to be summed.
pub const TOO_LONG: u32 = 2;

/// Bytes that are summed at once; each is a multiple of the next.
const LARGE: usize = 512;
const SMALL: usize = 32;
const WORD: usize = 4;

/// Makes the checksum of a TCP or UDP packet that has been parsed whole; one that is open stays so
/// where it is to `keep` it.
#[inline(always)]
pub fn complete<P: Packet>(packet: &P, keep: bool) -> u32 {
    state(packet, keep).unwrap_or(WHOLE)
}

/// Writes the sum of the pseudo-header into a frame that stays [`OPEN`], after all else is rewritten.
#[inline(always)]
pub fn reopen(frame: &Ipv4Frame<'_>) {
    let (field, length) = open_field(frame.l4, frame.payload);
    let (source, destination) = (frame.ip.source.get(), frame.ip.destination.get());
    let pseudo = pseudo_header(source, destination, frame.l4.protocol(), length);
    field.set(Be16::from_raw(fold(pseudo)));
}

/// The same of IPv6.
#[inline(always)]
pub fn reopen6(frame: &Ipv6Frame<'_>) {
    let (field, length) = open_field(frame.l4, frame.payload);
    let (source, destination) = (frame.ip.source.get(), frame.ip.destination.get());
    let pseudo = pseudo_header6(source, destination, frame.l4.protocol(), length);
    field.set(Be16::from_raw(fold(pseudo)));
}

/// The checksum of a packet with so many bytes behind its layer-4 header, and the length that it covers.
#[inline(always)]
fn open_field(l4: L4<'_>, payload: u16) -> (&N16, u16) {
    match l4 {
        L4::Tcp(tcp) => {
            let header = u16::from(tcp.data_offset.get() >> 4) * 4;
            (&tcp.checksum, payload.wrapping_add(header))
        }
        L4::Udp(udp) => (&udp.checksum, udp.length.get().get()),
    }
}

/// As [`complete`], for a packet of IPv6 whose layer-4 header of `protocol` begins at `first`, and that has no
/// fragment header.
#[inline(always)]
pub fn complete6<P: Packet>(packet: &P, protocol: u8, first: usize, keep: bool) -> u32 {
    state6(packet, protocol, first, keep).unwrap_or(WHOLE)
}

/// Where the layer-4 part of a packet begins, and how long it is.
#[derive(Clone, Copy)]
struct Extent {
    first: usize,
    bytes: usize,
}

#[inline(always)]
fn extent<P: Packet>(packet: &P) -> Option<Extent> {
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    let header = usize::from(ip.version_ihl.get() & 15) * 4;
    let first = size_of::<Ethernet>() + header;
    let bytes = if ip.protocol.get() == IpProto::Udp as u8 {
        // What is behind the datagram, but inside the packet, does not count.
        usize::from(packet.header::<Udp>(first)?.length.get().get())
    } else {
        usize::from(ip.total_length.get().get()).checked_sub(header)?
    };
    Some(Extent { first, bytes })
}

/// The checksum field.
#[inline(always)]
fn field<P: Packet>(packet: &P, udp: bool, first: usize) -> Option<&N16> {
    if udp {
        Some(&packet.header::<Udp>(first)?.checksum)
    } else {
        Some(&packet.header::<Tcp>(first)?.checksum)
    }
}

#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "read from 16 bits, perhaps made smaller"
)]
fn state<P: Packet>(packet: &P, keep: bool) -> Option<u32> {
    let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
    if ip.is_fragment() {
        return Some(WHOLE);
    }
    let protocol = ip.protocol.get();
    let udp = protocol == IpProto::Udp as u8;
    let Extent { first, bytes } = extent(packet)?;
    let (source, destination) = (ip.source.get(), ip.destination.get());
    // Addresses are not zero, so neither is this: a UDP datagram without a checksum stays so.
    let pseudo = fold(pseudo_header(source, destination, protocol, bytes as u16));
    if field(packet, udp, first)?.get().raw() != pseudo {
        return Some(WHOLE);
    }
    if first + bytes > LONGEST {
        return Some(TOO_LONG);
    }
    let sum = sum(packet, || extent(packet))?;
    settle(field(packet, udp, first)?, udp, sum, keep)
}

#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "read from 16 bits, perhaps made smaller"
)]
fn state6<P: Packet>(packet: &P, protocol: u8, first: usize, keep: bool) -> Option<u32> {
    let ip: &Ipv6 = packet.header(size_of::<Ethernet>())?;
    let udp = protocol == IpProto::Udp as u8;
    let Extent { bytes, .. } = extent6(packet, udp, first)?;
    let (source, destination) = (ip.source.get(), ip.destination.get());
    let pseudo = fold(pseudo_header6(source, destination, protocol, bytes as u16));
    if field(packet, udp, first)?.get().raw() != pseudo {
        return Some(WHOLE);
    }
    if first + bytes > LONGEST {
        return Some(TOO_LONG);
    }
    let sum = sum(packet, || extent6(packet, udp, first))?;
    settle(field(packet, udp, first)?, udp, sum, keep)
}

#[inline(always)]
fn extent6<P: Packet>(packet: &P, udp: bool, first: usize) -> Option<Extent> {
    let ip: &Ipv6 = packet.header(size_of::<Ethernet>())?;
    let bytes = if udp {
        usize::from(packet.header::<Udp>(first)?.length.get().get())
    } else {
        let end =
            size_of::<Ethernet>() + size_of::<Ipv6>() + usize::from(ip.payload_length.get().get());
        end.checked_sub(first)?
    };
    Some(Extent { first, bytes })
}

/// What becomes of an open checksum whose packet, the field itself included, has this sum: that field adds
/// the sum of the pseudo-header.
#[inline(always)]
fn settle(field: &N16, udp: bool, sum: u64, keep: bool) -> Option<u32> {
    let whole = match !fold(sum) {
        0 if udp => 0xffff,
        whole => whole,
    };
    if !keep {
        field.set(Be16::from_raw(whole));
    } else if whole != field.get().raw() {
        return Some(OPEN);
    }
    Some(WHOLE)
}

/// The sum of a packet's layer-4 part.
///
/// The extent is read again for each size of blocks: then the verifier does not know how many larger
/// ones there were, and walks the rest once instead of once for each number.
#[inline(always)]
fn sum<P: Packet>(packet: &P, extent: impl Fn() -> Option<Extent>) -> Option<u64> {
    let short = || short(&extent);
    let mut sum = 0;
    let Extent { first, bytes } = short()?;
    for index in 0..LONGEST / LARGE {
        let at = index * LARGE;
        if at + LARGE > bytes {
            break;
        }
        sum += packet.sum::<LARGE>(first + at)?;
    }
    let Extent { first, bytes } = short()?;
    for index in 0..LARGE / SMALL {
        let at = (bytes & !(LARGE - 1)) + index * SMALL;
        if at + SMALL > bytes {
            break;
        }
        sum += packet.sum::<SMALL>(first + at)?;
    }
    let Extent { first, bytes } = short()?;
    for index in 0..SMALL / WORD {
        let at = (bytes & !(SMALL - 1)) + index * WORD;
        if at + WORD > bytes {
            break;
        }
        sum += u64::from(packet.header::<N32>(first + at)?.get().raw());
    }
    let Extent { first, bytes } = short()?;
    if bytes & 2 != 0 {
        let half: &N16 = packet.header(first + (bytes & !3))?;
        sum += u64::from(half.get().raw());
    }
    if bytes & 1 != 0 {
        // With the byte before it, because the verifier learns nothing from the check of a single one;
        // the mask keeps it from seeing the subtraction, and clears no bit.
        let pair = first + (bytes.wrapping_sub(2) & 0x3fff);
        let [_, last] = packet.header::<N16>(pair)?.get().raw().to_ne_bytes();
        sum += u64::from(u16::from_ne_bytes([last, 0]));
    }
    Some(sum)
}

/// An extent that is not too long, in numbers that have a bound.
#[inline(always)]
fn short(extent: &impl Fn() -> Option<Extent>) -> Option<Extent> {
    extent().filter(|extent| extent.bytes <= LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        addr::Be32,
        wire::{Slice, checksum::full, parse_ipv4},
    };

    /// A frame with `payload` bytes of data, a zero checksum, and IP options (bytes).
    fn frame(udp: bool, options: u8, payload: usize) -> Vec<u8> {
        let header = if udp { 8 } else { 20 };
        let length = u16::try_from(header + payload).unwrap();
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        bytes.extend([0x45 + options / 4, 0]);
        bytes.extend((20 + u16::from(options) + length).to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, 64, if udp { 17 } else { 6 }, 0, 0]);
        bytes.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        bytes.extend(vec![1; usize::from(options)]);
        bytes.extend([0x9c, 0x40, 0x19, 0x2b]);
        if udp {
            bytes.extend(length.to_be_bytes());
            bytes.extend([0, 0]);
        } else {
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        }
        bytes.extend((0..payload).map(|at| u8::try_from(at * 7 % 251).unwrap()));
        bytes
    }

    /// Offset of the checksum, and the sum of the pseudo-header, of a frame.
    fn parts(bytes: &[u8]) -> (usize, u64) {
        let first = 14 + usize::from(bytes[14] & 15) * 4;
        let udp = bytes[23] == 17;
        let address =
            |at: usize| Be32::new(u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap()));
        let length = u16::try_from(bytes.len() - first).unwrap();
        let pseudo = pseudo_header(address(26), address(30), bytes[23], length);
        (first + if udp { 6 } else { 16 }, pseudo)
    }

    fn with(bytes: &[u8], checksum: u16) -> Vec<u8> {
        let (at, _) = parts(bytes);
        let mut bytes = bytes.to_vec();
        bytes[at..at + 2].copy_from_slice(&checksum.to_ne_bytes());
        bytes
    }

    /// The frame as a stack leaves it to the interface.
    fn open(bytes: &[u8]) -> Vec<u8> {
        let (_, pseudo) = parts(bytes);
        // Not inverted: `full` of no bytes inverts what it is given.
        with(bytes, !full(&[], pseudo).raw())
    }

    /// The frame with its checksum, computed at once.
    fn whole(bytes: &[u8]) -> Vec<u8> {
        let (at, pseudo) = parts(bytes);
        let first = if bytes[23] == 17 { at - 6 } else { at - 16 };
        let checksum = full(&with(bytes, 0)[first..], pseudo).raw();
        let checksum = if checksum == 0 && bytes[23] == 17 {
            0xffff
        } else {
            checksum
        };
        with(bytes, checksum)
    }

    fn completed(bytes: &[u8], keep: bool) -> (u32, Vec<u8>) {
        let mut bytes = bytes.to_vec();
        let state = complete(&Slice::new(&mut bytes), keep);
        (state, bytes)
    }

    #[test]
    fn an_open_checksum_becomes_whole_at_every_length() {
        for udp in [false, true] {
            for options in [0, 4, 40] {
                for payload in (0..1600).chain([8000, 8903, 8904, 8924]) {
                    let frame = frame(udp, options, payload);
                    let found = completed(&open(&frame), false);
                    assert!(
                        found == (WHOLE, whole(&frame)),
                        "udp {udp}, {options} bytes of options, {payload} of data"
                    );
                }
            }
        }
    }

    #[test]
    fn a_whole_checksum_stays_and_so_does_a_wrong_one() {
        for udp in [false, true] {
            for payload in 0..100 {
                let frame = frame(udp, 0, payload);
                for bytes in [whole(&frame), with(&whole(&frame), 0x1234), with(&frame, 0)] {
                    for keep in [false, true] {
                        assert_eq!(completed(&bytes, keep), (WHOLE, bytes.clone()));
                    }
                }
            }
        }
    }

    /// The first fragment of a larger packet may have the sum of a pseudo-header of its own length by chance,
    /// or, of a datagram, of its whole length, which may be more than is ever summed.
    #[test]
    fn the_checksum_of_a_first_fragment_stays() {
        for payload in [24, 100, LONGEST - 54, LONGEST] {
            for udp in [false, true] {
                let mut bytes = open(&frame(udp, 0, payload));
                for field in [0x20, 0x60] {
                    bytes[20] = field;
                    for keep in [false, true] {
                        assert_eq!(completed(&bytes, keep), (WHOLE, bytes.clone()), "{udp}");
                    }
                }
            }
        }
    }

    /// Data that makes the whole checksum equal to the sum of the pseudo-header.
    fn coincidence(udp: bool) -> Vec<u8> {
        let mut bytes = frame(udp, 0, 2);
        let end = bytes.len() - 2;
        let found = (0..=u16::MAX).find(|word| {
            bytes[end..].copy_from_slice(&word.to_ne_bytes());
            whole(&bytes) == open(&bytes)
        });
        assert!(found.is_some());
        bytes
    }

    #[test]
    fn a_whole_checksum_that_looks_open_is_computed_to_itself() {
        for udp in [false, true] {
            let bytes = whole(&coincidence(udp));
            assert_eq!(completed(&bytes, false), (WHOLE, bytes.clone()));
            assert_eq!(completed(&bytes, true), (WHOLE, bytes.clone()));
        }
    }

    #[test]
    fn a_computed_zero_is_sent_as_ones_for_udp_alone() {
        for (udp, zero) in [(true, 0xffff), (false, 0)] {
            let mut bytes = frame(udp, 0, 2);
            let end = bytes.len() - 2;
            let (at, _) = parts(&bytes);
            let sent_as = |bytes: &[u8]| [bytes[at], bytes[at + 1]] == u16::to_ne_bytes(zero);
            let found = (0..=u16::MAX).find(|word| {
                bytes[end..].copy_from_slice(&word.to_ne_bytes());
                sent_as(&whole(&bytes))
            });
            assert!(found.is_some());
            assert_eq!(completed(&open(&bytes), false), (WHOLE, whole(&bytes)));
        }
    }

    #[test]
    fn what_is_kept_open_is_the_sum_of_its_new_pseudo_header() {
        for udp in [false, true] {
            let frame = frame(udp, 4, 33);
            let (state, mut bytes) = completed(&open(&frame), true);
            assert_eq!((state, &bytes), (OPEN, &open(&frame)));
            bytes[26..34].copy_from_slice(&[10, 32, 96, 50, 10, 32, 96, 105]);
            let wanted = open(&bytes);
            let packet = Slice::new(&mut bytes);
            let ethernet = packet.header(0).unwrap();
            reopen(&parse_ipv4(&packet, ethernet, packet.header(14).unwrap()).unwrap());
            assert_eq!(bytes, wanted);
        }
    }

    #[test]
    fn padding_is_not_summed() {
        let tcp = frame(false, 0, 5);
        let padded = [open(&tcp), vec![7; 3]].concat();
        let wanted = [whole(&tcp), vec![7; 3]].concat();
        assert_eq!(completed(&padded, false), (WHOLE, wanted));
        // The packet is longer than the datagram in it.
        let mut longer = [open(&frame(true, 0, 5)), vec![7; 3]].concat();
        longer[17] += 3;
        let mut wanted = [whole(&frame(true, 0, 5)), vec![7; 3]].concat();
        wanted[17] += 3;
        assert_eq!(completed(&longer, false), (WHOLE, wanted));
    }

    #[test]
    fn what_is_too_long_is_said_to_be() {
        for (udp, header) in [(false, 54), (true, 42)] {
            let longest = open(&frame(udp, 0, LONGEST - header));
            assert_eq!(completed(&longest, false).0, WHOLE);
            let longer = open(&frame(udp, 0, LONGEST + 1 - header));
            assert_eq!(completed(&longer, false), (TOO_LONG, longer.clone()));
            let longer = whole(&longer);
            assert_eq!(completed(&longer, false), (WHOLE, longer.clone()));
        }
    }

    #[test]
    fn lying_lengths_and_truncations_are_survived() {
        for udp in [false, true] {
            let frame = open(&frame(udp, 0, 50));
            for length in 0..frame.len() {
                let (_, bytes) = completed(&frame[..length], false);
                assert_eq!(bytes, frame[..length], "nothing is written");
            }
        }
    }
}
