//! The keys of a cluster: what a hosted control plane publishes, and how.

use super::{
    health_and_drain::{self, Care, care},
    reader::{Mapping, Preset, text, whole_number},
    service::{Sources, sources},
    timeouts::{Life, life},
};
use crate::config::{
    place::{At, Location},
    problem::Findings,
    yaml::Node,
};

/// An entry of `clusters`.
#[derive(Debug, Default)]
pub(in crate::config) struct Cluster {
    pub(in crate::config) network: Option<At<String>>,
    pub(in crate::config) nodes: Option<At<String>>,
    /// Whether nobody wrote `nodes`.
    pub(in crate::config) without_nodes: bool,
    pub(in crate::config) api: Option<At<Component>>,
    pub(in crate::config) oauth: Option<At<Component>>,
    pub(in crate::config) konnectivity: Option<At<Component>>,
    pub(in crate::config) ignition: Option<At<Component>>,
    pub(in crate::config) routes: Option<At<Routes>>,
    /// Whether nobody wrote `routes`.
    pub(in crate::config) without_routes: bool,
    pub(in crate::config) apps: Option<At<Apps>>,
    pub(in crate::config) allow: Option<At<Sources>>,
    pub(in crate::config) deny: Option<At<Sources>>,
    pub(in crate::config) life: Life,
    pub(in crate::config) base_domain: Option<At<String>>,
    /// What `defaults` are for components; `Preset` cannot be taken apart again.
    presets: Presets,
}

/// The defaults of the components.
#[derive(Debug, Default)]
struct Presets {
    api: Preset<Component>,
    oauth: Preset<Component>,
    konnectivity: Preset<Component>,
    ignition: Preset<Component>,
    apps: Preset<Apps>,
}

/// A part of a hosted control plane.
#[derive(Debug, Default)]
pub(in crate::config) struct Component {
    pub(in crate::config) publish: Option<At<String>>,
    pub(in crate::config) node_port: Option<At<u64>>,
    /// Whether nobody wrote `node_port`.
    pub(in crate::config) without_node_port: bool,
    /// The name that clients ask for, of what is published as a route.
    pub(in crate::config) hostname: Option<At<String>>,
    /// Whether nobody wrote `hostname`.
    pub(in crate::config) without_hostname: bool,
    pub(in crate::config) allow: Option<At<Sources>>,
    pub(in crate::config) deny: Option<At<Sources>>,
    pub(in crate::config) care: Care,
    pub(in crate::config) vip: Option<At<String>>,
}

/// The NodePorts of an ingress shard.
#[derive(Clone, Debug)]
pub(in crate::config) struct Routes {
    pub(in crate::config) care: Care,
    pub(in crate::config) https: Option<At<u64>>,
    pub(in crate::config) http: Option<At<u64>>,
}

/// The ingress of the cluster's own applications.
#[derive(Debug, Default)]
pub(in crate::config) struct Apps {
    pub(in crate::config) nodes: Option<At<String>>,
    pub(in crate::config) https: Option<At<u64>>,
    pub(in crate::config) http: Option<At<u64>>,
    pub(in crate::config) allow: Option<At<Sources>>,
    pub(in crate::config) deny: Option<At<Sources>>,
    pub(in crate::config) care: Care,
    pub(in crate::config) vip: Option<At<String>>,
}

/// The keys, first those that can have a default.
const KEYS: [&str; 14] = [
    "network",
    "nodes",
    "api",
    "oauth",
    "konnectivity",
    "ignition",
    "routes",
    "apps",
    "allow",
    "deny",
    "idle_timeout",
    "keepalive",
    "reject",
    "base_domain",
];
const COMPONENT: [&str; 11] = {
    let [health, drain_timeout, slow_start, min_up, below_min_up] = health_and_drain::KEYS;
    [
        "publish",
        "node_port",
        "allow",
        "deny",
        health,
        drain_timeout,
        slow_start,
        min_up,
        below_min_up,
        "vip",
        "hostname",
    ]
};
const ROUTES: [&str; 7] = {
    let [health, drain_timeout, slow_start, min_up, below_min_up] = health_and_drain::KEYS;
    [
        "https",
        "http",
        health,
        drain_timeout,
        slow_start,
        min_up,
        below_min_up,
    ]
};
const APPS: [&str; 11] = {
    let [health, drain_timeout, slow_start, min_up, below_min_up] = health_and_drain::KEYS;
    [
        "nodes",
        "https",
        "http",
        "allow",
        "deny",
        health,
        drain_timeout,
        slow_start,
        min_up,
        below_min_up,
        "vip",
    ]
};

pub(super) fn read_defaults(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<Preset<Cluster>> {
    let keys = Mapping::open(node, place, &KEYS[..13], findings)?.lenient();
    let mut preset = |key: &str| {
        let preset = keys.optional(key, findings, |node, place, findings| {
            let keys = Mapping::open(node, place, &COMPONENT[..9], findings)?.lenient();
            let value = component(&keys, &Preset::default(), findings);
            Some(Preset::new(&keys, value))
        });
        preset.unwrap_or_default()
    };
    let presets = Presets {
        api: preset("api"),
        oauth: preset("oauth"),
        konnectivity: preset("konnectivity"),
        ignition: preset("ignition"),
        apps: keys
            .optional("apps", findings, |node, place, findings| {
                let keys = Mapping::open(node, place, &APPS[..10], findings)?.lenient();
                let value = apps(&keys, &Preset::default(), findings);
                Some(Preset::new(&keys, value))
            })
            .unwrap_or_default(),
    };
    let value = Cluster {
        presets,
        ..shared(&keys, &Preset::default(), findings)
    };
    Some(Preset::new(&keys, value))
}

pub(super) fn read(
    node: &Node,
    place: Location,
    defaults: &Preset<Cluster>,
    findings: &mut Findings,
) -> Option<Cluster> {
    let keys = Mapping::open(node, place, &KEYS, findings)?;
    let presets = &defaults.value.presets;
    let mut own = |key: &str, preset: &Preset<Component>| {
        keys.optional(key, findings, |node, place, findings| {
            let keys = Mapping::open(node, place.clone(), &COMPONENT, findings)?;
            let value = component(&keys, preset, findings);
            Some(At { place, value })
        })
    };
    let api = own("api", &presets.api);
    let oauth = own("oauth", &presets.oauth);
    let konnectivity = own("konnectivity", &presets.konnectivity);
    let ignition = own("ignition", &presets.ignition);
    Some(Cluster {
        api,
        oauth,
        konnectivity,
        ignition,
        apps: keys.optional("apps", findings, |node, place, findings| {
            let keys = Mapping::open(node, place.clone(), &APPS, findings)?;
            let value = apps(&keys, &presets.apps, findings);
            Some(At { place, value })
        }),
        base_domain: keys.optional("base_domain", findings, text),
        ..shared(&keys, defaults, findings)
    })
}

/// The keys that concern all components.
fn shared(keys: &Mapping<'_>, defaults: &Preset<Cluster>, findings: &mut Findings) -> Cluster {
    let nobody = |key: &str| keys.is_absent(key) && !defaults.says(key);
    Cluster {
        network: keys.required_or(
            "network",
            defaults,
            |cluster| &cluster.network,
            findings,
            text,
        ),
        nodes: keys.optional_or("nodes", defaults, |cluster| &cluster.nodes, findings, text),
        without_nodes: nobody("nodes"),
        routes: keys.optional_or(
            "routes",
            defaults,
            |cluster| &cluster.routes,
            findings,
            routes,
        ),
        without_routes: nobody("routes"),
        allow: keys.optional_or(
            "allow",
            defaults,
            |cluster| &cluster.allow,
            findings,
            sources,
        ),
        deny: keys.optional_or("deny", defaults, |cluster| &cluster.deny, findings, sources),
        life: life(keys, defaults, |cluster| &cluster.life, findings),
        ..Cluster::default()
    }
}

fn component(
    keys: &Mapping<'_>,
    defaults: &Preset<Component>,
    findings: &mut Findings,
) -> Component {
    let default = defaults;
    Component {
        publish: keys.required_or("publish", default, |own| &own.publish, findings, text),
        node_port: keys.optional_or(
            "node_port",
            default,
            |own| &own.node_port,
            findings,
            whole_number,
        ),
        without_node_port: keys.is_absent("node_port") && !default.says("node_port"),
        hostname: keys.optional("hostname", findings, text),
        without_hostname: keys.is_absent("hostname"),
        allow: keys.optional_or("allow", default, |own| &own.allow, findings, sources),
        deny: keys.optional_or("deny", default, |own| &own.deny, findings, sources),
        care: care(keys, default, |own| &own.care, findings),
        vip: keys.required("vip", findings, text),
    }
}

fn routes(node: &Node, place: Location, findings: &mut Findings) -> Option<At<Routes>> {
    let keys = Mapping::open(node, place.clone(), &ROUTES, findings)?;
    let value = Routes {
        care: care(&keys, &Preset::default(), |care: &Care| care, findings),
        https: keys.required("https", findings, whole_number),
        http: keys.optional("http", findings, whole_number),
    };
    Some(At { place, value })
}

fn apps(keys: &Mapping<'_>, defaults: &Preset<Apps>, findings: &mut Findings) -> Apps {
    let number = whole_number;
    Apps {
        nodes: keys.required_or("nodes", defaults, |apps| &apps.nodes, findings, text),
        https: keys.required_or("https", defaults, |apps| &apps.https, findings, number),
        http: keys.optional_or("http", defaults, |apps| &apps.http, findings, number),
        allow: keys.optional_or("allow", defaults, |apps| &apps.allow, findings, sources),
        deny: keys.optional_or("deny", defaults, |apps| &apps.deny, findings, sources),
        care: care(keys, defaults, |apps| &apps.care, findings),
        vip: keys.required("vip", findings, text),
    }
}
