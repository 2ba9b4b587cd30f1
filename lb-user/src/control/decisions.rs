//! What was decided at the active box of a pair holds at both, so that a standby has it when it takes over: what operators set for
//! backends, and the VIPs of hosted clusters. Verdicts of checks are said for comparison.

use anyhow::{Result, bail};

use super::control_loop::Control;
use crate::{
    api::{Overrides, Severity},
    ha::{decisions::Decisions, thread::BoxPair},
};

impl Control {
    /// Says to the peer what was decided here, and takes in what was at the active box.
    pub(super) async fn follow_active_box(&mut self) {
        let Some(pair) = &self.running.pair else {
            return;
        };
        pair.show_load(self.running.load());
        pair.show_decisions(Decisions {
            overrides: self.state.overrides.clone(),
            vips: self.discovered.chosen_vips().clone(),
            down: self.running.checks.down(),
        });
        let Some(Decisions {
            overrides, vips, ..
        }) = self.decisions_of_active()
        else {
            return;
        };
        if overrides != self.state.overrides {
            self.follow_overrides(overrides);
        }
        // What a reload goes back to must be what it began with.
        let may_change = self.state.unconfirmed.is_none();
        if may_change && self.discovered.take_in_vips(&vips) {
            self.take_discovered().await;
        }
    }

    /// What was decided at the active box, if that is the peer.
    fn decisions_of_active(&self) -> Option<Decisions> {
        let pair = self.running.pair.as_ref();
        let pair = pair.filter(|_| !self.role().serves());
        pair.and_then(BoxPair::decisions_of_active)
    }

    fn follow_overrides(&mut self, theirs: Overrides) {
        let failed = self.take_in_overrides(theirs).err();
        let failed = failed.map(|error| format!("{error:#}"));
        if let Some(words) = failed
            .as_ref()
            .filter(|_| self.role.lacks_overrides != failed)
        {
            let words = format!("take in the overrides of the active box: {words}; trying again");
            tracing::error!("{words}");
            self.event("override", Severity::Error, "backends", &words);
        }
        self.role.lacks_overrides = failed;
    }

    fn take_in_overrides(&mut self, theirs: Overrides) -> Result<()> {
        let count = theirs.len();
        self.replace_overrides(theirs)?;
        let config = self.running.config().clone();
        self.follow(&config);
        let words = format!("{count} are set, as at the active box");
        self.event("override", Severity::Notice, "backends", &words);
        Ok(())
    }

    /// Refuses an override at a standby that has those of the active box.
    ///
    /// # Errors
    ///
    /// If it is one.
    pub(super) fn check_overrides_are_own(&self) -> Result<()> {
        let Some(pair) = &self.running.pair else {
            return Ok(());
        };
        if self.decisions_of_active().is_some() {
            bail!(
                "this box stands by, and has the overrides of the active one: set it at {}, from where it comes here",
                pair.peer()
            );
        }
        Ok(())
    }
}
