//! What is applied: the configuration with what it has become in the maps; and as data in a file, so that
//! other processes know the names behind the ids.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::PathBuf,
};

use anyhow::{Context as _, Error, Result};
use lb_common::maps::{
    MAX_SERVER_NAMES,
    network::{Address, AddressKey},
};

use super::{desired::Attachment, reclaim::retired::Retired};
use crate::{
    config::{Config, Kept},
    dataplane::pins::Pins,
    model::{
        ha_role::HaRole,
        maglev::{self, MaglevTable},
        registry::Ids,
    },
    network::cell::Cell,
};

/// The name of the applied configuration, and what versions of before called it.
const APPLIED: &str = "applied.json";
const APPLIED_BEFORE: &str = "applied.yaml";

/// A configuration in the maps.
pub(crate) struct Applied {
    /// The configuration; its limits are as far as the maps have room.
    pub(crate) config: Config,
    /// Where its networks are attached, by name.
    pub(crate) places: BTreeMap<String, Attachment>,
    /// The cells of those that have one.
    pub(crate) cells: BTreeMap<String, Cell>,
    pub(crate) ids: Ids,
    /// Tables of the pools, by id, as they stand in the map.
    pub(crate) tables: BTreeMap<u32, MaglevTable>,
    /// The backends that are in one of them, and so have new flows: [`Self::update_serving`].
    pub(crate) serving: BTreeSet<u32>,
    /// The shares that they were made of, by the pools' names.
    pub(crate) shares: BTreeMap<String, Vec<u32>>,
    /// Whether the shares may be others than those, without an event that says so.
    pub(crate) is_share_due: bool,
    /// Ids that are configured no more, and wait for their last flow.
    pub(crate) retired: Retired,
    /// What the box is among those that have one service.
    pub(crate) role: HaRole,
    /// Whether those of the active box are quiet: see [`KIND_QUIET`](lb_common::maps::network::KIND_QUIET).
    pub(crate) is_quiet: bool,
    /// The addresses that it has only while it is active; none where it is alone.
    pub(crate) of_active: HashMap<AddressKey, Address>,
    /// Services whose names the data plane has no room for, and the entries of each.
    pub(crate) without_names: Vec<(String, usize)>,
    /// Whether ids have other names than those that [`Self::new_names`] gave last.
    pub(crate) renamed: bool,
}

impl Applied {
    /// Notes the services whose names the data plane has no room for, and says which are new.
    pub(crate) fn leave_names(&mut self, services: Vec<(String, usize)>) {
        let new = services
            .iter()
            .filter(|one| !self.without_names.contains(one));
        for (service, entries) in new {
            tracing::warn!(
                service,
                entries,
                "no room for its names in the data plane, which has {MAX_SERVER_NAMES} entries for all services: the process opens \
                 its connections"
            );
        }
        self.without_names = services;
    }

    /// Derives `serving` from `tables`: looked up for each backend, where a table has thousands of places.
    pub(crate) fn update_serving(&mut self) {
        self.serving = maglev::members(self.tables.values());
    }

    /// The ids, if any of them has another name since the last call.
    pub(crate) fn new_names(&mut self) -> Option<&Ids> {
        let renamed = std::mem::replace(&mut self.renamed, false);
        renamed.then_some(&self.ids)
    }
}

/// The configuration of the last successful start.
///
/// # Errors
///
/// If the instance never started, or what it kept cannot be used.
pub fn applied(pins: &Pins) -> Result<Config> {
    let kept = read(pins)?.with_context(|| {
        format!(
            "instance {} has no applied configuration; is it up?",
            pins.instance()
        )
    })?;
    let config = kept.config().map_err(Error::msg);
    config.with_context(|| format!("the applied configuration of instance {}", pins.instance()))
}

/// Whether an instance has an applied configuration.
pub fn is_applied(pins: &Pins) -> bool {
    paths_before(pins).iter().any(|path| path.exists()) || applied_path(pins).exists()
}

/// What is kept, if anything is. What a version before has left is the latest: this one removes it.
fn read(pins: &Pins) -> Result<Option<Kept>> {
    for path in paths_before(pins) {
        if let Ok(text) = fs::read_to_string(&path) {
            return Ok(Some(Kept::Text(text)));
        }
    }
    let path = applied_path(pins);
    let Ok(text) = fs::read(&path) else {
        return Ok(None);
    };
    let kept = serde_json::from_slice(&text);
    kept.map(Some)
        .with_context(|| format!("read {} as JSON", path.display()))
}

/// The applied configuration as it is kept: so that a later process goes on with it, and others know the names
/// behind the ids.
///
/// # Errors
///
/// Where JSON cannot have it.
pub(crate) fn kept(config: &Config) -> Result<Vec<u8>> {
    serde_json::to_vec(config).context("write the configuration as JSON")
}

/// Where it is kept.
pub(crate) fn applied_path(pins: &Pins) -> PathBuf {
    pins.state().join(APPLIED)
}

/// Where versions of before had it, as text: the first one in a folder that a reboot empties.
pub(crate) fn paths_before(pins: &Pins) -> [PathBuf; 2] {
    [pins.runtime(), pins.state()].map(|folder| folder.join(APPLIED_BEFORE))
}
