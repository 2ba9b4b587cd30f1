//! Every packet ends in exactly one counted verdict.

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use aya_log_ebpf::debug;
use lb_common::verdict::{Hook, Verdict, counter_index};

use crate::maps::COUNTERS;

/// Counts `verdict` for `network` and gives the XDP action that carries it out.
#[inline(always)]
pub(crate) fn finish(ctx: &XdpContext, hook: Hook, network: u16, verdict: Verdict) -> u32 {
    if let Some(counter) = COUNTERS.get_ptr_mut(counter_index(hook, network, verdict.slot())) {
        // SAFETY: the pointer is this CPU's slot, which nothing else writes while the program runs.
        let counter = unsafe { &mut *counter };
        *counter = counter.wrapping_add(1);
    }
    match verdict {
        Verdict::Passed => xdp_action::XDP_PASS,
        Verdict::Transmitted => xdp_action::XDP_TX,
        Verdict::Forwarded | Verdict::Delivered => xdp_action::XDP_REDIRECT,
        Verdict::Dropped(reason) => {
            debug!(
                ctx,
                "hook {} network {} drop {}", hook as u8, network, reason as u8
            );
            xdp_action::XDP_DROP
        }
    }
}
