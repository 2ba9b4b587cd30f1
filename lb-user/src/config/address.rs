//! Addresses, prefixes and ports from text. Every refusal says what was found and what is expected.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::RangeInclusive,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    listen::{Listen, Protocol},
    number::number,
    place::quote,
};

/// The prefix lengths that a network may have, of IPv4 and IPv6: a shorter one is no layer-2 network, and
/// a longer one has no host addresses beside those with a meaning of their own.
const PREFIX_LENGTHS: [RangeInclusive<u8>; 2] = [8..=30, 16..=126];

/// Those of a prefix of any length.
const ANY_LENGTHS: [RangeInclusive<u8>; 2] = [0..=32, 0..=128];

/// The length of the prefix that all IPv4-mapped addresses are in (RFC 4291 section 2.5.5.2).
const MAPPED_LENGTH: u8 = 96;

/// The first port that needs no privilege.
const FIRST_OPEN_PORT: u16 = 1024;

/// The family of an address, for messages.
pub(super) const fn family(address: IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "IPv4",
        IpAddr::V6(_) => "IPv6",
    }
}

/// An on-link prefix in canonical form, such as `10.32.96.0/20`.
pub(super) fn prefix(text: &str) -> Result<IpNet, String> {
    prefix_of_length(text, PREFIX_LENGTHS)
}

/// A prefix of any length, in canonical form.
pub(super) fn any_prefix(text: &str) -> Result<IpNet, String> {
    prefix_of_length(text, ANY_LENGTHS)
}

fn prefix_of_length(text: &str, lengths: [RangeInclusive<u8>; 2]) -> Result<IpNet, String> {
    let Some((written, length)) = text.split_once('/') else {
        let example = match address(text)? {
            IpAddr::V4(_) => "10.32.96.0/20",
            IpAddr::V6(_) => "fd00:32:96::/64",
        };
        return Err(format!(
            "{} has no prefix length; expected a prefix such as {example}",
            quote(text)
        ));
    };
    let address = address_of_any_kind(written)?;
    let is_mapped = address.is_ipv4() && written.contains(':');
    let [of_4, of_6] = lengths;
    let lengths = if address.is_ipv4() { of_4 } else { of_6 };
    let length = number(length)
        .and_then(|length| u8::try_from(length).ok())
        .and_then(|length| length.checked_sub(if is_mapped { MAPPED_LENGTH } else { 0 }))
        .filter(|length| lengths.contains(length));
    let Some(prefix) = length.and_then(|length| IpNet::new(address, length).ok()) else {
        return Err(format!(
            "{} has no prefix length of {} to {}",
            quote(text),
            lengths.start(),
            lengths.end()
        ));
    };
    let canonical = prefix.trunc();
    if prefix != canonical {
        return Err(format!(
            "{prefix} has host bits set; did you mean {canonical}?"
        ));
    }
    match kind_of(canonical) {
        Some(kind) => Err(format!("{prefix} is {kind}; expected unicast addresses")),
        None => Ok(canonical),
    }
}

/// `FIRST-LAST`, such as `1024-57343`.
pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, String> {
    let Some((first, last)) = text.split_once('-') else {
        return Err(format!(
            "{} is not a range of ports; expected FIRST-LAST such as 1024-57343",
            quote(text)
        ));
    };
    let (first, last) = (port(first)?, port(last)?);
    if first > last {
        return Err(format!("{first}-{last} ends before it starts"));
    }
    Ok(first..=last)
}

/// A unicast address, such as `10.32.96.50` or `fd00:32:96::50`.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    let address = address_of_any_kind(text)?;
    unicast(address)?;
    Ok(address)
}

/// The address of a gateway, which may be link-local if it is of IPv6: most routers have no other.
pub(super) fn gateway(text: &str) -> Result<IpAddr, String> {
    match address_of_any_kind(text)? {
        IpAddr::V6(address) if address.is_unicast_link_local() => Ok(address.into()),
        _ => address(text),
    }
}

/// `ADDRESS:PORT`, such as `10.32.96.105:30918`; an IPv6 address is in brackets.
pub(super) fn address_and_port(text: &str) -> Result<(IpAddr, u16), String> {
    let port_follows = text
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty() && text.parse::<Ipv6Addr>().is_err())
        .filter(|_| !text.ends_with(']'));
    let Some((host, port_text)) = port_follows else {
        let is_6 = text.contains(':') && address_of_any_kind(text)?.is_ipv6();
        let form = if is_6 {
            "[ADDRESS]:PORT"
        } else {
            "ADDRESS:PORT"
        };
        return Err(format!("{} has no port; expected {form}", quote(text)));
    };
    let address = address(host)?;
    if address.is_ipv6() && !host.starts_with('[') {
        return Err(format!(
            "{} has no brackets around its IPv6 address; expected [ADDRESS]:PORT",
            quote(text)
        ));
    }
    Ok((address, port(port_text)?))
}

/// `ADDRESS:PORT` of the host itself, such as `127.0.0.1:9180`; an IPv6 address is in brackets.
pub(super) fn endpoint_of_host(text: &str) -> Result<SocketAddr, String> {
    let endpoint = text.parse::<SocketAddr>().ok();
    let usable = endpoint.filter(|endpoint| endpoint.port() > 0 && !endpoint.ip().is_multicast());
    usable.ok_or_else(|| {
        format!(
            "{} is not an address and port of this host; expected one such as 127.0.0.1:9180 or [::1]:9180",
            quote(text)
        )
    })
}

/// `ADDRESS:PORT` at which another box reaches one, such as `10.99.0.1:7433`.
pub(super) fn endpoint_of_box(text: &str) -> Result<SocketAddr, String> {
    let endpoint = text.parse::<SocketAddr>().ok();
    let usable = endpoint
        .filter(|endpoint| !endpoint.ip().is_multicast() && !endpoint.ip().is_unspecified());
    let usable = usable.ok_or_else(|| {
        format!(
            "{} is not an address and port of a box; expected one such as 10.99.0.1:7433 or [fd00:99::1]:7433",
            quote(text)
        )
    })?;
    if usable.port() < FIRST_OPEN_PORT {
        return Err(format!(
            "found port {}, expected {FIRST_OPEN_PORT} to {}: lb gives up the privilege for lower ones",
            usable.port(),
            u16::MAX
        ));
    }
    Ok(usable)
}

/// `ADDRESS:PORT/PROTOCOL`, such as `192.168.203.110:6443/tcp`.
pub(super) fn listen(text: &str) -> Result<Listen, String> {
    let Some((rest, protocol)) = text.rsplit_once('/') else {
        address_and_port(text)?;
        return Err(format!(
            "{} has no protocol; expected ADDRESS:PORT/tcp or ADDRESS:PORT/udp",
            quote(text)
        ));
    };
    let (address, port) = address_and_port(rest)?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => {
            return Err(format!(
                "{} is not a protocol; expected tcp or udp",
                quote(protocol)
            ));
        }
    };
    Ok(Listen {
        address,
        port,
        protocol,
    })
}

fn port(text: &str) -> Result<u16, String> {
    number(text)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("{} is not a port; expected 1 to 65535", quote(text)))
}

/// An IP address, alone or in brackets. The IPv4-mapped IPv6 address that some programs print is the IPv4
/// address.
fn address_of_any_kind(text: &str) -> Result<IpAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(IpAddr::V4(address));
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    match bare.unwrap_or(text).parse::<Ipv6Addr>() {
        Ok(address) => Ok(address.to_canonical()),
        Err(_) => Err(format!("{} is not an IP address", quote(text))),
    }
}

fn unicast(address: IpAddr) -> Result<(), String> {
    match kind_of(IpNet::from(address)) {
        Some(kind) => Err(format!("{address} is {kind}; expected a unicast address")),
        None => Ok(()),
    }
}

/// What the addresses of `prefix` are, if no host can have them.
fn kind_of(prefix: IpNet) -> Option<&'static str> {
    match prefix {
        IpNet::V4(prefix) => kind_of_4(prefix),
        IpNet::V6(prefix) => kind_of_6(prefix),
    }
}

/// RFC 6890.
fn kind_of_4(prefix: Ipv4Net) -> Option<&'static str> {
    let within = |first: u8, second: u8, length: u8| {
        let bogon = Ipv4Net::new_assert(Ipv4Addr::new(first, second, 0, 0), length);
        bogon.contains(&prefix)
    };
    let address = prefix.network();
    if prefix.prefix_len() == 32 && address == Ipv4Addr::UNSPECIFIED {
        Some("the unspecified address")
    } else if within(0, 0, 8) {
        Some("an address of \"this network\" (0.0.0.0/8)")
    } else if within(127, 0, 8) {
        Some("a loopback address")
    } else if within(169, 254, 16) {
        Some("a link-local address")
    } else if within(224, 0, 4) {
        Some("a multicast address")
    } else if prefix.prefix_len() == 32 && address == Ipv4Addr::BROADCAST {
        Some("the broadcast address")
    } else if within(224, 0, 3) {
        Some("a reserved address")
    } else {
        None
    }
}

/// RFC 4291 section 2.4, and what stands for an IPv4 address, which has rules of its own: the data plane
/// takes none of these for a client.
fn kind_of_6(prefix: Ipv6Net) -> Option<&'static str> {
    let within = |segments: [u16; 8], length: u8| {
        let bogon = Ipv6Net::new_assert(segments.into(), length);
        bogon.contains(&prefix)
    };
    let address = prefix.network();
    if prefix.prefix_len() == 128 && address == Ipv6Addr::UNSPECIFIED {
        Some("the unspecified address")
    } else if prefix.prefix_len() == 128 && address == Ipv6Addr::LOCALHOST {
        Some("a loopback address")
    } else if within([0; 8], MAPPED_LENGTH) {
        Some("an address that stands for an IPv4 address (::/96)")
    } else if within([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], MAPPED_LENGTH) {
        Some("an address that stands for an IPv4 address (64:ff9b::/96)")
    } else if within([0x2002, 0, 0, 0, 0, 0, 0, 0], 16) {
        Some("a 6to4 address (2002::/16)")
    } else if within([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10) {
        Some("a link-local address")
    } else if within([0xff00, 0, 0, 0, 0, 0, 0, 0], 8) {
        Some("a multicast address")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused<T: std::fmt::Debug>(result: Result<T, String>, piece: &str) {
        let words = result.unwrap_err();
        assert!(words.contains(piece), "{words:?} does not say {piece:?}");
    }

    #[test]
    fn canonical_prefixes_are_read() {
        for text in [
            "10.0.0.0/8",
            "10.32.96.0/20",
            "192.168.203.4/30",
            "fd00::/16",
            "fd00:32:96::/64",
            "fd00::4/126",
        ] {
            assert_eq!(prefix(text).unwrap().to_string(), text);
        }
        for text in [
            "0.0.0.0/0",
            "0.0.0.0/1",
            "128.0.0.0/1",
            "10.1.2.3/32",
            "::/0",
            "2000::/3",
            "fd00::1/128",
        ] {
            assert_eq!(any_prefix(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn mapped_addresses_are_ipv4_addresses() {
        let host = IpAddr::from([192, 0, 2, 9]);
        assert_eq!(address("::ffff:192.0.2.9"), Ok(host));
        assert_eq!(address("::ffff:c000:209"), Ok(host));
        assert_eq!(address_and_port("[::ffff:192.0.2.9]:80"), Ok((host, 80)));
        let entry = listen("[::ffff:192.0.2.9]:80/tcp").unwrap();
        assert_eq!(entry.to_string(), "192.0.2.9:80/tcp");
        let net = prefix("::ffff:192.0.2.0/120").unwrap();
        assert_eq!(net.to_string(), "192.0.2.0/24");
        let all = any_prefix("::ffff:0.0.0.0/96").unwrap();
        assert_eq!(all.to_string(), "0.0.0.0/0");
        refused(address_and_port("::ffff:192.0.2.9"), "has no port");
        refused(address("::192.0.2.9"), "stands for an IPv4 address (::/96)");
        refused(address("::ffff:127.0.0.1"), "is a loopback address");
    }

    #[test]
    fn ranges_of_ports_start_before_they_end() {
        assert_eq!(ports("1024-57343"), Ok(1024..=57_343));
        assert_eq!(ports("5-5"), Ok(5..=5));
        refused(ports("5-4"), "5-4 ends before it starts");
        refused(ports("5"), "is not a range of ports");
        for text in ["0-5", "5-65536", "-5", "5-", "1-2-3"] {
            refused(ports(text), "is not a port");
        }
    }

    #[test]
    fn other_prefixes_are_refused_with_the_reason() {
        refused(prefix("10.32.96.5/20"), "did you mean 10.32.96.0/20?");
        refused(prefix("10.32.96.0"), "has no prefix length");
        for text in [
            "10.0.0.0/7",
            "10.0.0.0/31",
            "10.0.0.0/",
            "10.0.0.0/+9",
            "10.0.0.0/024",
        ] {
            refused(prefix(text), "has no prefix length of 8 to 30");
        }
        refused(
            prefix("fd00::"),
            "expected a prefix such as fd00:32:96::/64",
        );
        for text in ["fd00::/15", "fd00::/127", "fd00::/129", "fd00::/"] {
            refused(prefix(text), "has no prefix length of 16 to 126");
        }
        refused(prefix("fd00::5/64"), "did you mean fd00::/64?");
        refused(prefix("fe80::/64"), "fe80::/64 is a link-local address");
        refused(any_prefix("::/96"), "stands for an IPv4 address (::/96)");
        refused(any_prefix("fd00::/129"), "no prefix length of 0 to 128");
        refused(prefix("10.0.0/24"), "is not an IP address");
        refused(prefix("127.0.0.0/8"), "127.0.0.0/8 is a loopback address");
        refused(prefix("224.0.0.0/24"), "is a multicast address");
        refused(prefix("0.0.0.0/8"), "this network");
        refused(prefix("169.254.8.0/24"), "is a link-local address");
        refused(any_prefix("0.0.0.0/32"), "is the unspecified address");
        refused(any_prefix("255.255.255.255/32"), "is the broadcast address");
        refused(any_prefix("240.0.0.0/4"), "is a reserved address");
        refused(any_prefix("10.0.0.0/33"), "no prefix length of 0 to 32");
        refused(prefix("::ffff:10.0.0.0/95"), "no prefix length of 8 to 30");
    }

    #[test]
    fn only_unicast_addresses_are_read() {
        assert_eq!(address("10.32.96.50"), Ok(IpAddr::from([10, 32, 96, 50])));
        refused(address("0.0.0.0"), "is the unspecified address");
        refused(address("0.1.2.3"), "this network");
        refused(address("127.0.0.1"), "is a loopback address");
        refused(address("224.0.0.1"), "is a multicast address");
        refused(address("255.255.255.255"), "is the broadcast address");
        refused(address("240.0.0.1"), "is a reserved address");
        refused(address("169.254.0.1"), "is a link-local address");
        for (text, kind) in [
            ("::", "is the unspecified address"),
            ("::1", "is a loopback address"),
            ("fe80::1", "is a link-local address"),
            ("ff02::1", "is a multicast address"),
            ("2002:c000:209::1", "is a 6to4 address"),
            (
                "64:ff9b::192.0.2.9",
                "stands for an IPv4 address (64:ff9b::/96)",
            ),
        ] {
            refused(address(text), kind);
        }
        for text in [
            "",
            "10.32.96",
            "10.32.96.256",
            "10.32.96.05",
            " 10.32.96.5",
            "node-1",
        ] {
            refused(address(text), "is not an IP address");
        }
    }

    #[test]
    fn an_ipv6_address_is_printed_as_everybody_does() {
        let text = |text: &str| address(text).unwrap().to_string();
        assert_eq!(text("FD00:0:0:1:0:0:0:1"), "fd00:0:0:1::1");
        assert_eq!(text("[2001:db8::0001]"), "2001:db8::1");
        let prefix = any_prefix("2001:DB8:0::/48").unwrap();
        assert_eq!(prefix.to_string(), "2001:db8::/48");
    }

    #[test]
    fn a_gateway_may_be_link_local() {
        assert_eq!(gateway("fe80::1").unwrap().to_string(), "fe80::1");
        refused(gateway("ff02::2"), "is a multicast address");
        refused(gateway("169.254.0.1"), "is a link-local address");
    }

    #[test]
    fn ports_are_1_to_65535() {
        let host = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(address_and_port("10.0.0.1:1"), Ok((host, 1)));
        assert_eq!(address_and_port("10.0.0.1:65535"), Ok((host, u16::MAX)));
        for text in [
            "",
            "0",
            "65536",
            "+80",
            "-1",
            "080",
            "http",
            "80/tcp",
            "99999999999999999999",
        ] {
            refused(
                address_and_port(&format!("10.0.0.1:{text}")),
                "is not a port",
            );
        }
        refused(address_and_port("10.0.0.1"), "has no port");
        let host = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(address_and_port("[fd00::1]:80"), Ok((host, 80)));
        assert_eq!(address_and_port("[FD00:0::0001]:80"), Ok((host, 80)));
        for text in ["fd00::1", "[fd00::1]", "fd00::1:80"] {
            refused(
                address_and_port(text),
                "has no port; expected [ADDRESS]:PORT",
            );
        }
        refused(
            address_and_port("fd00:1:2:3:4:5:6:7:80"),
            "has no brackets around its IPv6 address",
        );
        refused(address_and_port("[fd00::1]:0"), "is not a port");
        refused(
            address_and_port("[fd00::1%eth0]:80"),
            "is not an IP address",
        );
        refused(address_and_port("[10.0.0.1]:80"), "is not an IP address");
        refused(address_and_port(":80"), "is not an IP address");
    }

    #[test]
    fn listen_entries_are_read_and_printed_alike() {
        for text in [
            "192.168.203.110:6443/tcp",
            "192.168.203.110:53/udp",
            "[fd00::1]:6443/tcp",
        ] {
            assert_eq!(listen(text).unwrap().to_string(), text);
        }
        refused(listen("192.168.203.110:6443"), "has no protocol");
        refused(listen("192.168.203.110:6443/sctp"), "is not a protocol");
        refused(listen("192.168.203.110:6443/TCP"), "expected tcp or udp");
        refused(listen("192.168.203.110/tcp"), "has no port");
    }
}
