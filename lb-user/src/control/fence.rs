//! The fence of a box of a pair: where its process cannot follow the marker, its networks are closed by their pins alone (`lb ha fence`).
//! They open again when the process has taken the role that the marker gives it.

use anyhow::{Context as _, Result};

use super::{apply::read_ids, control_loop::Control, running::Running};
use crate::{
    api::Severity,
    dataplane::{maps::Maps, pins::Pins},
    model::registry::Kind,
};

/// Has the data plane of an instance drop what belongs to its networks, until its process opens them again.
///
/// # Errors
///
/// If a pin is missing, or the kernel refuses.
pub(crate) fn fence(pins: &Pins) -> Result<()> {
    let mut maps = Maps::open(&pins.maps())?;
    let ids = read_ids(&maps)?;
    for (name, id) in ids.of(Kind::Network) {
        maps.stop_network(id, true)
            .with_context(|| format!("network {name}"))?;
    }
    Ok(())
}

impl Control {
    /// Opens the networks that were fenced while this process stood still.
    pub(super) fn end_fence(&mut self) {
        if self.running.pair.is_none() || !self.running.is_fenced() {
            return;
        }
        // The marker may have gone meanwhile.
        self.follow_marker();
        if self.role() != self.running.role_of(self.running.config()) {
            return;
        }
        match self.running.open_fenced() {
            Ok(()) => {
                let words =
                    "open again: they were fenced while this process did not follow the marker";
                tracing::warn!("its networks are {words}");
                self.event("ha", Severity::Warning, "networks", words);
            }
            Err(error) => tracing::error!(
                "open the networks that were fenced: {error:#}; trying again four times a second"
            ),
        }
    }
}

impl Running {
    pub(super) fn network_ids(&self) -> Vec<u32> {
        let networks = self.applied.config.networks.iter();
        let ids = networks.map(|network| self.applied.ids.get(Kind::Network, &network.name));
        ids.flatten().collect()
    }

    fn is_fenced(&self) -> bool {
        self.data_plane.live.has_closed(&self.network_ids())
    }

    fn open_fenced(&mut self) -> Result<()> {
        let networks = self.network_ids();
        self.data_plane.live.open_networks(&networks)
    }
}
