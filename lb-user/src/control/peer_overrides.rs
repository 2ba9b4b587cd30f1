//! What operators set at the active box of a pair holds at both: a standby has it when it takes over.

use anyhow::{Result, bail};

use super::control_loop::Control;
use crate::{
    api::{Overrides, Severity},
    ha::thread::BoxPair,
};

impl Control {
    /// Says to the peer what operators have set here, and takes in what they have set at the active box.
    pub(super) fn follow_peer_overrides(&mut self) {
        let Some(pair) = &self.running.pair else {
            return;
        };
        pair.show_overrides(&self.state.overrides);
        let Some(theirs) = self.overrides_of_active() else {
            return;
        };
        if theirs == self.state.overrides {
            return;
        }
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

    /// What they have set at the active box, if that is the peer.
    fn overrides_of_active(&self) -> Option<Overrides> {
        let pair = self.running.pair.as_ref();
        let pair = pair.filter(|_| !self.role().serves());
        pair.and_then(BoxPair::overrides_of_active)
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
        if self.overrides_of_active().is_some() {
            bail!(
                "this box stands by, and has the overrides of the active one: set it at {}, from where it comes here",
                pair.peer()
            );
        }
        Ok(())
    }
}
