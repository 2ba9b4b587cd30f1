//! A translation applied to a frame, with every checksum updated in place (RFC 1624).

use crate::{
    addr::{Be16, Be32, Be128, Mac},
    verdict::DropReason,
    wire::{
        Ip, Ipv4Frame, Ipv6Frame, L4,
        checksum::Delta,
        header::{Ethernet, Ipv4, Ipv6},
    },
};

/// What a packet's tuple becomes; the addresses are those of its IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation<A = Be32> {
    /// New source address.
    pub source: A,
    /// New destination address.
    pub destination: A,
    /// New source port.
    pub source_port: Be16,
    /// New destination port.
    pub destination_port: Be16,
}

/// Whether the frame may travel one more hop; to be checked before any state is made for it.
///
/// # Errors
///
/// `TtlExpired` (RFC 1812 section 5.3.1).
#[inline(always)]
pub fn check_hops(ip: &impl Ip) -> Result<(), DropReason> {
    if ip.hops() > 1 {
        Ok(())
    } else {
        Err(DropReason::TtlExpired)
    }
}

/// Whether a network with this MTU (0: not known) carries the packet; to be checked before any state is made
/// for it.
///
/// # Errors
///
/// `TooBig`.
#[inline(always)]
pub fn check_size(ip: &impl Ip, mtu: u16) -> Result<(), DropReason> {
    if mtu == 0 || ip.bytes() <= u32::from(mtu) {
        Ok(())
    } else {
        Err(DropReason::TooBig)
    }
}

/// Rewrites addresses and ports, and takes one hop off the time to live.
#[inline(always)]
pub fn translate(frame: &Ipv4Frame<'_>, to: &Translation) {
    let addresses = translate_header(frame.ip, to.source, to.destination);
    translate_layer4(frame.l4, addresses, to);
}

/// The same of IPv6, whose header has no checksum.
#[inline(always)]
pub fn translate6(frame: &Ipv6Frame<'_>, to: &Translation<Be128>) {
    let addresses = translate_header6(frame.ip, to.source, to.destination);
    translate_layer4(frame.l4, addresses, to);
}

/// Rewrites the ports; `addresses` is what has changed in front.
#[inline(always)]
fn translate_layer4<A>(l4: L4<'_>, addresses: Delta, to: &Translation<A>) {
    let (source_port, destination_port) = l4.ports();
    let delta = addresses
        .change16(source_port, to.source_port)
        .change16(destination_port, to.destination_port);
    match l4 {
        L4::Tcp(tcp) => {
            tcp.source.set(to.source_port);
            tcp.destination.set(to.destination_port);
            tcp.checksum.set(delta.apply(tcp.checksum.get()));
        }
        L4::Udp(udp) => {
            udp.source.set(to.source_port);
            udp.destination.set(to.destination_port);
            udp.checksum.set(delta.apply_udp(udp.checksum.get()));
        }
    }
}

/// Rewrites the addresses of an IP header, and takes one hop off the time to live. Gives what the new
/// addresses change in a checksum that covers them.
#[inline(always)]
pub fn translate_header(ip: &Ipv4, source: Be32, destination: Be32) -> Delta {
    let ttl = ip.ttl.get();
    let ttl_left = ttl.wrapping_sub(1);
    let addresses = Delta::default()
        .change32(ip.source.get(), source)
        .change32(ip.destination.get(), destination);
    let hop = addresses.change16(
        Be16::new(u16::from_be_bytes([ttl, 0])),
        Be16::new(u16::from_be_bytes([ttl_left, 0])),
    );
    ip.ttl.set(ttl_left);
    ip.checksum.set(hop.apply(ip.checksum.get()));
    ip.source.set(source);
    ip.destination.set(destination);
    addresses
}

/// The same of IPv6; takes one hop off as well.
#[inline(always)]
pub fn translate_header6(ip: &Ipv6, source: Be128, destination: Be128) -> Delta {
    let addresses = Delta::default()
        .change128(ip.source.get(), source)
        .change128(ip.destination.get(), destination);
    ip.hop_limit.set(ip.hop_limit.get().wrapping_sub(1));
    ip.source.set(source);
    ip.destination.set(destination);
    addresses
}

/// Gives the datagram another identification. Many clients share a SNAT address, and each counts for
/// itself: what may be in pieces needs one of ours (RFC 6864 section 5.3).
#[inline(always)]
pub fn renumber(ip: &Ipv4, identification: Be16) {
    let delta = Delta::default().change16(ip.identification.get(), identification);
    ip.checksum.set(delta.apply(ip.checksum.get()));
    ip.identification.set(identification);
}

/// Addresses the frame to the next hop.
#[inline(always)]
pub fn address_frame(ethernet: &Ethernet, source: Mac, destination: Mac) {
    ethernet.source.set(source);
    ethernet.destination.set(destination);
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::wire::{
        Packet, Slice,
        checksum::{full, pseudo_header},
        parse_ipv4,
    };

    fn address(text: &str) -> Be32 {
        Be32::from(text.parse::<Ipv4Addr>().unwrap())
    }

    /// A frame with right checksums: 54 bytes of TCP or 42 of UDP headers, and `payload`.
    fn frame(udp: bool, ttl: u8, payload: &[u8]) -> Vec<u8> {
        let l4_bytes = if udp { 8 } else { 20 };
        let length = u16::try_from(l4_bytes + payload.len()).unwrap();
        let mut bytes = Vec::from([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0]);
        bytes.extend((length + 20).to_be_bytes());
        bytes.extend([0, 1, 0x40, 0, ttl, if udp { 17 } else { 6 }, 0, 0]);
        bytes.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        let sum = full(&bytes[14..34], 0).raw().to_ne_bytes();
        bytes[24..26].copy_from_slice(&sum);
        bytes.extend([0x9c, 0x40, 0x19, 0x2b]);
        if udp {
            bytes.extend(length.to_be_bytes());
            bytes.extend([0, 0]);
        } else {
            bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
        }
        bytes.extend(payload);
        let at = if udp { 40 } else { 50 };
        let sum = l4_sum(&bytes).raw().to_ne_bytes();
        bytes[at..at + 2].copy_from_slice(&sum);
        bytes
    }

    /// The checksum over pseudo-header and payload with the field as it stands: 0 when right.
    fn l4_sum(bytes: &[u8]) -> Be16 {
        let raw =
            |at: usize| Be32::from_raw(u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()));
        let length = u16::try_from(bytes.len() - 34).unwrap();
        full(
            &bytes[34..],
            pseudo_header(raw(26), raw(30), bytes[23], length),
        )
    }

    fn translate_bytes(bytes: &mut [u8], to: &Translation) -> Result<(), DropReason> {
        let packet = Slice::new(bytes);
        let ethernet = packet.header::<Ethernet>(0).unwrap();
        let ip = packet.header::<Ipv4>(14).unwrap();
        let frame = parse_ipv4(&packet, ethernet, ip)?;
        check_hops(frame.ip)?;
        translate(&frame, to);
        Ok(())
    }

    fn to_backend() -> Translation {
        Translation {
            source: address("10.32.96.50"),
            destination: address("10.32.96.105"),
            source_port: Be16::new(1024),
            destination_port: Be16::new(30918),
        }
    }

    #[test]
    fn a_translated_frame_has_the_new_tuple_and_right_checksums() {
        for udp in [false, true] {
            for payload in [&b""[..], b"x", b"hello", &[0xff; 1400]] {
                let mut bytes = frame(udp, 64, payload);
                translate_bytes(&mut bytes, &to_backend()).unwrap();
                assert_eq!(bytes[22], 63);
                assert_eq!(bytes[26..34], [10, 32, 96, 50, 10, 32, 96, 105]);
                assert_eq!(bytes[34..38], [4, 0, 0x78, 0xc6]);
                assert_eq!(full(&bytes[14..34], 0).raw(), 0, "IP checksum");
                assert_eq!(l4_sum(&bytes).raw(), 0, "layer 4 checksum, udp {udp}");
                assert_eq!(&bytes[if udp { 42 } else { 54 }..], payload);
            }
        }
    }

    #[test]
    fn the_reverse_translation_gives_the_first_frame_back_but_for_the_hops() {
        for udp in [false, true] {
            let first = frame(udp, 64, b"payload");
            let mut bytes = first.clone();
            translate_bytes(&mut bytes, &to_backend()).unwrap();
            let back = Translation {
                source: address("192.168.203.50"),
                destination: address("192.168.203.110"),
                source_port: Be16::new(40000),
                destination_port: Be16::new(6443),
            };
            translate_bytes(&mut bytes, &back).unwrap();
            assert_eq!(bytes[22], 62);
            bytes[22] = 64;
            bytes[24..26].copy_from_slice(&first[24..26]);
            assert_eq!(bytes, first);
        }
    }

    #[test]
    fn a_new_identification_is_covered_by_the_checksum() {
        for identification in [0, 1, 2, 0x1234, 0xfffe, 0xffff] {
            let mut bytes = frame(true, 64, b"payload");
            let before = bytes.clone();
            let packet = Slice::new(&mut bytes);
            renumber(packet.header(14).unwrap(), Be16::new(identification));
            assert_eq!(bytes[18..20], identification.to_be_bytes());
            assert_eq!(full(&bytes[14..34], 0).raw(), 0, "IP checksum");
            bytes[18..20].copy_from_slice(&before[18..20]);
            bytes[24..26].copy_from_slice(&before[24..26]);
            assert_eq!(bytes, before, "nothing else");
        }
    }

    #[test]
    fn the_last_hop_is_not_spent() {
        for ttl in [0, 1] {
            let mut bytes = frame(false, ttl, b"");
            let before = bytes.clone();
            assert_eq!(
                translate_bytes(&mut bytes, &to_backend()),
                Err(DropReason::TtlExpired)
            );
            assert_eq!(bytes, before);
        }
    }

    #[test]
    fn a_udp_datagram_without_a_checksum_stays_without_one() {
        let mut bytes = frame(true, 64, b"abc");
        bytes[40..42].fill(0);
        translate_bytes(&mut bytes, &to_backend()).unwrap();
        assert_eq!(bytes[40..42], [0, 0]);
    }

    #[test]
    fn a_packet_fits_up_to_the_mtu_that_is_known() {
        let mut bytes = frame(false, 64, &[7; 60]);
        let packet = Slice::new(&mut bytes);
        let ip: &Ipv4 = packet.header(14).unwrap();
        assert_eq!(ip.total_length.get().get(), 100);
        for (mtu, fits) in [(0, true), (99, false), (100, true), (101, true)] {
            let wanted = if fits {
                Ok(())
            } else {
                Err(DropReason::TooBig)
            };
            assert_eq!(check_size(ip, mtu), wanted, "{mtu}");
        }
    }
}
