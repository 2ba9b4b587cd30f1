//! `lb nodes`: the machines that backends are on, and the flows to them.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

use anyhow::Result;

use super::{Observer, flows::is_live};
use crate::model::nodes::{ids_by_place, nodes};

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLine {
    /// Its name, or its first address.
    pub name: String,
    /// Its addresses, in the order of the file.
    pub addresses: Vec<IpAddr>,
    /// The pools that have a backend on it, in the order of the file.
    pub pools: Vec<String>,
    /// How many backends are on it.
    pub backends: usize,
    /// Their ids, and those of backends there that only finish their flows.
    pub ids: BTreeSet<u32>,
    /// Live flows to these.
    pub flows: usize,
}

impl Observer {
    /// All nodes.
    ///
    /// # Errors
    ///
    /// If a SNAT address has no slot.
    pub fn nodes(&self) -> Result<Vec<NodeLine>> {
        let by_place = ids_by_place(self.ids());
        let flows = self.flows_by_backend()?;
        let nodes = nodes(self.config()).into_iter().map(|node| {
            let ids = node.ids(&by_place);
            let addresses = node.places.iter().map(|(_, address)| *address);
            NodeLine {
                addresses: addresses.collect(),
                pools: node.pools().into_iter().map(ToOwned::to_owned).collect(),
                backends: node.backends.len(),
                flows: ids.iter().filter_map(|id| flows.get(id)).sum(),
                ids,
                name: node.name,
            }
        });
        Ok(nodes.collect())
    }

    /// How many live flows there are to each backend, by its id.
    fn flows_by_backend(&self) -> Result<HashMap<u32, usize>> {
        let mut flows = HashMap::new();
        for (_, slot) in self.snat_slots()? {
            let all = slot.flow_ids().filter_map(|id| self.table.flow(id));
            for (_, flow) in all.filter(|(word, _)| is_live(*word)) {
                *flows.entry(flow.backend_id.into()).or_default() += 1;
            }
        }
        Ok(flows)
    }
}
