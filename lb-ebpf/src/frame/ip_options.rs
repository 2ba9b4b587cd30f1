//! What is in an IP header behind its first 20 bytes.

use aya_ebpf::{bindings::xdp_md, programs::XdpContext};
use lb_common::{
    verdict::{DropReason, Verdict},
    wire::{header::Ipv4, options},
};

use crate::{frame::xdp::Xdp, subprogram::Outcome};

/// Bytes of an IP header without options.
const IP_BYTES: u32 = size_of::<Ipv4>() as u32;

/// Whether the packet may go on with the options that it has.
#[inline(always)]
pub(crate) fn check(ctx: &XdpContext, ip: &Ipv4) -> Result<(), DropReason> {
    let bytes = bytes(ip);
    if bytes == 0 {
        return Ok(());
    }
    match Outcome::from_raw(lb_options(ctx.ctx, bytes)) {
        Outcome::PASSED => Ok(()),
        Outcome::SOURCE_ROUTE => Err(DropReason::SourceRoute),
        _ => Err(DropReason::Malformed),
    }
}

/// Hides from a client which way its packet came, if the options have recorded it.
#[inline(always)]
pub(crate) fn conceal(ctx: &XdpContext, ip: &Ipv4) {
    let bytes = bytes(ip);
    if bytes != 0 {
        let _done = lb_conceal(ctx.ctx, bytes);
    }
}

/// How many bytes of options a packet has.
#[inline(always)]
fn bytes(ip: &Ipv4) -> u32 {
    let mut version_ihl = u64::from(ip.version_ihl.get());
    // SAFETY: no instruction. What is learned of the value here is not learned of the parser's: the
    // verifier would walk the rest of the pipeline once with options, and once without.
    unsafe { core::arch::asm!("", inlateout("r1") version_ihl) };
    ((version_ihl as u32 & 15) * 4).saturating_sub(IP_BYTES)
}

/// See [`conceal`]; a subprogram. Returns whether the list was whole.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_conceal(ctx: *mut xdp_md, bytes: u32) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    u32::from(options::conceal(&xdp, bytes as usize).is_some())
}

/// Judges that many bytes of options, as [`Outcome`]: a packet that may go on has passed. A subprogram, for which
/// the verifier walks the list once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_options(ctx: *mut xdp_md, bytes: u32) -> u32 {
    let xdp = Xdp::new(&XdpContext::new(ctx));
    let checked = options::check(&xdp, bytes as usize);
    Outcome::of(checked.map(|()| Verdict::Passed)).raw()
}
