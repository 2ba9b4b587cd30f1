//! What every program here has: a look into its frame, a way out of another port, and what an object needs.

use aya_ebpf::{helpers::bpf_redirect, programs::XdpContext};

/// The start of the frame as a `T`, if it is that long.
#[inline(always)]
pub(crate) fn header<T>(ctx: &XdpContext) -> Option<*mut T> {
    let start = ctx.data();
    if start + size_of::<T>() > ctx.data_end() {
        return None;
    }
    Some(start as *mut T)
}

#[inline(always)]
pub(crate) fn redirect(port: u32) -> u32 {
    // SAFETY: the helper only notes the target for this CPU's current frame.
    let action: i64 = unsafe { bpf_redirect(port, 0) };
    action as u32
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // A path to here is an endless loop, which the verifier refuses: no panic can be loaded.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
