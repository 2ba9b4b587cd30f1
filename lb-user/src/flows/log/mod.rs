//! The flow log: a line of JSON for each flow that begins or ends, in a file.
//!
//! Events come from the data plane, and from the threads of this process that end flows. The file is written
//! by a thread of its own: a slow or full disk costs lines, which are counted, and nothing else.

pub(crate) mod clock;
pub(crate) mod history;
mod line;
mod merge;
pub(crate) mod moment;
pub(crate) mod writer;

use std::{
    future::pending,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context as _, Result};
use lb_common::maps::event::FlowEvent;
use tokio::sync::mpsc;

pub(crate) use self::clock::Stamp;
use self::{
    clock::LogClock,
    line::LogLines,
    merge::Heads,
    writer::{Writer, WrittenLog},
};
use crate::{
    dataplane::{events::FlowEvents, labels::Labels, spilled::SpilledFlows, splices::SpliceTable},
    model::registry::Ids,
};

/// Events that wait at most: as many as one batch of an expiry, and then some.
const WAITING: usize = 1 << 14;
/// Lines that are made in one go, before another task runs.
const BATCH: usize = 256;

/// What the flow log is for, as its messages name it.
const LOG: WrittenLog = WrittenLog {
    name: "flow log",
    thread: "lb-flow-log",
    too_fast: "flows began and ended faster than the file was written",
};

/// A flow that began or ended, and the name that its client requested.
#[derive(Clone, Debug, Default)]
pub struct LogEvent {
    /// The event.
    pub event: FlowEvent,
    /// The name, if the reporter knows one.
    pub name: Option<Box<str>>,
}

impl From<FlowEvent> for LogEvent {
    fn from(event: FlowEvent) -> Self {
        Self { event, name: None }
    }
}

/// The end of [`channel`] for threads that end flows.
#[derive(Clone, Debug)]
pub struct Reporter {
    sender: mpsc::Sender<LogEvent>,
    lost: Arc<AtomicU64>,
}

/// The end of [`channel`] for the flow log.
#[derive(Debug)]
pub struct Reports {
    receiver: mpsc::Receiver<LogEvent>,
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
    pub fn report(&self, event: impl Into<LogEvent>) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(event.into()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Reports {
    /// The next event, if it is there.
    pub fn take(&mut self) -> Option<LogEvent> {
        self.receiver.try_recv().ok()
    }
}

/// The flow log of one instance.
pub struct FlowLog {
    /// None: another process reads those of the data plane.
    events: Option<FlowEvents>,
    reports: Reports,
    heads: Heads,
    lines: LogLines,
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
        let writer = Writer::start(LOG, path, Arc::clone(&reports.lost))?;
        let splices = SpliceTable::open(folder)?.with_names()?;
        Ok(Self {
            events: Some(FlowEvents::open(folder)?),
            reports,
            heads: Heads::default(),
            lines: LogLines::new(ids, Labels::open(folder)?, splices.names())
                .with_spilled(SpilledFlows::open(folder)?),
            writer,
        })
    }

    /// Networks and services have other ids now.
    pub fn set_names(&mut self, ids: &Ids) {
        self.lines.set_names(ids);
    }

    /// From now on another process reads the events of the data plane.
    pub fn leave_data_plane(&mut self) {
        self.events = None;
    }

    /// Reads the events of the data plane again, from the maps in `folder`. Needs a tokio runtime.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn take_data_plane_back(&mut self, folder: &Path) -> Result<()> {
        self.events = Some(FlowEvents::open(folder)?);
        Ok(())
    }

    /// Waits for an event, and writes those that are there. Nothing is lost if this is not awaited
    /// to its end.
    ///
    /// # Errors
    ///
    /// If events or the clock cannot be read any more.
    pub async fn drain(&mut self) -> Result<()> {
        if self.heads.is_empty() {
            tokio::select! {
                event = next(&mut self.events) => {
                    self.heads.ring = Some(event.context("read the flow events")?.into());
                }
                Some(event) = self.reports.receiver.recv() => self.heads.report = Some(event),
            }
        }
        let clock = LogClock::now()?;
        let mut text = Vec::new();
        for _ in 0..BATCH {
            let Some(event) = self.next() else {
                break;
            };
            self.lines.write(&mut text, &clock, &event)?;
        }
        self.writer.write(text);
        Ok(())
    }

    /// The next event of both streams that is there.
    fn next(&mut self) -> Option<LogEvent> {
        let Self {
            events,
            reports,
            heads,
            ..
        } = self;
        if heads.ring.is_none() {
            heads.ring = events
                .as_mut()
                .and_then(|events| events.take())
                .map(LogEvent::from);
        }
        if heads.report.is_none() {
            heads.report = reports.take();
        }
        heads.take()
    }
}

/// The next event of the data plane.
async fn next(events: &mut Option<FlowEvents>) -> Result<FlowEvent> {
    match events {
        Some(events) => Ok(events.next().await?),
        None => pending().await,
    }
}

impl Drop for FlowLog {
    /// The events that are out of their streams already are written; the others of the data plane wait
    /// for the next process.
    fn drop(&mut self) {
        let mut text = Vec::new();
        while let Some(event) = self.heads.take() {
            let line = LogClock::now().map(|clock| self.lines.write(&mut text, &clock, &event));
            if !matches!(line, Ok(Ok(()))) {
                self.reports.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.writer.write(text);
    }
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
        assert_eq!(reports.take().unwrap().event.id, 0);
        let lost = Arc::clone(&reports.lost);
        drop(reports);
        reporter.report(FlowEvent::default());
        assert_eq!(lost.load(Ordering::Relaxed), 3, "no reader is there");
    }
}
