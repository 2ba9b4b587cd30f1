//! The NICs of backends, to which the data plane copies a frame that has no room: `lb-ebpf/src/shared_vip/clone.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context as _, Result};
use aya::maps::{Map, MapData, xdp::DevMap};
use lb_common::maps::{MAX_CLONES, network::Network};

use super::object::{EMIT, Object};

const NAME: &str = "CLONES";

/// The map of NICs.
pub struct Clones {
    map: DevMap<MapData>,
    /// The interfaces of networks that have SNAT addresses, by the networks' ids.
    nics: BTreeMap<u16, u32>,
    /// What was written last.
    written: Option<BTreeSet<u32>>,
}

impl Clones {
    /// Opens the map that is pinned in `folder`; none of a data plane that is older than it is.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        let pin = folder.join(NAME);
        if !pin.exists() {
            return Ok(None);
        }
        let map = MapData::from_pin(pin).context("open the pinned map CLONES")?;
        Ok(Some(Self {
            map: Map::DevMap(map).try_into()?,
            nics: BTreeMap::new(),
            written: None,
        }))
    }

    /// Notes where a network is.
    pub fn note(&mut self, id: u16, network: &Network) {
        let has_backends = network.snat_count > 0 && network.ifindex != 0;
        match has_backends {
            true => drop(self.nics.insert(id, network.ifindex)),
            false => drop(self.nics.remove(&id)),
        }
    }

    /// Writes the NICs that have been noted, with the program of `object`. Of more than there is room for, and of those that
    /// are gone, backends get nothing from the data plane that has no room in their own frames.
    ///
    /// # Errors
    ///
    /// If the object has no such program.
    pub fn write(&mut self, object: &Object) -> Result<()> {
        let nics: BTreeSet<u32> = self.nics.values().copied().collect();
        if self.written.as_ref() == Some(&nics) {
            return Ok(());
        }
        let program = object.descriptor(EMIT)?;
        let first = nics.first().copied();
        let places = nics.iter().map(|nic| Some(*nic));
        let places = places
            .chain(std::iter::repeat(None))
            .take(MAX_CLONES as usize);
        for (place, nic) in (0..).zip(places.chain([first])) {
            let (nic, program) = nic.map_or((0, None), |nic| (nic, Some(program)));
            if let Err(error) = self.map.set(place, nic, program, 0) {
                tracing::warn!(
                    interface = nic,
                    "frames without room are not copied to the interface: {error}"
                );
            }
        }
        self.written = Some(nics);
        Ok(())
    }
}
