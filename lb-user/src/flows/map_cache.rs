//! The records that a frame to an end of a flow needs, read at most once in a pass.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use anyhow::Result;
use lb_common::{
    addr::Mac,
    conntrack::FlowState,
    maps::{
        backend::Backend,
        flow::Flow,
        network::Network,
        snat::{FLOWS_PER_ADDRESS, PAGE, SnatPage, base},
        splice::Binding,
    },
};

use super::{
    keepalive::next_hops::{NextHop, NextHops},
    reset::segments::FlowEnd,
};
use crate::dataplane::{ids::FreeIds, labels::Labels, maps::Maps};

/// The maps, and what has been read of them in this pass.
pub(crate) struct MapCache {
    maps: Maps,
    labels: Labels,
    ways: NextHops,
    pages: HashMap<u16, SnatPage>,
    networks: HashMap<u16, Option<Network>>,
    backends: HashMap<u32, Option<Backend>>,
    queues: HashMap<u16, FreeIds>,
}

/// The slot of the SNAT address that a flow id belongs to.
fn slot(id: u32) -> Option<u16> {
    u16::try_from(id.checked_sub(PAGE)? / u32::from(FLOWS_PER_ADDRESS)).ok()
}

impl MapCache {
    pub(super) fn new(maps: Maps, labels: Labels, ways: NextHops) -> Self {
        Self {
            maps,
            labels,
            ways,
            pages: HashMap::new(),
            networks: HashMap::new(),
            backends: HashMap::new(),
            queues: HashMap::new(),
        }
    }

    /// A flow with the numbers that this end of it knows; none if they are not known any more.
    pub(super) fn numbers(&self, id: u32, flow: &Flow, end: FlowEnd) -> Option<Flow> {
        let word = FlowState::from_raw(flow.word);
        if end == FlowEnd::Backend || !word.is_spliced() {
            return Some(*flow);
        }
        Some(self.maps.splices.get(id, word)?.as_client(flow))
    }

    /// The binding of a flow that a cookie alone has opened, and whose backend has not answered.
    pub(super) fn awaited(&self, id: u32, word: FlowState) -> Option<Binding> {
        let binding = self.maps.splices.awaited(id, word)?;
        binding.is_plain().then_some(binding)
    }

    /// Forgets what has been read. Returns the slots of the SNAT addresses that there are now.
    pub(super) fn refresh(&mut self) -> Result<Vec<u16>> {
        self.networks.clear();
        self.backends.clear();
        self.queues.clear();
        self.pages.clear();
        self.labels.forget();
        for slot in 0..self.maps.limits().snat_addresses {
            let page = self.maps.snat_pages.get(&(base(slot) / PAGE), 0)?;
            if page != SnatPage::default() {
                self.pages.insert(slot, page);
            }
        }
        let mut slots: Vec<u16> = self.pages.keys().copied().collect();
        slots.sort_unstable();
        Ok(slots)
    }

    /// What addresses of records mean.
    pub(super) const fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The SNAT address of a flow.
    pub(super) fn page(&self, id: u32) -> Option<SnatPage> {
        self.pages.get(&slot(id)?).copied()
    }

    /// The network that an end of a flow is in, and its next hop: where it was seen, or if it has
    /// been `sought`, where it may be now.
    pub(super) fn way(
        &mut self,
        id: u32,
        flow: &Flow,
        end: FlowEnd,
        sought: bool,
    ) -> Option<(Network, Mac)> {
        match end {
            FlowEnd::Client => {
                let client = self.labels.client(id, flow).filter(|_| sought);
                let now = client.and_then(|client| self.ways.mac(flow.network, client));
                let mac = now.unwrap_or(flow.client_mac);
                Some((self.network(flow.network)?, mac))
            }
            FlowEnd::Backend => {
                let backend = self.backend(flow.backend_id.into())?;
                Some((self.network(backend.network)?, backend.next_hop))
            }
        }
    }

    /// Other ways into the networks.
    pub(super) fn follow(&mut self, networks: BTreeMap<u16, NextHop>) {
        self.ways.replace(networks);
    }

    /// Sends an inquiry for the next hop of an end. Those of backends are watched all the time.
    pub(super) fn seek(&self, id: u32, flow: &Flow, end: FlowEnd) {
        if matches!(end, FlowEnd::Client)
            && let Some(client) = self.labels.client(id, flow)
        {
            self.ways.seek(flow.network, client);
        }
    }

    /// Puts an id back into its queue, if its address has one: that of a peer has none. Whether that went well.
    pub(super) fn free(&mut self, id: u32) -> bool {
        let Some(slot) = slot(id) else {
            return false;
        };
        let queue = match self.queues.entry(slot) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => match self.maps.free_ids(slot) {
                Ok(Some(queue)) => unknown.insert(queue),
                // It may get one at any time, so that it has none is not noted.
                Ok(None) => return self.maps.has_queue(slot).is_ok_and(|has_one| !has_one),
                Err(_) => return false,
            },
        };
        queue.push(id).is_ok()
    }

    /// A network's record.
    pub(super) fn network(&mut self, id: u16) -> Option<Network> {
        let maps = &self.maps;
        let read = || maps.networks.get(&u32::from(id), 0).ok();
        *self.networks.entry(id).or_insert_with(read)
    }

    fn backend(&mut self, id: u32) -> Option<Backend> {
        let maps = &self.maps;
        *self
            .backends
            .entry(id)
            .or_insert_with(|| maps.backends.get(&id, 0).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_its_slot() {
        for index in [0u16, 1, 127] {
            let last = base(index) + u32::from(FLOWS_PER_ADDRESS) - 1;
            assert_eq!((slot(base(index)), slot(last)), (Some(index), Some(index)));
        }
        assert_eq!(slot(0), None, "of page 0 no id is given out");
    }
}
