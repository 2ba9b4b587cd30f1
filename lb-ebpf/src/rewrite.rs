//! rewrite: a frame of a flow becomes what its next end expects: addresses and ports, segment size,
//! checksums.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    maps::network::{NETWORK_GENERIC, NETWORK_PARTIAL, Network},
    mss,
    nat::Translation,
    partial::{self, OPEN, TOO_LONG},
    verdict::DropReason,
    wire::Frame,
};

use crate::{family::Family, parse::Xdp};

/// Translates a frame that came `from` one network and goes on to another. Says whether its checksum stays
/// open.
#[inline(always)]
pub(crate) fn rewrite<I: Family>(
    ctx: &XdpContext,
    frame: &Frame<'_, I>,
    translation: &Translation<I::Address>,
    from: &Network,
    to: &Network,
) -> Result<bool, DropReason> {
    let open = complete(ctx, frame, from)?;
    I::translate(frame, translation);
    if mss::is_asked(frame) {
        let most = if from.mss < to.mss { from.mss } else { to.mss };
        I::clamp(ctx, frame, most);
    }
    if open {
        I::reopen(frame);
    }
    Ok(open)
}

/// Makes the checksum of a frame that came `from` a network whole, or says that it stays open because
/// the kernel's stack will.
#[inline(always)]
pub(crate) fn complete<I: Family>(
    ctx: &XdpContext,
    frame: &Frame<'_, I>,
    from: &Network,
) -> Result<bool, DropReason> {
    if from.flags & NETWORK_PARTIAL == 0 {
        return Ok(false);
    }
    match I::complete(ctx, frame, from.flags & NETWORK_GENERIC != 0) {
        TOO_LONG => Err(DropReason::PartialChecksum),
        state => Ok(state == OPEN),
    }
}

/// [`partial::complete`], as a function of its own for the verifier, which walks it once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_complete(ctx: *mut xdp_md, keep: u32) -> u32 {
    partial::complete(&Xdp::new(&XdpContext::new(ctx)), keep != 0)
}

/// [`mss::clamp`], as [`lb_complete`]. Returns whether it wrote.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_clamp(ctx: *mut xdp_md, most: u32) -> u32 {
    let written = mss::clamp(&Xdp::new(&XdpContext::new(ctx)), most as u16);
    u32::from(written.is_some())
}

/// [`partial::complete6`], as [`lb_complete`]; the header of `protocol` begins at `first`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_complete6(
    ctx: *mut xdp_md,
    protocol: u32,
    first: u32,
    keep: u32,
) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    partial::complete6(&xdp, protocol as u8, first as usize & OFFSETS, keep != 0)
}

/// [`mss::clamp_at`], as [`lb_complete`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_clamp6(ctx: *mut xdp_md, first: u32, most: u32) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    u32::from(mss::clamp_at(&xdp, first as usize & OFFSETS, most as u16).is_some())
}

/// No layer-4 header begins beyond: see `wire::Chain`.
const OFFSETS: usize = 511;
