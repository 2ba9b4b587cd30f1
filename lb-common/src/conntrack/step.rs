//! What a packet means for its flow.

use super::word::{BACKEND_FIRST, FIN_REPLY, FIN_REQUEST, State, Word};
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

    #[inline(always)]
    const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// What a packet means for its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Translate; the word stays.
    Keep,
    /// Translate, and change the word.
    Change(Word),
    /// A late packet of an earlier flow on this id: do not translate.
    Refuse,
}

/// Most data that a SYN may carry and a SYN-ACK acknowledge (RFC 7413), in bytes.
const SYN_DATA: u32 = 1460;
/// Most data that a backend sends behind its SYN-ACK before the client's first acknowledgment
/// (RFC 7413). Whoever has not seen the SYN-ACK must guess its number this closely.
const FIRST_DATA: u32 = 1 << 16;
/// How far beyond the peer's last acknowledgment a RST may be and still end the flow, in bytes: the
/// largest window there is (RFC 7323 section 2.3), because an abort is sent behind all data in
/// flight. Wider than RFC 5961 section 3.2 because nobody is challenged here: a wrong guess frees
/// an id, which goes on translating until it is claimed.
const RST_WINDOW: u32 = 1 << 30;
/// How long after a flow's last packet a SYN of it may still come, in units of `Flow::last_seen`: half of the
/// second after which a client repeats one (RFC 6298 section 2.1).
pub const LATE_SYN_TIMEOUT: u32 = 500_000_000 >> TIME_SHIFT;

/// Judges a TCP segment of a live or closed flow. `ack_request` and `ack_reply` are the entry's.
#[inline(always)]
pub const fn tcp(
    word: Word,
    direction: Direction,
    segment: &Segment,
    ack_request: u32,
    ack_reply: u32,
) -> Step {
    let step = judge(word.woken(), direction, segment, ack_request, ack_reply);
    wake(word, step)
}

/// Whether a packet with these TCP flags (UDP has none) changes nothing about a flow's word in either direction,
/// as nearly every one: an answer that [`tcp`] and [`udp`] would give more slowly.
#[inline(always)]
pub const fn stays(word: Word, flags: u8) -> bool {
    flags & (SYN | FIN | RST) == 0
        && matches!(word.state(), State::Established)
        && !word.is_expiring()
        && !word.has_flags(FIN_REQUEST | FIN_REPLY)
}

/// Any packet that is translated wakes a flow that was about to expire.
#[inline(always)]
const fn wake(word: Word, step: Step) -> Step {
    match step {
        Step::Keep if word.is_expiring() => Step::Change(word.woken()),
        step => step,
    }
}

#[inline(always)]
const fn judge(
    word: Word,
    direction: Direction,
    segment: &Segment,
    ack_request: u32,
    ack_reply: u32,
) -> Step {
    let state = word.state();
    if matches!(state, State::Closed | State::Ended | State::Local) {
        return Step::Keep;
    }
    let peer_expects = match direction {
        Direction::Request => ack_reply,
        Direction::Reply => ack_request,
    };
    if segment.has(RST) {
        let valid = match (state, direction) {
            // RFC 9293 section 3.5.2: in SYN-SENT a reset is acceptable if it acknowledges the SYN.
            (State::New, Direction::Reply) => {
                segment.has(ACK) && segment.acknowledgment.wrapping_sub(ack_reply) <= SYN_DATA
            }
            // Not the answer to a challenge ACK of the backend's TIME_WAIT, whose numbers are those of
            // another connection: the same SYN comes again and finds the backend ready.
            (State::New, Direction::Request) => {
                segment.sequence.wrapping_sub(ack_reply.wrapping_sub(1)) <= 1 + SYN_DATA
            }
            // Or it refuses the SYN of a client that opens its port again.
            (_, Direction::Reply) if segment.has(ACK) && segment.acknowledgment == ack_reply => {
                true
            }
            _ => segment.sequence.wrapping_sub(peer_expects) < RST_WINDOW,
        };
        return if valid {
            Step::Change(word.close())
        } else {
            Step::Keep
        };
    }
    // A backend with a splice has never seen the client's SYN: it challenges this one, and the client
    // resets the connection that it does not know.
    let begins = segment.opens() && matches!(direction, Direction::Request) && !word.is_spliced();
    if begins && word.has_any_flag(FIN_REQUEST | FIN_REPLY) {
        // The client opens its port again before both ends of the last connection were seen.
        return Step::Change(word.without_flags(FIN_REQUEST | FIN_REPLY | BACKEND_FIRST));
    }
    match (state, direction) {
        (State::New, Direction::Reply) => {
            if segment.has(SYN) {
                let expected =
                    segment.has(ACK) && segment.acknowledgment.wrapping_sub(ack_reply) <= SYN_DATA;
                if expected {
                    Step::Change(word.with_state(State::Replied))
                } else {
                    Step::Refuse
                }
            } else if segment.payload == 0 && !segment.has(FIN) {
                // A challenge ACK of the backend's TIME_WAIT: the client must see and reset it.
                Step::Keep
            } else {
                Step::Refuse
            }
        }
        (State::Replied, Direction::Request)
            if segment.has(ACK)
                && !segment.has(SYN)
                && segment.acknowledgment.wrapping_sub(ack_request) <= FIRST_DATA =>
        {
            let established = word.with_state(State::Established);
            closing(word, established, direction, segment)
        }
        (State::Replied | State::Established, _) => closing(word, word, direction, segment),
        _ => Step::Keep,
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
pub const fn is_late_syn(word: Word, sequence: u32, ack_reply: u32, idle: u32) -> bool {
    let is_finished =
        matches!(word.state(), State::Closed) && word.has_flags(FIN_REQUEST | FIN_REPLY);
    let is_before = (sequence.wrapping_sub(ack_reply) as i32) < 0;
    is_finished && is_before && idle < LATE_SYN_TIMEOUT
}

/// Applies a FIN to `next`, which is `word` or follows from it; both FINs close.
#[inline(always)]
const fn closing(word: Word, next: Word, direction: Direction, segment: &Segment) -> Step {
    let mut next = next;
    if segment.has(FIN) {
        next = next.with_flags(match direction {
            Direction::Request => FIN_REQUEST,
            Direction::Reply if word.has_any_flag(FIN_REQUEST) => FIN_REPLY,
            Direction::Reply => FIN_REPLY | BACKEND_FIRST,
        });
    }
    if next.has_flags(FIN_REQUEST | FIN_REPLY) {
        next = next.close();
    }
    if next.raw() == word.raw() {
        Step::Keep
    } else {
        Step::Change(next)
    }
}

/// Judges a UDP datagram of a live flow.
#[inline(always)]
pub const fn udp(word: Word, direction: Direction) -> Step {
    let awake = word.woken();
    let step = match (awake.state(), direction) {
        (State::New, Direction::Reply) => Step::Change(awake.with_state(State::Established)),
        _ => Step::Keep,
    };
    wake(word, step)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn new_flow() -> Word {
        Word::default().claim(false).publish()
    }

    fn changed(step: Step) -> Word {
        match step {
            Step::Change(word) => word,
            other => panic!("expected a change, got {other:?}"),
        }
    }

    /// NEW -> REPLIED -> ESTABLISHED with the numbers above.
    fn established() -> Word {
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
            Step::Keep
        );
        let syn = segment(SYN, ISN, 0);
        assert_eq!(
            tcp(replied, Direction::Request, &syn, 0, ISN + 1),
            Step::Keep
        );
    }

    /// Whatever the word, the flags and the numbers are.
    #[test]
    fn what_stays_is_kept() {
        let (mut staying, mut kept) = (0, 0);
        for word in (0..1 << 16).map(Word::from_raw) {
            let mut look = |step| {
                kept += u32::from(step == Step::Keep);
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
            Step::Refuse
        );
        let early_syn_ack = segment(SYN | ACK, PEER, ISN);
        assert_eq!(
            tcp(word, Direction::Reply, &early_syn_ack, 0, ISN + 1),
            Step::Refuse
        );
        let late_data = Segment {
            payload: 1,
            ..segment(ACK, PEER, ISN)
        };
        assert_eq!(
            tcp(word, Direction::Reply, &late_data, 0, ISN + 1),
            Step::Refuse
        );
        let late_fin = segment(FIN | ACK, PEER, ISN);
        assert_eq!(
            tcp(word, Direction::Reply, &late_fin, 0, ISN + 1),
            Step::Refuse
        );
        let challenge = segment(ACK, PEER, ISN - 500);
        assert_eq!(
            tcp(word, Direction::Reply, &challenge, 0, ISN + 1),
            Step::Keep
        );
    }

    #[test]
    fn a_syn_ack_must_acknowledge_the_syn_and_may_acknowledge_its_data() {
        let without_ack = segment(SYN, PEER, ISN + 1);
        assert_eq!(
            tcp(new_flow(), Direction::Reply, &without_ack, 0, ISN + 1),
            Step::Refuse
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
            Step::Keep
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
            Step::Keep
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
                Step::Keep
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
                    Step::Keep,
                    "{direction:?} {flags:#x}"
                );
            }
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
        for [first, second] in orders {
            let half = changed(tcp(established(), first.0, &first.1, 0, 0));
            assert_eq!(half.state(), State::Established);
            assert_eq!(
                tcp(half, first.0, &first.1, 0, 0),
                Step::Keep,
                "a repeated FIN"
            );
            let closed = changed(tcp(half, second.0, &second.1, 0, 0));
            assert_eq!(closed.state(), State::Closed);
            assert!(closed.claimable() && closed.translates());
        }
    }

    #[test]
    fn a_reset_closes_only_where_its_sequence_number_fits() {
        let word = established();
        let (ack_request, ack_reply) = (PEER.wrapping_add(1), ISN + 1);
        let fits = segment(RST, ack_reply + 100, 0);
        assert_eq!(
            changed(tcp(word, Direction::Request, &fits, ack_request, ack_reply)).state(),
            State::Closed
        );
        for sequence in [ack_reply - 1, ack_reply + 0x4000_0000] {
            let blind = segment(RST, sequence, 0);
            assert_eq!(
                tcp(word, Direction::Request, &blind, ack_request, ack_reply),
                Step::Keep
            );
        }
        let over_the_wrap = segment(RST, PEER.wrapping_add(30), 0);
        assert_eq!(
            changed(tcp(
                word,
                Direction::Reply,
                &over_the_wrap,
                ack_request,
                ack_reply
            ))
            .state(),
            State::Closed
        );
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
            Step::Keep
        );
        // What a client answers to a challenge ACK, and what it sends when it gives up.
        let challenged = segment(RST, ISN.wrapping_add(0x4000_0000), 0);
        for (reset, closes) in [(challenged, false), (segment(RST, ISN + 1, 0), true)] {
            let step = tcp(new_flow(), Direction::Request, &reset, 0, ISN + 1);
            assert_eq!(matches!(step, Step::Change(_)), closes, "{reset:?}");
        }
        let without_ack = segment(RST, 0, ISN + 1);
        assert_eq!(
            tcp(new_flow(), Direction::Reply, &without_ack, 0, ISN + 1),
            Step::Keep
        );
    }

    #[test]
    fn a_new_syn_on_a_half_closed_flow_starts_over() {
        let fin = segment(FIN | ACK, ISN + 1, PEER.wrapping_add(1));
        let half = changed(tcp(established(), Direction::Request, &fin, 0, 0));
        let syn = segment(SYN, 9000, 0);
        let backend_half = changed(tcp(established(), Direction::Reply, &fin, 0, 0));
        let started_over = tcp(backend_half, Direction::Request, &syn, 0, 0);
        assert_eq!(changed(started_over), established(), "nor who closed first");
        let again = changed(tcp(half, Direction::Request, &syn, 0, 0));
        assert_eq!(again, established());
        assert_eq!(
            tcp(half, Direction::Reply, &syn, 0, 0),
            Step::Keep,
            "a backend opens nothing"
        );
        let refused = segment(RST | ACK, 0, 9001);
        for (ack_reply, step) in [(9001, Step::Change(again.close())), (9002, Step::Keep)] {
            assert_eq!(tcp(again, Direction::Reply, &refused, 1, ack_reply), step);
        }
        let fin_reply = segment(FIN | ACK, PEER, 9001);
        let open = changed(tcp(again, Direction::Reply, &fin_reply, 0, 0));
        assert_eq!(
            open.state(),
            State::Established,
            "the old FIN does not count"
        );
    }

    #[test]
    fn only_a_syn_with_a_higher_number_opens_the_port_of_a_finished_connection_at_once() {
        let fin = segment(FIN | ACK, ISN + 1, PEER.wrapping_add(1));
        let half = changed(tcp(established(), Direction::Request, &fin, 0, 0));
        let finished = changed(tcp(half, Direction::Reply, &fin, 0, 0));
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
        let word = Word::default().claim(true).publish();
        assert!(word.is_udp());
        assert_eq!(udp(word, Direction::Request), Step::Keep);
        let established = changed(udp(word, Direction::Reply));
        assert_eq!(established.state(), State::Established);
        assert_eq!(udp(established, Direction::Reply), Step::Keep);
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
            assert_eq!(step, Step::Change(flow));
            assert_eq!(
                tcp(flow, direction, &data, PEER.wrapping_add(1), ISN + 1),
                Step::Keep
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
        let udp_flow = Word::default().claim(true).publish();
        assert_eq!(
            udp(udp_flow.expiring(), Direction::Request),
            Step::Change(udp_flow)
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
            let step = tcp(established(), first, &fin, PEER.wrapping_add(1), ISN + 1);
            let half = changed(step);
            changed(tcp(half, second, &fin, PEER.wrapping_add(1), ISN + 1))
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
