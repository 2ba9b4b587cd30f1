//! Ids by name: allocated once, kept for the life of the pins, whatever the order of the file.

mod of_kind;

use std::{
    collections::BTreeMap,
    iter,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use lb_common::{
    addr::Be32,
    maps::{MAX_BACKENDS, MAX_POOLS, MAX_SERVICES, addr6},
};

use self::of_kind::OfKind;

/// What an id is for. Ids of different kinds are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A label, by the IPv6 address that it stands for. First: what has one is registered after it.
    Label,
    /// A network, by name.
    Network,
    /// A service, by name.
    Service,
    /// A pool, by name.
    Pool,
    /// A backend, as `pool/backend@network/address`.
    Backend,
    /// A SNAT address, as `network/address:first-last`; its slot is the id minus one.
    Snat,
}

impl Kind {
    /// Every kind, in order.
    const ALL: [Self; 6] = [
        Self::Label,
        Self::Network,
        Self::Service,
        Self::Pool,
        Self::Backend,
        Self::Snat,
    ];

    /// Every kind in the registry: labels have a map of their own.
    pub const REGISTERED: [Self; 5] = [
        Self::Network,
        Self::Service,
        Self::Pool,
        Self::Backend,
        Self::Snat,
    ];

    /// The number of the kind in the registry; none if it is not there.
    pub const fn number(self) -> Option<u8> {
        use lb_common::maps::registry::{
            KIND_BACKEND, KIND_NETWORK, KIND_POOL, KIND_SERVICE, KIND_SNAT,
        };
        Some(match self {
            Self::Label => return None,
            Self::Network => KIND_NETWORK,
            Self::Service => KIND_SERVICE,
            Self::Pool => KIND_POOL,
            Self::Backend => KIND_BACKEND,
            Self::Snat => KIND_SNAT,
        })
    }

    /// The word for messages.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Label => "IPv6 address",
            Self::Network => "network",
            Self::Service => "service",
            Self::Pool => "pool",
            Self::Backend => "backend",
            Self::Snat => "SNAT address",
        }
    }
}

/// The most labels that there can be: see [`addr6`].
const MAX_LABELS: u32 = (1 << 28) - 2;

/// All ids that have been given out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    of_kind: [OfKind; Kind::ALL.len()],
    /// How far after a pool's id the number of its second table is; none where there is no room for one.
    second: Option<u32>,
    /// Of pools whose flows do not go by the table with the pool's own id.
    tables: BTreeMap<String, u32>,
    /// How many labels there is room for; none: as many as there can be.
    labels: Option<u32>,
    room: NameRoom,
}

/// How many names of a file there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRoom {
    /// Of services.
    pub services: u32,
    /// Of backends.
    pub backends: u32,
    /// Of pools.
    pub pools: u32,
}

impl Default for NameRoom {
    /// That of a new data plane.
    fn default() -> Self {
        Self {
            services: MAX_SERVICES,
            backends: MAX_BACKENDS,
            pools: MAX_POOLS,
        }
    }
}

impl Ids {
    /// None yet; the second table of a pool has the pool's id and `second`, if there is room for it.
    pub fn new(second: Option<u32>) -> Self {
        Self {
            second,
            ..Self::default()
        }
    }

    /// The same with room for so many labels.
    #[must_use]
    pub fn with_labels(self, most: u32) -> Self {
        Self {
            labels: Some(most),
            ..self
        }
    }

    /// The same with room for so many names.
    #[must_use]
    pub fn with_room(self, room: NameRoom) -> Self {
        Self { room, ..self }
    }

    /// How many names there is room for.
    pub const fn room(&self) -> NameRoom {
        self.room
    }

    /// Notes an id that was given out before.
    pub fn insert(&mut self, kind: Kind, name: &str, id: u32) {
        self.kind_mut(kind).insert(name, id);
    }

    const fn kind(&self, kind: Kind) -> &OfKind {
        let [label, network, service, pool, backend, snat] = &self.of_kind;
        match kind {
            Kind::Label => label,
            Kind::Network => network,
            Kind::Service => service,
            Kind::Pool => pool,
            Kind::Backend => backend,
            Kind::Snat => snat,
        }
    }

    const fn kind_mut(&mut self, kind: Kind) -> &mut OfKind {
        let [label, network, service, pool, backend, snat] = &mut self.of_kind;
        match kind {
            Kind::Label => label,
            Kind::Network => network,
            Kind::Service => service,
            Kind::Pool => pool,
            Kind::Backend => backend,
            Kind::Snat => snat,
        }
    }

    /// The id of `name`: its old one, or the lowest that is free, from 1 to `most`.
    ///
    /// # Errors
    ///
    /// If all are taken.
    pub fn assign(&mut self, kind: Kind, name: &str, most: u32) -> Result<u32> {
        let id = self.kind_mut(kind).assign(name, most);
        id.with_context(|| {
            format!(
                "no id is left for {} {name}: the running data plane has room for {most}, and what is \
                 configured no more keeps its id until its last flow has ended (`lb status` shows SNAT \
                 addresses that drain); of SNAT addresses a larger limits.snat_addresses with `lb run --migrate` makes \
                 more, of others `lb down` and a new start",
                kind.label(),
            )
        })
    }

    /// The id of `name`, if it has one.
    pub fn get(&self, kind: Kind, name: &str) -> Option<u32> {
        self.kind(kind).get(name)
    }

    /// The number of the table that a pool's flows go by.
    pub fn table(&self, pool: &str) -> Option<u32> {
        let table = self.tables.get(pool).copied();
        table.or_else(|| self.get(Kind::Pool, pool))
    }

    /// Whether there is room for two tables of each pool.
    pub const fn has_second_tables(&self) -> bool {
        self.second.is_some()
    }

    /// The number of the table of a pool that has not the pool's own id, if there is room for one.
    pub fn second_table(&self, pool: &str) -> Option<u32> {
        Some(self.get(Kind::Pool, pool)? + self.second?)
    }

    /// The numbers of the tables of the pool with this id.
    pub fn tables_of(&self, id: u32) -> impl Iterator<Item = u32> + use<> {
        let second = self.second.map(|second| id + second);
        iter::once(id).chain(second)
    }

    /// The name of the pool that a table is of.
    pub fn pool_of(&self, table: u32) -> Option<&str> {
        let first = self.second.and_then(|second| table.checked_sub(second));
        self.name(Kind::Pool, first.filter(|id| *id > 0).unwrap_or(table))
    }

    /// Notes which table a pool's flows go by.
    pub fn go_by(&mut self, pool: &str, table: u32) {
        self.tables.insert(pool.to_owned(), table);
    }

    /// These ids, with flows that go by the tables of `before`.
    #[must_use]
    pub fn with_tables_of(self, before: &Self) -> Self {
        let tables = before.tables.clone();
        Self { tables, ..self }
    }

    /// The name behind an id.
    pub fn name(&self, kind: Kind, id: u32) -> Option<&str> {
        self.kind(kind).name(id)
    }

    /// Names and ids of one kind, in order of name.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = (&str, u32)> {
        self.kind(kind).all()
    }

    /// What stands for an address in the records of the data plane, from now on.
    ///
    /// # Errors
    ///
    /// If no label is left for an IPv6 address.
    pub fn give(&mut self, address: IpAddr) -> Result<Be32> {
        if let IpAddr::V6(address) = address {
            let most = self.labels.unwrap_or(MAX_LABELS);
            self.assign(Kind::Label, &address.to_string(), most)?;
        }
        self.stands_for(address)
            .with_context(|| format!("{address} has no label: please report it"))
    }

    /// What stands for an address in the records of the data plane; none for one of IPv6 that was not
    /// [given](Self::give) anything.
    pub fn stands_for(&self, address: IpAddr) -> Option<Be32> {
        match address {
            IpAddr::V4(address) => Some(address.into()),
            IpAddr::V6(address) => self
                .get(Kind::Label, &address.to_string())
                .map(addr6::label),
        }
    }

    /// The address that this stands for in a record; none for a label that was taken back.
    pub fn address(&self, record: Be32) -> Option<IpAddr> {
        match addr6::index(record) {
            None => Some(IpAddr::V4(record.into())),
            Some(index) => self.name(Kind::Label, index)?.parse().ok(),
        }
    }

    /// The same in words: `?` for a label that was taken back.
    pub fn address_text(&self, record: Be32) -> String {
        let address = self.address(record);
        address.map_or_else(|| "?".to_owned(), |address| address.to_string())
    }

    /// The same with a port in host order, as in the file.
    pub fn endpoint(&self, record: Be32, port: u16) -> String {
        match self.address(record) {
            Some(address) => SocketAddr::new(address, port).to_string(),
            None => format!("?:{port}"),
        }
    }

    /// Forgets which names have been assigned: those of another configuration are about to be.
    pub fn begin(&mut self) {
        self.of_kind.iter_mut().for_each(OfKind::begin);
    }

    /// Takes an id back: nothing refers to it any more.
    pub fn free(&mut self, kind: Kind, name: &str) {
        self.kind_mut(kind).free(name);
        if kind == Kind::Pool {
            self.tables.remove(name);
        }
    }

    /// The ids that were given out before and whose names have not been [assigned](Self::assign) since: kind,
    /// name, number.
    pub fn unassigned(&self) -> impl Iterator<Item = (Kind, &str, u32)> {
        Kind::ALL.into_iter().flat_map(|kind| {
            self.kind(kind)
                .unassigned()
                .map(move |(name, id)| (kind, name, id))
        })
    }

    /// Every id: kind, name, number.
    pub fn all(&self) -> impl Iterator<Item = (Kind, &str, u32)> {
        Kind::ALL
            .into_iter()
            .flat_map(|kind| self.of(kind).map(move |(name, id)| (kind, name, id)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_with_its_name_and_gaps_are_filled() {
        let mut ids = Ids::default();
        ids.insert(Kind::Service, "api-b", 2);
        assert_eq!(ids.assign(Kind::Service, "api-b", 3).unwrap(), 2);
        assert_eq!(ids.assign(Kind::Service, "api-a", 3).unwrap(), 1);
        assert_eq!(ids.assign(Kind::Service, "api-c", 3).unwrap(), 3);
        assert_eq!(
            ids.assign(Kind::Pool, "api-a", 3).unwrap(),
            1,
            "kinds are independent"
        );
        let error = ids
            .assign(Kind::Service, "api-d", 3)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("service api-d") && error.contains("room for 3"),
            "{error}"
        );
        assert_eq!(ids.name(Kind::Service, 2), Some("api-b"));
    }

    #[test]
    fn an_ipv6_address_has_one_label_and_its_name_back() {
        let mut ids = Ids::default().with_labels(2);
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let (a, b) = (address("fd00::1"), address("2001:db8::5"));
        assert_eq!(ids.stands_for(a), None);
        let first = ids.give(a).unwrap();
        assert_eq!((first, ids.give(a).unwrap()), (addr6::label(1), first));
        assert_eq!(ids.give(b).unwrap(), addr6::label(2));
        assert_eq!(ids.stands_for(a), Some(first));
        assert_eq!(
            (ids.address(first), ids.address(addr6::label(2))),
            (Some(a), Some(b))
        );
        let error = ids.give(address("fd00::2")).unwrap_err().to_string();
        assert!(error.contains("IPv6 address fd00::2"), "{error}");
        let v4 = ids.give(address("10.0.0.1")).unwrap();
        assert_eq!(ids.address(v4), Some(address("10.0.0.1")));
        assert_eq!(ids.endpoint(v4, 80), "10.0.0.1:80");
        assert_eq!(ids.endpoint(first, 80), "[fd00::1]:80");
        ids.free(Kind::Label, "fd00::1");
        assert_eq!(ids.endpoint(first, 80), "?:80");
        assert_eq!(ids.give(address("fd00::2")).unwrap(), first);
    }

    #[test]
    fn a_second_table_takes_no_id() {
        let mut ids = Ids::new(Some(2));
        for (name, id) in [("a", 1), ("b", 2)] {
            assert_eq!(ids.assign(Kind::Pool, name, 2).unwrap(), id);
            assert_eq!(ids.second_table(name), Some(id + 2));
            assert_eq!(ids.tables_of(id).collect::<Vec<_>>(), [id, id + 2]);
            assert_eq!(
                [id, id + 2].map(|table| ids.pool_of(table)),
                [Some(name); 2]
            );
        }
        assert_eq!([0, 5].map(|table| ids.pool_of(table)), [None; 2]);
        ids.go_by("a", 3);
        ids.free(Kind::Pool, "a");
        assert_eq!(ids.assign(Kind::Pool, "c", 2).unwrap(), 1);
        ids.insert(Kind::Pool, "a", 7);
        assert_eq!(ids.table("a"), Some(7), "it begins anew");
    }

    #[test]
    fn an_id_that_nobody_asks_for_can_be_taken_back_and_given_out_again() {
        let mut ids = Ids::default();
        ids.insert(Kind::Network, "tenant-a", 1);
        ids.insert(Kind::Network, "tenant-b", 2);
        assert_eq!(ids.assign(Kind::Network, "tenant-b", 2).unwrap(), 2);
        let unused: Vec<_> = ids.unassigned().collect();
        assert_eq!(unused, [(Kind::Network, "tenant-a", 1)]);
        let error = ids.assign(Kind::Network, "tenant-c", 2).unwrap_err();
        assert!(error.to_string().contains("room for 2"), "{error}");
        ids.free(Kind::Network, "tenant-a");
        assert_eq!(ids.assign(Kind::Network, "tenant-c", 2).unwrap(), 1);
    }
}
