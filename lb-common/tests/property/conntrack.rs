//! conntrack: blind segments of a client's tuple end no connection.

use lb_common::{
    conntrack::{
        self, Direction, FlowState, Numbers, Segment, State, Transition, asks_pending, pending,
    },
    wire::header::{ACK, FIN, RST, SYN},
};

use crate::{every, spread::Spread};

/// A flow as the data plane keeps it.
struct Known {
    word: FlowState,
    numbers: Numbers,
}

impl Known {
    /// Established, with the numbers of an idle connection.
    fn established(client: u32, backend: u32) -> Self {
        let mut known = Self {
            word: FlowState::default().claim(false).publish(),
            numbers: Numbers::acknowledged(backend, client),
        };
        known.judge(Direction::Reply, &segment(SYN | ACK, backend, client, 0));
        known.judge(Direction::Request, &segment(ACK, client, backend, 0));
        assert_eq!(known.word.state(), State::Established);
        known
    }

    fn judge(&mut self, direction: Direction, segment: &Segment) {
        let Self { word, numbers } = *self;
        if asks_pending(word, direction, segment, &numbers) {
            self.numbers.pending = pending(word, direction, segment, &numbers);
        }
        if let Transition::Change(next) = conntrack::tcp(word, direction, segment, &numbers) {
            self.word = next;
        }
    }
}

const fn segment(flags: u8, sequence: u32, acknowledgment: u32, payload: u16) -> Segment {
    Segment {
        flags,
        sequence,
        acknowledgment,
        payload,
    }
}

/// A segment of any kind, with a number that is often nearly right.
fn blind(spread: &mut Spread, expected: u32) -> Segment {
    let kinds = [
        SYN,
        RST,
        RST | ACK,
        FIN | ACK,
        FIN,
        ACK,
        SYN | ACK,
        SYN | FIN,
    ];
    let flags = kinds[spread.below(kinds.len())];
    let any = u32::from_ne_bytes(spread.bytes());
    let sequence = match spread.below(4) {
        0 => any,
        1 => expected.wrapping_add(any % (1 << 30)),
        _ => expected.wrapping_sub(4).wrapping_add(any % 9),
    };
    let payload = [0, 0, 1, 3, 1460][spread.below(5)];
    segment(flags, sequence, u32::from_ne_bytes(spread.bytes()), payload)
}

/// Whether the backend would take the segment's end of the connection, and not challenge it.
const fn is_right(segment: &Segment, expected: u32) -> bool {
    let known = expected.wrapping_sub(segment.sequence);
    segment.flags & RST != 0 && known == 0
        || segment.flags & FIN != 0 && known <= segment.payload as u32
}

#[test]
fn blind_segments_end_no_connection() {
    let mut doubted = 0_u32;
    every(0x5961, |spread| {
        let [client, backend] = [(); 2].map(|()| u32::from_ne_bytes(spread.bytes()));
        let mut known = Known::established(client, backend);
        let established = known.word;
        for _ in 0..8 {
            let segment = blind(spread, client);
            if is_right(&segment, client) {
                continue;
            }
            known.judge(Direction::Request, &segment);
            // The backend answers with what it has.
            known.judge(Direction::Reply, &self::segment(ACK, backend, client, 0));
            assert_eq!(known.word.trusted(), established, "{segment:?}");
        }
        doubted += u32::from(known.word.is_doubted());
        known.judge(Direction::Request, &segment(RST, client, 0, 0));
        assert_eq!(known.word.state(), State::Closed);
    });
    assert!(doubted > 1000, "{doubted} were doubted");
}
