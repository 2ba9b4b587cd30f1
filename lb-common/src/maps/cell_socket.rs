//! Connections of clients that sockets of cells have, behind SYNs that were answered by cookies.

use crate::pod::pod_struct;

/// How many there may be.
pub const MAX_CELL_SOCKETS: u32 = 32_768;

pod_struct! {
    /// A connection, by its tuple. 12 bytes. Made, marked as live and removed by userspace.
    pub struct CellSocket {
        /// The number of the client's SYN, host order.
        pub isn: u32,
        /// Coarse time at which the client has sent something last, or a process has marked it.
        pub seen: u32,
        /// 0, [`REOPENED`] or [`REPLACED`].
        pub state: u32,
    }
}

/// A SYN has come from the client's port since: what follows may be of another connection.
pub const REOPENED: u32 = 1;
/// The hello of another connection has come from the client's port, behind the cookie for that SYN, and has no socket yet.
pub const REPLACED: u32 = 2;
