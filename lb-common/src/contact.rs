//! The ends that the sockets of a cell have spoken to lately, so that their segments are known from
//! those of strangers without a look at the sockets.
//!
//! The outer end of the cell notes the tuple of what leaves, and the NIC looks for that of what comes in. A note
//! is one word of a table without collision chains: of two tuples in one place the later one is known, and the
//! other a stranger, which gets in as well, but at a rate. Nothing is to be removed, and nothing that comes in
//! makes a note, so no flood takes the place of another's. A tuple that was not noted is taken for one
//! that was once in 2^32: the hash is keyed, so no client can look for it.

use crate::{
    addr::{Be16, Be32, Be128},
    maps::addr6::HashKey,
};

/// Places in the table: a power of two.
pub const PLACES: u32 = 1 << 16;

/// Bits of coarse time below the unit of a note: it is about a second, so that a busy connection writes one word
/// a second.
pub(crate) const UNIT_SHIFT: u32 = 10;
/// The bits of a note that hold its time. They wrap in nine hours.
const TIME: u32 = 0x7fff;
/// The bit of a note that is set in every one.
const NOTED: u32 = 0x8000;
/// Units for which an end is known: about a minute. A socket acknowledges what it gets, so one that is in use is
/// noted far more often.
const KNOWN_FOR: u32 = 60;

/// Both ends of a connection of a cell.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The address of ours, or its label.
    pub us: Be32,
    /// The other end's address, or its label.
    pub peer: Be32,
    /// Our port.
    pub port: Be16,
    /// The other end's.
    pub peer_port: Be16,
    /// Id of the network.
    pub network: u16,
}

/// The place of a connection in the table, and what stands there in the upper half of its notes.
#[derive(Clone, Copy, Debug)]
pub struct Contact(u32);

impl Contact {
    /// Of the connection between these ends.
    #[inline(always)]
    pub const fn of(key: &HashKey, ends: Ends) -> Self {
        let ports = (ends.port.raw() as u32) << 16 | ends.peer_port.raw() as u32;
        let words = [ends.us.raw(), ends.peer.raw(), ports, ends.network as u32];
        Self(key.client(Be128::from_raw(words)).raw())
    }

    /// The index of its place, below [`PLACES`].
    #[inline(always)]
    pub const fn place(self) -> u32 {
        self.0 & (PLACES - 1)
    }

    /// The note that the cell has spoken to it `now`, in coarse time.
    #[inline(always)]
    pub const fn note(self, now: u32) -> u32 {
        self.0 & !(PLACES - 1) | NOTED | now >> UNIT_SHIFT & TIME
    }

    /// Whether `note`, which stands at its place, is of this contact and not old.
    #[inline(always)]
    pub const fn is_known(self, note: u32, now: u32) -> bool {
        self.is_noted_within(note, now, KNOWN_FOR)
    }

    /// Whether `note`, which stands at its place, is one of it that is younger than so many units.
    #[inline(always)]
    pub(crate) const fn is_noted_within(self, note: u32, now: u32, units: u32) -> bool {
        let wanted = self.note(now);
        let age = wanted.wrapping_sub(note) & TIME;
        (wanted ^ note) & !TIME == 0 && age < units
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: HashKey = HashKey([
        0x243f_6a88_85a3_08d3,
        0x1319_8a2e_0370_7344,
        0xa409_3822_299f_31d0,
        0x082e_fa98_ec4e_6c89,
        0x4528_21e6_38d0_1377,
    ]);
    const SECOND: u32 = 1 << UNIT_SHIFT;

    fn ends(peer: u32) -> Ends {
        Ends {
            us: Be32::new(0xc0a8_cb6e),
            peer: Be32::new(peer),
            port: Be16::new(6443),
            peer_port: Be16::new(40_000),
            network: 2,
        }
    }

    #[test]
    fn an_end_is_known_for_a_minute() {
        let contact = Contact::of(&KEY, ends(0xc0a8_cb32));
        for then in [0, 5, 77 * SECOND, u32::MAX - 3, 0x8000 * SECOND - 1] {
            let note = contact.note(then);
            for (later, is_known) in [
                (0, true),
                (58 * SECOND, true),
                (61 * SECOND, false),
                (3600 * SECOND, false),
            ] {
                let now = then.wrapping_add(later);
                assert_eq!(contact.is_known(note, now), is_known, "{then} + {later}");
            }
        }
        assert!(!contact.is_known(0, 0), "nothing was noted");
    }

    #[test]
    fn every_part_of_a_tuple_counts() {
        let known = Contact::of(&KEY, ends(1));
        let note = known.note(0);
        let one = ends(1);
        for other in [
            ends(2),
            Ends {
                us: one.peer,
                peer: one.us,
                ..one
            },
            Ends {
                port: one.peer_port,
                peer_port: one.port,
                ..one
            },
            Ends {
                port: Be16::new(6444),
                ..one
            },
            Ends {
                peer_port: Be16::new(40_001),
                ..one
            },
            Ends { network: 3, ..one },
        ] {
            let other = Contact::of(&KEY, other);
            assert!(!other.is_known(note, 0), "{other:?}");
        }
    }

    /// Of random tuples none is known by the note of another, though many have one in their place.
    #[test]
    fn a_note_is_of_one_tuple_alone() {
        let mut table = vec![0; PLACES as usize];
        for peer in 0..PLACES {
            let contact = Contact::of(&KEY, ends(peer));
            table[contact.place() as usize] = contact.note(7);
        }
        let taken = table.iter().filter(|note| **note != 0).count();
        assert!(
            taken > 30_000,
            "{taken} of {PLACES} places: the hash spreads"
        );
        for peer in PLACES..3 * PLACES {
            let contact = Contact::of(&KEY, ends(peer));
            assert!(
                !contact.is_known(table[contact.place() as usize], 7),
                "{peer}"
            );
        }
    }
}
