//! What a scraper gets, made at most once a second: however many clients there are, the control loop and the maps are asked no more
//! often than that.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::{
    encode::TextFormat,
    report::{ControlReport, LoopRequest},
    snapshot::Looks,
};

/// How old it may be.
const MAX_AGE: Duration = Duration::from_secs(1);
/// See the module.
pub(crate) struct Scrape {
    looks: Looks,
    requests: mpsc::Sender<LoopRequest>,
    /// The latest report that came.
    report: Option<ControlReport>,
    /// When one was requested last, and whether it came.
    asked: Option<(Instant, bool)>,
    texts: [Option<Text>; 2],
}

/// The text in one format.
#[derive(Clone)]
struct Text {
    made: Instant,
    bytes: Bytes,
}

impl Scrape {
    /// By these looks, and reports that are requested there.
    pub(crate) fn new(looks: Looks, requests: mpsc::Sender<LoopRequest>) -> Self {
        Self {
            looks,
            requests,
            report: None,
            asked: None,
            texts: [None, None],
        }
    }

    /// Whether the control loop has answered within the last second.
    pub(crate) async fn control_responds(&mut self) -> bool {
        if let Some((when, responds)) = self.asked.filter(|(when, _)| when.elapsed() < MAX_AGE) {
            return responds && when.elapsed() < MAX_AGE;
        }
        let report = LoopRequest::report(&self.requests, 0).await;
        let responds = report.is_some();
        self.asked = Some((Instant::now(), responds));
        self.report = report.or_else(|| self.report.take());
        responds
    }

    /// The text.
    ///
    /// # Errors
    ///
    /// If the control loop has never answered, or the kernel refuses a look-up.
    pub(crate) async fn text(&mut self, format: TextFormat) -> Result<Bytes> {
        let at = format as usize;
        if let Some(text) = &self.texts[at]
            && text.made.elapsed() < MAX_AGE
        {
            return Ok(text.bytes.clone());
        }
        let responds = self.control_responds().await;
        let report = self.report.as_ref();
        let report = report.context("the control plane has not answered yet")?;
        let snapshot = self.looks.look(report, responds)?;
        let made = Instant::now();
        let before = self.texts[at].take();
        let room = before.map_or(0, |text| text.bytes.len() + text.bytes.len() / 8);
        let text = format.text(snapshot, room).context("write the metrics")?;
        let bytes = Bytes::from(text);
        self.texts[at] = Some(Text {
            made,
            bytes: bytes.clone(),
        });
        Ok(bytes)
    }
}

impl std::fmt::Debug for Scrape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scrape")
    }
}
