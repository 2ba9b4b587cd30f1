//! A packet on its way to its flow's state, and what becomes of that state.

use lb_common::{
    conntrack::{Direction, FlowState, Segment},
    verdict::DropReason,
    wire::checksum::Delta,
};

use super::{FIRST_VERDICT, reason};

/// A segment but for its numbers, its direction, and whether it is TCP: the flags in the lowest byte, the bytes of
/// data in the upper half.
#[derive(Clone, Copy)]
pub(crate) struct SegmentBits(u32);

impl SegmentBits {
    const IS_REPLY: u32 = 1 << 8;
    const IS_TCP: u32 = 1 << 9;

    #[inline(always)]
    pub(crate) fn new(is_tcp: bool, direction: Direction, segment: &Segment) -> Self {
        let reply = match direction {
            Direction::Request => 0,
            Direction::Reply => Self::IS_REPLY,
        };
        let tcp = if is_tcp { Self::IS_TCP } else { 0 };
        let payload = u32::from(segment.payload) << 16;
        Self(reply | tcp | u32::from(segment.flags) | payload)
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
    pub(crate) const fn is_tcp(self) -> bool {
        self.0 & Self::IS_TCP != 0
    }

    #[inline(always)]
    pub(crate) const fn direction(self) -> Direction {
        if self.0 & Self::IS_REPLY != 0 {
            Direction::Reply
        } else {
            Direction::Request
        }
    }

    /// The segment with these numbers, in host order.
    #[inline(always)]
    pub(crate) const fn segment(self, sequence: u32, acknowledgment: u32) -> Segment {
        Segment {
            flags: self.0 as u8,
            sequence,
            acknowledgment,
            payload: (self.0 >> 16) as u16,
        }
    }
}

/// The state that a packet makes of its flow's, as `lb_judge` returns it; or that the flow does not take the
/// packet, for which no state has the number.
#[derive(Clone, Copy)]
pub(crate) struct Judgement(u64);

impl Judgement {
    pub(crate) const REFUSED: Self = Self(u64::MAX);

    #[inline(always)]
    pub(crate) fn of(state: FlowState) -> Self {
        Self(state.raw().into())
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
    pub(crate) fn state(self) -> Option<FlowState> {
        if self.0 == Self::REFUSED.0 {
            return None;
        }
        Some(FlowState::from_raw(self.0 as u32))
    }
}

/// What a change of its state means for a flow.
#[derive(Clone, Copy)]
pub(crate) enum FlowChange {
    /// It goes on.
    Kept,
    /// This packet has closed it.
    Closed,
    /// It has its first reply.
    Answered,
}

/// What a packet has made of its flow, as `lb_advance` returns it: the state in the lower half, and the [`FlowChange`]
/// above it, or the number of the reason for which the packet is dropped.
#[derive(Clone, Copy)]
pub(crate) struct Advanced(u64);

impl Advanced {
    const KEPT: u32 = FIRST_VERDICT;
    const CLOSED: u32 = FIRST_VERDICT + 1;
    const ANSWERED: u32 = FIRST_VERDICT + 2;

    #[inline(always)]
    pub(crate) fn of(end: Result<(FlowState, FlowChange), DropReason>) -> Self {
        match end {
            Ok((state, change)) => {
                let change = match change {
                    FlowChange::Kept => Self::KEPT,
                    FlowChange::Closed => Self::CLOSED,
                    FlowChange::Answered => Self::ANSWERED,
                };
                Self(u64::from(change) << 32 | u64::from(state.raw()))
            }
            Err(reason) => Self((reason as u64) << 32),
        }
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    /// The state is there also where the packet is dropped, and means nothing then.
    #[inline(always)]
    pub(crate) fn state(self) -> FlowState {
        FlowState::from_raw(self.0 as u32)
    }

    #[inline(always)]
    pub(crate) fn change(self) -> Result<FlowChange, DropReason> {
        match (self.0 >> 32) as u32 {
            Self::KEPT => Ok(FlowChange::Kept),
            Self::CLOSED => Ok(FlowChange::Closed),
            Self::ANSWERED => Ok(FlowChange::Answered),
            number => Err(reason(number)),
        }
    }
}

/// What the translation of a TCP option changes in the checksum, as `lb_splice_option` returns it: [`Delta::raw`];
/// or that the option is not whole, for which no sum has the number.
#[derive(Clone, Copy)]
pub(crate) struct Changed(u64);

impl Changed {
    const BROKEN: u64 = u64::MAX;

    #[inline(always)]
    pub(crate) fn of(delta: Option<Delta>) -> Self {
        Self(delta.map_or(Self::BROKEN, Delta::raw))
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
    pub(crate) fn delta(self) -> Option<Delta> {
        (self.0 != Self::BROKEN).then(|| Delta::from_raw(self.0))
    }
}
