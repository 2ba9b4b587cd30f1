//! The PROXY protocol, version 2 (<https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt>): what a
//! connection to a backend begins with, so that the backend knows the client. Pure.

use std::{
    io,
    net::{SocketAddr, SocketAddrV4},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ppp::v2::{AddressFamily, Builder, Command, Protocol, Type, Version};

/// The header for a connection of a client: from where and to where it goes, for which name, and what it
/// can be found by. Both addresses are of one family.
///
/// # Errors
///
/// If there is no room for it: a header has 64 KiB.
pub fn header(
    source: SocketAddr,
    destination: SocketAddr,
    authority: Option<&str>,
    unique_id: &[u8],
) -> io::Result<Vec<u8>> {
    let addresses = (source, destination);
    let proxied = Version::Two | Command::Proxy;
    let mut header = Builder::with_addresses(proxied, Protocol::Stream, addresses);
    if let Some(authority) = authority {
        header = header.write_tlv(Type::Authority, authority.as_bytes())?;
    }
    header.write_tlv(Type::UniqueId, unique_id)?.build()
}

/// The header for a connection of our own, which has no client: a check.
///
/// # Errors
///
/// None that is known of.
pub fn local() -> io::Result<Vec<u8>> {
    let unspecified = AddressFamily::Unspecified | Protocol::Unspecified;
    Builder::new(Version::Two | Command::Local, unspecified).build()
}

/// What `lb who` and the log of flows find a connection by: where the backend sees it come from, and when
/// it began, in milliseconds of Unix time.
pub fn unique_id(snat: SocketAddrV4, began: SystemTime) -> String {
    let since = began.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("{snat}-{}", since.as_millis())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

    #[test]
    fn a_header_says_whose_connection_it_is() {
        let source = "192.168.203.50:40000".parse().unwrap();
        let destination = "192.168.203.110:443".parse().unwrap();
        let found = header(source, destination, Some("a.lab"), b"10.32.96.50:1024-7").unwrap();
        let mut expected = SIGNATURE.to_vec();
        // PROXY, TCP over IPv4, and 12 + 8 + 21 bytes.
        expected.extend([0x21, 0x11, 0, 41]);
        expected.extend([192, 168, 203, 50, 192, 168, 203, 110]);
        expected.extend([0x9c, 0x40, 0x01, 0xbb]);
        expected.extend(b"\x02\0\x05a.lab");
        expected.extend(b"\x05\0\x1210.32.96.50:1024-7");
        assert_eq!(found, expected);
    }

    #[test]
    fn who_asks_for_no_name_has_none_in_it() {
        let source = "[2001:db8::1]:1".parse().unwrap();
        let destination = "[2001:db8::2]:443".parse().unwrap();
        let found = header(source, destination, None, b"x").unwrap();
        let mut expected = SIGNATURE.to_vec();
        expected.extend([0x21, 0x21, 0, 40]);
        expected.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        expected.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        expected.extend([0, 1, 0x01, 0xbb]);
        expected.extend(b"\x05\0\x01x");
        assert_eq!(found, expected);
    }

    #[test]
    fn what_does_not_fit_is_not_sent() {
        let address = "192.168.203.50:40000".parse().unwrap();
        assert!(header(address, address, None, &[0; 1 << 16]).is_err());
    }

    #[test]
    fn a_check_is_nobodys() {
        let expected = [&SIGNATURE[..], &[0x20, 0, 0, 0]].concat();
        assert_eq!(local().unwrap(), expected);
    }

    #[test]
    fn an_id_has_the_snat_address_and_the_time() {
        let snat = "10.32.96.50:1024".parse().unwrap();
        let began = UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        assert_eq!(unique_id(snat, began), "10.32.96.50:1024-1700000000123");
    }
}
