//! The atomic operations of the data plane: compare-and-swap of a flow's word, and addition.
//!
//! Written as assembly because bpf-linker cannot link the intrinsics. Needs Linux 5.12.

/// Swaps `*word` from `old` to `new` if it still is `old`; a full barrier either way.
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

/// As [`compare_and_swap`] for eight bytes.
///
/// # Safety
///
/// `word` points to a naturally aligned `u64` in a map value.
#[inline(always)]
pub(crate) unsafe fn compare_and_swap_long(word: *mut u64, old: u64, new: u64) -> bool {
    let mut found = old;
    // SAFETY: the caller vouches for the pointer; the instruction touches those eight bytes only.
    unsafe {
        core::arch::asm!(
            "r0 = cmpxchg_64(r1 + 0, r0, r2)",
            in("r1") word,
            in("r2") new,
            inlateout("r0") found,
        );
    }
    found == old
}

/// Adds `amount`, which may be a negative number in two's complement, and gives what was there before.
///
/// # Safety
///
/// `value` points to a naturally aligned `u32` in a map value.
#[inline(always)]
pub(crate) unsafe fn add(value: *mut u32, amount: u32) -> u32 {
    let mut before = u64::from(amount);
    // SAFETY: the caller vouches for the pointer; the instruction touches those four bytes only.
    unsafe {
        core::arch::asm!(
            "w2 = atomic_fetch_add((u32 *)(r1 + 0), w2)",
            in("r1") value,
            inlateout("r2") before,
        );
    }
    before as u32
}

/// Adds one and gives what was there before.
///
/// # Safety
///
/// `value` points to a naturally aligned `u64` in a map value.
#[inline(always)]
pub(crate) unsafe fn count_up(value: *mut u64) -> u64 {
    let mut before = 1u64;
    // SAFETY: the caller vouches for the pointer; the instruction touches those eight bytes only.
    unsafe {
        core::arch::asm!(
            "r2 = atomic_fetch_add((u64 *)(r1 + 0), r2)",
            in("r1") value,
            inlateout("r2") before,
        );
    }
    before
}
