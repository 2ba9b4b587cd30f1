//! Groups of nodes, and the backends that a port of theirs stands for.

use std::{
    collections::{HashMap, hash_map},
    net::{IpAddr, SocketAddr},
};

use crate::config::{
    list::{List, Named},
    names::Names,
    place::{At, Location, quote},
    problem::Findings,
    schema::{NodesOf, RawBackend, RawGroup, RawNode},
};

/// All groups.
pub(super) struct Groups<'r> {
    names: Names<'r>,
    groups: Vec<Group<'r>>,
}

/// Nodes under one name.
pub(super) struct Group<'r> {
    pub(super) name: &'r str,
    /// Where it is defined.
    pub(super) place: &'r Location,
    /// The network that the nodes are on, if it says so and the network is there.
    pub(super) network: Option<&'r At<String>>,
    /// Whether it does not say on which network the nodes are.
    pub(super) without_network: bool,
    nodes: Vec<Node<'r>>,
    whole: bool,
}

struct Node<'r> {
    name: String,
    address: IpAddr,
    place: &'r Location,
}

impl<'r> Groups<'r> {
    pub(super) fn new(
        raw: &'r List<Named<RawGroup>>,
        networks: &Names<'_>,
        findings: &mut Findings,
    ) -> Self {
        let groups = raw.elements.iter();
        let groups = groups.map(|named| Group::read(named, networks, findings));
        Self {
            groups: groups.collect(),
            names: Names::new("node group", raw),
        }
    }

    pub(super) fn find(
        &self,
        reference: &At<String>,
        findings: &mut Findings,
    ) -> Option<&Group<'r>> {
        let index = self.names.find(reference, findings)?;
        self.groups.get(index)
    }

    /// What a member of a pool in `network` stands for.
    pub(super) fn backends(
        &self,
        member: &NodesOf,
        network: Option<&At<String>>,
        findings: &mut Findings,
    ) -> List<At<RawBackend>> {
        let port = member.port.as_ref().and_then(|at| at.value);
        let reference = member.nodes.as_ref();
        let group = reference.and_then(|reference| self.find(reference, findings));
        let (Some(reference), Some(group), Some(port)) = (reference, group, port) else {
            return List::default();
        };
        let networks = group.network.zip(network);
        if let Some((theirs, ours)) = networks.filter(|(theirs, ours)| theirs.value != ours.value) {
            let words = format!(
                "node group {} is on network {}, but this pool is on network {}",
                group.name,
                theirs.value,
                quote(&ours.value)
            );
            findings.add(&reference.place, words);
            return List::default();
        }
        let mut backends = group.backends(port, &reference.place);
        for backend in &mut backends.elements {
            backend.value.weight.clone_from(&member.weight);
            backend.value.backup.clone_from(&member.backup);
        }
        backends
    }
}

impl<'r> Group<'r> {
    fn read(named: &'r Named<RawGroup>, networks: &Names<'_>, findings: &mut Findings) -> Self {
        let RawGroup { network, addresses } = &named.value;
        let found = network
            .as_ref()
            .is_some_and(|at| networks.find(at, findings).is_some());
        let mut group = Self {
            name: &named.name,
            place: &named.place,
            network: network.as_ref().filter(|_| found),
            without_network: network.is_none(),
            nodes: Vec::new(),
            whole: addresses.whole,
        };
        // Name or address -> place.
        let mut known = HashMap::new();
        for raw in &addresses.elements {
            match node(raw, &mut known, findings) {
                Some(node) => group.nodes.push(node),
                None => group.whole = false,
            }
        }
        group
    }

    /// The `port` of all nodes, as `reference` has it. A node that is not on its network is reported at
    /// the node if the group names the network, or else at `reference`, which puts the node there.
    pub(super) fn backends(&self, port: u16, reference: &Location) -> List<At<RawBackend>> {
        let backend = |node: &Node<'_>| {
            let place = match self.network {
                Some(_) => node.place,
                None => reference,
            };
            At {
                place: reference.clone(),
                value: RawBackend {
                    address: Some(At {
                        place: place.clone(),
                        value: SocketAddr::new(node.address, port),
                    }),
                    node: Some(node.name.clone()),
                    ..RawBackend::default()
                },
            }
        };
        List {
            elements: self.nodes.iter().map(backend).collect(),
            whole: self.whole,
        }
    }
}

/// A node, unless it cannot be read or is listed already.
fn node<'r>(
    raw: &'r RawNode,
    known: &mut HashMap<String, &'r Location>,
    findings: &mut Findings,
) -> Option<Node<'r>> {
    let At {
        place,
        value: address,
    } = raw.address.as_ref()?;
    let mut words = vec![(address.to_string(), place)];
    if let Some(At { place, value }) = &raw.name {
        words.push((value.clone(), place));
    }
    let name = words.last()?.0.clone();
    words.dedup_by(|(name, _), (address, _)| name == address);
    let mut first_time = true;
    for (word, place) in words {
        match known.entry(word) {
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert(place);
            }
            hash_map::Entry::Occupied(first) => {
                let line = findings.line(first.get(), place);
                let words = format!("{} is already listed in {line}", quote(first.key()));
                findings.add(place, words);
                first_time = false;
            }
        }
    }
    first_time.then_some(Node {
        name,
        address: *address,
        place,
    })
}
