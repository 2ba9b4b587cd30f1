//! Why a client is refused, and the alert that it gets.

use core::{error::Error, fmt};

use super::MAX_STREAM;
use crate::server_name::NameFault;

// Alert descriptions, RFC 8446 section 6.
const UNEXPECTED_MESSAGE: u8 = 10;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
/// The alert for a name that has no route, or may not be requested.
pub const UNRECOGNIZED_NAME: u8 = 112;

/// Why bytes are no hello, or one that must not be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloRefusal {
    /// The first byte is one of another protocol.
    NotTls(u8),
    /// It is the hello of SSL 2.
    Ssl2,
    /// A record is there of another type than handshake, before the hello or amid it.
    RecordType(u8),
    /// A record is of a version with this major number.
    RecordVersion(u8),
    /// A record has nothing in it.
    RecordEmpty,
    /// A record has more than 16 KiB.
    RecordLong,
    /// The message is of another type.
    MessageType(u8),
    /// The hello has more bytes than may be, which are [`MAX_HELLO`](super::MAX_HELLO) at most.
    Long,
    /// With its records it takes more than [`MAX_STREAM`] bytes.
    Scattered,
    /// The hello is of this version.
    Version(u16),
    /// This part of it is cut off, or not as long as it says, or empty where it must not be.
    Malformed(&'static str),
    /// An extension of this type is there twice.
    SameExtension(u16),
    /// Two names of one type are there.
    TwoNames,
    /// What is there as a name is no host name.
    Name(NameFault),
}

impl HelloRefusal {
    /// The description of the TLS alert that fits.
    #[must_use]
    pub const fn alert(&self) -> u8 {
        match self {
            Self::NotTls(_) | Self::RecordType(_) | Self::MessageType(_) => UNEXPECTED_MESSAGE,
            Self::Ssl2 | Self::RecordVersion(_) | Self::Version(_) => PROTOCOL_VERSION,
            Self::RecordLong => RECORD_OVERFLOW,
            Self::RecordEmpty | Self::Malformed(_) | Self::Name(NameFault::Empty) => DECODE_ERROR,
            Self::Long | Self::Scattered | Self::SameExtension(_) | Self::TwoNames => {
                ILLEGAL_PARAMETER
            }
            // As OpenSSL does.
            Self::Name(_) => UNRECOGNIZED_NAME,
        }
    }

    /// The value of a metric's label. It stays the same from one version to the next.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NotTls(_) => "not_tls",
            Self::Ssl2 => "ssl2",
            Self::RecordType(_) => "record_type",
            Self::RecordVersion(_) => "record_version",
            Self::RecordEmpty => "record_empty",
            Self::RecordLong => "record_long",
            Self::MessageType(_) => "message_type",
            Self::Long => "long",
            Self::Scattered => "scattered",
            Self::Version(_) => "version",
            Self::Malformed(_) => "malformed",
            Self::SameExtension(_) => "same_extension",
            Self::TwoNames => "two_names",
            Self::Name(NameFault::Address) => "name_address",
            Self::Name(NameFault::Nul) => "name_nul",
            Self::Name(_) => "name",
        }
    }
}

impl fmt::Display for HelloRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTls(byte) => write!(f, "not TLS: the first byte is `{}`", byte.escape_ascii()),
            Self::Ssl2 => f.write_str("an SSL 2 hello"),
            Self::RecordType(content) => {
                write!(f, "a record of type {content} before the hello was whole")
            }
            Self::RecordVersion(major) => write!(f, "a record of version {major}.x, and not 3.x"),
            Self::RecordEmpty => f.write_str("an empty record"),
            Self::RecordLong => f.write_str("a record of more than 16 KiB"),
            Self::MessageType(kind) => write!(f, "a message of type {kind}, and not a hello"),
            Self::Long => f.write_str("a hello of more bytes than may be"),
            Self::Scattered => {
                write!(
                    f,
                    "a hello that takes more than {MAX_STREAM} bytes with its records"
                )
            }
            Self::Version(version) => write!(f, "a hello of version {version:#06x}"),
            Self::Malformed(part) => write!(f, "malformed {part} in the hello"),
            Self::SameExtension(kind) => write!(f, "extension {kind} is in the hello twice"),
            Self::TwoNames => f.write_str("two names of one type are in the hello"),
            Self::Name(fault) => fault.fmt(f),
        }
    }
}

impl Error for HelloRefusal {}

/// The record with a fatal alert, for a client that has had no answer yet.
///
/// Its version is TLS 1.0, as in the first record of clients: RFC 8446 has the version of a record
/// ignored, and clients from before TLS 1.2 know this one.
#[must_use]
pub const fn alert_record(description: u8) -> [u8; 7] {
    const ALERT: u8 = 21;
    const FATAL: u8 = 2;
    [ALERT, 3, 1, 0, 2, FATAL, description]
}

#[cfg(test)]
mod tests;
