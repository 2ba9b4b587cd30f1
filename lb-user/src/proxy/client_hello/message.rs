//! What is in the hello (RFC 8446 section 4.1.2, RFC 5246 section 7.4.1.2).
//!
//! What the backend alone can judge, as ciphers and key shares, is left to it: only that each vector
//! is whole is looked at.

use super::{Alpn, Hello, Refusal, bytes::Bytes};
use crate::config::server_name::ServerName;

/// SSL 3; older versions have no such hello.
const OLDEST: u16 = 0x0300;
const TLS13: u16 = 0x0304;
const RANDOM: usize = 32;
const MAX_SESSION_ID: usize = 32;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const ENCRYPTED_HELLO: u16 = 0xfe0d;

/// What is in [`ENCRYPTED_HELLO`] of a hello that was inside of another, which a server in front of this has opened
/// (RFC 9849 section 5). Anything else may be the one outside, however it looks.
const INNER: &[u8] = &[1];

/// Name type, RFC 6066 section 3: the only one that there is.
const HOST_NAME: u8 = 0;

/// Reads a message without its head that ends `length` bytes into the stream.
pub(super) fn read(message: &[u8], length: usize) -> Result<Hello, Refusal> {
    let mut rest = Bytes::new(message);
    let version = rest.u16().ok_or(Refusal::Malformed("version"))?;
    if version < OLDEST {
        return Err(Refusal::Version(version));
    }
    rest.take(RANDOM).ok_or(Refusal::Malformed("random"))?;
    let session = rest.short().filter(|id| id.len() <= MAX_SESSION_ID);
    session.ok_or(Refusal::Malformed("session id"))?;
    let is_list_of_pairs = |list: &&[u8]| !list.is_empty() && list.len().is_multiple_of(2);
    let suites = rest.long().filter(is_list_of_pairs);
    suites.ok_or(Refusal::Malformed("cipher suites"))?;
    let methods = rest.short().filter(|methods| !methods.is_empty());
    methods.ok_or(Refusal::Malformed("compression methods"))?;

    let mut hello = Hello {
        length,
        ..Hello::default()
    };
    // Before TLS 1.3 it may end here.
    if !rest.is_empty() {
        let extensions = rest.long().filter(|_| rest.is_empty());
        hello.note(extensions.ok_or(Refusal::Malformed("extensions"))?)?;
    }
    Ok(hello)
}

impl Hello {
    /// Takes what matters of the extensions. The others, GREASE among them, must only be whole.
    fn note(&mut self, extensions: &[u8]) -> Result<(), Refusal> {
        let mut rest = Bytes::new(extensions);
        let mut kinds = Vec::new();
        while !rest.is_empty() {
            let (Some(kind), Some(data)) = (rest.u16(), rest.long()) else {
                return Err(Refusal::Malformed("extensions"));
            };
            kinds.push(kind);
            match kind {
                SERVER_NAME => self.name = server_name(data)?,
                ALPN => self.alpn = Alpn::read(data).ok_or(Refusal::Malformed("ALPN"))?,
                SUPPORTED_VERSIONS => {
                    self.tls13 =
                        offers_tls13(data).ok_or(Refusal::Malformed("supported versions"))?;
                }
                // What is in it is between the client and the backend, as far as it is anything.
                ENCRYPTED_HELLO => self.ech = data != INNER,
                _ => {}
            }
        }
        all_distinct(kinds)
    }
}

/// RFC 8446 section 4.2.
fn all_distinct(mut kinds: Vec<u16>) -> Result<(), Refusal> {
    kinds.sort_unstable();
    match kinds.array_windows().find(|[one, next]| one == next) {
        Some(&[kind, _]) => Err(Refusal::SameExtension(kind)),
        None => Ok(()),
    }
}

/// The host name in a list of names, each with a type, at most one of a type.
///
/// RFC 6066 has every type begin with a length of two bytes, so others can be passed over, as Go does.
/// There are none in use: OpenSSL and `BoringSSL` take nothing but one host name, rustls nothing behind
/// a name of another type, and HAProxy looks at the first name only. Whichever of these the backend is,
/// it finds the same host name, or none.
fn server_name(data: &[u8]) -> Result<Option<ServerName>, Refusal> {
    const MALFORMED: Refusal = Refusal::Malformed("server name");
    let mut rest = Bytes::new(Bytes::new(data).only_long().ok_or(MALFORMED)?);
    let mut is_known = [false; 256];
    let mut host = None;
    while !rest.is_empty() {
        let (Some(kind), Some(name)) = (rest.u8(), rest.long()) else {
            return Err(MALFORMED);
        };
        if std::mem::replace(&mut is_known[usize::from(kind)], true) {
            return Err(Refusal::TwoNames);
        }
        if kind == HOST_NAME {
            host = Some(ServerName::read(name).map_err(Refusal::Name)?);
        }
    }
    Ok(host)
}

/// Whether TLS 1.3 is in the list, if it is one.
fn offers_tls13(data: &[u8]) -> Option<bool> {
    let mut rest = Bytes::new(data);
    let mut list = Bytes::new(rest.short().filter(|list| !list.is_empty())?);
    let mut found = false;
    while !list.is_empty() {
        found |= list.u16()? == TLS13;
    }
    rest.is_empty().then_some(found)
}
