//! sample: the latest packet that was dropped, for each reason and CPU.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    maps::sample::{INTERVAL, SAMPLE_WORDS, Sample},
    verdict::Hook,
    wire::{N32, Packet},
};

use crate::{entry::now, maps::SAMPLES, parse::Xdp};

/// Keeps the beginning of the frame, which is about to be dropped for `reason`, unless one was kept
/// just now.
#[inline(always)]
pub(crate) fn keep(ctx: &XdpContext, network: u32, reason: u32) {
    let Some(sample) = SAMPLES.get_ptr_mut(reason) else {
        return;
    };
    // SAFETY: the pointer is this CPU's slot, which nothing else writes while the program runs;
    // userspace may read it half written, and shows a mix of two packets then.
    let sample: &mut Sample = unsafe { &mut *sample };
    let seen = now();
    if sample.seen != 0 && seen.wrapping_sub(sample.seen) < INTERVAL {
        return;
    }
    let xdp = Xdp::new(ctx);
    sample.seen = seen;
    sample.length = xdp.len() as u32;
    sample.network = network as u16;
    sample.hook = Hook::Nic as u16;
    for (index, word) in sample.words.iter_mut().enumerate() {
        if index >= SAMPLE_WORDS {
            break;
        }
        let at = index * size_of::<u32>();
        let found: Option<&N32> = xdp.header(at);
        *word = found.map_or(0, |found| found.get().raw());
    }
}
