//! icmp6: not there yet.

use aya_ebpf::bindings::xdp_md;
use lb_common::verdict::DropReason;

use crate::count;

/// The end of an ICMPv6 packet.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_icmp6(_ctx: *mut xdp_md, _id: u32, _chain: u32) -> u32 {
    count::number(Err(DropReason::UnsupportedProtocol))
}
