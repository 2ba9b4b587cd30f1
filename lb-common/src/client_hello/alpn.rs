//! The protocols that a client offers (RFC 7301).

use core::{fmt, iter};

use super::bytes::Bytes;

/// Protocol names in the order of the client, as many as its hello had room for; they stay in its bytes.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Alpn<'a>(
    /// The list as it was sent, and known to be well-formed.
    Bytes<'a>,
);

impl<'a> Alpn<'a> {
    /// Takes the data of the extension (RFC 7301 section 3.1), if that is well-formed.
    pub(super) fn read(data: Bytes<'a>) -> Option<Self> {
        let list = data.only_long()?;
        let mut rest = list.clone();
        while !rest.is_empty() {
            if rest.short()?.is_empty() {
                return None;
            }
        }
        Some(Self(list))
    }

    /// The protocols, without those of GREASE (RFC 8701 section 2).
    pub fn protocols(&self) -> impl Iterator<Item = Bytes<'a>> + use<'a> {
        let mut rest = self.0.clone();
        iter::from_fn(move || rest.short()).filter(|protocol| !is_grease(protocol.clone()))
    }

    /// Whether `protocol` is one of them.
    #[must_use]
    pub fn offers(&self, protocol: &[u8]) -> bool {
        self.protocols().any(|offered| offered == protocol)
    }
}

impl fmt::Debug for Alpn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.protocols()).finish()
    }
}

/// Whether a protocol is one of GREASE (RFC 8701 section 2): two bytes, both `0x?A` and the same.
pub fn is_grease(protocol: impl IntoIterator<Item = u8>) -> bool {
    let mut bytes = protocol.into_iter();
    match (bytes.next(), bytes.next(), bytes.next()) {
        (Some(first), Some(second), None) => first == second && first & 0x0f == 0x0a,
        _ => false,
    }
}
