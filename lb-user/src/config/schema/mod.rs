//! The tree as typed values, each with its place: the keys that exist, and what kind each one is.
//!
//! Unknown keys, missing keys and wrong types are problems of this stage. What a value means, and
//! whether it fits the others, is the business of `validate`. A value that is `None`, or a list
//! that is not whole, was either not written or is already reported.
//!
//! A text may be written with or without quotes, and is never taken for anything else: `no` and
//! `1.10` are texts where a text is expected. A number must be written without quotes.

mod reader;

use self::reader::{Mapping, list, named, text, texts, texts_not_empty, whole_number};
use super::{
    place::{At, Place},
    problem::Findings,
    yaml::{Kind, Node},
};

/// The file.
#[derive(Debug)]
pub(super) struct RawConfig {
    pub(super) version: Option<At<u64>>,
    pub(super) networks: List<Named<RawNetwork>>,
    pub(super) pools: List<Named<RawPool>>,
    pub(super) services: List<Named<RawService>>,
    pub(super) limits: RawLimits,
}

/// A value with the name that is its key, and the place of that key.
#[derive(Debug)]
pub(super) struct Named<T> {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) value: T,
}

/// A list, without the elements that could not be read.
#[derive(Debug)]
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

/// An entry of `networks`.
#[derive(Debug, Default)]
pub(super) struct RawNetwork {
    pub(super) role: Option<At<String>>,
    pub(super) interface: Option<At<String>>,
    pub(super) prefixes: List<At<String>>,
    pub(super) snat: List<At<String>>,
}

/// An entry of `pools`.
#[derive(Debug, Default)]
pub(super) struct RawPool {
    pub(super) network: Option<At<String>>,
    pub(super) balance: Option<At<String>>,
    pub(super) backends: List<At<RawBackend>>,
}

/// An element of `backends`; a text alone is its address.
#[derive(Debug, Default)]
pub(super) struct RawBackend {
    pub(super) address: Option<At<String>>,
    pub(super) name: Option<At<String>>,
    pub(super) weight: Option<At<u64>>,
}

/// An entry of `services`.
#[derive(Debug, Default)]
pub(super) struct RawService {
    pub(super) network: Option<At<String>>,
    pub(super) listen: List<At<String>>,
    pub(super) pool: Option<At<String>>,
}

/// The section `limits`.
#[derive(Debug, Default)]
pub(super) struct RawLimits {
    pub(super) snat_addresses: Option<At<u64>>,
    pub(super) services: Option<At<u64>>,
    pub(super) backends: Option<At<u64>>,
    pub(super) pools: Option<At<u64>>,
}

/// The typed values of the file; nothing if it is not a mapping.
pub(super) fn read(tree: &Node, findings: &mut Findings) -> Option<RawConfig> {
    let known = ["version", "networks", "pools", "services", "limits"];
    let file = Mapping::open(tree, Place::root(), &known, findings)?;
    Some(RawConfig {
        version: file.required("version", findings, whole_number),
        networks: file
            .required("networks", findings, |node, place, findings| {
                let networks = named(node, &place, findings, network);
                if networks.whole && networks.elements.is_empty() {
                    findings.add(&place, "found no network, expected at least one");
                }
                Some(networks)
            })
            .unwrap_or_default(),
        pools: file
            .optional("pools", findings, |node, place, findings| {
                Some(named(node, &place, findings, pool))
            })
            .unwrap_or_else(|| List::absent(&file, "pools")),
        services: file
            .optional("services", findings, |node, place, findings| {
                Some(named(node, &place, findings, service))
            })
            .unwrap_or_else(|| List::absent(&file, "services")),
        limits: file
            .optional("limits", findings, limits)
            .unwrap_or_default(),
    })
}

fn network(node: &Node, place: Place, findings: &mut Findings) -> Option<RawNetwork> {
    let known = ["role", "interface", "prefixes", "snat"];
    let keys = Mapping::open(node, place, &known, findings)?;
    Some(RawNetwork {
        role: keys.required("role", findings, text),
        interface: keys.required("interface", findings, text),
        prefixes: keys
            .required("prefixes", findings, texts_not_empty)
            .unwrap_or_default(),
        snat: keys
            .optional("snat", findings, texts)
            .unwrap_or_else(|| List::absent(&keys, "snat")),
    })
}

fn pool(node: &Node, place: Place, findings: &mut Findings) -> Option<RawPool> {
    let known = ["network", "balance", "backends"];
    let keys = Mapping::open(node, place, &known, findings)?;
    Some(RawPool {
        network: keys.required("network", findings, text),
        balance: keys.optional("balance", findings, text),
        backends: keys
            .required("backends", findings, |node, place, findings| {
                Some(list(node, &place, findings, backend))
            })
            .unwrap_or_default(),
    })
}

fn backend(node: &Node, place: Place, findings: &mut Findings) -> Option<At<RawBackend>> {
    let value = if let Kind::Mapping(_) = node.kind {
        let known = ["address", "name", "weight"];
        let keys = Mapping::open(node, place.clone(), &known, findings)?;
        RawBackend {
            address: keys.required("address", findings, text),
            name: keys.optional("name", findings, text),
            weight: keys.optional("weight", findings, whole_number),
        }
    } else {
        RawBackend {
            address: Some(text(node, place.clone(), findings)?),
            ..RawBackend::default()
        }
    };
    Some(At { place, value })
}

fn service(node: &Node, place: Place, findings: &mut Findings) -> Option<RawService> {
    let known = ["network", "listen", "pool"];
    let keys = Mapping::open(node, place, &known, findings)?;
    Some(RawService {
        network: keys.required("network", findings, text),
        listen: keys
            .required("listen", findings, texts_not_empty)
            .unwrap_or_default(),
        pool: keys.required("pool", findings, text),
    })
}

fn limits(node: &Node, place: Place, findings: &mut Findings) -> Option<RawLimits> {
    let known = ["snat_addresses", "services", "backends", "pools"];
    let keys = Mapping::open(node, place, &known, findings)?;
    Some(RawLimits {
        snat_addresses: keys.optional("snat_addresses", findings, whole_number),
        services: keys.optional("services", findings, whole_number),
        backends: keys.optional("backends", findings, whole_number),
        pools: keys.optional("pools", findings, whole_number),
    })
}
