//! The way to the hello through TLS records (RFC 8446 section 5.1).

use core::ops::RangeInclusive;

use super::{Hello, HelloRefusal, HelloVerdict};

/// The longest hello that there can be, in bytes of the message without its header: version, random, and
/// the longest vectors of RFC 8446 section 4.1.2, with their lengths. OpenSSL takes as much.
pub const MAX_HELLO: usize = 2 + 32 + (1 + 32) + (2 + 0xfffe) + (1 + 0xff) + (2 + 0xffff);
/// The longest stream to the end of a hello, headers of records and message included: room for the
/// longest hello in records of 6 bytes and more, and for any of 43 kB in whatever records.
pub const MAX_STREAM: usize = 2 * MAX_HELLO;

pub(super) const HEADER: usize = 5;
/// Type and length of a message.
pub(super) const HEAD: usize = 4;
/// The longest fragment of a record.
const MAX_FRAGMENT: usize = 1 << 14;
/// Content types: those that a TLS record can have, and the one of a hello.
const CONTENTS: RangeInclusive<u8> = 20..=24;
pub(super) const HANDSHAKE: u8 = 22;
/// A message type, of SSL 2 as well.
pub(super) const CLIENT_HELLO: u8 = 1;
/// SSL 3 and every TLS.
pub(super) const MAJOR: u8 = 3;

/// A stream on the way to its hello. It remembers which records it has passed, so that a client that
/// sends byte after byte costs as much as its bytes do.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The longest message, without its header.
    most: usize,
    /// Where in the stream the record begins that was not whole yet.
    record: usize,
    /// Bytes of the message in the records before it.
    passed: usize,
    /// The head of the message, as much as is known.
    head: [u8; HEAD],
}

impl Default for Reading {
    fn default() -> Self {
        Self::up_to(MAX_HELLO)
    }
}

impl Reading {
    /// For hellos of at most that many bytes, and never more than [`MAX_HELLO`]. In whatever records
    /// they come, six times as much of the stream is enough.
    #[must_use]
    pub fn up_to(most: usize) -> Self {
        Self {
            most: most.min(MAX_HELLO),
            record: 0,
            passed: 0,
            head: [0; HEAD],
        }
    }

    /// The verdict on `stream`: all bytes from the first one of the client, as many as before or more.
    pub fn go_on<'s>(&mut self, stream: &'s [u8]) -> HelloVerdict<'s> {
        let found = match self.find_end(stream) {
            Ok(Reached::Within { at_least }) => return HelloVerdict::Incomplete { at_least },
            Ok(Reached::End(end)) => Hello::read(stream.get(..end).unwrap_or_default()),
            Err(refusal) => Err(refusal),
        };
        found.map_or_else(HelloVerdict::Refused, HelloVerdict::Found)
    }

    /// How far `stream` goes, as in [`go_on`](Self::go_on), without a look into the hello:
    /// [`Hello::read`] has that.
    ///
    /// # Errors
    ///
    /// If these are no records with a hello.
    pub fn find_end(&mut self, stream: &[u8]) -> Result<Reached, HelloRefusal> {
        loop {
            let rest = stream.get(self.record..).unwrap_or_default();
            let Some(length) = fragment_length(rest, self.record == 0)? else {
                let left = self.total(self.passed).unwrap_or(HEAD) - self.passed;
                let at_least = missing(left, 0) - rest.len();
                return Ok(Reached::Within { at_least });
            };
            let fragment = rest.get(HEADER..).unwrap_or_default();
            let fragment = fragment.get(..length).unwrap_or(fragment);
            self.note_head(fragment)?;
            let here = self.passed + fragment.len();
            let total = self.total(here);
            if let Some(total) = total {
                // It ends here, or behind.
                let end = self.record + HEADER + total - self.passed;
                if end > MAX_STREAM {
                    return Err(HelloRefusal::Scattered);
                }
                if here >= total {
                    return Ok(Reached::End(end));
                }
            }
            if fragment.len() < length {
                let at_least = missing(total.unwrap_or(HEAD) - here, length - fragment.len());
                return Ok(Reached::Within { at_least });
            }
            self.record += HEADER + length;
            self.passed = here;
        }
    }

    /// Takes what `fragment` has of the head of the message, and looks at the type.
    fn note_head(&mut self, fragment: &[u8]) -> Result<(), HelloRefusal> {
        let unknown = self.head.iter_mut().skip(self.passed);
        for (byte, &sent) in unknown.zip(fragment) {
            *byte = sent;
        }
        let is_known = self.passed + fragment.len() > 0;
        let [kind, ..] = self.head;
        if is_known && kind != CLIENT_HELLO {
            return Err(HelloRefusal::MessageType(kind));
        }
        if self.total(self.passed + fragment.len()) > Some(HEAD + self.most) {
            return Err(HelloRefusal::Long);
        }
        Ok(())
    }

    /// Bytes of the whole message, if `known` of them tell.
    fn total(&self, known: usize) -> Option<usize> {
        let [_, length @ ..] = self.head.map(usize::from);
        let length = length.iter().fold(0, |length, byte| length << 8 | byte);
        (known >= HEAD).then_some(HEAD + length)
    }
}

/// How far a stream goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Not to the end of the hello.
    Within {
        /// How many bytes more a hello takes that begins like this; at least 1.
        at_least: usize,
    },
    /// To the end of the hello, which is so many bytes behind the beginning of the stream.
    End(usize),
}

/// Bytes of the stream that `message` bytes take, of which `left` fit in the record that has begun.
const fn missing(message: usize, left: usize) -> usize {
    let records = message.saturating_sub(left).div_ceil(MAX_FRAGMENT);
    message + records * HEADER
}

/// The length of the fragment in the record that `rest` begins with, if the header of the record is
/// there; refused as soon as it is not one with a part of a hello.
fn fragment_length(rest: &[u8], is_first: bool) -> Result<Option<usize>, HelloRefusal> {
    let Some(&content) = rest.first() else {
        return Ok(None);
    };
    if content != HANDSHAKE {
        return match rest {
            _ if !is_first || CONTENTS.contains(&content) => Err(HelloRefusal::RecordType(content)),
            // A length with its first bit set; the other kind of SSL 2 header is for what is encrypted.
            [0x80..=0xff, _, CLIENT_HELLO, ..] => Err(HelloRefusal::Ssl2),
            [0x80..=0xff] | [0x80..=0xff, _] => Ok(None),
            _ => Err(HelloRefusal::NotTls(content)),
        };
    }
    // The version means nothing else: clients of TLS 1.3 say 3.1, and RFC 5246 appendix E.1 has servers
    // take any 3.x.
    if let Some(&major) = rest.get(1)
        && major != MAJOR
    {
        return Err(HelloRefusal::RecordVersion(major));
    }
    let Some(&[.., high, low]) = rest.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    match u16::from_be_bytes([high, low]).into() {
        0 => Err(HelloRefusal::RecordEmpty),
        length @ 1..=MAX_FRAGMENT => Ok(Some(length)),
        _ => Err(HelloRefusal::RecordLong),
    }
}

/// What is in the first of these records, which may be cut off, and the records behind it.
pub(super) fn first_fragment(records: &[u8]) -> (&[u8], &[u8]) {
    let Some((&[.., high, low], rest)) = records.split_first_chunk::<HEADER>() else {
        return (&[], &[]);
    };
    let length = u16::from_be_bytes([high, low]).into();
    rest.split_at_checked(length).unwrap_or((rest, &[]))
}
