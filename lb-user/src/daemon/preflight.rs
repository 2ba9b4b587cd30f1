//! Whether a configuration can be started here: all that can be known of it before anything is changed.

use anyhow::{Result, ensure};

use super::{
    grow::grown,
    migrate::{Migration, lost},
    stages::StartOptions,
    startup::load,
};
use crate::{
    config::Config,
    control::{
        applied::is_applied,
        apply::Live,
        desired::records,
        network_setup::{find_nics, places_to_come},
    },
    dataplane::{
        maps::Maps,
        object::Object,
        pins::Pins,
        version::{Pinned, pinned},
    },
    host::prepare,
    model::registry::Ids,
};

/// Whether this host takes a configuration, and a data plane that is there has room for it.
///
/// # Errors
///
/// Why not.
pub fn start(config: &Config, pins: &Pins, manner: StartOptions) -> Result<()> {
    check(config, pins, manner, |_| Ok(Ids::default()))
}

/// The same for a start beside a process that goes on, and whether the programs would be accepted. If they
/// are, and have the maps that they will have, the start need not load them again.
///
/// # Errors
///
/// Why not.
pub fn take_over(config: &Config, pins: &Pins, manner: StartOptions) -> Result<Option<Object>> {
    // That process frees what is not used any more.
    check(config, pins, manner, Live::ids)?;
    if !pins.exist() {
        return Ok(None);
    }
    let migration = Migration::of(pins, manner.migrate)?;
    ensure!(
        !matches!(migration, Migration::Anew(_)),
        "pins of maps are gone, which the process that runs pins again in a few seconds: try again then"
    );
    migration.make_folders(pins)?;
    let loaded = load(pins, config, manner);
    migration.clear(pins)?;
    Ok(Some(loaded?).filter(|object| object.is_of(pins)))
}

/// `taken` are the ids that the configuration finds taken.
fn check(
    config: &Config,
    pins: &Pins,
    manner: StartOptions,
    taken: impl FnOnce(&mut Live) -> Result<Ids>,
) -> Result<()> {
    prepare::check(pins, Some(config))?;
    let nics = find_nics(config, pins)?;
    // Before the first start is complete, and where another version runs, there is nothing to fit into.
    let is_other = || pinned(pins).map(|pinned| matches!(pinned, Pinned::Other(_)));
    if !is_applied(pins) || !pins.exist() || is_other()? || !lost(pins).is_empty() {
        return Ok(());
    }
    let mut live = Live::new(Maps::open(&pins.maps())?);
    let room = match manner.grow {
        true => grown(live.limits(), config.limits),
        false => live.limits(),
    };
    let config = Config {
        limits: config.limits.within(room),
        ..config.clone()
    };
    let places = places_to_come(&config, &nics, pins);
    let mut ids = taken(&mut live)?;
    records(&config, &places, &mut ids).map(drop)
}
