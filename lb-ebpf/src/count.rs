//! Every packet ends in exactly one counted verdict.

use aya_ebpf::{bindings::xdp_action, programs::XdpContext};
use aya_log_ebpf::debug;
use lb_common::verdict::{Hook, Verdict, counters_index, refusal_slot};

use crate::maps::VERDICTS;

/// Counts the end of a frame that was not served, on the NIC, and gives the XDP action.
#[inline(always)]
pub(crate) fn refused(ctx: &XdpContext, network: u16, reason: u32, answered: bool) -> u32 {
    let slot = refusal_slot(reason, answered);
    add(Hook::Nic, network, slot);
    if answered {
        return xdp_action::XDP_TX;
    }
    debug!(
        ctx,
        "hook {} network {} drop {}",
        Hook::Nic as u8,
        network,
        reason
    );
    xdp_action::XDP_DROP
}

/// Counts a flow that took what is not a verdict's slot, such as `UNRESTED`.
#[inline(always)]
pub(crate) fn note(network: u16, slot: u32) {
    add(Hook::Nic, network, slot);
}

#[inline(always)]
fn add(hook: Hook, network: u16, slot: u32) {
    if let Some(counters) = VERDICTS.get_ptr_mut(counters_index(hook, network)) {
        // SAFETY: the pointer is this CPU's value, which nothing else writes while the program runs.
        let counters = unsafe { &mut *counters };
        let mut slot = u64::from(slot);
        // SAFETY: no instruction. The compiler would leave out the bound where it knows one that the verifier
        // has lost.
        unsafe { core::arch::asm!("", inlateout("r1") slot) };
        if let Some(counter) = counters.get_mut(slot as usize) {
            *counter = counter.wrapping_add(1);
        }
    }
}

/// Counts `verdict` for `network` and gives the XDP action that carries it out.
#[inline(always)]
pub(crate) fn finish(ctx: &XdpContext, hook: Hook, network: u16, verdict: Verdict) -> u32 {
    add(hook, network, verdict.slot());
    match verdict {
        Verdict::Passed => xdp_action::XDP_PASS,
        Verdict::Transmitted => xdp_action::XDP_TX,
        Verdict::Forwarded | Verdict::Delivered | Verdict::Returned => xdp_action::XDP_REDIRECT,
        Verdict::Consumed => xdp_action::XDP_DROP,
        Verdict::Dropped(reason) => {
            debug!(
                ctx,
                "hook {} network {} drop {}", hook as u8, network, reason as u8
            );
            xdp_action::XDP_DROP
        }
    }
}
