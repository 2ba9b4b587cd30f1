//! What the numbers of a flow are translated by, as the boxes of a group tell each other: for that the ids of a box do not matter. Pure.

use lb_common::maps::splice::{Binding, DRAINED, Numbers, Splice};
use serde::{Deserialize, Serialize};

use crate::dataplane::splices::FlowNumbers;

/// How far a window is shifted at most: RFC 7323 section 2.3.
const MAX_SHIFT: u8 = 14;

/// What the numbers of a flow are translated by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NumbersRecord {
    /// Its backend has the client's own numbers.
    Bound {
        /// Added to the backend's sequence numbers.
        sequence: u32,
        /// Added to its timestamps.
        time: u32,
        /// How far its windows are shifted.
        scale: u8,
        /// The `BOUND_` flags.
        flags: u8,
    },
    /// Both ends were opened by a process, which has handed them over.
    HandedOver {
        /// What becomes of the client's numbers.
        to_backend: EndNumbers,
        /// What becomes of the backend's.
        to_client: EndNumbers,
        /// The number behind what the process has sent the backend, and what it has received of it.
        carried: [u32; 2],
    },
}

/// What the numbers of one end become for the other: see [`Numbers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndNumbers {
    /// Added to its sequence numbers.
    pub sequence: u32,
    /// Added to its timestamps.
    pub time: u32,
    /// How far its windows are shifted to the left, and to the right after that.
    pub shifts: [u8; 2],
}

impl From<Numbers> for EndNumbers {
    fn from(numbers: Numbers) -> Self {
        let shift = |shift: u16| u8::try_from(shift).unwrap_or(MAX_SHIFT);
        Self {
            sequence: numbers.sequence,
            time: numbers.time,
            shifts: [shift(numbers.scale), shift(numbers.promised)],
        }
    }
}

impl From<EndNumbers> for Numbers {
    fn from(end: EndNumbers) -> Self {
        let [scale, promised] = end.shifts.map(|shift| shift.min(MAX_SHIFT).into());
        Self {
            sequence: end.sequence,
            time: end.time,
            scale,
            promised,
        }
    }
}

impl From<FlowNumbers> for NumbersRecord {
    fn from(numbers: FlowNumbers) -> Self {
        match numbers {
            FlowNumbers::Bound(binding) => Self::Bound {
                sequence: binding.sequence,
                time: binding.time,
                scale: binding.scale,
                flags: binding.flags,
            },
            FlowNumbers::HandedOver(splice) => Self::HandedOver {
                to_backend: splice.to_backend.into(),
                to_client: splice.to_client.into(),
                carried: [splice.sent_end, splice.received],
            },
        }
    }
}

impl From<NumbersRecord> for FlowNumbers {
    fn from(record: NumbersRecord) -> Self {
        match record {
            NumbersRecord::Bound {
                sequence,
                time,
                scale,
                flags,
            } => Self::Bound(Binding {
                sequence,
                time,
                scale,
                flags,
                ..Binding::default()
            }),
            NumbersRecord::HandedOver {
                to_backend,
                to_client,
                carried: [sent_end, received],
            } => Self::HandedOver(Splice {
                to_backend: to_backend.into(),
                to_client: to_client.into(),
                sent_end,
                received,
                state: DRAINED,
                ..Splice::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_on_the_other_box() {
        let numbers = |sequence| Numbers {
            sequence,
            time: u32::MAX,
            scale: 14,
            promised: 7,
        };
        let splice = Splice {
            to_backend: numbers(1),
            to_client: numbers(2),
            sent_end: 3,
            received: 4,
            state: DRAINED,
            ..Splice::default()
        };
        let binding = Binding::bound(0, 5, Some(6), true).answered(7, 8, 9);
        for numbers in [
            FlowNumbers::HandedOver(splice),
            FlowNumbers::Bound(binding.plain()),
        ] {
            let there = FlowNumbers::from(NumbersRecord::from(numbers));
            assert_eq!(there.of(3, 4), numbers.of(3, 4));
        }
    }
}
