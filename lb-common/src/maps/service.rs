//! What a VIP listens on.

use crate::{
    addr::{Be16, Be32},
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

pod_struct! {
    /// A service. 20 bytes. Written by userspace only.
    pub struct Service {
        /// Id of the pool: index of its Maglev table; 0 for one of [`SERVICE_CELL`]. Entry 0 of the table is its size, so that one
        /// swap of the table changes both; the backend ids follow.
        pub pool: u32,
        /// Id of the service.
        pub id: u16,
        /// Zero.
        pub _reserved: u16,
        /// Rule set of its clients; 0 for every source that the network lets in.
        pub rules: u32,
        /// The `SERVICE_` flags.
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
}

/// A client that is denied gets an answer instead of silence.
pub const SERVICE_REJECT: u32 = 1;
/// Its connections are accepted in the network's cell: their pool is found by the requested name, or its
/// backends get the client's address by a PROXY header.
pub const SERVICE_CELL: u32 = 2;
