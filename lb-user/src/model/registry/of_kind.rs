//! The ids of one kind, by name and by number.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Ids from 1 on, each with its name. Clones are made for each change, of which few have other names: they share them
/// until then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfKind {
    given: Arc<GivenIds>,
    /// The ids that were assigned since [`Self::begin`].
    assigned: BTreeSet<u32>,
}

/// The ids that are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GivenIds {
    by_name: BTreeMap<Arc<str>, u32>,
    by_id: BTreeMap<u32, Arc<str>>,
    /// The lowest id that is free, less one.
    taken_to: u32,
}

impl GivenIds {
    fn insert(&mut self, name: &str, id: u32) {
        self.free(name);
        let name: Arc<str> = name.into();
        if let Some(before) = self.by_id.insert(id, Arc::clone(&name)) {
            self.by_name.remove(&before);
        }
        self.by_name.insert(name, id);
        while self.by_id.contains_key(&(self.taken_to + 1)) {
            self.taken_to += 1;
        }
    }

    /// Takes the id of a name back, and gives it.
    fn free(&mut self, name: &str) -> Option<u32> {
        let id = self.by_name.remove(name)?;
        self.by_id.remove(&id);
        self.taken_to = self.taken_to.min(id.saturating_sub(1));
        Some(id)
    }
}

impl OfKind {
    /// Notes an id that was given out before.
    pub(super) fn insert(&mut self, name: &str, id: u32) {
        Arc::make_mut(&mut self.given).insert(name, id);
    }

    /// The id of `name`: its old one, or the lowest that is free, from 1 to `most`; none if all are taken.
    pub(super) fn assign(&mut self, name: &str, most: u32) -> Option<u32> {
        let known = self.get(name);
        let id = known.unwrap_or(self.given.taken_to + 1);
        if known.is_none() {
            if id > most {
                return None;
            }
            self.insert(name, id);
        }
        self.assigned.insert(id);
        Some(id)
    }

    pub(super) fn get(&self, name: &str) -> Option<u32> {
        self.given.by_name.get(name).copied()
    }

    pub(super) fn name(&self, id: u32) -> Option<&str> {
        self.given.by_id.get(&id).map(|name| &**name)
    }

    /// Names and ids, in order of name.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, u32)> {
        let given = self.given.by_name.iter();
        given.map(|(name, &id)| (&**name, id))
    }

    /// Forgets which names have been assigned.
    pub(super) fn begin(&mut self) {
        self.assigned.clear();
    }

    /// Those whose names have not been assigned since [`Self::begin`].
    pub(super) fn unassigned(&self) -> impl Iterator<Item = (&str, u32)> {
        self.all().filter(|(_, id)| !self.assigned.contains(id))
    }

    /// Takes an id back.
    pub(super) fn free(&mut self, name: &str) {
        if self.get(name).is_none() {
            return;
        }
        if let Some(id) = Arc::make_mut(&mut self.given).free(name) {
            self.assigned.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_id_is_given_out_wherever_it_is() {
        let mut ids = OfKind::default();
        ids.insert("c", 3);
        let given = ["a", "b", "d"].map(|name| ids.assign(name, 4));
        assert_eq!(given, [Some(1), Some(2), Some(4)]);
        assert_eq!(ids.assign("e", 4), None);
        ids.free("b");
        ids.free("d");
        assert_eq!(ids.assign("e", 4), Some(2));
        assert_eq!(ids.assign("f", 4), Some(4));
        assert_eq!(ids.assign("g", 5), Some(5), "there is room for more now");
    }

    #[test]
    fn a_clone_has_changes_of_its_own() {
        let mut before = OfKind::default();
        before.insert("a", 1);
        before.insert("b", 2);
        let mut after = before.clone();
        after.begin();
        after.assign("a", 4);
        assert!(
            Arc::ptr_eq(&before.given, &after.given),
            "no name is another"
        );
        after.assign("c", 4);
        after.free("b");
        assert_eq!(before.all().collect::<Vec<_>>(), [("a", 1), ("b", 2)]);
        assert_eq!(after.all().collect::<Vec<_>>(), [("a", 1), ("c", 3)]);
        assert_eq!(after.unassigned().count(), 0);
        after.assign("d", 4);
        assert_eq!(after.get("d"), Some(2), "that of the name that is gone");
        after.begin();
        assert_eq!(after.assign("c", 4), Some(3));
        let left: Vec<_> = after.unassigned().collect();
        assert_eq!(left, [("a", 1), ("d", 2)]);
    }

    #[test]
    fn a_name_has_one_id_and_an_id_one_name() {
        let mut ids = OfKind::default();
        ids.insert("a", 1);
        ids.insert("a", 2);
        assert_eq!((ids.name(1), ids.name(2)), (None, Some("a")));
        ids.insert("b", 2);
        assert_eq!((ids.get("a"), ids.get("b")), (None, Some(2)));
        assert_eq!(ids.all().collect::<Vec<_>>(), [("b", 2)]);
        assert_eq!(ids.assign("a", 2), Some(1));
    }
}
