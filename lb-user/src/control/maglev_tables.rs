//! Which Maglev table a pool's flows go by. A service is its table and its record, and a packet must not
//! meet the new one of the first with the old one of the other. So a pool has two tables where it needs
//! them: the changed one is written whole to the one that is not in use, and each service's record
//! switches over. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
};

use lb_common::maps::{
    rule::Owner,
    service::{Service, ServiceKey},
};

use super::{desired::Desired, plan::Current};
use crate::{
    config::Config,
    model::{
        maglev::MaglevTable,
        registry::{Ids, Kind},
    },
};

/// The services that go by each table, by its number.
struct TableUsers(HashMap<u32, Vec<(ServiceKey, Service)>>);

/// Has each pool of `config` use one of its tables: the one that it uses already, if that has what is
/// wanted, or if nothing else changes of the services that go by it; else the other one.
pub fn choose(current: &Current, desired: &mut Desired, config: &Config, ids: &mut Ids) {
    let users = TableUsers::of(current);
    for pool in &config.pools {
        let Some(first) = ids.get(Kind::Pool, &pool.name) else {
            continue;
        };
        let Some(index) = desired.tables.iter().position(|(id, _)| *id == first) else {
            continue;
        };
        let second = ids.second_table(&pool.name);
        let number = pick(current, &users, desired, index, second);
        desired.go_by(index, number);
        let stale = if number == first { second } else { Some(first) };
        desired.stale_tables.extend(stale);
        ids.go_by(&pool.name, number);
    }
}

/// The tables that services go by, and one of each pool that none of them goes by, as they stand in the maps;
/// `ids` has from now on that flows go by them. For a change that was not completed: a pool may have both of
/// its tables in use then.
pub fn in_use(current: &Current, ids: &mut Ids) -> BTreeMap<u32, MaglevTable> {
    let users = TableUsers::of(current);
    let pools = ids.of(Kind::Pool);
    let pools: Vec<(String, u32)> = pools.map(|(name, id)| (name.to_owned(), id)).collect();
    let mut tables = BTreeMap::new();
    for (name, first) in pools {
        let used = users.used(ids.tables_of(first));
        ids.go_by(&name, used.first().copied().unwrap_or(first));
        let numbers = if used.is_empty() { vec![first] } else { used };
        tables.extend(numbers.into_iter().map(|number| {
            let table = current.tables.get(&number).cloned();
            (number, table.unwrap_or_default())
        }));
    }
    tables
}

impl TableUsers {
    fn of(current: &Current) -> Self {
        let mut users: HashMap<u32, Vec<(ServiceKey, Service)>> = HashMap::new();
        let services = current.services.iter();
        for (key, service) in services.filter(|(_, service)| !service.is_of_cell()) {
            let of_table = users.entry(service.pool).or_default();
            of_table.push((*key, *service));
        }
        Self(users)
    }

    /// Those of these tables that services go by.
    fn used(&self, numbers: impl Iterator<Item = u32>) -> Vec<u32> {
        numbers
            .filter(|number| self.0.contains_key(number))
            .collect()
    }
}

fn pick(
    current: &Current,
    users: &TableUsers,
    desired: &Desired,
    index: usize,
    second: Option<u32>,
) -> u32 {
    let Some((first, wanted)) = desired.tables.get(index) else {
        return 0;
    };
    let first = *first;
    let has = |number: u32| current.tables.get(&number).cloned().unwrap_or_default() == *wanted;
    let used = users.used(iter::once(first).chain(second));
    if let Some(number) = used.iter().copied().find(|number| has(*number)) {
        return number;
    }
    let stays = |number: u32| {
        let mut users = users.0.get(&number).into_iter().flatten();
        users.all(|(key, now)| stays(current, desired, *key, *now, first))
    };
    match used[..] {
        [number] if stays(number) => number,
        // Where there is no room for it, each of the two changes on its own.
        [number] if number == first => second.unwrap_or(first),
        // No service goes by either; or all by the second; or a change was interrupted, and then another one
        // requested.
        _ => first,
    }
}

/// Whether a service becomes what it is, but for the table of its pool, whose first one this is.
fn stays(current: &Current, desired: &Desired, key: ServiceKey, now: Service, pool: u32) -> bool {
    let Some(wanted) = desired.services.get(&key) else {
        return false;
    };
    let as_wanted = Service {
        pool,
        mark: wanted.mark,
        rules: 0,
        ..now
    };
    let rules = desired.rules.get(&Owner::Service(wanted.id));
    as_wanted == *wanted && current.rules.get(&now.rules) == rules
}

impl Desired {
    /// Has the services and names of a pool go by this table instead of the first one.
    fn go_by(&mut self, index: usize, number: u32) {
        let Some((id, _)) = self.tables.get_mut(index) else {
            return;
        };
        let first = std::mem::replace(id, number);
        if first == number {
            return;
        }
        let mut services = self.services.values_mut();
        while let Some(service) = services.find(|service| service.pool == first) {
            service.pool = number;
        }
        for name in self.names.values_mut().filter(|name| name.pool == first) {
            name.pool = number;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lb_common::maps::network::AddressKey;

    use super::{
        super::{
            backend_weights::Layers,
            desired::tests::{desired, places},
            plan::{carried_out, plan},
        },
        *,
    };
    use crate::{config, model::rules::Rules};

    const BEFORE: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  one: { network: mgmt, backends: [\"10.32.96.105:1\", \"10.32.96.106:1\"] }
  two: { network: mgmt, backends: [\"10.32.96.105:2\", \"10.32.96.106:2\"] }
  out: { network: mgmt, backends: [\"10.32.96.105:3\"] }
services:
  narrow: { network: tenant-a, listen: [\"192.168.203.110:1/tcp\"], pool: one, allow: [192.168.203.0/24] }
  wide:   { network: tenant-a, listen: [\"192.168.203.110:2/tcp\"], pool: one, allow: [192.168.203.1/32] }
  same:   { network: tenant-a, listen: [\"192.168.203.110:3/tcp\"], pool: one }
  two:    { network: tenant-a, listen: [\"192.168.203.110:4/tcp\"], pool: two }
  goes:   { network: tenant-a, listen: [\"192.168.203.111:1/tcp\"], pool: out }
  old:    { network: tenant-a, listen: [\"192.168.203.112:1/tcp\"], pool: two }
";
    const AFTER: &str = "
version: 1
networks:
  mgmt:     { role: mgmt,   interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50, 10.32.96.51] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }
pools:
  one: { network: mgmt, backends: [\"10.32.96.107:1\", { address: \"10.32.96.108:1\", weight: 3 }] }
  two: { network: mgmt, backends: [\"10.32.96.105:2\"] }
  in:  { network: mgmt, backends: [\"10.32.96.107:3\"] }
services:
  narrow: { network: tenant-a, listen: [\"192.168.203.110:1/tcp\"], pool: one, allow: [192.168.203.1/32] }
  wide:   { network: tenant-a, listen: [\"192.168.203.110:2/tcp\"], pool: one, allow: [192.168.203.0/24] }
  same:   { network: tenant-a, listen: [\"192.168.203.110:3/tcp\"], pool: one }
  two:    { network: tenant-a, listen: [\"192.168.203.110:4/tcp\"], pool: two }
  new:    { network: tenant-a, listen: [\"192.168.203.112:1/tcp\"], pool: in, max_flows: 9 }
  comes:  { network: tenant-a, listen: [\"192.168.203.113:1/tcp\"], pool: in }
";

    /// What a packet to a VIP and port meets.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Whole {
        flags: u32,
        budget: u32,
        rules: Option<Rules>,
        backends: Vec<(u32, u16)>,
    }

    fn services(current: &Current) -> BTreeMap<(u32, u16), Whole> {
        let open = |key: &ServiceKey| {
            let address = AddressKey::new(key.vip, key.network);
            current.addresses.contains_key(&address)
        };
        let backend = |id: &u32| {
            let backend = current.backends[id];
            (backend.address.raw(), backend.port.get())
        };
        let whole = |(key, service): (&ServiceKey, &Service)| {
            let table = current.tables.get(&service.pool);
            let table = table.into_iter().flat_map(|table| table.iter());
            let whole = Whole {
                flags: service.flags,
                budget: service.budget,
                rules: current.rules.get(&service.rules).cloned(),
                backends: table.map(backend).collect(),
            };
            ((key.vip.raw(), key.port.get()), whole)
        };
        let all = current.services.iter();
        all.filter(|(key, _)| open(key)).map(whole).collect()
    }

    /// The operations from what there is to a configuration.
    fn steps(current: &Current, text: &str, ids: &mut Ids) -> Vec<super::super::plan::Operation> {
        let config = config::parse("test.yaml", text).unwrap();
        ids.begin();
        let mut wanted = desired(&config, &places(), &Layers::default(), ids).unwrap();
        choose(current, &mut wanted, &config, ids);
        plan(current, &wanted)
    }

    fn ensure_whole(now: &Current, one: &Current, other: &Current, what: &str) {
        let [now, one, other] = [now, one, other].map(services);
        let keys: BTreeSet<_> = one.keys().chain(other.keys()).collect();
        for key in keys {
            let found = now.get(key);
            assert!(
                found == one.get(key) || found == other.get(key),
                "{what}: {key:?} is {found:?}, neither {:?} nor {:?}",
                one.get(key),
                other.get(key)
            );
        }
    }

    /// After each step of a change every service is of the one configuration or of the other, and so it is
    /// after each step of a process that begins there and makes it complete, or takes it back.
    #[test]
    fn a_service_is_wholly_old_or_wholly_new() {
        for (from, to) in [(BEFORE, AFTER), (AFTER, BEFORE)] {
            let mut ids = Ids::new(Some(256));
            let empty = Current::default();
            let before = carried_out(empty.clone(), &steps(&empty, from, &mut ids));
            let all = steps(&before, to, &mut ids);
            let after = carried_out(before.clone(), &all);
            assert_ne!(services(&before), services(&after));
            for count in 0..=all.len() {
                let now = carried_out(before.clone(), &all[..count]);
                let what = format!("{:?}", all.get(..count).and_then(<[_]>::last));
                ensure_whole(&now, &before, &after, &what);
                for next in [to, from] {
                    let mut ids = ids.clone();
                    let rest = steps(&now, next, &mut ids);
                    for done in 0..=rest.len() {
                        let now = carried_out(now.clone(), &rest[..done]);
                        ensure_whole(&now, &before, &after, &format!("{what}, then {done}"));
                    }
                    let end = carried_out(now.clone(), &rest);
                    let wanted = if next == to { &after } else { &before };
                    assert_eq!(services(&end), services(wanted), "{what}");
                    assert_eq!(steps(&end, next, &mut ids), [], "{what}");
                }
            }
        }
    }

    /// Wherever a change stops: verdicts must come to the tables that services go by.
    #[test]
    fn what_is_in_use_after_half_a_change_is_what_services_say() {
        let mut ids = Ids::new(Some(256));
        let empty = Current::default();
        let before = carried_out(empty.clone(), &steps(&empty, BEFORE, &mut ids));
        let chosen = ids.clone();
        let all = steps(&before, AFTER, &mut ids);
        let mut both = 0;
        for count in 0..=all.len() {
            let now = carried_out(before.clone(), &all[..count]);
            let mut ids = ids.clone().with_tables_of(&chosen);
            let tables = in_use(&now, &mut ids);
            for service in now.services.values() {
                let table = now.tables.get(&service.pool);
                assert_eq!(tables.get(&service.pool), table, "{:?}", all.get(count));
            }
            for pool in ["one", "two", "out", "in"] {
                let number = ids.table(pool).unwrap();
                assert!(tables.contains_key(&number), "{pool} goes by {number}");
            }
            both = both.max(tables.len());
        }
        assert_eq!(both, 5, "one has both of its tables in use in between");
    }

    /// An older data plane has no room for it: then each of the two changes on its own.
    #[test]
    fn where_there_is_no_room_for_a_second_table_the_first_one_changes() {
        let mut ids = Ids::new(None);
        let empty = Current::default();
        let before = carried_out(empty.clone(), &steps(&empty, BEFORE, &mut ids));
        let after = carried_out(before.clone(), &steps(&before, AFTER, &mut ids));
        let mut fresh = Ids::new(Some(256));
        let wanted = carried_out(empty.clone(), &steps(&empty, AFTER, &mut fresh));
        assert_eq!(services(&after), services(&wanted));
        assert_eq!(ids.table("one"), ids.get(Kind::Pool, "one"));
    }

    /// Another seed changes the choice for new flows, and nothing else.
    #[test]
    fn another_seed_changes_tables_alone() {
        let mut ids = Ids::new(Some(256));
        let empty = Current::default();
        let now = carried_out(empty.clone(), &steps(&empty, BEFORE, &mut ids));
        let seeded = format!("{BEFORE}seed: s\n");
        let all = steps(&now, &seeded, &mut ids);
        let is_table = |it: &_| matches!(it, super::super::plan::Operation::SetTable(..));
        assert!(
            all.len() == 2 && all.iter().all(is_table),
            "of the pools with two: {all:?}"
        );
        let then = carried_out(now.clone(), &all);
        assert_eq!(steps(&then, &seeded, &mut ids), []);
        let back = carried_out(then.clone(), &steps(&then, BEFORE, &mut ids));
        assert_eq!(services(&back), services(&now));
        assert_ne!(services(&then), services(&now));
    }

    /// Nothing is written twice where one write is enough, and the tables in use go to and fro.
    #[test]
    fn a_table_alone_is_replaced_in_its_place() {
        let mut ids = Ids::new(Some(256));
        let empty = Current::default();
        let now = carried_out(empty.clone(), &steps(&empty, BEFORE, &mut ids));
        let fewer = BEFORE.replace("105:2\", \"10.32.96.106:2", "105:2");
        assert!(matches!(
            steps(&now, &fewer, &mut ids)[..],
            [super::super::plan::Operation::SetTable(..)]
        ));
        assert_eq!(ids.table("two"), ids.get(Kind::Pool, "two"));
        let mut now = now;
        for text in [AFTER, BEFORE, AFTER, BEFORE] {
            now = carried_out(now.clone(), &steps(&now, text, &mut ids));
            let filled = now.tables.values().filter(|table| !table.is_empty());
            assert_eq!(filled.count(), 4, "those that are gone are freed later");
        }
    }
}
