//! What the `lb_` functions return to their callers.
//!
//! Each is a function of its own in the object (`#[inline(never)]`, with a name that the linker keeps): the verifier
//! walks it once, and not once for each way to it, and its stack is its own. Arguments are numbers, of which there
//! are five at most, because the verifier knows nothing of what a pointer into our stack points to. So is what it
//! returns: a verdict or a reason as [`count::number`](crate::count::number), or one of those here, which no reason
//! has.

use lb_common::maps::fragment::FROM_BACKEND;

use crate::count;

/// What `lb_flow` returns for a packet that belongs to no flow and may open one; no reason has this number.
pub(crate) const OPENS: u64 = count::FIRST_VERDICT as u64 - 1;

/// What `lb_flow6` returns for a packet that belongs to a flow: this, whether it is a reply, and the
/// generation of the flow's entry in the upper half, and the flow's id in the lower one.
pub(crate) const OF_FLOW: u32 = 1 << 31;
/// See [`OF_FLOW`].
pub(crate) const IS_REPLY: u32 = 1 << 30;

/// What is next for a packet of this flow.
#[inline(always)]
pub(crate) fn of_flow(flow_id: u32, generation: u32, direction: u16) -> u64 {
    let reply = if direction == FROM_BACKEND {
        IS_REPLY
    } else {
        0
    };
    u64::from(OF_FLOW | reply | generation) << 32 | u64::from(flow_id)
}
