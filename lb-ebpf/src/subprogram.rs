//! Subprograms, the `lb_` functions: what they return to their callers, and take of them.
//!
//! Each is a function of its own in the object (`#[inline(never)]`, with a name that the linker keeps): the verifier
//! walks it once, and not once for each way to it, and its stack is its own. Arguments are numbers, of which there
//! are five at most, because the verifier knows nothing of what a pointer into our stack points to; and a number is
//! all that one returns, because a global function may return nothing else. Each number that has parts is a type
//! here, and nowhere else are numbers packed for a call; `raw` and `from_raw` are its way through it.

mod begun;
mod claim;
mod cookie;
mod door;
mod ipv6;
mod next;
mod segment;

use lb_common::verdict::{DropReason, Verdict};

pub(crate) use self::{
    begun::Begun,
    claim::{BackendPort, Claimed, Earlier, SnatRange},
    cookie::{Judged, SynBits, TimesBits},
    door::FoundDoor,
    ipv6::{Ends6, Next6, Stage6, Step6, Walked},
    next::{CookieService, Next, RewriteLeg, SpliceLeg, Step},
    segment::{Advanced, Changed, FlowChange, Judgement, SegmentBits},
};

/// How a packet ended: the number of a reason, or a verdict's slot above all reasons.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcome(u32);

/// Numbers of verdicts begin here, above those of the reasons.
pub(crate) const FIRST_VERDICT: u32 = 64;

/// With the id of a flow.
const GO_ON: u32 = 1 << 31;
const CONSUMED: u32 = Verdict::Consumed.slot();

impl Outcome {
    /// Not an end: the segment's hello is kept, and its name says where it goes.
    pub(crate) const TO_BIND: Self = Self(FIRST_VERDICT - 1);
    /// Not an end: the segment is a later one of its connection, though its number is right for a first one.
    pub(crate) const LATER: Self = Self(FIRST_VERDICT - 3);
    /// Not an end: the segment of a bound flow's backend may be an ACK that the rest of the hello waits for.
    pub(crate) const FOR_REST: Self = Self(FIRST_VERDICT - 2);
    pub(crate) const PASSED: Self = Self::of(Ok(Verdict::Passed));
    pub(crate) const SOURCE_ROUTE: Self = Self::of(Err(DropReason::SourceRoute));

    /// Not an end: the bound flow with this id is left by its backend.
    #[inline(always)]
    pub(crate) const fn go_on(flow_id: u32) -> Self {
        Self(GO_ON | flow_id)
    }

    /// Whether it is [to go on](Self::go_on): the flow's id.
    #[inline(always)]
    pub(crate) const fn left_flow(self) -> Option<u32> {
        if self.0 & GO_ON == 0 {
            None
        } else {
            Some(self.0 & !GO_ON)
        }
    }

    #[inline(always)]
    pub(crate) const fn of(end: Result<Verdict, DropReason>) -> Self {
        match end {
            Ok(verdict) => Self(FIRST_VERDICT + verdict.slot()),
            Err(reason) => Self(reason as u32),
        }
    }

    /// The same, where an end may be none.
    #[inline(always)]
    pub(crate) fn of_step(step: Result<Self, DropReason>) -> Self {
        step.unwrap_or_else(|reason| Self::of(Err(reason)))
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        Self(number)
    }

    /// Whether another CPU was in the way.
    #[inline(always)]
    pub(crate) const fn is_contended(self) -> bool {
        self.0 == DropReason::FlowRace as u32 || self.0 == DropReason::HellosFull as u32
    }

    /// Whether a hello has been kept: it is [to be bound](Self::TO_BIND), or userspace has it, or its rest is awaited.
    #[inline(always)]
    pub(crate) const fn is_kept(self) -> bool {
        self.0 == Self::TO_BIND.0 || self.0 == Self::of(Ok(Verdict::Consumed)).0
    }

    /// Verdicts that no subprogram returns are no reason either.
    #[inline(always)]
    pub(crate) fn result(self) -> Result<Verdict, DropReason> {
        match self.0.wrapping_sub(FIRST_VERDICT) {
            0 => Ok(Verdict::Passed),
            1 => Ok(Verdict::Transmitted),
            2 => Ok(Verdict::Forwarded),
            3 => Ok(Verdict::Delivered),
            7 => Ok(Verdict::Returned),
            CONSUMED => Ok(Verdict::Consumed),
            _ => Err(reason(self.0)),
        }
    }
}

/// The value as it lies on the stack. Without this the compiler takes it apart, and each of its fields that has to be kept
/// over a call takes eight bytes of 512.
#[inline(always)]
pub(crate) fn whole<T>(value: &T) -> &T {
    core::hint::black_box(value)
}

/// The reason with this number.
#[inline(always)]
pub(crate) fn reason(number: u32) -> DropReason {
    DropReason::from_number(number as u8).unwrap_or(DropReason::RecordMissing)
}

/// Two numbers of 16 bits: the first one in the upper half.
#[derive(Clone, Copy)]
pub(crate) struct Pair(u32);

impl Pair {
    #[inline(always)]
    pub(crate) const fn new(high: u16, low: u16) -> Self {
        Self((high as u32) << 16 | low as u32)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn high(self) -> u16 {
        (self.0 >> 16) as u16
    }

    #[inline(always)]
    pub(crate) const fn low(self) -> u16 {
        self.0 as u16
    }
}
