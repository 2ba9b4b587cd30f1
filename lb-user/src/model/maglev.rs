//! Tables of backends.

use std::{collections::BTreeSet, sync::Arc};

/// The ids of the backends that a pool's new flows go to, by place; clones are the same.
pub type MaglevTable = Arc<[u32]>;

/// The backends that have a place in one of these tables.
pub fn members<'t>(tables: impl IntoIterator<Item = &'t MaglevTable>) -> BTreeSet<u32> {
    // Ids have 16 bits, and tables thousands of places for each of them.
    let mut is_member = vec![false; 1 << 16];
    for id in tables.into_iter().flat_map(|table| table.iter()) {
        let place = usize::try_from(*id).ok();
        if let Some(is_member) = place.and_then(|place| is_member.get_mut(place)) {
            *is_member = true;
        }
    }
    let ids = (0..).zip(is_member);
    ids.filter_map(|(id, is_member)| is_member.then_some(id))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_those_of_all_tables() {
        let tables = [[7, 7, 65_535].into(), [].into(), [1, 7, 1 << 16].into()];
        assert_eq!(members(&tables), BTreeSet::from([1, 7, 65_535]));
        assert_eq!(members([]), BTreeSet::new());
    }
}
