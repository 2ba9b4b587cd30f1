//! Larger maps of flows for a data plane that goes on: `limits.snat_addresses` and `limits.handed_over`, at a start that may
//! migrate.
//!
//! The larger maps are pinned beside those that the programs run with, together with all others, and are filled while
//! packets go on. Then every network stops, for as long as it takes to copy what has changed since, to give the folder the
//! name of the maps, and each link the programs that have the larger ones. A process that dies before it has that name has
//! changed nothing, and of one that dies later the next start adopts the larger maps: the networks stay stopped until its
//! programs are in all links, so no flow changes in between.

use std::{fs, io::ErrorKind, path::Path, time::Instant};

use anyhow::{Context as _, Error, Result};
use lb_common::maps::{MAX_NETWORKS, network::Network};

use super::{stages::StartOptions, startup::verify};
use crate::{
    config::Limits,
    dataplane::{
        attach,
        flow_copy::FlowCopy,
        grace,
        maps::Maps,
        object::{CELL, NIC, Object},
        pins::Pins,
    },
    host,
    system::systemd,
};

/// What the maps of flows become large enough for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    before: Limits,
    after: Limits,
}

impl Growth {
    /// That of a start with these limits; none if the maps that are there are as large, or there are none.
    ///
    /// # Errors
    ///
    /// If a map cannot be opened.
    pub(super) fn of(pins: &Pins, limits: Limits) -> Result<Option<Self>> {
        if !pins.maps().join("FLOWS").exists() {
            return Ok(None);
        }
        let before = Maps::open(&pins.maps())?.limits();
        let after = grown(before, limits);
        Ok((after != before).then_some(Self { before, after }))
    }

    /// Has all programs run with larger maps; they are loaded then. Where that fails before anything has changed, what runs
    /// keeps its sizes and the start goes on with those: no object is loaded.
    ///
    /// # Errors
    ///
    /// If it fails later: the next start goes on with it.
    pub(super) fn carry_out(self, pins: &Pins, options: StartOptions) -> Result<Option<Object>> {
        let Self { before, after } = self;
        tracing::info!(
            "the maps of flows are made larger: snat_addresses {} -> {}, handed_over {} -> {}",
            before.snat_addresses,
            after.snat_addresses,
            before.handed_over,
            after.handed_over
        );
        let (mut object, mut copy) = match prepare(pins, &after, options) {
            Err(error) => return given_up(pins, &error),
            Ok(prepared) => prepared,
        };
        let begun = Instant::now();
        let stopped = match Stopped::all(pins) {
            Err(error) => return given_up(pins, &error),
            Ok(stopped) => stopped,
        };
        grace::wait();
        let renamed = copy.pass().and_then(|changed| {
            rename(pins)?;
            Ok(changed)
        });
        let changed = match renamed {
            Ok(changed) => changed,
            Err(error) if pins.larger().exists() && pins.maps().exists() => {
                stopped.resume()?;
                return given_up(pins, &error);
            }
            Err(error) => return Err(error),
        };
        switch(pins, &mut object).context("switch to the larger maps of flows")?;
        stopped.resume()?;
        tracing::info!(
            "the maps of flows are larger, and all flows are there; packets were dropped for {} ms, in which {changed} \
             entries were copied again",
            begun.elapsed().as_millis()
        );
        Ok(Some(object))
    }
}

/// The limits of maps that are at least as large as these are wanted.
pub(super) fn grown(before: Limits, wanted: Limits) -> Limits {
    Limits {
        snat_addresses: wanted.snat_addresses.max(before.snat_addresses),
        handed_over: wanted.handed_over.max(before.handed_over),
        ..before
    }
}

/// The data plane goes on with what it has, and so does the start.
fn given_up(pins: &Pins, error: &Error) -> Result<Option<Object>> {
    tracing::error!("the maps of flows keep their sizes, no flow is lost: {error:#}");
    remove(&pins.larger())?;
    Ok(None)
}

/// Loads the programs with larger maps, and fills these beside those that run.
fn prepare(pins: &Pins, limits: &Limits, options: StartOptions) -> Result<(Object, FlowCopy)> {
    let larger = pins.larger();
    remove(&larger)?;
    fs::create_dir(&larger).with_context(|| format!("make {}", larger.display()))?;
    Object::share_all_but_flows(&pins.maps(), &larger)?;
    let object = verify(|| Object::load_in(&larger, limits, options.log_level))?;
    systemd::is_alive();
    let mut copy = FlowCopy::open(&pins.maps(), &larger)?;
    let copied = copy.pass()?;
    systemd::is_alive();
    tracing::debug!("{copied} entries are copied");
    Ok((object, copy))
}

/// Gives the larger maps the name by which all others find them.
fn rename(pins: &Pins) -> Result<()> {
    let (maps, larger, smaller) = (pins.maps(), pins.larger(), pins.smaller());
    remove(&smaller)?;
    fs::rename(&maps, &smaller).with_context(|| format!("rename {}", maps.display()))?;
    fs::rename(&larger, &maps).with_context(|| format!("rename {}", larger.display()))
}

/// Gives each link the programs that have the larger maps. Cells first: what a NIC's program delivers must have somewhere to
/// go.
fn switch(pins: &Pins, object: &mut Object) -> Result<()> {
    for name in [CELL, NIC] {
        for ifindex in pins.linked(name) {
            let replaced = attach::take_over(object.program(name)?, &pins.link(name, ifindex));
            replaced.with_context(|| format!("replace {name} on interface {ifindex}"))?;
        }
    }
    Ok(())
}

/// The networks that drop everything, with their records as they were.
struct Stopped {
    maps: Maps,
    records: Vec<(u32, Network)>,
}

impl Stopped {
    /// Stops all.
    fn all(pins: &Pins) -> Result<Self> {
        let mut maps = Maps::open(&pins.maps())?;
        let mut records = Vec::new();
        for id in 0..MAX_NETWORKS {
            let before = maps.networks.get(&id, 0)?;
            if before == Network::default() {
                continue;
            }
            records.push((id, before));
            maps.stop_network(id, true)?;
        }
        Ok(Self { maps, records })
    }

    fn resume(mut self) -> Result<()> {
        for (id, record) in &self.records {
            let written = self.maps.networks.set(*id, record, 0);
            written.with_context(|| format!("resume network {id}"))?;
        }
        Ok(())
    }
}

/// Makes one folder of maps of what a process has left that died while it made them larger. A process that is the control
/// plane has done so itself, and is not disturbed.
///
/// # Errors
///
/// If bpffs refuses.
pub(super) fn settle(pins: &Pins) -> Result<()> {
    let (maps, larger) = (pins.maps(), pins.larger());
    if !larger.exists() {
        return Ok(());
    }
    let Ok(_lock) = host::Lock::take(pins) else {
        return Ok(());
    };
    if maps.exists() {
        return remove(&larger);
    }
    fs::rename(&larger, &maps).with_context(|| format!("rename {}", larger.display()))
}

/// Removes the maps that no program runs with any more.
pub(super) fn finish(pins: &Pins) -> Result<()> {
    remove(&pins.smaller())
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
