//! What the page shows, made at most once a second: however many pages are open, the control loop and the maps are asked
//! no more often than that, and no more than a tenth of the time.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use hyper::body::Bytes;
use tokio::{sync::mpsc, task};

use crate::{
    metrics::report::{ControlReport, LoopRequest},
    model::report::Versioned,
    observe::Observer,
    reports::{
        overview::{ControlReports, MAX_EVENTS, Overview},
        rates::Watch,
    },
};

/// How often one is made.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often at least, however long it takes.
const MAX_INTERVAL: Duration = Duration::from_secs(10);
/// How long what is looked at stays open without a page.
const REST_TIMEOUT: Duration = Duration::from_secs(4);
/// An interval has so many times the time that it took to make one.
const IDLE_PARTS: u32 = 10;
/// Stands for the health of backends.
const SILENT: &str = "the control plane does not answer";

/// See the module.
pub(super) struct Overviews {
    /// While a page is open: it has dozens of descriptors.
    eye: Option<Arc<Mutex<Eye>>>,
    requests: mpsc::Sender<LoopRequest>,
    /// The latest report that came.
    report: Option<ControlReport>,
    latest: Option<Made>,
}

/// What looks.
struct Eye {
    observer: Observer,
    watch: Watch,
}

/// An overview as JSON.
#[derive(Clone)]
pub(super) struct Made {
    /// When it was begun.
    pub(super) begun: Instant,
    /// How long it is the latest.
    interval: Duration,
    /// One line.
    pub(super) json: Bytes,
}

impl Made {
    /// Until when it is the latest.
    pub(super) fn until(&self) -> Instant {
        self.begun + self.interval
    }
}

impl Overviews {
    /// By reports that are requested there.
    pub(super) const fn new(requests: mpsc::Sender<LoopRequest>) -> Self {
        Self {
            eye: None,
            requests,
            report: None,
            latest: None,
        }
    }

    /// Closes what is looked at, if no page has been open for a while.
    pub(super) fn rest(&mut self) {
        let is_old = |latest: &Made| latest.until().elapsed() > REST_TIMEOUT;
        if self.latest.as_ref().is_none_or(is_old) {
            self.eye = None;
        }
    }

    /// What looks, opened now if it is closed.
    async fn eye(&mut self) -> Result<Arc<Mutex<Eye>>> {
        if let Some(eye) = &self.eye {
            return Ok(Arc::clone(eye));
        }
        let observer = LoopRequest::observer(&self.requests).await;
        let eye = Arc::new(Mutex::new(Eye {
            observer: observer.context("open the maps")?,
            watch: Watch::default(),
        }));
        self.eye = Some(Arc::clone(&eye));
        Ok(eye)
    }

    /// The latest one, or a new one if it is time.
    ///
    /// # Errors
    ///
    /// If the control loop has never answered, or the kernel refuses a look-up.
    pub(super) async fn latest(&mut self) -> Result<Made> {
        if let Some(latest) = &self.latest
            && Instant::now() < latest.until()
        {
            return Ok(latest.clone());
        }
        let begun = Instant::now();
        let answer = LoopRequest::report(&self.requests, MAX_EVENTS).await;
        let responds = answer.is_some();
        self.report = answer.or_else(|| self.report.take());
        let report = self.report.as_ref();
        let report = report
            .context("the control plane has not answered yet")?
            .clone();
        let eye = self.eye().await?;
        let look = Instant::now();
        let json = task::spawn_blocking(move || Eye::json(&eye, report, responds)).await??;
        let made = Made {
            begun,
            interval: (look.elapsed() * IDLE_PARTS).clamp(INTERVAL, MAX_INTERVAL),
            json: Bytes::from(json),
        };
        self.latest = Some(made.clone());
        Ok(made)
    }
}

impl Eye {
    fn json(eye: &Mutex<Self>, report: ControlReport, responds: bool) -> Result<Vec<u8>> {
        let mut eye = eye.lock().map_err(|_| anyhow!("a look has panicked"))?;
        let Self { observer, watch } = &mut *eye;
        observer.set_names(&report.names);
        let control = ControlReports {
            status: match responds {
                true => Ok(report.status),
                false => Err(SILENT.to_owned()),
            },
            events: report.events,
            names: report.names_refused,
        };
        let when = Instant::now();
        let mut overview = Overview::new(observer, control).context("look at the data plane")?;
        watch.follow(&mut overview, when);
        serde_json::to_vec(&Versioned::new(overview)).context("write JSON")
    }
}
