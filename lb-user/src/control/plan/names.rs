//! The steps that change which names the data plane knows. Pure.
//!
//! Where a name leads by the kind of its client, the number of a kind means something by the classes and protocols of the service
//! alone. So while those change, such names are the process's: that they are is written first, and where they lead last, when the
//! service has its classes.

use std::{cmp::Reverse, collections::BTreeSet};

use lb_common::maps::server_name::{BY_CLIENT, NameKey, PoolRoute, UNDER};

use super::{Current, Operation};
use crate::control::desired::Desired;

/// The steps before and behind those of the services, `turned` of which get other classes.
pub(super) fn around_services(
    current: &Current,
    desired: &Desired,
    turned: &BTreeSet<u16>,
) -> [Vec<Operation>; 2] {
    let turned = turned | &with_other_kinds(current, desired);
    let is_left = |key: &NameKey, route: &PoolRoute| {
        is_name(key) && route.pool == BY_CLIENT && turned.contains(&key.service)
    };
    let left = current
        .names
        .iter()
        .filter(|(key, route)| is_left(key, route));
    let left = left.map(|(key, _)| Operation::SetName(*key, of_process(key)));
    let mut before = sorted(left.collect());
    if !before.is_empty() {
        before.push(Operation::AwaitPackets);
    }
    // Those of before make room.
    before.extend(gone(current, desired, |key| !is_name(key)));
    let new = desired.names.iter();
    let new = new.filter(|(key, route)| {
        let known = current.names.get(key);
        known != Some(route) || known.is_some_and(|known| is_left(key, known))
    });
    let set = |(key, route): (&NameKey, &PoolRoute)| Operation::SetName(*key, *route);
    let (names, kinds): (Vec<_>, Vec<_>) = new.partition(|(key, _)| is_name(key));
    before.extend(sorted(kinds.into_iter().map(set).collect()));
    [before, sorted(names.into_iter().map(set).collect())]
}

/// Forgets names, in the other order: what others are under, shorter ones first, and then whole names.
pub(super) fn removals(current: &Current, desired: &Desired) -> Vec<Operation> {
    gone(current, desired, is_name)
}

/// The services of which a kind of clients, or a protocol, gets another route.
fn with_other_kinds(current: &Current, desired: &Desired) -> BTreeSet<u16> {
    let gone = current.names.keys();
    let gone = gone.filter(|key| !desired.names.contains_key(key));
    let new = desired.names.iter();
    let new = new.filter(|(key, route)| current.names.get(key) != Some(route));
    let changed = gone.chain(new.map(|(key, _)| key));
    changed
        .filter(|key| !is_name(key))
        .map(|key| key.service)
        .collect()
}

/// Whether it is that of a name, or of what names are under, and not of a kind of its clients or of a protocol.
const fn is_name(key: &NameKey) -> bool {
    key.kind & !UNDER == 0
}

/// What leaves a name to the process.
fn of_process(key: &NameKey) -> PoolRoute {
    PoolRoute {
        mark: key.mark(),
        ..PoolRoute::default()
    }
}

/// Whole names before what others are under, and of that longer ones first: else a name would go where a less exact one goes.
fn sorted(mut steps: Vec<Operation>) -> Vec<Operation> {
    steps.sort_unstable_by_key(|step| match step {
        Operation::SetName(key, _) => Some((key.kind, Reverse(key.length), key.service, key.name)),
        _ => None,
    });
    steps
}

fn gone(current: &Current, desired: &Desired, is_meant: fn(&NameKey) -> bool) -> Vec<Operation> {
    let gone = current.names.keys().copied();
    let gone = gone.filter(|key| is_meant(key) && !desired.names.contains_key(key));
    let mut gone: Vec<NameKey> = gone.collect();
    gone.sort_unstable_by_key(|key| (Reverse(key.kind), key.length, key.service, key.name));
    gone.into_iter().map(Operation::RemoveName).collect()
}
