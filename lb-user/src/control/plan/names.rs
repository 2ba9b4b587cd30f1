//! The steps that change which names the data plane knows. Pure.
//!
//! Where a name leads by the kind of its client, the number of a kind means something by the classes and protocols of its service
//! alone. Other classes have other numbers, so both are there while the service turns from the ones to the others. Where this is
//! not possible such names are the process's meanwhile: that they are is written first, and where they lead last.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use lb_common::maps::{
    MAX_SERVER_NAMES,
    server_name::{BY_CLIENT, BY_PROTOCOL, NameKey, PROTOCOL, PoolRoute, UNDER, has_class},
};

use super::{Current, Operation};
use crate::control::desired::Desired;

/// The steps of names: before those of the services, behind them, and at the end.
pub(super) struct NameSteps {
    pub(super) before: Vec<Operation>,
    pub(super) behind: Vec<Operation>,
    pub(super) last: Vec<Operation>,
}

/// The steps around those of the services, `turned` of which get other classes.
pub(super) fn steps(current: &Current, desired: &Desired, turned: &BTreeSet<u16>) -> NameSteps {
    let names = Change {
        old: &current.names,
        new: &desired.names,
    };
    let left = names.left(turned);
    let is_left = |key: &NameKey| left.contains(&key.service);
    let leave = names
        .old
        .iter()
        .filter(|(key, route)| is_name(key) && route.pool == BY_CLIENT && is_left(key));
    let leave = leave.map(|(key, _)| Operation::SetName(*key, of_process(key)));
    let mut before = sorted(leave.collect());
    if !before.is_empty() {
        before.push(Operation::AwaitPackets);
    }
    let (at_once, last) = names.gone().partition(|key| is_left(key) && !is_name(key));
    before.extend(removed(at_once));
    let is_new = |(key, route): &(&NameKey, &PoolRoute)| {
        let known = names.old.get(key);
        known != Some(route) || is_left(key) && is_name(key) && route.pool == BY_CLIENT
    };
    let new = names.new.iter().filter(is_new);
    let (behind, at_once): (Vec<_>, Vec<_>) = new
        .map(|(key, route)| Operation::SetName(*key, *route))
        .partition(
            |step| matches!(step, Operation::SetName(key, _) if is_left(key) && is_name(key)),
        );
    before.extend(sorted(at_once));
    NameSteps {
        before,
        behind: sorted(behind),
        last: removed(last),
    }
}

/// Names as they are, and as they are to be.
struct Change<'a> {
    old: &'a HashMap<NameKey, PoolRoute>,
    new: &'a HashMap<NameKey, PoolRoute>,
}

impl Change<'_> {
    fn gone(&self) -> impl Iterator<Item = NameKey> {
        let old = self.old.keys().copied();
        old.filter(|key| !self.new.contains_key(key))
    }

    fn added(&self) -> impl Iterator<Item = NameKey> {
        let new = self.new.keys().copied();
        new.filter(|key| !self.old.contains_key(key))
    }

    /// Keys of both, with the route that each has and gets.
    fn kept(&self) -> impl Iterator<Item = (NameKey, PoolRoute, PoolRoute)> {
        let old = self.old.iter();
        old.filter_map(|(key, old)| Some((*key, *old, *self.new.get(key)?)))
    }

    /// Keys whose routes change, come or go.
    fn changed(&self) -> impl Iterator<Item = NameKey> {
        let changed = self.kept().filter(|(_, old, new)| old != new);
        let changed = changed.map(|(key, ..)| key);
        changed.chain(self.gone()).chain(self.added())
    }

    /// The services whose names are the process's meanwhile.
    fn left(&self, turned: &BTreeSet<u16>) -> BTreeSet<u16> {
        let left = self
            .unclear_in_classes(turned)
            .chain(self.told_apart_otherwise());
        let left = left
            .chain(self.of_other_protocols())
            .chain(self.without_room());
        left.map(|key| key.service).collect()
    }

    /// Kinds that mean something else with the other classes: of clients in no class, whose number stays, and those that have the
    /// number of another class by chance.
    fn unclear_in_classes(&self, turned: &BTreeSet<u16>) -> impl Iterator<Item = NameKey> {
        let by_chance = self.kept().map(|(key, ..)| key);
        let by_chance = by_chance.filter(|key| has_class(key.kind));
        let without_class = self
            .changed()
            .filter(|key| is_client(key) && !has_class(key.kind));
        let unclear = by_chance.chain(without_class);
        unclear.filter(|key| turned.contains(&key.service))
    }

    /// Names for which something else of their clients counts than before.
    fn told_apart_otherwise(&self) -> impl Iterator<Item = NameKey> {
        let names = self.kept().filter(|(key, old, new)| {
            let are_by_client = old.pool == BY_CLIENT && new.pool == BY_CLIENT;
            is_name(key) && are_by_client && old.flags != new.flags
        });
        names.map(|(key, ..)| key)
    }

    /// Names by protocols, of services for whose routes others count.
    fn of_other_protocols(&self) -> impl Iterator<Item = NameKey> {
        let protocols = self.changed().filter(|key| key.kind == PROTOCOL);
        let services: BTreeSet<u16> = protocols.map(|key| key.service).collect();
        let names = self.old.iter().filter(move |(key, route)| {
            let is_by_protocol = route.pool == BY_CLIENT && route.flags & BY_PROTOCOL != 0;
            is_by_protocol && services.contains(&key.service)
        });
        names.map(|(key, _)| *key)
    }

    /// Kinds that come or go, where both have no room beside each other.
    fn without_room(&self) -> impl Iterator<Item = NameKey> {
        let has_room = self.old.len() + self.added().count() <= MAX_SERVER_NAMES as usize;
        let moved = self.gone().chain(self.added());
        moved.filter(move |key| !has_room && !is_name(key))
    }
}

/// Whether it is that of a name, or of what names are under, and not of a kind of its clients or of a protocol.
const fn is_name(key: &NameKey) -> bool {
    key.kind & !UNDER == 0
}

/// Whether it is that of a kind of a name's clients.
const fn is_client(key: &NameKey) -> bool {
    !is_name(key) && key.kind != PROTOCOL
}

/// What leaves a name to the process.
fn of_process(key: &NameKey) -> PoolRoute {
    PoolRoute {
        mark: key.mark(),
        ..PoolRoute::default()
    }
}

/// Protocols first; whole names before what others are under, and of that longer ones first: else a name would go where a less
/// exact one goes. The kinds of its clients before a name.
fn sorted(mut steps: Vec<Operation>) -> Vec<Operation> {
    steps.sort_unstable_by_key(|step| match step {
        Operation::SetName(key, _) => {
            let exactness = (key.kind & UNDER, Reverse(key.length), key.service, key.name);
            Some((key.kind != PROTOCOL, exactness, is_name(key), key.kind))
        }
        _ => None,
    });
    steps
}

/// Forgets them, in the other order: what others are under, shorter ones first, and then whole names; and kinds of clients before.
fn removed(mut keys: Vec<NameKey>) -> Vec<Operation> {
    keys.sort_unstable_by_key(|key| (Reverse(key.kind), key.length, key.service, key.name));
    keys.into_iter().map(Operation::RemoveName).collect()
}

#[cfg(test)]
mod tests {
    use lb_common::maps::server_name::{BY_CLASS, class, key};

    use super::*;

    /// Two sets of classes that do not fit beside each other: the former goes first, and meanwhile the name is the process's.
    #[test]
    fn what_has_no_room_beside_the_former_comes_behind_it() {
        let of = |kind| key(7, b"a.b", kind).expect("a short name");
        let with = |hash| {
            let route = |key: NameKey, pool, flags| {
                let mark = key.mark();
                (key, PoolRoute { pool, flags, mark })
            };
            let kinds = (0..40_000).map(|place| route(of(class(hash, place)), 1, 0));
            let name = route(of(0), BY_CLIENT, BY_CLASS);
            kinds.chain([name]).collect::<HashMap<_, _>>()
        };
        let mut current = Current {
            names: with(1),
            ..Current::default()
        };
        let desired = Desired {
            names: with(2),
            ..Desired::default()
        };
        let steps = steps(&current, &desired, &BTreeSet::from([7]));
        assert_eq!(
            steps.before[0],
            Operation::SetName(of(0), of_process(&of(0)))
        );
        assert_eq!(
            steps.behind,
            [Operation::SetName(of(0), desired.names[&of(0)])]
        );
        for step in [steps.before, steps.behind, steps.last].concat() {
            match step {
                Operation::SetName(key, route) => drop(current.names.insert(key, route)),
                Operation::RemoveName(key) => drop(current.names.remove(&key)),
                _ => {}
            }
            assert!(current.names.len() <= MAX_SERVER_NAMES as usize);
        }
        assert_eq!(current.names, desired.names);
    }
}
