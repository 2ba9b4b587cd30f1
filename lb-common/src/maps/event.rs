//! Flow events: records of flows that begin and end, for the flow log.

use super::flow::Flow;
use crate::{
    addr::{Be32, Be128},
    pod::pod_struct,
};

pod_struct! {
    /// A flow that began or ended. 104 bytes; older data planes report the first 88.
    pub struct FlowEvent {
        /// Its entry as it was then; the word has protocol and generation.
        pub flow: Flow,
        /// Its id.
        pub id: u32,
        /// One of the constants below.
        pub kind: u32,
        /// Its SNAT address.
        pub snat: Be32,
        /// Its SNAT port, host order.
        pub port: u32,
        /// When that was, in the unit of `Flow::last_seen`. It may be read much later.
        pub time: u32,
        /// Zero.
        pub _reserved: u32,
        /// The client, if the flow is one of IPv6.
        pub client: Be128,
    }
}

/// The flow began.
pub const BEGAN: u32 = 0;
/// Both ends sent a FIN.
pub const FINISHED: u32 = 1;
/// The client reset it.
pub const RESET_BY_CLIENT: u32 = 2;
/// The backend reset it.
pub const RESET_BY_BACKEND: u32 = 3;
/// Half-open for too long in a full ring: a newer flow took its place.
pub const RECYCLED: u32 = 4;
/// Idle for too long; reported by userspace itself.
pub const EXPIRED: u32 = 5;
/// Its peer did not answer keepalive probes; reported by userspace itself.
pub const DEAD: u32 = 6;
/// Its network was removed; reported by userspace itself.
pub const REMOVED: u32 = 7;
/// Its backend is dead; reported by userspace itself.
pub const CUT_BACKEND: u32 = 8;
/// Its service is gone, or its client may not use it any more; reported by userspace itself.
pub const CUT_POLICY: u32 = 9;
/// An operator ended it; reported by userspace itself.
pub const CUT_OPERATOR: u32 = 10;
/// An operator disabled its backend; reported by userspace itself.
pub const CUT_DISABLED: u32 = 11;
/// Its backend was drained or is not configured any more, and the drain timeout is over; reported by userspace itself.
pub const CUT_DRAINED: u32 = 12;
/// Its backend did not answer, or refused it: the same connection has begun anew with another backend.
pub const REDISPATCHED: u32 = 13;

/// Bytes of the ring buffer.
pub const BUFFER_BYTES: u32 = 1 << 20;
