//! The cookie that a segment acknowledges.

use lb_common::{
    maps::{
        cookies::{COOKIE_KEYS, CookieKeys},
        flow::{FlowKey, PackedKey},
    },
    syn_cookie::{self, CookieStanding},
    verdict::DropReason,
    wire::header::Tcp,
};

use crate::{maps::COOKIES, subprogram::Judged};

/// The keys, once there are some.
#[inline(always)]
pub(super) fn keys() -> Result<&'static CookieKeys, DropReason> {
    let keys = COOKIES.get(COOKIE_KEYS);
    keys.filter(|keys| keys.epoch != 0)
        .ok_or(DropReason::RecordMissing)
}

/// The numbers of the two SYNs that a segment follows, if it is the first one.
#[derive(Clone, Copy)]
pub(super) struct SynNumbers {
    pub(super) isn: u32,
    pub(super) number: u32,
}

impl SynNumbers {
    #[inline(always)]
    pub(super) fn of(tcp: &Tcp) -> Self {
        Self {
            isn: tcp.sequence.get().get().wrapping_sub(1),
            number: tcp.acknowledgment.get().get().wrapping_sub(1),
        }
    }
}

/// What stands behind the number that a segment of this tuple acknowledges.
#[inline(always)]
pub(super) fn judge(tcp: &Tcp, key: &FlowKey) -> CookieStanding {
    let SynNumbers { isn, number } = SynNumbers::of(tcp);
    let PackedKey { ends, rest } = key.packed();
    Judged::from_raw(lb_cookie(ends, rest, isn, number)).standing()
}

/// [`syn_cookie::judge`] of the two numbers of a [`PackedKey`], as [`Judged`]. A subprogram.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_cookie(ends: u64, rest: u64, isn: u32, number: u32) -> u64 {
    let tuple = PackedKey { ends, rest };
    let standing = keys().map_or(CookieStanding::Wrong, |keys| {
        syn_cookie::judge(keys, tuple, isn, number)
    });
    Judged::of(standing).raw()
}
