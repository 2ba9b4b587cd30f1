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

/// What the map of NICs is to have.
#[derive(Debug, Default)]
pub struct Clones {
    /// The interfaces of networks that have SNAT addresses, by the networks' ids.
    nics: BTreeMap<u16, u32>,
    /// What was written last.
    written: Option<BTreeSet<u32>>,
}

impl Clones {
    /// Notes where a network is.
    pub fn note(&mut self, id: u16, network: &Network) {
        let has_backends = network.snat_count > 0 && network.ifindex != 0;
        match has_backends {
            true => drop(self.nics.insert(id, network.ifindex)),
            false => drop(self.nics.remove(&id)),
        }
    }

    /// Writes the NICs that have been noted into the map that is pinned in `folder`, with the program of `object`. From one that
    /// is gone, or of more than there is room for, backends get nothing that has no room in their own frames.
    ///
    /// # Errors
    ///
    /// If the object has no such program, or the kernel refuses the map.
    pub fn write(&mut self, object: &Object, folder: &Path) -> Result<()> {
        let nics: BTreeSet<u32> = self.nics.values().copied().collect();
        if self.written.as_ref() == Some(&nics) {
            return Ok(());
        }
        let pin = folder.join(NAME);
        // A data plane that is older has none.
        if !pin.exists() {
            return Ok(());
        }
        let map = MapData::from_pin(pin).context("open the pinned map CLONES")?;
        let mut map: DevMap<MapData> = Map::DevMap(map).try_into()?;
        let program = object.descriptor(EMIT)?;
        let first = nics.first().copied();
        let places = nics.iter().flat_map(|nic| [Some(*nic); 2]);
        let places = places
            .chain(std::iter::repeat(None))
            .take(MAX_CLONES as usize);
        for (place, nic) in (0..).zip(places.chain([first])) {
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
        self.written = Some(nics);
        Ok(())
    }
}
