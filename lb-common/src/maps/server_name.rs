//! Names that the data plane sends to a pool by itself.

#![expect(
    clippy::cast_possible_truncation,
    reason = "parts of numbers are meant, and lengths below a maximum"
)]

use crate::{client_hello::glance::HelloBytes, pod::pod_struct};

/// Bytes of a name in a key, in words. Clients of longer ones are userspace's.
pub const MAX_NAME_BYTES: u32 = 120;
const WORDS: usize = 15;
const WORD: u32 = u64::BITS / 8;
/// Most bytes of a label (RFC 1035 section 2.3.4).
const MAX_LABEL: u32 = 63;

pod_struct! {
    /// A name of a service, or what its names are under. 128 bytes.
    pub struct NameKey {
        /// Id of the service.
        pub service: u16,
        /// Bytes of the name.
        pub length: u16,
        /// 0 or [`UNDER`], and the kind of the clients that the key is for; 0: for all. Or [`PROTOCOL`].
        pub kind: u32,
        /// The name in lower case, a protocol's as it is sent, and zeros behind it.
        pub name: [u64; WORDS],
    }
}

/// The key is for the names under this one, that have labels in front of it.
pub const UNDER: u32 = 1;
/// The class of clients that are in no prefix of their service's classes. Its bit is in the kind of all clients.
pub const OTHER_CLIENTS: u32 = 2;
/// The key is that of a protocol of ALPN, and its route has the number of [`protocol()`] in the place of a pool.
pub const PROTOCOL: u32 = 4;
/// Most protocols that the routes of a service may be for.
pub const MAX_ROUTED_PROTOCOLS: usize = 4;
/// In [`PoolRoute::flags`]: backends get a header of the PROXY protocol in front of the hello.
pub const WITH_HEADER: u16 = 1 << 15;
/// In the place of a pool: it is found under the kind of the client, its class and the numbers of what it offers together. The
/// flags say what counts.
pub const BY_CLIENT: u32 = u32::MAX;
/// In the flags of [`BY_CLIENT`]: the class counts. Without, all are of [`OTHER_CLIENTS`].
pub const BY_CLASS: u16 = 1;
/// In the flags of [`BY_CLIENT`]: the protocols count that the client offers. Without, it offers none.
pub const BY_PROTOCOL: u16 = 2;

/// The number of the class of the clients in the prefix at this place of all prefixes of a service, whose hash makes another set
/// have other numbers: they are above those of protocols.
#[cfg(any(test, feature = "user"))]
pub const fn class(hash: u32, place: u32) -> u32 {
    hash << 23 | ((place + 1) & 0xffff) << 7 | OTHER_CLIENTS
}

/// Whether a kind of clients is in a class, and not of [`OTHER_CLIENTS`].
#[cfg(any(test, feature = "user"))]
pub const fn has_class(kind: u32) -> bool {
    kind >> 7 != 0
}

/// The place of the class of a kind of clients, from 1 on, or 0 of [`OTHER_CLIENTS`]; and a bit for each protocol that they offer.
#[cfg(any(test, feature = "user"))]
pub const fn parts_of_kind(kind: u32) -> (u32, u32) {
    (kind >> 7 & 0xffff, kind >> 3 & 0xf)
}

/// The number of the protocol at this place of those that the routes of a service are for: bits 3 to 6.
#[cfg(any(test, feature = "user"))]
pub const fn protocol(place: u32) -> u32 {
    8 << place
}

pod_struct! {
    /// Where the clients of a name go. 8 bytes, written at once.
    pub struct PoolRoute {
        /// Id of the pool, or [`BY_CLIENT`]; 0: userspace has the choice.
        pub pool: u32,
        /// The flags of a service that say how a backend of the pool is chosen, and [`WITH_HEADER`]; those of [`BY_CLIENT`].
        pub flags: u16,
        /// [`NameKey::mark`] of its key.
        pub mark: u16,
    }
}

impl PoolRoute {
    /// The flags that say how a backend is chosen.
    #[inline(always)]
    pub const fn balance(self) -> u32 {
        (self.flags & !WITH_HEADER) as u32
    }

    /// As one number.
    #[inline(always)]
    pub const fn raw(self) -> u64 {
        self.pool as u64 | (self.flags as u64) << 32 | (self.mark as u64) << 48
    }

    /// From one.
    #[inline(always)]
    pub const fn from_raw(number: u64) -> Self {
        Self {
            pool: number as u32,
            flags: (number >> 32) as u16,
            mark: (number >> 48) as u16,
        }
    }
}

impl NameKey {
    /// What a route has of its key, so that a packet that reads another key's route notices. Never 0.
    #[inline(always)]
    pub const fn mark(&self) -> u16 {
        let head = (self.service as u64) << 32 | (self.length as u64) << 16 | self.kind as u64;
        let mut mixed = head;
        let mut at = 0;
        while at < WORDS {
            let word = if at < self.name.len() {
                self.name[at]
            } else {
                0
            };
            mixed = (mixed ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23);
            at += 1;
        }
        (mixed >> 48) as u16 | 1
    }

    /// Writes the name of `length` bytes that begins at a place of a hello; `letters`: [`ANY_CASE`] or [`AS_SENT`].
    #[inline(always)]
    pub fn set_name(&mut self, bytes: &impl HelloBytes, at: u32, length: u32, letters: u64) {
        self.length = length as u16;
        let mut begin = 0;
        for place in &mut self.name {
            let word = (0..WORD).rev().fold(0, |word, offset| {
                let byte = bytes.byte(at.wrapping_add(begin + offset));
                word << 8 | u64::from(byte)
            });
            let left = length.saturating_sub(begin).min(WORD);
            let kept = u64::MAX.checked_shr(8 * (WORD - left));
            *place = folded(word & kept.unwrap_or(0), letters);
            begin += WORD;
        }
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x80 * ONES;
/// Of names: their capital letters become small ones.
pub const ANY_CASE: u64 = HIGH;
/// Of protocols: they stay as they are sent.
pub const AS_SENT: u64 = 0;

/// Eight bytes, with capital letters or without.
#[inline(always)]
const fn folded(word: u64, letters: u64) -> u64 {
    let low = word & !HIGH;
    let from_a = low + (0x80 - b'A' as u64) * ONES;
    let behind_z = low + (0x80 - b'Z' as u64 - 1) * ONES;
    word | (from_a & !behind_z & !word & letters) >> 2
}

/// Bytes of the first label of a name of `length` bytes at a place of a hello, if it has another one behind it; `None`
/// if it is no label.
#[inline(always)]
pub fn first_label(bytes: &impl HelloBytes, at: u32, length: u32) -> Option<u32> {
    for label in 0..=MAX_LABEL {
        if label + 1 >= length {
            return None;
        }
        match bytes.byte(at.wrapping_add(label)) {
            b'.' => return (label != 0).then_some(label),
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => {}
            _ => return None,
        }
    }
    None
}

#[cfg(feature = "user")]
impl NameKey {
    /// The name.
    pub fn text(&self) -> String {
        let bytes = self.name.iter().flat_map(|word| word.to_le_bytes());
        let bytes: Vec<u8> = bytes.take(self.length.into()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The key of a name, of what names are under, or of a protocol, as the data plane makes it of a hello; none if it is too long.
#[cfg(any(test, feature = "user"))]
pub fn key(service: u16, name: &[u8], kind: u32) -> Option<NameKey> {
    let length = u32::try_from(name.len()).ok();
    let length = length.filter(|&length| length <= MAX_NAME_BYTES)?;
    let mut key = NameKey {
        service,
        kind,
        ..NameKey::default()
    };
    let letters = if kind == PROTOCOL { AS_SENT } else { ANY_CASE };
    key.set_name(&name, 0, length, letters);
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server_name::ServerName;

    #[test]
    fn a_key_is_that_of_the_name_in_lower_case() {
        let made = key(7, b"api.example.com", 0).unwrap();
        assert_eq!(made, key(7, b"API.eXample.coM", 0).unwrap());
        assert_eq!((made.service, made.length), (7, 15));
        let bytes: Vec<u8> = made
            .name
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        assert_eq!(&bytes[..16], b"api.example.com\0");
        assert!(bytes[16..].iter().all(|&byte| byte == 0));
        let others = [
            key(8, b"api.example.com", 0),
            key(7, b"api.example.com", UNDER),
            key(7, b"api.example.com\0", 0),
            key(7, b"api.example.co", 0),
        ];
        for other in others.map(Option::unwrap) {
            assert_ne!(other, made);
            assert_ne!(other.mark(), made.mark());
        }
        let longest = "x".repeat(120);
        assert_eq!(
            key(1, longest.as_bytes(), 0).unwrap().name[14],
            u64::from_ne_bytes([b'x'; 8])
        );
        assert_eq!(key(1, "x".repeat(121).as_bytes(), 0), None);
    }

    /// As the language does it, for each byte at each place.
    #[test]
    fn letters_become_small_ones() {
        for byte in 0..=u8::MAX {
            for place in 0..8 {
                let mut word = [b'Z', b'[', b'@', 0x80, 0xda, b'a', 0, b'A'];
                word[place] = byte;
                let small = word.map(|byte| byte.to_ascii_lowercase());
                let word = u64::from_ne_bytes(word);
                assert_eq!(folded(word, ANY_CASE), u64::from_ne_bytes(small));
                assert_eq!(folded(word, AS_SENT), word);
            }
        }
    }

    /// Under the name behind it, it is one label that a [`ServerName`] may have.
    #[test]
    fn a_first_label_is_one() {
        let label = |name: &str| {
            let length = u32::try_from(name.len()).unwrap();
            first_label(&name.as_bytes(), 0, length)
        };
        assert_eq!(label("api.example.com"), Some(3));
        let long = format!("{}.example", "x".repeat(63));
        assert_eq!(label(&long), Some(63));
        for name in [
            "example",
            "example.",
            ".example",
            "",
            "x",
            &format!("x{long}"),
        ] {
            assert_eq!(label(name), None, "{name}");
        }
        for byte in 0..=u8::MAX {
            let name = [b'a', byte, b'.', b'b'];
            let is_one = ServerName::read(&name).is_ok() && byte != b'.';
            let found = first_label(&&name[..], 0, 4);
            assert_eq!(found == Some(2), is_one, "{byte}");
        }
    }

    #[test]
    fn kinds_of_clients_are_none_of_names_and_protocols() {
        let protocols = (0..4).map(protocol).collect::<Vec<_>>();
        assert_eq!(protocols, [8, 16, 32, 64]);
        for class in [OTHER_CLIENTS, class(0, 0), class(u32::MAX, 65_534)] {
            assert!(protocols.iter().all(|protocol| class & protocol == 0));
            assert_eq!(class & (UNDER | PROTOCOL | OTHER_CLIENTS), OTHER_CLIENTS);
            assert_eq!(has_class(class | UNDER | 8), class != OTHER_CLIENTS);
        }
    }

    #[test]
    fn a_route_is_one_number() {
        let route = PoolRoute {
            pool: 0x0102_0304,
            flags: 0x0506,
            mark: 0x0708,
        };
        assert_eq!(PoolRoute::from_raw(route.raw()), route);
    }
}
