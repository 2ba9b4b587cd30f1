//! A connection that no backend has answered yet: what its entry knows of the backends that it was sent to.

use crate::maps::flow::TIME_SHIFT;

/// How often the SYN of a client goes to another backend, at most.
pub const MAX_REDISPATCHES: u32 = 3;
/// How long a backend has to answer a SYN before the client's next one goes to another, in units of
/// `Flow::last_seen`: half of the second after which a client repeats one (RFC 6298 section 2.1), so that a copy that
/// the network has made does not move the flow.
pub const ANSWER_TIMEOUT: u32 = 500_000_000 >> TIME_SHIFT;

/// The backends of a connection attempt so far. It stands where the entry has the client's last acknowledgment when
/// the backend has answered.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt(u32);

/// How often it went to another backend.
const REDISPATCHES: u32 = 0x3;
/// The backend has refused it by a RST, which the client was not sent.
const REFUSED: u32 = 1 << 2;
/// There was no other backend when this one refused it: the RST is the client's.
const LAST: u32 = 1 << 3;
const _: () = assert!(MAX_REDISPATCHES <= REDISPATCHES);
/// Above the flags: the ends of the ids of the two backends before this one, the latest first; 0 for none. The one
/// before them is not in the way: behind three others there is no fifth.
const TRIED_SHIFT: u32 = 8;
const TRIED_BITS: u32 = 12;
const TRIED: u32 = (1 << TRIED_BITS) - 1;
const _: () = assert!(TRIED_SHIFT + 2 * TRIED_BITS == u32::BITS && MAX_REDISPATCHES <= 3);

impl Attempt {
    /// From the raw value in the entry, in host order.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The raw value for the entry.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// How many backends it went to before this one.
    #[inline(always)]
    pub const fn redispatches(self) -> u32 {
        self.0 & REDISPATCHES
    }

    /// Whether it may go to one more.
    #[inline(always)]
    pub const fn may_go_on(self) -> bool {
        self.redispatches() < MAX_REDISPATCHES
    }

    /// Whether its backend has refused it.
    #[inline(always)]
    pub const fn is_refused(self) -> bool {
        self.0 & REFUSED != 0
    }

    /// Whether it has no other backend than the one that refuses it.
    #[inline(always)]
    pub const fn is_last(self) -> bool {
        self.0 & LAST != 0
    }

    /// Whether the client's SYN is for another backend; `idle` is the time since the flow's last packet, in units of
    /// `Flow::last_seen`.
    #[inline(always)]
    pub const fn is_unanswered(self, idle: u32) -> bool {
        self.is_refused() || idle >= ANSWER_TIMEOUT
    }

    /// Whether it was sent to the backend with this id before; of ids that have the same end one may be taken for the
    /// other.
    #[inline(always)]
    pub const fn has_tried(self, backend_id: u32) -> bool {
        let end = backend_id & TRIED;
        let latest = self.0 >> TRIED_SHIFT & TRIED;
        let first = self.0 >> (TRIED_SHIFT + TRIED_BITS);
        end != 0 && (end == latest || end == first)
    }

    /// It goes from the backend with this id to another one, of which nothing is known yet.
    #[inline(always)]
    pub const fn redispatched(self, backend_id: u32) -> Self {
        let latest = self.0 >> TRIED_SHIFT & TRIED;
        let tried = latest << TRIED_BITS | backend_id & TRIED;
        Self(tried << TRIED_SHIFT | (self.redispatches() + 1))
    }

    /// It goes to the same backend again.
    #[inline(always)]
    pub const fn repeated(self) -> Self {
        Self(self.0 & !(REFUSED | LAST))
    }

    /// Its backend refuses it, and there is another one.
    #[inline(always)]
    pub const fn refused(self) -> Self {
        Self(self.0 | REFUSED)
    }

    /// Its backend refuses it, and there is no other.
    #[inline(always)]
    pub const fn last(self) -> Self {
        Self(self.0 | LAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_syn_is_for_another_backend_after_a_while_or_a_refusal() {
        let first = Attempt::default();
        assert!(!first.is_unanswered(ANSWER_TIMEOUT - 1));
        assert!(first.is_unanswered(ANSWER_TIMEOUT));
        assert!(first.refused().is_unanswered(0));
        assert!(!first.refused().repeated().is_unanswered(0));
    }

    #[test]
    fn there_are_so_many_backends_and_each_begins_anew() {
        let mut attempt = Attempt::default();
        for count in 0..MAX_REDISPATCHES {
            assert_eq!(attempt.redispatches(), count);
            assert_eq!(attempt.repeated(), attempt);
            assert!(attempt.may_go_on());
            let refused = attempt.refused();
            assert!(refused.is_refused() && !refused.is_last());
            assert!(attempt.last().is_last() && !attempt.last().is_refused());
            attempt = refused.last().redispatched(7 + count);
            assert!(!attempt.is_refused() && !attempt.is_last());
        }
        assert!(!attempt.may_go_on());
        assert_eq!(Attempt::from_raw(attempt.raw()), attempt);
    }

    #[test]
    fn the_two_backends_before_this_one_were_tried() {
        let attempt = Attempt::default().redispatched(4095);
        assert!(attempt.has_tried(4095) && !attempt.has_tried(3));
        let attempt = attempt.redispatched(3).refused();
        assert!(attempt.has_tried(4095) && attempt.has_tried(3) && !attempt.has_tried(0));
        let attempt = attempt.redispatched(4096 + 5);
        assert!(!attempt.has_tried(4095) && attempt.has_tried(3) && attempt.has_tried(5));
        assert_eq!(attempt.redispatches(), 3);
    }
}
