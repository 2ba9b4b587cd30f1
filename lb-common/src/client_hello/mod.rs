//! The ClientHello: what a client requests, before there is an answer to it, read out of the bytes that it
//! has sent so far.
//!
//! Pure, and without an allocation: bytes in, a [`HelloVerdict`] out, and no byte is changed or copied but those
//! of the name. A hello may come in any TCP segments and any TLS records, and is read where it lies in them;
//! bytes behind it are not looked at. What two servers could understand in two ways is refused: the backend
//! reads the same bytes again, and must find the name that was routed.
//!
//! RFC 8446 sections 4.1.2 and 5.1, RFC 5246 section 7.4.1.2, RFC 6066 section 3 (name), RFC 7301
//! (ALPN), RFC 8701 (GREASE), RFC 9849 (ECH).

mod alpn;
mod bytes;
pub mod glance;
mod refusal;

mod message;
mod record_layer;
#[cfg(test)]
mod tests;

pub use self::{
    alpn::{Alpn, is_grease},
    bytes::Bytes,
    message::name_as_sent,
    record_layer::{MAX_HELLO, MAX_STREAM, Reached, Reading},
    refusal::{HelloRefusal, UNRECOGNIZED_NAME, alert_record},
};
use crate::server_name::ServerName;

/// What the bytes of a client are, as far as they have come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be an allocation, and a verdict is looked at once"
)]
pub enum HelloVerdict<'a> {
    /// The beginning of a hello, as far as can be seen.
    Incomplete {
        /// How many bytes more a hello takes that begins like this; at least 1.
        at_least: usize,
    },
    /// A whole hello.
    Found(Hello<'a>),
    /// No hello, whatever else comes.
    Refused(HelloRefusal),
}

/// What of a hello matters for where its client is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello<'a> {
    /// The server that it requests; nothing if it requests none.
    pub name: Option<ServerName>,
    /// The protocols that it offers to speak inside.
    pub alpn: Alpn<'a>,
    /// Whether it may request another server in an encrypted hello. Only the holder of the key can
    /// tell that from GREASE, which browsers send to any server, or from what is malformed.
    pub ech: bool,
    /// Whether it offers TLS 1.3.
    pub tls13: bool,
    /// Bytes of the stream up to the end of the hello, record headers included. It may end inside a
    /// record.
    pub length: usize,
}

/// The verdict on `stream`, the first bytes of a client. Where more of them come later, a
/// [`Reading`] is kept.
#[must_use]
pub fn parse(stream: &[u8]) -> HelloVerdict<'_> {
    Reading::default().go_on(stream)
}
