//! Events as lines of syslog, sent by a thread of its own.

mod line;
mod sender;

use anyhow::Result;

use self::{line::SyslogFormat, sender::Sender};
use crate::{api::Event, config::Syslog};

/// Sends events to a syslog server, without ever waiting for it.
#[derive(Debug)]
pub(super) struct SyslogTarget {
    format: SyslogFormat,
    sender: Sender,
}

impl SyslogTarget {
    /// Starts the thread for the events of an instance.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn start(config: &Syslog, instance: &str) -> Result<Self> {
        Ok(Self {
            format: SyslogFormat::new(config.facility, instance),
            sender: Sender::start(config.to.clone())?,
        })
    }

    /// Sends an event soon, or counts it as lost.
    pub(super) fn send(&self, event: &Event) {
        self.sender.send(self.format.line(event));
    }

    /// Sends what waits, if the server takes it soon.
    pub(super) fn finish(self) {
        self.sender.finish();
    }
}
