//! plan: (current, desired) -> ordered map operations. Pure.
//!
//! The order makes every prefix of the plan safe: what is pointed to is written before what points
//! to it, and a VIP is opened last; removals go the other way round. So after any crash in between
//! a service is wholly old, wholly new, or not there yet.

use std::{collections::HashMap, net::Ipv4Addr};

use lb_common::maps::{
    backend::Backend,
    network::{Address, AddressKey, KIND_SNAT, Network, NetworkKey},
    service::{Service, ServiceKey},
};

use super::desired::{Desired, SnatSlot};

/// What the maps hold.
#[derive(Clone, Debug, Default)]
pub struct Current {
    /// Networks by id, as far as they are used.
    pub networks: HashMap<u16, Network>,
    /// NICs and outer ends of cells.
    pub network_ids: HashMap<NetworkKey, u32>,
    /// Address of every slot that has a queue of free ids.
    pub snat: HashMap<u16, Ipv4Addr>,
    /// VIPs and SNAT addresses.
    pub addresses: HashMap<AddressKey, Address>,
    /// Backends by id.
    pub backends: HashMap<u32, Backend>,
    /// Maglev tables by pool id.
    pub tables: HashMap<u32, Vec<u32>>,
    /// Services.
    pub services: HashMap<ServiceKey, Service>,
}

/// One step of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes a network's record.
    SetNetwork(u16, Network),
    /// Makes frames of an interface belong to a network.
    MapNetwork(NetworkKey, u32),
    /// Frames of this interface belong to no network any more.
    UnmapNetwork(NetworkKey),
    /// Gives a SNAT address its pages and its queue of free ids.
    OpenSnat(SnatSlot),
    /// Writes a backend; its next hop stays if the address does.
    SetBackend(u32, Backend),
    /// Waits until the next hops of these backends are known, or some have had their time.
    AwaitNextHops(Vec<u32>),
    /// Replaces a pool's Maglev table.
    SetTable(u32, Vec<u32>),
    /// Writes a service.
    SetService(ServiceKey, Service),
    /// Removes a service.
    RemoveService(ServiceKey),
    /// Opens a VIP or SNAT address.
    SetAddress(AddressKey, Address),
    /// Closes a VIP or SNAT address.
    RemoveAddress(AddressKey),
}

/// The operations that lead from `current` to `desired`; none where they agree.
pub fn plan(current: &Current, desired: &Desired) -> Vec<Operation> {
    let mut plan = Vec::new();
    for (id, network) in &desired.networks {
        if current.networks.get(id) != Some(network) {
            plan.push(Operation::SetNetwork(*id, *network));
        }
    }
    for (key, id) in &desired.network_ids {
        if current.network_ids.get(key) != Some(id) {
            plan.push(Operation::MapNetwork(*key, *id));
        }
    }
    for snat in &desired.snat {
        if current.snat.get(&snat.slot) != Some(&snat.address) {
            plan.push(Operation::OpenSnat(*snat));
        }
    }
    plan.extend(new_addresses(current, desired, |address| {
        address.kind == KIND_SNAT
    }));
    plan.extend(backends(current, desired));
    for (pool, table) in &desired.tables {
        if current
            .tables
            .get(pool)
            .map_or(!table.is_empty(), |current| current != table)
        {
            plan.push(Operation::SetTable(*pool, table.clone()));
        }
    }
    for (key, service) in &desired.services {
        if current.services.get(key) != Some(service) {
            plan.push(Operation::SetService(*key, *service));
        }
    }
    plan.extend(new_addresses(current, desired, |address| {
        address.kind != KIND_SNAT
    }));
    plan.extend(removals(current, desired));
    plan
}

fn new_addresses(
    current: &Current,
    desired: &Desired,
    wanted: impl Fn(&Address) -> bool,
) -> Vec<Operation> {
    let new = desired
        .addresses
        .iter()
        .filter(|(key, address)| wanted(address) && current.addresses.get(key) != Some(address));
    new.map(|(key, address)| Operation::SetAddress(*key, *address))
        .collect()
}

/// Writes what differs, then waits for the next hops that are not known.
fn backends(current: &Current, desired: &Desired) -> Vec<Operation> {
    let mut plan = Vec::new();
    let mut unresolved = Vec::new();
    for (id, backend) in &desired.backends {
        let known = current.backends.get(id).copied().unwrap_or_default();
        let same_hop = known.address == backend.address && known.network == backend.network;
        let next_hop = if same_hop {
            known.next_hop
        } else {
            backend.next_hop
        };
        let backend = Backend {
            next_hop,
            ..*backend
        };
        if backend != known {
            plan.push(Operation::SetBackend(*id, backend));
        }
        if next_hop.is_none() {
            unresolved.push(*id);
        }
    }
    if !unresolved.is_empty() {
        plan.push(Operation::AwaitNextHops(unresolved));
    }
    plan
}

/// Addresses before services before networks: nothing is left that points to what is gone.
fn removals(current: &Current, desired: &Desired) -> Vec<Operation> {
    let mut plan = Vec::new();
    for key in current.addresses.keys() {
        if !desired.addresses.iter().any(|(wanted, _)| wanted == key) {
            plan.push(Operation::RemoveAddress(*key));
        }
    }
    for key in current.services.keys() {
        if !desired.services.iter().any(|(wanted, _)| wanted == key) {
            plan.push(Operation::RemoveService(*key));
        }
    }
    for key in current.network_ids.keys() {
        if !desired.network_ids.iter().any(|(wanted, _)| wanted == key) {
            plan.push(Operation::UnmapNetwork(*key));
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use lb_common::addr::Mac;

    use super::{
        super::{
            desired::tests::{CONFIG, build},
            ids::Ids,
        },
        *,
    };

    /// What the maps hold after a plan; next hops resolved.
    fn carry_out(mut current: Current, plan: &[Operation]) -> Current {
        for operation in plan {
            match operation.clone() {
                Operation::SetNetwork(id, network) => drop(current.networks.insert(id, network)),
                Operation::MapNetwork(key, id) => drop(current.network_ids.insert(key, id)),
                Operation::UnmapNetwork(key) => drop(current.network_ids.remove(&key)),
                Operation::OpenSnat(snat) => drop(current.snat.insert(snat.slot, snat.address)),
                Operation::SetBackend(id, backend) => drop(current.backends.insert(id, backend)),
                Operation::AwaitNextHops(ids) => {
                    for id in ids {
                        current.backends.entry(id).or_default().next_hop = Mac::new([2; 6]);
                    }
                }
                Operation::SetTable(pool, table) => drop(current.tables.insert(pool, table)),
                Operation::SetService(key, service) => drop(current.services.insert(key, service)),
                Operation::RemoveService(key) => drop(current.services.remove(&key)),
                Operation::SetAddress(key, address) => drop(current.addresses.insert(key, address)),
                Operation::RemoveAddress(key) => drop(current.addresses.remove(&key)),
            }
        }
        current
    }

    #[test]
    fn a_plan_that_was_carried_out_leaves_nothing_to_do() {
        let desired = build(CONFIG, &mut Ids::default());
        let first = plan(&Current::default(), &desired);
        assert!(!first.is_empty());
        let current = carry_out(Current::default(), &first);
        assert_eq!(plan(&current, &desired), []);
    }

    #[test]
    fn a_vip_opens_after_everything_that_it_needs() {
        let desired = build(CONFIG, &mut Ids::default());
        let plan = plan(&Current::default(), &desired);
        let position = |wanted: fn(&Operation) -> bool| plan.iter().position(wanted).unwrap();
        let vip = position(
            |op| matches!(op, Operation::SetAddress(_, address) if address.kind != KIND_SNAT),
        );
        let service = position(|op| matches!(op, Operation::SetService(..)));
        let table = position(|op| matches!(op, Operation::SetTable(..)));
        let hops = position(|op| matches!(op, Operation::AwaitNextHops(_)));
        let backend = position(|op| matches!(op, Operation::SetBackend(..)));
        let snat = position(|op| matches!(op, Operation::OpenSnat(_)));
        assert!(
            snat < backend && backend < hops && hops < table && table < service && service < vip
        );
    }

    #[test]
    fn a_service_that_is_gone_is_closed_from_the_outside_in() {
        let mut ids = Ids::default();
        let current = carry_out(
            Current::default(),
            &plan(&Current::default(), &build(CONFIG, &mut ids)),
        );
        let without = build(CONFIG.split("services:").next().unwrap(), &mut ids);
        let plan = plan(&current, &without);
        assert!(
            matches!(
                plan[..],
                [
                    Operation::RemoveAddress(_),
                    Operation::RemoveService(_),
                    Operation::RemoveService(_)
                ]
            ),
            "{plan:?}"
        );
    }

    #[test]
    fn a_record_is_written_before_what_points_to_it() {
        let plan = plan(&Current::default(), &build(CONFIG, &mut Ids::default()));
        let first = |wanted: fn(&Operation) -> bool| plan.iter().position(wanted).unwrap();
        let last = |wanted: fn(&Operation) -> bool| plan.iter().rposition(wanted).unwrap();
        assert!(
            last(|op| matches!(op, Operation::SetNetwork(..)))
                < first(|op| matches!(op, Operation::MapNetwork(..)))
        );
        assert!(
            last(|op| matches!(op, Operation::OpenSnat(_)))
                < first(|op| matches!(op, Operation::SetAddress(..)))
        );
        assert!(
            last(|op| matches!(op, Operation::SetService(..)))
                < first(
                    |op| matches!(op, Operation::SetAddress(_, address) if address.kind != KIND_SNAT)
                )
        );
    }

    #[test]
    fn an_interface_is_unmapped_after_everything_behind_it() {
        let mut ids = Ids::default();
        let current = carry_out(
            Current::default(),
            &plan(&Current::default(), &build(CONFIG, &mut ids)),
        );
        let mut gone = build(CONFIG.split("services:").next().unwrap(), &mut ids);
        gone.network_ids.clear();
        let plan = plan(&current, &gone);
        assert!(
            matches!(
                plan[..],
                [
                    Operation::RemoveAddress(_),
                    Operation::RemoveService(_),
                    Operation::RemoveService(_),
                    Operation::UnmapNetwork(_),
                    Operation::UnmapNetwork(_),
                    Operation::UnmapNetwork(_),
                    Operation::UnmapNetwork(_)
                ]
            ),
            "{plan:?}"
        );
    }

    #[test]
    fn what_replaces_something_is_there_before_it_goes() {
        let mut ids = Ids::default();
        let current = carry_out(
            Current::default(),
            &plan(&Current::default(), &build(CONFIG, &mut ids)),
        );
        let moved = build(&CONFIG.replace("203.110:", "203.111:"), &mut ids);
        let plan = plan(&current, &moved);
        let opened = plan
            .iter()
            .rposition(|op| matches!(op, Operation::SetAddress(..)))
            .unwrap();
        let closed = plan
            .iter()
            .position(|op| matches!(op, Operation::RemoveAddress(_)))
            .unwrap();
        assert!(opened < closed, "{plan:?}");
    }

    #[test]
    fn a_backend_in_another_network_has_another_next_hop() {
        let mut ids = Ids::default();
        let current = carry_out(
            Current::default(),
            &plan(&Current::default(), &build(CONFIG, &mut ids)),
        );
        let mut moved = build(CONFIG, &mut ids);
        for (_, backend) in &mut moved.backends {
            backend.network += 1;
        }
        for operation in plan(&current, &moved) {
            assert!(
                !matches!(operation, Operation::SetBackend(_, backend) if !backend.next_hop.is_none()),
                "{operation:?}"
            );
        }
    }

    #[test]
    fn a_changed_port_keeps_the_backend_and_a_changed_address_does_not() {
        let mut ids = Ids::default();
        let named = CONFIG.replace(
            "\"10.32.96.105:30918\"",
            "{ name: n1, address: \"10.32.96.105:30918\" }",
        );
        let current = carry_out(
            Current::default(),
            &plan(&Current::default(), &build(&named, &mut ids)),
        );
        let port = build(&named.replace("105:30918", "105:31000"), &mut ids);
        assert!(
            matches!(plan(&current, &port)[..], [Operation::SetBackend(_, backend)] if !backend.next_hop.is_none())
        );
        let moved = build(&named.replace("105:30918", "107:30918"), &mut ids);
        let plan = plan(&current, &moved);
        assert!(
            matches!(
                plan[..],
                [Operation::SetBackend(_, backend), Operation::AwaitNextHops(_), Operation::SetTable(..)]
                    if backend.next_hop.is_none()
            ),
            "another address is another backend: {plan:?}"
        );
    }
}
