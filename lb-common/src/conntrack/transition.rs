//! What a packet means for its flow.

use super::{
    flow_state::{FIN_REPLY, FIN_REQUEST, FlowState, State},
    numbers::Numbers,
};
use crate::{
    maps::flow::TIME_SHIFT,
    wire::header::{ACK, FIN, RST, SYN},
};

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Client to backend.
    Request,
    /// Backend to client.
    Reply,
}

impl Direction {
    /// The other one.
    #[inline(always)]
    pub(super) const fn opposite(self) -> Self {
        match self {
            Self::Request => Self::Reply,
            Self::Reply => Self::Request,
        }
    }
}

/// The parts of a TCP segment that matter for its flow. Numbers in host order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The TCP flags.
    pub flags: u8,
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// Acknowledgment number; meaningful with the ACK flag.
    pub acknowledgment: u32,
    /// Payload in bytes.
    pub payload: u16,
}

impl Segment {
    /// Whether this segment opens a connection.
    #[inline(always)]
    pub const fn opens(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == SYN
    }

    /// Whether it has one of these flags.
    #[inline(always)]
    pub(super) const fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Whether its acknowledgment means anything.
    #[inline(always)]
    pub(super) const fn acknowledges(&self) -> bool {
        self.has(ACK)
    }

    /// Whether it is an acknowledgment and nothing else.
    #[inline(always)]
    const fn is_bare(&self) -> bool {
        self.flags & (SYN | ACK | RST | FIN) == ACK && self.payload == 0
    }

    /// The number behind its data, where its FIN stands if it has one.
    #[inline(always)]
    pub(super) const fn end(&self) -> u32 {
        self.sequence.wrapping_add(self.payload as u32)
    }
}

/// What a packet means for its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Translate; the word stays.
    Keep,
    /// Translate, and change the word.
    Change(FlowState),
    /// A late packet of an earlier flow on this id, or a backend acknowledges something on a connection that a reset has
    /// closed, such as that reset (RFC 5961 section 3.2): do not translate.
    Refuse,
}

/// Most data that a SYN may carry and a SYN-ACK acknowledge (RFC 7413), in bytes.
const SYN_DATA: u32 = 1460;
/// Most data that a backend sends behind its SYN-ACK before the client's first acknowledgment (RFC 7413). A
/// sender that has not seen the SYN-ACK must guess its number this closely.
const FIRST_DATA: u32 = 1 << 16;
/// How long after a flow's last packet a SYN of it may still come, in units of `Flow::last_seen`: half of the
/// second after which a client repeats one (RFC 6298 section 2.1).
pub const LATE_SYN_TIMEOUT: u32 = 500_000_000 >> TIME_SHIFT;

/// Judges a TCP segment of a live or closed flow.
#[inline(always)]
pub const fn tcp(
    word: FlowState,
    direction: Direction,
    segment: &Segment,
    numbers: &Numbers,
) -> Transition {
    let step = judge(word.woken(), direction, segment, numbers);
    wake(word, step)
}

/// Whether a packet with these TCP flags (UDP has none) changes nothing about a flow's word in either direction,
/// as nearly every one: an answer that [`tcp`] and [`udp`] would give more slowly.
#[inline(always)]
pub const fn stays(word: FlowState, flags: u8) -> bool {
    flags & (SYN | FIN | RST) == 0 && word.is_settled()
}

/// Any packet that is translated wakes a flow that was about to expire.
#[inline(always)]
const fn wake(word: FlowState, step: Transition) -> Transition {
    match step {
        Transition::Keep if word.is_expiring() => Transition::Change(word.woken()),
        step => step,
    }
}

#[inline(always)]
const fn judge(
    word: FlowState,
    direction: Direction,
    segment: &Segment,
    numbers: &Numbers,
) -> Transition {
    let state = word.state();
    if matches!(state, State::Closed | State::Ended | State::Local) {
        let goes_on = matches!(direction, Direction::Reply) && segment.is_bare();
        return match word.is_reset() && goes_on {
            true => Transition::Refuse,
            false => Transition::Keep,
        };
    }
    if segment.has(RST) {
        return reset(word, direction, segment, numbers);
    }
    match (state, direction) {
        (State::New, Direction::Reply) => {
            if segment.has(SYN) {
                if believes_syn(word, direction, segment, numbers) {
                    Transition::Change(word.with_state(State::Replied))
                } else {
                    Transition::Refuse
                }
            } else if segment.payload == 0 && !segment.has(FIN) {
                // A challenge ACK of the backend's TIME_WAIT: the client must see and reset it.
                Transition::Keep
            } else {
                Transition::Refuse
            }
        }
        (State::Replied, Direction::Request)
            if segment.has(ACK)
                && !segment.has(SYN)
                && segment
                    .acknowledgment
                    .wrapping_sub(first_ack(word, numbers))
                    <= FIRST_DATA =>
        {
            let established = word.with_state(State::Established);
            closing(word, established, direction, segment, numbers)
        }
        (State::Established, _) if believes_syn(word, direction, segment, numbers) => {
            // The client opened its port again before both ends of the last connection were seen.
            changed(word, word.started_over())
        }
        (State::Replied | State::Established, _) => {
            closing(word, word, direction, segment, numbers)
        }
        _ => Transition::Keep,
    }
}

/// The least that a client acknowledges of a backend that has answered, so that it has both: of a bound flow, whose backend
/// has answered for the client's hello, more than the SYN-ACK.
#[inline(always)]
const fn first_ack(word: FlowState, numbers: &Numbers) -> u32 {
    numbers.ack_request.wrapping_add(word.is_spliced() as u32)
}

/// Whether the numbers of this SYN are those of the flow's connection. To send one takes no more than its tuple: so
/// that of a client counts while the flow has no other, and later when the backend has answered it.
///
/// A backend with a splice has never seen the client's SYN: it challenges this one, and the client resets the
/// connection that it does not know.
#[inline(always)]
pub const fn believes_syn(
    word: FlowState,
    direction: Direction,
    segment: &Segment,
    numbers: &Numbers,
) -> bool {
    match (word.state(), direction) {
        // Also a second try with another initial number, as after an unanswered first one.
        (State::New, Direction::Request) => segment.opens(),
        (State::New, Direction::Reply) => {
            let said = segment.acknowledgment.wrapping_sub(numbers.ack_reply);
            segment.has(SYN) && segment.has(ACK) && said <= SYN_DATA
        }
        (State::Replied | State::Established, Direction::Reply) => {
            segment.has(SYN) && numbers.confirms(direction, segment) && !word.is_spliced()
        }
        _ => false,
    }
}

/// Whether a backend's RST refuses the SYN of a flow that it has not answered. `ack_reply` is the entry's.
#[inline(always)]
pub const fn refuses(segment: &Segment, ack_reply: u32) -> bool {
    // RFC 9293 section 3.5.2: in SYN-SENT a reset is acceptable if it acknowledges the SYN.
    let said = segment.acknowledgment.wrapping_sub(ack_reply);
    segment.has(RST) && segment.has(ACK) && said <= SYN_DATA
}

/// A reset with exactly the number that is expected closes (RFC 5961 section 3.2). One in the window may be that of
/// an end that aborts behind data in flight, or a blind one, or that of a client which would like not to be counted:
/// the flow goes on and is doubted.
#[inline(always)]
const fn reset(
    word: FlowState,
    direction: Direction,
    segment: &Segment,
    numbers: &Numbers,
) -> Transition {
    let state = word.state();
    let is_exact = match (state, direction) {
        (State::New, Direction::Reply) => refuses(segment, numbers.ack_reply),
        // Not the answer to a challenge ACK of the backend's TIME_WAIT, whose numbers are those of
        // another connection: the same SYN comes again and finds the backend ready.
        (State::New, Direction::Request) => {
            let first = numbers.ack_reply.wrapping_sub(1);
            segment.sequence.wrapping_sub(first) <= 1 + SYN_DATA
        }
        // Or it refuses the SYN of a client that opens its port again.
        (_, Direction::Reply) if numbers.confirms(direction, segment) => true,
        _ => segment.sequence == numbers.expected(direction),
    };
    if is_exact {
        Transition::Change(word.reset())
    } else if matches!(state, State::Established) && numbers.has_room(direction, segment) {
        changed(word, word.doubted())
    } else {
        Transition::Keep
    }
}

/// Whether a client's SYN comes late: its connection is over since, and it does not open another. `ack_reply`
/// is the entry's, and `idle` the time since the flow's last packet, in units of `Flow::last_seen`.
///
/// Only a SYN with a higher number than the last connection had opens another one (RFC 9293 section 3.10.7.4,
/// TIME-WAIT). Otherwise a backend would answer the late one, and the client, which may not have the last
/// connection's end yet, would lose it to a reset. For some clients a new connection begins with any number:
/// theirs opens when they send it again.
#[inline(always)]
pub const fn is_late_syn(word: FlowState, sequence: u32, ack_reply: u32, idle: u32) -> bool {
    let is_finished =
        matches!(word.state(), State::Closed) && word.has_flags(FIN_REQUEST | FIN_REPLY);
    let is_before = (sequence.wrapping_sub(ack_reply) as i32) < 0;
    is_finished && is_before && idle < LATE_SYN_TIMEOUT
}

/// Applies FINs to `next`, which is `word` or follows from it: that of this segment if the other end has all before
/// it, else when that has acknowledged it; both close.
#[inline(always)]
const fn closing(
    word: FlowState,
    next: FlowState,
    direction: Direction,
    segment: &Segment,
    numbers: &Numbers,
) -> Transition {
    let mut next = next;
    if word.is_doubted() && numbers.confirms(direction, segment) {
        if !numbers.is_waiting(direction) {
            next = next.trusted();
        }
        next = next.with_fin(direction.opposite());
    }
    if segment.has(FIN) {
        if numbers.fits(direction, segment) {
            next = next.with_fin(direction);
        } else if numbers.has_room(direction, segment) {
            next = next.doubted();
        }
    }
    if next.has_flags(FIN_REQUEST | FIN_REPLY) {
        next = next.close();
    }
    changed(word, next)
}

/// The step from `word` to `next`.
#[inline(always)]
const fn changed(word: FlowState, next: FlowState) -> Transition {
    if next.raw() == word.raw() {
        Transition::Keep
    } else {
        Transition::Change(next)
    }
}

/// Judges a UDP datagram of a live flow.
#[inline(always)]
pub const fn udp(word: FlowState, direction: Direction) -> Transition {
    let awake = word.woken();
    let step = match (awake.state(), direction) {
        (State::New, Direction::Reply) => Transition::Change(awake.with_state(State::Established)),
        _ => Transition::Keep,
    };
    wake(word, step)
}

#[cfg(test)]
mod tests {
    use super::{
        super::numbers::{asks_pending, pending},
        *,
    };
    use crate::maps::pending::Pending;

    const ISN: u32 = 1000;
    const PEER: u32 = 0xffff_fff0;

    fn segment(flags: u8, sequence: u32, acknowledgment: u32) -> Segment {
        Segment {
            flags,
            sequence,
            acknowledgment,
            payload: 0,
        }
    }

    /// Judged with nothing pending.
    fn tcp(
        word: FlowState,
        direction: Direction,
        segment: &Segment,
        ack_request: u32,
        ack_reply: u32,
    ) -> Transition {
        let numbers = Numbers::acknowledged(ack_request, ack_reply);
        super::tcp(word, direction, segment, &numbers)
    }

    fn new_flow() -> FlowState {
        FlowState::default().claim(false).publish()
    }

    fn changed(step: Transition) -> FlowState {
        match step {
            Transition::Change(word) => word,
            other => panic!("expected a change, got {other:?}"),
        }
    }

    /// NEW -> REPLIED -> ESTABLISHED with the numbers above.
    fn established() -> FlowState {
        let syn_ack = segment(SYN | ACK, PEER, ISN + 1);
        let replied = changed(tcp(new_flow(), Direction::Reply, &syn_ack, 0, ISN + 1));
        assert_eq!(replied.state(), State::Replied);
        let ack = segment(ACK, ISN + 1, PEER.wrapping_add(1));
        changed(tcp(
            replied,
            Direction::Request,
            &ack,
            PEER.wrapping_add(1),
            ISN + 1,
        ))
    }

    #[test]
    fn the_handshake_establishes_only_with_the_clients_ack() {
        assert_eq!(established().state(), State::Established);
        let syn_ack = segment(SYN | ACK, PEER, ISN + 1);
        let replied = changed(tcp(new_flow(), Direction::Reply, &syn_ack, 0, ISN + 1));
        assert_eq!(
            tcp(replied, Direction::Reply, &syn_ack, 0, ISN + 1),
            Transition::Keep
        );
        let syn = segment(SYN, ISN, 0);
        assert_eq!(
            tcp(replied, Direction::Request, &syn, 0, ISN + 1),
            Transition::Keep
        );
    }

    #[test]
    fn a_bound_flow_is_half_open_until_the_client_acknowledges_data() {
        let bound = FlowState::default().claim(false).bind();
        assert!(bound.is_binding() && !new_flow().is_binding());
        let met = bound.hold().meet();
        assert!(!met.is_held() && !met.is_binding() && met.is_spliced());
        assert_eq!(met.state(), State::Replied);
        let first = PEER.wrapping_add(1);
        let hello = Segment {
            payload: 500,
            ..segment(ACK, ISN + 1, first)
        };
        let step = tcp(met, Direction::Request, &hello, first, ISN + 1);
        assert_eq!(step, Transition::Keep, "the hello again");
        let ack = segment(ACK, ISN + 501, first.wrapping_add(1));
        let after = changed(tcp(met, Direction::Request, &ack, first, ISN + 1));
        assert_eq!(after.state(), State::Established);
    }

    /// Whatever the word, the flags and the numbers are.
    #[test]
    fn what_stays_is_kept() {
        let (mut staying, mut kept) = (0, 0);
        for word in (0..1 << 16).map(FlowState::from_raw) {
            let mut look = |step| {
                kept += u32::from(step == Transition::Keep);
                staying += 1;
            };
            if stays(word, 0) {
                look(udp(word, Direction::Request));
                look(udp(word, Direction::Reply));
            }
            for flags in 0..64 {
                let segment = segment(flags, ISN, PEER);
                if !stays(word, flags) {
                    continue;
                }
                for (ack_request, ack_reply) in [(0, 0), (PEER, ISN), (ISN, PEER)] {
                    for direction in [Direction::Request, Direction::Reply] {
                        look(tcp(word, direction, &segment, ack_request, ack_reply));
                    }
                }
            }
        }
        assert!(staying > 0 && kept == staying, "{kept} of {staying}");
        assert!(stays(established(), ACK) && stays(established(), 0));
        for flags in [SYN, FIN, RST] {
            assert!(!stays(established(), flags | ACK));
        }
        let half = |direction| established().with_fin(direction);
        let halves = [half(Direction::Request), half(Direction::Reply)];
        for word in halves.into_iter().chain([established()]) {
            assert!(stays(word, ACK) && !stays(word.doubted(), ACK));
        }
        for word in [new_flow(), established().expiring(), established().close()] {
            assert!(!stays(word, ACK) && !stays(word, 0));
        }
    }

    #[test]
    fn a_late_reply_of_an_earlier_flow_is_refused() {
        let word = new_flow();
        let late_syn_ack = segment(SYN | ACK, PEER, ISN + 1 + SYN_DATA + 1);
        assert_eq!(
            tcp(word, Direction::Reply, &late_syn_ack, 0, ISN + 1),
            Transition::Refuse
        );
        let early_syn_ack = segment(SYN | ACK, PEER, ISN);
        assert_eq!(
            tcp(word, Direction::Reply, &early_syn_ack, 0, ISN + 1),
            Transition::Refuse
        );
        let late_data = Segment {
            payload: 1,
            ..segment(ACK, PEER, ISN)
        };
        assert_eq!(
            tcp(word, Direction::Reply, &late_data, 0, ISN + 1),
            Transition::Refuse
        );
        let late_fin = segment(FIN | ACK, PEER, ISN);
        assert_eq!(
            tcp(word, Direction::Reply, &late_fin, 0, ISN + 1),
            Transition::Refuse
        );
        let challenge = segment(ACK, PEER, ISN - 500);
        assert_eq!(
            tcp(word, Direction::Reply, &challenge, 0, ISN + 1),
            Transition::Keep
        );
    }

    #[test]
    fn a_syn_ack_must_acknowledge_the_syn_and_may_acknowledge_its_data() {
        let without_ack = segment(SYN, PEER, ISN + 1);
        assert_eq!(
            tcp(new_flow(), Direction::Reply, &without_ack, 0, ISN + 1),
            Transition::Refuse
        );
        let with_data = segment(SYN | ACK, PEER, ISN + 1 + 1460);
        assert_eq!(
            changed(tcp(new_flow(), Direction::Reply, &with_data, 0, ISN + 1)).state(),
            State::Replied
        );
    }

    #[test]
    fn only_an_acknowledgment_of_the_client_establishes() {
        let syn_ack = segment(SYN | ACK, PEER, ISN + 1);
        let replied = changed(tcp(new_flow(), Direction::Reply, &syn_ack, 0, ISN + 1));
        let bare = segment(0, ISN + 1, 0);
        assert_eq!(
            tcp(replied, Direction::Request, &bare, 0, ISN + 1),
            Transition::Keep
        );
        let both = segment(SYN | ACK, ISN + 1, PEER.wrapping_add(1));
        assert_eq!(
            tcp(
                replied,
                Direction::Request,
                &both,
                PEER.wrapping_add(1),
                ISN + 1
            ),
            Transition::Keep
        );
        for guess in [PEER, PEER.wrapping_add(2 + FIRST_DATA)] {
            let blind = segment(ACK, ISN + 1, guess);
            assert_eq!(
                tcp(
                    replied,
                    Direction::Request,
                    &blind,
                    PEER.wrapping_add(1),
                    ISN + 1
                ),
                Transition::Keep
            );
        }
    }

    /// A second close would put the id into its queue twice.
    #[test]
    fn nothing_changes_a_closed_flow() {
        let closed = established().close();
        for direction in [Direction::Request, Direction::Reply] {
            for flags in [RST, RST | ACK, FIN | ACK, ACK, SYN | ACK, SYN] {
                let segment = segment(flags, ISN + 1, ISN + 1);
                assert_eq!(
                    tcp(closed, direction, &segment, ISN + 1, ISN + 1),
                    Transition::Keep,
                    "{direction:?} {flags:#x}"
                );
            }
        }
    }

    /// A client whose reset the backend did not take has a connection there all the same, which does not count.
    #[test]
    fn a_backend_that_goes_on_behind_a_reset_is_refused() {
        let over = established().reset();
        let judged = |word, direction, flags, payload| {
            let segment = Segment {
                payload,
                ..segment(flags, PEER, ISN + 1)
            };
            tcp(word, direction, &segment, PEER, ISN)
        };
        assert_eq!(judged(over, Direction::Reply, ACK, 0), Transition::Refuse);
        for flags in [RST, RST | ACK, FIN | ACK, SYN | ACK, 0] {
            assert_eq!(judged(over, Direction::Reply, flags, 0), Transition::Keep);
        }
        assert_eq!(judged(over, Direction::Reply, ACK, 1), Transition::Keep);
        assert_eq!(judged(over, Direction::Request, ACK, 0), Transition::Keep);
        let recycled = new_flow().close();
        let finished = established()
            .with_fin(Direction::Reply)
            .with_fin(Direction::Request)
            .close();
        for word in [recycled, finished] {
            assert_eq!(judged(word, Direction::Reply, ACK, 0), Transition::Keep);
        }
    }

    #[test]
    fn both_fins_close_in_either_order_and_one_does_not() {
        let request_fin = segment(FIN | ACK, ISN + 1, PEER.wrapping_add(1));
        let reply_fin = segment(FIN | ACK, PEER.wrapping_add(1), ISN + 1);
        let orders = [
            [
                (Direction::Request, request_fin),
                (Direction::Reply, reply_fin),
            ],
            [
                (Direction::Reply, reply_fin),
                (Direction::Request, request_fin),
            ],
        ];
        let judged = |word, (direction, segment): (Direction, Segment)| {
            tcp(word, direction, &segment, PEER.wrapping_add(1), ISN + 1)
        };
        for [first, second] in orders {
            let half = changed(judged(established(), first));
            assert_eq!(half.state(), State::Established);
            assert_eq!(judged(half, first), Transition::Keep, "a repeated FIN");
            let closed = changed(judged(half, second));
            assert_eq!(closed.state(), State::Closed);
            assert!(closed.claimable() && closed.translates());
        }
    }

    #[test]
    fn a_reset_closes_only_where_its_sequence_number_is_exact() {
        let word = established();
        let (ack_request, ack_reply) = (PEER.wrapping_add(1), ISN + 1);
        for (direction, expected) in [
            (Direction::Request, ack_reply),
            (Direction::Reply, ack_request),
        ] {
            let judged = |word, ahead: i32| {
                let reset = segment(RST, expected.wrapping_add_signed(ahead), 0);
                tcp(word, direction, &reset, ack_request, ack_reply)
            };
            for half in [
                word,
                word.with_fin(Direction::Request),
                word.with_fin(Direction::Reply),
            ] {
                let doubted = half.doubted();
                assert_eq!(judged(half, 0), Transition::Change(half.reset()));
                assert_eq!(judged(doubted, 0), Transition::Change(half.reset()));
                for ahead in [1, 30, 100, 0x3fff_ffff] {
                    assert_eq!(judged(half, ahead), Transition::Change(doubted), "{ahead}");
                    assert_eq!(judged(doubted, ahead), Transition::Keep, "{ahead}");
                }
                for blind in [-1, 0x4000_0000, i32::MIN] {
                    assert_eq!(judged(half, blind), Transition::Keep, "{blind}");
                }
            }
            assert_eq!(
                judged(word.expiring(), 1),
                Transition::Change(word.doubted())
            );
        }
    }

    /// Before the handshake is over there is little time to lose, and nothing counts.
    #[test]
    fn a_half_open_flow_is_not_doubted() {
        let syn_ack = segment(SYN | ACK, PEER, ISN + 1);
        let replied = changed(tcp(new_flow(), Direction::Reply, &syn_ack, 0, ISN + 1));
        for (ahead, step) in [
            (0, Transition::Change(replied.reset())),
            (1, Transition::Keep),
        ] {
            let reset = segment(RST, ISN + 1 + ahead, 0);
            let found = tcp(replied, Direction::Request, &reset, PEER, ISN + 1);
            assert_eq!(found, step, "{ahead}");
        }
    }

    #[test]
    fn a_refused_connection_is_closed_by_the_reset_that_acknowledges_the_syn() {
        let refused = segment(RST | ACK, 0, ISN + 1);
        assert_eq!(
            changed(tcp(new_flow(), Direction::Reply, &refused, 0, ISN + 1)).state(),
            State::Closed
        );
        let foreign = segment(RST | ACK, 0, ISN);
        assert_eq!(
            tcp(new_flow(), Direction::Reply, &foreign, 0, ISN + 1),
            Transition::Keep
        );
        // What a client answers to a challenge ACK, and what it sends when it gives up.
        let challenged = segment(RST, ISN.wrapping_add(0x4000_0000), 0);
        for (reset, closes) in [(challenged, false), (segment(RST, ISN + 1, 0), true)] {
            let step = tcp(new_flow(), Direction::Request, &reset, 0, ISN + 1);
            assert_eq!(matches!(step, Transition::Change(_)), closes, "{reset:?}");
        }
        let without_ack = segment(RST, 0, ISN + 1);
        assert_eq!(
            tcp(new_flow(), Direction::Reply, &without_ack, 0, ISN + 1),
            Transition::Keep
        );
    }

    /// What the SYN of a client that opens its port again leaves pending.
    fn reopening(word: FlowState) -> Numbers {
        let before = Numbers::acknowledged(PEER, ISN);
        let syn = segment(SYN, 8999, 0);
        assert_eq!(
            super::tcp(word, Direction::Request, &syn, &before),
            Transition::Keep
        );
        assert!(!believes_syn(word, Direction::Request, &syn, &before));
        Numbers {
            pending: pending(word, Direction::Request, &syn, &before),
            ..before
        }
    }

    #[test]
    fn a_flow_starts_over_when_the_backend_answers_the_clients_syn() {
        let word = established();
        let [request, reply] = [Direction::Request, Direction::Reply];
        for half in [word.with_fin(request), word.with_fin(reply)] {
            let numbers = reopening(half);
            let syn_ack = segment(SYN | ACK, 77, 9000);
            assert!(believes_syn(half, reply, &syn_ack, &numbers));
            let again = changed(super::tcp(half, reply, &syn_ack, &numbers));
            assert_eq!(again, word, "nor who closed first");
            for other in [
                segment(SYN | ACK, 77, 9001),
                segment(SYN, 77, 9000),
                segment(ACK, 77, ISN),
            ] {
                assert!(!believes_syn(half, reply, &other, &numbers));
                assert_eq!(super::tcp(half, reply, &other, &numbers), Transition::Keep);
            }
            assert!(!believes_syn(half, request, &syn_ack, &numbers));
            let refused = |ack| segment(RST | ACK, PEER - 1, ack);
            for (ack, step) in [
                (9000, Transition::Change(half.reset())),
                (9001, Transition::Keep),
            ] {
                let found = super::tcp(half, reply, &refused(ack), &numbers);
                assert_eq!(found, step, "{ack}");
            }
        }
        // A backend that has forgotten the connection, and a client as well.
        let numbers = reopening(word);
        let syn_ack = segment(SYN | ACK, 77, 9000);
        assert!(believes_syn(word, reply, &syn_ack, &numbers));
        assert_eq!(
            super::tcp(word, reply, &syn_ack, &numbers),
            Transition::Keep
        );
        let spliced = word.splice();
        assert_eq!(reopening(spliced).pending, Pending::NONE);
        assert!(!believes_syn(spliced, reply, &syn_ack, &numbers));
    }

    /// What acknowledges the connection's data would acknowledge it as well.
    #[test]
    fn a_syn_with_a_right_number_is_not_taken_for_a_fin_of_a_doubted_flow() {
        let before = Numbers::acknowledged(PEER, ISN);
        let [request, reply] = [Direction::Request, Direction::Reply];
        let (syn, reset) = (segment(SYN, ISN - 1, 0), segment(RST, ISN + 1, 0));
        for [first, second] in [[syn, reset], [reset, syn]] {
            let (mut word, mut numbers) = (established(), before);
            for segment in [first, second] {
                let next = pending(word, request, &segment, &numbers);
                if let Transition::Change(next) = super::tcp(word, request, &segment, &numbers) {
                    word = next;
                }
                numbers.pending = next;
            }
            assert!(word.is_doubted());
            let ack = segment(ACK, PEER, ISN);
            assert_eq!(super::tcp(word, reply, &ack, &numbers), Transition::Keep);
        }
    }

    #[test]
    fn the_syn_of_a_flow_without_any_other_is_believed() {
        let numbers = Numbers::acknowledged(0, ISN + 1);
        let syn = segment(SYN, 5, 0);
        assert!(believes_syn(new_flow(), Direction::Request, &syn, &numbers));
        assert!(!asks_pending(
            new_flow(),
            Direction::Request,
            &syn,
            &numbers
        ));
        let syn_ack = segment(SYN | ACK, PEER, ISN + 1);
        let replied = changed(super::tcp(new_flow(), Direction::Reply, &syn_ack, &numbers));
        for word in [replied, established(), established().close()] {
            for flags in [SYN, SYN | ACK] {
                let syn = segment(flags, 5, PEER);
                assert!(!believes_syn(word, Direction::Request, &syn, &numbers));
            }
        }
    }

    /// Every order in which two FINs behind data in flight may be acknowledged.
    #[test]
    fn a_fin_behind_data_in_flight_counts_when_it_is_acknowledged() {
        let mut numbers = Numbers::acknowledged(PEER, ISN);
        let mut word = established();
        let mut say = |direction, flags, sequence: u32, acknowledgment: u32| {
            let segment = segment(flags, sequence, acknowledgment);
            if asks_pending(word, direction, &segment, &numbers) {
                numbers.pending = pending(word, direction, &segment, &numbers);
            }
            if let Transition::Change(next) = super::tcp(word, direction, &segment, &numbers) {
                word = next;
            }
            word
        };
        let [request, reply] = [Direction::Request, Direction::Reply];
        let (of_client, of_backend) = (ISN + 100, PEER.wrapping_add(100));
        let word = say(request, FIN | ACK, of_client, PEER);
        assert!(word.is_doubted() && !word.is_half_closed());
        assert!(!say(reply, ACK, PEER, of_client).is_half_closed());
        let word = say(reply, FIN | ACK, of_backend, of_client);
        assert!(word.is_doubted() && !word.is_half_closed());
        let word = say(reply, ACK, of_backend, of_client + 1);
        assert!(
            word.is_doubted() && word.is_half_closed(),
            "the other is open"
        );
        let word = say(request, ACK, of_client + 1, of_backend.wrapping_add(1));
        assert_eq!(word.state(), State::Closed);
        assert!(!word.backend_closed_first());
    }

    #[test]
    fn a_fin_is_repeated_until_it_is_acknowledged_and_stays_one() {
        let early = Numbers::acknowledged(PEER, ISN);
        let fin = segment(FIN | ACK, ISN + 100, PEER);
        let doubted = changed(super::tcp(established(), Direction::Request, &fin, &early));
        let pending = pending(established(), Direction::Request, &fin, &early);
        let late = Numbers {
            pending,
            ..Numbers::acknowledged(PEER, ISN + 100)
        };
        let half = changed(super::tcp(doubted, Direction::Request, &fin, &late));
        assert_eq!(half, established().with_fin(Direction::Request).doubted());
        let ack = segment(ACK, PEER, ISN + 101);
        let confirmed = changed(super::tcp(half, Direction::Reply, &ack, &late));
        assert_eq!(confirmed, half.trusted());
    }

    #[test]
    fn a_blind_fin_is_no_end() {
        let numbers = Numbers::acknowledged(PEER, ISN);
        for (sequence, is_doubted) in [
            (ISN - 1, false),
            (ISN + (1 << 30), false),
            (ISN + (1 << 31), false),
            (ISN + 5, true),
        ] {
            let fin = segment(FIN | ACK, sequence, PEER);
            let step = super::tcp(established(), Direction::Request, &fin, &numbers);
            let word = match step {
                Transition::Change(word) => word,
                _ => established(),
            };
            assert_eq!(word.is_doubted(), is_doubted, "{sequence}");
            assert!(!word.is_half_closed());
            // The backend acknowledges what it has already, and then goes on beyond it.
            let pending = pending(established(), Direction::Request, &fin, &numbers);
            for ack in [ISN, ISN + 4, ISN + 7] {
                let numbers = Numbers { pending, ..numbers };
                let segment = segment(ACK, PEER, ack);
                let step = super::tcp(word, Direction::Reply, &segment, &numbers);
                assert_eq!(step, Transition::Keep, "{ack}");
            }
        }
    }

    #[test]
    fn only_a_syn_with_a_higher_number_opens_the_port_of_a_finished_connection_at_once() {
        let half = established().with_fin(Direction::Request);
        let finished = half.with_fin(Direction::Reply).close();
        let expected: u32 = 10;
        for (sequence, is_late) in [
            (expected.wrapping_sub(20), true),
            (expected - 1, true),
            (expected, false),
            (expected + 9000, false),
        ] {
            let late = |word, idle| is_late_syn(word, sequence, expected, idle);
            assert_eq!(late(finished, 0), is_late, "{sequence}");
            assert_eq!(late(finished, LATE_SYN_TIMEOUT - 1), is_late, "{sequence}");
            assert!(!late(finished, LATE_SYN_TIMEOUT), "the client's second try");
            // A connection that was reset, and one that is not over.
            assert!(!late(established().close(), 0) && !late(half, 0));
        }
    }

    #[test]
    fn a_udp_flow_is_established_by_its_first_reply() {
        let word = FlowState::default().claim(true).publish();
        assert!(word.is_udp());
        assert_eq!(udp(word, Direction::Request), Transition::Keep);
        let established = changed(udp(word, Direction::Reply));
        assert_eq!(established.state(), State::Established);
        assert_eq!(udp(established, Direction::Reply), Transition::Keep);
    }

    #[test]
    fn any_packet_wakes_a_flow_that_is_about_to_expire() {
        let flow = established();
        let data = segment(ACK, ISN + 1, PEER.wrapping_add(1));
        for direction in [Direction::Request, Direction::Reply] {
            let step = tcp(
                flow.expiring(),
                direction,
                &data,
                PEER.wrapping_add(1),
                ISN + 1,
            );
            assert_eq!(step, Transition::Change(flow));
            assert_eq!(
                tcp(flow, direction, &data, PEER.wrapping_add(1), ISN + 1),
                Transition::Keep
            );
        }
        let fin = segment(FIN | ACK, ISN + 1, PEER.wrapping_add(1));
        let step = tcp(
            flow.expiring(),
            Direction::Request,
            &fin,
            PEER.wrapping_add(1),
            ISN + 1,
        );
        assert!(!changed(step).is_expiring() && changed(step).is_half_closed());
        let udp_flow = FlowState::default().claim(true).publish();
        assert_eq!(
            udp(udp_flow.expiring(), Direction::Request),
            Transition::Change(udp_flow)
        );
        assert_eq!(
            changed(udp(udp_flow.expiring(), Direction::Reply)).state(),
            State::Established
        );
        assert!(!changed(udp(udp_flow.expiring(), Direction::Reply)).is_expiring());
    }

    #[test]
    fn a_closed_flow_remembers_whose_end_rests() {
        let fin = segment(FIN | ACK, ISN + 1, PEER.wrapping_add(1));
        let end = |first, second| {
            let half = changed(tcp(established(), first, &fin, ISN + 1, ISN + 1));
            changed(tcp(half, second, &fin, ISN + 1, ISN + 1))
        };
        let backend_first = end(Direction::Reply, Direction::Request);
        assert_eq!(backend_first.state(), State::Closed);
        assert!(backend_first.backend_closed_first());
        let client_first = end(Direction::Request, Direction::Reply);
        assert_eq!(client_first.state(), State::Closed);
        assert!(!client_first.backend_closed_first());
        assert!(!backend_first.claim(false).backend_closed_first());
    }
}
