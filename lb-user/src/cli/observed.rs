//! An instance as this command sees it: by its pins, whether its control plane runs or not.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};

use crate::{
    control::{applied::applied, apply::read_ids, persisted_state::State},
    daemon::migrate::unreadable,
    dataplane::{maps::Maps, pins::Pins},
    model::names::AppliedNames,
    network::namespace,
    observe::Observer,
};

/// Opens an instance.
///
/// # Errors
///
/// If it is not up, or its pins may not be read.
pub(super) fn open(instance: &str) -> Result<Observer> {
    let pins = Pins::new(instance);
    ensure!(
        nix::unistd::geteuid().is_root(),
        "reading the data plane needs root"
    );
    ensure!(
        pins.exist(),
        "instance {instance} is not up (`lb run` starts it)"
    );
    if let Some(why) = unreadable(&pins)? {
        bail!(why);
    }
    let maps = Maps::open(&pins.maps())?;
    let names = AppliedNames {
        ids: read_ids(&maps)?,
        config: applied(&pins)?,
    };
    let of_control = State::namespace_of(&pins);
    let is_elsewhere = of_control != 0 && of_control != namespace::own();
    Observer::new(pins, maps, Arc::new(names), is_elsewhere)
}
