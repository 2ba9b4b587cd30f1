//! From a configuration to a live data plane, and back: what `lb run` does around the `stages`.

use std::{fs, io::ErrorKind};

use anyhow::{Context as _, Result};

use super::{
    grow::{self, Growth},
    migrate::Migration,
    stages::{Start, StartOptions, bring_up},
};
use crate::{
    config::Config,
    control::{
        applied::{applied_path, kept, paths_before},
        network_setup::find_nics,
        running::Running,
    },
    dataplane::{object::Object, pins::Pins},
    host::neighbours,
    network::{cell, namespace, nic},
    system::{files, progress},
};

/// Brings the data plane of an instance to its configuration. What an earlier process left is adopted; where
/// nothing was left, a failure leaves nothing behind.
///
/// New links are for the caller to [keep](crate::control::data_plane::DataPlane::keep). `loaded` is not loaded again, where it still is of
/// these pins.
///
/// # Errors
///
/// The first step that failed, with its object.
pub fn start(start: &Start<'_>, loaded: Option<Object>) -> Result<Running> {
    let pins = start.pins;
    let adopted = pins.exist();
    let result = start_over(start, loaded);
    if result.is_err()
        && !adopted
        && let Err(error) = remove(pins)
    {
        tracing::error!("cleaning up after the failed start: {error:#}");
    }
    if result.is_err() && !adopted {
        // What an earlier boot has left there stays.
        let _others = fs::remove_dir(pins.state());
    }
    result
}

/// Starts over what is pinned, if anything is.
fn start_over(start: &Start<'_>, loaded: Option<Object>) -> Result<Running> {
    let Start { pins, options, .. } = *start;
    let nics = find_nics(start.config, pins)?;
    let migration = Migration::of(pins, options.migrate)?;
    migration.announce();
    migration.make_folders(pins)?;
    let applied = applied_path(pins);
    let beside = kept(start.config)
        .and_then(|kept| files::change_beside(&applied, &kept))
        .context("keep the configuration; nothing is changed")?;
    let grown = match options.grow && migration == Migration::None {
        true => Growth::of(pins, start.config.limits)?,
        false => None,
    };
    let grown = grown.map(|growth| growth.carry_out(pins, options));
    let loaded = grown.transpose()?.flatten().or(loaded);
    let object = match loaded.filter(|object| object.is_of(pins)) {
        Some(object) => Ok(object),
        None => load(pins, start.config, options),
    };
    let running = object
        .and_then(|object| bring_up(start, &nics, object, &migration))
        .inspect_err(|_| migration.abandon(pins))?;
    if let Some(beside) = beside {
        beside.put(&applied)?;
    }
    remove_before(pins)?;
    migration.finish(pins)?;
    grow::finish(pins)?;
    Ok(running)
}

/// Loads the object, which takes seconds, and shows that on a terminal.
///
/// # Errors
///
/// Those of [`Object::load`].
pub(super) fn load(pins: &Pins, config: &Config, options: StartOptions) -> Result<Object> {
    verify(|| Object::load(pins, &config.limits, options.log_level))
}

/// Does what takes so long because the kernel verifies programs.
pub(super) fn verify<T>(load: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = "the kernel has verified the eBPF programs";
    progress::during("the kernel verifies the eBPF programs", done, load)
}

/// Puts back what was applied before a start that was not confirmed, if anything was.
///
/// # Errors
///
/// If it cannot be written.
pub fn put_back(pins: &Pins, before: Option<&Config>) -> Result<()> {
    match before {
        Some(config) => files::write(&applied_path(pins), &kept(config)?),
        None => Ok(pins.remove_state()?),
    }
}

/// Removes the applied configuration of versions of before: what is there is taken for the latest.
fn remove_before(pins: &Pins) -> Result<()> {
    for path in paths_before(pins) {
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error).with_context(|| format!("remove {}", path.display()));
        }
    }
    Ok(())
}

/// Removes links, pins and cells of an instance: nothing of it forwards any more.
///
/// # Errors
///
/// The first thing that cannot be removed.
pub fn remove(pins: &Pins) -> Result<()> {
    pins.remove_links()
        .with_context(|| format!("remove the links of {}", pins.instance()))?;
    // A NIC takes some settings back only when no program runs on it any more, and tags must not be
    // stripped while ours does.
    nic::restore_all(&pins.runtime())?;
    pins.remove()
        .with_context(|| format!("remove the pins of {}", pins.instance()))?;
    for cell in namespace::list(&cell::prefix(pins.instance()))? {
        cell::remove(&cell)?;
    }
    neighbours::release(pins);
    Ok(())
}
