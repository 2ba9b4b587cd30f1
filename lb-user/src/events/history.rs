//! What a control plane does with its events: it numbers them, keeps the latest, and hands them on.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};

use super::{
    file::{self, line, open, read},
    ring::Ring,
    syslog::SyslogTarget,
    writer::EventWriter,
};
use crate::{
    api::{Event, Severity},
    config::Syslog,
    dataplane::pins::Pins,
    system::escape::escaped,
};

/// The most bytes of the words of an event: the log has the rest.
const MAX_WORDS: usize = 3000;
/// Stands at the end of words that were longer.
const CUT: &str = " ...";

/// The events of an instance.
#[derive(Debug)]
pub struct History {
    ring: Ring,
    path: PathBuf,
    /// None: another process writes the file, or its thread could not be started.
    writer: Option<EventWriter>,
    instance: String,
    /// Where events shall go, and where they go, if they do.
    syslog: Option<Syslog>,
    target: Option<SyslogTarget>,
}

/// What happened; its number and time come with it.
#[derive(Debug)]
pub struct Happened<'e> {
    /// One of [`EVENT_KINDS`](crate::api::EVENT_KINDS).
    pub kind: &'e str,
    /// How grave it is.
    pub severity: Severity,
    /// What it happened to.
    pub object: &'e str,
    /// What happened, for people.
    pub words: &'e str,
    /// The process that ordered it, if one did.
    pub by: Option<String>,
}

impl History {
    /// Goes on with what earlier processes of the instance have left. The caller has the lock of the instance.
    pub fn open(pins: &Pins) -> Self {
        let mut history = Self {
            ring: Ring::default(),
            path: file::path(pins),
            writer: None,
            instance: pins.instance().to_owned(),
            syslog: None,
            target: None,
        };
        history.go_on();
        history
    }

    /// From now on events also go to this syslog server, or to none.
    pub fn follow(&mut self, syslog: Option<&Syslog>) {
        if self.syslog.as_ref() != syslog {
            self.syslog = syslog.cloned();
            self.target = None;
            self.start_syslog();
        }
    }

    fn start_syslog(&mut self) {
        let target = self.syslog.as_ref();
        let target = target.map(|config| SyslogTarget::start(config, &self.instance));
        match target.transpose() {
            Ok(target) => self.target = target,
            Err(error) => tracing::error!("events go to no syslog server: {error:#}"),
        }
    }

    /// Goes on with what is in the file, also what another process has written since [`Self::rest`].
    pub fn go_on(&mut self) {
        if let Err(error) = self.read() {
            tracing::error!(
                "read the events of before: {error:#}; they are not shown, and their numbers may come again"
            );
        }
        match EventWriter::start(&self.path) {
            Ok(writer) => self.writer = Some(writer),
            Err(error) => tracing::error!("events are not kept over a restart: {error:#}"),
        }
        self.start_syslog();
    }

    fn read(&mut self) -> Result<()> {
        let read = || read(&open(&self.path)?);
        let found = read().with_context(|| format!("read {}", self.path.display()))?;
        for event in found.ring.after(0) {
            self.ring.add(event);
        }
        Ok(())
    }

    /// Writes and sends no more, and has done so with what there is, if that is possible soon: from now on the file is
    /// another process's.
    pub fn rest(&mut self) {
        self.writer = None;
        if let Some(target) = self.target.take() {
            target.finish();
        }
    }

    /// Notes what happened just now.
    pub fn push(&mut self, happened: Happened<'_>) {
        let Happened {
            kind,
            severity,
            object,
            words,
            by,
        } = happened;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let event = Event {
            number: self.ring.next_number(),
            time_ms: u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
            kind: kind.to_owned(),
            severity,
            object: escaped(object).into_owned(),
            words: cut(&escaped(words)),
            by: by.map(|by| escaped(&by).into_owned()),
        };
        if let Some(writer) = &self.writer
            && let Ok(line) = line(&event)
        {
            writer.write(line);
        }
        if let Some(target) = &self.target {
            target.send(&event);
        }
        self.ring.add(event);
    }

    /// Those after the one with this number, oldest first; all of them if there is none with this number yet.
    #[must_use]
    pub fn after(&self, number: u64) -> Vec<Event> {
        self.ring.after(number)
    }

    /// So many of the latest, oldest first.
    #[must_use]
    pub fn latest(&self, count: usize) -> Vec<Event> {
        self.ring.latest(count)
    }

    /// What the process before this one has noted last of itself.
    #[must_use]
    pub fn latest_of_process(&self) -> Option<&Event> {
        self.ring.latest_of_process()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.rest();
    }
}

/// Words that are not too many.
fn cut(words: &str) -> String {
    if words.len() <= MAX_WORDS {
        return words.to_owned();
    }
    format!("{}{CUT}", &words[..words.floor_char_boundary(MAX_WORDS)])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn history(path: PathBuf) -> History {
        let mut history = History {
            ring: Ring::default(),
            path,
            writer: None,
            instance: "main".to_owned(),
            syslog: None,
            target: None,
        };
        history.go_on();
        history
    }

    fn push(history: &mut History, object: &str, words: &str) {
        history.push(Happened {
            kind: "override",
            severity: Severity::Notice,
            object,
            words,
            by: Some("uid 0, process 9".to_owned()),
        });
    }

    fn numbers(history: &History) -> Vec<u64> {
        let events = history.after(0);
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn numbers_go_on_over_restarts_and_take_overs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut old = history(path.clone());
        push(&mut old, "backend a", "drained");
        push(&mut old, "backend a", "enabled");
        old.rest();
        let mut new = history(path.clone());
        assert_eq!(new.after(0), old.after(0));
        push(&mut new, "backend b", "drained");
        // The new process dies, and the old one goes on.
        drop(new);
        old.go_on();
        push(&mut old, "backend c", "drained");
        assert_eq!(numbers(&old), [1, 2, 3, 4]);
        drop(old);
        assert_eq!(numbers(&history(path)), [1, 2, 3, 4]);
    }

    #[test]
    fn an_event_has_the_time_of_now() {
        let folder = tempfile::tempdir().unwrap();
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap()
                .as_millis()
        };
        let before = now();
        let mut history = history(folder.path().join("f"));
        push(&mut history, "backend a", "drained");
        let [event] = &history.after(0)[..] else {
            panic!("one event")
        };
        assert!((before..=now()).contains(&event.time_ms.into()));
        assert_eq!(event.by.as_deref(), Some("uid 0, process 9"));
    }

    #[test]
    fn no_control_byte_reaches_memory_or_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut history = history(path.clone());
        push(
            &mut history,
            "backend <script>\u{1b}[2J",
            "a\nb]\"\u{9b}\u{7f}",
        );
        let events = history.after(0);
        drop(history);
        assert_eq!(events[0].object, "backend <script>\\u{1b}[2J");
        assert_eq!(events[0].words, "a\\nb]\"\\u{9b}\\u{7f}");
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(text.chars().filter(|c| c.is_control()).count(), 1);
    }

    #[test]
    fn words_are_not_too_many() {
        let words = cut(&"ä".repeat(MAX_WORDS));
        assert_eq!(words.len(), MAX_WORDS + CUT.len());
        assert_eq!(cut("a"), "a");
    }

    #[test]
    fn a_folder_that_is_not_there_costs_no_event_in_memory() {
        let mut history = history("/nonexistent/f".into());
        push(&mut history, "backend a", "drained");
        assert_eq!(numbers(&history), [1]);
    }
}
