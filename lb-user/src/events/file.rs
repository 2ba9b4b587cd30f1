//! The file of events: a JSON object in each line, the oldest first.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read as _, Seek as _, SeekFrom},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use nix::libc;
use serde::Serialize;

use super::ring::{MAX_BYTES, MAX_EVENTS, Ring};
use crate::{api::Event, dataplane::pins::Pins, flows::log::Stamp};

/// The name in the state folder.
const NAME: &str = "events.jsonl";
/// Readers of the file: its owner, and the group.
pub(super) const MODE: u32 = 0o640;
/// How much longer than what is kept the file may be before it is made anew, of what is kept alone.
const SLACK: u64 = 2;
/// What is read of a file that is longer than any that `lb` writes: the end.
const MAX_READ: u64 = 2 * SLACK * MAX_BYTES;

/// Where an instance has its events.
pub fn path(pins: &Pins) -> PathBuf {
    pins.state().join(NAME)
}

/// Reads the events that an instance has left after the one with this number, oldest first; none if it has left
/// no file.
///
/// # Errors
///
/// If the file cannot be read.
pub fn read_after(pins: &Pins, number: u64) -> io::Result<Option<Vec<Event>>> {
    match File::open(path(pins)) {
        Ok(file) => Ok(Some(read(&file)?.ring.after(number))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is in a file.
#[derive(Debug, Default)]
pub(super) struct FoundEvents {
    pub(super) ring: Ring,
    /// Where its last whole line ends; behind it is what a process that was killed has half written.
    pub(super) whole: u64,
    /// How many lines it has.
    pub(super) lines: usize,
}

impl FoundEvents {
    /// Whether the file has so much that is not kept any more that it is to be made anew.
    pub(super) const fn is_long(&self) -> bool {
        is_long(self.whole, self.lines)
    }
}

/// Whether a file of so many bytes and lines is to be made anew.
pub(super) const fn is_long(bytes: u64, lines: usize) -> bool {
    bytes > SLACK * MAX_BYTES || lines > 2 * MAX_EVENTS
}

/// Opens the file to add lines to, and makes it where there is none. Links are not followed, and what is no file is
/// refused.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is no file")),
    }
}

/// Reads what is in the file. A line that is none is skipped, and so is the end of one that was not written to its end.
pub(super) fn read(mut file: &File) -> io::Result<FoundEvents> {
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(MAX_READ);
    file.seek(SeekFrom::Start(begin))?;
    let mut text = Vec::new();
    file.take(MAX_READ).read_to_end(&mut text)?;
    let mut found = FoundEvents::default();
    let Some(last) = text.iter().rposition(|byte| *byte == b'\n') else {
        return Ok(found);
    };
    let whole = text.get(..=last).unwrap_or_default();
    found.whole = begin + u64::try_from(whole.len()).map_err(io::Error::other)?;
    for line in whole.split_inclusive(|byte| *byte == b'\n') {
        found.lines += 1;
        if let Ok(event) = serde_json::from_slice(line) {
            found.ring.add(event);
        }
    }
    Ok(found)
}

/// An event as it stands in the file: also with the time as text.
#[derive(Serialize)]
struct Line<'e> {
    time: String,
    #[serde(flatten)]
    event: &'e Event,
}

/// The line of an event.
pub(super) fn line(event: &Event) -> serde_json::Result<Vec<u8>> {
    let time = time(event.time_ms).to_string();
    let mut text = serde_json::to_vec(&Line { time, event })?;
    text.push(b'\n');
    Ok(text)
}

/// A time since 1970.
pub(crate) fn time(millis: u64) -> Stamp {
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
    Stamp(time.unwrap_or(UNIX_EPOCH))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, os::unix::fs::symlink};

    use super::*;
    use crate::api::Severity;

    fn event(number: u64) -> Event {
        Event {
            number,
            time_ms: 1_000_000_000_789,
            kind: "override".to_owned(),
            severity: Severity::Notice,
            object: "backend p/a".to_owned(),
            words: "drained".to_owned(),
            by: Some("uid 0, process 9".to_owned()),
        }
    }

    fn numbers(found: &FoundEvents) -> Vec<u64> {
        found
            .ring
            .after(0)
            .iter()
            .map(|event| event.number)
            .collect()
    }

    #[test]
    fn a_line_is_one_object_with_the_time_as_text() {
        let line = String::from_utf8(line(&event(7)).unwrap()).unwrap();
        assert_eq!(
            line,
            concat!(
                r#"{"time":"2001-09-09T01:46:40.789Z","number":7,"time_ms":1000000000789,"kind":"override","#,
                r#""severity":"notice","object":"backend p/a","words":"drained","by":"uid 0, process 9"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn a_torn_end_and_what_is_no_line_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut text = line(&event(1)).unwrap();
        text.extend(b"{\"number\":\n\n\xff\xfe\n");
        text.extend(line(&event(2)).unwrap());
        let whole = text.len() as u64;
        let torn = line(&event(3)).unwrap();
        for end in [&b""[..], &torn[..1], &torn[..torn.len() - 1]] {
            fs::write(&path, [&text, end].concat()).unwrap();
            let found = read(&open(&path).unwrap()).unwrap();
            assert_eq!((numbers(&found), found.whole), (vec![1, 2], whole));
        }
        fs::write(&path, &torn[..9]).unwrap();
        let found = read(&open(&path).unwrap()).unwrap();
        assert_eq!((numbers(&found), found.whole), (vec![], 0));
    }

    #[test]
    fn of_a_file_that_is_far_too_long_the_end_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let file = open(&path).unwrap();
        file.set_len(1 << 40).unwrap();
        (&file).write_all(b"\n").unwrap();
        (&file).write_all(&line(&event(9)).unwrap()).unwrap();
        let found = read(&file).unwrap();
        assert_eq!(numbers(&found), [9]);
        assert!(found.is_long());
    }

    #[test]
    fn links_and_folders_are_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["f", "other"].map(|name| folder.path().join(name));
        fs::write(&other, "mine").unwrap();
        symlink(&other, &path).unwrap();
        assert!(open(&path).is_err());
        assert!(open(folder.path()).is_err());
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(open(&fifo).unwrap_err().to_string(), "it is no file");
        assert_eq!(fs::read(&other).unwrap(), b"mine");
    }
}
