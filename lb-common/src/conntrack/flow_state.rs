//! The word of a flow entry: state, flags, generation.
//!
//! An established flow is *doubted* while one end has sent what may end it and the other one has not
//! confirmed it (RFC 5961): a reset that is not exact, or a FIN behind data that was not acknowledged. It has
//! no bit of its own: of a live flow [`BACKEND_FIRST`] means the same as [`FIN_REPLY`], as the flow closes
//! with the second FIN, and the other two combinations are the doubt. A program that does not know it sees an
//! established flow, and at worst lets its id rest. Of a closed flow the same means that a reset has closed
//! it.

use super::transition::Direction;

/// State, flags and generation of a flow entry.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowState(u32);

/// What an entry is. The numbers are part of the pinned layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Never used, or its fields have been cleared.
    Free = 0,
    /// Its owner is writing the fields; no other reads them.
    Claimed = 1,
    /// The client's first packet went to the backend.
    New = 2,
    /// TCP: the backend's SYN-ACK went to the client.
    Replied = 3,
    /// TCP: the client acknowledged the SYN-ACK. UDP: the backend replied.
    Established = 4,
    /// Over, but not claimed yet: still translates.
    Closed = 5,
    /// Ended by userspace, which resets its two ends: does not translate any more.
    Ended = 6,
    /// A socket of the backend's cell has the port: what its backend sends goes there.
    Local = 7,
}

const STATE_MASK: u32 = 0x7;
/// The backend sent the first FIN: its end of the connection rests in TIME_WAIT afterwards. Of a live flow that is
/// doubted, and of one that a reset has closed, the opposite.
pub(super) const BACKEND_FIRST: u32 = 1 << 3;
/// Idle for too long: userspace will close the flow unless a packet takes the mark off.
pub(super) const EXPIRING: u32 = 1 << 4;
/// A UDP flow.
const UDP: u32 = 1 << 5;
/// The client sent a FIN.
pub(super) const FIN_REQUEST: u32 = 1 << 6;
/// The backend sent a FIN.
pub(super) const FIN_REPLY: u32 = 1 << 7;
/// The numbers of its segments are translated as well: see `maps::splice`.
const SPLICED: u32 = 1 << 8;
/// What the client sends is dropped, because its connection is being handed over. It is sent again.
const HELD: u32 = 1 << 9;
const GENERATION_SHIFT: u32 = 10;
/// What a replica has of its flow's word.
const COPIED: u32 = STATE_MASK | BACKEND_FIRST | UDP | FIN_REQUEST | FIN_REPLY | SPLICED;

impl FlowState {
    /// From the raw value in the entry.
    #[inline(always)]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The raw value for the entry.
    #[inline(always)]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The state.
    #[inline(always)]
    pub const fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Free,
            2 => State::New,
            3 => State::Replied,
            4 => State::Established,
            5 => State::Closed,
            6 => State::Ended,
            7 => State::Local,
            _ => State::Claimed,
        }
    }

    /// How often the entry has been claimed, modulo 2^22.
    #[inline(always)]
    pub const fn generation(self) -> u32 {
        self.0 >> GENERATION_SHIFT
    }

    /// The word with these flags as well.
    #[inline(always)]
    pub(super) const fn with_flags(self, flags: u32) -> Self {
        Self(self.0 | flags)
    }

    /// The word without these flags.
    #[inline(always)]
    pub(super) const fn without_flags(self, flags: u32) -> Self {
        Self(self.0 & !flags)
    }

    /// Whether any of these flags is set.
    #[inline(always)]
    pub(super) const fn has_any_flag(self, flags: u32) -> bool {
        self.0 & flags != 0
    }

    /// Whether all of these flags are set.
    #[inline(always)]
    pub(super) const fn has_flags(self, flags: u32) -> bool {
        self.0 & flags == flags
    }

    /// Whether packets of the flow are rewritten and sent on.
    #[inline(always)]
    pub const fn translates(self) -> bool {
        matches!(
            self.state(),
            State::New | State::Replied | State::Established | State::Closed
        )
    }

    /// Whether the entry holds an id that a new flow may claim.
    #[inline(always)]
    pub const fn claimable(self) -> bool {
        matches!(self.state(), State::Free | State::Closed | State::Ended)
    }

    /// Whether a socket of the backend's cell has the entry's port.
    #[inline(always)]
    pub const fn is_local(self) -> bool {
        matches!(self.state(), State::Local)
    }

    /// Whether the entry's fields are those of a flow, live or over.
    #[inline(always)]
    pub const fn has_flow(self) -> bool {
        !matches!(self.state(), State::Free | State::Claimed)
    }

    /// Whether this is a flow of `udp`, or of TCP.
    #[inline(always)]
    pub const fn is_udp(self) -> bool {
        self.0 & UDP != 0
    }

    #[inline(always)]
    pub(super) const fn with_state(self, state: State) -> Self {
        Self(self.0 & !STATE_MASK | state as u32)
    }

    /// The claim of a free or closed entry for a new flow.
    #[inline(always)]
    pub const fn claim(self, udp: bool) -> Self {
        let generation = (self.0 >> GENERATION_SHIFT).wrapping_add(1) << GENERATION_SHIFT;
        let udp = if udp { UDP } else { 0 };
        Self(generation | udp | State::Claimed as u32)
    }

    /// A claimed entry whose fields are written goes live.
    #[inline(always)]
    pub const fn publish(self) -> Self {
        self.with_state(State::New)
    }

    /// The same of one whose binding is written: its client has sent its first bytes, and its backend is to answer.
    #[inline(always)]
    pub const fn bind(self) -> Self {
        self.publish().with_flags(SPLICED)
    }

    /// Whether the backend of a bound flow is still to answer.
    #[inline(always)]
    pub const fn is_binding(self) -> bool {
        self.is_spliced() && matches!(self.state(), State::New)
    }

    /// The backend has answered a bound flow, which a CPU has [held](Self::hold) meanwhile.
    #[inline(always)]
    pub const fn meet(self) -> Self {
        self.release().with_state(State::Replied)
    }

    /// The same of a client that has returned a cookie by an ACK: it has acknowledged all that there is.
    #[inline(always)]
    pub const fn establish(self) -> Self {
        self.release().with_state(State::Established)
    }

    /// A claimed entry is a socket's: of a shared VIP's connection to its backend.
    #[inline(always)]
    pub const fn lend(self) -> Self {
        self.with_state(State::Local)
    }

    /// The same, while the client's packets find it and are dropped.
    #[inline(always)]
    pub const fn hold(self) -> Self {
        self.with_flags(HELD)
    }

    /// Whether the client's packets are dropped.
    #[inline(always)]
    pub const fn is_held(self) -> bool {
        self.has_any_flag(HELD)
    }

    /// The client's packets are no longer dropped.
    #[inline(always)]
    pub const fn release(self) -> Self {
        self.without_flags(HELD)
    }

    /// A socket's entry becomes a flow in full use, whose splice is written.
    #[inline(always)]
    pub const fn splice(self) -> Self {
        self.with_state(State::Established).with_flags(SPLICED)
    }

    /// The same, taken back.
    #[inline(always)]
    pub const fn unsplice(self) -> Self {
        self.without_flags(SPLICED).lend()
    }

    /// Whether the flow has a splice.
    #[inline(always)]
    pub const fn is_spliced(self) -> bool {
        self.has_any_flag(SPLICED)
    }

    /// The word of a flow that userspace wants to close for being idle. The next packet of the flow
    /// [takes the mark off](Self::woken) by compare-and-swap, which makes the close fail.
    #[inline(always)]
    pub const fn expiring(self) -> Self {
        self.with_flags(EXPIRING)
    }

    /// Whether the flow is marked as [`Self::expiring`].
    #[inline(always)]
    pub const fn is_expiring(self) -> bool {
        self.has_any_flag(EXPIRING)
    }

    /// The word without that mark.
    #[inline(always)]
    pub const fn woken(self) -> Self {
        self.without_flags(EXPIRING)
    }

    /// Whether the backend's end of a closed connection may rest in TIME_WAIT.
    #[inline(always)]
    pub const fn backend_closed_first(self) -> bool {
        self.has_flags(BACKEND_FIRST | FIN_REPLY)
    }

    /// Whether one end has sent what may end the flow and the other one has not confirmed it.
    #[inline(always)]
    pub const fn is_doubted(self) -> bool {
        matches!(self.state(), State::Replied | State::Established) && self.is_odd()
    }

    /// Whether a reset has closed the flow.
    #[inline(always)]
    pub const fn is_reset(self) -> bool {
        matches!(self.state(), State::Closed) && self.is_odd()
    }

    #[inline(always)]
    const fn is_odd(self) -> bool {
        !self.has_flags(FIN_REQUEST | FIN_REPLY)
            && self.has_any_flag(BACKEND_FIRST) != self.has_any_flag(FIN_REPLY)
    }

    /// Whether the flow is established and nothing about its word is open: no mark, no doubt, one FIN at most.
    #[inline(always)]
    pub(super) const fn is_settled(self) -> bool {
        const ESTABLISHED: u32 = State::Established as u32;
        const OPEN: u32 = STATE_MASK | EXPIRING | BACKEND_FIRST | FIN_REQUEST | FIN_REPLY;
        const BY_CLIENT: u32 = ESTABLISHED | FIN_REQUEST;
        const BY_BACKEND: u32 = ESTABLISHED | FIN_REPLY | BACKEND_FIRST;
        matches!(self.0 & OPEN, ESTABLISHED | BY_CLIENT | BY_BACKEND)
    }

    /// The word of a live flow that is [doubted](Self::is_doubted).
    #[inline(always)]
    pub const fn doubted(self) -> Self {
        if self.is_doubted() {
            self
        } else {
            Self(self.0 ^ BACKEND_FIRST)
        }
    }

    /// The word of a flow that is not doubted any more.
    #[inline(always)]
    pub const fn trusted(self) -> Self {
        if self.is_doubted() {
            Self(self.0 ^ BACKEND_FIRST)
        } else {
            self
        }
    }

    /// The word of a live flow behind the FIN of the end that sends in this direction. A doubt stays, unless it is
    /// the second one.
    #[inline(always)]
    pub(super) const fn with_fin(self, direction: Direction) -> Self {
        let (own, other) = match direction {
            Direction::Request => (FIN_REQUEST, FIN_REPLY),
            Direction::Reply => (FIN_REPLY, FIN_REQUEST),
        };
        if self.has_any_flag(other) {
            self.trusted().with_flags(own)
        } else if self.has_any_flag(own) || matches!(direction, Direction::Request) {
            self.with_flags(own)
        } else {
            Self(self.0 ^ BACKEND_FIRST).with_flags(own)
        }
    }

    /// The word of a flow that starts over: no end of the new connection has sent a FIN or a reset.
    #[inline(always)]
    pub(super) const fn started_over(self) -> Self {
        self.without_flags(FIN_REQUEST | FIN_REPLY | BACKEND_FIRST)
    }

    /// Whether either end has sent its FIN.
    #[inline(always)]
    pub const fn is_half_closed(self) -> bool {
        self.has_any_flag(FIN_REQUEST | FIN_REPLY)
    }

    /// Whether the flow is in full use: established by both ends, or a UDP flow that was answered. Only
    /// such flows count against a budget.
    #[inline(always)]
    pub const fn in_use(self) -> bool {
        matches!(self.state(), State::Established)
    }

    /// The end of a flow. The winner of the swap to this word puts the id into the queue. Without the mark
    /// [`Self::expiring`]: a packet that took it off would close the flow once more.
    #[inline(always)]
    pub const fn close(self) -> Self {
        self.trusted().woken().release().with_state(State::Closed)
    }

    /// The same by a reset, behind which no end rests.
    #[inline(always)]
    pub const fn reset(self) -> Self {
        Self(self.close().0 ^ BACKEND_FIRST)
    }

    /// The end of a flow whose two ends are reset: whatever they send afterwards belongs to no flow. The
    /// winner of the swap to this word from a live one puts the id into the queue; that of a closed one,
    /// which must not translate any more, is there already. Without the mark, as for [`Self::close`].
    #[inline(always)]
    pub const fn end(self) -> Self {
        self.trusted().woken().release().with_state(State::Ended)
    }

    /// The end of a socket's entry whose backend closed its side first: see [`Self::backend_closed_first`].
    #[inline(always)]
    pub const fn end_resting(self) -> Self {
        self.end().with_flags(BACKEND_FIRST | FIN_REPLY)
    }

    /// An entry that must not translate any more, as what it refers to is taken back. The new
    /// generation makes a packet that is reading the entry miss.
    #[inline(always)]
    pub const fn forget(self) -> Self {
        let generation = self.generation().wrapping_add(1) << GENERATION_SHIFT;
        Self(generation).with_state(State::Free)
    }

    /// Whether another box may have a replica of this flow: both ends have answered, and no socket changes it meanwhile.
    #[inline(always)]
    pub const fn is_replicated(self) -> bool {
        matches!(self.state(), State::Established) && !self.is_held()
    }

    /// A claimed entry becomes the replica of another box's flow with this word: its state and its FINs, and its splice if that has been
    /// written, but neither its generation nor what userspace has marked there.
    #[inline(always)]
    pub const fn replicate(self, of: Self) -> Self {
        Self(self.0 & !COPIED | of.0 & COPIED)
    }

    /// A claim that is given up. The fields are no flow's; the id goes back into the queue.
    #[inline(always)]
    pub const fn withdraw(self) -> Self {
        self.with_state(State::Free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_free_or_closed_entry_can_be_claimed() {
        let zero = FlowState::default();
        assert!(zero.claimable() && !zero.translates());
        let claimed = zero.claim(false);
        assert!(!claimed.translates() && !claimed.claimable());
        assert_eq!(claimed.generation(), 1);
        assert!(claimed.publish().translates() && !claimed.publish().claimable());
        let closed = claimed.publish().close();
        assert!(closed.translates() && closed.claimable());
        let ended = claimed.publish().end();
        assert!(!ended.translates() && ended.claimable() && ended.has_flow());
        assert!(claimed.withdraw().claimable() && !claimed.withdraw().translates());
        assert_eq!(closed.claim(true).generation(), 2);
    }

    #[test]
    fn a_forgotten_entry_is_free_and_of_another_generation() {
        let live = FlowState::default().claim(true).publish();
        let forgotten = live.forget();
        assert!(forgotten.claimable() && !forgotten.translates());
        assert_ne!(forgotten.generation(), live.generation());
        assert_eq!(
            FlowState::from_raw(0xffff_fc05).forget(),
            FlowState::default()
        );
    }

    #[test]
    fn a_socket_s_entry_that_is_over_may_be_claimed_and_says_who_closed_first() {
        let lent = FlowState::default().claim(false).lend();
        for over in [lent.end(), lent.end_resting()] {
            assert!(over.claimable() && over.has_flow());
            assert!(!over.translates() && !over.is_local());
            assert_eq!(over.generation(), lent.generation());
        }
        assert!(!lent.end().backend_closed_first() && lent.end_resting().backend_closed_first());
    }

    #[test]
    fn a_flow_that_is_over_has_no_mark_for_a_packet_to_take_off() {
        let live = FlowState::default().claim(true).publish();
        assert_eq!(live.expiring().close(), live.close());
        assert_eq!(live.expiring().end(), live.end());
    }

    #[test]
    fn a_doubt_changes_neither_the_flags_of_a_flow_nor_who_closed_first() {
        let live = FlowState::default().claim(false).publish();
        let established = live.with_state(State::Established);
        let [request, reply] = [Direction::Request, Direction::Reply];
        for word in [
            established,
            established.with_fin(request),
            established.with_fin(reply),
            established.expiring(),
        ] {
            let doubted = word.doubted();
            assert!(doubted.is_doubted() && !word.is_doubted());
            assert_eq!(doubted.doubted(), doubted);
            assert_eq!((doubted.trusted(), word.trusted()), (word, word));
            assert_eq!(doubted.is_half_closed(), word.is_half_closed());
            assert!(doubted.in_use() && doubted.generation() == word.generation());
            assert_eq!((doubted.close(), doubted.end()), (word.close(), word.end()));
            assert_eq!(doubted.reset(), word.reset());
            assert!(word.reset().is_reset() && !word.close().is_reset());
            assert!(!word.reset().backend_closed_first() && !word.reset().is_doubted());
            assert_eq!(word.reset().claim(false), word.close().claim(false));
            for direction in [request, reply] {
                let next = word.with_fin(direction);
                assert_eq!(doubted.with_fin(direction).trusted(), next.trusted());
                assert_eq!(doubted.with_fin(direction).close(), next.close());
                assert_eq!(next.with_fin(direction), next, "once more");
            }
            assert_eq!(doubted.started_over(), word.started_over());
        }
        for (first, second) in [(request, reply), (reply, request)] {
            let both = established.with_fin(first).with_fin(second);
            assert!(!both.is_doubted());
            assert_eq!(both.close().backend_closed_first(), first == reply);
        }
    }

    #[test]
    fn a_replica_has_the_state_of_its_flow_and_a_generation_of_its_own() {
        let live = FlowState::from_raw(0x1234_5400).claim(false).publish();
        let established = live.with_state(State::Established);
        let claimed = FlowState::default().claim(false);
        for of in [
            established,
            established.with_fin(Direction::Reply),
            established.doubted(),
            established.with_flags(SPLICED),
            established.expiring(),
        ] {
            assert!(of.is_replicated());
            let replica = claimed.replicate(of);
            assert_eq!(replica.generation(), claimed.generation());
            assert_eq!(replica.state(), of.state());
            assert_eq!(replica.is_half_closed(), of.is_half_closed());
            assert_eq!(replica.is_doubted(), of.is_doubted());
            assert_eq!(replica.is_spliced(), of.is_spliced());
            assert!(!replica.is_expiring() && !replica.is_held());
        }
        for of in [
            live,
            live.with_state(State::Replied),
            established.hold(),
            claimed,
            established.close(),
        ] {
            assert!(!of.is_replicated());
        }
    }

    #[test]
    fn the_generation_wraps_without_touching_the_state() {
        let last = FlowState::from_raw(0xffff_fc05);
        assert_eq!(
            (last.state(), last.generation()),
            (State::Closed, 0x3f_ffff)
        );
        let next = last.claim(false);
        assert_eq!((next.state(), next.generation()), (State::Claimed, 0));
    }

    #[test]
    fn a_port_is_lent_held_and_spliced_within_one_generation() {
        let claimed = FlowState::default().claim(false);
        let lent = claimed.lend();
        assert!(lent.is_local() && lent.has_flow() && !lent.translates() && !lent.claimable());
        let held = lent.hold();
        assert!(held.is_local() && held.is_held() && !held.is_spliced());
        let spliced = held.splice();
        assert!(spliced.is_held() && spliced.is_spliced());
        assert!(spliced.translates() && spliced.in_use());
        assert_eq!(spliced.unsplice(), held);
        assert_eq!(held.release(), lent);
        let live = spliced.release();
        assert_eq!((live.state(), live.is_held()), (State::Established, false));
        assert_eq!(live.generation(), claimed.generation());
        for over in [live.close(), live.end()] {
            assert!(over.is_spliced(), "it may still translate");
            assert!(!over.claim(false).is_spliced());
        }
    }
}
