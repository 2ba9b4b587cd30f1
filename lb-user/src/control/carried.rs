//! How much a box of a pair carries, and how it stands to its peer: it leaves the service only to one that carries more
//! (`lb health --box`).

use super::running::Running;
use crate::{api::ha::HaStatus, ha::message::BoxLoad};

impl Running {
    /// What this box carries.
    pub(super) fn load(&self) -> BoxLoad {
        BoxLoad {
            networks: self.carried(),
            connections: self.legs().count(),
        }
    }

    /// How the boxes stand to each other, if there are two.
    pub(super) fn ha_status(&self) -> Option<HaStatus> {
        let pair = self.pair.as_ref()?;
        Some(pair.status(|backend| self.checks.is_up(backend)))
    }

    /// Networks that this box carries: their interfaces have carriers, and a next hop answers, if they have backends.
    fn carried(&self) -> u16 {
        let ids = self.network_ids().into_iter();
        let ids = ids.filter_map(|id| u16::try_from(id).ok());
        let carried =
            ids.filter(|id| self.has_carrier(*id) && !self.data_plane.live.is_cut_off(*id));
        u16::try_from(carried.count()).unwrap_or(u16::MAX)
    }
}
