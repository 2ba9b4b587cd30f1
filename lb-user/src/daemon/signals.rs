//! The signals that `lb run` knows.

use anyhow::{Context as _, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that the control plane knows.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        let watch = |kind| signal(kind).context("watch for signals");
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            hangup: watch(SignalKind::hangup())?,
        })
    }

    /// The next one: whether it means that the file is to be read anew, and not the end.
    pub(crate) async fn any(&mut self) -> bool {
        tokio::select! {
            _ = self.interrupt.recv() => false,
            _ = self.terminate.recv() => false,
            _ = self.hangup.recv() => true,
        }
    }

    /// Waits for one to end; a reload is the next process's.
    pub(crate) async fn end(&mut self) {
        while self.any().await {}
    }
}
