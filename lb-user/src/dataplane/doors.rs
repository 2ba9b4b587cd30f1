//! The doors of the data plane: one look-up for network and address of a packet of IPv4, see `lb_common::maps::door`.
//!
//! A door is there only while `NETWORK_IDS` and `ADDRESSES` have what it says: it is closed before they change, and opened
//! when the change is whole. A packet that finds none goes by those two.

use std::{collections::HashMap, path::Path, sync::atomic::Ordering};

use anyhow::Result;
use lb_common::maps::door::{
    self, DOOR_WORDS, DOORS, Door, DoorKey, DoorLine, IFINDEX, OpenDoor, VERSION,
};

use super::mapped::MappedArray;

/// Words of a door behind its version.
type Words = [u32; DOOR_WORDS as usize - 1];

/// The mapped doors.
pub struct Doors {
    lines: MappedArray<DoorLine>,
}

/// The place of a door: its line, and its first word there.
#[derive(Clone, Copy)]
struct Place {
    line: u32,
    at: u32,
}

impl Doors {
    /// Maps the pinned map in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing or the kernel refuses the mapping.
    pub fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            lines: MappedArray::open(folder, "DOORS")?,
        })
    }

    /// Closes the doors whose key, and id of the network behind them, are such.
    pub fn close(&self, is_such: impl Fn(&DoorKey, u16) -> bool) {
        for place in self.places() {
            if let Some(door) = self.door(place)
                && is_such(&door.key, door.network)
            {
                self.write(place, Words::default());
            }
        }
    }

    /// Closes all doors but these, and opens those that are not there, as far as their lines have room.
    pub fn set(&self, wanted: &HashMap<DoorKey, Door>) {
        let is_right = |place: Place, found: &OpenDoor| {
            let is_whole = self.load(place, VERSION) & 1 == 0;
            let door = wanted.get(&found.key);
            is_whole && door.is_some_and(|door| door.words(&found.key) == self.words(place))
        };
        let mut missing: HashMap<&DoorKey, &Door> = wanted.iter().collect();
        for place in self.places() {
            match self.door(place) {
                None => {}
                Some(found) if is_right(place, &found) => drop(missing.remove(&found.key)),
                Some(_) => self.write(place, Words::default()),
            }
        }
        for (key, door) in missing {
            let mut of_line = ways(key.line());
            if let Some(free) = of_line.find(|place| self.door(*place).is_none()) {
                self.write(free, door.words(key));
            }
        }
    }

    /// The doors that there are, with the ids of the networks behind them.
    pub fn keys(&self) -> impl Iterator<Item = (DoorKey, u16)> {
        let doors = self.places().filter_map(|place| self.door(place));
        doors.map(|door| (door.key, door.network))
    }

    /// The door at a place; none if that is closed.
    fn door(&self, place: Place) -> Option<OpenDoor> {
        if self.load(place, IFINDEX) == 0 {
            return None;
        }
        door::open_door(self.words(place))
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        (0..self.lines.len()).flat_map(ways)
    }

    fn words(&self, place: Place) -> Words {
        let mut words = Words::default();
        for (word, at) in words.iter_mut().zip(VERSION + 1..) {
            *word = self.load(place, at);
        }
        words
    }

    /// Writes a door between two versions, of which the first is odd.
    fn write(&self, place: Place, words: Words) {
        let version = self.load(place, VERSION) | 1;
        self.store(place, VERSION, version);
        for (word, at) in words.into_iter().zip(VERSION + 1..) {
            self.store(place, at, word);
        }
        self.store(place, VERSION, version.wrapping_add(1));
    }

    fn load(&self, place: Place, at: u32) -> u32 {
        let word = self.lines.word(place.line, (place.at + at) as usize);
        word.map_or(0, |word| word.load(Ordering::SeqCst))
    }

    fn store(&self, place: Place, at: u32, value: u32) {
        if let Some(word) = self.lines.word(place.line, (place.at + at) as usize) {
            word.store(value, Ordering::SeqCst);
        }
    }
}

/// The places of a line.
fn ways(line: u32) -> impl Iterator<Item = Place> {
    (0..DOORS).map(move |way| Place {
        line,
        at: way * DOOR_WORDS,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use lb_common::{
        addr::Be32,
        maps::{door::DOOR_LINES, network::Address},
    };

    use super::*;

    fn doors() -> Doors {
        Doors {
            lines: MappedArray::anonymous(DOOR_LINES),
        }
    }

    fn key(vlan: u16, host: u32) -> DoorKey {
        DoorKey {
            ifindex: 3,
            vlan,
            destination: Be32::new(10 << 24 | host),
        }
    }

    fn door(network: u16, base: u32) -> Door {
        let address = Address {
            kind: 1,
            base,
            ..Address::default()
        };
        Door { network, address }
    }

    fn find(doors: &Doors, key: &DoorKey) -> Option<Door> {
        let line = key.line();
        let load = |at| doors.load(Place { line, at: 0 }, at);
        let place = door::find(load, key)?;
        Some(Door {
            network: place.network,
            address: door::address(load, &place)?,
        })
    }

    #[test]
    fn doors_are_as_wanted_and_one_that_changes_is_closed_in_between() {
        let doors = doors();
        let mut wanted: HashMap<_, _> = (1..=500)
            .map(|host| (key(7, host), door(2, host)))
            .collect();
        doors.set(&wanted);
        let of_first: HashSet<_> = doors.keys().collect();
        assert_eq!(of_first, wanted.keys().map(|key| (*key, 2)).collect());
        for (key, door) in &wanted {
            assert_eq!(find(&doors, key), Some(*door));
        }

        doors.close(|key, network| network == 2 && key.destination == Be32::new(10 << 24 | 5));
        assert_eq!(find(&doors, &key(7, 5)), None);
        assert_eq!(find(&doors, &key(7, 6)), Some(door(2, 6)));

        wanted.remove(&key(7, 6));
        wanted.insert(key(7, 7), door(3, 9));
        wanted.insert(key(0, 7), door(4, 10));
        doors.set(&wanted);
        assert_eq!(find(&doors, &key(7, 6)), None);
        assert_eq!(doors.keys().count(), wanted.len());
        for (key, door) in &wanted {
            assert_eq!(find(&doors, key), Some(*door));
        }
        doors.set(&HashMap::new());
        assert_eq!(doors.keys().count(), 0);
    }

    #[test]
    fn what_a_process_left_half_written_is_written_anew() {
        let doors = doors();
        let wanted = HashMap::from([(key(7, 1), door(2, 5))]);
        doors.set(&wanted);
        let place = doors
            .places()
            .find(|place| doors.load(*place, 1) != 0)
            .unwrap();
        doors.store(place, VERSION, 7);
        assert_eq!(find(&doors, &key(7, 1)), None);
        doors.set(&wanted);
        assert_eq!(find(&doors, &key(7, 1)), Some(door(2, 5)));
    }

    #[test]
    fn a_full_line_leaves_a_door_out() {
        let doors = doors();
        let line = key(7, 1).line();
        let same: Vec<DoorKey> = (1..)
            .map(|host| key(7, host))
            .filter(|key| key.line() == line)
            .take(3)
            .collect();
        let wanted: HashMap<_, _> = same.iter().map(|key| (*key, door(2, 1))).collect();
        doors.set(&wanted);
        let found = same.iter().filter(|key| find(&doors, key).is_some());
        assert_eq!(found.count(), 2);
        let two: HashMap<_, _> = same[1..].iter().map(|key| (*key, door(2, 1))).collect();
        doors.set(&two);
        assert!(same[1..].iter().all(|key| find(&doors, key).is_some()));
    }
}
