//! What a control plane does that has handed over: nothing, until the next process is up; then it leaves what
//! serves shared VIPs, which finishes what it carries. If the next one dies before, it goes on, by what the
//! maps hold: how far the next one had got is not known.

use std::{io, os::fd::OwnedFd};

use anyhow::{Context as _, Result, ensure};

use super::threads;
use crate::{
    api::Severity,
    control::{
        beginning::{CONTROL_PLANE, GIVES_WAY},
        control_loop::Control,
        network_setup::remove_stale_links,
        persisted_state::State,
        running::Running,
    },
    dataplane::version::{Pinned, pinned},
    proxy::{Acceptors, Legs},
    system::systemd::ListenerKey,
};

/// The message for a process that has taken over and dies before it is up.
const GOES_ON: &str =
    "the process that was taking over ended before it was up: the old process goes on";

impl Control {
    /// Rests: from now on the maps are the next process's. What must outlive this one is written.
    pub async fn rest(&mut self) {
        self.begin_to_wait();
        self.save();
        self.running.checks.rest();
        // The next process has sessions of its own, and gives ids out.
        self.running.pair = None;
        self.running.ending.expiry.rest().await;
        self.event("process", Severity::Notice, CONTROL_PLANE, GIVES_WAY);
        self.history.rest();
    }

    /// Duplicates of the listeners of shared VIPs; nothing is accepted here any more.
    ///
    /// # Errors
    ///
    /// If the process has too many open files.
    pub fn give(&self) -> io::Result<Vec<(ListenerKey, OwnedFd)>> {
        self.running.shared_vips.acceptors.give()
    }

    /// How many connections of shared VIPs it carries.
    pub fn carried(&self) -> usize {
        self.running.shared_vips.legs.all().len()
    }

    /// The next process is up: ends the control plane, and leaves what serves shared VIPs.
    pub fn leave(self) -> (Acceptors, Legs) {
        self.running.shared_vips.acceptors.let_go();
        self.running.leave()
    }

    /// The next process is gone: goes on with what was applied.
    ///
    /// # Errors
    ///
    /// If the maps are not those of this process any more, or what was applied cannot be applied anew.
    pub async fn go_on(&mut self) -> Result<()> {
        self.history.go_on();
        self.forget_unstarted();
        // Clients have waited long enough.
        self.running.shared_vips.acceptors.take_back();
        self.running.read_anew().context("read what is live")?;
        self.running.ending.expiry.go_on();
        self.running.pair = threads::pair(&self.running)?;
        self.apply(&self.running.config().clone()).await?;
        // What the next process has written is not what this one knows.
        self.saved = State::default();
        self.save();
        tracing::error!("{GOES_ON}");
        self.event("process", Severity::Error, CONTROL_PLANE, GOES_ON);
        Ok(())
    }
}

impl Running {
    /// Takes ids, tables and cells as they stand now.
    fn read_anew(&mut self) -> Result<()> {
        ensure!(
            pinned(&self.data_plane.pins)? == Pinned::Ours,
            "a switch to the pinned state of another version has begun"
        );
        remove_stale_links(&self.data_plane.pins, &self.applied.places)?;
        self.data_plane.live.let_go()?;
        self.applied.ids = self.data_plane.live.ids()?;
        self.data_plane.live.recover(
            &self.data_plane.object,
            &self.applied.ids,
            &self.data_plane.pins.maps(),
        )?;
        self.go_by_maps()?;
        // Each is built anew.
        self.applied.cells.clear();
        Ok(())
    }
}
