//! A look at a hello that takes the data plane no more than a walk over its extensions: where the name is that a plain
//! one requests.
//!
//! The parser beside it has the last word. This one is sure of hellos alone that lie in one record and are as nearly
//! all clients send them; a hello of which it is not, userspace reads. What it does find, [`Hello::read`](super::Hello::read)
//! finds as well.

#![expect(
    clippy::cast_possible_truncation,
    reason = "places below a maximum, and sizes of headers"
)]

use super::record_layer::{CLIENT_HELLO, HANDSHAKE, HEAD, HEADER, MAJOR};
use crate::pod::pod_struct;

/// Most bytes of a stream up to the end of a hello that is looked at; a power of two.
pub const MAX_GLANCE: u32 = 1 << 12;
/// Most extensions; browsers send up to 20.
const MAX_EXTENSIONS: u32 = 32;
/// Most protocols in ALPN.
const MAX_PROTOCOLS: u32 = 8;

/// Bytes of a hello, wherever they are.
pub trait HelloBytes {
    /// The byte at this place, of which nothing but its remainder by [`MAX_GLANCE`] counts: whatever has not come yet may
    /// stand there.
    fn byte(&self, at: u32) -> u8;
}

/// The name that a plain hello requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamePlace {
    /// Where it begins in the stream; that it is one is not known.
    pub name_at: u16,
    /// Its bytes, at least 1.
    pub name_length: u16,
}

/// Looks at a hello in the first `length` bytes of a client. `None` if it is not whole, requests no name, or is not as
/// nearly all are.
pub fn glance(bytes: &impl HelloBytes, length: u32) -> Option<NamePlace> {
    let mut seen = SeenExtensions::default();
    walk(bytes, length, |at, end| {
        extension(bytes, at, end, &mut seen)
    })
    .then_some(())?;
    seen.glance(bytes)
}

/// Walks over the extensions of a hello in the first `length` bytes of a client, as far as it is as nearly all are. `step` does
/// what [`extension()`] does, which can be a function of its own for the verifier.
#[inline(always)]
pub fn walk(
    bytes: &impl HelloBytes,
    length: u32,
    mut step: impl FnMut(u32, u32) -> Option<u32>,
) -> bool {
    let bytes = Numbers(bytes);
    let Some(end) = bytes.end().filter(|&end| end <= length) else {
        return false;
    };
    let Some(mut at) = bytes.extensions(end) else {
        return false;
    };
    for _ in 0..MAX_EXTENSIONS {
        if at == end {
            return true;
        }
        match step(at, end) {
            Some(next) => at = next,
            None => return false,
        }
    }
    at == end
}

/// Notes the extension at a place of a hello whose extensions go on to `end`. Where the next one is; `None` if it is not as
/// nearly all are.
#[inline(always)]
pub fn extension(
    bytes: &impl HelloBytes,
    at: u32,
    end: u32,
    seen: &mut SeenExtensions,
) -> Option<u32> {
    let bytes = Numbers(bytes);
    let (kind, length) = (bytes.u16(at), bytes.u16(at + 2));
    let data = at + 4;
    let next = data + length;
    (next <= end && bytes.note(kind, data, length, seen)).then_some(next)
}

const SERVER_NAME: u32 = 0;
const ALPN: u32 = 16;
const SUPPORTED_VERSIONS: u32 = 43;
const RANDOM: u32 = 32;
const MAX_SESSION_ID: u32 = 32;

pod_struct! {
    /// What the extensions of a hello had that have been passed. 32 bytes.
    pub struct SeenExtensions {
        /// Their types below 64, by a bit for each.
        pub low: u64,
        /// The others, of which several may have the same bit.
        pub high: u64,
        /// Where the name begins; and its bytes, 0 if there is none.
        pub name_at: u32,
        /// See `name_at`.
        pub name_length: u32,
        /// The same of the list of protocols.
        pub alpn_at: u32,
        /// See `alpn_at`.
        pub alpn_length: u32,
    }
}

impl SeenExtensions {
    /// What has been seen of a whole hello.
    #[inline(always)]
    pub fn glance(&self, bytes: &impl HelloBytes) -> Option<NamePlace> {
        let has_alpn = self.alpn_length != 0;
        if self.name_length == 0
            || has_alpn && !Numbers(bytes).is_list(self.alpn_at, self.alpn_length)
        {
            return None;
        }
        Some(NamePlace {
            name_at: self.name_at as u16,
            name_length: self.name_length as u16,
        })
    }

    /// Walks over the protocols in a list that is one, as many as a glance takes: each by its place, and its bytes.
    #[inline(always)]
    pub fn each_protocol(&self, bytes: &impl HelloBytes, mut step: impl FnMut(u32, u32)) {
        let end = self.alpn_at.wrapping_add(self.alpn_length);
        let mut at = self.alpn_at.wrapping_add(2);
        for _ in 0..MAX_PROTOCOLS {
            if at >= end {
                break;
            }
            let length = u32::from(bytes.byte(at));
            step(at.wrapping_add(1), length);
            at = at.wrapping_add(1 + length);
        }
    }
}

/// Which bit stands for an extension of this type, from 64 on: one of its own for those of GREASE (RFC 8701); and one for
/// all that have the same remainder. Those in use have different ones.
#[inline(always)]
const fn place(kind: u32) -> u32 {
    if kind & 0x0f0f == 0x0a0a && kind >> 8 == kind & 0xff {
        kind >> 12
    } else {
        16 + kind % 47
    }
}

/// Numbers of a hello, as they stand there.
struct Numbers<'a, B>(&'a B);

impl<B: HelloBytes> Numbers<'_, B> {
    #[inline(always)]
    fn u8(&self, at: u32) -> u32 {
        self.0.byte(at).into()
    }

    #[inline(always)]
    fn u16(&self, at: u32) -> u32 {
        self.u8(at) << 8 | self.u8(at.wrapping_add(1))
    }

    /// Where the hello ends, if it lies in one record and nothing else is in there.
    #[inline(always)]
    fn end(&self) -> Option<u32> {
        const RECORD: u32 = HEADER as u32;
        let fragment = self.u16(RECORD - 2);
        let is_hello = self.u8(0) == HANDSHAKE as u32
            && self.u8(1) == MAJOR as u32
            && self.u8(RECORD) == CLIENT_HELLO as u32;
        let message = self.u8(RECORD + 1) << 16 | self.u16(RECORD + 2);
        let is_whole = message + HEAD as u32 == fragment;
        let end = RECORD + fragment;
        (is_hello && is_whole && end <= MAX_GLANCE).then_some(end)
    }

    /// Where the extensions begin, which go on to `end`.
    #[inline(always)]
    fn extensions(&self, end: u32) -> Option<u32> {
        let version = (HEADER + HEAD) as u32;
        let mut at = version + 2 + RANDOM;
        let session = self.u8(at);
        at += 1 + session;
        let suites = self.u16(at);
        at += 2 + suites;
        let methods = self.u8(at);
        at += 1 + methods;
        let length = self.u16(at);
        at += 2;
        let is_right = self.u8(version) == MAJOR as u32
            && session <= MAX_SESSION_ID
            && suites != 0
            && suites & 1 == 0
            && methods != 0
            && at + length == end;
        is_right.then_some(at)
    }

    /// Notes an extension; false if it is not as nearly all are.
    #[inline(always)]
    fn note(&self, kind: u32, data: u32, length: u32, seen: &mut SeenExtensions) -> bool {
        let (bits, place) = match kind < 64 {
            true => (&mut seen.low, kind),
            false => (&mut seen.high, place(kind)),
        };
        let bit = 1 << (place & 63);
        let is_new = *bits & bit == 0;
        *bits |= bit;
        let is_right = match kind {
            SERVER_NAME => {
                // One name, of a host.
                let (list, name) = (self.u16(data), self.u16(data + 3));
                (seen.name_at, seen.name_length) = (data + 5, name);
                length == list + 2 && list == name + 3 && self.u8(data + 2) == 0 && name != 0
            }
            ALPN => {
                (seen.alpn_at, seen.alpn_length) = (data, length);
                length > 2
            }
            SUPPORTED_VERSIONS => {
                let list = self.u8(data);
                length == list + 1 && list != 0 && list & 1 == 0
            }
            _ => true,
        };
        is_new && is_right
    }

    /// Whether so many bytes are a list of protocols (RFC 7301 section 3.1).
    #[inline(always)]
    fn is_list(&self, at: u32, length: u32) -> bool {
        let end = at + length;
        let mut at = at;
        if self.u16(at) + 2 != length {
            return false;
        }
        at += 2;
        for _ in 0..MAX_PROTOCOLS {
            let protocol = self.u8(at);
            at += 1 + protocol;
            if protocol == 0 || at > end {
                return false;
            }
            if at == end {
                return true;
            }
        }
        false
    }
}

/// A stream on the host.
impl HelloBytes for &[u8] {
    fn byte(&self, at: u32) -> u8 {
        let at = (at & (MAX_GLANCE - 1)) as usize;
        self.get(at).copied().unwrap_or_default()
    }
}
