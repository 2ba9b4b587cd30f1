//! What the numbers of a segment are worth: a blind one costs a flow nothing.
//!
//! RFC 5961 lets a receiver challenge what is in its window and not exact. There is no challenge here: that such a
//! segment was right shows in what the other end acknowledges, or answers to a probe.

use super::{
    flow_state::{FlowState, State},
    transition::{Direction, Segment},
};
use crate::{
    maps::pending::Pending,
    wire::header::{FIN, RST, SYN},
};

/// How far beyond the peer's last acknowledgment a segment may be, in bytes: the largest window there is (RFC 7323
/// section 2.3), because a FIN or an abort is sent behind all data in flight.
const WINDOW: u32 = 1 << 30;
/// How far from the backend's last acknowledgment a segment may be whose client has moved to another MAC. A client
/// with more in flight loses answers, and moves when it repeats the first of it. A blind guess takes 4,096 segments.
const NEAR: u32 = 1 << 19;

/// What is known of the numbers of a flow's two ends, in host order, as the backend knows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Last acknowledgment of the client.
    pub ack_request: u32,
    /// Last acknowledgment of the backend.
    pub ack_reply: u32,
    /// Of each, the FIN or SYN that the other one has not acknowledged yet.
    pub pending: Pending,
}

impl Numbers {
    /// These acknowledgments, and nothing pending.
    #[inline(always)]
    pub const fn acknowledged(ack_request: u32, ack_reply: u32) -> Self {
        Self {
            ack_request,
            ack_reply,
            pending: Pending::NONE,
        }
    }

    /// The number that the receiver of what is sent in this direction expects.
    #[inline(always)]
    pub(super) const fn expected(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Request => self.ack_reply,
            Direction::Reply => self.ack_request,
        }
    }

    /// Whether the number behind the segment's data is one that the receiver may have room for.
    #[inline(always)]
    pub(super) const fn has_room(&self, direction: Direction, segment: &Segment) -> bool {
        segment.end().wrapping_sub(self.expected(direction)) < WINDOW
    }

    /// Whether the receiver has all data before this segment's FIN, so that it takes it at once.
    #[inline(always)]
    pub(super) const fn fits(&self, direction: Direction, segment: &Segment) -> bool {
        let known = self.expected(direction).wrapping_sub(segment.sequence);
        known <= segment.payload as u32
    }

    /// Whether the segment acknowledges exactly what the other end has pending.
    #[inline(always)]
    pub(super) const fn confirms(&self, direction: Direction, segment: &Segment) -> bool {
        let pending = match direction {
            Direction::Request => self.pending.backend,
            Direction::Reply => self.pending.client,
        };
        pending != 0 && segment.acknowledges() && segment.acknowledgment == pending
    }

    /// Whether the sender has something pending itself.
    #[inline(always)]
    pub(super) const fn is_waiting(&self, direction: Direction) -> bool {
        match direction {
            Direction::Request => self.pending.client != 0,
            Direction::Reply => self.pending.backend != 0,
        }
    }
}

/// Whether what is pending matters for this segment, or changes by it: for few.
#[inline(always)]
pub const fn asks_pending(
    word: FlowState,
    direction: Direction,
    segment: &Segment,
    numbers: &Numbers,
) -> bool {
    matches!(word.state(), State::Replied | State::Established)
        && (word.is_doubted()
            || segment.has(SYN | RST)
            || segment.has(FIN) && !numbers.fits(direction, segment))
}

/// What is pending behind this segment of the flow: while it is doubted FINs, else the SYN of a client that opens its
/// port again. So a SYN is never taken for a FIN.
#[inline(always)]
pub const fn pending(
    word: FlowState,
    direction: Direction,
    segment: &Segment,
    numbers: &Numbers,
) -> Pending {
    let known = numbers.pending;
    if segment.opens() {
        let counts = matches!(direction, Direction::Request) && !word.is_spliced();
        return match counts && !word.is_doubted() {
            true => Pending {
                client: segment.sequence.wrapping_add(1),
                backend: 0,
            },
            false => known,
        };
    }
    if !segment.has(FIN | RST) || !numbers.has_room(direction, segment) {
        return known;
    }
    // It will be doubted, if it is not.
    let fins = if word.is_doubted() {
        known
    } else {
        Pending::NONE
    };
    let behind = segment.end().wrapping_add(1);
    match direction {
        _ if segment.has(RST | SYN) => fins,
        Direction::Request => Pending {
            client: behind,
            ..fins
        },
        Direction::Reply => Pending {
            backend: behind,
            ..fins
        },
    }
}

/// Whether a client's segment is one of its connection, as far as its numbers say, so that its answers may go to
/// the station that sent it. `ack_reply` is the entry's.
#[inline(always)]
pub const fn is_of_client(word: FlowState, segment: &Segment, ack_reply: u32) -> bool {
    let is_near = segment.sequence.wrapping_sub(ack_reply).wrapping_add(NEAR) < 2 * NEAR;
    is_near && (matches!(word.state(), State::New) || !segment.has(SYN | RST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::header::ACK;

    const EXPECTED: u32 = 0xffff_fff0;

    fn segment(flags: u8, sequence: u32, payload: u16) -> Segment {
        Segment {
            flags,
            sequence,
            acknowledgment: 0,
            payload,
        }
    }

    #[test]
    fn a_fin_fits_where_its_data_reaches_what_is_expected() {
        let numbers = Numbers::acknowledged(7, EXPECTED);
        for (ahead, payload, fits, has_room) in [
            (0, 0, true, true),
            (0, 100, true, true),
            (-100, 100, true, true),
            (-101, 100, false, false),
            (-1, 0, false, false),
            (1, 0, false, true),
            (70_000, 1460, false, true),
            (0x3fff_ffff, 0, false, true),
            (0x3fff_ffff, 1, false, false),
            (i32::MIN, 0, false, false),
        ] {
            let fin = segment(FIN | ACK, EXPECTED.wrapping_add_signed(ahead), payload);
            let found = (
                numbers.fits(Direction::Request, &fin),
                numbers.has_room(Direction::Request, &fin),
            );
            assert_eq!(found, (fits, has_room), "{ahead} {payload}");
        }
    }

    #[test]
    fn nothing_pending_is_acknowledged_by_nothing() {
        let numbers = Numbers::acknowledged(0, 0);
        let segment = segment(ACK, 0, 0);
        for direction in [Direction::Request, Direction::Reply] {
            assert!(!numbers.confirms(direction, &segment));
        }
    }

    #[test]
    fn a_client_moves_by_what_is_near() {
        let new = FlowState::default().claim(false).publish();
        let established = new.with_state(State::Established);
        for (ahead, is_near) in [
            (0, true),
            (-1, true),
            (100_000, true),
            (-(1 << 19), true),
            ((1 << 19) - 1, true),
            (-(1 << 19) - 1, false),
            (1 << 19, false),
            (i32::MIN, false),
        ] {
            let sequence = EXPECTED.wrapping_add_signed(ahead);
            let moves = |word, flags| is_of_client(word, &segment(flags, sequence, 9), EXPECTED);
            assert_eq!(moves(established, ACK), is_near, "{ahead}");
            assert_eq!(moves(established, FIN | ACK), is_near, "{ahead}");
            assert!(!moves(established, RST) && !moves(established, SYN));
            assert_eq!(moves(new, SYN), is_near, "{ahead}");
        }
    }
}
