//! Which box is active: the one whose host has the marker. A change of that opens or closes addresses, and nothing else:
//! neither the file is read nor anything planned anew, so that it takes the time of the writes.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::Instant,
};

use anyhow::{Context as _, Result};
use lb_common::maps::{
    door::DoorKey,
    network::{Address, AddressKey},
};

use super::{apply::Live, control_loop::Control, running::Running};
use crate::{api::Severity, config::Config, host::addresses::addresses, model::ha_role::HaRole};

/// What is to be remembered of the role.
#[derive(Debug, Default)]
pub(super) struct RoleState {
    /// Why the last change of the role has failed, which is logged once.
    failed: Option<String>,
}

/// The addresses of the host that this process runs on.
pub(crate) fn host_addresses() -> BTreeSet<IpAddr> {
    addresses().map(|(_, address)| address).collect()
}

impl Control {
    /// The role of this box.
    pub const fn role(&self) -> HaRole {
        self.running.applied.role
    }

    /// Looks whether the host has the marker, and takes the role that follows from it.
    pub fn follow_marker(&mut self) {
        self.running.host_addresses = host_addresses();
        self.take_role();
    }

    /// Takes the role that the addresses of the host, as they were last seen, give to this box.
    pub(super) fn take_role(&mut self) {
        let began = Instant::now();
        let taken = match self.running.take_role() {
            Ok(None) => return,
            Ok(Some(role)) => role,
            Err(error) => return self.note_failed_role(&format!("{error:#}")),
        };
        self.role.failed = None;
        let took = began.elapsed();
        let config = &self.running.applied.config;
        let networks = config.networks.iter();
        let networks = networks.map(|network| network.name.clone()).collect();
        let Some(ha) = &config.ha else {
            return;
        };
        let (object, marker) = (format!("box {}", ha.box_name), ha.marker);
        let words = match taken {
            HaRole::Active | HaRole::Alone => {
                format!(
                    "active: its host has {marker}; VIPs and SNAT addresses of both boxes are open"
                )
            }
            HaRole::Standby => {
                format!(
                    "standby: its host has {marker} no more; VIPs and SNAT addresses of the peer are closed"
                )
            }
        };
        tracing::warn!(?took, "{object} is {words}");
        if taken.serves() {
            self.announce_all(networks);
        }
        self.event("ha", Severity::Notice, &object, &words);
    }

    fn note_failed_role(&mut self, error: &str) {
        if self.role.failed.as_deref() == Some(error) {
            return;
        }
        let role = self.running.role_of(&self.running.applied.config);
        let words = format!("become {role}: {error}; trying again four times a second");
        tracing::error!("{words}");
        self.event("ha", Severity::Error, "role", &words);
        self.role.failed = Some(error.to_owned());
    }
}

impl Running {
    /// The role that this box has with `config`, by the addresses of its host.
    pub(crate) fn role_of(&self, config: &Config) -> HaRole {
        HaRole::of(config.ha.as_ref(), &self.host_addresses)
    }

    /// Takes the role that it has by the addresses of its host; none if it has that already.
    fn take_role(&mut self) -> Result<Option<HaRole>> {
        let role = self.role_of(&self.applied.config);
        if role == self.applied.role {
            return Ok(None);
        }
        // A standby that becomes active ends flows again, and an active one that becomes standby none from here on.
        if !role.serves() {
            self.ending.expiry.serve(false);
        }
        let live = &mut self.data_plane.live;
        let of_active = &self.applied.of_active;
        match role.serves() {
            true => live.open_addresses(of_active),
            false => live.close_addresses(of_active),
        }?;
        self.ending.note_change();
        self.applied.role = role;
        self.ending.expiry.serve(role.serves());
        Ok(Some(role))
    }
}

impl Live {
    /// Opens addresses: those that flows come back to before those that clients begin flows at. Which of them are there does not
    /// matter.
    fn open_addresses(&mut self, addresses: &HashMap<AddressKey, Address>) -> Result<()> {
        for is_vip in [false, true] {
            let some = addresses.iter();
            for (key, address) in some.filter(|(_, address)| address.is_vip() == is_vip) {
                // The record of an address that is there stays, because packets read it meanwhile.
                if self.maps.addresses.get(key, 0).ok().as_ref() != Some(address) {
                    let opened = self.maps.addresses.insert(key, address, 0);
                    opened.context("open an address")?;
                }
            }
        }
        self.open_doors()
    }

    /// Closes addresses, as far as they are there.
    fn close_addresses(&mut self, addresses: &HashMap<AddressKey, Address>) -> Result<()> {
        let is_of = |key: &DoorKey, network| {
            addresses.contains_key(&AddressKey::new(key.destination, network))
        };
        self.maps.doors.close(is_of);
        for key in addresses.keys() {
            if self.maps.addresses.get(key, 0).is_ok() {
                let closed = self.maps.addresses.remove(key);
                closed.context("close an address")?;
            }
        }
        self.open_doors()
    }
}
