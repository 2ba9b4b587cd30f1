//! `lb` on this host, with the user's configuration, for as long as the bench measures.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context as _, Result};
use lb_tests::{
    oracle::query::Status,
    process::{self, Process},
    product::lb::binary,
};

/// Its own instance: one that runs on this host for real is left alone.
const INSTANCE: &str = "bench";
/// How long lb may take to be ready.
const TIMEOUT: Duration = Duration::from_secs(60);

/// `lb run`; on drop it is stopped, and nothing of it stays.
pub(super) struct Running {
    process: Process,
    is_down: bool,
    _folder: tempfile::TempDir,
}

impl Running {
    /// Ready when this returns.
    ///
    /// # Errors
    ///
    /// When lb does not start, with its last words; nothing of it is left then.
    pub(super) fn start(config: &Path) -> Result<Self> {
        // Flows of a bench that was killed would be in the way of those of this one.
        down().context("remove what an earlier bench has left")?;
        let folder = tempfile::tempdir().context("make a folder for lb's output")?;
        let config = fs::canonicalize(config)
            .with_context(|| format!("find {}", config.display()))?
            .display()
            .to_string();
        // An interface that the operator needs is refused.
        let words = ["run", "--careful", "--instance", INSTANCE, "-c", &config];
        let here = Path::new("/proc/self/ns/net");
        let lb = binary("LB_BIN", "lb")?;
        let mut running = Self {
            process: Process::start(here, folder.path(), "lb", lb, &words)?,
            is_down: false,
            _folder: folder,
        };
        running.process.wait_for_stdout("ready", TIMEOUT)?;
        Ok(running)
    }

    /// How its programs run on each NIC.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub(super) fn modes(&self) -> Result<String> {
        let words = ["status", "--instance", INSTANCE, "-o", "json"];
        let text = process::succeed(lb()?.args(words))?;
        let status: Status = serde_json::from_str(&text).context("read `lb status`")?;
        let networks = status.networks.iter();
        let modes = networks.map(|network| format!("{}: {} XDP", network.interface, network.mode));
        Ok(modes.collect::<Vec<_>>().join(", "))
    }

    /// Takes everything down again.
    ///
    /// # Errors
    ///
    /// When lb does not end, or cannot be taken down.
    pub(super) fn end(mut self) -> Result<()> {
        self.remove()
    }

    fn remove(&mut self) -> Result<()> {
        self.is_down = true;
        let stopped = self.process.stop().map(drop);
        // Also after a process that had to be killed: its programs are still attached.
        down()?;
        stopped
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_down
            && let Err(error) = self.remove()
        {
            process::complain(format_args!("take lb down: {error:#}"));
        }
    }
}

fn down() -> Result<()> {
    process::succeed(lb()?.args(["down", "--instance", INSTANCE])).map(drop)
}

fn lb() -> Result<Command> {
    Ok(Command::new(binary("LB_BIN", "lb")?))
}
