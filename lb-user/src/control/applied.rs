//! What is applied: the configuration with what it has become in the maps; and its source as text, so that
//! other processes know the names behind the ids.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use anyhow::{Context as _, Result};

use super::{desired::Attachment, reclaim::retired::Retired};
use crate::{config::Config, dataplane::pins::Pins, model::registry::Ids, network::cell::Cell};

/// The name of the applied configuration.
const APPLIED: &str = "applied.yaml";

/// A configuration in the maps.
pub(crate) struct Applied {
    /// The configuration; its limits are those of the maps.
    pub(crate) config: Config,
    /// Where its networks are attached, by name.
    pub(crate) places: BTreeMap<String, Attachment>,
    /// The cells of those that have one.
    pub(crate) cells: BTreeMap<String, Cell>,
    pub(crate) ids: Ids,
    /// Tables of the pools, by id, as they stand in the map.
    pub(crate) tables: BTreeMap<u32, Vec<u32>>,
    /// The backends that are in one of them, and so have new flows: [`Self::update_serving`].
    pub(crate) serving: BTreeSet<u32>,
    /// The shares that they were made of, by the pools' names.
    pub(crate) shares: BTreeMap<String, Vec<u32>>,
    /// Ids that are configured no more, and wait for their last flow.
    pub(crate) retired: Retired,
    /// Whether ids have other names than those that [`Self::new_names`] gave last.
    pub(crate) renamed: bool,
}

impl Applied {
    /// Derives `serving` from `tables`: looked up for each backend, where a table has thousands of places.
    pub(crate) fn update_serving(&mut self) {
        self.serving = self.tables.values().flatten().copied().collect();
    }

    /// The ids, if any of them has another name since the last call.
    pub(crate) fn new_names(&mut self) -> Option<&Ids> {
        let renamed = std::mem::replace(&mut self.renamed, false);
        renamed.then_some(&self.ids)
    }
}

/// The configuration file of the last successful start, as text.
///
/// # Errors
///
/// If the instance never started.
pub fn applied(pins: &Pins) -> Result<String> {
    let read = |path: &PathBuf| fs::read_to_string(path);
    let text = read(&before_path(pins)).or_else(|_| read(&applied_path(pins)));
    text.with_context(|| {
        format!(
            "instance {} has no applied configuration; is it up?",
            pins.instance()
        )
    })
}

/// Where the text of the applied configuration is, so that other processes know the names behind the
/// ids.
pub(crate) fn applied_path(pins: &Pins) -> PathBuf {
    pins.state().join(APPLIED)
}

/// Where versions of before had it, which a reboot empties.
pub(crate) fn before_path(pins: &Pins) -> PathBuf {
    pins.runtime().join(APPLIED)
}
