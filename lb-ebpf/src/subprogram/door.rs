//! A door that was found for a packet.

use lb_common::maps::door::{DOOR_LINES, DOOR_WORDS, DoorPlace};

/// Where a door is: from below its version, line, place in that, and network; the highest bit is set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundDoor(u64);

const LINE: u32 = 32;
const WAY: u32 = LINE + DOOR_LINES.trailing_zeros();
const NETWORK: u32 = WAY + 1;
const FOUND: u64 = 1 << 63;
const _: () = assert!(NETWORK + 16 < 64);

impl FoundDoor {
    pub(crate) const NONE: Self = Self(0);

    #[inline(always)]
    pub(crate) const fn new(line: u32, place: DoorPlace) -> Self {
        let way = (place.at / DOOR_WORDS) as u64;
        let found = FOUND | (place.network as u64) << NETWORK | way << WAY | (line as u64) << LINE;
        Self(found | place.version as u64)
    }

    #[inline(always)]
    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn from_raw(number: u64) -> Self {
        Self(number)
    }

    /// Id of the network that it leads to.
    #[inline(always)]
    pub(crate) fn network(self) -> Option<u16> {
        (self != Self::NONE).then_some((self.0 >> NETWORK) as u16)
    }

    /// Its line, and where it is there.
    #[inline(always)]
    pub(crate) fn place(self) -> Option<(u32, DoorPlace)> {
        let line = (self.0 >> LINE) as u32 & (DOOR_LINES - 1);
        let place = DoorPlace {
            network: self.network()?,
            at: ((self.0 >> WAY) as u32 & 1) * DOOR_WORDS,
            version: self.0 as u32,
        };
        Some((line, place))
    }
}
