//! SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input PRF") of whole words.

/// A message of which some words have been absorbed.
#[derive(Clone, Copy)]
pub(super) struct SipHash {
    words: [u64; 4],
    bytes: u64,
}

impl SipHash {
    /// None so far, with this key.
    #[inline(always)]
    pub(super) const fn new([low, high]: [u64; 2]) -> Self {
        Self {
            words: [
                low ^ 0x736f_6d65_7073_6575,
                high ^ 0x646f_7261_6e64_6f6d,
                low ^ 0x6c79_6765_6e65_7261,
                high ^ 0x7465_6462_7974_6573,
            ],
            bytes: 0,
        }
    }

    /// One more word.
    #[inline(always)]
    pub(super) const fn absorb(self, word: u64) -> Self {
        let Self {
            words: [a, b, c, d],
            bytes,
        } = self;
        let [a, b, c, d] = round(round([a, b, c, d ^ word]));
        Self {
            words: [a ^ word, b, c, d],
            bytes: bytes.wrapping_add(8),
        }
    }

    /// The hash of those that have been absorbed.
    #[inline(always)]
    pub(super) const fn finish(self) -> u64 {
        let [a, b, c, d] = self.absorb(self.bytes << 56).words;
        let [a, b, c, d] = round(round(round(round([a, b, c ^ 0xff, d]))));
        a ^ b ^ c ^ d
    }
}

#[inline(always)]
const fn round([a, b, c, d]: [u64; 4]) -> [u64; 4] {
    let a = a.wrapping_add(b);
    let b = b.rotate_left(13) ^ a;
    let a = a.rotate_left(32);
    let c = c.wrapping_add(d);
    let d = d.rotate_left(16) ^ c;
    let a = a.wrapping_add(d);
    let d = d.rotate_left(21) ^ a;
    let c = c.wrapping_add(b);
    let b = b.rotate_left(17) ^ c;
    [a, b, c.rotate_left(32), d]
}

#[cfg(test)]
mod tests {
    #![expect(
        deprecated,
        reason = "the one SipHash-2-4 that is there without a crate"
    )]

    use std::hash::{Hasher as _, SipHasher};

    use super::*;

    #[test]
    fn it_is_the_hash_of_the_standard_library() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let mut words = Vec::new();
        for word in 0..20u64 {
            let mut oracle = SipHasher::new_with_keys(key[0], key[1]);
            words.iter().for_each(|word| oracle.write_u64(*word));
            let whole = words
                .iter()
                .fold(SipHash::new(key), |hash, word| hash.absorb(*word));
            assert_eq!(whole.finish(), oracle.finish(), "{words:?}");
            words.push(word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
    }

    /// Of the reference (appendix A has the same key): of no bytes, and of the bytes 0 to 7.
    #[test]
    fn it_has_the_vectors_of_the_reference() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(SipHash::new(key).finish(), 0x726f_db47_dd0e_0e31);
        let eight = SipHash::new(key).absorb(0x0706_0504_0302_0100);
        assert_eq!(eight.finish(), 0x93f5_f579_9a93_2462);
    }
}
