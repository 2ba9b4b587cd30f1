//! tcpdump in a namespace with every byte of every frame: the oracle for what must pass untouched
//! and for what must never arrive.

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
        let name = format!("wire-{}-{interface}", netns.name());
        let file = dir.join(format!("{name}.pcap"));
        let text = file.to_str().context("the folder has a name in text")?;
        let start = ["-i", interface, "-Q", "in", "-n", "-U", "--immediate-mode"];
        // The buffer has a place of this size for each frame, however short that is.
        let room = ["-s", "65550", "-B", "65536"];
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
        self.frames()
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
fn read_frames(bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
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
        ensure!(captured == length, "a frame of {length} bytes was cut");
        let Some((frame, next)) = behind.split_at_checked(usize::try_from(captured)?) else {
            break;
        };
        frames.push(frame.to_vec());
        rest = next;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_the_making_is_left_out() {
        let frame = |length: u32| {
            let words = [0, 0, length, length].map(u32::to_ne_bytes).concat();
            [words, vec![7; usize::try_from(length).expect("small")]].concat()
        };
        let file = [vec![0; FILE_HEADER], frame(20), frame(30)].concat();
        let all = read_frames(&file).expect("a capture");
        assert_eq!(all, [vec![7; 20], vec![7; 30]]);
        for short in 0..file.len() {
            let count = read_frames(&file[..short]).expect("a capture").len();
            assert_eq!(count, usize::from(short >= FILE_HEADER + 36));
        }
    }
}
