//! The latest packet that was dropped, for each network and reason.

use aya_ebpf::programs::XdpContext;
use lb_common::{
    maps::drop_sample::{INTERVAL, SAMPLE_WORDS, Sample, index},
    verdict::Hook,
    wire::{N32, Packet},
};

use crate::{
    flow::{atomic, entry::now},
    frame::xdp::Xdp,
    maps::DROP_SAMPLES,
};

/// Keeps the beginning of the frame, which is about to be dropped for `reason`, unless one was kept
/// just now.
#[inline(always)]
pub(crate) fn keep(ctx: &XdpContext, hook: Hook, network: u32, reason: u32) {
    let Some(place) = DROP_SAMPLES.get_ptr_mut(index(network, reason)) else {
        return;
    };
    // The time stands first.
    let word = place.cast::<u32>();
    let seen = now();
    // SAFETY: a live value of an array map, aligned to four bytes.
    let before = unsafe { word.read_volatile() };
    if before != 0 && seen.wrapping_sub(before) < INTERVAL {
        return;
    }
    // SAFETY: the word is a value of an array map, aligned to four bytes.
    if !unsafe { atomic::compare_and_swap(word, before, seen) } {
        return;
    }
    // SAFETY: no other CPU takes the place as long as the sample is fresh; userspace may read it half written,
    // and shows a mix of two packets then.
    let sample: &mut Sample = unsafe { &mut *place };
    let xdp = Xdp::new(ctx);
    sample.length = xdp.len() as u32;
    sample.network = network as u16;
    sample.hook = hook as u16;
    for (index, word) in sample.words.iter_mut().enumerate() {
        if index >= SAMPLE_WORDS {
            break;
        }
        let at = index * size_of::<u32>();
        let found: Option<&N32> = xdp.header(at);
        *word = found.map_or(0, |found| found.get().raw());
    }
}
