//! Request lines as clients send them. A URI that was read has lost its fragment, and an empty path is `/` in it.
//!
//! Fed with all bytes of a client, in order; where a body ends comes from what reads the heads. Pure.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::{Method, body::SizeHint};

/// The most bytes that wait for their head to be read: more than the buffer for heads. What comes beyond is no
/// request any more, as behind an upgrade.
const MAX_BYTES: usize = 1 << 18;

/// The bytes of a client that are ahead of the requests that were read, shared with its wire.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestLines(Arc<Mutex<Ahead>>);

/// A request line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestLine(Vec<u8>);

impl RequestLines {
    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These bytes came.
    pub(super) fn came(&self, bytes: &[u8]) {
        self.ahead().came(bytes);
    }

    /// The line of the next request, whose head has been read and whose body is as long as this; none: it is not
    /// known.
    pub(super) fn next(&self, body: &SizeHint) -> Option<RequestLine> {
        let body = body
            .exact()
            .map_or(BodyRest::Size(Size::None), BodyRest::Rest);
        self.ahead().next(body).map(RequestLine)
    }
}

impl RequestLine {
    /// The target, if the line is one with this method.
    pub(super) fn target(&self, method: &Method) -> Option<&[u8]> {
        let rest = self.0.strip_prefix(method.as_str().as_bytes())?;
        let target = rest.strip_prefix(b" ")?;
        target.split(|byte| *byte == b' ').next()
    }
}

#[derive(Debug)]
struct Ahead {
    /// Of a head that has not been read yet, and of what is behind it; none: they were too many.
    bytes: Option<Vec<u8>>,
    /// What is still to come of the body in front of them.
    body: BodyRest,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            bytes: Some(Vec::new()),
            body: BodyRest::Rest(0),
        }
    }
}

impl Ahead {
    fn came(&mut self, bytes: &[u8]) {
        let Some(ahead) = &mut self.bytes else {
            return;
        };
        ahead.extend_from_slice(self.body.pass(bytes));
        if ahead.len() > MAX_BYTES {
            self.bytes = None;
        }
    }

    fn next(&mut self, body: BodyRest) -> Option<Vec<u8>> {
        let ahead = self.bytes.as_mut()?;
        // Empty lines in front of a request are none (RFC 9112 section 2.2).
        let start = ahead.iter().position(|byte| !b"\r\n".contains(byte))?;
        let mut lines = ahead.get(start..)?.split_inclusive(|byte| *byte == b'\n');
        let line = lines.next()?.trim_ascii_end().to_vec();
        let mut end = start;
        for line in ahead.get(start..)?.split_inclusive(|byte| *byte == b'\n') {
            end += line.len();
            if matches!(line, b"\n" | b"\r\n") {
                break;
            }
        }
        let rest = ahead.split_off(end);
        *ahead = Vec::new();
        self.body = body;
        self.came(&rest);
        Some(line)
    }
}

/// What is still to come of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyRest {
    /// So many bytes.
    Rest(u64),
    /// The rest of the line with a chunk's size, which is this so far.
    Size(Size),
    /// So many bytes of a chunk, and the line end behind it.
    Chunk(u64),
    /// Trailers; whether a line has begun.
    Trailer(bool),
}

/// The size of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    None,
    Digits(u64),
    /// With something else behind it.
    Whole(u64),
}

impl Size {
    const fn value(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Digits(size) | Self::Whole(size) => size,
        }
    }

    fn with(self, byte: u8) -> Self {
        match (self, char::from(byte).to_digit(16)) {
            (Self::None | Self::Digits(_), Some(digit)) => {
                Self::Digits(self.value().wrapping_mul(16).wrapping_add(digit.into()))
            }
            _ => Self::Whole(self.value()),
        }
    }
}

impl BodyRest {
    /// Takes its bytes, and gives the others. Whether the body is good others look at.
    fn pass<'b>(&mut self, mut bytes: &'b [u8]) -> &'b [u8] {
        while *self != Self::Rest(0)
            && let Some((&byte, rest)) = bytes.split_first()
        {
            if let Self::Rest(left) | Self::Chunk(left) = self {
                let most = usize::try_from(*left).unwrap_or(usize::MAX);
                let (passed, rest) = bytes.split_at(most.min(bytes.len()));
                *left -= u64::try_from(passed.len()).unwrap_or(*left);
                bytes = rest;
                if *self == Self::Chunk(0) {
                    *self = Self::Size(Size::None);
                }
                continue;
            }
            bytes = rest;
            *self = match (*self, byte) {
                (Self::Size(size), b'\n') if size.value() == 0 => Self::Trailer(false),
                (Self::Size(size), b'\n') => Self::Chunk(size.value().saturating_add(2)),
                (Self::Size(size), byte) => Self::Size(size.with(byte)),
                (Self::Trailer(false), b'\n') => Self::Rest(0),
                (Self::Trailer(_), byte) => Self::Trailer(!b"\r\n".contains(&byte)),
                (same, _) => same,
            };
        }
        bytes
    }
}

#[cfg(test)]
mod tests;
