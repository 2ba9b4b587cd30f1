//! Compare-and-swap of a flow's word: the one atomic operation of the data plane.

/// Swaps `*word` from `old` to `new` if it still is `old`; a full barrier either way.
///
/// Written as assembly because bpf-linker cannot link `core::intrinsics::atomic_cxchg`. Needs
/// Linux 5.12 (BPF_CMPXCHG).
///
/// # Safety
///
/// `word` points to a naturally aligned `u32` in a map value.
#[inline(always)]
pub(crate) unsafe fn compare_and_swap(word: *mut u32, old: u32, new: u32) -> bool {
    let mut found = u64::from(old);
    // SAFETY: the caller vouches for the pointer; the instruction touches those four bytes only.
    unsafe {
        core::arch::asm!(
            "w0 = cmpxchg32_32(r1 + 0, w0, w2)",
            in("r1") word,
            in("r2") u64::from(new),
            inlateout("r0") found,
        );
    }
    found as u32 == old
}
