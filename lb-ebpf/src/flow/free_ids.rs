//! Free ids, many in one run: userspace runs these programs itself, no packet ever meets them.
//!
//! They are of the kind that sees a socket buffer, because a run of an XDP program makes kernels before 5.18
//! wait for every CPU.

use aya_ebpf::programs::TcContext;
use lb_common::{
    batch::{Batch, FAILED},
    maps::snat::base,
};

use super::snat::offset;
use crate::maps::FREE_IDS;

/// Puts the ids of a batch at the end of their queue.
#[inline(always)]
pub(crate) fn fill(ctx: &mut TcContext) -> u32 {
    let Some(batch) = batch(ctx) else {
        return FAILED;
    };
    let mut filled = 0;
    for &id in &batch.ids {
        if filled >= batch.count {
            break;
        }
        if lb_put(batch.slot, id) == FAILED {
            return FAILED;
        }
        filled += 1;
    }
    filled
}

/// Takes ids out of their queue and puts each back at once, until the one that is the last has come round, the
/// queue is empty or there are as many as there may be.
#[inline(always)]
pub(crate) fn turn(ctx: &mut TcContext) -> u32 {
    let Some(batch) = batch(ctx) else {
        return FAILED;
    };
    let mut met = 0;
    for place in &mut batch.ids {
        if met >= batch.count {
            break;
        }
        let id = lb_next(batch.slot);
        if id == FAILED {
            return FAILED;
        }
        if id == NONE {
            break;
        }
        *place = id;
        met += 1;
        if id == batch.last {
            break;
        }
    }
    met
}

/// No flow has this id.
const NONE: u32 = 0;

/// Puts an id at the end of a queue. A subprogram, which the verifier walks once and not once for each place of a
/// batch.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_put(slot: u32, id: u32) -> u32 {
    let put = FREE_IDS
        .get(slot)
        .map(|queue| queue.push(&offset(slot as u16, id), 0));
    if let Some(Ok(())) = put { 0 } else { FAILED }
}

/// The first id of a queue, which is its last one now; [`NONE`] of an empty one. As [`lb_put`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn lb_next(slot: u32) -> u32 {
    let Some(queue) = FREE_IDS.get(slot) else {
        return FAILED;
    };
    match queue.pop() {
        Ok(Some(id)) if queue.push(&id, 0).is_ok() => base(slot as u16) + u32::from(id),
        Ok(None) => NONE,
        Ok(Some(_)) | Err(_) => FAILED,
    }
}

/// The frame, if it is a whole batch.
#[inline(always)]
fn batch(ctx: &mut TcContext) -> Option<&mut Batch> {
    let start = ctx.data();
    if start + Batch::BYTES > ctx.data_end() {
        return None;
    }
    // SAFETY: the bytes are inside the frame (checked above), which is this run's own and is not moved by it; a
    // batch is plain integers, and the kernel begins a frame at a multiple of four.
    Some(unsafe { &mut *(start as *mut Batch) })
}
