//! Headers between IPv6 and what it carries (RFC 8200 section 4).

use std::net::Ipv6Addr;

use super::number;

/// One header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// Options for every router on the way: their bytes, padded to what they must be.
    HopByHop(Vec<u8>),
    /// Options for the receiver.
    Destination(Vec<u8>),
    /// Addresses to be visited on the way.
    Routing {
        /// Type: 0 is the source route, 4 the segment routing header.
        kind: u8,
        /// How many are still to be visited.
        left: u8,
        /// All of them.
        through: Vec<Ipv6Addr>,
    },
    /// The header of fragments; with a field of zero the packet is whole: an "atomic" fragment (RFC 6946).
    Fragment {
        /// Offset in units of 8 bytes (13 bits), zero (2), whether more follow (1).
        field: u16,
        /// Identification.
        id: u32,
    },
    /// Another one with this number: eight bytes, also by the count of the authentication header.
    Other(u8),
}

impl Extension {
    /// Its number in the header before it.
    #[must_use]
    pub const fn number(&self) -> u8 {
        match self {
            Self::HopByHop(_) => number::HOP_BY_HOP,
            Self::Destination(_) => number::DESTINATION,
            Self::Routing { .. } => number::ROUTING,
            Self::Fragment { .. } => number::FRAGMENT,
            Self::Other(number) => *number,
        }
    }

    /// Its bytes, with the number of what follows it.
    #[must_use]
    pub fn bytes(&self, next: u8) -> Vec<u8> {
        match self {
            Self::HopByHop(options) | Self::Destination(options) => with_options(next, options),
            Self::Routing {
                kind,
                left,
                through,
            } => {
                let words = u8::try_from(2 * through.len()).expect("at most 127 addresses");
                let mut bytes = vec![next, words, *kind, *left, 0, 0, 0, 0];
                bytes.extend(through.iter().flat_map(Ipv6Addr::octets));
                bytes
            }
            Self::Fragment { field, id } => {
                let mut bytes = vec![next, 0];
                bytes.extend(field.to_be_bytes());
                bytes.extend(id.to_be_bytes());
                bytes
            }
            Self::Other(_) => vec![next, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// A header of options, padded to a multiple of eight bytes (RFC 8200 section 4.2).
fn with_options(next: u8, options: &[u8]) -> Vec<u8> {
    let mut bytes = [&[next, 0], options].concat();
    match bytes.len().next_multiple_of(8) - bytes.len() {
        0 => {}
        // Pad1.
        1 => bytes.push(0),
        // PadN.
        missing => {
            let data = missing - 2;
            bytes.extend([1, u8::try_from(data).expect("at most five")]);
            bytes.resize(bytes.len() + data, 0);
        }
    }
    bytes[1] = u8::try_from(bytes.len() / 8 - 1).expect("at most 2048 bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_padded_to_units_of_eight() {
        assert_eq!(
            Extension::HopByHop(vec![]).bytes(6),
            [6, 0, 1, 4, 0, 0, 0, 0]
        );
        let alert = Extension::HopByHop(vec![5, 2, 0, 0]).bytes(6);
        assert_eq!(alert, [6, 0, 5, 2, 0, 0, 1, 0]);
        let odd = Extension::Destination(vec![1, 3, 0, 0, 0]).bytes(6);
        assert_eq!(odd, [6, 0, 1, 3, 0, 0, 0, 0]);
        assert_eq!(Extension::Destination(vec![0; 7]).bytes(6).len(), 16);
    }

    #[test]
    fn a_route_says_how_long_it_is() {
        let through = vec![Ipv6Addr::LOCALHOST; 2];
        let route = Extension::Routing {
            kind: 0,
            left: 1,
            through,
        };
        let bytes = route.bytes(17);
        assert_eq!((bytes.len(), &bytes[..4]), (40, [17, 4, 0, 1].as_slice()));
    }
}
