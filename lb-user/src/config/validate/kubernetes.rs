//! Clusters of Kubernetes, and what pools want of them.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::config::{
    discover::{Credentials, Discover, KubernetesCluster, LoadBalancer, ServicePort},
    hosted::{HostedClusters, VipRange},
    list::{List, Named},
    model::{Network, any},
    names::{self, Names},
    place::{At, quote, value_of},
    problem::Findings,
    schema::{
        AnyOrPrefixes, RawDiscover, RawDiscovered, RawHosted, RawKubernetes, RawLoadBalancer,
        RawService,
    },
};

/// How problems call an entry.
pub(super) const CLUSTER: &str = "cluster of Kubernetes";

/// The clusters that could be read.
pub(super) fn clusters(
    raw: &List<Named<RawKubernetes>>,
    services: &List<Named<RawService>>,
    networks: &[Network],
    findings: &mut Findings,
) -> Vec<KubernetesCluster> {
    let names = Names::new(CLUSTER, raw);
    let clusters = raw.elements.iter().filter_map(|named| {
        let through = named.value.through.as_ref();
        let through = through.and_then(|at| through_other(at, raw, &names, findings));
        Some(KubernetesCluster {
            name: named.name.clone(),
            through,
            credentials: credentials(&named.value, raw, findings)?,
            secrets: value_of(&named.value.secrets),
            load_balancers: load_balancers(&named.value.load_balancers, services, findings),
            hosted_clusters: hosted_clusters(&named.value.hosted_clusters, networks, findings),
        })
    });
    clusters.collect()
}

/// A file, or a Secret of a cluster that lets its Secrets be read.
fn credentials(
    cluster: &RawKubernetes,
    raw: &List<Named<RawKubernetes>>,
    findings: &mut Findings,
) -> Option<Credentials> {
    let Some(secret) = &cluster.secret else {
        let file = cluster.kubeconfig.as_ref()?;
        return names::file_path(file, "/etc/lb/hub.kubeconfig", findings).map(Credentials::File);
    };
    if let Some(file) = &cluster.kubeconfig {
        findings.add(&file.place, "there is `secret`, too; expected one of them");
    }
    let Some(through) = &cluster.through else {
        let words = "expected with `through`, whose cluster has the Secret";
        findings.add(&secret.place, words);
        return None;
    };
    let hub = through.value.cluster.as_ref()?;
    let mut all = raw.elements.iter();
    let known = all.find(|named| named.name == hub.value);
    if known.is_some_and(|hub| !value_of(&hub.value.secrets)) {
        let words = format!(
            "cluster {} lets no Secret be read; expected `secrets: true` there",
            hub.value
        );
        findings.add(&secret.place, words);
    }
    Some(Credentials::Secret(secret.value.clone()))
}

/// Through which Service a cluster is reached: one of a cluster that is reached itself.
fn through_other(
    at: &At<RawDiscover>,
    raw: &List<Named<RawKubernetes>>,
    names: &Names<'_>,
    findings: &mut Findings,
) -> Option<ServicePort> {
    let cluster = at.value.cluster.as_ref()?;
    let other = &raw.elements.get(names.find(cluster, findings)?)?;
    if other.value.through.is_some() {
        let words = format!(
            "cluster {} has `through` itself; expected one that is reached at the server of its kubeconfig",
            other.name
        );
        findings.add(&cluster.place, words);
    }
    service_port(&at.value)
}

fn hosted_clusters(
    raw: &List<At<RawHosted>>,
    networks: &[Network],
    findings: &mut Findings,
) -> Vec<HostedClusters> {
    let all = raw.elements.iter();
    let all = all.filter_map(|At { value, .. }| {
        let network = known_network(value.network.as_ref(), networks, findings);
        let hub_network = known_network(value.hub_network.as_ref(), networks, findings);
        let vips = value.vips.elements.iter();
        if let Some(network) = network {
            vips.clone()
                .for_each(|at| check_range(at, network, findings));
        }
        Some(HostedClusters {
            of: value.name.as_ref()?.value.clone(),
            network: network?.name.clone(),
            hub_network: hub_network?.name.clone(),
            vips: vips.map(|at| at.value).collect(),
            shard: value.shard.as_ref().map(|at| at.value.clone()),
            proxy_protocol: value_of(&value.proxy_protocol),
            allow: written(value.allow.as_ref()),
            workers: written(value.workers.as_ref()),
        })
    });
    all.collect()
}

fn check_range(at: &At<VipRange>, network: &Network, findings: &mut Findings) {
    let At {
        place,
        value: range,
    } = at;
    let ends = [range.first, range.last];
    let mut prefixes = network.prefixes.iter();
    if !prefixes.any(|prefix| ends.iter().all(|end| prefix.contains(end))) {
        let words = format!("{range} is in no prefix of network {}", network.name);
        findings.add(place, words);
    }
}

fn known_network<'n>(
    at: Option<&At<String>>,
    networks: &'n [Network],
    findings: &mut Findings,
) -> Option<&'n Network> {
    let At { place, value } = at?;
    let found = networks.iter().find(|network| network.name == *value);
    if found.is_none() {
        findings.add(place, format!("no network is called {}", quote(value)));
    }
    found
}

/// The prefixes that are written; `any` is those of all lengths.
fn written(at: Option<&At<AnyOrPrefixes>>) -> Option<Vec<IpNet>> {
    Some(match &at?.value {
        AnyOrPrefixes::Any => any().to_vec(),
        AnyOrPrefixes::Prefixes(list) => list.elements.iter().map(|at| at.value).collect(),
    })
}

fn load_balancers(
    raw: &List<At<RawLoadBalancer>>,
    services: &List<Named<RawService>>,
    findings: &mut Findings,
) -> Vec<LoadBalancer> {
    let mut all: Vec<LoadBalancer> = Vec::new();
    for At { place, value } in &raw.elements {
        let (Some(service), Some(vip)) = (&value.service, &value.vip) else {
            continue;
        };
        let one = LoadBalancer {
            service: service.value.clone(),
            vip: vip.value,
        };
        if !may_be_vip(one.vip, services) {
            let words = format!(
                "no service listens at {}; expected a VIP of `services`",
                one.vip
            );
            findings.add(&vip.place, words);
        }
        if all.contains(&one) {
            let LoadBalancer { service, vip } = &one;
            findings.add(
                place,
                format!("{vip} for service {service} is already listed"),
            );
            continue;
        }
        all.push(one);
    }
    all
}

/// Whether a service listens at an address, as far as all could be read.
fn may_be_vip(address: IpAddr, services: &List<Named<RawService>>) -> bool {
    let mut all = services.elements.iter().map(|named| &named.value.listen);
    let mut listens = all.clone().flat_map(|listen| &listen.elements);
    listens.any(|at| at.value.address == address)
        || !services.whole
        || all.any(|listen| !listen.whole)
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
