//! A sampled frame of IPv6 (RFC 8200) in words. A sample ends soon behind its header, so what it does not
//! reach is left out: most often the flags of TCP.

use std::net::{IpAddr, Ipv6Addr};

use lb_common::verdict::DropReason;

use super::{SampledPacket, ends, protocol, tcp_flags};

/// Where the header stands in an untagged frame, and its bytes.
const AT: usize = 14;
const BYTES: usize = 40;
/// Extension headers that are looked behind; no host sends more.
const MAX_EXTENSION_HEADERS: usize = 8;

const HOP_BY_HOP: u8 = 0;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMP: u8 = 58;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;

/// What stands behind the extension headers.
struct Payload {
    /// Its protocol; none if the sample does not reach it.
    protocol: Option<u8>,
    /// Where it begins in the frame.
    at: usize,
    is_fragment: bool,
}

/// The untagged frame of `length` bytes whose first ones are `known`; none if it does not begin as one of
/// IPv6, whatever its type is.
pub(super) fn read(known: &[u8], length: usize) -> Option<SampledPacket> {
    let header = known.get(AT..AT + BYTES)?;
    if header.first()? >> 4 != 6 {
        return None;
    }
    let addresses = [8, 24].map(|at| address(header, at));
    let [Some(from), Some(to)] = addresses else {
        return None;
    };
    let end = AT + BYTES + usize::from(number(header, 4)?);
    let payload = payload(known, *header.get(6)?);
    let (ports, flags) = words(known, &payload, end, length);
    let [source, destination] = ends([from, to], ports);
    Some(SampledPacket {
        vlan: None,
        protocol: match payload.protocol {
            Some(number) => protocol(number),
            None => "ipv6".to_owned(),
        },
        source,
        destination,
        flags,
    })
}

/// Walks over the extension headers (RFC 8200 section 4.1, RFC 4302, RFC 6275).
fn payload(known: &[u8], first: u8) -> Payload {
    let mut payload = Payload {
        protocol: Some(first),
        at: AT + BYTES,
        is_fragment: false,
    };
    for _ in 0..MAX_EXTENSION_HEADERS {
        let at = payload.at;
        let eighths = |add: u8, unit: usize| {
            let length = known.get(at + 1)?;
            Some((usize::from(*length) + usize::from(add)) * unit)
        };
        let bytes = match payload.protocol {
            Some(HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY) => eighths(1, 8),
            Some(AUTHENTICATION) => eighths(2, 4),
            Some(FRAGMENT) => {
                // All but the reserved bits: an offset, or more to come.
                payload.is_fragment |= number(known, at + 2).is_some_and(|word| word & 0xfff9 != 0);
                Some(8)
            }
            _ => return payload,
        };
        payload.protocol = known.get(at).copied().filter(|_| bytes.is_some());
        payload.at += bytes.unwrap_or_default();
    }
    payload
}

/// Ports, and what else is known of the payload, which ends at `end` of a frame of `length` bytes.
fn words(
    known: &[u8],
    payload: &Payload,
    end: usize,
    length: usize,
) -> (Option<[u16; 2]>, Option<String>) {
    let at = payload.at;
    let least = match payload.protocol {
        Some(TCP) => 20,
        Some(UDP | ICMP) => 8,
        _ => 0,
    };
    if payload.is_fragment {
        return (None, Some(DropReason::Fragment.label().to_owned()));
    }
    if end > length || at + least > end {
        return (None, Some(DropReason::Malformed.label().to_owned()));
    }
    let ports = || Some([number(known, at)?, number(known, at + 2)?]);
    let byte = |offset: usize| known.get(at + offset).copied();
    match payload.protocol {
        Some(TCP) => (ports(), byte(13).map(tcp_flags)),
        Some(UDP) => (ports(), None),
        Some(ICMP) => (None, byte(0).map(message)),
        _ => (None, None),
    }
}

/// What an ICMPv6 message is (RFC 4443, RFC 4861, RFC 2710, RFC 3810).
fn message(kind: u8) -> String {
    let words = match kind {
        1 => "unreachable",
        2 => "too_big",
        3 => "time_exceeded",
        4 => "parameter_problem",
        128 => "echo_request",
        129 => "echo_reply",
        130..=132 | 143 => "multicast_listener",
        133 => "router_solicitation",
        134 => "router_advertisement",
        135 => "neighbor_solicitation",
        136 => "neighbor_advertisement",
        137 => "redirect",
        other => return other.to_string(),
    };
    words.to_owned()
}

fn address(header: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    let two: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_be_bytes(two))
}

#[cfg(test)]
mod tests {
    use lb_common::maps::drop_sample::SAMPLE_WORDS;

    use super::*;

    const ENDS: &str = "2001:db8::50 > fd00::110";
    const TUPLE: &str = "[2001:db8::50]:40000 > [fd00::110]:6443";

    /// A frame of IPv6 with this next header, whose payload length is right.
    fn frame(next: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        bytes.extend([0x60, 0, 0, 0, length[0], length[1], next, 64]);
        for address in ["2001:db8::50", "fd00::110"] {
            bytes.extend(address.parse::<Ipv6Addr>().unwrap().octets());
        }
        bytes.extend(payload);
        bytes
    }

    fn tcp() -> Vec<u8> {
        let mut tcp = vec![0x9c, 0x40, 0x19, 0x2b, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12];
        tcp.resize(20, 0);
        tcp
    }

    /// An extension header of `words` words of eight bytes, and what is behind it.
    fn behind(next: u8, words: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![next, words - 1];
        bytes.resize(usize::from(words) * 8, 0);
        bytes.extend(payload);
        bytes
    }

    fn line(known: &[u8], length: usize) -> String {
        let packet = read(known, length).unwrap();
        let flags = packet.flags.as_deref().unwrap_or("-");
        format!("{} {} {flags}", packet.protocol, packet.ends())
    }

    /// The line of a frame of which a sample has its first bytes.
    fn sampled(bytes: &[u8]) -> String {
        let kept = bytes.len().min(4 * SAMPLE_WORDS);
        line(&bytes[..kept], bytes.len())
    }

    fn whole(bytes: &[u8]) -> String {
        line(bytes, bytes.len())
    }

    #[test]
    fn a_segment_has_its_tuple_and_its_flags_if_they_are_reached() {
        let segment = frame(TCP, &tcp());
        assert_eq!(sampled(&segment), format!("tcp {TUPLE} -"));
        assert_eq!(whole(&segment), format!("tcp {TUPLE} SYN|ACK"));
        let datagram = frame(UDP, &[0x9c, 0x40, 0x19, 0x2b, 0, 8, 0, 0]);
        assert_eq!(sampled(&datagram), format!("udp {TUPLE} -"));
    }

    #[test]
    fn extension_headers_are_looked_behind() {
        for next in [HOP_BY_HOP, ROUTING, DESTINATION, MOBILITY] {
            for words in [1, 2, 7] {
                let bytes = frame(next, &behind(TCP, words, &tcp()));
                assert_eq!(whole(&bytes), format!("tcp {TUPLE} SYN|ACK"));
            }
        }
        let authenticated = frame(AUTHENTICATION, &behind(TCP, 5, &[0; 4])[..]);
        // Its length counts words of four bytes, but for two of them.
        let mut bytes = authenticated[..AT + BYTES + 24].to_vec();
        bytes.extend(tcp());
        let length = u16::try_from(bytes.len() - AT - BYTES).unwrap();
        bytes[AT + 4..AT + 6].copy_from_slice(&length.to_be_bytes());
        assert_eq!(whole(&bytes), format!("tcp {TUPLE} SYN|ACK"));
        let two = behind(DESTINATION, 1, &behind(TCP, 1, &tcp()));
        assert_eq!(
            whole(&frame(HOP_BY_HOP, &two)),
            format!("tcp {TUPLE} SYN|ACK")
        );
        // The sample ends in the first of them, or in the second.
        assert_eq!(sampled(&frame(HOP_BY_HOP, &two)), format!("tcp {ENDS} -"));
        let long = behind(DESTINATION, 2, &behind(TCP, 1, &tcp()));
        assert_eq!(sampled(&frame(HOP_BY_HOP, &long)), format!("ipv6 {ENDS} -"));
    }

    #[test]
    fn a_fragment_has_no_ports_unless_it_is_the_whole() {
        let fragment = |word: u16| {
            let [high, low] = word.to_be_bytes();
            let mut header = vec![TCP, 0, high, low, 0, 0, 0, 7];
            header.extend(tcp());
            whole(&frame(FRAGMENT, &header))
        };
        assert_eq!(fragment(1), format!("tcp {ENDS} fragment"));
        assert_eq!(fragment(185 << 3), format!("tcp {ENDS} fragment"));
        assert_eq!(fragment(0), format!("tcp {TUPLE} SYN|ACK"));
    }

    #[test]
    fn other_protocols_have_their_names() {
        let message = |kind: u8| {
            let mut bytes = vec![kind, 0, 0, 0];
            bytes.resize(24, 0);
            sampled(&frame(ICMP, &bytes))
        };
        assert_eq!(message(135), format!("icmpv6 {ENDS} neighbor_solicitation"));
        assert_eq!(message(2), format!("icmpv6 {ENDS} too_big"));
        assert_eq!(message(200), format!("icmpv6 {ENDS} 200"));
        let report = behind(ICMP, 1, &[143, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            sampled(&frame(HOP_BY_HOP, &report)),
            format!("icmpv6 {ENDS} multicast_listener")
        );
        assert_eq!(sampled(&frame(47, &[8; 8])), format!("ip-47 {ENDS} -"));
        assert_eq!(sampled(&frame(59, &[])), format!("ip-59 {ENDS} -"));
    }

    #[test]
    fn what_is_too_short_for_what_it_says_is_malformed() {
        let mut lying = frame(TCP, &tcp());
        lying[AT + 5] = 21;
        assert_eq!(whole(&lying), format!("tcp {ENDS} malformed"));
        lying[AT + 5] = 19;
        assert_eq!(whole(&lying), format!("tcp {ENDS} malformed"));
        let mut other = frame(TCP, &tcp());
        other[AT] = 0x45;
        assert_eq!(read(&other, other.len()), None);
        assert_eq!(read(&lying[..AT + BYTES - 1], 9999), None);
    }
}
