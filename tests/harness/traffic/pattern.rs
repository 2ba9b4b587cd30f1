//! Bulk data that costs little to make, differs in every block, and its SHA-256.

use std::io::{Read, Write};

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

/// Size of one write and of one read.
const BLOCK: usize = 64 * 1024;

/// A SHA-256 in hex.
pub type Digest = String;

/// A stream of blocks: pseudo-random bytes with the number of the block in front, so that a lost,
/// doubled or misplaced block changes the digest.
#[derive(Debug)]
pub struct Pattern {
    block: Vec<u8>,
    number: u64,
}

impl Pattern {
    /// The stream of `seed`; equal seeds give equal streams.
    pub fn new(seed: u64) -> Self {
        // Marsaglia's xorshift64; zero would stay zero.
        let mut word = seed | 1;
        let block = std::iter::repeat_with(|| {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        })
        .flatten()
        .take(BLOCK)
        .collect();
        Self { block, number: 0 }
    }

    /// Writes the next `bytes` of the stream and returns their digest.
    ///
    /// # Errors
    ///
    /// When the receiver does not take them.
    pub fn send(&mut self, receiver: &mut impl Write, bytes: u64) -> Result<Digest> {
        let mut sha = Sha256::new();
        let mut left = bytes;
        while left > 0 {
            let block = self.next_block();
            let length = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
            let part = block.get(..length).context("a part of a block")?;
            receiver
                .write_all(part)
                .with_context(|| format!("send; {left} bytes are left"))?;
            sha.update(part);
            left -= u64::try_from(length)?;
        }
        Ok(hex(sha))
    }

    /// Writes blocks of the stream until `is_over`; how many bytes those are, and their digest.
    ///
    /// # Errors
    ///
    /// As for [`Self::send`].
    pub fn send_until(
        &mut self,
        receiver: &mut impl Write,
        is_over: impl Fn() -> bool,
    ) -> Result<(u64, Digest)> {
        let mut sha = Sha256::new();
        let mut sent = 0;
        while !is_over() {
            let block = self.next_block();
            receiver
                .write_all(block)
                .with_context(|| format!("send; {sent} bytes are sent"))?;
            sha.update(block);
            sent += u64::try_from(block.len())?;
        }
        Ok((sent, hex(sha)))
    }

    fn next_block(&mut self) -> &[u8] {
        let number = self.number.to_le_bytes();
        self.block
            .iter_mut()
            .zip(number)
            .for_each(|(byte, new)| *byte = new);
        self.number += 1;
        &self.block
    }
}

/// Reads until the sender closes; how many bytes those are, and their digest.
///
/// # Errors
///
/// When the connection breaks.
pub fn digest_all(sender: &mut impl Read) -> Result<(u64, Digest)> {
    let mut sha = Sha256::new();
    let mut block = vec![0; BLOCK];
    let mut received = 0;
    loop {
        let read = sender
            .read(&mut block)
            .with_context(|| format!("receive; {received} bytes have come"))?;
        if read == 0 {
            return Ok((received, hex(sha)));
        }
        sha.update(block.get(..read).context("what was read")?);
        received += u64::try_from(read)?;
    }
}

/// Reads exactly `bytes` and returns their digest.
///
/// # Errors
///
/// When the sender stops early.
pub fn copy_digest(sender: &mut impl Read, bytes: u64) -> Result<Digest> {
    let mut sha = Sha256::new();
    let mut block = vec![0; BLOCK];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
        let room = block.get_mut(..length).context("a part of a block")?;
        let read = sender
            .read(room)
            .with_context(|| format!("receive; {left} bytes are left"))?;
        ensure!(read > 0, "the sender closed with {left} bytes left");
        sha.update(block.get(..read).context("what was read")?);
        left -= u64::try_from(read)?;
    }
    Ok(hex(sha))
}

fn hex(sha: Sha256) -> Digest {
    sha.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_and_what_is_received_have_one_digest() {
        let mut wire = Vec::new();
        let sent = Pattern::new(7)
            .send(&mut wire, 200_001)
            .expect("a vector takes all");
        assert_eq!(wire.len(), 200_001);
        let received = copy_digest(&mut wire.as_slice(), 200_001).expect("all is there");
        assert_eq!(sent, received);
        wire.swap(70_000, 150_000);
        let spoiled = copy_digest(&mut wire.as_slice(), 200_001).expect("all is there");
        assert_ne!(sent, spoiled);
    }

    #[test]
    fn a_short_stream_is_an_error() {
        assert!(copy_digest(&mut [0_u8; 10].as_slice(), 11).is_err());
    }
}
