//! What `lb drops` counted when it was run last, so that the next run shows what is new.
//!
//! A file of the instance's runtime folder has it, one for each format: a script that reads JSON does not take the
//! news from the operator at a terminal. A file that cannot be read or written is no reason to show no drops.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::Result;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{
    cli::arguments::Format, dataplane::pins::Pins, model::seconds::Seconds, observe::DropLine,
    system::files,
};

/// The counters at a look.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeenDrops {
    /// The inode of the counters' pin: others are of another data plane.
    data_plane: u64,
    /// When it was, in milliseconds since the machine has started.
    boot_ms: u64,
    /// Packets that were not served, by hook, network and reason.
    packets: BTreeMap<String, u64>,
}

/// The packets since a look.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Since {
    /// How long ago that was; none: it is the first one.
    pub(super) seconds: Option<Seconds>,
}

/// Notes in `drops` what is new since the last look of this instance in this format, and makes this one the last.
pub(super) fn note(instance: &str, format: Format, drops: &mut [DropLine]) -> Since {
    let pins = Pins::new(instance);
    let name = match format {
        Format::Json => "drops-seen-json",
        Format::Table => "drops-seen",
    };
    let file = pins.runtime().join(name);
    let Ok(now) = SeenDrops::of(drops, &pins) else {
        return Since::default();
    };
    let since = read(&file).map_or_else(Since::default, |last| now.since(&last, drops));
    if let Err(error) = write(&file, &now) {
        tracing::debug!("note what `lb drops` has shown: {error:#}");
    }
    since
}

fn read(file: &PathBuf) -> Option<SeenDrops> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn write(file: &Path, look: &SeenDrops) -> Result<()> {
    files::write(file, &serde_json::to_vec(look)?)
}

fn key(line: &DropLine) -> String {
    format!("{} {} {}", line.hook, line.network, line.reason)
}

impl SeenDrops {
    fn of(drops: &[DropLine], pins: &Pins) -> Result<Self> {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME)?;
        let seconds = u64::try_from(boot.tv_sec())?;
        let millis = u64::try_from(boot.tv_nsec())? / 1_000_000;
        let packets = drops.iter().map(|line| (key(line), line.unserved()));
        Ok(Self {
            data_plane: fs::metadata(pins.maps().join("VERDICTS"))?.ino(),
            boot_ms: seconds * 1000 + millis,
            packets: packets.collect(),
        })
    }

    /// Notes in `drops`, of which this is the look, what is new since `last`.
    fn since(&self, last: &Self, drops: &mut [DropLine]) -> Since {
        // The other one is of the time before a start of the machine or of the data plane.
        if last.data_plane != self.data_plane || last.boot_ms > self.boot_ms {
            return Since::default();
        }
        for line in drops {
            let before = last.packets.get(&key(line)).copied().unwrap_or_default();
            // A network that was removed and comes back begins at zero.
            let now = line.unserved();
            line.since_last = Some(now.checked_sub(before).unwrap_or(now));
        }
        let millis = self.boot_ms - last.boot_ms;
        Since {
            seconds: Some(Seconds::from_millis(millis)),
        }
    }
}

impl Since {
    /// So many packets since then as a rate, in packets a second.
    pub(super) fn rate(self, packets: Option<u64>) -> Option<f64> {
        let millis = self.seconds?.as_millis();
        // Two looks within a millisecond are none apart.
        (millis > 0).then_some(packets? as f64 * 1000.0 / millis as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(reason: &'static str, dropped: u64, refused: u64) -> DropLine {
        DropLine {
            hook: "nic",
            network: "n".to_owned(),
            reason,
            dropped,
            refused,
            since_last: None,
            help: "",
            samples: Vec::new(),
        }
    }

    fn look(data_plane: u64, boot_ms: u64, drops: &[DropLine]) -> SeenDrops {
        SeenDrops {
            data_plane,
            boot_ms,
            packets: drops
                .iter()
                .map(|line| (key(line), line.unserved()))
                .collect(),
        }
    }

    #[test]
    fn what_is_new_is_counted_from_the_last_look() {
        let last = look(7, 1000, &[line("denied", 3, 1), line("too_big", 9, 0)]);
        let mut drops = [
            line("denied", 5, 4),
            line("too_big", 9, 0),
            line("ttl_expired", 2, 0),
        ];
        let since = look(7, 3000, &drops).since(&last, &mut drops);
        assert_eq!(
            drops.each_ref().map(|line| line.since_last),
            [Some(5), Some(0), Some(2)]
        );
        assert_eq!(since.seconds, Some(Seconds::from_millis(2000)));
        assert_eq!(since.rate(Some(5)), Some(2.5));
        // Its counters began anew.
        let mut drops = [line("denied", 2, 0)];
        look(7, 3000, &drops).since(&last, &mut drops);
        assert_eq!(drops[0].since_last, Some(2));
    }

    #[test]
    fn a_look_at_another_data_plane_is_none() {
        let last = look(7, 1000, &[line("denied", 3, 0)]);
        for (data_plane, boot_ms) in [(8, 2000), (7, 999)] {
            let mut drops = [line("denied", 5, 0)];
            let since = look(data_plane, boot_ms, &drops).since(&last, &mut drops);
            assert_eq!((drops[0].since_last, since.seconds), (None, None));
            assert_eq!(since.rate(Some(5)), None);
        }
        let mut drops = [line("denied", 5, 0)];
        let since = look(7, 1000, &drops).since(&last, &mut drops);
        assert_eq!((drops[0].since_last, since.rate(Some(2))), (Some(2), None));
    }

    #[test]
    fn a_file_that_is_none_of_ours_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drops-seen");
        assert_eq!(read(&file), None);
        let written = look(7, 1000, &[line("denied", 3, 0)]);
        write(&file, &written).unwrap();
        assert_eq!(read(&file), Some(written));
        for text in [
            "",
            "{}",
            "[1]",
            r#"{"data_plane":1,"boot_ms":-1,"packets":{}}"#,
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(&file), None, "{text}");
        }
    }
}
