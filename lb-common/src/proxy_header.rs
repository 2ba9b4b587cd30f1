//! The header of the PROXY protocol, version 2, that the backend of a bound flow gets in front of its client's hello
//! (<https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt>, section 2.2): as userspace makes it for its own connections.
//!
//! It is made where it stays. Places in it are masked, so that the verifier sees that none is outside.

#![expect(
    clippy::cast_possible_truncation,
    reason = "digits, and lengths below a maximum"
)]

use crate::{addr::Be32, late_binding::End, maps::server_name::MAX_NAME_BYTES};

/// Room for the longest one, and more: a power of two.
pub const ROOM: usize = 256;
/// `PROXY` of version 2, and TCP over IPv4 (section 2.2).
const PROXIED: u8 = 0x21;
const TCP_IPV4: u8 = 0x11;
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Where the length is of what is behind it, the addresses are, and what follows them.
const LENGTH_AT: u32 = 14;
const ADDRESSES_AT: u32 = 16;
const NAME_AT: u32 = 28;
/// Bytes of the kind and the length of a value, and the kinds (section 2.2.1).
const VALUE_HEAD: u32 = 3;
const AUTHORITY: u8 = 2;
const UNIQUE_ID: u8 = 5;
/// Digits of a time in milliseconds, which are as many until the year 2286; and the number that the first one counts.
const MOST_DIGITS: u32 = 13;
const MOST: u64 = 1_000_000_000_000;
/// Bytes of `255.255.255.255:65535-` in front of those.
const MAX_ID: u32 = 22 + MOST_DIGITS;

const _: () =
    assert!(NAME_AT + VALUE_HEAD + MAX_NAME_BYTES + VALUE_HEAD + MAX_ID < ROOM as u32 - 1);

/// A header. 256 bytes.
#[repr(C)]
pub struct ProxyHeader {
    bytes: [u8; ROOM],
}

impl ProxyHeader {
    /// An empty one.
    pub const fn new() -> Self {
        Self { bytes: [0; ROOM] }
    }

    /// The bytes up to a length.
    pub fn bytes(&self, length: u32) -> &[u8] {
        self.bytes.get(..length as usize).unwrap_or(&self.bytes)
    }

    /// Writes a byte; the place behind it.
    #[inline(always)]
    pub const fn put(&mut self, at: u32, byte: u8) -> u32 {
        self.bytes[at as usize & (ROOM - 1)] = byte;
        at + 1
    }

    #[inline(always)]
    fn put_all<const N: usize>(&mut self, at: u32, bytes: [u8; N]) -> u32 {
        let mut place = at;
        for byte in bytes {
            place = self.put(place, byte);
        }
        place
    }

    #[inline(always)]
    fn put_head(&mut self, at: u32, kind: u8, length: u32) -> u32 {
        let [.., high, low] = length.to_be_bytes();
        self.put_all(at, [kind, high, low])
    }

    /// Writes all up to the id: from the client to the VIP, for the name with this many bytes of these words, as a
    /// [`NameKey`](crate::maps::server_name::NameKey) has them. The place of the id's value.
    #[inline(always)]
    pub fn begin<const WORDS: usize>(
        &mut self,
        client: End,
        vip: End,
        name: &[u64; WORDS],
        length: u32,
    ) -> u32 {
        self.put_all(0, SIGNATURE);
        self.put_all(SIGNATURE.len() as u32, [PROXIED, TCP_IPV4]);
        let mut at = ADDRESSES_AT;
        for (address, _) in [client, vip] {
            at = self.put_all(at, address.get().to_be_bytes());
        }
        for (_, port) in [client, vip] {
            at = self.put_all(at, port.get().to_be_bytes());
        }
        at = self.put_head(at, AUTHORITY, length);
        let mut place = at;
        for word in name {
            place = self.put_all(place, word.to_ne_bytes());
        }
        self.put_head(at + length, UNIQUE_ID, 0)
    }

    /// Writes a number in decimal digits, of which it has 13 at most; the place behind it.
    #[inline(always)]
    pub fn put_number(&mut self, at: u32, number: u64) -> u32 {
        let (mut at, mut power, mut has_begun) = (at, MOST, false);
        for _ in 0..MOST_DIGITS {
            let digit = (number / power % 10) as u8;
            has_begun |= digit != 0 || power == 1;
            if has_begun {
                at = self.put(at, b'0' + digit);
            }
            power /= 10;
        }
        at
    }

    /// Writes the lengths, of one whose id begins and ends here. What its bytes sum up to (RFC 1071), as they lie in memory.
    #[inline(always)]
    pub fn end(&mut self, id_at: u32, end: u32) -> u16 {
        let [.., high, low] = (end - ADDRESSES_AT).to_be_bytes();
        self.put_all(LENGTH_AT, [high, low]);
        let [.., high, low] = end.wrapping_sub(id_at).to_be_bytes();
        self.put_all(id_at.wrapping_sub(2), [high, low]);
        // An odd byte is summed up with a zero behind it.
        self.put(end, 0);
        let (mut sum, mut at) = (0_u32, 0);
        while at < ROOM {
            if at as u32 >= end {
                break;
            }
            sum += u16::from_ne_bytes([self.bytes[at], self.bytes[at + 1]]) as u32;
            at += 2;
        }
        let folded = (sum & 0xffff) + (sum >> 16);
        ((folded & 0xffff) + (folded >> 16)) as u16
    }
}

impl Default for ProxyHeader {
    fn default() -> Self {
        Self::new()
    }
}

/// The numbers of an id: those of an address.
#[inline(always)]
pub const fn octets(address: Be32) -> [u8; 4] {
    address.get().to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{addr::Be16, wire::checksum::full};

    const CLIENT: End = (Be32::new(0xc0a8_cb32), Be16::new(40_000));
    const VIP: End = (Be32::new(0xc0a8_cb6e), Be16::new(443));

    fn words(name: &str) -> [u64; 15] {
        let mut bytes = [0; 120];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        let (words, _) = bytes.as_chunks::<8>();
        std::array::from_fn(|index| u64::from_ne_bytes(words[index]))
    }

    #[test]
    fn a_header_has_the_client_the_vip_the_name_and_the_id() {
        let longest = "n".repeat(120);
        for (name, id) in [("a.lab", "10.32.96.50:1024-1700000000123"), (&longest, "0")] {
            let mut header = ProxyHeader::new();
            header.bytes.fill(0xee);
            let length = u32::try_from(name.len()).unwrap();
            let id_at = header.begin(CLIENT, VIP, &words(name), length);
            let end = id.bytes().fold(id_at, |at, byte| header.put(at, byte));
            let sum = header.end(id_at, end);
            let mut expected = SIGNATURE.to_vec();
            let rest = 12 + 3 + name.len() + 3 + id.len();
            expected.extend([0x21, 0x11, 0, u8::try_from(rest).unwrap()]);
            expected.extend([192, 168, 203, 50, 192, 168, 203, 110]);
            expected.extend([0x9c, 0x40, 0x01, 0xbb]);
            expected.extend([2, 0, u8::try_from(name.len()).unwrap()]);
            expected.extend(name.as_bytes());
            expected.extend([5, 0, u8::try_from(id.len()).unwrap()]);
            expected.extend(id.as_bytes());
            assert_eq!(header.bytes(end), expected);
            assert_eq!(sum, !full(&expected, 0).raw(), "{name}");
        }
    }

    #[test]
    fn a_number_has_as_many_digits_as_it_needs() {
        for number in [0, 7, 10, 255, 65_535, 1_700_000_000_123, 9_999_999_999_999] {
            let mut header = ProxyHeader::new();
            let end = header.put_number(3, number);
            let written = header.bytes(end).get(3..).unwrap();
            assert_eq!(written, number.to_string().as_bytes());
        }
    }
}
