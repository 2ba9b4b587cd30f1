//! The registry: ids by name, allocated once, stable over restarts.

/// What an id is for; ids of different kinds are independent.
pub const KIND_NETWORK: u8 = 1;
/// See [`KIND_NETWORK`].
pub const KIND_SERVICE: u8 = 2;
/// See [`KIND_NETWORK`].
pub const KIND_POOL: u8 = 3;
/// See [`KIND_NETWORK`].
pub const KIND_BACKEND: u8 = 4;
/// See [`KIND_NETWORK`]. The id is the slot of the address plus one.
pub const KIND_SNAT: u8 = 5;

/// Longest name in bytes: a pool's, a backend's with its port, and an address, with what separates
/// them.
pub const NAME_BYTES: usize = 223;

/// Key of the registry: a kind and a name, padded with zeros. The value is the id, a `u32`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegistryKey {
    /// One of the `KIND_` constants.
    pub kind: u8,
    /// UTF-8, padded with zeros.
    pub name: [u8; NAME_BYTES],
}

// SAFETY: `repr(C)`, made of bytes only, so it has no padding and every bit pattern is valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for RegistryKey {}

impl RegistryKey {
    /// The key of `name`, or `None` if the name is too long.
    pub fn new(kind: u8, name: &str) -> Option<Self> {
        let mut padded = [0; NAME_BYTES];
        padded
            .get_mut(..name.len())?
            .copy_from_slice(name.as_bytes());
        Some(Self { kind, name: padded })
    }

    /// The name without its padding; empty if it is not UTF-8.
    pub fn name(&self) -> &str {
        let bytes = self
            .name
            .split(|&byte| byte == 0)
            .next()
            .unwrap_or_default();
        core::str::from_utf8(bytes).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_survives_and_a_long_one_is_refused() {
        let key = RegistryKey::new(KIND_BACKEND, "kas-a/10.32.96.105:30918").unwrap();
        assert_eq!(key.name(), "kas-a/10.32.96.105:30918");
        let longest = "x".repeat(NAME_BYTES);
        assert_eq!(
            RegistryKey::new(KIND_POOL, &longest).unwrap().name(),
            longest
        );
        assert!(RegistryKey::new(KIND_POOL, &"x".repeat(NAME_BYTES + 1)).is_none());
    }
}
