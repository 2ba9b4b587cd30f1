//! `lb down`: the one command that ends forwarding.

use anyhow::{Context as _, Error, Result};

use super::{init_log, print};
use crate::{control::persisted_state::State, daemon::startup, dataplane::pins::Pins, host};

/// Removes everything of an instance that no process controls.
pub(super) fn down(instance: &str) -> Result<()> {
    init_log(false, None);
    host::check()?;
    let pins = Pins::new(instance);
    let lock = host::Lock::take(&pins).map_err(stop_first)?;
    let existed = pins.exist();
    let overrides = State::of_operators(&pins);
    startup::remove(&pins)?;
    pins.remove_state()
        .with_context(|| format!("remove {}", pins.state().display()))?;
    drop(lock);
    for (backend, said) in overrides {
        print::line(format_args!("forgotten of backend {backend}: {said:?}"))?;
    }
    let was = if existed { "is down" } else { "was not up" };
    print::line(format_args!("instance {instance} {was}"))
}

/// The error where the instance still has its control plane.
fn stop_first(error: Error) -> Error {
    match error.downcast_ref::<host::IsRunning>() {
        Some(running) => Error::msg(running.stop_first()),
        None => error,
    }
}
