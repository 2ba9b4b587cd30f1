//! What both ends know: where a request says what it wants, and the bytes of every answer.

use anyhow::{Context as _, Result, ensure};
use lb_tests::traffic::hello::captured_of;
use serde::{Deserialize, Serialize};

/// Where in a request the wish stands: in a ClientHello these are bytes of its random.
const PLACE: usize = 11;
/// Bytes of a wish.
const WISH: usize = 16;
/// Bytes until an answer's content repeats.
const PERIOD: usize = 1 << 18;
/// Where the content of the next answer begins, from that of the one before.
const STRIDE: u64 = 97;
/// Clients by the bytes of their hellos: one record of 517 bytes, the length that many clients pad theirs to; and one with a
/// share of a post-quantum key, in two segments.
const CLIENTS: [(usize, &str); 2] = [(517, "curl-h2"), (1758, "like-chrome131")];

/// A plain request, and hellos of one segment and of two.
pub(crate) const PLAIN: Speech = Speech::Bytes(50);
pub(crate) const HELLO: Speech = Speech::Bytes(CLIENTS[0].0);
pub(crate) const LONG_HELLO: Speech = Speech::Bytes(CLIENTS[1].0);

/// What both ends say on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Speech {
    /// A request of so many bytes with the wish in it, and the answer alone.
    Bytes(usize),
    /// HTTP/1.1, with one request on a connection.
    Http,
}

/// What a connection asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Bytes of the answer.
    pub(crate) bytes: u64,
    /// Which of all connections it is; the content of the answer differs with it.
    pub(crate) number: u64,
}

impl Wish {
    /// Writes it into a request: two words in the order of the network.
    ///
    /// # Errors
    ///
    /// When the request is too short for it.
    pub(crate) fn put(self, request: &mut [u8]) -> Result<()> {
        let place = request.get_mut(PLACE..PLACE + WISH);
        let words = [self.bytes.to_be_bytes(), self.number.to_be_bytes()].concat();
        place
            .context("a request has room for a wish")?
            .copy_from_slice(&words);
        Ok(())
    }

    /// Reads it from a request.
    ///
    /// # Errors
    ///
    /// When the request is too short for it.
    pub(crate) fn of(request: &[u8]) -> Result<Self> {
        let word = |at: usize| {
            let bytes = request.get(at..).and_then(|rest| rest.first_chunk());
            let bytes = bytes.context("a request has a wish")?;
            Ok::<u64, anyhow::Error>(u64::from_be_bytes(*bytes))
        };
        Ok(Self {
            bytes: word(PLACE)?,
            number: word(PLACE + WISH / 2)?,
        })
    }
}

/// A request of this many bytes without a wish: a captured hello, or nothing in particular. One of HTTP has none.
///
/// # Errors
///
/// When there is no such hello.
pub(crate) fn request(speech: Speech) -> Result<Vec<u8>> {
    let Speech::Bytes(length) = speech else {
        return Ok(Vec::new());
    };
    let client = CLIENTS.iter().find(|(bytes, _)| *bytes == length);
    let Some((_, client)) = client else {
        return Ok(vec![b'?'; length]);
    };
    let hello = captured_of(client)?.bytes;
    ensure!(
        hello.len() == length,
        "the hello of {client} has {} bytes",
        hello.len()
    );
    Ok(hello)
}

/// The content of all answers.
#[derive(Debug)]
pub(crate) struct Content(Vec<u8>);

impl Content {
    pub(crate) fn new() -> Self {
        // Marsaglia's xorshift64.
        let mut word = 0x9e37_79b9_7f4a_7c15_u64;
        let mut period: Vec<u8> = std::iter::repeat_with(|| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        })
        .flatten()
        .take(PERIOD)
        .collect();
        period.extend_from_within(..);
        Self(period)
    }

    /// What comes behind the first `offset` bytes of an answer: enough for one write or read.
    pub(crate) fn at(&self, wish: Wish, offset: u64) -> &[u8] {
        let position = wish.number.wrapping_mul(STRIDE).wrapping_add(offset);
        let start = usize::try_from(position).unwrap_or(0) % PERIOD;
        self.0.get(start..start + PERIOD).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_as_it_was_written() {
        let (bytes, number) = (3000, 77);
        for (speech, length) in [(PLAIN, 50), (HELLO, 517), (LONG_HELLO, 1758)] {
            let mut bytes_of = request(speech).expect("a request");
            let wish = Wish { bytes, number };
            wish.put(&mut bytes_of).expect("room");
            assert_eq!(
                (Wish::of(&bytes_of).expect("a wish"), bytes_of.len()),
                (wish, length)
            );
        }
    }

    #[test]
    fn content_goes_on_and_differs_from_answer_to_answer() {
        let content = Content::new();
        let [one, other] = [1, 2].map(|number| Wish { bytes: 0, number });
        let long = content.at(one, 0);
        assert_eq!(long[1000..2000], content.at(one, 1000)[..1000]);
        assert_ne!(long[..16], content.at(other, 0)[..16]);
        assert_eq!(content.at(one, u64::MAX / 2).len(), PERIOD);
    }
}
