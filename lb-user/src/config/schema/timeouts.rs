//! The keys of how long flows live and how they are refused: of services, and of clusters for theirs.

use super::reader::{Mapping, Preset, boolean, text};
use crate::config::{
    place::{At, Location},
    problem::Findings,
    yaml::Node,
};

/// What a service and a cluster can say.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct Life {
    pub(in crate::config) idle_timeout: Option<At<String>>,
    pub(in crate::config) keepalive: Option<At<String>>,
    /// Whether nobody wrote `keepalive`.
    pub(in crate::config) without_keepalive: bool,
    pub(in crate::config) reject: Option<At<bool>>,
}

/// Reads the keys of `keys`, or else those of the `defaults`, which have theirs in `life`.
pub(super) fn life<D>(
    keys: &Mapping<'_>,
    defaults: &Preset<D>,
    life: fn(&D) -> &Life,
    findings: &mut Findings,
) -> Life {
    Life {
        idle_timeout: keys.optional_or(
            "idle_timeout",
            defaults,
            |default| &life(default).idle_timeout,
            findings,
            text,
        ),
        keepalive: keys.optional_or(
            "keepalive",
            defaults,
            |default| &life(default).keepalive,
            findings,
            text,
        ),
        without_keepalive: keys.is_absent("keepalive") && !defaults.says("keepalive"),
        reject: keys.optional_or(
            "reject",
            defaults,
            |default| &life(default).reject,
            findings,
            boolean,
        ),
    }
}

/// The section `timeouts`.
#[derive(Debug, Default)]
pub(in crate::config) struct RawTimeouts {
    pub(in crate::config) half_open: Option<At<String>>,
    pub(in crate::config) half_closed: Option<At<String>>,
    pub(in crate::config) udp: Option<At<String>>,
}

pub(super) fn timeouts(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<RawTimeouts> {
    let keys = Mapping::open(node, place, &["half_open", "half_closed", "udp"], findings)?;
    Some(RawTimeouts {
        half_open: keys.optional("half_open", findings, text),
        half_closed: keys.optional("half_closed", findings, text),
        udp: keys.optional("udp", findings, text),
    })
}

/// The section `log`: the file of the flows.
pub(super) fn log(node: &Node, place: Location, findings: &mut Findings) -> Option<At<String>> {
    let keys = Mapping::open(node, place, &["flows"], findings)?;
    keys.optional("flows", findings, text)
}
