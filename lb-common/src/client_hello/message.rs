//! What is in the hello (RFC 8446 section 4.1.2, RFC 5246 section 7.4.1.2).
//!
//! What the backend alone can judge, as ciphers and key shares, is left to it: only that each vector
//! is whole is looked at.

use core::mem;

use super::{Alpn, Hello, HelloRefusal, bytes::Bytes, record_layer::HEAD};
use crate::server_name::ServerName;

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

impl<'a> Hello<'a> {
    /// Reads the hello in `stream`, which ends where [`Reading::find_end`](super::Reading::find_end) has
    /// found the hello to end.
    ///
    /// # Errors
    ///
    /// If it is malformed, or must not be routed.
    pub fn read(stream: &'a [u8]) -> Result<Self, HelloRefusal> {
        let mut hello = Self {
            length: stream.len(),
            ..Self::default()
        };
        if let Some(extensions) = extensions(stream)? {
            hello.note(extensions)?;
        }
        Ok(hello)
    }

    /// Takes what matters of the extensions. The others, GREASE among them, must only be whole.
    fn note(&mut self, mut rest: Bytes<'a>) -> Result<(), HelloRefusal> {
        let mut kinds = Kinds::default();
        while !rest.is_empty() {
            let (Some(kind), Some(data)) = (rest.u16(), rest.long()) else {
                return Err(HelloRefusal::Malformed("extensions"));
            };
            kinds.note(kind);
            match kind {
                SERVER_NAME => self.name = server_name(data)?,
                ALPN => self.alpn = Alpn::read(data).ok_or(HelloRefusal::Malformed("ALPN"))?,
                SUPPORTED_VERSIONS => {
                    self.tls13 =
                        offers_tls13(data).ok_or(HelloRefusal::Malformed("supported versions"))?;
                }
                // What is in it is between the client and the backend, as far as it is anything.
                ENCRYPTED_HELLO => self.ech = data != INNER,
                _ => {}
            }
        }
        kinds.all_distinct()
    }
}

/// The first host name of a hello as its client has sent it, for a report about one that cannot be routed: its bytes
/// may be anything. Nothing if there is none, or none that can be found.
#[must_use]
pub fn name_as_sent(stream: &[u8]) -> Option<Bytes<'_>> {
    let mut rest = extensions(stream).ok()??;
    loop {
        let (kind, data) = (rest.u16()?, rest.long()?);
        if kind != SERVER_NAME {
            continue;
        }
        let mut list = data.only_long()?;
        loop {
            let (kind, name) = (list.u8()?, list.long()?);
            if kind == HOST_NAME {
                return Some(name);
            }
        }
    }
}

/// The extensions of the hello in `stream`; before TLS 1.3 it may have none.
fn extensions(stream: &[u8]) -> Result<Option<Bytes<'_>>, HelloRefusal> {
    let mut rest = body(stream).unwrap_or_default();
    let version = rest.u16().ok_or(HelloRefusal::Malformed("version"))?;
    if version < OLDEST {
        return Err(HelloRefusal::Version(version));
    }
    rest.first(RANDOM)
        .ok_or(HelloRefusal::Malformed("random"))?;
    let session = rest.short().filter(|id| id.len() <= MAX_SESSION_ID);
    session.ok_or(HelloRefusal::Malformed("session id"))?;
    let is_list_of_pairs = |list: &Bytes<'_>| !list.is_empty() && list.len().is_multiple_of(2);
    let suites = rest.long().filter(is_list_of_pairs);
    suites.ok_or(HelloRefusal::Malformed("cipher suites"))?;
    let methods = rest.short().filter(|methods| !methods.is_empty());
    methods.ok_or(HelloRefusal::Malformed("compression methods"))?;
    if rest.is_empty() {
        return Ok(None);
    }
    let extensions = rest.long().filter(|_| rest.is_empty());
    let extensions = extensions.ok_or(HelloRefusal::Malformed("extensions"))?;
    Ok(Some(extensions))
}

/// The message in the records of `stream`, without its head.
fn body(stream: &[u8]) -> Option<Bytes<'_>> {
    let mut head = Bytes::new(stream, HEAD);
    let _kind = head.u8()?;
    let length = usize::try_from(head.u24()?).ok()?;
    let mut message = Bytes::new(stream, HEAD + length);
    message.first(HEAD)?;
    Some(message)
}

/// The types of extensions in a hello: a bit for each that there can be.
struct Kinds {
    seen: [u64; 1 << 10],
    /// The lowest of those that are there twice.
    twice: Option<u16>,
}

impl Default for Kinds {
    fn default() -> Self {
        Self {
            seen: [0; 1 << 10],
            twice: None,
        }
    }
}

impl Kinds {
    fn note(&mut self, kind: u16) {
        let bit = 1 << (kind % 64);
        let Some(word) = self.seen.get_mut(usize::from(kind / 64)) else {
            return;
        };
        if *word & bit != 0 && self.twice.is_none_or(|lowest| kind < lowest) {
            self.twice = Some(kind);
        }
        *word |= bit;
    }

    /// RFC 8446 section 4.2.
    fn all_distinct(&self) -> Result<(), HelloRefusal> {
        self.twice
            .map_or(Ok(()), |kind| Err(HelloRefusal::SameExtension(kind)))
    }
}

/// The host name in a list of names, each with a type, at most one of a type.
///
/// RFC 6066 has every type begin with a length of two bytes, so others can be passed over, as Go does.
/// There are none in use: OpenSSL and `BoringSSL` take nothing but one host name, rustls nothing behind
/// a name of another type, and HAProxy looks at the first name only. Whichever of these the backend is,
/// it finds the same host name, or none.
fn server_name(data: Bytes<'_>) -> Result<Option<ServerName>, HelloRefusal> {
    const MALFORMED: HelloRefusal = HelloRefusal::Malformed("server name");
    let mut rest = data.only_long().ok_or(MALFORMED)?;
    let mut is_known = [false; 256];
    let mut host = None;
    while !rest.is_empty() {
        let (Some(kind), Some(name)) = (rest.u8(), rest.long()) else {
            return Err(MALFORMED);
        };
        if mem::replace(&mut is_known[usize::from(kind)], true) {
            return Err(HelloRefusal::TwoNames);
        }
        if kind == HOST_NAME {
            host = Some(ServerName::of(name).map_err(HelloRefusal::Name)?);
        }
    }
    Ok(host)
}

/// Whether TLS 1.3 is in the list, if it is one.
fn offers_tls13(mut rest: Bytes<'_>) -> Option<bool> {
    let mut list = rest.short().filter(|list| !list.is_empty())?;
    let mut found = false;
    while !list.is_empty() {
        found |= list.u16()? == TLS13;
    }
    rest.is_empty().then_some(found)
}
