//! `vary`: makes a constant frame of BPF_PROG_TEST_RUN the next of many, and calls the program that is measured.
//!
//! TEST_RUN does not restore the frame between its runs. So every run begins with all headers written anew:
//! whatever the last run has made of them is undone.

use aya_ebpf::{
    bindings::xdp_action,
    btf_maps::{Array, ProgramArray},
    macros::{btf_map, xdp},
    programs::XdpContext,
};

/// What the runs are to do; the same words in `tests/harness/product/vary_prog_run.rs`.
#[repr(C)]
struct Plan {
    /// Turns until the first one comes again.
    turns: u32,
    /// The turn of the next run.
    next: u32,
    /// The turns' first place in [`VARY_TURNS`].
    first: u32,
    /// [`SOURCE`], [`DESTINATION`], or neither.
    varied: u32,
    /// The frame of a turn is the one with this many of the turn's lowest bits.
    frames: u32,
    _reserved: u32,
}

const SOURCE: u32 = 1;
const DESTINATION: u32 = 2;

/// A frame's first bytes: of a shorter one the first [`SHORT`].
type Frame = [u64; 10];
const LONG: usize = size_of::<Frame>();
const SHORT: usize = 60;

#[btf_map]
static VARY_PLAN: Array<Plan, 1> = Array::new();

/// What is written: one frame, or two in turns.
#[btf_map]
static VARY_FRAMES: Array<Frame, 2> = Array::new();

/// The end that differs, in order: address and port as on the wire, and the last half of the other end's
/// address. Userspace says how many there are.
#[btf_map]
static VARY_TURNS: Array<u64, 1> = Array::new();

/// The program that is measured.
#[btf_map]
static VARY_TARGET: ProgramArray<1> = ProgramArray::new();

#[xdp]
pub fn vary(ctx: XdpContext) -> u32 {
    if write(&ctx).is_some() {
        // SAFETY: nothing here has to be dropped.
        unsafe { VARY_TARGET.tail_call(&ctx, 0) };
    }
    // No verdict of any program that is measured.
    xdp_action::XDP_ABORTED
}

#[inline(always)]
fn write(ctx: &XdpContext) -> Option<()> {
    let plan = VARY_PLAN.get_ptr_mut(0)?;
    // SAFETY: userspace writes the plan before the runs, and one CPU at a time runs.
    let plan = unsafe { &mut *plan };
    let turn = plan.next;
    plan.next = if turn + 1 < plan.turns { turn + 1 } else { 0 };
    let frame = VARY_FRAMES.get(turn & plan.frames & 1)?;
    copy(ctx, frame)?;
    match plan.varied {
        SOURCE => put(
            ctx,
            frame,
            *VARY_TURNS.get(plan.first + turn)?,
            [26, 34, 32],
        ),
        DESTINATION => put(
            ctx,
            frame,
            *VARY_TURNS.get(plan.first + turn)?,
            [30, 36, 28],
        ),
        _ => Some(()),
    }
}

/// Writes all of the frame.
#[inline(always)]
fn copy(ctx: &XdpContext, frame: &Frame) -> Option<()> {
    let [a, b, c, d, e, f, g, h, i, j] = *frame;
    store(ctx, 0, [a, b, c, d, e, f, g])?;
    if store(ctx, 56, [h, i, j]).is_none() {
        store(ctx, 56, h as u32)?;
    }
    Some(())
}

/// Writes one end of a TCP frame without tag and options, and half of the other; `places` are those of the
/// address, the port, and that half. In the frame they are zero, so that their sum is only added.
#[inline(always)]
fn put(ctx: &XdpContext, frame: &Frame, turn: u64, places: [usize; 3]) -> Option<()> {
    let [address, port, half] = places;
    store(ctx, address, turn as u32)?;
    store(ctx, port, (turn >> 32) as u16)?;
    store(ctx, half, (turn >> 48) as u16)?;
    let ends = (turn & 0xffff) + (turn >> 16 & 0xffff) + (turn >> 48);
    // Bytes 24 and 50 of the frame.
    let [_, _, _, ip, _, _, tcp, ..] = *frame;
    store(ctx, 24, added(ip as u16, ends))?;
    store(
        ctx,
        50,
        added((tcp >> 16) as u16, ends + (turn >> 32 & 0xffff)),
    )
}

/// A checksum with these words more under it (RFC 1624). The order of bytes does not matter to it.
#[inline(always)]
const fn added(checksum: u16, words: u64) -> u16 {
    let sum = (!checksum as u64) + words;
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// Writes `value` at a place of the frame, if it is that long.
#[inline(always)]
fn store<T>(ctx: &XdpContext, place: usize, value: T) -> Option<()> {
    let start = ctx.data();
    if start + place + size_of::<T>() > ctx.data_end() {
        return None;
    }
    let place = (start + place) as *mut T;
    // SAFETY: the bounds were checked; TEST_RUN puts the frame at a multiple of eight, and `place` is one of
    // what `T` is aligned to.
    unsafe { place.write(value) };
    Some(())
}

const _: () = assert!(LONG == 80 && SHORT == 56 + size_of::<u32>());
