//! Clusters of Kubernetes, and what pools want of them.

use crate::config::{
    discover::{Discover, KubernetesCluster, ServicePort},
    list::{List, Named},
    names::{self, Names},
    place::{At, value_of},
    problem::Findings,
    schema::{RawDiscover, RawDiscovered, RawKubernetes},
};

/// The clusters that could be read.
pub(super) fn clusters(
    raw: &List<Named<RawKubernetes>>,
    findings: &mut Findings,
) -> Vec<KubernetesCluster> {
    let clusters = raw.elements.iter().filter_map(|named| {
        let at = named.value.kubeconfig.as_ref()?;
        Some(KubernetesCluster {
            name: named.name.clone(),
            kubeconfig: names::file_path(at, "/etc/lb/hub.kubeconfig", findings)?,
        })
    });
    clusters.collect()
}

/// What a pool wants. A port of a service is wanted once.
pub(super) fn discover(
    raw: &[At<RawDiscovered>],
    clusters: &Names<'_>,
    findings: &mut Findings,
) -> Vec<Discover> {
    let mut wanted: Vec<Discover> = Vec::new();
    for At { place, value } in raw {
        let of = value.discover.as_ref();
        let known = of.and_then(|at| at.value.cluster.as_ref());
        let is_known = known.is_some_and(|cluster| clusters.find(cluster, findings).is_some());
        let Some(of) = of
            .and_then(|at| service_port(&at.value))
            .filter(|_| is_known)
        else {
            continue;
        };
        if wanted.iter().any(|one| one.of == of) {
            findings.add(place, format!("{of} is already listed"));
            continue;
        }
        wanted.push(Discover {
            of,
            weight: value_of(&value.weight),
            backup: value_of(&value.backup),
        });
    }
    wanted
}

fn service_port(raw: &RawDiscover) -> Option<ServicePort> {
    Some(ServicePort {
        cluster: raw.cluster.as_ref()?.value.clone(),
        service: raw.service.as_ref()?.value.clone(),
        port: raw.port.as_ref()?.value.clone(),
    })
}
