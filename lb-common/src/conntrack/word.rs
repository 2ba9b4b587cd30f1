//! The word of a flow entry: state, flags, generation.

/// State, flags and generation of a flow entry.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Word(u32);

/// What an entry is. The numbers are part of the pinned layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Never used, or its fields have been cleared.
    Free = 0,
    /// Somebody is writing the fields; nobody may read them.
    Claimed = 1,
    /// The client's first packet went to the backend.
    New = 2,
    /// TCP: the backend's SYN-ACK went to the client.
    Replied = 3,
    /// TCP: the client acknowledged the SYN-ACK. UDP: the backend replied.
    Established = 4,
    /// Over, but not claimed yet: still translates.
    Closed = 5,
    /// Ended by userspace, which told both ends: does not translate any more.
    Ended = 6,
    /// A socket of the backend's cell has the port: what its backend sends goes there.
    Local = 7,
}

const STATE_MASK: u32 = 0x7;
/// The backend sent the first FIN: its end of the connection rests in TIME_WAIT afterwards.
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

impl Word {
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
        self.has_any_flag(BACKEND_FIRST)
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

    /// The end of a flow. Whoever wins the swap to this word puts the id into the queue. Without the
    /// mark [`Self::expiring`]: a packet that took it off would close the flow once more.
    #[inline(always)]
    pub const fn close(self) -> Self {
        self.woken().release().with_state(State::Closed)
    }

    /// The end of a flow that both ends are told of: whatever they send afterwards belongs to no flow.
    /// Whoever wins the swap to this word from a live one puts the id into the queue; that of a closed
    /// one, which must not translate any more, is there already. Without the mark, as for
    /// [`Self::close`].
    #[inline(always)]
    pub const fn end(self) -> Self {
        self.woken().release().with_state(State::Ended)
    }

    /// An entry that must not translate any more, as what it refers to is taken back. The new
    /// generation makes a packet that is reading the entry miss.
    #[inline(always)]
    pub const fn forget(self) -> Self {
        let generation = self.generation().wrapping_add(1) << GENERATION_SHIFT;
        Self(generation).with_state(State::Free)
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
        let zero = Word::default();
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
        let live = Word::default().claim(true).publish();
        let forgotten = live.forget();
        assert!(forgotten.claimable() && !forgotten.translates());
        assert_ne!(forgotten.generation(), live.generation());
        assert_eq!(Word::from_raw(0xffff_fc05).forget(), Word::default());
    }

    #[test]
    fn a_flow_that_is_over_has_no_mark_for_a_packet_to_take_off() {
        let live = Word::default().claim(true).publish();
        assert_eq!(live.expiring().close(), live.close());
        assert_eq!(live.expiring().end(), live.end());
    }

    #[test]
    fn the_generation_wraps_without_touching_the_state() {
        let last = Word::from_raw(0xffff_fc05);
        assert_eq!(
            (last.state(), last.generation()),
            (State::Closed, 0x3f_ffff)
        );
        let next = last.claim(false);
        assert_eq!((next.state(), next.generation()), (State::Claimed, 0));
    }

    #[test]
    fn a_port_is_lent_held_and_spliced_within_one_generation() {
        let claimed = Word::default().claim(false);
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
