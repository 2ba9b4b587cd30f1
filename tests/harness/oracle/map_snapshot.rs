//! The maps without their numbers: two instances with the same configuration agree in this, whatever was
//! there before.

use std::{collections::BTreeSet, fs, net::Ipv4Addr, path::Path};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use lb_common::maps::{
    cell_peer::PeerKey,
    half_open,
    network::{Address, Network},
    service::Service,
    snat::{PAGE, base},
};
use lb_user::{
    control::apply::read_ids,
    dataplane::{maps::Maps, pins::Pins},
    model::registry::{Ids, Kind},
};

/// What an entry begins with that is a local peer: one that nothing talks to any more stays for a while.
pub const PEER: &str = "peer";

/// What the maps of an instance hold that a configuration decides, by names instead of ids.
///
/// # Errors
///
/// When the instance is not up.
pub fn entries(instance: &str) -> Result<BTreeSet<String>> {
    let maps = Maps::open(&Pins::new(instance).maps())?;
    let ids = read_ids(&maps)?;
    let mut view = View {
        entries: BTreeSet::new(),
        maps,
        ids,
    };
    view.add_networks()?;
    view.add_addresses()?;
    view.add_services()?;
    view.add_peers(instance)?;
    view.add_numbers()?;
    Ok(view.entries)
}

/// The names that have ids.
///
/// # Errors
///
/// When the instance is not up.
pub fn names(instance: &str) -> Result<BTreeSet<String>> {
    let ids = read_ids(&Maps::open(&Pins::new(instance).maps())?)?;
    let names = ids.all();
    Ok(names
        .map(|(kind, name, _)| format!("{kind:?} {name}"))
        .collect())
}

/// Every name in the folders of an instance: pins, files, cells; but for the state, which is there once
/// something is known that a process leaves to the next one.
pub fn folders(instance: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let pins = Pins::new(instance);
    for folder in [pins.root(), pins.runtime(), pins.state()] {
        list(&folder, &mut found);
    }
    let cells = fs::read_dir("/run/netns").into_iter().flatten();
    let cells = cells.filter_map(|cell| cell.ok()?.file_name().into_string().ok());
    found.extend(cells.filter(|cell| cell.starts_with(&format!("lb.{instance}."))));
    for state in ["state.json", "state.json.copy"] {
        found.remove(&pins.runtime().join(state).display().to_string());
    }
    for state in ["overrides.json", "overrides.json.copy"] {
        found.remove(&pins.state().join(state).display().to_string());
    }
    found
}

fn list(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        found.insert(entry.path().display().to_string());
        list(&entry.path(), found);
    }
}

struct View {
    entries: BTreeSet<String>,
    maps: Maps,
    ids: Ids,
}

impl View {
    fn name(&self, kind: Kind, id: impl Into<u32>) -> String {
        let id = id.into();
        let name = self.ids.name(kind, id).map(str::to_owned);
        name.unwrap_or_else(|| format!("number {id}"))
    }

    fn add(&mut self, entry: String) {
        self.entries.insert(entry);
    }

    /// A rule set by what is in it.
    fn rules(&self, set: u32) -> Result<String> {
        Ok(match set {
            0 => "none".to_owned(),
            set => format!("{:?}", self.maps.rules()?.get(&set)),
        })
    }

    fn add_networks(&mut self) -> Result<()> {
        for entry in self.maps.network_ids.iter().collect::<Vec<_>>() {
            let (key, id) = entry?;
            let network = self.name(Kind::Network, id);
            self.add(format!("{key:?} is of {network}"));
        }
        let networks = self.ids.of(Kind::Network);
        let networks: Vec<u32> = networks.map(|(_, id)| id).collect();
        for id in networks {
            let network = self.maps.networks.get(&id, 0)?;
            let snat: Vec<String> = network
                .slots()
                .map(|slot| self.name(Kind::Snat, u32::from(slot) + 1))
                .collect();
            let short = u16::try_from(id)?;
            let places =
                [false, true].map(|udp| self.maps.ring_places(half_open::index(short, udp)));
            let [sources, destinations] =
                [network.sources, network.destinations].map(|set| self.rules(set));
            let record = Network {
                sources: 0,
                destinations: 0,
                snat_slots: Default::default(),
                snat_set: Default::default(),
                ..network
            };
            let (name, [tcp, udp]) = (self.name(Kind::Network, id), places);
            self.add(format!(
                "network {name}: {record:?} {snat:?} {:?} {:?} {} {}",
                tcp?, udp?, sources?, destinations?
            ));
        }
        Ok(())
    }

    fn add_addresses(&mut self) -> Result<()> {
        for entry in self.maps.addresses.iter().collect::<Vec<_>>() {
            let (key, address) = entry?;
            let network = self.name(Kind::Network, key.network);
            let (name, record) = (Ipv4Addr::from(key.address), Address { base: 0, ..address });
            self.add(format!("{name} of {network}: {record:?}"));
        }
        let snat = self.ids.of(Kind::Snat);
        let snat: Vec<(String, u32)> = snat.map(|(name, id)| (name.to_owned(), id)).collect();
        for (name, id) in snat {
            let page = self
                .maps
                .snat_pages
                .get(&(base(u16::try_from(id - 1)?) / PAGE), 0)?;
            let address = Ipv4Addr::from(page.address);
            self.add(format!("snat {name}: {address}"));
        }
        Ok(())
    }

    fn add_services(&mut self) -> Result<()> {
        for entry in self.maps.services.iter().collect::<Vec<_>>() {
            let (key, service) = entry?;
            let (vip, port) = (Ipv4Addr::from(key.vip), key.port);
            let network = self.name(Kind::Network, key.network);
            let name = self.name(Kind::Service, service.id);
            let rules = self.rules(service.rules)?;
            let table = self.table(service.pool)?;
            ensure!(service.mark == key.mark(), "{name} has another's mark");
            let record = Service {
                id: 0,
                mark: 0,
                pool: 0,
                rules: 0,
                ..service
            };
            self.add(format!(
                "service {name}: {network} {vip}:{port:?}/{} {record:?} {rules} {table:?}",
                key.protocol
            ));
        }
        Ok(())
    }

    /// The peers of the sockets of the cells.
    fn add_peers(&mut self, instance: &str) -> Result<()> {
        let pin = Pins::new(instance).maps().join("LOCAL_PEERS");
        let pin = MapData::from_pin(pin).context("open the local peers")?;
        let peers: HashMap<MapData, PeerKey, u32> = Map::HashMap(pin).try_into()?;
        for entry in peers.iter() {
            let (peer, is_peer) = entry?;
            let network = self.name(Kind::Network, peer.network);
            let address = Ipv4Addr::from(peer.address);
            self.add(format!(
                "{PEER} {address}:{:?} of {network}: {is_peer}",
                peer.port
            ));
        }
        Ok(())
    }

    /// A Maglev table: which backend, where, and at which of its places.
    fn table(&self, number: u32) -> Result<Vec<String>> {
        let table = self.maps.maglev(number)?.unwrap_or_default();
        let mut who = Vec::new();
        for id in table {
            let backend = self.maps.backends.get(&id, 0)?;
            let (name, address) = (
                self.name(Kind::Backend, id),
                Ipv4Addr::from(backend.address),
            );
            who.push(format!(
                "{name} {address}:{:?} {:?}",
                backend.port, backend.next_hop
            ));
        }
        Ok(who)
    }

    /// How much there is of what has numbers alone.
    fn add_numbers(&mut self) -> Result<()> {
        let sets = self.maps.rules()?.len();
        self.add(format!("{sets} rule sets"));
        let mut tables = 0;
        let pools = self.ids.of(Kind::Pool);
        for number in pools.flat_map(|(_, id)| self.ids.tables_of(id)) {
            let table = self.maps.maglev(number)?.unwrap_or_default();
            tables += usize::from(!table.is_empty());
        }
        self.add(format!("{tables} tables"));
        Ok(())
    }
}
