//! One look-up for a packet of IPv4: its interface, VLAN and destination say the network, and what the address is there.
//!
//! A line has two doors. What finds none goes by `NETWORK_IDS` and `ADDRESSES`, which say the same and are complete: a door is
//! there while both have what it says, and for a while it may be missing. Userspace alone writes them, beside the data
//! plane, which takes none that is just being written.

use crate::{addr::Be32, maps::network::Address};

/// How many lines there are: with as many doors as there may be addresses, one of 60 finds its line full.
pub const DOOR_LINES: u32 = 8192;
/// The highest bits of a number name a line.
const LINE_SHIFT: u32 = 64 - DOOR_LINES.trailing_zeros();
/// Words of a door.
pub const DOOR_WORDS: u32 = 8;
/// Doors of a line.
pub const DOORS: u32 = 2;
/// Words of a line: 64 bytes, one cache line.
pub const LINE_WORDS: u32 = DOORS * DOOR_WORDS;
/// A line, in the map. Words of a door, in host order but where said: its version, odd while it is written;
/// interface, 0 for none; destination, network order; VLAN, and above it the network's id; and of the address its kind, its
/// base, and its first port with the number of ports above it. The last is zero.
pub type DoorLine = [u32; LINE_WORDS as usize];

/// Place of the version in a door.
pub const VERSION: u32 = 0;
/// Place of the interface; 0 there is no door.
pub const IFINDEX: u32 = 1;
const DESTINATION: u32 = 2;
const VLAN_NETWORK: u32 = 3;
const KIND: u32 = 4;
const BASE: u32 = 5;
const PORTS: u32 = 6;

/// What leads to a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DoorKey {
    /// Interface of the frame, not 0.
    pub ifindex: u32,
    /// 802.1Q VLAN id, 0 for an untagged frame.
    pub vlan: u16,
    /// Destination of the packet.
    pub destination: Be32,
}

/// What is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Door {
    /// Id of the network.
    pub network: u16,
    /// What the destination is there.
    pub address: Address,
}

impl DoorKey {
    /// The line that may have its door. Addresses that follow each other have lines far from each other.
    #[inline(always)]
    pub const fn line(&self) -> u32 {
        let port = self.ifindex ^ (self.vlan as u32) << 20;
        let of_port = (port as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (self.destination.raw() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed.wrapping_add(of_port) >> LINE_SHIFT) as u32
    }
}

impl Door {
    /// The words of a door behind its version.
    pub const fn words(&self, key: &DoorKey) -> [u32; DOOR_WORDS as usize - 1] {
        let Address {
            kind,
            base,
            first_port,
            count,
        } = self.address;
        [
            key.ifindex,
            key.destination.raw(),
            key.vlan as u32 | (self.network as u32) << 16,
            kind,
            base,
            first_port as u32 | (count as u32) << 16,
            0,
        ]
    }
}

/// Where a door is.
#[derive(Clone, Copy)]
pub struct DoorPlace {
    /// Id of the network that it leads to.
    pub network: u16,
    /// Its first word in the line.
    pub at: u32,
    /// The version that was found.
    pub version: u32,
}

/// The door in a line that `load` reads a word of, by its place; none while it is being written.
#[inline(always)]
pub fn find(load: impl Fn(u32) -> u32, key: &DoorKey) -> Option<DoorPlace> {
    for at in [0, DOOR_WORDS] {
        let version = load(at + VERSION);
        let networks = load(at + VLAN_NETWORK);
        let is_key = load(at + IFINDEX) == key.ifindex
            && load(at + DESTINATION) == key.destination.raw()
            && networks & 0xffff == u32::from(key.vlan);
        if is_key {
            let is_whole = version & 1 == 0 && load(at + VERSION) == version;
            return is_whole.then_some(DoorPlace {
                network: (networks >> 16) as u16,
                at,
                version,
            });
        }
    }
    None
}

/// What the address is that this door was found for; none if it has been written since.
#[inline(always)]
pub fn address(load: impl Fn(u32) -> u32, door: &DoorPlace) -> Option<Address> {
    let ports = load(door.at + PORTS);
    let address = Address {
        kind: load(door.at + KIND),
        base: load(door.at + BASE),
        first_port: (ports & 0xffff) as u16,
        count: (ports >> 16) as u16,
    };
    (load(door.at + VERSION) == door.version).then_some(address)
}

/// A door that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDoor {
    /// What leads to it.
    pub key: DoorKey,
    /// Id of the network behind it.
    pub network: u16,
}

/// A door by its words behind the version; none of one that is closed.
pub const fn open_door(words: [u32; DOOR_WORDS as usize - 1]) -> Option<OpenDoor> {
    let [ifindex, destination, networks, ..] = words;
    if ifindex == 0 {
        return None;
    }
    Some(OpenDoor {
        key: DoorKey {
            ifindex,
            vlan: (networks & 0xffff) as u16,
            destination: Be32::from_raw(destination),
        },
        network: (networks >> 16) as u16,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        sync::atomic::{AtomicU32, Ordering::SeqCst},
        thread,
    };

    use super::*;

    const KEY: DoorKey = DoorKey {
        ifindex: 7,
        vlan: 203,
        destination: Be32::new(0xc0a8_cb6e),
    };

    fn door(seed: u32) -> Door {
        let short = u16::try_from(seed & 0xffff).unwrap();
        Door {
            network: short,
            address: Address {
                kind: seed,
                base: seed,
                first_port: short,
                count: short,
            },
        }
    }

    fn line(doors: [Option<(DoorKey, Door)>; 2]) -> DoorLine {
        let mut line = DoorLine::default();
        for (words, door) in line.chunks_mut(8).zip(doors) {
            if let Some((key, door)) = door {
                words[1..].copy_from_slice(&door.words(&key));
            }
        }
        line
    }

    fn find_in(line: &DoorLine, key: &DoorKey) -> Option<Door> {
        read(|at| line[at as usize], key)
    }

    fn read(load: impl Fn(u32) -> u32, key: &DoorKey) -> Option<Door> {
        let place = find(&load, key)?;
        Some(Door {
            network: place.network,
            address: address(&load, &place)?,
        })
    }

    #[test]
    fn a_door_is_found_by_all_of_its_key_in_either_place() {
        let whole = Door {
            network: 513,
            address: Address {
                kind: 3,
                base: 1024 + 56_320,
                first_port: 1024,
                count: 56_320,
            },
        };
        let other = DoorKey { vlan: 204, ..KEY };
        for doors in [
            [Some((KEY, whole)), Some((other, door(9)))],
            [Some((other, door(9))), Some((KEY, whole))],
            [None, Some((KEY, whole))],
        ] {
            let line = line(doors);
            assert_eq!(find_in(&line, &KEY), Some(whole));
            let others = [
                DoorKey { ifindex: 8, ..KEY },
                DoorKey { vlan: 0, ..KEY },
                DoorKey {
                    destination: Be32::new(1),
                    ..KEY
                },
            ];
            for other in others {
                assert_eq!(find_in(&line, &other), None);
            }
            for words in line.chunks(8) {
                let read = open_door(words[1..].try_into().unwrap());
                let key = read.map(|door| door.key);
                assert!([None, Some(KEY), Some(other)].contains(&key), "{read:?}");
            }
        }
        assert_eq!(find_in(&line([None; 2]), &KEY), None);
        assert_eq!(open_door([0, 5, 6, 0, 0, 0, 0]), None);
    }

    #[test]
    fn one_that_is_being_written_is_none() {
        let mut line = line([Some((KEY, door(5))), None]);
        line[VERSION as usize] = 3;
        assert_eq!(find_in(&line, &KEY), None);
        line[VERSION as usize] = 4;
        assert_eq!(find_in(&line, &KEY), Some(door(5)));
    }

    /// One thread writes a door again and again, others read it: none reads half of one and half of another.
    #[test]
    fn nothing_is_read_of_two_writes() {
        let rounds = if cfg!(miri) { 20 } else { 100_000 };
        let line: [AtomicU32; 16] = Default::default();
        let write = |seed: u32| {
            line[0].store(seed << 1 | 1, SeqCst);
            for (word, value) in line[1..8].iter().zip(door(seed).words(&KEY)) {
                word.store(value, SeqCst);
            }
            line[0].store((seed << 1) + 2, SeqCst);
        };
        let read = || read(|at| line[at as usize].load(SeqCst), &KEY);
        thread::scope(|scope| {
            scope.spawn(|| (0..rounds).for_each(write));
            scope.spawn(|| {
                for _ in 0..rounds {
                    if let Some(read) = read() {
                        assert_eq!(read, door(read.address.kind));
                    }
                }
            });
        });
        assert_eq!(read(), Some(door(rounds - 1)));
    }

    #[test]
    fn addresses_are_spread_over_the_lines() {
        let nets =
            (0..8u32).flat_map(|net| (1..=250u32).map(move |host| 10 << 24 | net << 8 | host));
        let mut lines = HashMap::<u32, u32>::new();
        for (vlan, net) in nets.enumerate() {
            let key = DoorKey {
                ifindex: 3,
                vlan: u16::try_from(vlan % 8 * 100).unwrap(),
                destination: Be32::new(net),
            };
            assert!(key.line() < DOOR_LINES);
            *lines.entry(key.line()).or_default() += 1;
        }
        let full = lines.values().filter(|count| **count > DOORS);
        let beyond: u32 = full.map(|count| count - DOORS).sum();
        assert!(beyond < 20, "{beyond} of 2000 find their line full");
    }
}
