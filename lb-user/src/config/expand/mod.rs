//! What stands for several things is written out, so that the rules see literal entries only.
//!
//! Groups of nodes become backends, and clusters become pools and services. Every part keeps the
//! place that it comes from, and is blamed there.

mod cluster;
mod nodes;
mod part;
mod preset;
mod publish;
mod route;

use crate::config::list::{List, Named};
use std::{collections::HashMap, mem};

use serde_json::Value;

use self::{cluster::Around, nodes::Groups};
use super::{
    model::OnStop,
    names::{self, MAX_NAME, Names},
    place::{At, Location, quote},
    problem::Findings,
    schema::{
        LiteralPool, Member, RawAdmin, RawBackend, RawFile, RawHa, RawKubernetes, RawLimits,
        RawLog, RawNetwork, RawPool, RawService, RawTimeouts, declare::Declared as _,
    },
};

/// The most backends that are written out: more than any `limits.backends`.
const MAX_BACKENDS: usize = 1 << 16;

/// A configuration of literal entries.
#[derive(Debug)]
pub(super) struct Expanded {
    pub(super) versions: Vec<At<u64>>,
    pub(super) networks: List<Named<RawNetwork>>,
    pub(super) pools: List<Named<LiteralPool>>,
    pub(super) services: List<Named<RawService>>,
    pub(super) kubernetes: List<Named<RawKubernetes>>,
    pub(super) cluster_defaults: Option<Value>,
    pub(super) limits: RawLimits,
    pub(super) timeouts: RawTimeouts,
    pub(super) log: RawLog,
    pub(super) admin: RawAdmin,
    pub(super) ha: Option<At<RawHa>>,
    pub(super) seed: Option<At<String>>,
    pub(super) syn_cookie_key: Option<At<String>>,
    pub(super) watch: Option<At<bool>>,
    pub(super) on_stop: Option<At<OnStop>>,
    pub(super) origins: Origins,
}

/// Where expanded entries come from, for a reader: name -> a few words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Origins {
    pub(super) pools: HashMap<String, String>,
    pub(super) services: HashMap<String, String>,
    /// By the name of a pool and service of a cluster, the file that has it.
    pub(super) files: HashMap<String, usize>,
}

/// Writes everything out, and checks the names of all.
pub(super) fn expand(file: RawFile, findings: &mut Findings) -> Expanded {
    check_names(&file, findings);
    let mut expansion = Expansion {
        pools: Section::new("pool"),
        services: Section::new("service"),
        origins: Origins::default(),
        room: MAX_BACKENDS,
        is_whole: true,
        findings,
    };
    let networks = Names::new("network", &file.networks);
    let groups = Groups::new(&file.nodes, &networks, expansion.findings);
    let kubernetes = Names::new(RawKubernetes::SECTION.name, &file.kubernetes);
    let problems = expansion.findings.count();
    for named in file.pools.elements {
        expansion.pool(named, &groups);
    }
    for named in file.services.elements {
        expansion.services.push(named, expansion.findings);
    }
    for named in &file.clusters.elements {
        let network = named.value.network.as_ref();
        let around = Around {
            network: network.filter(|at| networks.find(at, expansion.findings).is_some()),
            networks: &networks,
            groups: &groups,
            kubernetes: &kubernetes,
        };
        expansion.cluster(named, &around);
    }
    // What could not be written out may have been any pool and service.
    let no_problem = expansion.is_whole && expansion.findings.count() == problems;
    let whole = file.clusters.whole && no_problem;
    let Expansion {
        pools,
        services,
        origins,
        ..
    } = expansion;
    Expanded {
        versions: file
            .version
            .into_iter()
            .chain(file.other_versions)
            .collect(),
        networks: file.networks,
        pools: pools.into_list(whole && file.pools.whole),
        services: services.into_list(whole && file.services.whole),
        kubernetes: file.kubernetes,
        cluster_defaults: file.defaults.cluster,
        limits: file.limits,
        timeouts: file.timeouts,
        log: file.log,
        admin: file.admin,
        ha: file.ha,
        seed: file.seed,
        syn_cookie_key: file.syn_cookie_key,
        watch: file.watch,
        on_stop: file.on_stop,
        origins,
    }
}

fn check_names(file: &RawFile, findings: &mut Findings) {
    let networks = file.networks.elements.iter().map(Named::name_and_place);
    let groups = file.nodes.elements.iter().map(Named::name_and_place);
    let pools = file.pools.elements.iter().map(Named::name_and_place);
    let services = file.services.elements.iter().map(Named::name_and_place);
    let kubernetes = file.kubernetes.elements.iter().map(Named::name_and_place);
    let own = networks.chain(groups).chain(pools).chain(services);
    let boxes = file.ha.iter().flat_map(|ha| &ha.value.boxes.elements);
    let boxes = boxes.map(Named::name_and_place);
    for (name, place) in own.chain(kubernetes).chain(boxes) {
        names::check(name, MAX_NAME, place, findings);
    }
    for named in &file.clusters.elements {
        names::check(&named.name, cluster::MAX_NAME, &named.place, findings);
    }
}

impl<T> Named<T> {
    fn name_and_place(&self) -> (&str, &Location) {
        (&self.name, &self.place)
    }
}

/// What is written out so far.
struct Expansion<'f> {
    pools: Section<LiteralPool>,
    services: Section<RawService>,
    origins: Origins,
    /// How many more backends may come.
    room: usize,
    /// Whether every VIP and port of a cluster could be read.
    is_whole: bool,
    findings: &'f mut Findings,
}

impl Expansion<'_> {
    fn pool(&mut self, named: Named<RawPool>, groups: &Groups<'_>) {
        let mut keys = named.value;
        let backends = mem::take(&mut keys.backends);
        let mut whole = backends.whole;
        let (mut elements, mut discovered) = (Vec::new(), Vec::new());
        for member in backends.elements {
            match member {
                Member::Backend(backend) => elements.push(backend),
                Member::Discovered(one) => discovered.push(one),
                Member::Nodes(at) => {
                    if let Some(group) = &at.value.nodes {
                        let origin = format!("its backends are nodes.{}", group.value);
                        self.origins.pools.insert(named.name.clone(), origin);
                    }
                    let nodes = groups.backends(&at.value, keys.network.as_ref(), self.findings);
                    whole &= nodes.whole;
                    elements.extend(nodes.elements);
                }
            }
        }
        let backends = self.bounded(List { elements, whole });
        let value = LiteralPool {
            keys,
            backends,
            discovered,
        };
        self.pools.push(
            Named {
                name: named.name,
                place: named.place,
                value,
            },
            self.findings,
        );
    }

    /// No more backends than there is room for: a few lines can mean billions.
    fn bounded(&mut self, mut backends: List<At<RawBackend>>) -> List<At<RawBackend>> {
        if backends.elements.len() > self.room {
            backends.elements.truncate(self.room);
            backends.whole = false;
        }
        self.room -= backends.elements.len();
        backends
    }
}

/// The entries of one section.
struct Section<T> {
    kind: &'static str,
    elements: Vec<Named<T>>,
    places: HashMap<String, Location>,
}

impl<T> Section<T> {
    fn new(kind: &'static str) -> Self {
        Self {
            kind,
            elements: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// Adds an entry, unless one with its name is there: a cluster can meet a literal one.
    fn push(&mut self, named: Named<T>, findings: &mut Findings) {
        match self.places.get(&named.name) {
            Some(first) => {
                let words = format!(
                    "the {} {} is already defined in {}",
                    self.kind,
                    quote(&named.name),
                    findings.line(first, &named.place)
                );
                findings.add(&named.place, words);
            }
            None => {
                self.places.insert(named.name.clone(), named.place.clone());
                self.elements.push(named);
            }
        }
    }

    fn into_list(self, whole: bool) -> List<Named<T>> {
        List {
            elements: self.elements,
            whole,
        }
    }
}
