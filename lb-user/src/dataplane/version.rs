//! Which version of the pinned maps the attached programs work with.

use std::fs;

use anyhow::{Context as _, Result};
use aya::{
    maps::MapData,
    programs::{
        links::{FdLink, PinnedLink},
        loaded_programs,
    },
};

use super::pins::Pins;

/// A map that both programs use, in every version.
const USED_BY_ALL: &str = "NETWORKS";

/// The pinned maps of an instance, by what the programs of its links use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinned {
    /// There are maps of this version only, or none.
    Ours,
    /// There are maps of these other versions too, and at least one link runs with ours: a switch to them
    /// has begun.
    Switching(Vec<String>),
    /// There are maps of these other versions, and no link runs with ours.
    Other(Vec<String>),
}

/// What is pinned.
///
/// # Errors
///
/// If the kernel does not report what a link runs.
pub fn pinned(pins: &Pins) -> Result<Pinned> {
    let others = pins.other_versions();
    Ok(if others.is_empty() {
        Pinned::Ours
    } else if runs_ours(pins)? {
        Pinned::Switching(others)
    } else {
        Pinned::Other(others)
    })
}

/// Whether the program of any link works with the maps of this version.
fn runs_ours(pins: &Pins) -> Result<bool> {
    let Ok(map) = MapData::from_pin(pins.maps().join(USED_BY_ALL)) else {
        return Ok(false);
    };
    let map = map.info()?.id();
    let running = running(pins)?;
    // A program that ends meanwhile is none of those.
    let programs = loaded_programs().filter_map(Result::ok);
    for program in programs.filter(|program| running.contains(&program.id())) {
        let maps = program.map_ids()?.context("the maps of a program")?;
        if maps.contains(&map) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The ids of the programs that the pinned links run.
fn running(pins: &Pins) -> Result<Vec<u32>> {
    let entries = fs::read_dir(pins.links()).into_iter().flatten();
    let mut programs = Vec::new();
    for entry in entries {
        let pin = entry?.path();
        let open = || -> Result<u32> {
            let link: FdLink = PinnedLink::from_pin(&pin)?.into();
            Ok(link.info()?.program_id())
        };
        programs.push(open().with_context(|| format!("look at the link {}", pin.display()))?);
    }
    Ok(programs)
}
