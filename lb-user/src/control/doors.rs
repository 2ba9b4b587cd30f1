//! Doors follow the networks and addresses in the maps.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use lb_common::{
    addr::Be32,
    maps::{
        door::{Door, DoorKey},
        network::{Address, AddressKey, NetworkKey},
    },
};

use super::{apply::Live, plan::Operation};

impl Live {
    /// Opens a door to each address for each NIC and VLAN of its network. Cells have none.
    pub(super) fn open_doors(&self) -> Result<()> {
        let maps = &self.maps;
        let mut addresses: HashMap<u16, Vec<(Be32, Address)>> = HashMap::new();
        for entry in maps.addresses.iter() {
            let (key, address) = entry.context("read the addresses")?;
            if key.version == 0 {
                let of_network = addresses.entry(key.network).or_default();
                of_network.push((key.address, address));
            }
        }
        let mut doors = HashMap::new();
        for entry in maps.network_ids.iter() {
            let (NetworkKey { ifindex, vlan, .. }, id) = entry.context("read the networks")?;
            let network = u16::try_from(id)?;
            if maps.networks.get(&id, 0)?.cell_ifindex == ifindex {
                continue;
            }
            for &(destination, address) in addresses.get(&network).into_iter().flatten() {
                let key = DoorKey {
                    ifindex,
                    vlan,
                    destination,
                };
                doors.insert(key, Door { network, address });
            }
        }
        maps.doors.set(&doors);
        Ok(())
    }

    /// Closes the doors to an address that is about to change.
    pub(super) fn close_doors(&self, address: &AddressKey) {
        let is_of = |key: &DoorKey, network| {
            network == address.network && key.destination == address.address
        };
        self.maps.doors.close(is_of);
    }

    /// Closes the doors to what this operation is about to change.
    pub(super) fn close_doors_before(&self, operation: &Operation) {
        match operation {
            Operation::MapNetwork(network, _) | Operation::UnmapNetwork(network) => {
                let port = (network.ifindex, network.vlan);
                let is_of = |key: &DoorKey, _| (key.ifindex, key.vlan) == port;
                self.maps.doors.close(is_of);
            }
            Operation::SetAddress(key, _) | Operation::RemoveAddress(key) => self.close_doors(key),
            _ => {}
        }
    }
}
