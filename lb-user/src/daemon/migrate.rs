//! From the pinned maps of another version to those of this one, in one switch: ours are made and filled
//! while the old programs go on with theirs, then each link gets the new program in its place.
//!
//! Flows are not taken along. A switch that was interrupted is finished by the next start: our maps were
//! full before the first link ran with them, and those that run with them already have flows there.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use lb_common::abi::ABI_VERSION;

use crate::{
    control::desired::Attachment,
    dataplane::{
        attach::Mode,
        object::MAPS,
        pins::Pins,
        version::{Pinned, pinned},
    },
    network::link::XdpMode,
};

/// What a start has to do about pinned maps of other versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Migration {
    /// Nothing: there are none.
    None,
    /// All of it.
    Whole(Vec<String>),
    /// What an interrupted one has left of it: the links that still run with the old maps, and these.
    Rest(Vec<String>),
    /// Of the maps of this version these are not pinned any more: all are made anew.
    Anew(Vec<&'static str>),
}

/// The maps that flows are lost with; all of them have been there since this version began.
const OF_FLOWS: [&str; 11] = [
    "REGISTRY",
    "BACKENDS",
    "SNAT_PAGES",
    "SNAT_PORTS",
    "FREE_IDS",
    "FLOW_LINES",
    "LINE_KEY",
    "FLOWS",
    "BINDINGS",
    "SPLICES",
    "ADDRESSES",
];

impl Migration {
    /// What has to be done to what is pinned; with `consent`, flows may be lost.
    ///
    /// # Errors
    ///
    /// If there is no consent to that, or the kernel does not say what runs.
    pub(super) fn of(pins: &Pins, consent: bool) -> Result<Self> {
        match pinned(pins)? {
            Pinned::Ours => match lost(pins) {
                lost if lost.is_empty() => Ok(Self::None),
                lost if consent => Ok(Self::Anew(lost)),
                lost => bail!(lost_words(pins.instance(), &lost)),
            },
            Pinned::Switching(others) => Ok(Self::Rest(others)),
            Pinned::Other(others) if consent => Ok(Self::Whole(others)),
            Pinned::Other(others) => bail!(refusal(pins.instance(), &others)),
        }
    }

    /// Logs what will be done.
    pub(super) fn announce(&self) {
        match self {
            Self::None => {}
            Self::Whole(others) => tracing::warn!(
                "migrating from pinned state {} to v{ABI_VERSION}: new maps are filled beside it, then all \
                 programs are switched over; established flows of the data plane end with that, and all \
                 counters begin anew",
                others.join(", ")
            ),
            Self::Anew(lost) => tracing::warn!(
                "pinned maps are lost ({}): new ones are filled, then all programs are switched over; \
                 established flows of the data plane end with that, and all counters begin anew",
                lost.join(", ")
            ),
            Self::Rest(others) => tracing::warn!(
                "the switch from pinned state {} to v{ABI_VERSION} was interrupted, and is finished now",
                others.join(", ")
            ),
        }
    }

    /// Makes the folders of the pins. Of maps that no link runs with there is nothing to keep.
    pub(super) fn make_folders(&self, pins: &Pins) -> Result<()> {
        self.clear(pins)?;
        pins.create().context("create the pin folders")
    }

    /// The mode in which the links are switched once everything is written; none where they are attached
    /// before, as at any other start.
    pub(super) fn switches_in(&self, places: &BTreeMap<String, Attachment>) -> Option<Mode> {
        if !matches!(self, Self::Whole(_) | Self::Anew(_)) {
            return None;
        }
        let mode = places.values().find_map(|place| place.nic.xdp)?;
        Some(match mode {
            XdpMode::Native => Mode::Native,
            XdpMode::Generic => Mode::Generic,
        })
    }

    /// Removes the maps that nothing runs with any more.
    pub(super) fn finish(&self, pins: &Pins) -> Result<()> {
        let (Self::Whole(others) | Self::Rest(others)) = self else {
            return Ok(());
        };
        for other in others {
            pins.remove_maps(other)
                .with_context(|| format!("remove the maps {other}"))?;
        }
        tracing::warn!(
            "migrated: all programs run with v{ABI_VERSION}, and {} is removed",
            others.join(", ")
        );
        Ok(())
    }

    /// After a failure: maps that no link runs with go.
    pub(super) fn abandon(&self, pins: &Pins) {
        let abandon = || -> Result<()> {
            match pinned(pins)? {
                Pinned::Ours => {}
                Pinned::Other(_) => self.clear(pins)?,
                Pinned::Switching(_) => tracing::error!(
                    "some programs are switched over and others are not, and no flow goes from one to the \
                     other: the next start finishes that"
                ),
            }
            Ok(())
        };
        if let Err(error) = abandon() {
            tracing::error!("cleaning up after the failed migration: {error:#}");
        }
    }

    /// Removes maps of this version that no link runs with.
    pub(super) fn clear(&self, pins: &Pins) -> Result<()> {
        match self {
            Self::Whole(_) | Self::Anew(_) => pins
                .remove_maps(&Pins::version())
                .context("remove maps that nothing runs with"),
            Self::None | Self::Rest(_) => Ok(()),
        }
    }
}

/// The maps that flows are lost with and that are not pinned any more, where others still are.
pub(super) fn lost(pins: &Pins) -> Vec<&'static str> {
    let is_pinned = |name: &&str| pins.maps().join(name).exists();
    if !MAPS.iter().any(is_pinned) {
        return Vec::new();
    }
    let lost = OF_FLOWS.into_iter().filter(|name| !is_pinned(name));
    lost.collect()
}

fn lost_words(instance: &str, lost: &[&str]) -> String {
    format!(
        "pinned maps of instance {instance} are lost ({}), and no process that has them runs: the programs go \
         on with them, and nothing else can; `lb run --migrate` switches over to new state at once: established \
         flows of the data plane end then, and all counters begin anew",
        lost.join(", ")
    )
}

/// Why a start over what is pinned is refused unless it may lose flows; none if it is not.
///
/// # Errors
///
/// If the kernel does not say what runs.
pub fn refused_start(pins: &Pins) -> Result<Option<String>> {
    Ok(others(pins)?.map(|others| refusal(pins.instance(), &others)))
}

/// Why this `lb` cannot read what is pinned; none if it can.
///
/// # Errors
///
/// If the kernel does not say what runs.
pub fn unreadable(pins: &Pins) -> Result<Option<String>> {
    Ok(others(pins)?.map(|others| {
        format!(
            "instance {} runs with pinned state of another version ({}), which this lb (v{ABI_VERSION}) \
             cannot read; ask with the lb that it was started with",
            pins.instance(),
            others.join(", ")
        )
    }))
}

fn others(pins: &Pins) -> Result<Option<Vec<String>>> {
    Ok(match pinned(pins)? {
        Pinned::Other(others) => Some(others),
        Pinned::Ours | Pinned::Switching(_) => None,
    })
}

fn refusal(instance: &str, others: &[String]) -> String {
    format!(
        "instance {instance} runs with pinned state of another version ({}), which this lb (v{ABI_VERSION}) \
         cannot adopt; `lb run --migrate` switches over to new state at once: established flows of the data \
         plane end then, connections that were routed by SNI among them, and all counters begin anew; with \
         --takeover, the process that runs now finishes what it carries for services with `http`",
        others.join(", ")
    )
}
