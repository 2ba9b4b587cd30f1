//! What is live, read from the pins: right whether a control plane is running or not.

mod drops;
pub(crate) mod flows;
mod nodes;
mod records;
mod status;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::Arc,
};

use anyhow::{Context as _, Result};
use lb_common::{
    maglev,
    maps::{self, MAX_NETWORKS, backend::Backend, usage},
};

use crate::{
    config::Config,
    dataplane::{
        backend_answers::AnswerTable, counted::Counted, flows::FlowTable, labels::Labels,
        maps::Maps, pins::Pins,
    },
    model::{
        names::{AppliedNames, backend_name},
        registry::{Ids, Kind},
        snat::{self, SnatSlot},
    },
};

pub use crate::model::packet::SampledPacket;
pub use nodes::NodeLine;
pub use records::{
    BackendLine, DropLine, ELSEWHERE, FlowCounts, FlowIds, MISSING, NetworkStatus, QuotaStatus,
    RingStatus, SampleLine, ServiceLine, SnatStatus, Status, SynCounts, Verdicts, WhoLine,
};

/// What a record has, of an object that may have no id yet.
fn of(counted: Option<&Counted>, record: Option<u32>) -> Option<FlowCounts> {
    let counted = counted?;
    let record = record.map(|record| FlowCounts::from(&counted.get(record)));
    Some(record.unwrap_or_default())
}

/// An instance as an observer sees it.
pub struct Observer {
    pins: Pins,
    maps: Maps,
    table: FlowTable,
    answers: Option<AnswerTable>,
    labels: Labels,
    names: Arc<AppliedNames>,
    is_elsewhere: bool,
}

impl Observer {
    /// By maps that are opened, of an instance in which these names are applied; `is_elsewhere`: its control plane runs,
    /// or ran, in another network namespace than this process.
    ///
    /// # Errors
    ///
    /// If a pin cannot be opened.
    pub fn new(
        pins: Pins,
        maps: Maps,
        names: Arc<AppliedNames>,
        is_elsewhere: bool,
    ) -> Result<Self> {
        let folder = pins.maps();
        Ok(Self {
            table: FlowTable::open(&folder)?,
            answers: AnswerTable::open(&folder)?,
            labels: Labels::open(&folder)?,
            pins,
            maps,
            names,
            is_elsewhere,
        })
    }

    /// From now on these names are applied.
    pub fn set_names(&mut self, names: &Arc<AppliedNames>) {
        self.names = Arc::clone(names);
    }

    fn config(&self) -> &Config {
        &self.names.config
    }

    fn ids(&self) -> &Ids {
        &self.names.ids
    }

    /// What the VIPs listen on.
    ///
    /// # Errors
    ///
    /// If the map of flows in use cannot be read.
    pub fn services(&self) -> Result<Vec<ServiceLine>> {
        let mut lines = Vec::new();
        let ids = self.ids().of(Kind::Service);
        let ids = ids.filter_map(|(_, id)| u16::try_from(id).ok());
        let counted = self.counted(ids.map(maps::counts::service));
        for service in &self.config().services {
            let id = self.ids().get(Kind::Service, &service.name);
            let id = id.map(u16::try_from).transpose()?;
            let flows = id.map(|id| self.maps.usage(usage::service(id)));
            let flows = flows.transpose()?.unwrap_or_default();
            let pools: Vec<String> = service.target.pools().map(ToOwned::to_owned).collect();
            lines.extend(service.listen.iter().map(|listen| ServiceLine {
                name: service.name.clone(),
                network: service.network.clone(),
                listen: listen.to_string(),
                pools: pools.clone(),
                flows,
                counts: of(counted.as_ref(), id.map(maps::counts::service)),
            }));
        }
        Ok(lines)
    }

    /// What has been counted in these records; none of a data plane that is older and does not count.
    fn counted(&self, records: impl IntoIterator<Item = u32>) -> Option<Counted> {
        let table = self.maps.counts.as_ref()?;
        Some(Counted::read(table, &self.table, records))
    }

    /// Where the flow log is, if the applied configuration has one.
    pub fn flow_log(&self) -> Option<&Path> {
        self.config().flow_log.as_deref()
    }

    /// The names of the pools.
    pub fn pools(&self) -> impl Iterator<Item = &str> {
        self.config().pools.iter().map(|pool| pool.name.as_str())
    }

    /// How the backend with this id has answered.
    fn syns(&self, id: Option<u32>) -> Option<SynCounts> {
        let answers = self.answers.as_ref()?;
        Some(id.map(|id| answers.get(id)).unwrap_or_default().into())
    }

    /// Backends with the next hops that the data plane uses.
    ///
    /// # Errors
    ///
    /// If the map cannot be read.
    pub fn backends(&self) -> Result<Vec<BackendLine>> {
        let used = self.tables_in_use()?;
        let ids = self.ids().of(Kind::Backend);
        let counted = self.counted(ids.map(|(_, id)| maps::counts::backend(id)));
        let mut lines = Vec::new();
        for pool in &self.config().pools {
            let shares = self.shares(&pool.name, &used)?;
            for backend in &pool.backends {
                let id = self.ids().get(Kind::Backend, &backend_name(pool, backend));
                let record = id.map(|id| self.maps.backends.get(&id, 0)).transpose()?;
                let share = id.and_then(|id| shares.get(&id)).copied();
                lines.push(BackendLine {
                    id,
                    name: backend.name.clone(),
                    pool: pool.name.clone(),
                    address: SocketAddr::new(backend.address, backend.port).to_string(),
                    weight: backend.weight,
                    share: share.unwrap_or_default(),
                    next_hop: record.and_then(|record| next_hop(&record)),
                    syns: self.syns(id),
                    counts: of(counted.as_ref(), id.map(maps::counts::backend)),
                });
            }
        }
        Ok(lines)
    }

    /// A backend that is configured no more and still has its id, for its flows.
    ///
    /// # Errors
    ///
    /// If the map cannot be read.
    pub fn retired_backend(&self, id: u32) -> Result<Option<BackendLine>> {
        let names = self.ids().name(Kind::Backend, id).and_then(|name| {
            let (name, _) = name.rsplit_once('@')?;
            name.split_once('/')
        });
        let Some((pool, name)) = names else {
            return Ok(None);
        };
        let found = self.maps.backends.get(&id, 0)?;
        let address = self.labels.address(found.address);
        let record = maps::counts::backend(id);
        Ok(Some(BackendLine {
            id: Some(id),
            name: name.to_owned(),
            pool: pool.to_owned(),
            address: flows::endpoint(address, found.port),
            weight: 0,
            share: 0.0,
            next_hop: next_hop(&found),
            syns: self.syns(Some(id)),
            counts: of(self.counted([record]).as_ref(), Some(record)),
        }))
    }

    /// The numbers of the Maglev tables that services go by.
    fn tables_in_use(&self) -> Result<BTreeSet<u32>> {
        let services = self.maps.services.iter();
        let mut used = BTreeSet::new();
        for entry in services {
            let (_, service) = entry.context("read the services")?;
            if !service.is_of_cell() {
                used.insert(service.pool);
            }
        }
        Ok(used)
    }

    /// The part of a pool's new flows that each of its backends gets, by id, in percent.
    fn shares(&self, pool: &str, used: &BTreeSet<u32>) -> Result<BTreeMap<u32, f64>> {
        let Some(first) = self.ids().get(Kind::Pool, pool) else {
            return Ok(BTreeMap::new());
        };
        let mut tables = self.ids().tables_of(first);
        let number = tables.find(|number| used.contains(number));
        let table = self.maps.maglev(number.unwrap_or(first))?;
        let table = table.unwrap_or_default();
        let mut known = BTreeSet::new();
        for id in table.iter().copied().collect::<BTreeSet<_>>() {
            if next_hop(&self.maps.backends.get(&id, 0)?).is_some() {
                known.insert(id);
            }
        }
        let entries = maglev::entries(&table, |id| known.contains(&id));
        let shares = entries.into_iter();
        Ok(shares
            .map(|(id, count)| (id, percent(count, table.len())))
            .collect())
    }

    /// Network 0, where frames of no network are counted, and every network that has an id.
    fn counted_networks(&self) -> impl Iterator<Item = u16> {
        let ids = self.ids().of(Kind::Network).map(|(_, id)| id);
        std::iter::once(0)
            .chain(ids)
            .filter(|&id| id < MAX_NETWORKS)
            .filter_map(|id| u16::try_from(id).ok())
    }

    /// Every SNAT address that has a slot, with its network's name.
    fn snat_slots(&self) -> Result<Vec<(&str, SnatSlot)>> {
        let mut slots = Vec::new();
        for (name, id) in self.ids().of(Kind::Snat) {
            if let Some((network, snat)) = snat::parse_name(name) {
                slots.push((
                    network,
                    SnatSlot::new(u16::try_from(id - 1)?, snat, self.ids()),
                ));
            }
        }
        Ok(slots)
    }

    fn name(&self, kind: Kind, id: u32) -> String {
        self.ids().name(kind, id).unwrap_or("-").to_owned()
    }
}

/// A part of a table, rounded up to hundredths: a small one is not none.
fn percent(entries: u32, of: usize) -> f64 {
    let of = u32::try_from(of).unwrap_or(u32::MAX).max(1);
    (f64::from(entries) / f64::from(of) * 10_000.0).ceil() / 100.0
}

fn next_hop(record: &Backend) -> Option<String> {
    let mac = Some(record.next_hop).filter(|mac| !mac.is_none());
    mac.map(|mac| mac.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_table_is_none_only_where_nothing_leads_there() {
        let near = |found: f64, wanted: f64| (found - wanted).abs() < 1e-9;
        assert!(near(percent(0, 509), 0.0) && near(percent(0, 0), 0.0));
        assert!(near(percent(1, 65_521), 0.01));
        assert!(near(percent(170, 509), 33.4));
        assert!(near(percent(509, 509), 100.0));
    }
}
