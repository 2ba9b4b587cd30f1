//! The name of a server, as clients ask for it and as routes are written.

use core::{error, fmt, net::Ipv6Addr, str};

/// RFC 1035 section 2.3.4, without the length of the root.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
/// The longest text of an IPv6 address: six groups and an IPv4 address (RFC 4291 section 2.2).
const MAX_IPV6: usize = 45;

/// A host name in lower case, without a dot at its end: labels of letters, digits, `-` and `_`.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerName {
    /// The name, and zeros behind it.
    bytes: [u8; MAX_NAME],
    length: usize,
}

/// Why bytes are no [`ServerName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFault {
    /// There is nothing, or nothing but a dot.
    Empty,
    /// There is a NUL in it, where some would take it to end.
    Nul,
    /// There is another byte in it that is in no host name.
    Byte(u8),
    /// It is an IP address, which RFC 6066 has not as a name.
    Address,
    /// It has two dots in a row, or one at its beginning.
    EmptyLabel,
    /// There are more than 63 bytes between two dots.
    LongLabel,
    /// It has more than 253 bytes.
    Long,
}

impl ServerName {
    /// Takes a name as it was sent or written.
    ///
    /// RFC 6066 section 3 has it without a dot at the end, but clients that were given one send it. To DNS
    /// it is the same name, so one dot is left out here. A server may still refuse it: Go's does.
    ///
    /// # Errors
    ///
    /// If it is no host name.
    pub fn read(sent: &[u8]) -> Result<Self, NameFault> {
        Self::of(sent.iter().copied())
    }

    /// The same of bytes that do not lie together.
    ///
    /// # Errors
    ///
    /// If they are no host name.
    pub fn of(sent: impl Iterator<Item = u8> + Clone) -> Result<Self, NameFault> {
        let (length, last) = sent
            .clone()
            .fold((0, None), |(count, _), byte| (count + 1, Some(byte)));
        let length = length - usize::from(last == Some(b'.'));
        let name = sent.take(length);
        if length == 0 {
            return Err(NameFault::Empty);
        }
        if name.clone().any(|byte| byte == 0) {
            return Err(NameFault::Nul);
        }
        if is_ipv6(name.clone()) {
            return Err(NameFault::Address);
        }
        if let Some(other) = name.clone().find(|&byte| !is_of_name(byte)) {
            return Err(NameFault::Byte(other));
        }
        let mut bytes = [0; MAX_NAME];
        let lower = bytes.get_mut(..length).ok_or(NameFault::Long)?;
        for (place, byte) in lower.iter_mut().zip(name) {
            *place = byte.to_ascii_lowercase();
        }
        let mut last: &[u8] = &[];
        for label in lower.split(|&byte| byte == b'.') {
            match label.len() {
                0 => return Err(NameFault::EmptyLabel),
                1..=MAX_LABEL => last = label,
                _ => return Err(NameFault::LongLabel),
            }
        }
        if is_number(last) {
            return Err(NameFault::Address);
        }
        Ok(Self { bytes, length })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let name = self.bytes.get(..self.length).unwrap_or_default();
        // It is ASCII.
        str::from_utf8(name).unwrap_or_default()
    }
}

impl fmt::Debug for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for NameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the name is empty"),
            Self::Nul => f.write_str("there is a NUL in the name"),
            Self::Byte(byte) => write!(f, "`{}` is in no host name", byte.escape_ascii()),
            Self::Address => f.write_str("the name is an IP address"),
            Self::EmptyLabel => f.write_str("nothing stands before a dot of the name"),
            Self::LongLabel => write!(f, "a label of the name has more than {MAX_LABEL} bytes"),
            Self::Long => write!(f, "the name has more than {MAX_NAME} bytes"),
        }
    }
}

impl error::Error for NameFault {}

/// Underscores are not for hosts, but names in use have them.
const fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// With or without brackets and a zone (RFC 4007 section 11).
fn is_ipv6(name: impl Iterator<Item = u8>) -> bool {
    let mut name = name.peekable();
    let _bracket = name.next_if_eq(&b'[');
    // The other bracket is behind the address, or behind its zone.
    let mut text = [0; MAX_IPV6 + 1];
    let mut length = 0;
    let mut has_zone = false;
    for byte in name {
        has_zone = byte == b'%';
        if has_zone {
            break;
        }
        let Some(place) = text.get_mut(length) else {
            return false;
        };
        *place = byte;
        length += 1;
    }
    let text = text.get(..length).unwrap_or_default();
    let address = match text {
        [address @ .., b']'] if !has_zone => address,
        _ => text,
    };
    str::from_utf8(address).is_ok_and(|address| address.parse::<Ipv6Addr>().is_ok())
}

/// Whether a name that ends like this is an IPv4 address: no top level domain is a number, and
/// `10.1`, `1` and `0x7f.0x1` are addresses to resolvers. So WHATWG's URL standard tells them apart.
fn is_number(label: &[u8]) -> bool {
    match label {
        [b'0', b'x' | b'X', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        digits => digits.iter().all(u8::is_ascii_digit),
    }
}

#[cfg(test)]
mod tests;
