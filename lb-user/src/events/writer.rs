//! The thread that writes the file of events. It is never waited for, but at the end of a process, and then not for
//! long.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::file::{self, is_long, line, open, read};
use crate::{network::cell_thread, system::files};

/// Events that wait for the disk at most.
const MAX_WAITING: usize = 8192;
/// How long what is written may stay in the kernel's cache: a power cut loses that much.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Adds lines to the file of events, without ever waiting for it.
#[derive(Debug)]
pub(super) struct EventWriter {
    /// None while this is dropped.
    lines: Option<SyncSender<Vec<u8>>>,
    lost: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    done: Receiver<()>,
}

impl EventWriter {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn start(path: &Path) -> Result<Self> {
        let (lines, texts) = mpsc::sync_channel(MAX_WAITING);
        let (finished, done) = mpsc::sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let mut target = EventFile::new(path, Arc::clone(&lost));
        let over = Arc::clone(&is_over);
        let work = move |()| {
            target.run(&texts, &over);
            // The receiver is gone if the disk has taken too long.
            let _late: Result<(), mpsc::SendError<()>> = finished.send(());
        };
        cell_thread::start("lb-events".to_owned(), None, || Ok(()), work)
            .context("start the thread that writes events")?;
        Ok(Self {
            lines: Some(lines),
            lost,
            is_over,
            done,
        })
    }

    /// Writes a line soon, or counts it as lost.
    pub(super) fn write(&self, line: Vec<u8>) {
        let sent = self.lines.as_ref().map(|lines| lines.try_send(line));
        if !matches!(sent, Some(Ok(()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for EventWriter {
    /// What is there is written, if the disk takes it soon; no line is begun after this.
    fn drop(&mut self) {
        drop(self.lines.take());
        let _in_time: Result<(), RecvTimeoutError> = self.done.recv_timeout(FLUSH_TIMEOUT);
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The file, as the thread sees it.
struct EventFile {
    path: PathBuf,
    open: Option<Open>,
    lost: Arc<AtomicU64>,
    /// Why lines are lost, as it was logged.
    failure: Option<String>,
    /// Since when there is something that a power cut would lose.
    unsynced: Option<Instant>,
}

/// The file, open.
struct Open {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// Where its last whole line ends.
    whole: u64,
    lines: usize,
}

impl EventFile {
    fn new(path: &Path, lost: Arc<AtomicU64>) -> Self {
        Self {
            path: path.to_owned(),
            open: None,
            lost,
            failure: None,
            unsynced: None,
        }
    }

    fn run(&mut self, texts: &Receiver<Vec<u8>>, is_over: &AtomicBool) {
        loop {
            match texts.recv_timeout(SYNC_INTERVAL) {
                Ok(_) if is_over.load(Ordering::Relaxed) => return,
                Ok(text) => self.add(&text),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self
                .unsynced
                .is_some_and(|since| since.elapsed() >= SYNC_INTERVAL)
            {
                self.sync();
            }
        }
        self.sync();
    }

    /// Adds a line, and logs when that begins to fail and when it works again.
    fn add(&mut self, text: &[u8]) {
        let added = self.try_add(text);
        let path = self.path.display();
        match added {
            Ok(()) if self.failure.take().is_some() => {
                let lost = self.lost.swap(0, Ordering::Relaxed);
                tracing::warn!("events are kept in {path} again; {lost} of them were not");
            }
            Ok(()) => {}
            Err(error) => {
                let error = format!("{error:#}");
                if self.failure.as_ref() != Some(&error) {
                    tracing::error!("events are not kept over a restart: write {path}: {error}");
                }
                self.lost.fetch_add(1, Ordering::Relaxed);
                self.failure = Some(error);
                self.open = None;
            }
        }
    }

    fn try_add(&mut self, text: &[u8]) -> Result<()> {
        let is_there = |open: &Open| {
            let found = fs::symlink_metadata(&self.path);
            found.is_ok_and(|found| (found.dev(), found.ino()) == open.identity)
        };
        let mut open = match self.open.take().filter(is_there) {
            Some(open) => open,
            None => Open::at(&self.path)?,
        };
        open.add(text)?;
        if is_long(open.whole, open.lines) {
            open = Open::shortened(&self.path, &open)?;
        }
        self.open = Some(open);
        self.unsynced.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// Has the disk keep what is written. Where that fails, the next line shows it.
    fn sync(&mut self) {
        if self.unsynced.take().is_some()
            && let Some(open) = &self.open
        {
            let _shown_by_the_next: io::Result<()> = open.file.sync_data();
        }
    }
}

impl Open {
    /// Opens the file, and cuts off what a process that was killed has half written.
    fn at(path: &Path) -> Result<Self> {
        let file = open(path)?;
        let found = read(&file)?;
        if file.metadata()?.len() > found.whole {
            file.set_len(found.whole)?;
        }
        let open = Self::of(file, found.whole, found.lines)?;
        match found.is_long() {
            true => Self::shortened(path, &open),
            false => Ok(open),
        }
    }

    fn of(file: File, whole: u64, lines: usize) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            identity: (metadata.dev(), metadata.ino()),
            file,
            whole,
            lines,
        })
    }

    fn add(&mut self, text: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(text);
        if written.is_err() {
            // Of a line that did not fit nothing stays.
            self.file.set_len(self.whole)?;
        }
        written?;
        self.whole += u64::try_from(text.len()).map_err(io::Error::other)?;
        self.lines += 1;
        Ok(())
    }

    /// The file made anew, of what is kept alone: after a power cut it is the one of before or the new one.
    fn shortened(path: &Path, open: &Self) -> Result<Self> {
        let kept = read(&open.file)?.ring.after(0);
        let mut text = Vec::new();
        for event in &kept {
            text.extend(line(event)?);
        }
        files::write_with_mode(path, &text, file::MODE)?;
        let whole = u64::try_from(text.len())?;
        Ok(Self::of(file::open(path)?, whole, kept.len())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{Event, Severity},
        events::ring::{MAX_BYTES, MAX_EVENTS},
    };

    fn text(number: u64, kind: &str) -> Vec<u8> {
        let event = Event {
            number,
            time_ms: number,
            kind: kind.to_owned(),
            severity: Severity::Warning,
            object: "backend p/a".to_owned(),
            words: "up -> dead: connection refused".to_owned(),
            by: None,
        };
        line(&event).unwrap()
    }

    fn numbers(path: &Path) -> Vec<u64> {
        let found = read(&open(path).unwrap()).unwrap();
        let events = found.ring.after(0);
        events.iter().map(|event| event.number).collect()
    }

    #[test]
    fn what_was_half_written_is_cut_off_and_lines_follow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let torn = &text(3, "health")[..20];
        fs::write(
            &path,
            [&text(1, "health"), &text(2, "health"), torn].concat(),
        )
        .unwrap();
        let writer = EventWriter::start(&path).unwrap();
        writer.write(text(3, "kill"));
        drop(writer);
        assert_eq!(numbers(&path), [1, 2, 3]);
        let whole = [text(1, "health"), text(2, "health"), text(3, "kill")].concat();
        assert_eq!(fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn the_file_is_bounded_and_keeps_orders() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut file = EventFile::new(&path, Arc::default());
        file.add(&text(1, "override"));
        let most = 5 * u64::try_from(MAX_EVENTS).unwrap();
        for number in 2..=most {
            file.add(&text(number, "health"));
        }
        assert_eq!(file.failure, None);
        let length = fs::metadata(&path).unwrap().len();
        assert!(length <= 2 * MAX_BYTES, "{length}");
        let numbers = numbers(&path);
        assert_eq!((numbers[0], numbers.last()), (1, Some(&most)));
        assert!((7501..=10_000).contains(&numbers.len()));
    }

    #[test]
    fn a_disk_without_room_costs_events_and_is_logged_until_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gone").join("f");
        let mut file = EventFile::new(&path, Arc::default());
        file.add(&text(1, "health"));
        file.add(&text(2, "health"));
        assert_eq!(file.lost.load(Ordering::Relaxed), 2);
        assert!(file.failure.is_some());
        fs::create_dir(folder.path().join("gone")).unwrap();
        file.add(&text(3, "health"));
        assert_eq!(
            (file.lost.load(Ordering::Relaxed), file.failure.take()),
            (0, None)
        );
        // What another process has removed is made anew.
        fs::remove_file(&path).unwrap();
        file.add(&text(4, "health"));
        assert_eq!(numbers(&path), [4]);
    }
}
