//! The splices of flows that this process hands over.

use std::{
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use aya::maps::{Array, Map, MapData};
use lb_common::{
    conntrack::FlowState,
    maps::splice::{DRAINED, Splice},
};

/// The name that the client of a flow has requested, by its id and word; none if there is none.
pub type SpliceNames = Box<dyn Fn(u32, FlowState) -> Option<String>>;

/// The splices, by the ids of their flows. Not mapped: a connection has to do with its own a few times.
pub struct SpliceTable(Mutex<Array<MapData, Splice>>);

impl SpliceTable {
    /// Opens the pinned map in `folder`.
    ///
    /// # Errors
    ///
    /// If the pin is missing, or the map has another layout.
    pub fn open(folder: &Path) -> Result<Self> {
        let pinned = MapData::from_pin(folder.join("SPLICES"));
        let map = Map::Array(pinned.context("open the pinned map SPLICES")?);
        Ok(Self(Mutex::new(map.try_into()?)))
    }

    fn map(&self) -> MutexGuard<'_, Array<MapData, Splice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of the flows that were handed over, each as long as no other has its id.
    #[must_use]
    pub fn names(self) -> SpliceNames {
        Box::new(move |id, word| {
            let splice = word.is_spliced().then(|| self.get(id)).flatten()?;
            let is_its = splice.generation == word.generation();
            let name = is_its.then(|| String::from_utf8_lossy(splice.name()).into_owned());
            name.filter(|name| !name.is_empty())
        })
    }

    /// The splice of a flow; its generation shows whether it is that flow's.
    pub fn get(&self, id: u32) -> Option<Splice> {
        self.map().get(&id, 0).ok()
    }

    /// Writes the splice of a flow that this process has claimed, before its word has the flag.
    ///
    /// # Errors
    ///
    /// If the kernel refuses: beyond the end of the table.
    pub fn set(&self, id: u32, splice: &Splice) -> Result<()> {
        Ok(self.map().set(id, splice, 0)?)
    }

    /// Whether the backend has what our socket sent it.
    pub fn is_drained(&self, id: u32) -> bool {
        self.get(id)
            .is_some_and(|splice| splice.state & DRAINED != 0)
    }
}
