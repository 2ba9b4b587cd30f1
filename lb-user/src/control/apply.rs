//! Carries a plan out, operation by operation, and keeps the next hops. It decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use lb_common::maps::{
    backend::Backend,
    counts, half_open,
    registry::RegistryKey,
    service::Service,
    snat::{PAGE, PAGES_PER_ADDRESS, SnatPage, base},
};
use tokio::{sync::mpsc::UnboundedReceiver, time};

use super::{
    built_tables::BuiltTables,
    describe::describe,
    plan::{Current, Operation},
    reclaim::lost_ids,
};
use crate::{
    config::Limits,
    dataplane::{
        egress::EgressNics, flows::FlowTable, grace, ipv6::Ipv6Maps, maps::Maps, object::Object,
        readings::Readings, snat_ports::lots,
    },
    model::{
        maglev::MaglevTable,
        registry::{Ids, Kind, NameRoom},
        snat::{SnatSlot, parse_name},
    },
    network::neighbour::{NeighbourChange, Resolved},
    system::systemd,
};

/// How many tables are written between two signs of life: they take less than a second.
const MAX_TABLES_AT_ONCE: usize = 64;
/// How long the first flows wait for next hops that do not answer.
const NEXT_HOP_TIMEOUT: Duration = Duration::from_secs(3);

/// The maps, and the backends' records as they stand in them.
pub struct Live {
    pub(super) maps: Maps,
    /// The tables of pools that were built last.
    pub(super) built: BuiltTables,
    egress: EgressNics,
    /// The tables in the maps, as far as they were read or written since [`Self::let_go`].
    tables: HashMap<u32, MaglevTable>,
    /// The registry, if it was read or written since then.
    registered: Option<Ids>,
    backends: BTreeMap<u32, Backend>,
    next_hops: BTreeMap<u32, IpAddr>,
    /// Network and address of the next hops that do not answer.
    silent: BTreeSet<(u16, IpAddr)>,
    /// What became of next hops while a plan was carried out, the latest of each: it is for the time after.
    pub(super) delayed: BTreeMap<(u16, IpAddr), NeighbourChange>,
}

impl Live {
    /// Takes over the maps. Backends become known as operations set them.
    pub fn new(maps: Maps) -> Self {
        Self {
            maps,
            built: BuiltTables::default(),
            egress: EgressNics::default(),
            tables: HashMap::new(),
            registered: None,
            backends: BTreeMap::new(),
            next_hops: BTreeMap::new(),
            silent: BTreeSet::new(),
            delayed: BTreeMap::new(),
        }
    }

    /// The maps once more, for another thread.
    ///
    /// # Errors
    ///
    /// If one cannot be opened.
    pub fn beside(&self, folder: &Path) -> Result<Maps> {
        self.maps.open_beside(folder)
    }

    /// The maps once more, for a thread that shows what is in all of them.
    ///
    /// # Errors
    ///
    /// If one cannot be opened.
    pub fn to_observe(&self, folder: &Path) -> Result<Maps> {
        self.maps.open_to_observe(folder)
    }

    /// What a thread that only reads goes by.
    ///
    /// # Errors
    ///
    /// If a map cannot be opened.
    pub fn readings(&self, folder: &Path) -> Result<Readings> {
        self.maps.readings(folder)
    }

    /// Takes the address of each backend's next hop: what [`Self::set_next_hop`] goes by.
    pub fn follow(&mut self, next_hops: BTreeMap<u32, IpAddr>) {
        let watched: BTreeSet<&IpAddr> = next_hops.values().collect();
        self.silent.retain(|(_, address)| watched.contains(address));
        self.next_hops = next_hops;
    }

    /// The limits that the maps were made with, which may not be those of the file.
    pub const fn limits(&self) -> Limits {
        self.maps.limits()
    }

    /// Has the data plane drop what belongs to a network, until its record is written again.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub fn close(&mut self, network: u32) -> Result<()> {
        self.maps.stop_network(network, true)
    }

    /// Opens the networks that a [fence](super::fence) has closed.
    ///
    /// # Errors
    ///
    /// If the kernel refuses.
    pub(super) fn open_networks(&mut self, networks: &[u32]) -> Result<()> {
        let mut networks = networks.iter();
        networks.try_for_each(|network| self.maps.stop_network(*network, false))
    }

    /// Whether one of these networks is closed.
    pub(super) fn has_closed(&self, networks: &[u32]) -> bool {
        let mut networks = networks.iter();
        networks.any(|network| {
            let record = self.maps.networks.get(network, 0);
            record.is_ok_and(|record| record.is_stopped())
        })
    }

    /// Whether a network has backends, and no next hop of them answers.
    pub(super) fn is_cut_off(&self, network: u16) -> bool {
        if self.silent.is_empty() {
            return false;
        }
        let backends = self.backends.iter();
        let of_network = backends.filter(|(_, backend)| backend.network == network);
        let mut of_network = of_network.peekable();
        of_network.peek().is_some() && of_network.all(|(id, _)| self.is_silent(*id))
    }

    /// The ids that have been given out.
    ///
    /// # Errors
    ///
    /// If the registry cannot be read.
    pub fn ids(&mut self) -> Result<Ids> {
        let ids = match self.registered.take() {
            Some(ids) => ids,
            None => read_ids(&self.maps)?,
        };
        self.registered = Some(ids.clone());
        Ok(ids)
    }

    /// Writes new ids to the registry, before anything refers to them.
    ///
    /// # Errors
    ///
    /// If the registry is full or a name too long.
    pub fn save_ids(&mut self, ids: &Ids) -> Result<()> {
        if let Some(counts) = &self.maps.counts {
            counts.make(counted(ids))?;
        }
        let known = self.ids()?;
        // Of a registry that is written in part nothing is known.
        self.registered = None;
        for (kind, name, id) in ids.all() {
            if known.get(kind, name) == Some(id) {
                continue;
            }
            let registered = match kind.number() {
                None => self.maps.ipv6()?.set_label(name.parse()?, id),
                Some(number) => {
                    let key = RegistryKey::new(number, name).with_context(|| {
                        format!("the name of {} {name} is too long", kind.label())
                    })?;
                    let inserted = self.maps.registry.insert(&key, &id, 0);
                    inserted.map_err(anyhow::Error::from)
                }
            };
            registered.with_context(|| format!("register {} {name}", kind.label()))?;
        }
        self.registered = Some(ids.clone());
        Ok(())
    }

    /// Takes an id out of the registry, after what had it.
    ///
    /// # Errors
    ///
    /// If it is not there.
    pub(super) fn forget_id(&mut self, kind: Kind, name: &str) -> Result<()> {
        if let Some(ids) = &mut self.registered {
            ids.free(kind, name);
        }
        match kind.number() {
            None => self.maps.ipv6()?.remove_label(name.parse()?),
            Some(number) => {
                let key = RegistryKey::new(number, name).context("a registered name fits")?;
                Ok(self.maps.registry.remove(&key)?)
            }
        }
    }

    /// Makes the key of the hash of clients' IPv6 addresses, if there is none yet.
    ///
    /// # Errors
    ///
    /// If the kernel has no random numbers or refuses the write.
    pub fn make_hash_key(&mut self) -> Result<()> {
        self.maps.ipv6()?.make_hash_key()?;
        self.maps.flow_lines.make_key()
    }

    /// Puts back the free flow ids of all SNAT addresses that another process lost when it was killed; see
    /// [`lost_ids::recover`]. `folder` has the pinned maps.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a look-up, a turn or a push.
    pub fn recover(&mut self, object: &Object, ids: &Ids, folder: &Path) -> Result<()> {
        let table = FlowTable::open(folder)?;
        for (name, id) in ids.of(Kind::Snat) {
            let (Some((_, snat)), Some(slot)) = (parse_name(name), id.checked_sub(1)) else {
                continue;
            };
            let slot = SnatSlot::new(u16::try_from(slot)?, snat, ids);
            if self.maps.is_queue_closed(u32::from(slot.slot))? {
                self.maps
                    .set_free_ids(u32::from(slot.slot), u32::from(snat.ports))?;
            }
            let recovered = lost_ids::recover(&self.maps, object, &table, &slot)?;
            if recovered > 0 {
                tracing::info!(
                    address = name,
                    recovered,
                    "SNAT ports that no flow had were missing among the free ones, and are back"
                );
            }
        }
        Ok(())
    }

    /// Lets go of what another process has made in place of what this one knows.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a look-up.
    pub fn let_go(&mut self) -> Result<()> {
        self.tables.clear();
        self.registered = None;
        self.maps.let_go()
    }

    /// What the maps hold, as far as `ids` names it.
    ///
    /// # Errors
    ///
    /// If a map cannot be read.
    pub fn current(&mut self, ids: &Ids) -> Result<Current> {
        let maps = &self.maps;
        let mut current = Current {
            network_ids: maps
                .network_ids
                .iter()
                .collect::<Result<HashMap<_, _>, _>>()?,
            addresses: maps
                .addresses
                .iter()
                .collect::<Result<HashMap<_, _>, _>>()?,
            names: maps.names()?,
            services: maps.services.iter().collect::<Result<HashMap<_, _>, _>>()?,
            ..Current::default()
        };
        for (key, service) in &current.services {
            self.egress.note_service(key, service);
        }
        for (_, id) in ids.of(Kind::Network) {
            let id = u16::try_from(id)?;
            let record = maps.networks.get(&u32::from(id), 0)?;
            self.egress.note(id, &record);
            current.networks.insert(id, record);
            for index in [false, true].map(|udp| half_open::index(id, udp)) {
                if let Some(places) = maps.ring_places(index)? {
                    current.rings.insert(index, places);
                }
            }
        }
        for (_, id) in ids.of(Kind::Backend) {
            current.backends.insert(id, maps.backends.get(&id, 0)?);
        }
        for number in ids.of(Kind::Pool).flat_map(|(_, id)| ids.tables_of(id)) {
            let known = self.tables.get(&number).cloned();
            let table = match known {
                Some(table) => Some(table),
                None => maps.maglev(number)?.map(MaglevTable::from),
            };
            if let Some(table) = table {
                self.tables.insert(number, MaglevTable::clone(&table));
                current.tables.insert(number, table);
            }
        }
        for (_, id) in ids.of(Kind::Snat) {
            let slot = u16::try_from(id - 1)?;
            let bank = maps.quotas()?.bank(slot.into());
            if bank != 0 {
                current.banks.insert(slot, bank);
            }
            let page = maps.snat_pages.get(&(base(slot) / PAGE), 0)?;
            if page.address.raw() != 0 {
                current.snat.insert(slot, page.address);
            }
            // What cannot be opened at this moment is there.
            if maps.has_queue(slot).unwrap_or(true) {
                current.queues.insert(slot);
            }
        }
        current.quotas = maps.quotas()?.limits().collect();
        current.rules = maps.rules()?;
        self.backends = current
            .backends
            .iter()
            .map(|(&id, &backend)| (id, backend))
            .collect();
        Ok(current)
    }

    /// Carries out `plan` in order; `ids` names its numbers, and `object` has the programs that are needed.
    /// Next hops that arrive on `neighbours` meanwhile are written too.
    ///
    /// # Errors
    ///
    /// The first operation that the kernel refuses; those before it stay carried out.
    pub async fn apply(
        &mut self,
        plan: Vec<Operation>,
        ids: &Ids,
        object: &Object,
        neighbours: &mut UnboundedReceiver<NeighbourChange>,
    ) -> Result<()> {
        // Tables behind each other take the time of one.
        let are_tables = |a: &Operation, b: &Operation| a.is_of_table() && b.is_of_table();
        for some in plan.chunk_by(are_tables) {
            for operation in some {
                tracing::debug!("{}", describe(operation, ids));
            }
            match some {
                [Operation::AwaitNextHops(ids)] => self.await_next_hops(ids, neighbours).await?,
                [operation] => self.carry_out(operation, object)?,
                tables => {
                    for some in tables.chunks(MAX_TABLES_AT_ONCE) {
                        self.set_tables(&some.iter().filter_map(Operation::table).collect())?;
                        systemd::is_alive();
                    }
                }
            }
        }
        self.egress.write(object, self.maps.folder())?;
        self.open_doors()
    }

    /// Takes in whether a next hop answers. Returns its address and how many backends are behind it, if that is
    /// news and any are.
    pub fn note_next_hop(&mut self, change: &NeighbourChange) -> Option<(IpAddr, usize)> {
        let neighbour = change.neighbour();
        let is_news = match change {
            NeighbourChange::Resolved(_) => self.silent.remove(&neighbour),
            NeighbourChange::Silent { .. } => self.silent.insert(neighbour),
        };
        let behind = is_news.then(|| self.behind(neighbour).count())?;
        (behind > 0).then_some((neighbour.1, behind))
    }

    /// Whether the next hop of a backend does not answer.
    pub fn is_silent(&self, backend: u32) -> bool {
        if self.silent.is_empty() {
            return false;
        }
        let next_hop = self.next_hop_of(backend);
        next_hop.is_some_and(|next_hop| self.silent.contains(&next_hop))
    }

    /// The backends whose next hop in this network does not answer.
    pub(super) fn silent_in(&self, network: u16) -> BTreeSet<u32> {
        let silent = self.silent.iter().filter(|(id, _)| *id == network);
        silent.flat_map(|one| self.behind(*one)).collect()
    }

    /// The backends that have this network and address of a next hop.
    fn behind(&self, (network, address): (u16, IpAddr)) -> impl Iterator<Item = u32> {
        let next_hops = self.next_hops.iter();
        let ids = next_hops.filter(move |(_, next_hop)| **next_hop == address);
        ids.map(|(id, _)| *id)
            .filter(move |id| self.next_hop_of(*id) == Some((network, address)))
    }

    /// Network and address of the next hop of a backend.
    fn next_hop_of(&self, backend: u32) -> Option<(u16, IpAddr)> {
        let network = self.backends.get(&backend)?.network;
        Some((network, *self.next_hops.get(&backend)?))
    }

    /// Writes a resolved MAC into the slots of all backends that it is the next hop of.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a write.
    pub fn set_next_hop(&mut self, resolved: &Resolved) -> Result<()> {
        let next_hops = &self.next_hops;
        let behind = self.backends.iter_mut().filter(|(id, backend)| {
            backend.network == resolved.network && next_hops.get(id) == Some(&resolved.address)
        });
        let mut changed = false;
        for (id, backend) in behind.filter(|(_, backend)| backend.next_hop != resolved.mac) {
            backend.next_hop = resolved.mac;
            self.maps
                .backends
                .set(*id, &*backend, 0)
                .with_context(|| format!("set the next hop of {}", resolved.address))?;
            changed = true;
        }
        if changed {
            tracing::info!(address = %resolved.address, mac = %resolved.mac, "next hop");
        }
        Ok(())
    }

    /// Replaces the Maglev tables of pools, all in about the time of one.
    ///
    /// # Errors
    ///
    /// As for [`Maps::set_maglev`].
    pub(super) fn set_tables(&mut self, tables: &BTreeMap<u32, MaglevTable>) -> Result<()> {
        // Of those that are refused it is not known which are written.
        self.tables.retain(|number, _| !tables.contains_key(number));
        let written = tables.iter().map(|(number, table)| (*number, &**table));
        self.maps.set_maglev(&written.collect::<Vec<_>>())?;
        let written = tables.iter();
        self.tables
            .extend(written.map(|(number, table)| (*number, MaglevTable::clone(table))));
        Ok(())
    }

    fn carry_out(&mut self, operation: &Operation, object: &Object) -> Result<()> {
        self.close_doors_before(operation);
        let maps = &mut self.maps;
        match operation {
            Operation::WriteRules(set, rules) => maps.write_rules(*set, rules)?,
            Operation::ClearRules(set, prefixes) => maps.clear_rules(*set, prefixes)?,
            Operation::SetRing(index, places) => maps.set_ring(*index, *places)?,
            Operation::SetBank(slot, bank) => maps.quotas()?.set_bank(*slot, *bank)?,
            Operation::SetQuota(index, most) => maps.quotas()?.set_most(*index, *most)?,
            Operation::SetNetwork(id, network) => {
                maps.networks.set(u32::from(*id), network, 0)?;
                self.egress.note(*id, network);
            }
            Operation::MapNetwork(key, id) => maps.network_ids.insert(key, id, 0)?,
            Operation::UnmapNetwork(key) => maps.network_ids.remove(key)?,
            Operation::OpenSnat(snat) => self.open_snat(*snat, object)?,
            Operation::OpenPeerSnat(snat) => self.open_peer_snat(*snat)?,
            Operation::OpenQueue(snat) => self.open_queue(*snat, object)?,
            Operation::CloseQueue(snat) => maps.remove_free_ids(snat.slot)?,
            Operation::SetBackend(id, backend) => {
                maps.backends.set(*id, backend, 0)?;
                self.backends.insert(*id, *backend);
            }
            Operation::AwaitNextHops(_) => {}
            Operation::SetTable(..) => self.set_tables(&operation.table().into_iter().collect())?,
            Operation::SetName(key, route) => maps.set_name(key, *route)?,
            Operation::RemoveName(key) => maps.remove_name(key)?,
            Operation::SetService(key, service) => {
                maps.services.insert(key, service, 0)?;
                self.egress.note_service(key, service);
            }
            Operation::RemoveService(key) => {
                maps.services.remove(key)?;
                self.egress.note_service(key, &Service::default());
            }
            Operation::SetAddress(key, address) => maps.addresses.insert(key, address, 0)?,
            Operation::RemoveAddress(key) => maps.addresses.remove(key)?,
            Operation::AwaitPackets => grace::wait(),
        }
        Ok(())
    }

    /// Which port each id has, a fresh queue, then the pages, which make the slot count as open; no network hands out its
    /// ids before its record names the slot.
    fn open_snat(&mut self, snat: SnatSlot, object: &Object) -> Result<()> {
        let lots = lots(snat.snat.ports)?;
        self.maps.snat_ports.assign(&snat.address(), &lots);
        self.maps
            .set_free_ids(u32::from(snat.slot), u32::from(snat.snat.ports))?;
        object.fill(snat.slot, &snat.flow_ids().collect::<Vec<_>>())?;
        self.set_pages(snat.slot, &snat.page())
    }

    /// As [`Self::open_snat`], without a queue: what an earlier address has left in the slot goes.
    fn open_peer_snat(&mut self, snat: SnatSlot) -> Result<()> {
        let lots = lots(snat.snat.ports)?;
        self.maps.snat_ports.assign(&snat.address(), &lots);
        self.maps.remove_free_ids(snat.slot)?;
        self.set_pages(snat.slot, &snat.page())
    }

    /// A queue of the ids that no flow has, for an address that is open. The queue comes before the look at them: a flow that
    /// ends in between gives its id back itself, and an id that is in the queue twice leaves it once when a flow has it.
    fn open_queue(&mut self, snat: SnatSlot, object: &Object) -> Result<()> {
        self.maps
            .set_free_ids(u32::from(snat.slot), u32::from(snat.snat.ports))?;
        let free = self.maps.snat_ports.free(snat.flow_ids());
        object.fill(snat.slot, &free)
    }

    /// Writes all pages of a slot. The first one marks the slot as open: it is written last, and cleared
    /// first.
    pub(super) fn set_pages(&mut self, slot: u16, page: &SnatPage) -> Result<()> {
        let first = base(slot) / PAGE;
        let closes = page.address.raw() == 0;
        for offset in 0..PAGES_PER_ADDRESS {
            let offset = if closes {
                offset
            } else {
                PAGES_PER_ADDRESS - 1 - offset
            };
            self.maps.snat_pages.set(first + offset, page, 0)?;
        }
        Ok(())
    }

    async fn await_next_hops(
        &mut self,
        ids: &[u32],
        neighbours: &mut UnboundedReceiver<NeighbourChange>,
    ) -> Result<()> {
        let deadline = time::Instant::now() + NEXT_HOP_TIMEOUT;
        loop {
            let missing: Vec<(&u32, &Backend)> = ids
                .iter()
                .filter_map(|id| Some((id, self.backends.get(id)?)))
                .filter(|(_, backend)| backend.next_hop.is_none())
                .collect();
            if missing.is_empty() {
                return Ok(());
            }
            match time::timeout_at(deadline, neighbours.recv()).await {
                Ok(Some(change)) => {
                    if let NeighbourChange::Resolved(resolved) = &change {
                        self.set_next_hop(resolved)?;
                    }
                    self.delayed.insert(change.neighbour(), change);
                }
                Ok(None) => return Ok(()),
                Err(_) => {
                    for (id, _) in missing {
                        let next_hop = self.next_hops.get(id).map(IpAddr::to_string);
                        let next_hop = next_hop.unwrap_or_default();
                        tracing::warn!(
                            next_hop,
                            "the next hop does not answer ARP or neighbour discovery yet: its backends get no \
                             new flows until it does"
                        );
                    }
                    return Ok(());
                }
            }
        }
    }
}

/// The records of all that is counted.
pub(super) fn counted(ids: &Ids) -> impl Iterator<Item = u32> {
    let short = |(_, id)| u16::try_from(id).unwrap_or_default();
    let networks = ids.of(Kind::Network).map(short).map(counts::network);
    let backends = ids.of(Kind::Backend).map(|(_, id)| counts::backend(id));
    let services = ids.of(Kind::Service).map(short).map(counts::service);
    networks.chain(backends).chain(services)
}

/// The ids in the registry of `maps`.
///
/// # Errors
///
/// If it cannot be read.
pub fn read_ids(maps: &Maps) -> Result<Ids> {
    let Limits {
        services,
        backends,
        pools,
        ..
    } = maps.limits();
    let room = NameRoom {
        services,
        backends,
        pools,
    };
    let mut ids = Ids::new(maps.second_tables()).with_room(room);
    if let Some(maps) = &maps.ipv6 {
        ids = ids.with_labels(maps.label_room());
    }
    for entry in maps.registry.iter() {
        let (key, id) = entry.context("read the registry")?;
        let mut kinds = Kind::REGISTERED.into_iter();
        if let Some(kind) = kinds.find(|kind| kind.number() == Some(key.kind)) {
            ids.insert(kind, key.name(), id);
        }
    }
    let labels = maps.ipv6.as_ref().map(Ipv6Maps::labels).transpose()?;
    for (address, index) in labels.unwrap_or_default() {
        ids.insert(Kind::Label, &address.to_string(), index);
    }
    Ok(ids)
}
