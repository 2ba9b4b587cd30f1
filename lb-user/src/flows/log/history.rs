//! The flows that had a SNAT port at a time: out of the files of a flow log, which are read once, line by line.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::SystemTime,
};

use anyhow::{Context as _, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::moment::{Moment, millis, stamp};

/// The most bytes of a line; more are no line of a flow log.
const MAX_LINE: u64 = 1 << 16;
/// What logrotate and others have compressed.
const COMPRESSED: [&str; 4] = ["gz", "xz", "zst", "bz2"];

/// The files of a flow log: its own, and those that it was renamed to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LogFiles {
    /// The oldest first.
    pub(crate) plain: Vec<PathBuf>,
    /// Those that are not read.
    pub(crate) compressed: Vec<PathBuf>,
}

/// A flow that had the SNAT port: one line of `lb who --at`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct PastFlow {
    /// Whether it still has the port.
    pub(crate) live: bool,
    /// When it began; null if that is before the log.
    pub(crate) began: Option<String>,
    /// When it ended; null if it has not, or its end is not in the log.
    pub(crate) ended: Option<String>,
    /// How it ended, as in the flow log.
    pub(crate) reason: Option<String>,
    /// Network of the client.
    pub(crate) network: String,
    /// Its service.
    pub(crate) service: String,
    /// `tcp` or `udp`.
    pub(crate) protocol: String,
    /// Client address and port.
    pub(crate) client: Option<String>,
    /// VIP and port.
    pub(crate) vip: Option<String>,
    /// SNAT address and port.
    pub(crate) snat: Option<String>,
    /// Backend address and port.
    pub(crate) backend: Option<String>,
    /// The name that the client requested, if that decided where it went.
    pub(crate) name: Option<String>,
    /// Bytes from the client.
    pub(crate) bytes_request: u64,
    /// Bytes to the client.
    pub(crate) bytes_reply: u64,
}

/// What the files have.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PastFlows {
    /// The flows, in the order of their ends; those without one are the last.
    pub(crate) flows: Vec<PastFlow>,
    /// The time of the first line.
    pub(crate) since: Option<String>,
}

/// A line of the log.
#[derive(Deserialize)]
struct LoggedLine {
    time: String,
    event: String,
    id: u32,
    network: String,
    service: String,
    protocol: String,
    client: Option<String>,
    vip: Option<String>,
    snat: Option<String>,
    backend: Option<String>,
    #[serde(default)]
    name: Option<String>,
    bytes_request: u64,
    bytes_reply: u64,
    reason: Option<String>,
    duration_ms: Option<i64>,
}

impl LogFiles {
    /// Those of the log at `path`: `FILE`, `FILE.1`, `FILE-20261126` and `STEM-20261126.EXTENSION`.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let folder = path.parent().unwrap_or_else(|| Path::new("/"));
        let entries = fs::read_dir(folder);
        let entries = entries.with_context(|| format!("read the folder {}", folder.display()))?;
        let mut plain: Vec<(SystemTime, PathBuf)> = Vec::new();
        let mut files = Self::default();
        for entry in entries.filter_map(io::Result::ok) {
            let rotated = entry.path();
            if rotated == path {
                continue;
            }
            match kind(path, &rotated) {
                Some(Kind::Plain) => {
                    let written = entry.metadata().and_then(|found| found.modified());
                    plain.push((written.unwrap_or(SystemTime::UNIX_EPOCH), rotated));
                }
                Some(Kind::Compressed) => files.compressed.push(rotated),
                None => {}
            }
        }
        plain.sort();
        files.plain = plain.into_iter().map(|(_, path)| path).collect();
        if path.exists() {
            files.plain.push(path.to_owned());
        }
        files.compressed.sort();
        Ok(files)
    }

    /// The flows that had this SNAT port then.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(crate) fn search(&self, snat: SocketAddr, at: Moment) -> Result<PastFlows> {
        let mut search = Search::new(snat, at);
        for path in &self.plain {
            let mut read = || -> io::Result<()> {
                let mut file = BufReader::new(File::open(path)?);
                let mut line = Vec::new();
                while (&mut file).take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
                    search.read(&line);
                    line.clear();
                }
                Ok(())
            };
            read().with_context(|| format!("read the flow log {}", path.display()))?;
        }
        Ok(search.finish())
    }
}

enum Kind {
    Plain,
    Compressed,
}

/// What `other` is of the log at `path`; none: another file.
fn kind(path: &Path, other: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_str()?;
    let other = other.file_name()?.to_str()?;
    let (other, kind) = match other.rsplit_once('.') {
        Some((other, end)) if COMPRESSED.contains(&end) => (other, Kind::Compressed),
        _ => (other, Kind::Plain),
    };
    let is_number = |rest: &str| {
        let rest = rest.strip_prefix(['.', '-']);
        rest.is_some_and(|rest| {
            !rest.is_empty()
                && rest
                    .bytes()
                    .all(|byte| byte.is_ascii_digit() || byte == b'-')
        })
    };
    let behind = other.strip_prefix(name).is_some_and(is_number);
    let within = name.rsplit_once('.').and_then(|(stem, end)| {
        let rest = other.strip_prefix(stem)?.strip_suffix(end)?;
        rest.strip_suffix('.')
    });
    let is_of_log = behind || other == name || within.is_some_and(is_number);
    is_of_log.then_some(kind)
}

/// What is known so far, line after line.
struct Search {
    at: Moment,
    /// What each line of the port has in it.
    words: String,
    /// Flows that began until then, and have not ended, by their ids: one in each network that has the address.
    open: HashMap<u32, LoggedLine>,
    /// Ids of flows that began later.
    later: HashSet<u32>,
    history: PastFlows,
}

impl Search {
    fn new(snat: SocketAddr, at: Moment) -> Self {
        Self {
            at,
            words: format!(r#""snat":"{snat}""#),
            open: HashMap::new(),
            later: HashSet::new(),
            history: PastFlows::default(),
        }
    }

    /// Takes a line; what is none is left out.
    fn read(&mut self, line: &[u8]) {
        let Ok(text) = str::from_utf8(line) else {
            return;
        };
        let is_first = self.history.since.is_none();
        if !is_first && !text.contains(&self.words) {
            return;
        }
        let Ok(line) = serde_json::from_str::<LoggedLine>(text) else {
            return;
        };
        let Some(time) = millis(&line.time) else {
            return;
        };
        if is_first {
            self.history.since = Some(line.time.clone());
            if !text.contains(&self.words) {
                return;
            }
        }
        match line.event.as_str() {
            "began" => self.began(line, time),
            "ended" => self.ended(line, time),
            _ => {}
        }
    }

    fn began(&mut self, line: LoggedLine, time: i64) {
        // The end of one that had the port before is lost.
        if let Some(before) = self.open.remove(&line.id)
            && time >= self.at.first
        {
            self.found(before.into());
        }
        if time > self.at.last {
            self.later.insert(line.id);
        } else {
            self.open.insert(line.id, line);
        }
    }

    fn ended(&mut self, line: LoggedLine, time: i64) {
        let known = self.open.remove(&line.id).map(|began| began.time);
        if known.is_none() && self.later.remove(&line.id) || time < self.at.first {
            return;
        }
        let began = match (known, line.duration_ms) {
            (Some(began), _) => Some(began),
            (None, Some(duration)) if time - duration > self.at.last => return,
            (None, Some(duration)) => stamp(time - duration),
            (None, None) => None,
        };
        let (ended, reason) = (Some(line.time.clone()), line.reason.clone());
        let flow = PastFlow {
            began,
            ended,
            reason,
            ..line.into()
        };
        self.found(flow);
    }

    fn found(&mut self, flow: PastFlow) {
        self.history.flows.push(flow);
    }

    fn finish(self) -> PastFlows {
        let Self {
            open, mut history, ..
        } = self;
        history.flows.extend(open.into_values().map(PastFlow::from));
        history
    }
}

impl From<LoggedLine> for PastFlow {
    /// One that began with this line, and of which nothing more is known.
    fn from(line: LoggedLine) -> Self {
        let LoggedLine {
            time,
            network,
            service,
            protocol,
            client,
            vip,
            snat,
            backend,
            name,
            bytes_request,
            bytes_reply,
            ..
        } = line;
        Self {
            live: false,
            began: Some(time),
            ended: None,
            reason: None,
            network,
            service,
            protocol,
            client,
            vip,
            snat,
            backend,
            name,
            bytes_request,
            bytes_reply,
        }
    }
}

#[cfg(test)]
mod tests;
