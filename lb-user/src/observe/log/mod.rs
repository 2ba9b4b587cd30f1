//! The flow log: a line of JSON for each flow that begins or ends, in a file.
//!
//! Events come from the data plane, and from whoever ends flows in this process. The file is written
//! by a thread of its own: a slow or full disk costs lines, which are counted, and nothing else.

mod line;
mod writer;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use lb_common::maps::event::FlowEvent;
use tokio::sync::mpsc;
use tracing_subscriber::fmt::{
    format::Writer as TimeWriter,
    time::{FormatTime as _, SystemTime},
};

use self::{line::Lines, writer::Writer};
use crate::dataplane::flows::coarse_now;
use crate::{control::ids::Ids, dataplane::events::FlowEvents};

/// Events that wait at most: as many as one batch of an expiry, and then some.
const WAITING: usize = 1 << 14;
/// Lines that are made in one go, before anybody else has a turn.
const BATCH: usize = 256;

/// The end of [`channel`] for those who end flows.
#[derive(Clone, Debug)]
pub struct Reporter {
    sender: mpsc::Sender<FlowEvent>,
    lost: Arc<AtomicU64>,
}

/// The end of [`channel`] for the flow log.
#[derive(Debug)]
pub struct Reports {
    receiver: mpsc::Receiver<FlowEvent>,
    lost: Arc<AtomicU64>,
}

/// Takes the events that userspace makes itself to the flow log, from any thread.
pub fn channel() -> (Reporter, Reports) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let lost = Arc::default();
    let reporter = Reporter {
        sender,
        lost: Arc::clone(&lost),
    };
    (reporter, Reports { receiver, lost })
}

impl Reporter {
    /// Hands `event` over, at once. Its word is the flow's last one. Without a flow log nothing
    /// happens; with one that cannot keep up the event is counted as lost.
    pub fn report(&self, event: FlowEvent) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(event) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The flow log of one instance.
pub struct FlowLog {
    events: FlowEvents,
    reports: Reports,
    lines: Lines,
    writer: Writer,
}

impl FlowLog {
    /// Reads the events of the maps in `folder` from now on and appends them to the file at `path`,
    /// which is made when there is something to write. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// If the events cannot be read, or no thread be started.
    pub fn open(folder: &Path, path: &Path, ids: &Ids, reports: Reports) -> Result<Self> {
        let writer = Writer::start(path, Arc::clone(&reports.lost))?;
        Ok(Self {
            events: FlowEvents::open(folder)?,
            reports,
            lines: Lines::new(ids),
            writer,
        })
    }

    /// Networks and services have other ids now.
    pub fn set_names(&mut self, ids: &Ids) {
        self.lines.set_names(ids);
    }

    /// Waits for an event, and writes those that are there. Nothing is lost if this is not awaited
    /// to its end.
    ///
    /// # Errors
    ///
    /// If events or the clock cannot be read any more.
    pub async fn drain(&mut self) -> Result<()> {
        let first = tokio::select! {
            event = self.events.next() => event.context("read the flow events")?,
            Some(event) = self.reports.receiver.recv() => event,
        };
        let (now, time) = (coarse_now()?, time());
        let mut text = Vec::new();
        let mut next = Some(first);
        let mut count = 0;
        while let Some(event) = next {
            self.lines.write(&mut text, &time, now, &event)?;
            count += 1;
            next = match count {
                BATCH => None,
                _ => self
                    .events
                    .take()
                    .or_else(|| self.reports.receiver.try_recv().ok()),
            };
        }
        self.writer.write(text);
        Ok(())
    }
}

/// Now, as RFC 3339 has it, in UTC.
fn time() -> String {
    let mut text = String::new();
    // A `String` takes everything.
    let _infallible: std::fmt::Result = SystemTime.format_time(&mut TimeWriter::new(&mut text));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_never_waits() {
        let (reporter, mut reports) = channel();
        for id in 0..WAITING + 3 {
            reporter.clone().report(FlowEvent {
                id: u32::try_from(id).unwrap(),
                ..FlowEvent::default()
            });
        }
        assert_eq!(reports.lost.load(Ordering::Relaxed), 3);
        assert_eq!(reports.receiver.try_recv().unwrap().id, 0);
        let lost = Arc::clone(&reports.lost);
        drop(reports);
        reporter.report(FlowEvent::default());
        assert_eq!(lost.load(Ordering::Relaxed), 3, "nobody wants it");
    }

    #[test]
    fn the_time_is_one_that_programs_read() {
        let time = time();
        assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        assert_eq!(time.find('T'), Some(10), "{time}");
    }
}
