//! What a data plane keeps of IPv6 beside its other records: labels, clients, and the key of their hash.

use std::net::Ipv6Addr;

use aya::{
    Pod,
    maps::{Array, HashMap, Map, MapData},
};
use lb_common::{
    addr::{Be32, Be128},
    maps::addr6::{HashKey, label},
};

use crate::product::program::DataPlane;

impl DataPlane {
    /// What stands for a configured address in the records.
    ///
    /// # Panics
    ///
    /// When it has no label.
    pub fn label(&self, address: &str) -> Be32 {
        let map = Map::HashMap(self.pinned("LABELS"));
        let labels: HashMap<MapData, Be128, u32> = map.try_into().expect("its layout");
        let index = labels.get(&word(address), 0).expect("a label");
        label(index)
    }

    /// The address that a label stands for, as the data plane finds it.
    ///
    /// # Panics
    ///
    /// When the map cannot be read.
    pub fn labelled(&self, index: u32) -> Ipv6Addr {
        let address = self.array::<Be128>("ADDRESSES6").get(&index, 0);
        address.expect("an entry").into()
    }

    /// The client of the IPv6 flow with this id.
    ///
    /// # Panics
    ///
    /// When the map cannot be read.
    pub fn client6(&self, id: u32) -> Ipv6Addr {
        let client = self.array::<Be128>("CLIENTS6").get(&id, 0);
        client.expect("an entry").into()
    }

    /// Writes the client of the flow with this id, and nothing else of it.
    ///
    /// # Panics
    ///
    /// When the map cannot be written.
    pub fn set_client6(&self, id: u32, address: &str) {
        let mut clients = self.array::<Be128>("CLIENTS6");
        clients.set(id, &word(address), 0).expect("a write");
    }

    /// The key of the hash of clients' addresses.
    ///
    /// # Panics
    ///
    /// When the map cannot be read.
    pub fn hash_key(&self) -> HashKey {
        let key = self.array::<HashKey>("HASH_KEY").get(&0, 0);
        key.expect("the key")
    }

    /// Writes it, before there is a flow.
    ///
    /// # Panics
    ///
    /// When the map cannot be written.
    pub fn set_hash_key(&self, key: HashKey) {
        let mut place = self.array::<HashKey>("HASH_KEY");
        place.set(0, &key, 0).expect("a write");
    }

    fn array<V: Pod>(&self, name: &str) -> Array<MapData, V> {
        let map = Map::Array(self.pinned(name));
        map.try_into().expect("its layout")
    }

    fn pinned(&self, name: &str) -> MapData {
        MapData::from_pin(self.maps_folder().join(name)).expect("the pinned map")
    }
}

fn word(address: &str) -> Be128 {
    let address: Ipv6Addr = address.parse().expect("an IPv6 address");
    address.into()
}
