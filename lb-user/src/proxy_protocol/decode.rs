//! What a proxy in front sends of its client, before the client's first byte: the header of the PROXY
//! protocol, version 2 (HAProxy's `proxy-protocol.txt`, section 2.2).

use std::net::{SocketAddrV4, SocketAddrV6};

use ppp::v2::{Addresses, Command, Header, PROTOCOL_PREFIX, ParseError, Protocol};

use super::Endpoints;

/// The most bytes of a header: what others take as well.
const MAX_HEADER: usize = 4096;
/// The most bytes of an id (section 2.2.5).
const MAX_ID: usize = 128;

/// Bytes that distinguish a header from a text that begins with empty lines.
const TELLING: usize = 5;

/// Bytes of a header in front of its addresses.
const FIXED: usize = 16;

/// Kinds of what follows the addresses. The second one is of HyperShift; others use the same number for how
/// the client's connection was encrypted (`PP2_TYPE_SSL`).
const UNIQUE_ID: u8 = 0x05;
const CLUSTER_ID: u8 = 0x20;

/// The content of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Bytes of the header.
    pub(crate) length: usize,
    /// The client, and where it connected to; none: the connection is the proxy's own, or it does not know.
    pub(crate) endpoints: Option<Endpoints>,
    /// What the connection is called.
    pub(crate) unique_id: Option<Vec<u8>>,
    /// The cluster that the client is of.
    pub(crate) cluster: Option<Vec<u8>>,
}

/// What the first bytes of a proxy are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeaderReading {
    /// The beginning of a header.
    Incomplete,
    /// A header.
    Found(Announced),
    /// None, or not one that can be read.
    Wrong,
}

/// Reads the header that a connection begins with.
pub(crate) fn read(bytes: &[u8]) -> HeaderReading {
    let beginning = bytes.get(..MAX_HEADER).unwrap_or(bytes);
    let header = match Header::try_from(beginning) {
        Ok(header) => header,
        Err(ParseError::Incomplete(_)) => return HeaderReading::Incomplete,
        Err(ParseError::Partial(_, length)) if FIXED + length <= MAX_HEADER => {
            return HeaderReading::Incomplete;
        }
        Err(_) => return HeaderReading::Wrong,
    };
    announced(&header).map_or(HeaderReading::Wrong, HeaderReading::Found)
}

/// Whether a connection begins as if with a header: with what no other protocol begins with.
pub(crate) fn is_header(bytes: &[u8]) -> bool {
    bytes.len() >= TELLING
        && bytes
            .iter()
            .zip(PROTOCOL_PREFIX)
            .all(|(byte, expected)| byte == expected)
}

/// None if it is broken.
fn announced(header: &Header<'_>) -> Option<Announced> {
    let endpoints = match header.addresses {
        Addresses::IPv4(ends) => Some(Endpoints {
            source: SocketAddrV4::new(ends.source_address, ends.source_port).into(),
            destination: SocketAddrV4::new(ends.destination_address, ends.destination_port).into(),
        }),
        Addresses::IPv6(ends) => Some(Endpoints {
            source: SocketAddrV6::new(ends.source_address, ends.source_port, 0, 0).into(),
            destination: SocketAddrV6::new(ends.destination_address, ends.destination_port, 0, 0)
                .into(),
        }),
        Addresses::Unspecified | Addresses::Unix(_) => None,
    };
    if header.command == Command::Proxy && header.protocol == Protocol::Datagram {
        return None;
    }
    let mut announced = Announced {
        length: header.len(),
        endpoints: endpoints.filter(|_| header.command == Command::Proxy),
        ..Announced::default()
    };
    if header.command == Command::Local {
        // Whatever else is in a LOCAL header is about no client.
        return Some(announced);
    }
    for found in header.tlvs() {
        let found = found.ok()?;
        match found.kind {
            UNIQUE_ID if found.value.len() <= MAX_ID => {
                announced.unique_id = Some(found.value.into_owned());
            }
            UNIQUE_ID => return None,
            CLUSTER_ID => announced.cluster = Some(found.value.into_owned()),
            _ => {}
        }
    }
    Some(announced)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    /// A header with this command and family, whose length is that of `rest`.
    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        let fixed = [command, family];
        [&b"\r\n\r\n\0\r\nQUIT\n"[..], &fixed, &length, rest].concat()
    }

    fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len()).unwrap().to_be_bytes();
        [&[kind][..], &length, value].concat()
    }

    /// From 10.1.2.3:4660 to 10.4.5.6:443.
    const ENDS: [u8; 12] = [10, 1, 2, 3, 10, 4, 5, 6, 0x12, 0x34, 1, 187];

    fn found(bytes: &[u8]) -> Announced {
        match read(bytes) {
            HeaderReading::Found(announced) => announced,
            other => panic!("{other:?} of {bytes:?}"),
        }
    }

    #[test]
    fn a_proxy_says_who_its_client_is() {
        let rest = [
            &ENDS[..],
            &tlv(4, &[0; 9]),
            &tlv(0x20, b"cluster-a"),
            &tlv(5, &[7; 128]),
        ];
        let bytes = header(0x21, 0x11, &rest.concat());
        let expected = Announced {
            length: bytes.len(),
            endpoints: Some(Endpoints {
                source: "10.1.2.3:4660".parse().unwrap(),
                destination: "10.4.5.6:443".parse().unwrap(),
            }),
            unique_id: Some(vec![7; 128]),
            cluster: Some(b"cluster-a".to_vec()),
        };
        let followed = [&bytes[..], b"\x16\x03\x01"].concat();
        assert_eq!(found(&followed), expected);
        for length in 0..bytes.len() {
            assert_eq!(
                read(&bytes[..length]),
                HeaderReading::Incomplete,
                "{length}"
            );
        }
    }

    #[test]
    fn a_proxy_may_speak_of_ipv6_or_for_itself() {
        let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let rest = [&source.octets()[..], &destination.octets(), &[0, 1, 0, 2]];
        let expected = Endpoints {
            source: "[::1]:1".parse().unwrap(),
            destination: "[::]:2".parse().unwrap(),
        };
        let announced = found(&header(0x21, 0x21, &rest.concat()));
        assert_eq!(announced.endpoints, Some(expected));
        for bytes in [
            header(0x20, 0x00, &[]),
            header(0x20, 0x11, &ENDS),
            header(0x20, 0x11, &[&ENDS[..], &tlv(0x20, b"a")].concat()),
            header(0x21, 0x00, &[]),
            header(0x21, 0x31, &[0; 216]),
        ] {
            let expected = Announced {
                length: bytes.len(),
                ..Announced::default()
            };
            assert_eq!(found(&bytes), expected);
        }
    }

    #[test]
    fn what_is_broken_is_no_header() {
        let with = |rest: &[u8]| header(0x21, 0x11, &[&ENDS[..], rest].concat());
        for bytes in [
            b"\x16\x03\x01".to_vec(),
            b"PROXY TCP4 10.1.2.3 10.4.5.6 4660 443\r\n".to_vec(),
            // Another version, another command, datagrams, too short for its addresses.
            header(0x11, 0x11, &ENDS),
            header(0x22, 0x11, &ENDS),
            header(0x21, 0x12, &ENDS),
            header(0x21, 0x11, &ENDS[..11]),
            // Values that are longer than the header, and an id that is too long.
            with(&[0x20, 0, 1]),
            with(&[0x20]),
            with(&tlv(5, &[7; 129])),
            // Longer than any proxy needs, from its first bytes on.
            header(0x21, 0x11, &[0; MAX_HEADER - 15])[..16].to_vec(),
        ] {
            assert_eq!(read(&bytes), HeaderReading::Wrong, "{bytes:?}");
        }
        let longest = with(&tlv(4, &[0; MAX_HEADER - 16 - 12 - 3]));
        assert_eq!(found(&longest).length, MAX_HEADER);
    }

    #[test]
    fn whoever_begins_like_a_proxy_is_known() {
        let bytes = header(0x21, 0x11, &ENDS);
        assert!((TELLING..bytes.len()).all(|length| is_header(&bytes[..length])));
        for other in [&b""[..], b"\r\n\r\n", b"\r\n\r\nGET", b"\x16\x03\x01\0\x05"] {
            assert!(!is_header(other), "{other:?}");
        }
    }
}
