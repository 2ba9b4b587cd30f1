//! The maps and programs of an instance, and the programs' links.

use std::mem;

use anyhow::Result;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{apply::Live, plan::Operation};
use crate::{
    dataplane::{
        attach::{Held, Mode, NewLink},
        object::Object,
        pins::Pins,
    },
    model::registry::Ids,
    network::neighbour::NeighbourChange,
};

/// How many changes of next hops are taken in at once.
const MAX_CHANGES: usize = 4096;

/// See the module.
pub struct DataPlane {
    /// Where it is pinned.
    pub(crate) pins: Pins,
    /// The maps.
    pub live: Live,
    /// Next hops as they resolve and change, and fall silent.
    pub(crate) neighbours: UnboundedReceiver<NeighbourChange>,
    /// The loaded object.
    pub object: Object,
    /// How the programs run.
    pub(crate) mode: Mode,
    /// Links that are not pinned yet.
    pub(crate) links: Vec<NewLink>,
    /// Those that are pinned.
    pub(crate) held: Held,
    /// Whether links outlive the process.
    pub(crate) is_kept: bool,
}

impl DataPlane {
    /// Carries out a plan; `ids` has the names of what is in it.
    ///
    /// # Errors
    ///
    /// The first operation that the kernel refuses; those before it stay.
    pub(crate) async fn apply(&mut self, plan: Vec<Operation>, ids: &Ids) -> Result<()> {
        let Self {
            live,
            neighbours,
            object,
            ..
        } = self;
        live.apply(plan, ids, object, neighbours).await
    }

    /// Waits until something has become of next hops, and takes all of it out; none when nothing can any more.
    pub async fn neighbour_changes(&mut self) -> Option<Vec<NeighbourChange>> {
        let delayed = mem::take(&mut self.live.delayed).into_values();
        let mut changes: Vec<NeighbourChange> = delayed.collect();
        if changes.is_empty() {
            self.neighbours.recv_many(&mut changes, MAX_CHANGES).await;
        }
        (!changes.is_empty()).then_some(changes)
    }

    /// Lets the new links outlive the process; until then they end with it.
    ///
    /// # Errors
    ///
    /// If bpffs refuses a pin.
    pub fn keep(&mut self) -> Result<()> {
        self.is_kept = true;
        self.links.drain(..).try_for_each(NewLink::keep)
    }
}
