//! What a test tells the product while it runs, and what is in its maps.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use lb_user::{
    control::apply::read_ids,
    dataplane::{maps::Maps, pins::Pins},
    model::registry::Kind,
};
use serde::de::DeserializeOwned;

use crate::{
    oracle::query::{BackendHealth, BackendLine, Event, list},
    process,
    product::lb::{Lb, binary},
};

/// How a command of `lb` ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// The exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Said {
    /// Fails unless the command succeeded.
    ///
    /// # Errors
    ///
    /// What it said.
    pub fn done(self) -> Result<String> {
        ensure!(self.code == Some(0), "{self:?}");
        Ok(self.stdout)
    }
}

impl Lb<'_> {
    /// Runs `lb WORDS --instance ...`, whatever comes of it.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or hangs.
    pub fn tell(&self, words: &[&str]) -> Result<Said> {
        let mut command = self.command()?;
        command.args(words).args(["--instance", self.site().run()]);
        said(&mut command)
    }

    /// What [`Self::tell`] runs, as a line for a shell.
    ///
    /// # Errors
    ///
    /// When there is no `lb`.
    pub fn line(&self, words: &[&str]) -> Result<String> {
        let program = binary("LB_BIN", "lb")?;
        let (program, instance) = (program.display(), self.site().run());
        Ok(format!(
            "{program} {} --instance {instance}",
            words.join(" ")
        ))
    }

    /// As [`Self::tell`], but does not wait for what comes of it.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub fn begin(&self, words: &[&str]) -> Result<Child> {
        let mut command = self.command()?;
        command.args(words).args(["--instance", self.site().run()]);
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null());
        let begun = silent.stderr(Stdio::null()).spawn();
        begun.with_context(|| format!("start lb {}", words.join(" ")))
    }

    /// As [`Self::tell`], with JSON for an answer.
    ///
    /// # Errors
    ///
    /// When it fails, or its form has changed.
    pub fn ask_json<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T> {
        let text = self.tell(&[words, &["-o", "json"]].concat())?.done()?;
        serde_json::from_str(&text).with_context(|| format!("read lb {}: {text}", words.join(" ")))
    }

    /// The file that `lb run` was started with.
    pub fn file(&self) -> PathBuf {
        self.site()
            .dir()
            .join(format!("{}.yaml", self.site().run()))
    }

    /// Writes that file anew, as a whole.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, config: &str) -> Result<()> {
        let beside = self.site().write("beside.yaml", config)?;
        fs::rename(&beside, self.file()).context("replace the configuration")
    }

    /// Writes the file anew, and `lb reload`.
    ///
    /// # Errors
    ///
    /// When it is refused.
    pub fn reload(&self, config: &str) -> Result<String> {
        self.write(config)?;
        self.tell(&["reload"])?.done()
    }

    /// Where the backends stand, in the order of the file.
    ///
    /// # Errors
    ///
    /// When no control plane says so.
    pub fn health(&self) -> Result<Vec<BackendHealth>> {
        let said = self.tell(&["backends", "-o", "json"])?;
        let (why, text) = (said.stderr.clone(), said.done()?);
        let lines: Vec<BackendLine> = list(&text, "backends").context("read lb backends")?;
        let health = lines.into_iter().map(|line| {
            let BackendLine { pool, name, health } = line;
            let health = health?;
            Some(BackendHealth {
                pool,
                name,
                ..health
            })
        });
        let health: Option<Vec<BackendHealth>> = health.collect();
        let health = health.with_context(|| format!("{why}{text}"))?;
        Ok(health.into_iter().filter(|one| !one.retired).collect())
    }

    /// What has happened.
    ///
    /// # Errors
    ///
    /// As for [`Self::health`].
    pub fn events(&self) -> Result<Vec<Event>> {
        let text = self.tell(&["events", "-o", "json"])?.done()?;
        list(&text, "events").with_context(|| format!("read lb events: {text}"))
    }

    /// What the maps hold that a configuration decides, entry by entry.
    ///
    /// # Errors
    ///
    /// When the instance is not up.
    pub fn maps(&self) -> Result<BTreeSet<String>> {
        let maps = Maps::open(&Pins::new(self.site().run()).maps())?;
        let mut entries = BTreeSet::new();
        macro_rules! entries_of {
            ($($map:ident)*) => {$(
                for entry in maps.$map.iter() {
                    entries.insert(format!("{} {:?}", stringify!($map), entry?));
                }
            )*};
        }
        entries_of!(network_ids addresses services registry);
        let ids = read_ids(&maps)?;
        for (_, id) in ids.of(Kind::Network) {
            entries.insert(format!("network {id} {:?}", maps.networks.get(&id, 0)?));
        }
        for (_, id) in ids.of(Kind::Backend) {
            entries.insert(format!("backend {id} {:?}", maps.backends.get(&id, 0)?));
        }
        for (_, id) in ids.of(Kind::Pool) {
            let mut tables = Vec::new();
            for table in ids.tables_of(id) {
                tables.extend(maps.maglev(table)?.filter(|table| !table.is_empty()));
            }
            // One of the two is empty, but in the middle of a change.
            entries.insert(format!("pool {id} {tables:?}"));
        }
        entries.insert(format!("rules {:?}", maps.rules()?));
        Ok(entries)
    }
}

fn said(command: &mut Command) -> Result<Said> {
    let output = process::finish(command)?;
    Ok(Said {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
