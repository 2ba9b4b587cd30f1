//! The keys of SYN cookies.

use crate::pod::pod_struct;

pod_struct! {
    /// A key of 128 bits. 16 bytes.
    pub struct CookieKey {
        /// Its first half.
        pub low: u64,
        /// Its second half.
        pub high: u64,
    }
}

pod_struct! {
    /// The keys, which userspace alone writes: those of a group of boxes, a new one for each epoch. 56 bytes.
    pub struct CookieKeys {
        /// The epoch, by whose key SYNs are answered; numbers of the one before are good as well. 0: there are no keys
        /// yet.
        pub epoch: u32,
        /// Coarse time at which a process has said last that it takes hellos.
        pub beat: u32,
        /// The key of an epoch is at its lowest bit.
        pub keys: [CookieKey; 2],
        /// Unix time in milliseconds at the zero of the kernel's monotonic clock, when a process has said last that it takes hellos.
        pub zero_time: u64,
        /// Added to the coarse time, so that it is about that of all boxes of the group, whatever booted when.
        pub offset: u32,
        /// Zero.
        pub _reserved: u32,
    }
}

/// The one record of keys.
pub const COOKIE_KEYS: u32 = 0;

impl CookieKeys {
    /// The key of the current epoch, or of the one before.
    #[inline(always)]
    pub const fn key(&self, epoch: u32) -> CookieKey {
        let [even, odd] = self.keys;
        if epoch & 1 == 0 { even } else { odd }
    }

    /// The next epoch begins, with this key. Numbers of the one before the current are good no more.
    pub const fn turn(&mut self, key: CookieKey) {
        let epoch = self.epoch.wrapping_add(1);
        let [even, odd] = &mut self.keys;
        *(if epoch & 1 == 0 { even } else { odd }) = key;
        self.epoch = epoch;
    }
}
