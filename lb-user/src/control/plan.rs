//! plan: (current, desired) -> ordered map operations. Pure.
//!
//! The order makes every prefix of the plan safe: what is pointed to is written before what points
//! to it, and a VIP is opened last; removals go the other way round. So after any crash in between
//! a service is wholly old, wholly new, or not there yet.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ipnet::IpNet;
use lb_common::{
    addr::Be32,
    maps::{
        backend::Backend,
        network::{Address, AddressKey, Network, NetworkKey},
        rule::Owner,
        server_name::{NameKey, PoolRoute},
        service::{Service, ServiceKey},
    },
};

mod names;

use super::{
    desired::Desired,
    rule_sets::{self, RuleSetChoice},
};
use crate::model::{
    maglev::{self, MaglevTable},
    rules::Rules,
    snat::SnatSlot,
};

/// What the maps hold.
#[derive(Clone, Debug, Default)]
pub struct Current {
    /// Networks by id, as far as they are used.
    pub networks: HashMap<u16, Network>,
    /// NICs and outer ends of cells.
    pub network_ids: HashMap<NetworkKey, u32>,
    /// Address of every slot that is open.
    pub snat: HashMap<u16, Be32>,
    /// Slots that have a queue of free ids.
    pub queues: BTreeSet<u16>,
    /// Places of each ring of flows that there is, by its index.
    pub rings: HashMap<u32, u32>,
    /// Banks of the slots that have one.
    pub banks: HashMap<u16, u32>,
    /// Limits of the quotas that have one, by their index.
    pub quotas: HashMap<u32, u32>,
    /// Rule sets by number.
    pub rules: BTreeMap<u32, Rules>,
    /// VIPs, SNAT addresses and link-local ones of cells.
    pub addresses: HashMap<AddressKey, Address>,
    /// Backends by id.
    pub backends: HashMap<u32, Backend>,
    /// Maglev tables by pool id.
    pub tables: HashMap<u32, MaglevTable>,
    /// Names that the data plane knows.
    pub names: HashMap<NameKey, PoolRoute>,
    /// Services.
    pub services: HashMap<ServiceKey, Service>,
}

impl Current {
    /// The backends that have new flows.
    pub fn serving(&self) -> BTreeSet<u32> {
        maglev::members(self.tables.values())
    }
}

/// One step of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fills a rule set that nothing points to yet.
    WriteRules(u32, Rules),
    /// Takes these prefixes out of a rule set that nothing points to.
    ClearRules(u32, Vec<IpNet>),
    /// Writes a network's record.
    SetNetwork(u16, Network),
    /// Makes frames of an interface belong to a network.
    MapNetwork(NetworkKey, u32),
    /// Frames of this interface belong to no network any more.
    UnmapNetwork(NetworkKey),
    /// Makes the ring of flows with this index anew, with so many places.
    SetRing(u32, u32),
    /// Sets which bank the ports of a slot are of.
    SetBank(u16, u32),
    /// Sets how many flows there may be of the quota with this index; 0 for no limit.
    SetQuota(u32, u32),
    /// Gives a SNAT address its pages and its queue of free ids.
    OpenSnat(SnatSlot),
    /// Gives a SNAT address of another box its pages, and no queue.
    OpenPeerSnat(SnatSlot),
    /// Gives a SNAT address that was another box's a queue of the ids that no flow has.
    OpenQueue(SnatSlot),
    /// Takes the queue from a SNAT address that is another box's now.
    CloseQueue(SnatSlot),
    /// Writes a backend; its next hop stays if the address does.
    SetBackend(u32, Backend),
    /// Waits until the next hops of these backends are known, or some have had their time.
    AwaitNextHops(Vec<u32>),
    /// Replaces a pool's Maglev table.
    SetTable(u32, MaglevTable),
    /// Sends the clients of a name to a pool, or leaves them to the process.
    SetName(NameKey, PoolRoute),
    /// Forgets a name.
    RemoveName(NameKey),
    /// Writes a service.
    SetService(ServiceKey, Service),
    /// Removes a service.
    RemoveService(ServiceKey),
    /// Opens a VIP or SNAT address.
    SetAddress(AddressKey, Address),
    /// Closes a VIP or SNAT address.
    RemoveAddress(AddressKey),
    /// Waits until every packet that saw what was there before has left.
    AwaitPackets,
}

impl Operation {
    /// Whether it replaces a table.
    pub(super) const fn is_of_table(&self) -> bool {
        matches!(self, Self::SetTable(..))
    }

    /// The table that it writes, with its number.
    pub(super) fn table(&self) -> Option<(u32, MaglevTable)> {
        match self {
            Self::SetTable(number, table) => Some((*number, MaglevTable::clone(table))),
            _ => None,
        }
    }

    /// Whether it only makes networks known; such steps are at the beginning of a plan.
    pub const fn is_of_networks(&self) -> bool {
        match self {
            Self::WriteRules(..)
            | Self::ClearRules(..)
            | Self::OpenSnat(_)
            | Self::OpenPeerSnat(_)
            | Self::OpenQueue(_)
            | Self::CloseQueue(_)
            | Self::SetBank(..)
            | Self::SetQuota(..)
            | Self::SetRing(..)
            | Self::UnmapNetwork(_)
            | Self::SetNetwork(..)
            | Self::MapNetwork(..) => true,
            Self::SetAddress(_, address) => !address.is_vip(),
            _ => false,
        }
    }
}

/// The operations that lead from `current` to `desired`; none where they agree.
pub fn plan(current: &Current, desired: &Desired) -> Vec<Operation> {
    let choices = choose_rules(current, desired);
    let mut plan = write_rules(current, desired, &choices);
    plan.extend(snat(current, desired));
    plan.extend(quotas(current, desired));
    for (index, places) in &desired.rings {
        if current.rings.get(index) != Some(places) {
            plan.push(Operation::SetRing(*index, *places));
        }
    }
    let moved = moved(current, desired);
    plan.extend(moved.iter().copied().map(Operation::UnmapNetwork));
    // Before the record that gives new flows to it: else replies would come to an unknown address. So is the
    // address that a cell solicits next hops from, which are waited for.
    plan.extend(new_addresses(current, desired, |address| !address.is_vip()));
    let set = |owner| choices.get(&owner).map_or(0, |choice| choice.set);
    for (id, network) in &desired.networks {
        let network = Network {
            sources: set(Owner::Sources(*id)),
            destinations: set(Owner::Destinations(*id)),
            ..*network
        };
        if current.networks.get(id) != Some(&network) {
            plan.push(Operation::SetNetwork(*id, network));
        }
    }
    for (key, id) in &desired.network_ids {
        if current.network_ids.get(key) != Some(id) || moved.contains(key) {
            plan.push(Operation::MapNetwork(*key, *id));
        }
    }
    // Only now the network gives none of its ids to new flows.
    let is_open = |snat: &&SnatSlot| current.snat.get(&snat.slot) == Some(&snat.record);
    let of_peer = desired.peer_snat.iter().filter(is_open);
    let closed = of_peer.filter(|snat| current.queues.contains(&snat.slot));
    plan.extend(closed.copied().map(Operation::CloseQueue));
    plan.extend(backends(current, desired));
    for (pool, table) in &desired.tables {
        if current
            .tables
            .get(pool)
            .map_or(!table.is_empty(), |current| current != table)
        {
            plan.push(Operation::SetTable(*pool, MaglevTable::clone(table)));
        }
    }
    let names = names::steps(current, desired, &turned(current, set));
    plan.extend(names.before);
    for (key, service) in &desired.services {
        let service = Service {
            rules: set(Owner::Service(service.id)),
            flags: service.flags | Service::class_flags(set(Owner::Classes(service.id))),
            ..*service
        };
        if current.services.get(key) != Some(&service) {
            plan.push(Operation::SetService(*key, service));
        }
    }
    plan.extend(names.behind);
    plan.extend(new_addresses(current, desired, Address::is_vip));
    plan.extend(removals(current, desired, names.last));
    let mut clears = clear_tables(current, desired);
    clears.extend(clear_rules(current, &choices));
    if !clears.is_empty() {
        plan.push(Operation::AwaitPackets);
        plan.extend(clears);
    }
    plan
}

/// Opens SNAT addresses, and queues of those that were another box's.
fn snat(current: &Current, desired: &Desired) -> Vec<Operation> {
    let is_open = |snat: &SnatSlot| current.snat.get(&snat.slot) == Some(&snat.record);
    let own = desired.snat.iter().filter_map(|snat| {
        if !is_open(snat) {
            return Some(Operation::OpenSnat(*snat));
        }
        let has_queue = current.queues.contains(&snat.slot);
        (!has_queue).then_some(Operation::OpenQueue(*snat))
    });
    let of_peer = desired.peer_snat.iter().filter(|snat| !is_open(snat));
    own.chain(of_peer.copied().map(Operation::OpenPeerSnat))
        .collect()
}

/// The services whose clients are in classes of another set with the changed ones; `set` has the number of each.
fn turned(current: &Current, set: impl Fn(Owner) -> u32) -> BTreeSet<u16> {
    let services = current.services.values();
    let turned =
        services.filter(|service| service.client_classes() != set(Owner::Classes(service.id)));
    turned.map(|service| service.id).collect()
}

/// Before any packet can have a port: which bank it is of, and how many of that there may be.
fn quotas(current: &Current, desired: &Desired) -> Vec<Operation> {
    let banks = desired.banks.iter().copied();
    let banks =
        banks.filter(|(slot, bank)| current.banks.get(slot).copied().unwrap_or_default() != *bank);
    let quotas = desired.quotas.iter().copied();
    let quotas = quotas.filter(|(index, most)| current.quotas.get(index) != Some(most));
    let stale = current.quotas.keys().copied();
    let wanted: HashSet<u32> = desired.quotas.iter().map(|(index, _)| *index).collect();
    let stale = stale.filter(|index| !wanted.contains(index));
    let mut stale: Vec<u32> = stale.collect();
    stale.sort_unstable();
    let limits = quotas.chain(stale.into_iter().map(|index| (index, 0)));
    let banks = banks.map(|(slot, bank)| Operation::SetBank(slot, bank));
    let limits = limits.map(|(index, most)| Operation::SetQuota(index, most));
    banks.chain(limits).collect()
}

/// Interfaces and VLANs whose frames belong to no network while networks move: those that go to another
/// network, and those of a network that leaves by another port. Else a frame of one tenant could come in as
/// another's.
///
/// The kernel gives the memory of a removed key to the next one that is mapped. A frame that found the one
/// just before, and has not read its network yet, comes in as the other's: for as long as one load takes, at
/// a start that moves networks. To wait between the two would cost every such start a grace period of both
/// networks' traffic.
fn moved(current: &Current, desired: &Desired) -> Vec<NetworkKey> {
    let wanted: HashMap<_, _> = desired.network_ids.iter().copied().collect();
    let records: HashMap<_, _> = desired.networks.iter().copied().collect();
    let port = |network: &Network| (network.ifindex, network.vlan, network.cell_ifindex);
    let moves = |key: &NetworkKey, id: u32| {
        let id_stays = wanted.get(key) == Some(&id);
        let short = u16::try_from(id).unwrap_or_default();
        let (old, new) = (current.networks.get(&short), records.get(&short));
        let port_stays = old.map(port) == new.map(port);
        wanted.contains_key(key) && !(id_stays && port_stays)
    };
    let keys = current.network_ids.iter();
    keys.filter(|(key, id)| moves(key, **id))
        .map(|(key, _)| *key)
        .collect()
}

fn choose_rules(current: &Current, desired: &Desired) -> BTreeMap<Owner, RuleSetChoice> {
    let networks = current.networks.values();
    let networks = networks.flat_map(|network| [network.sources, network.destinations]);
    let services = current.services.values();
    let services = services.flat_map(|service| [service.rules, service.client_classes()]);
    let used: HashSet<u32> = networks.chain(services).collect();
    let choose = |(owner, rules): (&Owner, &Rules)| {
        let choice = rule_sets::choose(*owner, rules, &current.rules, |set| used.contains(&set));
        (*owner, choice)
    };
    desired.rules.iter().map(choose).collect()
}

/// Fills the chosen sets; what an interrupted change left in one goes first.
fn write_rules(
    current: &Current,
    desired: &Desired,
    choices: &BTreeMap<Owner, RuleSetChoice>,
) -> Vec<Operation> {
    let mut plan = Vec::new();
    for (owner, rules) in &desired.rules {
        let Some(choice) = choices.get(owner).filter(|choice| !choice.written) else {
            continue;
        };
        if let Some(left) = current.rules.get(&choice.set) {
            plan.push(clear(choice.set, left));
        }
        plan.push(Operation::WriteRules(choice.set, rules.clone()));
    }
    plan
}

/// Empties the sets that nothing points to any more.
fn clear_rules(current: &Current, choices: &BTreeMap<Owner, RuleSetChoice>) -> Vec<Operation> {
    let chosen: HashSet<u32> = choices.values().map(|choice| choice.set).collect();
    let stale = current
        .rules
        .iter()
        .filter(|(set, _)| !chosen.contains(set));
    stale.map(|(set, rules)| clear(*set, rules)).collect()
}

/// Empties the tables that nothing goes by any more.
fn clear_tables(current: &Current, desired: &Desired) -> Vec<Operation> {
    let filled = |number: &&u32| {
        current
            .tables
            .get(number)
            .is_some_and(|table| !table.is_empty())
    };
    let stale = desired.stale_tables.iter().filter(filled);
    stale
        .map(|number| Operation::SetTable(*number, MaglevTable::default()))
        .collect()
}

fn clear(set: u32, rules: &Rules) -> Operation {
    Operation::ClearRules(set, rules.keys().copied().collect())
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
    let wanted = maglev::members(desired.tables.iter().map(|(_, table)| table));
    let serving = current.serving();
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
        // Only a backend that begins to get new flows is waited for.
        if next_hop.is_none() && wanted.contains(id) && !serving.contains(id) {
            unresolved.push(*id);
        }
    }
    if !unresolved.is_empty() {
        plan.push(Operation::AwaitNextHops(unresolved));
    }
    plan
}

/// Addresses before services before networks: nothing is left that points to what is gone.
fn removals(current: &Current, desired: &Desired, names: Vec<Operation>) -> Vec<Operation> {
    let mut plan = Vec::new();
    for key in current.addresses.keys() {
        if !desired.addresses.contains_key(key) {
            plan.push(Operation::RemoveAddress(*key));
        }
    }
    for key in current.services.keys() {
        if !desired.services.contains_key(key) {
            plan.push(Operation::RemoveService(*key));
        }
    }
    plan.extend(names);
    for key in current.network_ids.keys() {
        if !desired.network_ids.iter().any(|(wanted, _)| wanted == key) {
            plan.push(Operation::UnmapNetwork(*key));
        }
    }
    plan
}

#[cfg(test)]
pub(super) use tests::carry_out as carried_out;

#[cfg(test)]
mod tests {
    use lb_common::{
        addr::Mac,
        maps::{
            network::{KIND_LINK, KIND_SNAT},
            quota,
        },
    };

    use super::{
        super::desired::tests::{BOTH, CONFIG, build, two_boxes},
        *,
    };
    use crate::model::{ha_role::HaRole, registry::Ids};

    /// What the maps hold after a plan; next hops resolved.
    pub(crate) fn carry_out(mut current: Current, plan: &[Operation]) -> Current {
        for operation in plan {
            match operation.clone() {
                Operation::WriteRules(set, rules) => drop(current.rules.insert(set, rules)),
                Operation::ClearRules(set, _) => drop(current.rules.remove(&set)),
                Operation::SetRing(index, places) => {
                    current.rings.insert(index, places);
                }
                Operation::SetBank(slot, bank) => drop(current.banks.insert(slot, bank)),
                Operation::SetQuota(index, 0) => drop(current.quotas.remove(&index)),
                Operation::SetQuota(index, most) => drop(current.quotas.insert(index, most)),
                Operation::SetNetwork(id, network) => drop(current.networks.insert(id, network)),
                Operation::MapNetwork(key, id) => drop(current.network_ids.insert(key, id)),
                Operation::UnmapNetwork(key) => drop(current.network_ids.remove(&key)),
                Operation::OpenSnat(snat) => {
                    current.snat.insert(snat.slot, snat.record);
                    current.queues.insert(snat.slot);
                }
                Operation::OpenPeerSnat(snat) => {
                    current.snat.insert(snat.slot, snat.record);
                    current.queues.remove(&snat.slot);
                }
                Operation::OpenQueue(snat) => drop(current.queues.insert(snat.slot)),
                Operation::CloseQueue(snat) => drop(current.queues.remove(&snat.slot)),
                Operation::SetBackend(id, backend) => drop(current.backends.insert(id, backend)),
                Operation::AwaitNextHops(ids) => {
                    for id in ids {
                        current.backends.entry(id).or_default().next_hop = Mac::new([2; 6]);
                    }
                }
                Operation::SetTable(pool, table) => drop(current.tables.insert(pool, table)),
                Operation::SetName(key, route) => drop(current.names.insert(key, route)),
                Operation::RemoveName(key) => drop(current.names.remove(&key)),
                Operation::SetService(key, service) => drop(current.services.insert(key, service)),
                Operation::RemoveService(key) => drop(current.services.remove(&key)),
                Operation::SetAddress(key, address) => drop(current.addresses.insert(key, address)),
                Operation::RemoveAddress(key) => drop(current.addresses.remove(&key)),
                Operation::AwaitPackets => {}
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
    fn an_address_that_goes_to_the_other_box_or_comes_back_keeps_its_slot_and_not_its_queue() {
        let is_of_snat = |step: &&Operation| {
            matches!(
                step,
                Operation::OpenSnat(_)
                    | Operation::OpenPeerSnat(_)
                    | Operation::OpenQueue(_)
                    | Operation::CloseQueue(_)
            )
        };
        let mut ids = Ids::default();
        let first = build(&two_boxes("a"), &mut ids);
        let (a, b) = (first.snat[0], first.peer_snat[0]);
        let steps = plan(&Current::default(), &first);
        let of_snat: Vec<_> = steps.iter().filter(is_of_snat).collect();
        assert_eq!(
            of_snat,
            [&Operation::OpenSnat(a), &Operation::OpenPeerSnat(b)]
        );
        let now = carry_out(Current::default(), &steps);
        assert_eq!(now.queues, BTreeSet::from([a.slot]));
        assert_eq!(plan(&now, &first), []);

        let moved = build(&two_boxes("b"), &mut ids);
        let steps = plan(&now, &moved);
        let of_snat: Vec<_> = steps.iter().filter(is_of_snat).collect();
        assert_eq!(
            of_snat,
            [&Operation::OpenQueue(b), &Operation::CloseQueue(a)]
        );
        let position = |wanted: fn(&Operation) -> bool| steps.iter().position(wanted).unwrap();
        let opened = position(|step| matches!(step, Operation::OpenQueue(_)));
        let network = position(|step| matches!(step, Operation::SetNetwork(..)));
        let closed = position(|step| matches!(step, Operation::CloseQueue(_)));
        assert!(opened < network && network < closed, "{steps:?}");
        // What checks come from changes as well.
        let (last, before) = steps.split_last().unwrap();
        assert!(matches!(last, Operation::RemoveAddress(_)), "{steps:?}");
        assert!(before.iter().all(Operation::is_of_networks), "{steps:?}");
        let now = carry_out(now, &steps);
        assert_eq!(now.queues, BTreeSet::from([b.slot]));
        assert_eq!(plan(&now, &moved), []);
    }

    /// What the maps hold when the box has taken another role: only addresses come and go.
    #[test]
    fn to_open_or_close_what_the_active_box_has_is_the_plan_of_the_other_role() {
        let mut ids = Ids::default();
        let whole = build(&two_boxes("a"), &mut ids);
        let [active, standby] = [HaRole::Active, HaRole::Standby].map(|role| {
            let mut desired = whole.clone();
            desired.take_role(role);
            desired
        });
        let first = plan(&Current::default(), &standby);
        assert!(
            first
                .iter()
                .any(|step| matches!(step, Operation::OpenPeerSnat(_)))
        );
        let silent = carry_out(Current::default(), &first);
        assert!(silent.addresses.values().all(|address| !address.is_vip()));
        assert_eq!(silent.addresses.len(), 1);

        let promotion = plan(&silent, &active);
        assert_eq!(promotion.len(), active.of_active.len());
        let is_address = |step: &Operation| matches!(step, Operation::SetAddress(..));
        assert!(promotion.iter().all(is_address), "{promotion:?}");
        let mut loud = silent.clone();
        loud.addresses.extend(&active.of_active);
        assert_eq!(plan(&loud, &active), []);

        let demotion = plan(&loud, &standby);
        assert_eq!(demotion.len(), standby.of_active.len());
        let is_removal = |step: &Operation| matches!(step, Operation::RemoveAddress(_));
        assert!(demotion.iter().all(is_removal), "{demotion:?}");
        let mut silent = loud;
        silent
            .addresses
            .retain(|key, _| !standby.of_active.contains_key(key));
        assert_eq!(plan(&silent, &standby), []);
    }

    /// Networks that share SNAT ports have limits, which go when they are not shared any more.
    #[test]
    fn quotas_come_before_what_is_counted_and_go_again() {
        let second =
            "  api-m: { network: mgmt, listen: [\"10.32.96.60:6443/tcp\"], pool: kas-a }\n";
        let mut ids = Ids::default();
        let shared = build(&format!("{CONFIG}{second}"), &mut ids);
        let first = plan(&Current::default(), &shared);
        let bank = quota::bank(1, false);
        let limits = [
            (quota::index(1, bank), 21_120),
            (quota::index(2, bank), 14_080),
        ];
        let now = carry_out(Current::default(), &first);
        assert_eq!(now.quotas, HashMap::from(limits));
        assert_eq!(now.banks, HashMap::from([(0, bank)]));
        let is_of_quotas =
            |step: &Operation| matches!(step, Operation::SetBank(..) | Operation::SetQuota(..));
        let last = first.iter().rposition(is_of_quotas).unwrap();
        let opened = first
            .iter()
            .position(|step| matches!(step, Operation::SetNetwork(..)));
        assert!(last < opened.unwrap());

        let alone = plan(&now, &build(CONFIG, &mut ids));
        let steps: Vec<_> = alone.iter().filter(|step| is_of_quotas(step)).collect();
        let gone = limits.map(|(index, _)| Operation::SetQuota(index, 0));
        assert_eq!(steps, gone.iter().collect::<Vec<_>>());
        let now = carry_out(now, &alone);
        assert!(now.quotas.is_empty());
    }

    #[test]
    fn the_rules_of_both_families_are_one_set() {
        let desired = build(BOTH, &mut Ids::default());
        let first = plan(&Current::default(), &desired);
        let sets = first.iter().filter_map(|operation| match operation {
            Operation::WriteRules(_, rules) => Some(rules),
            _ => None,
        });
        let of_6 = |rules: &&Rules| rules.keys().any(|prefix| prefix.addr().is_ipv6());
        let of_4 = |rules: &&Rules| rules.keys().any(|prefix| prefix.addr().is_ipv4());
        let (sets, both) = (sets.clone(), sets.filter(of_6).filter(of_4));
        assert_eq!((sets.filter(of_6).count(), both.count()), (5, 4));
        let current = carry_out(Current::default(), &first);
        assert_eq!(plan(&current, &desired), []);
    }

    #[test]
    fn a_vip_opens_after_everything_that_it_needs() {
        let desired = build(CONFIG, &mut Ids::default());
        let plan = plan(&Current::default(), &desired);
        let position = |wanted: fn(&Operation) -> bool| plan.iter().position(wanted).unwrap();
        let vip =
            position(|op| matches!(op, Operation::SetAddress(_, address) if address.is_vip()));
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
                < first(|op| matches!(op, Operation::SetAddress(_, address) if address.is_vip()))
        );
    }

    /// A cell solicits IPv6 next hops from its link-local address: the answers would not reach it while that
    /// is not known, and the start would wait in vain.
    #[test]
    fn a_cell_may_ask_before_the_answers_are_waited_for() {
        let desired = build(BOTH, &mut Ids::default());
        let plan = plan(&Current::default(), &desired);
        let links = plan.iter().rposition(
            |op| matches!(op, Operation::SetAddress(_, address) if address.kind == KIND_LINK),
        );
        let hops = plan
            .iter()
            .position(|op| matches!(op, Operation::AwaitNextHops(_)));
        assert!(links.unwrap() < hops.unwrap());
    }

    /// New flows go out from a SNAT address only while what comes back to it is known.
    #[test]
    fn a_snat_address_takes_flows_only_while_it_is_open() {
        let one = "snat: [{ address: 10.32.96.50, ports: 1024-2047 }]";
        let two = format!(
            "{}, {{ address: 10.32.96.51, ports: 1024-2047 }}]",
            one.trim_end_matches(']')
        );
        let mut ids = Ids::default();
        let [fewer, more] = [one, &two].map(|snat| {
            let config = CONFIG.replace("snat: [10.32.96.50]", snat);
            assert!(config.contains(snat));
            build(&config, &mut ids)
        });
        for [from, to] in [[&fewer, &more], [&more, &fewer]] {
            let mut now = carry_out(Current::default(), &plan(&Current::default(), from));
            for operation in plan(&now, to) {
                now = carry_out(now, std::slice::from_ref(&operation));
                let snat = |address: &&Address| address.kind == KIND_SNAT;
                let open = now.addresses.values().filter(snat).count();
                let networks = now.networks.values();
                let used: usize = networks.map(|network| network.slots().count()).sum();
                assert!(used <= open, "{used} of {open} after {operation:?}");
            }
        }
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

    /// Two networks change places: in between neither has any frame.
    #[test]
    fn networks_that_change_places_never_meet() {
        let mut ids = Ids::default();
        let first = build(CONFIG, &mut ids);
        let current = carry_out(Current::default(), &plan(&Current::default(), &first));
        let mut swapped = first.clone();
        let [(_, one), (_, other)] = &mut swapped.networks[..] else {
            panic!("two networks");
        };
        std::mem::swap(&mut one.ifindex, &mut other.ifindex);
        let nics = [one.ifindex, other.ifindex];
        for (key, id) in &mut swapped.network_ids {
            if nics.contains(&key.ifindex) {
                *id = 3 - *id;
            }
        }
        let plan = plan(&current, &swapped);
        let mut now = current;
        for operation in plan {
            now = carry_out(now, &[operation]);
            for (key, id) in &now.network_ids {
                let record = now.networks[&u16::try_from(*id).unwrap()];
                assert!(
                    [record.ifindex, record.cell_ifindex].contains(&key.ifindex),
                    "{key:?} is mapped to {record:?}"
                );
            }
        }
        assert_eq!(super::plan(&now, &swapped), []);
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
