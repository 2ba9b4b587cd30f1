//! The thread that writes a log of lines: of flows, or of requests.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::network::cell_thread;

/// Readers of the file: root, and its group.
const MODE: u32 = 0o640;
/// Bytes that wait for the disk at most: some twenty thousand lines.
const WAITING: usize = 8 << 20;
/// How often lost lines are reported.
const REPORT: Duration = Duration::from_secs(60);
/// How long the end of the process waits for the disk.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// What is written, for messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenLog {
    /// As in `flow log`.
    pub(crate) name: &'static str,
    /// The name of its thread.
    pub(crate) thread: &'static str,
    /// Why lines are lost where the file is not the reason.
    pub(crate) too_fast: &'static str,
}

/// Writes lines to a file, without ever waiting for it.
#[derive(Debug)]
pub(crate) struct Writer {
    /// None while this is dropped.
    lines: Option<Sender<Vec<u8>>>,
    /// Bytes that wait.
    waiting: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    /// Shared by threads; only the end of the last one waits for it.
    done: Mutex<Receiver<()>>,
}

impl Writer {
    /// Starts the thread. `lost` counts the lines that are not written, wherever they were lost.
    pub(crate) fn start(log: WrittenLog, path: &Path, lost: Arc<AtomicU64>) -> Result<Self> {
        let (lines, texts) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        let (finished, done) = mpsc::sync_channel(1);
        let mut target = LogFile::new(log, path, Arc::clone(&lost));
        let work = move |()| {
            target.run(&texts, &written);
            // The receiver is gone if the process has ended already.
            let _late: Result<(), mpsc::SendError<()>> = finished.send(());
        };
        cell_thread::start(log.thread.to_owned(), None, || Ok(()), work)
            .with_context(|| format!("start the thread of the {}", log.name))?;
        Ok(Self {
            lines: Some(lines),
            waiting,
            lost,
            done: Mutex::new(done),
        })
    }

    /// Writes whole lines soon, or counts them as lost.
    pub(crate) fn write(&self, text: Vec<u8>) {
        let (lines, bytes) = (count(&text), text.len());
        let before = self.waiting.fetch_add(bytes, Ordering::Relaxed);
        let room = before.saturating_add(bytes) <= WAITING;
        let sender = self.lines.as_ref().filter(|_| room);
        if sender.is_none_or(|sender| sender.send(text).is_err()) {
            self.waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.lost.fetch_add(lines, Ordering::Relaxed);
        }
    }
}

impl Drop for Writer {
    /// What is there is written, if the disk takes it soon.
    fn drop(&mut self) {
        drop(self.lines.take());
        let done = self.done.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _in_time: Result<(), RecvTimeoutError> = done.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// The file, as the thread sees it.
struct LogFile {
    log: WrittenLog,
    path: PathBuf,
    file: Option<File>,
    /// Device and inode of the file that was written last.
    identity: Option<(u64, u64)>,
    /// Whether the last line in the file has no end.
    broken: bool,
    lost: Arc<AtomicU64>,
    /// Why the last line was lost.
    error: Option<io::Error>,
    reported: Option<Instant>,
}

impl LogFile {
    fn new(log: WrittenLog, path: &Path, lost: Arc<AtomicU64>) -> Self {
        Self {
            log,
            path: path.to_owned(),
            file: None,
            identity: None,
            broken: false,
            lost,
            error: None,
            reported: None,
        }
    }

    fn run(&mut self, texts: &Receiver<Vec<u8>>, waiting: &AtomicUsize) {
        loop {
            match texts.recv_timeout(REPORT) {
                Ok(text) => {
                    self.write(&text);
                    waiting.fetch_sub(text.len(), Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.reported.is_none_or(|last| last.elapsed() >= REPORT) {
                self.report();
            }
        }
        self.report();
    }

    fn write(&mut self, text: &[u8]) {
        let mut written = 0;
        let result = self.try_write(text, &mut written);
        if let Err(error) = result {
            let rest = text.get(written..).unwrap_or_default();
            self.lost.fetch_add(count(rest), Ordering::Relaxed);
            self.error = Some(error);
            // It may be another one next time: the disk was changed, or the folder made.
            self.file = None;
        }
    }

    fn try_write(&mut self, text: &[u8], written: &mut usize) -> io::Result<()> {
        // Another process may have renamed it, to begin a new one, or removed it.
        let named = fs::metadata(&self.path).ok().as_ref().map(identity);
        let file = match &mut self.file {
            Some(file) if named == self.identity => file,
            other => {
                let mut options = OpenOptions::new();
                let options = options.append(true).create(true).mode(MODE);
                let file = options.open(&self.path)?;
                let opened = Some(identity(&file.metadata()?));
                // A line that has no end is in the other file.
                self.broken &= opened == self.identity;
                self.identity = opened;
                other.insert(file)
            }
        };
        if self.broken {
            file.write_all(b"\n")?;
            self.broken = false;
        }
        while let Some(rest) = text.get(*written..).filter(|rest| !rest.is_empty()) {
            match file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => {
                    *written += bytes;
                    self.broken = text.get(*written - 1) != Some(&b'\n');
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn report(&mut self) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost == 0 {
            return;
        }
        self.reported = Some(Instant::now());
        let why = match self.error.take() {
            Some(error) => error.to_string(),
            None => self.log.too_fast.to_owned(),
        };
        tracing::warn!(
            "{lost} lines of the {} {} are lost: {why}",
            self.log.name,
            self.path.display()
        );
    }
}

/// Device and inode.
fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// The lines that end in `text`.
fn count(text: &[u8]) -> u64 {
    let ends = text.iter().filter(|&&byte| byte == b'\n').count();
    u64::try_from(ends).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;
    use crate::flows::log::LOG;

    fn lost(target: &LogFile) -> u64 {
        target.lost.load(Ordering::Relaxed)
    }

    #[test]
    fn lines_are_added_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.json");
        fs::write(&path, "old\n").unwrap();
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer::start(LOG, &path, Arc::clone(&lost)).unwrap();
        writer.write(b"a\nb\n".to_vec());
        writer.write(b"c\n".to_vec());
        drop(writer);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old\na\nb\nc\n");
        assert_eq!(lost.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn others_may_not_read_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.json");
        let mut target = LogFile::new(LOG, &path, Arc::default());
        target.write(b"a\n");
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o137, 0, "{mode:o}");
    }

    #[test]
    fn a_file_that_was_renamed_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.json");
        let old = folder.path().join("flows.json.1");
        let mut target = LogFile::new(LOG, &path, Arc::default());
        target.write(b"a\nhal");
        fs::rename(&path, &old).unwrap();
        target.write(b"b\n");
        target.write(b"c\n");
        assert_eq!(fs::read_to_string(&old).unwrap(), "a\nhal");
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\nc\n");
        // Removed, or with another in its place.
        fs::remove_file(&path).unwrap();
        target.write(b"d\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "d\n");
        fs::write(&old, "e\n").unwrap();
        fs::rename(&old, &path).unwrap();
        target.write(b"f\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "e\nf\n");
        assert_eq!(lost(&target), 0);
    }

    #[test]
    fn a_full_disk_costs_lines_and_they_are_counted() {
        let mut target = LogFile::new(LOG, Path::new("/dev/full"), Arc::default());
        target.write(b"a\nb\n");
        assert_eq!(lost(&target), 2);
        target.write(b"c\n");
        assert_eq!(lost(&target), 3);
        assert!(target.error.is_some() && target.file.is_none());
        target.report();
        assert_eq!(lost(&target), 0, "each is reported once");
        assert!(target.reported.is_some());
    }

    #[test]
    fn a_missing_folder_may_come_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/flows.json");
        let mut target = LogFile::new(LOG, &path, Arc::default());
        target.write(b"a\n");
        assert_eq!(lost(&target), 1);
        fs::create_dir(path.parent().unwrap()).unwrap();
        target.write(b"b\n");
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), lost(&target)),
            ("b\n", 1)
        );
    }

    #[test]
    fn half_a_line_does_not_spoil_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows.json");
        let mut target = LogFile::new(LOG, &path, Arc::default());
        target.write(b"hal");
        assert!(target.broken);
        target.write(b"a\n");
        assert!(!target.broken);
        assert_eq!(fs::read_to_string(&path).unwrap(), "hal\na\n");
    }

    #[test]
    fn a_slow_disk_is_not_waited_for() {
        // A pipe that is not read takes 64 KiB, and then the thread waits.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let reader = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer::start(LOG, &path, Arc::clone(&lost)).unwrap();
        let line = [vec![b'x'; 9999], vec![b'\n']].concat();
        let start = Instant::now();
        for _ in 0..2000 {
            writer.write(line.clone());
        }
        drop(writer);
        assert!(start.elapsed() < Duration::from_secs(10));
        assert!(lost.load(Ordering::Relaxed) > 1000);
        drop(reader);
    }
}
