//! Slots of hellos: memory that a segment is copied to, and userspace is given from.

use core::ptr;

use aya_ebpf::{
    helpers::generated::{bpf_xdp_load_bytes, bpf_xdp_store_bytes},
    programs::XdpContext,
};
use lb_common::{
    maps::{
        flow::{FlowKey, PackedKey},
        hello::{
            HELLO_SLOTS as COUNT, HelloHead, HelloPart, HelloSlot, MAX_HELLO_AGE, MAX_HELLO_BYTES,
            MAX_PIECE_BYTES, StoredSegment,
        },
    },
    proxy_header::ROOM,
    verdict::DropReason,
};

use super::cookie;
use crate::{
    flow::{atomic, entry::now},
    maps::{HASH_KEY, HELLO_SLOTS, HELLOS},
};

/// A slot that this CPU has, until it is [left](Self::leave).
pub(super) struct ClaimedSlot {
    /// Which one.
    pub(super) index: u32,
    slot: *mut HelloSlot,
    word: u32,
}

/// Odd: a CPU has the slot.
const CLAIMED: u32 = 1;

impl ClaimedSlot {
    /// That of the hello of a tuple, if no other CPU has it.
    #[inline(always)]
    pub(super) fn claim(key: &FlowKey) -> Result<Self, DropReason> {
        let PackedKey { ends, rest } = key.packed();
        let index = lb_slot_of(ends, rest);
        let slot = HELLO_SLOTS.get_ptr_mut(index);
        let slot = slot.ok_or(DropReason::RecordMissing)?;
        // SAFETY: a live value of an array map, which is never freed.
        let place = unsafe { &raw mut (*slot).word };
        // SAFETY: as above; other CPUs change it by atomic operations only.
        let word = unsafe { place.read_volatile() };
        // SAFETY: as above.
        let is_free =
            word & CLAIMED == 0 && unsafe { atomic::compare_and_swap(place, word, word | CLAIMED) };
        match is_free {
            true => Ok(Self { index, slot, word }),
            false => Err(DropReason::HellosFull),
        }
    }

    /// Gives it back.
    #[inline(always)]
    pub(super) fn leave(self) {
        // SAFETY: as in `claim`.
        let place = unsafe { &raw mut (*self.slot).word };
        // SAFETY: as above.
        let _was_ours = unsafe {
            atomic::compare_and_swap(place, self.word | CLAIMED, self.word.wrapping_add(2))
        };
    }

    /// The slot with this index, which the caller of a subprogram has claimed.
    #[inline(always)]
    pub(super) fn read(index: u32) -> Option<&'static HelloSlot> {
        HELLO_SLOTS.get(index)
    }

    #[inline(always)]
    pub(super) fn head(&mut self) -> &mut HelloHead {
        // SAFETY: a live value of an array map that this CPU has claimed, and none of whose references is held.
        unsafe { &mut (*self.slot).head }
    }

    /// Copies `length` bytes of the frame, from `from` on, to the place `at`: `MOST` at most, and where as many have room.
    #[inline(always)]
    pub(super) fn load<const MOST: u32>(
        &mut self,
        ctx: &XdpContext,
        from: u32,
        at: u32,
        length: u32,
    ) -> Result<(), DropReason> {
        // One less, and then one more: the verifier sees that there is a byte.
        let (beyond_first, at) = (anew(length.wrapping_sub(1)), anew(at));
        if beyond_first >= u64::from(MOST) || at > u64::from(MAX_HELLO_BYTES - MOST) {
            return Err(DropReason::HelloUnordered);
        }
        let length = beyond_first as u32 + 1;
        // SAFETY: as for `head`.
        let bytes = unsafe { &raw mut (*self.slot).bytes }.cast::<u8>();
        // SAFETY: the bytes are inside the slot, as was compared above; the helper refuses what is not in the frame.
        let done = unsafe {
            bpf_xdp_load_bytes(
                ctx.ctx,
                from,
                bytes.wrapping_add(at as usize).cast(),
                length,
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(DropReason::Malformed)
        }
    }

    /// Our timestamp that the first segment has repeated.
    #[inline(always)]
    pub(super) fn echo(&mut self) -> &mut u32 {
        // SAFETY: as for `head`.
        unsafe { &mut (*self.slot).echo }
    }

    /// Which part the next copy of a frame becomes, and before which one there is none.
    #[inline(always)]
    pub(super) fn copies(&mut self) -> &mut [u16; 2] {
        // SAFETY: as for `head`.
        unsafe { &mut (*self.slot).copies }
    }

    /// Copies the bytes of a part to the place `at` of the frame, which has room for them.
    #[inline(always)]
    pub(super) fn store(
        &self,
        ctx: &XdpContext,
        at: u32,
        part: HelloPart,
        stored: StoredSegment,
    ) -> Result<(), DropReason> {
        if part == HelloPart::Header {
            return self.store_header(ctx, at, stored.length.into());
        }
        match stored.at {
            0 => self.store_from::<MAX_HELLO_BYTES>(ctx, at, 0, stored.length.into()),
            from => self.store_from::<MAX_PIECE_BYTES>(ctx, at, from.into(), stored.length.into()),
        }
    }

    #[inline(always)]
    fn store_from<const MOST: u32>(
        &self,
        ctx: &XdpContext,
        at: u32,
        from: u32,
        length: u32,
    ) -> Result<(), DropReason> {
        let beyond_first = anew(length.wrapping_sub(1));
        let from = anew(from);
        if beyond_first >= u64::from(MOST) || from > u64::from(MAX_HELLO_BYTES - MOST) {
            return Err(DropReason::Malformed);
        }
        let length = beyond_first as u32 + 1;
        // SAFETY: as for `head`.
        let bytes = unsafe { &raw mut (*self.slot).bytes }.cast::<u8>();
        let bytes = bytes.wrapping_add(from as usize);
        // SAFETY: the bytes are inside the slot, as was compared above; the helper refuses what is not in the frame.
        let done = unsafe { bpf_xdp_store_bytes(ctx.ctx, at, bytes.cast(), length) };
        if done == 0 {
            Ok(())
        } else {
            Err(DropReason::Malformed)
        }
    }

    #[inline(always)]
    fn store_header(&self, ctx: &XdpContext, at: u32, length: u32) -> Result<(), DropReason> {
        let beyond_first = anew(length.wrapping_sub(1));
        if beyond_first >= ROOM as u64 {
            return Err(DropReason::Malformed);
        }
        let length = beyond_first as u32 + 1;
        // SAFETY: as for `head`.
        let bytes = unsafe { &raw mut (*self.slot).header };
        // SAFETY: no more bytes than the header has; the helper refuses what is not in the frame.
        let done = unsafe { bpf_xdp_store_bytes(ctx.ctx, at, bytes.cast(), length) };
        if done == 0 {
            Ok(())
        } else {
            Err(DropReason::Malformed)
        }
    }

    /// The first bytes.
    #[inline(always)]
    pub(super) fn first<const N: usize>(&self) -> [u8; N] {
        // SAFETY: as for `head`; no slot has less.
        let bytes = unsafe { &raw const (*self.slot).bytes };
        // SAFETY: as above.
        unsafe { bytes.cast::<[u8; N]>().read_volatile() }
    }

    /// Gives userspace the head and the bytes; not where no process has taken any for [`MAX_HELLO_AGE`].
    #[inline(always)]
    pub(super) fn submit(&mut self) -> Result<(), DropReason> {
        if now().wrapping_sub(cookie::keys()?.beat) > MAX_HELLO_AGE {
            return Err(DropReason::NoProcess);
        }
        let length = anew(self.head().bytes());
        if length > u64::from(MAX_HELLO_BYTES) {
            return Err(DropReason::Malformed);
        }
        let bytes = size_of::<HelloHead>() + length as usize;
        // SAFETY: as for `head`.
        let head = unsafe { &raw const (*self.slot).head };
        // SAFETY: the head, and behind it, without padding (asserted below), the bytes.
        let record = unsafe { &*ptr::slice_from_raw_parts(head.cast::<u8>(), bytes) };
        HELLOS
            .output_untyped(record, 0)
            .map_err(|_| DropReason::HellosFull)
    }
}

/// The index of the slot for the hello of a tuple, by the numbers of its [`PackedKey`]: of two that its hash allows the one
/// that has it, or else the one whose hello is older. A subprogram, which the verifier walks once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn lb_slot_of(ends: u64, rest: u64) -> u32 {
    let key = PackedKey { ends, rest };
    let Some(hash) = HASH_KEY.get(0) else {
        return 0;
    };
    let first = hash.of(key.words()) & (COUNT - 1) & !1;
    let now = now();
    let look = |index: u32| {
        let head = HELLO_SLOTS.get(index).map(|slot| &slot.head);
        head.map_or((false, 0), |head| {
            (head.key.packed() == key, now.wrapping_sub(head.seen))
        })
    };
    let ((has_it, age), (other_has_it, other_age)) = (look(first), look(first + 1));
    let is_other = other_has_it || !has_it && other_age > age;
    first + u32::from(is_other)
}

/// The same number. What the compiler knows of it, and the verifier does not, is forgotten: so it is compared in the
/// register that a helper gets.
#[inline(always)]
pub(super) fn anew(number: u32) -> u64 {
    let mut number = u64::from(number);
    // SAFETY: no instruction.
    unsafe { core::arch::asm!("", inlateout("r1") number) };
    number
}

const _: () = assert!(
    core::mem::offset_of!(HelloSlot, bytes)
        == core::mem::offset_of!(HelloSlot, head) + size_of::<HelloHead>()
);
