//! The ClientHello: what a client says of itself before anybody has answered, read out of the bytes
//! that it has sent so far.
//!
//! Pure: bytes in, a [`Verdict`] out, and no byte is changed. A hello may come in any TCP segments and
//! any TLS records; bytes behind it are not looked at. What two servers could understand in two ways
//! is refused: the backend reads the same bytes again, and must find the name that was routed.
//!
//! RFC 8446 sections 4.1.2 and 5.1, RFC 5246 section 7.4.1.2, RFC 6066 section 3 (name), RFC 7301
//! (ALPN), RFC 8701 (GREASE), RFC 9849 (ECH).

mod alpn;
mod bytes;
mod refusal;

mod message;
mod record_layer;
#[cfg(test)]
mod tests;

pub use self::{
    alpn::Alpn,
    record_layer::{MAX_HELLO, MAX_STREAM, Reading},
    refusal::{Refusal, UNRECOGNIZED_NAME, alert_record},
};
pub use crate::config::server_name::{NameFault, ServerName};

/// What the bytes of a client are, as far as they have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The beginning of a hello, as far as can be said.
    Incomplete {
        /// How many bytes more a hello takes that begins like this; at least 1.
        at_least: usize,
    },
    /// A whole hello.
    Found(Hello),
    /// No hello, whatever else comes.
    Refused(Refusal),
}

/// What a client says, as far as it matters where it is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The server that it asks for; nothing if it asks for none.
    pub name: Option<ServerName>,
    /// The protocols that it offers to speak inside.
    pub alpn: Alpn,
    /// Whether it may ask for another server in an encrypted hello. Nobody but the holder of the key
    /// can tell that from GREASE, which browsers send to any server, or from what is malformed.
    pub ech: bool,
    /// Whether it offers TLS 1.3.
    pub tls13: bool,
    /// Bytes of the stream up to the end of the hello, record headers included. It may end inside a
    /// record.
    pub length: usize,
}

/// The verdict on `stream`, the first bytes of a client. Who gets more of them later keeps a
/// [`Reading`].
#[must_use]
pub fn parse(stream: &[u8]) -> Verdict {
    Reading::default().go_on(stream)
}
