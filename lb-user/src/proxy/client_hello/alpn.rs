//! The protocols that a client offers (RFC 7301).

use std::{fmt, iter};

use super::bytes::Bytes;

/// Protocol names in the order of the client, as many as its hello had room for.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Alpn(
    /// The list as it was sent, and known to be well-formed: one allocation, whatever is in it.
    Box<[u8]>,
);

impl Alpn {
    /// Takes the data of the extension, if that is well-formed.
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        let list = Bytes::new(data).only_long()?;
        let mut rest = Bytes::new(list);
        while !rest.is_empty() {
            if rest.short()?.is_empty() {
                return None;
            }
        }
        Some(Self(list.into()))
    }

    /// The protocols, without those of GREASE.
    pub fn protocols(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Bytes::new(&self.0);
        iter::from_fn(move || rest.short()).filter(|protocol| !is_grease(protocol))
    }

    /// Whether `protocol` is one of them.
    #[must_use]
    pub fn offers(&self, protocol: &[u8]) -> bool {
        self.protocols().any(|offered| offered == protocol)
    }
}

impl fmt::Debug for Alpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.protocols().map(|protocol| protocol.escape_ascii());
        f.debug_list()
            .entries(words.map(|word| word.to_string()))
            .finish()
    }
}

/// RFC 8701 section 2: two bytes, both `0x?A` and the same.
const fn is_grease(protocol: &[u8]) -> bool {
    matches!(protocol, &[first, second] if first == second && first & 0x0f == 0x0a)
}
