//! What a table of the map `MAGLEV` holds behind one another: its size, as many backend ids, the turns of `round-robin`,
//! for each id how many entries are its backend's, which is its share; the id of its pool, how many backends have a
//! share, and their ids, the lowest first.
//!
//! Tables that an earlier version has made end with the ids, or with the shares.

/// Index of the size.
pub const SIZE: u32 = 0;

/// Index of the backend id of an entry.
#[inline(always)]
pub const fn id(slot: u32) -> u32 {
    slot.wrapping_add(1)
}

/// Index of the count of turns in a table of `size`, which the data plane writes.
#[inline(always)]
pub const fn turns(size: u32) -> u32 {
    size.wrapping_add(1)
}

/// Index of the share of an entry's backend.
#[inline(always)]
pub const fn share(size: u32, slot: u32) -> u32 {
    size.wrapping_add(2).wrapping_add(slot)
}

/// Index of the id of the pool, which is the number of the first of its two tables.
#[inline(always)]
pub const fn pool(size: u32) -> u32 {
    share(size, size)
}

/// Index of the number of backends that have a share.
#[inline(always)]
pub const fn backends(size: u32) -> u32 {
    pool(size).wrapping_add(1)
}

/// Index of the id of one of them.
#[inline(always)]
pub const fn backend(size: u32, place: u32) -> u32 {
    backends(size).wrapping_add(1).wrapping_add(place)
}

/// How many values a table of `size` has with a share for so many backends.
pub const fn values(size: u32, backends: u32) -> u32 {
    backend(size, backends)
}

/// Halvings that find one of 65,535 backends.
const MAX_HALVINGS: u32 = 17;

/// Whether the backend with this id has a share of a table of `size`, whose values `get` reads.
#[inline(always)]
pub fn has(size: u32, id: u32, get: impl Fn(u32) -> Option<u32>) -> bool {
    let (mut low, mut high) = (0, get(backends(size)).unwrap_or(0));
    for _ in 0..MAX_HALVINGS {
        if low >= high {
            return false;
        }
        let middle = low.wrapping_add(high.wrapping_sub(low) / 2);
        match get(backend(size, middle)) {
            Some(found) if found == id => return true,
            Some(found) if found < id => low = middle.wrapping_add(1),
            Some(_) => high = middle,
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_with_a_share_are_found_among_any_number() {
        for count in [0, 1, 2, 3, 7, 8, 500, 65_535] {
            // The size is 0, so that the number of backends stands at 3.
            let get = |index: u32| match index.checked_sub(backend(0, 0)) {
                None => (index == backends(0)).then_some(count),
                Some(place) => (place < count).then_some(2 * place + 1),
            };
            for id in (0..2 * count + 2).filter(|id| count < 1000 || id % 97 < 2) {
                let wanted = id % 2 == 1 && id / 2 < count;
                assert_eq!(has(0, id, get), wanted, "{id} of {count}");
            }
            assert!(
                count == 0 || has(0, 2 * count - 1, get),
                "the last of {count}"
            );
        }
        assert!(!has(0, 1, |_| None), "a table of an earlier version");
    }
}
