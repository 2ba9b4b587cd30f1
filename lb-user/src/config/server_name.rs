//! The name of a server, as clients ask for it and as routes are written.

use std::{borrow::Borrow, fmt, net::Ipv6Addr, str};

/// RFC 1035 section 2.3.4, without the length of the root.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A host name in lower case, without a dot at its end: labels of letters, digits, `-` and `_`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerName(Box<str>);

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
    /// RFC 6066 has it without a dot at the end, but clients that were given one send it. To DNS it is
    /// the same name, so one dot is left out here. A server may still refuse it: Go's does.
    ///
    /// # Errors
    ///
    /// If it is no host name.
    pub fn read(sent: &[u8]) -> Result<Self, NameFault> {
        let name = sent.strip_suffix(b".").unwrap_or(sent);
        if name.is_empty() {
            return Err(NameFault::Empty);
        }
        if name.contains(&0) {
            return Err(NameFault::Nul);
        }
        if is_ipv6(name) {
            return Err(NameFault::Address);
        }
        if let Some(&other) = name.iter().find(|&&byte| !is_of_name(byte)) {
            return Err(NameFault::Byte(other));
        }
        if name.len() > MAX_NAME {
            return Err(NameFault::Long);
        }
        let mut last: &[u8] = &[];
        for label in name.split(|&byte| byte == b'.') {
            match label.len() {
                0 => return Err(NameFault::EmptyLabel),
                1..=MAX_LABEL => last = label,
                _ => return Err(NameFault::LongLabel),
            }
        }
        if is_number(last) {
            return Err(NameFault::Address);
        }
        let lower = name
            .iter()
            .map(|byte| char::from(byte.to_ascii_lowercase()));
        Ok(Self(lower.collect()))
    }

    /// The name.
    #[must_use]
    pub const fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for ServerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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

impl std::error::Error for NameFault {}

/// Underscores are not for hosts, but names in use have them.
const fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// With or without brackets and a zone.
fn is_ipv6(name: &[u8]) -> bool {
    let inside = name.strip_prefix(b"[").unwrap_or(name);
    let inside = inside.strip_suffix(b"]").unwrap_or(inside);
    let address = inside.split(|&byte| byte == b'%').next();
    let address = address.and_then(|address| str::from_utf8(address).ok());
    address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok())
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
