//! Addresses, ports and MACs as they stand in packets and maps: in network byte order.

macro_rules! network_order {
    ($(#[$meta:meta])* $name:ident, $int:ty) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name($int);

        impl $name {
            /// From host order.
            #[inline(always)]
            pub const fn new(host: $int) -> Self {
                Self(host.to_be())
            }

            /// In host order.
            #[inline(always)]
            pub const fn get(self) -> $int {
                <$int>::from_be(self.0)
            }

            /// From the integer that a native load of the bytes gives.
            #[inline(always)]
            pub const fn from_raw(raw: $int) -> Self {
                Self(raw)
            }

            /// The integer that a native load of the bytes gives; for checksums and comparisons.
            #[inline(always)]
            pub const fn raw(self) -> $int {
                self.0
            }
        }
    };
}

network_order!(
    /// A 16-bit value in network byte order: a port, a length, a checksum.
    Be16,
    u16
);
network_order!(
    /// A 32-bit value in network byte order: an IPv4 address, a sequence number.
    Be32,
    u32
);

impl core::fmt::Debug for Be16 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.get())
    }
}

impl core::fmt::Debug for Be32 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", core::net::Ipv4Addr::from(self.get()))
    }
}

impl Be32 {
    /// Whether no host can have this address, so that nothing may come from it: "this" network,
    /// loopback, link-local, multicast, reserved and broadcast (RFC 6890).
    #[inline(always)]
    pub const fn is_bogon(self) -> bool {
        let address = self.get();
        let first = address >> 24;
        first == 0 || first == 127 || first >= 224 || address >> 16 == 0xa9fe
    }
}

/// A 128-bit value in network byte order: an IPv6 address, as four native loads.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Be128([u32; 4]);

impl Be128 {
    /// From four native loads of four bytes each.
    #[inline(always)]
    pub const fn from_raw(raw: [u32; 4]) -> Self {
        Self(raw)
    }

    /// As four native loads of four bytes each.
    #[inline(always)]
    pub const fn raw(self) -> [u32; 4] {
        self.0
    }

    /// Whether no client may have this address: unspecified, loopback, link-local and multicast (RFC 4291
    /// section 2.4), and those that stand for an IPv4 address, which has rules of its own: mapped and
    /// compatible (section 2.5.5), 6to4 (RFC 3056) and NAT64 (RFC 6052).
    #[inline(always)]
    pub const fn is_bogon(self) -> bool {
        let [a, b, c, _] = self.0;
        let (first, second, third) = (u32::from_be(a), u32::from_be(b), u32::from_be(c));
        let ipv4 = first == 0 && second == 0 && (third == 0 || third == 0xffff);
        let nat64 = first == 0x0064_ff9b && second == 0 && third == 0;
        ipv4 || nat64 || self.is_group() || first >> 22 == 0xfe80 >> 6 || first >> 16 == 0x2002
    }

    /// Whether it is the address of a group: ff00::/8 (RFC 4291 section 2.7).
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        let [first, ..] = self.0;
        first.to_ne_bytes()[0] == 0xff
    }
}

// SAFETY: transparent over four integers, for which every bit pattern is valid.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Be128 {}

impl core::fmt::Debug for Be128 {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", core::net::Ipv6Addr::from(*self))
    }
}

impl From<core::net::Ipv6Addr> for Be128 {
    fn from(address: core::net::Ipv6Addr) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address.octets();
        Self([
            u32::from_ne_bytes([a, b, c, d]),
            u32::from_ne_bytes([e, f, g, h]),
            u32::from_ne_bytes([i, j, k, l]),
            u32::from_ne_bytes([m, n, o, p]),
        ])
    }
}

impl From<Be128> for core::net::Ipv6Addr {
    fn from(address: Be128) -> Self {
        let [a, b, c, d] = address.0.map(u32::from_be);
        let upper = u128::from(a) << 96 | u128::from(b) << 64;
        Self::from_bits(upper | u128::from(c) << 32 | u128::from(d))
    }
}

impl From<core::net::Ipv4Addr> for Be32 {
    #[inline(always)]
    fn from(address: core::net::Ipv4Addr) -> Self {
        Self::new(address.to_bits())
    }
}

impl From<Be32> for core::net::Ipv4Addr {
    #[inline(always)]
    fn from(address: Be32) -> Self {
        Self::from_bits(address.get())
    }
}

/// An Ethernet address: six bytes in wire order, aligned to two so that it needs three loads.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Mac([u16; 3]);

impl Mac {
    /// `ff:ff:ff:ff:ff:ff`.
    pub const BROADCAST: Self = Self([0xffff; 3]);

    /// That of no station.
    pub const NONE: Self = Self([0; 3]);

    /// From six bytes in wire order.
    pub const fn new(bytes: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = bytes;
        Self([
            u16::from_ne_bytes([a, b]),
            u16::from_ne_bytes([c, d]),
            u16::from_ne_bytes([e, f]),
        ])
    }

    /// The six bytes in wire order.
    pub const fn bytes(self) -> [u8; 6] {
        let [x, y, z] = self.0;
        let ([a, b], [c, d], [e, f]) = (x.to_ne_bytes(), y.to_ne_bytes(), z.to_ne_bytes());
        [a, b, c, d, e, f]
    }

    /// From three native loads of two bytes each.
    #[inline(always)]
    pub const fn from_raw(raw: [u16; 3]) -> Self {
        Self(raw)
    }

    /// As three native loads of two bytes each.
    #[inline(always)]
    pub const fn raw(self) -> [u16; 3] {
        self.0
    }

    /// Whether the group bit is set: a broadcast or multicast address.
    #[inline(always)]
    pub const fn is_group(self) -> bool {
        let [first, _, _] = self.0;
        first.to_ne_bytes()[0] & 1 != 0
    }

    /// Whether a station may have it: no group address, and not all zero.
    #[inline(always)]
    pub const fn is_of_station(self) -> bool {
        !self.is_group() && !self.is_none()
    }

    /// All zero: not known.
    #[inline(always)]
    pub const fn is_none(self) -> bool {
        let [a, b, c] = self.0;
        (a | b | c) == 0
    }
}

impl core::fmt::Display for Mac {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, e, g] = self.bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl core::fmt::Debug for Mac {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_ipv6_address_is_what_stands_on_the_wire() {
        let address: core::net::Ipv6Addr = "fd00:1:2:3:4:5:6:7".parse().expect("an address");
        let word = Be128::from(address);
        assert_eq!(core::net::Ipv6Addr::from(word), address);
        assert_eq!(word.raw()[0].to_ne_bytes(), [0xfd, 0, 0, 1]);
    }

    #[test]
    fn nobody_has_an_ipv6_address_that_is_no_hosts_or_stands_for_another() {
        let is_bogon = |text: &str| {
            let address: core::net::Ipv6Addr = text.parse().expect("an address");
            Be128::from(address).is_bogon()
        };
        for text in [
            "::",
            "::1",
            "::192.0.2.9",
            "::ffff:192.0.2.9",
            "64:ff9b::192.0.2.9",
            "2002:c000:209::1",
            "fe80::1",
            "febf::1",
            "ff02::1",
        ] {
            assert!(is_bogon(text), "{text}");
        }
        for text in [
            "fd00::1",
            "2001:db8::1",
            "2003::1",
            "fec0::1",
            "64:ff9b:1::1",
            "::1:0:0:1",
        ] {
            assert!(!is_bogon(text), "{text}");
        }
    }

    #[test]
    fn network_order_survives_both_conversions() {
        assert_eq!(Be16::new(0x1234).raw().to_ne_bytes(), [0x12, 0x34]);
        assert_eq!(Be16::new(6443).get(), 6443);
        let address = Ipv4Addr::new(10, 32, 96, 105);
        assert_eq!(Be32::from(address).raw().to_ne_bytes(), [10, 32, 96, 105]);
        assert_eq!(Ipv4Addr::from(Be32::from(address)), address);
    }

    #[test]
    fn bogons_are_what_no_host_can_have() {
        let is_bogon = |text: &str| Be32::from(text.parse::<Ipv4Addr>().unwrap()).is_bogon();
        for bogon in [
            "0.0.0.0",
            "0.255.255.255",
            "127.0.0.1",
            "169.254.0.0",
            "169.254.255.255",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ] {
            assert!(is_bogon(bogon), "{bogon}");
        }
        for host in [
            "1.0.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "10.0.0.1",
            "223.255.255.255",
        ] {
            assert!(!is_bogon(host), "{host}");
        }
    }

    #[test]
    fn a_mac_keeps_its_bytes_and_knows_groups() {
        let mac = Mac::new([2, 0xab, 3, 4, 5, 6]);
        assert_eq!(mac.bytes(), [2, 0xab, 3, 4, 5, 6]);
        assert_eq!(format!("{mac}"), "02:ab:03:04:05:06");
        assert!(!mac.is_group() && !mac.is_none() && Mac::default().is_none());
        assert!(Mac::BROADCAST.is_group() && Mac::new([1, 0, 0x5e, 0, 0, 1]).is_group());
    }
}
