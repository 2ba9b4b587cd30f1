//! A reload that only a new process can carry out: networks come, go or move, and this one has no privilege left to make
//! a cell or to attach a program. The command line starts the process, which takes over with the file. What must be confirmed
//! is written before, so that it waits there as it would here.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    control_loop::{Control, Refusal},
    fixed_at_start::moved_networks,
    persisted_state::Uptime,
};
use crate::{
    api::{Answer, Changes},
    config::Loaded,
    sources::file::File,
    system::systemd,
};

/// How long a process that was requested may take until it takes over: it loads the programs before.
const MAX_START: Duration = Duration::from_secs(10 * 60);

impl Control {
    /// What a new process has to be started for to reload this file; none where this one can do it, or refuses it. `by` is the
    /// operator that requested it.
    ///
    /// # Errors
    ///
    /// What the host, or the running data plane, refuses.
    pub(super) fn by_process(
        &mut self,
        file: &File,
        loaded: &Loaded,
        confirm: Option<Duration>,
        by: Option<String>,
    ) -> Result<Option<Answer>, Refusal> {
        self.forget_unstarted();
        let moves = moved_networks(self.running.config(), &loaded.config);
        if moves.is_empty() || self.state.unconfirmed.is_some() {
            return Ok(None);
        }
        let path = file.path().to_owned();
        let unit = self.unit_for(&path)?;
        let config = self.with_discovered(&loaded.config);
        let changes = self.foresee(&config, &loaded.warnings)?;
        if let Some(time) = confirm {
            let before = self.running.config().clone();
            self.await_confirmation(time + MAX_START, &before, &config)?;
            self.handed_on = Some(time);
        }
        let object = format!("file {}", path.display());
        let words = format!(
            "{}: a new process is to take over with it",
            moves.join(", ")
        );
        self.event_by("reload", &object, &words, by);
        Ok(Some(Answer::NewProcess {
            changes: Changes {
                confirm_seconds: confirm.map(|time| time.as_secs()),
                ..changes
            },
            file: path,
            process: std::process::id(),
            unit,
        }))
    }

    /// The unit whose reload starts the process, if this one is a unit's.
    fn unit_for(&self, file: &Path) -> Result<Option<String>, Refusal> {
        let Some(unit) = systemd::unit() else {
            return Ok(None);
        };
        if file != self.file.path() {
            let words = format!(
                "networks come, go or move with it, which a new process does; that of {unit} reads {}: write it there",
                self.file.path().display()
            );
            return Err(Refusal::Config(vec![words]));
        }
        Ok(Some(unit))
    }

    /// Nothing waits any more for a process that has not come.
    pub(crate) fn forget_unstarted(&mut self) {
        if self.handed_on.take().is_some() {
            self.state.unconfirmed = None;
            self.save();
        }
    }

    /// The process takes over: the time to confirm begins.
    pub(crate) fn begin_to_wait(&mut self) {
        if let (Some(time), Some(waits)) = (self.handed_on, &mut self.state.unconfirmed) {
            waits.until = Uptime::now().after(time);
        }
    }

    /// Whether only a new process can go back to what was before a reload that waits to be confirmed.
    pub fn goes_back_by_process(&self) -> bool {
        let waits = self.state.unconfirmed.as_ref();
        let waits = waits.filter(|_| self.handed_on.is_none());
        waits.is_some_and(|waits| waits.needs_process(self.running.config()))
    }

    /// Whether that is due; with the file that the process gets.
    pub fn is_due_to_go_back(&self) -> Option<PathBuf> {
        let waits = self.state.unconfirmed.as_ref()?;
        let is_due = waits.until.is_over() && self.goes_back_by_process();
        is_due.then(|| self.file.path().to_owned())
    }
}
