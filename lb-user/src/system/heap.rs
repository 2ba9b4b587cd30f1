//! Memory that the allocator keeps.

#![expect(unsafe_code, reason = "malloc_trim(3) is a function of the C library")]

/// Gives the kernel back what is free. Of the eBPF object glibc would keep more than 20 MB, since what is left of it lies behind.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number and touches free memory alone, under the allocator's own locks.
    let _was_any = unsafe { nix::libc::malloc_trim(0) };
}
