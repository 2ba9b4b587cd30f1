//! A frame of a flow becomes what its next end expects: addresses and ports, segment size,
//! checksums.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    csum_partial::{self, OPEN, TOO_LONG, WHOLE},
    maps::network::{NETWORK_GENERIC, NETWORK_PARTIAL, Network},
    mss,
    nat::{self, Translation},
    verdict::DropReason,
    wire::Ipv4Frame,
};

use crate::frame::xdp::Xdp;

/// Translates a frame that came `from` one network and goes on to another. Returns whether its checksum stays
/// open.
#[inline(always)]
pub(crate) fn rewrite(
    ctx: &XdpContext,
    frame: &Ipv4Frame<'_>,
    translation: &Translation,
    from: &Network,
    to: &Network,
) -> Result<bool, DropReason> {
    let open = complete(ctx, from)?;
    nat::translate(frame, translation);
    if mss::is_asked(frame) {
        let most = if from.mss < to.mss { from.mss } else { to.mss };
        lb_clamp(ctx.ctx, u32::from(most));
    }
    if open {
        csum_partial::reopen(frame);
    }
    Ok(open)
}

/// Makes the checksum of a frame that came `from` a network whole, or returns true: it stays open because the
/// kernel's stack computes it.
#[inline(always)]
pub(crate) fn complete(ctx: &XdpContext, from: &Network) -> Result<bool, DropReason> {
    if from.flags & NETWORK_PARTIAL == 0 {
        return Ok(false);
    }
    let keep = from.flags & NETWORK_GENERIC != 0;
    match lb_complete(ctx.ctx, u32::from(keep)) {
        TOO_LONG => Err(DropReason::PartialChecksum),
        state => Ok(state == OPEN),
    }
}

/// Whether the kernel's stack has noted of a frame that came `from` a network, and whose checksum is in this state,
/// that it is still to be computed: so it does in generic mode.
#[inline(always)]
pub(crate) const fn is_noted(state: u32, from: &Network) -> bool {
    const BOTH: u16 = NETWORK_PARTIAL | NETWORK_GENERIC;
    state != WHOLE && from.flags & BOTH == BOTH
}

/// [`csum_partial::complete`], as a subprogram, which the verifier walks once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_complete(ctx: *mut xdp_md, keep: u32) -> u32 {
    csum_partial::complete(&Xdp::new(&XdpContext::new(ctx)), keep != 0)
}

/// [`mss::clamp`], as [`lb_complete`]. Returns whether it wrote.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_clamp(ctx: *mut xdp_md, most: u32) -> u32 {
    let written = mss::clamp(&Xdp::new(&XdpContext::new(ctx)), most as u16);
    u32::from(written.is_some())
}
