//! What addresses of records mean: an IPv4 address is itself, a label stands for an IPv6 address, and a
//! client of IPv6 is found beside its flow.
#![expect(
    unsafe_code,
    reason = "the clients' addresses are shared with the kernel's programs"
)]

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    addr::{Be32, Be128},
    maps::{
        addr6::{HashKey, index},
        flow::Flow,
    },
};
use memmap2::MmapRaw;

use super::flows::map;

/// The pinned maps of IPv6 addresses, for readers of records.
pub struct Labels {
    /// None if the running data plane is older than IPv6: then there are no labels.
    pinned: Option<PinnedLabels>,
    /// By flow id.
    clients: Option<Arc<MmapRaw>>,
    key: OnceLock<HashKey>,
    /// What has been read of the labels.
    known: Mutex<HashMap<u32, Ipv6Addr>>,
}

struct PinnedLabels {
    addresses: Array<MapData, Be128>,
    key: Array<MapData, HashKey>,
}

impl Labels {
    /// Opens the maps that are pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the mapping, or a map has another layout.
    pub fn open(folder: &Path) -> Result<Self> {
        if !folder.join("ADDRESSES6").exists() {
            return Ok(Self::with(None, None));
        }
        let pin = |name: &str| {
            MapData::from_pin(folder.join(name))
                .with_context(|| format!("open the pinned map {name}"))
        };
        let pinned = PinnedLabels {
            addresses: Map::Array(pin("ADDRESSES6")?).try_into()?,
            key: Map::Array(pin("HASH_KEY")?).try_into()?,
        };
        let clients = map(folder, "CLIENTS6", size_of::<Be128>())?;
        Ok(Self::with(Some(pinned), Some(clients)))
    }

    fn with(pinned: Option<PinnedLabels>, clients: Option<Arc<MmapRaw>>) -> Self {
        Self {
            pinned,
            clients,
            key: OnceLock::new(),
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<u32, Ipv6Addr>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `address` of a record is; none for a label that nothing has.
    pub fn address(&self, address: Be32) -> Option<IpAddr> {
        let Some(index) = index(address) else {
            return Some(Ipv4Addr::from(address).into());
        };
        let mut known = self.known();
        if let Some(known) = known.get(&index) {
            return Some((*known).into());
        }
        let read = self.pinned.as_ref()?.addresses.get(&index, 0).ok()?;
        let read = Ipv6Addr::from(read);
        if read.is_unspecified() {
            return None;
        }
        known.insert(index, read);
        Some(read.into())
    }

    /// Labels may have been given to other addresses since.
    pub fn forget(&self) {
        self.known().clear();
    }

    /// The client of the flow with this id, as its entry was read before; none if another flow has the id
    /// by now.
    ///
    /// The hash in the entry shows whether what stands beside it is its client: an address that is half one
    /// client's and half another's, or another's, has the same by a chance of one in 2^32. So it need not be
    /// read between two looks at the word.
    pub fn client(&self, id: u32, flow: &Flow) -> Option<IpAddr> {
        match index(flow.vip) {
            None => Some(Ipv4Addr::from(flow.client).into()),
            Some(_) => Some(Ipv6Addr::from(self.client6(id, flow)?).into()),
        }
    }

    /// The same as an event has it; none also for a flow of IPv4.
    pub fn client6(&self, id: u32, flow: &Flow) -> Option<Be128> {
        index(flow.vip)?;
        let beside = self.beside(id)?;
        (self.key().client(beside) == flow.client).then_some(beside)
    }

    /// What stands for a client's IPv6 address in its flow's entry.
    pub fn hash(&self, client: Be128) -> Be32 {
        self.key().client(client)
    }

    /// The address that stands beside the flow with this id.
    fn beside(&self, id: u32) -> Option<Be128> {
        let clients = self.clients.as_ref()?;
        let offset = usize::try_from(id).ok()?.checked_mul(size_of::<Be128>())?;
        if offset >= clients.len() {
            return None;
        }
        let place = clients.as_mut_ptr().wrapping_add(offset).cast::<Be128>();
        // SAFETY: `place` is inside the mapping, whose length is a multiple of the size of an address, and
        // aligned; an address is plain integers, so a torn read is a valid value.
        Some(unsafe { place.read_volatile() })
    }

    /// The key of the clients' hashes, which is made once, before the first flow.
    fn key(&self) -> HashKey {
        if let Some(key) = self.key.get() {
            return *key;
        }
        let pinned = self.pinned.as_ref();
        let read = pinned.and_then(|pinned| pinned.key.get(&0, 0).ok());
        match read.filter(|key| *key != HashKey::default()) {
            Some(key) => *self.key.get_or_init(|| key),
            None => HashKey::default(),
        }
    }
}

impl std::fmt::Debug for Labels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key: with it a client's hash can be chosen.
        f.debug_struct("Labels").finish_non_exhaustive()
    }
}

/// Labels and clients in memory that no kernel knows.
#[cfg(test)]
pub(crate) mod twin {
    use lb_common::maps::addr6::label;
    use memmap2::MmapOptions;

    use super::*;

    /// A key that is as good as another.
    pub(crate) const KEY: HashKey = HashKey([
        0x0123_4567_89ab_cdef,
        0xfedc_ba98_7654_3211,
        0x0f1e_2d3c_4b5a_6979,
        0x1357_9bdf_0246_8ace,
        0xdead_beef_cafe_f00d,
    ]);

    impl Labels {
        /// No labels, and room for so many clients.
        pub(crate) fn anonymous(clients: u32) -> Self {
            let length = usize::try_from(clients.max(1)).unwrap() * size_of::<Be128>();
            let memory = MmapOptions::new().len(length).map_anon().unwrap();
            Self {
                key: KEY.into(),
                ..Self::with(None, Some(Arc::new(memory.into())))
            }
        }

        /// The label of this address, which is given out if it has none.
        pub(crate) fn give(&self, address: &str) -> Be32 {
            let address: Ipv6Addr = address.parse().unwrap();
            let mut known = self.known();
            let has = known.iter().find(|(_, has)| **has == address);
            let has = has.map(|(index, _)| *index);
            let next = u32::try_from(known.len()).unwrap() + 1;
            let index = has.unwrap_or(next);
            known.insert(index, address);
            label(index)
        }

        /// Writes the client of the flow with this id; what stands in its entry for that.
        pub(crate) fn put_client(&self, id: u32, client: &str) -> Be32 {
            self.put_client_with(id, client.parse().unwrap(), || {})
        }

        /// The same word by word, with a `pause` between them.
        pub(crate) fn put_client_with(
            &self,
            id: u32,
            client: Ipv6Addr,
            mut pause: impl FnMut(),
        ) -> Be32 {
            let memory = self.clients.as_ref().unwrap();
            let offset = usize::try_from(id).unwrap() * size_of::<Be128>();
            assert!(offset < memory.len());
            let place = memory.as_mut_ptr().wrapping_add(offset).cast::<u32>();
            let words = Be128::from(client).raw();
            for (word, at) in words.into_iter().zip(0..) {
                // SAFETY: one of the words of the address in `beside`.
                unsafe { place.wrapping_add(at).write_volatile(word) }
                pause();
            }
            KEY.client(client.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use lb_common::maps::addr6::label;

    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn an_ipv4_address_is_itself_and_a_label_what_has_it() {
        let labels = Labels::anonymous(0);
        let one = labels.give("fd00::1");
        assert_eq!((one, labels.give("fd00::1")), (label(1), label(1)));
        let other = labels.give("fd00::2");
        assert_eq!(labels.address(one), address("fd00::1"));
        assert_eq!(labels.address(other), address("fd00::2"));
        assert_eq!(
            labels.address(Ipv4Addr::new(192, 0, 2, 1).into()),
            address("192.0.2.1")
        );
        assert_eq!(labels.address(Be32::new(0)), address("0.0.0.0"));
        assert_eq!(labels.address(label(3)), None);
        labels.forget();
        assert_eq!(labels.address(one), None, "it is read anew");
    }

    #[test]
    fn a_client_is_the_one_beside_the_flow_if_it_is_its_own() {
        let labels = Labels::anonymous(4);
        let vip = labels.give("fd00::1");
        let flow = Flow {
            vip,
            client: labels.put_client(2, "2001:db8::9"),
            ..Flow::default()
        };
        assert_eq!(labels.client(2, &flow), address("2001:db8::9"));
        let as_event: Ipv6Addr = "2001:db8::9".parse().unwrap();
        assert_eq!(labels.client6(2, &flow), Some(as_event.into()));
        assert_eq!(labels.client(3, &flow), None, "another flow's place");
        assert_eq!(labels.client(4, &flow), None, "beyond the end");
        labels.put_client(2, "2001:db8::a");
        assert_eq!(labels.client(2, &flow), None, "another flow has the id");
        let over_ipv4 = Flow {
            vip: Ipv4Addr::new(10, 0, 0, 1).into(),
            client: Ipv4Addr::new(10, 0, 0, 2).into(),
            ..Flow::default()
        };
        assert_eq!(labels.client(2, &over_ipv4), address("10.0.0.2"));
        assert_eq!(labels.client6(2, &over_ipv4), None);
    }
}
