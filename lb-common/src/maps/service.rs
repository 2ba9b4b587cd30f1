//! What a VIP listens on.

use crate::{
    addr::{Be16, Be32},
    maps::rule::Owner,
    pod::pod_struct,
};

pod_struct! {
    /// A listening VIP:port. 12 bytes.
    pub struct ServiceKey {
        /// The VIP.
        pub vip: Be32,
        /// The port.
        pub port: Be16,
        /// Id of the network that it listens on.
        pub network: u16,
        /// IP protocol number.
        pub protocol: u32,
    }
}

impl ServiceKey {
    /// What a record has of its key, so that a packet that reads another key's record notices. Never 0.
    #[inline(always)]
    pub const fn mark(&self) -> u16 {
        let end = (self.port.get() as u32) << 16 | self.network as u32;
        let mixed = self.vip.get().wrapping_mul(0x9e37_79b1)
            ^ end.wrapping_mul(0x85eb_ca6b)
            ^ self.protocol.wrapping_mul(0xc2b2_ae35);
        (mixed >> 16) as u16 | 1
    }
}

pod_struct! {
    /// A service. 20 bytes. Written by userspace only.
    pub struct Service {
        /// Id of the pool: index of its Maglev table; 0 for one of [`SERVICE_CELL`]. Entry 0 of the table is its size, so that one
        /// swap of the table changes both; the backend ids follow.
        pub pool: u32,
        /// Id of the service.
        pub id: u16,
        /// [`ServiceKey::mark`] of its key; 0 in a record that an earlier version has written.
        pub mark: u16,
        /// Rule set of its clients; 0 for every source that the network lets in.
        pub rules: u32,
        /// The `SERVICE_` flags; above them [`Service::source_timeout`].
        pub flags: u32,
        /// Most flows at a time; 0 for no limit of its own.
        pub budget: u32,
    }
}

impl Service {
    /// Whether its connections end in the cell of their network.
    #[inline(always)]
    pub const fn is_of_cell(&self) -> bool {
        self.flags & SERVICE_CELL != 0
    }

    /// Whether each of its SYNs is answered by a cookie.
    #[inline(always)]
    pub const fn has_cookies(&self) -> bool {
        self.flags & SERVICE_COOKIES != 0
    }

    /// Whether its SYNs are answered by cookies as long as its network is [flooded](super::half_open::FLOODED).
    #[inline(always)]
    pub const fn has_cookies_in_floods(&self) -> bool {
        self.flags & SERVICE_COOKIES_IN_FLOODS != 0
    }

    /// Whether the data plane sends its clients to the pools of their names.
    #[inline(always)]
    pub const fn binds(&self) -> bool {
        self.flags & SERVICE_BINDS != 0
    }

    /// The rule set that says which clients its names [distinguish](SERVICE_BY_CLIENT); 0: none.
    #[inline(always)]
    pub const fn client_classes(&self) -> u32 {
        let [first, second] = Owner::Classes(self.id).sets();
        match self.flags & (SERVICE_BY_CLIENT | SERVICE_SECOND_SET) {
            SERVICE_BY_CLIENT => first,
            BY_SECOND_SET => second,
            _ => 0,
        }
    }

    /// The flags for a rule set that is one of the two of [`Owner::Classes`]; none for 0.
    pub const fn class_flags(set: u32) -> u32 {
        match (set, set & 1) {
            (0, _) => 0,
            (_, 0) => SERVICE_BY_CLIENT,
            _ => BY_SECOND_SET,
        }
    }

    /// Whether its flows go by more of the table of its pool than the ids: its count of turns, or its shares.
    #[inline(always)]
    pub const fn goes_by_load(&self) -> bool {
        self.flags & (SERVICE_ROUND_ROBIN | SERVICE_LEAST_CONNECTIONS) != 0
    }

    /// For how many seconds after its last new flow a client keeps the backend that it has had; 0: it goes by the hash
    /// alone.
    #[inline(always)]
    pub const fn source_timeout(&self) -> u32 {
        if self.goes_by_client() {
            self.flags >> TIMEOUT_SHIFT
        } else {
            0
        }
    }

    /// What its flags have for a timeout of so many seconds, 48 days at most.
    pub const fn timeout_flags(seconds: u32) -> u32 {
        seconds << TIMEOUT_SHIFT
    }

    /// Whether its flows go by the client's address alone.
    #[inline(always)]
    pub const fn goes_by_client(&self) -> bool {
        self.flags & SERVICE_SOURCE != 0
    }
}

/// A client that is denied gets an answer instead of silence.
pub const SERVICE_REJECT: u32 = 1;
/// Its connections are accepted in the network's cell: their pool is found by the requested name, or its
/// backends get the client's address by a PROXY header.
pub const SERVICE_CELL: u32 = 2;

/// The backends of its pool take turns.
pub const SERVICE_ROUND_ROBIN: u32 = 4;
/// Of two backends of its pool, chosen at random, a flow goes to the one with fewer flows for its share.
pub const SERVICE_LEAST_CONNECTIONS: u32 = 8;
/// All flows of a client go to the same backend of its pool.
pub const SERVICE_SOURCE: u32 = 16;
/// The data plane answers its SYNs by cookies. A client that returns one opens a flow; with [`SERVICE_CELL`] a connection, which
/// ends in the cell from its first bytes on.
pub const SERVICE_COOKIES: u32 = 32;
/// With [`SERVICE_CELL`] and [`SERVICE_COOKIES`]: the data plane sends clients of names that it knows to a backend by itself.
pub const SERVICE_BINDS: u32 = 64;
/// With [`SERVICE_BINDS`]: some names lead elsewhere for some clients.
pub const SERVICE_BY_CLIENT: u32 = 128;
/// With [`SERVICE_BY_CLIENT`]: which clients these are is in the second set of the two.
const SERVICE_SECOND_SET: u32 = 256;
const BY_SECOND_SET: u32 = SERVICE_BY_CLIENT | SERVICE_SECOND_SET;
/// Without [`SERVICE_CELL`]: as [`SERVICE_COOKIES`], while the half-open flows of the network are flooded.
pub const SERVICE_COOKIES_IN_FLOODS: u32 = 512;
/// The flags end, and the timeout begins.
const TIMEOUT_SHIFT: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_stands_beside_the_flags() {
        const MONTH: u32 = 30 * 24 * 60 * 60;
        let service = |flags| Service {
            flags,
            ..Service::default()
        };
        let flags = SERVICE_REJECT | SERVICE_SOURCE | SERVICE_COOKIES_IN_FLOODS;
        for seconds in [0, 1, MONTH] {
            let with = service(flags | Service::timeout_flags(seconds));
            assert_eq!(with.source_timeout(), seconds);
            assert!(with.goes_by_client() && !with.goes_by_load() && !with.is_of_cell());
            assert!(with.has_cookies_in_floods() && !with.has_cookies());
            let other = service(SERVICE_REJECT | Service::timeout_flags(seconds));
            assert_eq!(other.source_timeout(), 0, "of another algorithm");
        }
    }

    #[test]
    fn classes_of_clients_are_in_one_of_two_sets() {
        let sets = Owner::Classes(7).sets();
        for set in [0, sets[0], sets[1]] {
            let service = Service {
                id: 7,
                flags: SERVICE_CELL | SERVICE_COOKIES | SERVICE_BINDS | Service::class_flags(set),
                ..Service::default()
            };
            assert_eq!(service.client_classes(), set);
            assert_eq!(service.source_timeout(), 0);
        }
    }

    #[test]
    fn keys_that_differ_in_one_field_have_other_marks() {
        let key = ServiceKey {
            vip: Be32::new(0xc0a8_cb6e),
            port: Be16::new(6443),
            network: 2,
            protocol: 6,
        };
        let neighbours = [
            ServiceKey {
                vip: Be32::new(0xc0a8_cb6f),
                ..key
            },
            ServiceKey {
                port: Be16::new(6444),
                ..key
            },
            ServiceKey { network: 3, ..key },
            ServiceKey {
                protocol: 17,
                ..key
            },
        ];
        for neighbour in neighbours {
            assert_ne!(neighbour.mark(), key.mark(), "{neighbour:?}");
        }
    }
}
