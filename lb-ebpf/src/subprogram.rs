//! What the `lb_` functions return to their callers, and take of them.
//!
//! Each is a function of its own in the object (`#[inline(never)]`, with a name that the linker keeps): the verifier
//! walks it once, and not once for each way to it, and its stack is its own. Arguments are numbers, of which there
//! are five at most, because the verifier knows nothing of what a pointer into our stack points to; and a number is
//! all that one returns, because a global function may return nothing else. Each number that has parts is a type
//! here, and `raw` and `from_raw` are its way through the call.

use lb_common::{
    maps::fragment::{FROM_BACKEND, FROM_CLIENT},
    verdict::{DropReason, Verdict},
};

/// How a packet ended: the number of a reason, or a verdict's slot above all reasons.
#[derive(Clone, Copy)]
pub(crate) struct Outcome(u32);

/// Numbers of verdicts begin here, above those of the reasons.
pub(crate) const FIRST_VERDICT: u32 = 64;

impl Outcome {
    #[inline(always)]
    pub(crate) const fn of(end: Result<Verdict, DropReason>) -> Self {
        match end {
            Ok(verdict) => Self(FIRST_VERDICT + verdict.slot()),
            Err(reason) => Self(reason as u32),
        }
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u32 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u32) -> Self {
        Self(number)
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
            _ => Err(reason(self.0)),
        }
    }
}

/// The reason with this number.
#[inline(always)]
pub(crate) fn reason(number: u32) -> DropReason {
    DropReason::from_number(number as u8).unwrap_or(DropReason::RecordMissing)
}

/// What is next for a packet of IPv4 to an address of ours, as `lb_flow` returns it: its [`Outcome`]; or a new
/// flow, which no reason has the number of; or the flow's id in the lower half and a [`Way`], which is never
/// zero, in the upper one.
#[derive(Clone, Copy)]
pub(crate) struct Next(u64);

/// The cases of a [`Next`].
pub(crate) enum Step {
    /// Nothing.
    Ended(Outcome),
    /// The packet belongs to no flow and may open one.
    NewFlow,
    /// It has its flow's addresses, and needs the numbers of the flow's splice.
    Splice { flow_id: u32, way: Way },
}

impl Next {
    /// See [`Step::NewFlow`].
    pub(crate) const NEW_FLOW: Self = Self(FIRST_VERDICT as u64 - 1);

    /// See [`Step::Ended`].
    #[inline(always)]
    pub(crate) const fn ended(end: Result<Verdict, DropReason>) -> Self {
        Self(Outcome::of(end).0 as u64)
    }

    /// See [`Step::Splice`].
    #[inline(always)]
    pub(crate) const fn splice(flow_id: u32, way: Way) -> Self {
        Self((way.0 as u64) << 32 | flow_id as u64)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    /// How a packet ended for which nothing is next.
    #[inline(always)]
    pub(crate) const fn outcome(self) -> Outcome {
        Outcome(self.0 as u32)
    }

    #[inline(always)]
    pub(crate) const fn step(self) -> Step {
        if self.0 == Self::NEW_FLOW.0 {
            Step::NewFlow
        } else if self.0 > u32::MAX as u64 {
            Step::Splice {
                flow_id: self.0 as u32,
                way: Way((self.0 >> 32) as u32),
            }
        } else {
            Step::Ended(self.outcome())
        }
    }
}

/// The way on of a segment whose numbers a splice translates: the network that it leaves by in the lower half,
/// its direction, and whether its checksum is still to be computed.
#[derive(Clone, Copy)]
pub(crate) struct Way(u32);

impl Way {
    const IS_WAY: u32 = 1 << 31;
    const TO_CLIENT: u32 = 1 << 30;
    const IS_OPEN: u32 = 1 << 29;

    /// `direction` is one of `maps::fragment`'s.
    #[inline(always)]
    pub(crate) const fn new(network: u16, direction: u16, is_open: bool) -> Self {
        let direction = if direction == FROM_BACKEND {
            Self::TO_CLIENT
        } else {
            0
        };
        let open = if is_open { Self::IS_OPEN } else { 0 };
        Self(Self::IS_WAY | direction | open | network as u32)
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
    pub(crate) const fn network(self) -> u16 {
        self.0 as u16
    }

    #[inline(always)]
    pub(crate) const fn is_to_client(self) -> bool {
        self.0 & Self::TO_CLIENT != 0
    }

    #[inline(always)]
    pub(crate) const fn is_open(self) -> bool {
        self.0 & Self::IS_OPEN != 0
    }
}

/// What is next for a packet of IPv6 to an address of ours, as `lb_flow6` and `lb_open6` return it: its
/// [`Outcome`]; or a new flow; or the flow's id in the lower half, and its [`Way6`] in the upper one.
#[derive(Clone, Copy)]
pub(crate) struct Next6(u64);

/// The cases of a [`Next6`].
pub(crate) enum Step6 {
    /// Nothing.
    Ended(Outcome),
    /// The packet belongs to no flow and may open one.
    NewFlow,
    /// It is of this flow.
    Flow { flow_id: u32, way: Way6 },
}

impl Next6 {
    /// See [`Step6::NewFlow`].
    pub(crate) const NEW_FLOW: Self = Self(Next::NEW_FLOW.0);

    /// See [`Step6::Ended`].
    #[inline(always)]
    pub(crate) const fn ended(end: Result<Verdict, DropReason>) -> Self {
        Self(Outcome::of(end).0 as u64)
    }

    /// See [`Step6::Flow`].
    #[inline(always)]
    pub(crate) const fn flow(flow_id: u32, way: Way6) -> Self {
        Self((way.0 as u64) << 32 | flow_id as u64)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    #[inline(always)]
    pub(crate) const fn step(self) -> Step6 {
        let way = Way6((self.0 >> 32) as u32);
        if self.0 == Self::NEW_FLOW.0 {
            Step6::NewFlow
        } else if way.0 & Way6::IS_WAY == 0 {
            Step6::Ended(Outcome(self.0 as u32))
        } else {
            Step6::Flow {
                flow_id: self.0 as u32,
                way,
            }
        }
    }
}

/// The direction of a packet of IPv6 in its flow, and the generation of the flow's entry.
#[derive(Clone, Copy)]
pub(crate) struct Way6(u32);

impl Way6 {
    const IS_WAY: u32 = 1 << 31;
    const IS_REPLY: u32 = 1 << 30;

    /// `direction` is one of `maps::fragment`'s.
    #[inline(always)]
    pub(crate) const fn new(generation: u32, direction: u16) -> Self {
        let reply = if direction == FROM_BACKEND {
            Self::IS_REPLY
        } else {
            0
        };
        Self(Self::IS_WAY | reply | generation)
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
    pub(crate) const fn generation(self) -> u32 {
        self.0 & !(Self::IS_WAY | Self::IS_REPLY)
    }

    /// One of `maps::fragment`'s.
    #[inline(always)]
    pub(crate) const fn direction(self) -> u16 {
        if self.0 & Self::IS_REPLY != 0 {
            FROM_BACKEND
        } else {
            FROM_CLIENT
        }
    }
}
