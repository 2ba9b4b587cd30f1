//! `lb down`: the one command that ends forwarding.

use anyhow::Result;

use super::init_log;
use crate::{control::start, dataplane::pins::Pins, host};

/// Removes everything of an instance that no process controls.
pub(super) fn down(instance: &str) -> Result<()> {
    init_log(false);
    host::check()?;
    let pins = Pins::new(instance);
    let lock = host::Lock::take(&pins)?;
    let existed = pins.exist();
    start::remove(&pins)?;
    drop(lock);
    if existed {
        println!("instance {instance} is down");
    } else {
        println!("instance {instance} was not up");
    }
    Ok(())
}
