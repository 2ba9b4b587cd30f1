//! Fields and vectors as TLS writes them (RFC 8446 section 3), read where they lie: in the records of the
//! stream.

use core::fmt::{self, Write as _};

use super::record_layer;

/// Bytes of a message that are not read yet, in the records in which they came. Each read takes its
/// bytes; where they are not all there it has nothing, and what is left is of no use.
#[derive(Clone, Default)]
pub struct Bytes<'a> {
    /// How many they are.
    left: usize,
    /// What is not read of the record that they begin in; it may go on behind them.
    fragment: &'a [u8],
    /// The records behind that one.
    records: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// The first `length` bytes of a message in these records.
    pub(super) const fn new(records: &'a [u8], length: usize) -> Self {
        Self {
            left: length,
            fragment: &[],
            records,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.left
    }

    /// The first `length` of them, if there are as many.
    pub(super) fn first(&mut self, length: usize) -> Option<Self> {
        if length > self.left {
            return None;
        }
        let first = Self {
            left: length,
            ..self.clone()
        };
        let mut rest = length;
        while rest > 0 {
            let piece = self.piece(rest);
            if piece.is_empty() {
                return None;
            }
            rest -= piece.len();
        }
        Some(first)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.piece(1).first().copied()
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    /// A number of three bytes.
    pub(super) fn u24(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes([0, self.u8()?, self.u8()?, self.u8()?]))
    }

    /// A vector with a length of one byte.
    pub(super) fn short(&mut self) -> Option<Self> {
        let length = self.u8()?;
        self.first(length.into())
    }

    /// A vector with a length of two bytes.
    pub(super) fn long(&mut self) -> Option<Self> {
        let length = self.u16()?;
        self.first(length.into())
    }

    /// A vector with a length of two bytes that has bytes, and nothing behind it.
    pub(super) fn only_long(mut self) -> Option<Self> {
        let vector = self.long()?;
        (self.is_empty() && !vector.is_empty()).then_some(vector)
    }

    /// Takes at most so many bytes that lie together; none if nothing is left.
    fn piece(&mut self, most: usize) -> &'a [u8] {
        let most = most.min(self.left);
        if most > 0 && self.fragment.is_empty() {
            (self.fragment, self.records) = record_layer::first_fragment(self.records);
        }
        let (piece, rest) = self.fragment.split_at(most.min(self.fragment.len()));
        self.fragment = rest;
        self.left -= piece.len();
        piece
    }
}

/// One byte after the other.
impl Iterator for Bytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        self.u8()
    }
}

impl PartialEq for Bytes<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.clone().eq(other.clone())
    }
}

impl Eq for Bytes<'_> {}

impl PartialEq<&[u8]> for Bytes<'_> {
    fn eq(&self, other: &&[u8]) -> bool {
        self.len() == other.len() && self.clone().eq(other.iter().copied())
    }
}

/// As a string of what is ASCII, and escapes of the rest.
impl fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for letter in self.clone().flat_map(u8::escape_ascii) {
            if matches!(letter, b'"' | b'\\') {
                f.write_char('\\')?;
            }
            f.write_char(letter.into())?;
        }
        f.write_char('"')
    }
}
