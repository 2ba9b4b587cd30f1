//! The tree as typed values, each with its place: the keys that exist, and what kind each one is.
//!
//! Unknown keys, missing keys and wrong types are problems of this stage, and what `defaults` say is
//! filled in here. What a value means, and whether it fits the others, is the business of `expand`
//! and `validate`. A value that is `None`, or a list that is not whole, was either not written or is
//! already reported.
//!
//! A text may be written with or without quotes, and is never taken for anything else: `no` and
//! `1.10` are texts where a text is expected. A number must be written without quotes.

mod cluster;
mod health_and_drain;
mod network;
mod pool;
mod reader;
mod service;
mod shared;
mod timeouts;

use self::reader::{Mapping, Preset, boolean, section, texts_not_empty, whole_number};
pub(super) use self::{
    cluster::{Apps, Cluster, Component, Routes},
    health_and_drain::{Care, CheckKind, RawCheck, RawHealth},
    network::{RawNetwork, RawRoute, RawSnat},
    pool::{Member, NodesOf, RawBackend, RawGroup, RawNode, RawPool},
    service::{RawService, Sources},
    shared::{RawNameRoute, RawOtherwise, RawShared},
    timeouts::RawTimeouts,
};
use super::{
    place::{At, Location, MAIN},
    problem::Findings,
    yaml::{Kind, Node},
};

/// A file, or all files together.
#[derive(Debug, Default)]
pub(super) struct RawFile {
    pub(super) versions: Vec<At<u64>>,
    pub(super) networks: List<Named<RawNetwork>>,
    pub(super) groups: List<Named<RawGroup>>,
    pub(super) pools: List<Named<RawPool<Member>>>,
    pub(super) services: List<Named<RawService>>,
    pub(super) clusters: List<Named<Cluster>>,
    pub(super) limits: RawLimits,
    pub(super) timeouts: RawTimeouts,
    pub(super) flow_log: Option<At<String>>,
    pub(super) watch: Option<At<bool>>,
    pub(super) on_stop: Option<At<String>>,
}

/// What only the main file has besides.
#[derive(Debug)]
pub(super) struct Main {
    /// The other files, and the place of that key.
    pub(super) include: Option<(Location, List<At<String>>)>,
    pub(super) defaults: Defaults,
}

/// The section `defaults`.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    network: Preset<RawNetwork>,
    pool: Preset<RawPool<Member>>,
    service: Preset<RawService>,
    cluster: Preset<Cluster>,
}

/// A value with the name that is its key, and the place of that key.
#[derive(Clone, Debug)]
pub(super) struct Named<T> {
    pub(super) name: String,
    pub(super) place: Location,
    pub(super) value: T,
}

impl<T> Named<T> {
    /// Where a problem is reported that `place`, which may be a default, has only in this entry.
    pub(super) fn blame<'p>(&'p self, place: &'p Location) -> &'p Location {
        if place.is_inside(&self.place) {
            place
        } else {
            &self.place
        }
    }
}

/// A list, without the elements that could not be read.
#[derive(Clone, Debug)]
pub(super) struct List<T> {
    pub(super) elements: Vec<T>,
    /// Whether these are all the elements that were written. Only then something can be missing.
    pub(super) whole: bool,
}

impl<T> List<T> {
    /// What an optional list is that could not be found among the `keys`.
    fn absent(keys: &Mapping<'_>, key: &str) -> Self {
        Self {
            elements: Vec::new(),
            whole: keys.is_absent(key),
        }
    }
}

impl<T> Default for List<T> {
    /// A list of which nothing could be read.
    fn default() -> Self {
        Self {
            elements: Vec::new(),
            whole: false,
        }
    }
}

/// The section `limits`.
#[derive(Debug, Default)]
pub(super) struct RawLimits {
    pub(super) snat_addresses: Option<At<u64>>,
    pub(super) services: Option<At<u64>>,
    pub(super) backends: Option<At<u64>>,
    pub(super) pools: Option<At<u64>>,
}

/// The sections that only the main file may have.
const OF_MAIN: [&str; 7] = [
    "include", "defaults", "limits", "timeouts", "log", "watch", "on_stop",
];

/// The sections of a file.
const SECTIONS: [&str; 13] = [
    "version", "include", "defaults", "networks", "nodes", "pools", "services", "clusters",
    "limits", "timeouts", "log", "watch", "on_stop",
];

/// The typed values of the main file; nothing if it is not a mapping.
pub(super) fn read(tree: &Node, findings: &mut Findings) -> Option<(RawFile, Main)> {
    let file = Mapping::open(tree, Location::root(MAIN), &SECTIONS, findings)?;
    let main = Main {
        include: file.optional("include", findings, |node, place, findings| {
            Some((place.clone(), one_or_more(node, place, findings)?))
        }),
        defaults: file
            .optional("defaults", findings, defaults)
            .unwrap_or_default(),
    };
    let version = file.required("version", findings, whole_number);
    let mut raw = sections(&file, &main.defaults, findings);
    raw.versions.extend(version);
    raw.limits = file
        .optional("limits", findings, limits)
        .unwrap_or_default();
    raw.timeouts = file
        .optional("timeouts", findings, timeouts::timeouts)
        .unwrap_or_default();
    raw.flow_log = file.optional("log", findings, timeouts::log);
    raw.watch = file.optional("watch", findings, boolean);
    raw.on_stop = file.optional("on_stop", findings, reader::text);
    if file.is_absent("include") {
        let networks = &raw.networks;
        if file.is_absent("networks") {
            findings.add(
                &file.place_of_key("networks"),
                "missing; this key is required",
            );
        } else if networks.whole && networks.elements.is_empty() {
            let place = file.place_of_key("networks");
            findings.add(&place, "found no network, expected at least one");
        }
    }
    Some((raw, main))
}

/// The typed values of an included file.
pub(super) fn read_included(
    tree: &Node,
    file: usize,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Option<RawFile> {
    let keys = Mapping::open(tree, Location::root(file), &SECTIONS, findings)?;
    for key in OF_MAIN {
        if keys.has(key) {
            let words = "only the main file can have this section";
            findings.add(&keys.place_of_key(key), words);
        }
    }
    let version = keys.optional("version", findings, whole_number);
    let mut raw = sections(&keys, defaults, findings);
    raw.versions.extend(version);
    Some(raw)
}

fn sections(file: &Mapping<'_>, defaults: &Defaults, findings: &mut Findings) -> RawFile {
    RawFile {
        versions: Vec::new(),
        networks: section(file, "networks", findings, |node, place, findings| {
            network::read(node, place, &defaults.network, findings)
        }),
        groups: section(file, "nodes", findings, pool::read_group),
        pools: section(file, "pools", findings, |node, place, findings| {
            pool::read(node, place, &defaults.pool, findings)
        }),
        services: section(file, "services", findings, |node, place, findings| {
            service::read(node, place, &defaults.service, findings)
        }),
        clusters: section(file, "clusters", findings, |node, place, findings| {
            cluster::read(node, place, &defaults.cluster, findings)
        }),
        ..RawFile::default()
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that `Mapping` calls"
)]
fn defaults(node: &Node, place: Location, findings: &mut Findings) -> Option<Defaults> {
    let known = ["network", "pool", "service", "cluster"];
    let keys = Mapping::open(node, place.clone(), &known, findings)?;
    Some(Defaults {
        network: keys
            .optional("network", findings, network::read_defaults)
            .unwrap_or_default(),
        pool: keys
            .optional("pool", findings, pool::read_defaults)
            .unwrap_or_default(),
        service: keys
            .optional("service", findings, service::read_defaults)
            .unwrap_or_default(),
        cluster: keys
            .optional("cluster", findings, cluster::read_defaults)
            .unwrap_or_default(),
    })
}

/// A list of texts, or one of them alone.
fn one_or_more(node: &Node, place: Location, findings: &mut Findings) -> Option<List<At<String>>> {
    if let Kind::Scalar { .. } = node.kind {
        return Some(List {
            elements: vec![reader::text(node, place, findings)?],
            whole: true,
        });
    }
    texts_not_empty(node, place, findings)
}

fn limits(node: &Node, place: Location, findings: &mut Findings) -> Option<RawLimits> {
    let known = ["snat_addresses", "services", "backends", "pools"];
    let keys = Mapping::open(node, place, &known, findings)?;
    Some(RawLimits {
        snat_addresses: keys.optional("snat_addresses", findings, whole_number),
        services: keys.optional("services", findings, whole_number),
        backends: keys.optional("backends", findings, whole_number),
        pools: keys.optional("pools", findings, whole_number),
    })
}
