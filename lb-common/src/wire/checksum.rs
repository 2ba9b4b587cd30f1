//! The internet checksum: incremental update and full sum.
//!
//! RFC 1071 section 2 (B): the sum does not depend on byte order, so nothing here converts one;
//! values are added as native loads of network-order bytes. The update is RFC 1624 equation 3:
//! `HC' = ~(~HC + ~m + m')`.

use super::header::Ipv4;
use crate::addr::{Be16, Be32, Be128};

/// What a set of field changes adds to a checksum.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Delta(u64);

impl Delta {
    /// A 16-bit field at an even offset goes from `old` to `new`.
    #[inline(always)]
    pub const fn change16(self, old: Be16, new: Be16) -> Self {
        Self(self.0 + !old.raw() as u64 + new.raw() as u64)
    }

    /// A 32-bit field at an even offset goes from `old` to `new`.
    #[inline(always)]
    pub const fn change32(self, old: Be32, new: Be32) -> Self {
        Self(self.0 + !old.raw() as u64 + new.raw() as u64)
    }

    /// A 128-bit field at an even offset goes from `old` to `new`.
    #[inline(always)]
    pub const fn change128(self, old: Be128, new: Be128) -> Self {
        let ([a, b, c, d], [w, x, y, z]) = (old.raw(), new.raw());
        let old = !a as u64 + !b as u64 + !c as u64 + !d as u64;
        Self(self.0 + old + w as u64 + x as u64 + y as u64 + z as u64)
    }

    /// These changes and others.
    #[inline(always)]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The changes as one number, for [`Self::from_raw`].
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The changes that this number stands for.
    #[inline(always)]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// `checksum` after the changes.
    #[inline(always)]
    pub const fn apply(self, checksum: Be16) -> Be16 {
        Be16::from_raw(!fold(self.0 + !checksum.raw() as u64))
    }

    /// As [`Self::apply`] for UDP: zero means "no checksum" and stays, a computed zero is
    /// sent as all ones (RFC 768).
    #[inline(always)]
    pub const fn apply_udp(self, checksum: Be16) -> Be16 {
        if checksum.raw() == 0 {
            return checksum;
        }
        let updated = self.apply(checksum);
        if updated.raw() == 0 {
            Be16::from_raw(0xffff)
        } else {
            updated
        }
    }
}

/// The checksum of a header that is written anew: the sum of its fields, the checksum left out.
#[derive(Clone, Copy, Debug, Default)]
#[must_use]
pub struct Sum(u64);

impl Sum {
    /// Adds a 16-bit field at an even offset.
    #[inline(always)]
    pub const fn add16(self, field: Be16) -> Self {
        Self(self.0 + field.raw() as u64)
    }

    /// Adds a 32-bit field at an even offset.
    #[inline(always)]
    pub const fn add32(self, field: Be32) -> Self {
        Self(self.0 + field.raw() as u64)
    }

    /// Adds a 128-bit field at an even offset.
    #[inline(always)]
    pub const fn add128(self, field: Be128) -> Self {
        let [a, b, c, d] = field.raw();
        Self(self.0 + a as u64 + b as u64 + c as u64 + d as u64)
    }

    /// Adds a sum that has been made, with its carries.
    #[inline(always)]
    pub const fn add_sum(self, sum: u64) -> Self {
        Self(self.0 + sum)
    }

    /// Adds an IPv4 header without options, its own checksum included.
    #[inline(always)]
    pub fn add_header(self, ip: &Ipv4) -> Self {
        self.add16(Be16::from_raw(u16::from_ne_bytes([
            ip.version_ihl.get(),
            ip.tos.get(),
        ])))
        .add16(ip.total_length.get())
        .add16(ip.identification.get())
        .add16(ip.fragment.get())
        .add16(Be16::from_raw(u16::from_ne_bytes([
            ip.ttl.get(),
            ip.protocol.get(),
        ])))
        .add16(ip.checksum.get())
        .add32(ip.source.get())
        .add32(ip.destination.get())
    }

    /// The sum of a pseudo-header, as a stack leaves it to an interface that adds the rest.
    #[inline(always)]
    pub const fn open(self) -> Be16 {
        Be16::from_raw(fold(self.0))
    }

    /// The checksum.
    #[inline(always)]
    pub const fn checksum(self) -> Be16 {
        Be16::from_raw(!fold(self.0))
    }
}

/// Folds carries until 16 bits are left. Four rounds are enough for any 64-bit sum.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the upper bits are zero after four folds"
)]
pub(crate) const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// The internet checksum of `bytes`, preceded by the partial sum `initial` (RFC 1071): what the
/// checksum field must hold if it counted as zero. For tests and for whole frames made on the host.
pub fn full(bytes: &[u8], initial: u64) -> Be16 {
    Be16::from_raw(!fold(initial + sum(bytes)))
}

/// The sum of `bytes` as 16-bit words, not folded; an odd one at the end counts with a zero behind it.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    let (pairs, rest) = bytes.as_chunks::<2>();
    for pair in pairs {
        sum += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [last] = rest {
        sum += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum
}

/// Partial sum of the TCP and UDP pseudo-header (RFC 9293 section 3.1); `length` in bytes.
#[inline(always)]
pub fn pseudo_header(source: Be32, destination: Be32, protocol: u8, length: u16) -> u64 {
    u64::from(source.raw())
        + u64::from(destination.raw())
        + u64::from(Be16::new(u16::from(protocol)).raw())
        + u64::from(Be16::new(length).raw())
}

/// The same of IPv6 (RFC 8200 section 8.1); `length` in bytes.
#[inline(always)]
pub fn pseudo_header6(source: Be128, destination: Be128, protocol: u8, length: u16) -> u64 {
    let Sum(addresses) = Sum::default().add128(source).add128(destination);
    addresses + u64::from(Be16::new(u16::from(protocol)).raw()) + u64::from(Be16::new(length).raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small deterministic generator; the values only have to be spread.
    fn next(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) ^ *state
    }

    #[test]
    fn the_example_of_rfc_1071() {
        // Section 3: words 0001 f203 f4f5 f6f7 sum to ddf2, so the checksum is its complement.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(full(&bytes, 0).get(), !0xddf2);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: HC = 0xdd2f, m = 0x5555, m' = 0x3285 gives 0x0000.
        let updated = Delta::default()
            .change16(Be16::new(0x5555), Be16::new(0x3285))
            .apply(Be16::new(0xdd2f));
        assert_eq!(updated.get(), 0);
    }

    #[test]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "random bits are cut to size on purpose"
    )]
    fn an_incremental_update_equals_a_full_sum() {
        let mut state = 1;
        for _ in 0..200_000 {
            let mut bytes = [0u8; 40];
            for byte in &mut bytes {
                *byte = next(&mut state) as u8;
            }
            let old_sum = full(&bytes, 0);
            let (address, port) = (next(&mut state) as u32, next(&mut state) as u16);
            let old_address = u32::from_ne_bytes(bytes[12..16].try_into().unwrap());
            let old_port = u16::from_ne_bytes(bytes[20..22].try_into().unwrap());
            bytes[12..16].copy_from_slice(&address.to_ne_bytes());
            bytes[20..22].copy_from_slice(&port.to_ne_bytes());
            let updated = Delta::default()
                .change32(Be32::from_raw(old_address), Be32::from_raw(address))
                .change16(Be16::from_raw(old_port), Be16::from_raw(port))
                .apply(old_sum);
            let wanted = full(&bytes, 0);
            // 0x0000 and 0xffff are the same sum; a header that is not all zero never needs both.
            assert!(
                updated == wanted
                    || updated.raw() ^ wanted.raw() == 0xffff && updated.raw() % 0xffff == 0
            );
        }
    }

    #[test]
    fn udp_zero_stays_zero_and_a_computed_zero_becomes_ones() {
        let delta = Delta::default().change16(Be16::new(0x5555), Be16::new(0x3285));
        assert_eq!(delta.apply_udp(Be16::new(0)).get(), 0);
        assert_eq!(delta.apply_udp(Be16::new(0xdd2f)).get(), 0xffff);
    }
}
