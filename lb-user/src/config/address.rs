//! Addresses, prefixes and ports from text. Every refusal says what was found and what is expected.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::Ipv4Net;

use super::{
    model::{Listen, Protocol},
    place::quote,
};

/// The prefix lengths that a network may have: a shorter one is no layer-2 network, and a longer
/// one has no host addresses beside its network and broadcast address.
const PREFIX_LENGTHS: std::ops::RangeInclusive<u8> = 8..=30;

/// A prefix in canonical form, such as `10.32.96.0/20`.
pub(super) fn prefix(text: &str) -> Result<Ipv4Net, String> {
    let Some((address, length)) = text.split_once('/') else {
        address(text)?;
        return Err(format!(
            "{} has no prefix length; expected a prefix such as 10.32.96.0/20",
            quote(text)
        ));
    };
    let address = address_of_any_kind(address)?;
    let length = number(length)
        .and_then(|length| u8::try_from(length).ok())
        .filter(|length| PREFIX_LENGTHS.contains(length));
    let Some(prefix) = length.and_then(|length| Ipv4Net::new(address, length).ok()) else {
        return Err(format!(
            "{} has no prefix length of {} to {}",
            quote(text),
            PREFIX_LENGTHS.start(),
            PREFIX_LENGTHS.end()
        ));
    };
    let canonical = prefix.trunc();
    if prefix != canonical {
        return Err(format!(
            "{prefix} has host bits set; did you mean {canonical}?"
        ));
    }
    unicast(canonical.network()).map_err(|words| format!("{prefix}: {words}"))?;
    Ok(canonical)
}

/// A unicast address, such as `10.32.96.50`.
pub(super) fn address(text: &str) -> Result<Ipv4Addr, String> {
    let address = address_of_any_kind(text)?;
    unicast(address)?;
    Ok(address)
}

/// `ADDRESS:PORT`, such as `10.32.96.105:30918`.
pub(super) fn address_and_port(text: &str) -> Result<(Ipv4Addr, u16), String> {
    let Some((host, port_text)) = text.rsplit_once(':') else {
        return Err(format!(
            "{} has no port; expected ADDRESS:PORT",
            quote(text)
        ));
    };
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(not_yet(text));
    }
    Ok((address(host)?, port(port_text)?))
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

/// A whole number in decimal. A sign, a leading zero (octal to some readers) or `_` is refused.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = text.len() > 1 && text.starts_with('0');
    if digits && !leading_zero {
        text.parse().ok()
    } else {
        None
    }
}

fn port(text: &str) -> Result<u16, String> {
    number(text)
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
        .ok_or_else(|| format!("{} is not a port; expected 1 to 65535", quote(text)))
}

fn address_of_any_kind(text: &str) -> Result<Ipv4Addr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    if bare.unwrap_or(text).parse::<Ipv6Addr>().is_ok() {
        return Err(not_yet(text));
    }
    Err(format!("{} is not an IPv4 address", quote(text)))
}

/// RFC 6890: what no host can have as its own address in a network.
fn unicast(address: Ipv4Addr) -> Result<(), String> {
    let kind = if address == Ipv4Addr::UNSPECIFIED {
        "the unspecified address"
    } else if address.octets()[0] == 0 {
        "an address of \"this network\" (0.0.0.0/8)"
    } else if address.is_loopback() {
        "a loopback address"
    } else if address.is_multicast() {
        "a multicast address"
    } else if address.is_broadcast() {
        "the broadcast address"
    } else {
        return Ok(());
    };
    Err(format!("{address} is {kind}; expected a unicast address"))
}

fn not_yet(text: &str) -> String {
    format!(
        "IPv6 is not supported yet: {}; expected an IPv4 address",
        quote(text)
    )
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
        for text in ["10.0.0.0/8", "10.32.96.0/20", "192.168.203.4/30"] {
            assert_eq!(prefix(text).unwrap().to_string(), text);
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
        refused(prefix("fd00::/64"), "IPv6 is not supported yet");
        refused(prefix("fd00::"), "IPv6 is not supported yet");
        refused(prefix("10.0.0/24"), "is not an IPv4 address");
        refused(
            prefix("127.0.0.0/8"),
            "127.0.0.0/8: 127.0.0.0 is a loopback",
        );
        refused(prefix("224.0.0.0/24"), "is a multicast address");
        refused(prefix("0.0.0.0/8"), "is the unspecified address");
    }

    #[test]
    fn only_unicast_addresses_are_read() {
        assert_eq!(address("10.32.96.50"), Ok(Ipv4Addr::new(10, 32, 96, 50)));
        refused(address("0.0.0.0"), "is the unspecified address");
        refused(address("0.1.2.3"), "this network");
        refused(address("127.0.0.1"), "is a loopback address");
        refused(address("224.0.0.1"), "is a multicast address");
        refused(address("255.255.255.255"), "is the broadcast address");
        refused(address("::1"), "IPv6 is not supported yet");
        for text in [
            "",
            "10.32.96",
            "10.32.96.256",
            "10.32.96.05",
            " 10.32.96.5",
            "node-1",
        ] {
            refused(address(text), "is not an IPv4 address");
        }
    }

    #[test]
    fn ports_are_1_to_65535() {
        let host = Ipv4Addr::new(10, 0, 0, 1);
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
        refused(
            address_and_port("[fd00::1]:80"),
            "IPv6 is not supported yet",
        );
        refused(address_and_port("fd00::1"), "IPv6 is not supported yet");
    }

    #[test]
    fn listen_entries_are_read_and_printed_alike() {
        for text in ["192.168.203.110:6443/tcp", "192.168.203.110:53/udp"] {
            assert_eq!(listen(text).unwrap().to_string(), text);
        }
        refused(listen("192.168.203.110:6443"), "has no protocol");
        refused(listen("192.168.203.110:6443/sctp"), "is not a protocol");
        refused(listen("192.168.203.110:6443/TCP"), "expected tcp or udp");
        refused(listen("192.168.203.110/tcp"), "has no port");
        refused(listen("[fd00::1]:6443/tcp"), "IPv6 is not supported yet");
    }
}
