//! Which box is active: the one whose host has the marker. A change of that opens or closes addresses, and nothing else:
//! neither the file is read nor anything planned anew, so that it takes the time of the writes.

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use lb_common::maps::{
    door::DoorKey,
    network::{Address, AddressKey, KIND_QUIET},
};

use super::{apply::Live, control_loop::Control, running::Running};
use crate::{
    api::Severity, config::Config, ha::thread::BoxPair, host::addresses::read_addresses,
    model::ha_role::HaRole,
};

/// How long addresses of the active box are quiet at most, while its peer sends flows and does not say that it has left.
const MAX_QUIET: Duration = Duration::from_secs(10);

/// What is to be remembered of the role.
#[derive(Debug, Default)]
pub(super) struct RoleState {
    /// Since when addresses are quiet, if they are.
    quiet: Option<Instant>,
    /// Why the addresses of the host could not be read, which is logged once.
    unread: Option<String>,
    /// Why the last change of the role has failed, which is logged once.
    failed: Option<String>,
    /// Why what operators have set at the active box could not be taken in, which is logged once.
    pub(super) lacks_overrides: Option<String>,
}

/// The addresses of the host that this process runs on.
///
/// # Errors
///
/// If the kernel does not say.
pub(crate) fn host_addresses() -> Result<BTreeSet<IpAddr>> {
    let addresses = read_addresses().context("read the addresses of the host")?;
    Ok(addresses.map(|(_, address)| address).collect())
}

impl Control {
    /// The role of this box.
    pub const fn role(&self) -> HaRole {
        self.running.applied.role
    }

    /// Looks whether the host has the marker, and takes the role that follows from it.
    pub fn follow_marker(&mut self) {
        let read = host_addresses();
        let error = read.as_ref().err().map(|error| format!("{error:#}"));
        let is_new = self.role.unread != error;
        self.role.unread = error;
        match read {
            Ok(addresses) => self.running.host_addresses = addresses,
            Err(_) if !is_new => {}
            Err(error) => {
                tracing::error!(
                    "{error:#}; the role stays as it is, trying again four times a second"
                );
            }
        }
        self.take_role();
    }

    /// What is to be done again of the role, and what time ends.
    pub(super) fn tick_role(&mut self) {
        match self.role.unread {
            Some(_) => self.follow_marker(),
            // One that has failed.
            None => self.take_role(),
        }
        self.end_quiet();
        self.follow_peer();
    }

    /// Takes the role that the addresses of the host, as they were last seen, give to this box.
    fn take_role(&mut self) {
        let began = Instant::now();
        let taken = match self.running.take_role() {
            Ok(None) => return,
            Ok(Some(role)) => role,
            Err(error) => return self.note_failed_role(&format!("{error:#}")),
        };
        self.role.failed = None;
        self.role.quiet = taken.serves().then_some(began);
        self.running.show_pair();
        let took = began.elapsed();
        let config = &self.running.applied.config;
        let networks = self.running.network_names();
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
                    "standby: its host has {marker} no more; VIPs and SNAT addresses of both boxes are closed"
                )
            }
        };
        tracing::warn!(?took, "{object} is {words}");
        if taken.serves() {
            self.announce_all(networks);
        }
        self.event("ha", Severity::Notice, &object, &words);
    }

    /// Says which connections have ended with the peer. Announces the addresses again when a peer that has served as well stands by: its
    /// clients would not come here before they resolve them anew.
    fn follow_peer(&mut self) {
        let serves = self.role() == HaRole::Active;
        let Some(pair) = self.running.pair.as_ref().filter(|_| serves) else {
            return;
        };
        let (peer, left) = (format!("box {}", pair.peer()), pair.left());
        if left.has_clients {
            tracing::info!("{peer} stands by: all addresses are announced again");
            self.announce_all(self.running.network_names());
        }
        if left.connections > 0 {
            let count = left.connections;
            let words = format!("{count} connections that its process carried have ended");
            tracing::warn!("{peer}: {words}");
            self.event("ha", Severity::Notice, &peer, &words);
        }
    }

    /// Has segments of no flow be answered when no flow can come from the peer any more that they could be of.
    fn end_quiet(&mut self) {
        let Some(since) = self.role.quiet else {
            return;
        };
        if since.elapsed() < MAX_QUIET && !self.running.is_settled() {
            return;
        }
        match self.running.answer_again() {
            Ok(()) => self.role.quiet = None,
            Err(error) => tracing::error!(
                "answer segments of no flow again (ha): {error:#}; trying again four times a second"
            ),
        }
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

    /// The role of a change to `config`: that of now. Another one is taken when the change is made, and clients learn of it.
    pub(crate) fn role_within(&self, config: &Config) -> HaRole {
        match (&config.ha, self.applied.role) {
            (None, _) => HaRole::Alone,
            (Some(_), HaRole::Alone) => HaRole::Standby,
            (Some(_), role) => role,
        }
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
            true => live.open_addresses(of_active, KIND_QUIET),
            false => live.close_addresses(of_active),
        }?;
        self.ending.note_change();
        self.applied.role = role;
        self.applied.is_quiet = role.serves();
        self.ending.expiry.serve(role.serves());
        Ok(Some(role))
    }

    /// The names of all networks.
    fn network_names(&self) -> Vec<String> {
        let networks = self.applied.config.networks.iter();
        networks.map(|network| network.name.clone()).collect()
    }

    /// Whether all flows have come that are to come from the peer.
    fn is_settled(&self) -> bool {
        self.pair.as_ref().is_none_or(BoxPair::is_settled)
    }

    /// Takes the mark of quiet addresses away.
    fn answer_again(&mut self) -> Result<()> {
        let live = &mut self.data_plane.live;
        live.open_addresses(&self.applied.of_active, 0)?;
        self.applied.is_quiet = false;
        Ok(())
    }
}

impl Live {
    /// Opens addresses, with a mark: those that flows come back to before those that clients begin flows at. Which of them are
    /// there does not matter.
    fn open_addresses(
        &mut self,
        addresses: &HashMap<AddressKey, Address>,
        mark: u32,
    ) -> Result<()> {
        for is_vip in [false, true] {
            let some = addresses.iter();
            for (key, address) in some.filter(|(_, address)| address.is_vip() == is_vip) {
                let marked = Address {
                    kind: address.kind | mark,
                    ..*address
                };
                // The record of an address that is there stays, because packets read it meanwhile.
                if self.maps.addresses.get(key, 0).ok() != Some(marked) {
                    let opened = self.maps.addresses.insert(key, &marked, 0);
                    opened.context("open an address")?;
                }
            }
        }
        self.open_doors()
    }

    /// Closes addresses, as far as they are there.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub(crate) fn close_addresses(
        &mut self,
        addresses: &HashMap<AddressKey, Address>,
    ) -> Result<()> {
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
