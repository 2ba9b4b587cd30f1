//! Local peers: the addresses and ports that the sockets of a network's cell talk to; no other reaches these
//! sockets.

use crate::{
    addr::{Be16, Be32},
    pod::pod_struct,
};

pod_struct! {
    /// An end of a connection of a cell's own. 8 bytes. Written by userspace only.
    pub struct PeerKey {
        /// Its address.
        pub address: Be32,
        /// Its port.
        pub port: Be16,
        /// Id of the cell's network.
        pub network: u16,
    }
}

/// The value of a peer: it is one as long as it is in the map.
pub const IS_PEER: u32 = 1;
