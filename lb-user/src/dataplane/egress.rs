//! The NICs that frames leave by, and those of backends, to which the data plane copies a frame that has no room:
//! `lb-ebpf/src/syn_cookie/clone.rs`.

use std::{
    collections::{BTreeMap, HashSet},
    iter,
    path::Path,
};

use anyhow::{Context as _, Result};
use aya::{
    maps::{
        Map, MapData,
        xdp::{DevMap, DevMapHash},
    },
    programs::ProgramFd,
};
use lb_common::maps::{
    MAX_CLONES,
    network::{NETWORK_GENERIC, Network},
    service::{Service, ServiceKey},
};

use super::object::{EMIT, Object};

const CLONES: &str = "CLONES";
const EGRESS: &str = "EGRESS";

/// What the maps of NICs are to have.
#[derive(Debug, Default)]
pub struct EgressNics {
    /// The interfaces of networks, by the networks' ids, and whether these have SNAT addresses.
    nics: BTreeMap<u16, (u32, bool)>,
    /// The services whose connections the data plane opens at all times: for no others are there copies.
    bound: HashSet<ServiceKey>,
    /// What was written last: each NIC, and whether there are copies for it.
    written: Option<BTreeMap<u32, bool>>,
}

impl EgressNics {
    /// Notes where a network is.
    pub fn note(&mut self, id: u16, network: &Network) {
        // Nothing is copied where our programs run in the kernel's stack.
        let has_backends = network.snat_count > 0 && network.flags & NETWORK_GENERIC == 0;
        match network.ifindex {
            0 => drop(self.nics.remove(&id)),
            nic => drop(self.nics.insert(id, (nic, has_backends))),
        }
    }

    /// Notes what a service is; the default record of one that is not there.
    pub fn note_service(&mut self, key: &ServiceKey, service: &Service) {
        match service.binds() || service.has_cookies() && !service.is_of_cell() {
            true => drop(self.bound.insert(*key)),
            false => drop(self.bound.remove(key)),
        }
    }

    /// Writes the NICs that have been noted into the maps that are pinned in `folder`, with the program of `object`. From one that
    /// is gone, or of more than there is room for, backends get nothing that has no room in their own frames.
    ///
    /// # Errors
    ///
    /// If the object has no such program, or the kernel refuses a map.
    pub fn write(&mut self, object: &Object, folder: &Path) -> Result<()> {
        let mut nics = BTreeMap::new();
        let are_copied = !self.bound.is_empty();
        for (nic, has_backends) in self.nics.values() {
            *nics.entry(*nic).or_default() |= *has_backends && are_copied;
        }
        if self.written.as_ref() == Some(&nics) {
            return Ok(());
        }
        let program = object.descriptor(EMIT)?;
        // First where all frames have the program, and then what needs it.
        let before = self.written.take().unwrap_or_default();
        write_egress(folder, &nics, &before, program)?;
        write_clones(folder, &nics, program)?;
        self.written = Some(nics);
        Ok(())
    }
}

/// The pinned map with this name; none if the data plane is older.
fn map(folder: &Path, name: &str) -> Result<Option<MapData>> {
    let pin = folder.join(name);
    if !pin.exists() {
        return Ok(None);
    }
    let map = MapData::from_pin(pin);
    map.with_context(|| format!("open the pinned map {name}"))
        .map(Some)
}

fn write_egress(
    folder: &Path,
    nics: &BTreeMap<u32, bool>,
    before: &BTreeMap<u32, bool>,
    program: &ProgramFd,
) -> Result<()> {
    let Some(map) = map(folder, EGRESS)? else {
        return Ok(());
    };
    let mut map: DevMapHash<MapData> = Map::DevMapHash(map).try_into()?;
    for nic in before.keys().filter(|nic| !nics.contains_key(nic)) {
        // The kernel has taken it out if the interface is gone.
        let _gone = map.remove(*nic);
    }
    for (nic, has_copies) in nics {
        let program = has_copies.then_some(program);
        if let Err(error) = map.insert(*nic, *nic, program, 0) {
            tracing::warn!(
                interface = nic,
                "copies of frames for the interface may be lost: {error}"
            );
        }
    }
    Ok(())
}

fn write_clones(folder: &Path, nics: &BTreeMap<u32, bool>, program: &ProgramFd) -> Result<()> {
    let Some(map) = map(folder, CLONES)? else {
        return Ok(());
    };
    let mut map: DevMap<MapData> = Map::DevMap(map).try_into()?;
    let with_copies = nics.iter().filter(|(_, has_copies)| **has_copies);
    let nics: Vec<u32> = with_copies.map(|(nic, _)| *nic).collect();
    let places = nics.iter().flat_map(|nic| [Some(*nic); 2]);
    let places = places.chain(iter::repeat(None)).take(MAX_CLONES as usize);
    for (place, nic) in (0..).zip(places.chain([nics.first().copied()])) {
        // The kernel counts a place that is emptied twice as two.
        if nic.is_none() && map.get(place, 0).is_err() {
            continue;
        }
        let (nic, program) = nic.map_or((0, None), |nic| (nic, Some(program)));
        if let Err(error) = map.set(place, nic, program, 0) {
            tracing::warn!(
                interface = nic,
                "frames without room are not copied to the interface: {error}"
            );
        }
    }
    Ok(())
}
