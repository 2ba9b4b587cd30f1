//! tcpdump in a namespace with every byte of every frame: the oracle for what must pass untouched
//! and for what must never arrive. Of many frames the heads, and how long each frame was.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::{netns::Netns, poll, process::Process};

/// How long tcpdump may take until it listens.
const START: Duration = Duration::from_secs(10);
/// How long it may take until it has read what has come.
const READ: Duration = Duration::from_secs(30);
/// Bytes of the longest frame, and of a head: its buffer has a place of this size for each frame, however
/// short that is.
const WHOLE: &str = "65550";
const HEAD: &str = "96";
/// KiB of the buffer in the kernel: about a thousand frames, or hundreds of thousands of heads, while tcpdump
/// gets no CPU.
const BUFFER: &str = "65536";
/// Bytes of the header of a capture file, and of that of each frame in it.
const FILE_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;

/// A running capture of whole frames.
#[derive(Debug)]
pub struct Wire {
    tcpdump: Process,
    file: PathBuf,
}

impl Wire {
    /// Starts to capture what `filter` (a pcap expression) selects of what `interface` receives; it
    /// listens when this returns. On a switch port this is what the other end has sent.
    ///
    /// # Errors
    ///
    /// When tcpdump does not start, for instance for a wrong filter.
    pub fn received(netns: &Netns, interface: &str, filter: &str, dir: &Path) -> Result<Self> {
        Self::start(netns, interface, filter, dir, WHOLE)
    }

    /// As [`Self::received`], but of each frame only the head, for tests that count very many.
    ///
    /// # Errors
    ///
    /// As for [`Self::received`].
    pub fn received_heads(
        netns: &Netns,
        interface: &str,
        filter: &str,
        dir: &Path,
    ) -> Result<Self> {
        Self::start(netns, interface, filter, dir, HEAD)
    }

    fn start(
        netns: &Netns,
        interface: &str,
        filter: &str,
        dir: &Path,
        place: &str,
    ) -> Result<Self> {
        let name = format!("wire-{}-{interface}", netns.name());
        let file = dir.join(format!("{name}.pcap"));
        let text = file.to_str().context("the folder has a name in text")?;
        let start = ["-i", interface, "-Q", "in", "-n", "-U", "--immediate-mode"];
        let room = ["-s", place, "-B", BUFFER];
        let rest = ["-Z", "root", "-w", text, filter];
        let args: Vec<&str> = start.into_iter().chain(room).chain(rest).collect();
        let mut tcpdump = Process::start(&netns.path(), dir, &name, "tcpdump", &args)?;
        tcpdump.wait_for_stderr("listening on", START)?;
        Ok(Self { tcpdump, file })
    }

    /// The frames so far.
    ///
    /// # Errors
    ///
    /// When the file is not what tcpdump writes.
    pub fn frames(&self) -> Result<Vec<Vec<u8>>> {
        self.captured()?.into_iter().map(Captured::whole).collect()
    }

    fn captured(&self) -> Result<Vec<Captured>> {
        let bytes = fs::read(&self.file).context("read a capture")?;
        read_frames(&bytes)
    }

    /// Waits until `count` frames for which `wanted` holds have come.
    ///
    /// # Errors
    ///
    /// After `limit`; with what came instead.
    pub fn wait_for(
        &self,
        what: &str,
        count: usize,
        limit: Duration,
        wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        poll::until(what, limit, || {
            let frames = self.frames()?;
            let found = frames.iter().filter(|frame| wanted(frame)).count();
            Ok((found >= count).then_some(()))
        })
        .with_context(|| format!("captured instead: {}", self.words()))
    }

    /// Ends the capture and returns all of it.
    ///
    /// # Errors
    ///
    /// When the kernel dropped frames before tcpdump saw them: then a capture proves nothing.
    pub fn stop(mut self) -> Result<Vec<Vec<u8>>> {
        self.end()?;
        self.frames()
    }

    /// As [`Self::stop`], of frames of which there may be the heads alone.
    ///
    /// # Errors
    ///
    /// As for [`Self::stop`].
    pub fn stop_heads(mut self) -> Result<Vec<Captured>> {
        self.end()?;
        self.captured()
    }

    fn end(&mut self) -> Result<()> {
        // It ends without what it has not read yet, and counts that as nothing. It sleeps once there is nothing left.
        poll::until("tcpdump has read its buffer", READ, || {
            Ok(self.tcpdump.is_asleep()?.then_some(()))
        })?;
        self.tcpdump.stop()?;
        let words = self.tcpdump.stderr();
        let dropped = words
            .lines()
            .find_map(|line| line.strip_suffix(" packets dropped by kernel"))
            .with_context(|| format!("tcpdump said no count: {words}"))?;
        ensure!(
            dropped.trim() == "0",
            "the kernel dropped {dropped} packets of the capture"
        );
        Ok(())
    }

    /// The first frames in hex, for a failure.
    fn words(&self) -> String {
        let frames = self.frames().unwrap_or_default();
        let words = frames.iter().take(8).map(|frame| {
            frame
                .iter()
                .take(64)
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        });
        let words: Vec<String> = words.collect();
        format!("{} frames: {}", frames.len(), words.join(" "))
    }
}

/// A frame, or the head of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Its bytes, as many as are captured.
    pub bytes: Vec<u8>,
    /// The bytes that it had on the wire.
    pub length: usize,
}

impl Captured {
    fn whole(self) -> Result<Vec<u8>> {
        let Self { bytes, length } = self;
        ensure!(bytes.len() == length, "a frame of {length} bytes was cut");
        Ok(bytes)
    }
}

/// The source and destination of an untagged IPv4 frame.
pub fn ipv4(frame: &[u8]) -> Option<(Ipv4Addr, Ipv4Addr)> {
    let address = |at: usize| {
        let bytes: [u8; 4] = frame.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    (frame.get(12..14)? == [8, 0]).then_some(())?;
    Some((address(26)?, address(30)?))
}

/// A frame that is still being written is left out.
fn read_frames(bytes: &[u8]) -> Result<Vec<Captured>> {
    let Some(mut rest) = bytes.get(FILE_HEADER..) else {
        return Ok(Vec::new());
    };
    let mut frames = Vec::new();
    while let Some((header, behind)) = rest.split_at_checked(FRAME_HEADER) {
        let word = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes.map(u32::from_ne_bytes).context("a short header")
        };
        let (captured, length) = (word(8)?, word(12)?);
        let Some((frame, next)) = behind.split_at_checked(usize::try_from(captured)?) else {
            break;
        };
        frames.push(Captured {
            bytes: frame.to_vec(),
            length: usize::try_from(length)?,
        });
        rest = next;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_the_making_is_left_out() {
        let frame = |captured: u32, length: u32| {
            let words = [0, 0, captured, length].map(u32::to_ne_bytes).concat();
            [words, vec![7; usize::try_from(captured).expect("small")]].concat()
        };
        let file = [vec![0; FILE_HEADER], frame(20, 20), frame(30, 1514)].concat();
        let [whole, head] = &read_frames(&file).expect("a capture")[..] else {
            panic!("two frames");
        };
        assert_eq!(whole.clone().whole().expect("whole"), [7; 20]);
        assert_eq!((&head.bytes[..], head.length), (&[7; 30][..], 1514));
        assert!(head.clone().whole().is_err());
        for short in 0..file.len() {
            let count = read_frames(&file[..short]).expect("a capture").len();
            assert_eq!(count, usize::from(short >= FILE_HEADER + 36));
        }
    }
}
