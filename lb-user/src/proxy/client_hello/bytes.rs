//! Fields and vectors as TLS writes them (RFC 8446 section 3).

/// What of a message is not read yet. Each read takes its bytes, or nothing if they are not all there.
pub(super) struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        let (&[byte], rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(byte)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        let (&bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(bytes))
    }

    /// A vector with a length of one byte.
    pub(super) fn short(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A vector with a length of two bytes.
    pub(super) fn long(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }

    /// A vector with a length of two bytes that has bytes, and nothing behind it.
    pub(super) fn only_long(mut self) -> Option<&'a [u8]> {
        let vector = self.long()?;
        (self.is_empty() && !vector.is_empty()).then_some(vector)
    }
}
