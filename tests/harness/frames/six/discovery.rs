//! Neighbour discovery (RFC 4861): solicitations, advertisements, and what routers send.

use std::net::Ipv6Addr;

use lb_common::addr::Mac;

use crate::frames::packet::{Frame, icmp};

/// Types of the messages.
pub mod kind {
    /// Asks for routers.
    pub const ROUTER_SOLICITATION: u8 = 133;
    /// A router tells of itself.
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    /// Asks where an address is.
    pub const SOLICITATION: u8 = 135;
    /// Says where an address is.
    pub const ADVERTISEMENT: u8 = 136;
    /// A router tells of a better way.
    pub const REDIRECT: u8 = 137;
}

/// In an advertisement: it answers a solicitation.
pub const SOLICITED: u32 = 1 << 30;
/// In an advertisement: what was known before is wrong.
pub const OVERRIDE: u32 = 1 << 29;
/// The hop limit that says that no router was on the way.
const HOPS: u8 = 255;

/// The group of those that may have this address (RFC 4291 section 2.7.1).
#[must_use]
pub fn solicited_node(address: &str) -> Ipv6Addr {
    let [.., a, b, c] = octets(address);
    Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from_be_bytes([b, c]),
    )
}

/// The MAC of a group of IPv6 (RFC 2464 section 7).
#[must_use]
pub const fn group_mac(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac::new([0x33, 0x33, a, b, c, d])
}

/// `sender`, whose MAC is `from`, asks all hosts where `target` is.
#[must_use]
pub fn solicitation(from: Mac, sender: &str, target: &str) -> Frame {
    let group = solicited_node(target);
    solicitation_to(from, sender, target, (group_mac(group), &group.to_string()))
}

/// The same of one station: whether it is still there.
#[must_use]
pub fn solicitation_to(from: Mac, sender: &str, target: &str, to: (Mac, &str)) -> Frame {
    // A host without an address yet has no link-layer address to give (RFC 4861 section 4.3).
    let place = match sender {
        "::" => Vec::new(),
        _ => place(1, from),
    };
    let body = [octets(target).to_vec(), place].concat();
    message(sender, to, kind::SOLICITATION, 0, &body).between(from, to.0)
}

/// `sender`, whose MAC is `from`, says that `target` is there: to one station, or to all (`ff02::1`).
#[must_use]
pub fn advertisement(from: Mac, sender: &str, target: &str, to: (Mac, &str), flags: u32) -> Frame {
    let body = [octets(target).to_vec(), place(2, from)].concat();
    message(sender, to, kind::ADVERTISEMENT, flags, &body).between(from, to.0)
}

/// A router says that it is the way to everywhere, for half an hour.
#[must_use]
pub fn router_advertisement(from: Mac, sender: &str) -> Frame {
    let all: Ipv6Addr = "ff02::1".parse().expect("an address");
    let body = [vec![0; 8], place(1, from)].concat();
    let to = (group_mac(all), "ff02::1");
    message(
        sender,
        to,
        kind::ROUTER_ADVERTISEMENT,
        64 << 24 | 1800,
        &body,
    )
    .between(from, to.0)
}

/// A router says that `target` is the better way to `destination`.
#[must_use]
pub fn redirect(
    from: Mac,
    sender: &str,
    to: (Mac, &str),
    target: &str,
    destination: &str,
) -> Frame {
    let body = [octets(target), octets(destination)].concat();
    message(sender, to, kind::REDIRECT, 0, &body).between(from, to.0)
}

fn message(sender: &str, (_, to): (Mac, &str), kind: u8, rest: u32, body: &[u8]) -> Frame {
    icmp(sender, to, (kind, 0), rest).ttl(HOPS).payload(body)
}

/// The option that says a MAC: 1 is the sender's, 2 the target's.
fn place(kind: u8, mac: Mac) -> Vec<u8> {
    [&[kind, 1], mac.bytes().as_slice()].concat()
}

fn octets(address: &str) -> [u8; 16] {
    let address: Ipv6Addr = address.parse().expect("an IPv6 address");
    address.octets()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::six::check;

    const MAC: Mac = Mac::new([2, 0, 0, 0, 0xc, 1]);

    #[test]
    fn a_group_has_the_last_three_octets() {
        let group = solicited_node("fd00:203::1:2:0110");
        assert_eq!(group.to_string(), "ff02::1:ff02:110");
        assert_eq!(group_mac(group), Mac::new([0x33, 0x33, 0xff, 2, 1, 0x10]));
    }

    #[test]
    fn every_message_has_a_right_checksum() {
        let router = "fe80::1";
        let frames = [
            solicitation(MAC, "fd00:203::50", "fd00:203::110"),
            solicitation(MAC, "::", "fd00:203::110"),
            advertisement(MAC, router, router, (MAC, "fd00:203::50"), SOLICITED),
            router_advertisement(MAC, router),
            redirect(MAC, router, (MAC, "fd00:203::50"), "fe80::2", "fd00::9"),
        ];
        for (frame, length) in frames.iter().zip([86, 78, 86, 78, 94]) {
            let bytes = frame.bytes();
            assert_eq!((check(&bytes), bytes.len()), (Ok(()), length));
            assert_eq!(bytes[21], 255);
        }
    }
}
