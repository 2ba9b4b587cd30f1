//! HostedClusters as an API has them, and the configuration that they become.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{
    config::Target,
    sources::kubernetes::{KeptClusters, KnownClusters as _},
};

const HOSTED: &str = include_str!("tests/hostedcluster.yaml");
const GOLDEN: &str = include_str!("tests/expanded.yaml");

/// A file that takes hosted clusters, with more of it behind the ranges of VIPs, and at its end.
fn file(vips: &str, more: &str) -> Config {
    let text = format!(
        "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }}
  a: {{ role: tenant, interface: eth0, prefixes: [192.168.203.0/24], snat: [192.168.203.9] }}
kubernetes:
  hub:
    kubeconfig: /etc/lb/hub.kubeconfig
    hosted_clusters:
      - name: clusters/*
        network: a
        hub_network: mgmt
        workers: [192.168.203.96/28]
        shard: openshift-ingress/router-nodeport-shard
        proxy_protocol: v2
        vips: {vips}
{more}"
    );
    config::parse("lb.yaml", &text).unwrap()
}

/// The object of the file, changed.
fn hosted(change: impl FnOnce(&mut Value)) -> Value {
    let mut object: Value = serde_saphyr::from_str(HOSTED).unwrap();
    change(&mut object);
    object
}

/// One with this name and age, whose parts are published in these ways.
fn other(name: &str, second: u8, ways: &[(&str, Value)]) -> Value {
    let services = ways
        .iter()
        .map(|(service, way)| json!({ "service": service, "servicePublishingStrategy": way }));
    let services: Vec<Value> = services.collect();
    hosted(|object| {
        object["metadata"]["name"] = name.into();
        object["metadata"]["creationTimestamp"] = format!("2026-05-04T09:12:{second:02}Z").into();
        object["spec"]["services"] = services.into();
    })
}

fn balanced() -> (&'static str, Value) {
    ("APIServer", json!({ "type": "LoadBalancer" }))
}

fn with(config: &Config, before: &Config, objects: &[Value], serves: bool) -> WithHosted {
    let known = KeptClusters::of_objects("hub", objects);
    let vips = VipChoices::default();
    with_hosted(
        config,
        before,
        &vips,
        |hub| known.hosted(hub),
        |_, _| serves,
    )
}

/// The VIP of each.
fn vips(config: &Config) -> BTreeMap<String, String> {
    let all = config.hosted.iter();
    all.map(|one| (one.name.name.clone(), one.vip.to_string()))
        .collect()
}

fn listen(config: &Config) -> Vec<String> {
    let services = config.services.iter();
    let services = services.map(|one| format!("{} {}", one.name, one.listen[0]));
    services.collect()
}

/// D7: one HostedCluster, and the whole configuration that it becomes.
#[test]
fn a_hosted_cluster_becomes_the_pools_and_services_of_the_golden_file() {
    let config = file("[192.168.203.120-192.168.203.129]", "");
    let all = with(&config, &config, &[hosted(|_| ())], true);
    assert_eq!(
        (all.refused.len(), all.held.len()),
        (0, 0),
        "{:?}",
        all.refused
    );
    let text = all.config.expanded().unwrap();
    assert_eq!(text, GOLDEN);
    let [one] = &all.config.hosted[..] else {
        panic!("one");
    };
    let services: Vec<String> = one.load_balancers.iter().map(ToString::to_string).collect();
    assert_eq!(services, ["clusters-tenant-a/kube-apiserver"]);
    // The file without it is the file.
    assert_eq!(all.config.without_hosted(), config);
    // The same again is no change.
    assert_eq!(
        with(&config, &all.config, &[hosted(|_| ())], true).config,
        all.config
    );
}

#[test]
fn each_way_of_publishing_is_one_of_clusters() {
    let config = file("[192.168.203.120]", "");
    let ways = [
        (
            "APIServer",
            json!({ "type": "NodePort", "nodePort": { "address": "x", "port": 30001 } }),
        ),
        ("OAuthServer", json!({ "type": "NodePort" })),
        ("Konnectivity", json!({ "type": "LoadBalancer" })),
        ("Ignition", json!({ "type": "NodePort" })),
    ];
    let oauth = json!({
        "kind": "Service",
        "metadata": { "name": "oauth-openshift", "namespace": "clusters-c-d" },
        "spec": { "ports": [{ "port": 6443, "nodePort": 30002 }] },
    });
    let object = other("c.d", 1, &ways);
    let all = with(&config, &config, &[object, oauth], true);
    // Ignition waits for its Service, which gives it a port.
    assert_eq!(all.refused, BTreeSet::new());
    assert_eq!(
        listen(&all.config),
        [
            "c-d-api 192.168.203.120:30001/tcp",
            "c-d-oauth 192.168.203.120:30002/tcp",
            "c-d-konnectivity 192.168.203.120:8091/tcp",
        ]
    );
    let rules = &all.config.services[2].rules;
    assert_eq!(rules[0].prefix.to_string(), "192.168.203.96/28");
}

/// Without a name in the HostedCluster that of its Route counts, and without that it is not published: its clients would
/// reach all of the shard.
#[test]
fn a_route_without_a_hostname_has_that_of_its_object() {
    let config = file("[192.168.203.120]", "");
    let route = |name: &str, host: &str| {
        json!({
            "kind": "Route",
            "metadata": { "name": name, "namespace": "clusters-c" },
            "spec": { "host": host },
        })
    };
    let ways = ["OAuthServer", "Konnectivity", "Ignition"];
    let object = other("c", 1, &ways.map(|way| (way, json!({ "type": "Route" }))));
    let objects = [
        object,
        route("oauth", "oauth-clusters-c.apps.example.com"),
        route("konnectivity-server", ""),
    ];
    let all = with(&config, &config, &objects, true);
    assert_eq!((all.refused.len(), all.config.services.len()), (0, 2));
    let Target::Sni(sni) = &all.config.services[0].target else {
        panic!("by SNI");
    };
    let [one] = &sni.routes[..] else {
        panic!("one");
    };
    assert_eq!(one.names, ["oauth-clusters-c.apps.example.com"]);
    // It is away for a moment.
    let waits = with(&all.config, &all.config, &objects[..1], false);
    assert_eq!(waits.config, all.config);
    assert!(
        with(&config, &config, &objects[..1], true)
            .config
            .services
            .is_empty()
    );
}

#[test]
fn what_is_not_known_is_refused_alone() {
    let config = file("[192.168.203.120-192.168.203.129]", "");
    let ways = [
        (
            "APIServer",
            json!({ "type": "Route", "route": { "hostname": "api.x" } }),
        ),
        ("OAuthServer", json!({ "type": "SharedIngress" })),
        ("Konnectivity", json!({ "type": "LoadBalancer" })),
    ];
    let nothing = hosted(|object| {
        object["metadata"]["name"] = "nothing".into();
        object["spec"] = json!({ "publishing": { "type": "SharedIngress" } });
    });
    let bad = other(
        "bad",
        2,
        &[(
            "OAuthServer",
            json!({ "type": "Route", "route": { "hostname": "_" } }),
        )],
    );
    let objects = [
        other("some", 1, &ways),
        nothing,
        bad,
        other("good", 3, &[balanced()]),
    ];
    let all = with(&config, &config, &objects, true);
    assert_eq!(
        all.refused.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "HostedCluster clusters/bad of hub: clusters.bad.oauth.hostname: \"_\" is not a DNS name; expected one such as tenant-a.example.com, in lower case",
            "HostedCluster clusters/nothing of hub: it has no spec.services",
            "HostedCluster clusters/some of hub: APIServer: it is published as Route, but kubelets send no name to route by",
            "HostedCluster clusters/some of hub: OAuthServer: SharedIngress is no way of publishing that is known",
        ]
    );
    assert_eq!(
        listen(&all.config),
        [
            "some-konnectivity 192.168.203.120:8091/tcp",
            "good-api 192.168.203.122:6443/tcp"
        ]
    );
}

#[test]
fn what_is_claimed_twice_is_the_files_and_then_the_older_ones() {
    let taken = "pools: { p: { network: mgmt, backends: [] } }
services: { s: { network: a, listen: [\"192.168.203.120:6443/tcp\"], pool: p } }
";
    let config = file("[192.168.203.120]", taken);
    let all = with(&config, &config, &[other("old", 1, &[balanced()])], true);
    assert_eq!(listen(&all.config), ["s 192.168.203.120:6443/tcp"]);
    let words = all.refused.first().unwrap();
    assert!(
        words.starts_with(
            "HostedCluster clusters/old of hub: clusters.old.api.vip: 192.168.203.120:6443/tcp is already used by service s in the expanded file:"
        ),
        "{words}"
    );
    // A range goes around it.
    let config = file("[192.168.203.120-192.168.203.121]", taken);
    let objects = [
        other("new", 2, &[balanced()]),
        other("old", 1, &[balanced()]),
    ];
    let all = with(&config, &config, &objects, true);
    assert_eq!(
        vips(&all.config),
        [("old".to_owned(), "192.168.203.121".to_owned())].into()
    );
    assert_eq!(
        all.refused.first().unwrap(),
        "HostedCluster clusters/new of hub: no VIP is left of 192.168.203.120-192.168.203.121"
    );
    // One name in two namespaces is one entry, and one port of a VIP one service.
    let twice = [
        other(
            "one",
            1,
            &[
                balanced(),
                ("OAuthServer", json!({ "type": "LoadBalancer" })),
            ],
        ),
        other(
            "two",
            2,
            &[(
                "OAuthServer",
                json!({ "type": "Route", "route": { "hostname": "o.x" } }),
            )],
        ),
    ];
    let config = file("[192.168.203.120, 192.168.203.122]", "");
    let all = with(&config, &config, &twice, true);
    assert_eq!(vips(&all.config).len(), 2, "{:?}", all.refused);
}

#[test]
fn one_that_is_gone_stays_as_long_as_it_serves_and_one_that_is_unknown_stays() {
    let config = file("[192.168.203.120-192.168.203.129]", "");
    let objects = [
        other("old", 1, &[balanced()]),
        other("new", 2, &[balanced()]),
    ];
    let mut before = with(&config, &config, &objects, true).config;
    let backend = config::parse(
        "f",
        "{ version: 1, networks: { m: { role: mgmt, interface: e, prefixes: [10.0.0.0/8], snat: [10.9.9.9] } }, \
         pools: { p: { network: m, backends: [\"10.0.0.1:1\"] } } }",
    );
    let backend = backend.unwrap().pools[0].backends[0].clone();
    for pool in &mut before.pools {
        pool.backends.push(backend.clone());
    }
    let all = with(&before, &before, &objects[..1], true);
    assert_eq!(all.config.hosted, before.hosted);
    assert_eq!(
        all.held.first().unwrap(),
        "HostedCluster clusters/new of hub: it is gone there; it stays until its checks fail"
    );
    let all = with(&before, &before, &objects[..1], false);
    assert_eq!((vips(&all.config).len(), all.held.len()), (1, 0));
    let unknown = with_hosted(
        &before,
        &before,
        &VipChoices::default(),
        |_| None,
        |_, _| false,
    );
    assert_eq!(unknown.config, before);
    // It is wanted no more.
    let none = file("[192.168.203.120]", "").without_hosted();
    let mut none = none.clone();
    none.kubernetes[0].hosted_clusters.clear();
    let all = with(&none, &before, &objects, true);
    assert_eq!((all.config.hosted.len(), all.config.services.len()), (0, 0));
}

#[test]
fn the_defaults_of_clusters_hold_for_hosted_ones() {
    let defaults = "nodes: { hub: { network: mgmt, addresses: [10.32.96.105] } }
defaults:
  service: { max_flows: 7 }
  cluster: { nodes: hub, idle_timeout: 5h, api: { health: { tcp: {}, interval: 9s }, drain_timeout: 3m } }
";
    let config = file("[192.168.203.120]", defaults);
    let all = with(&config, &config, &[hosted(|_| ())], true);
    assert_eq!(all.refused, BTreeSet::new());
    let seconds = |seconds| Some(std::time::Duration::from_secs(seconds));
    assert_eq!(all.config.services[0].idle_timeout, seconds(5 * 3600));
    let api = &all.config.pools[0];
    assert_eq!(api.drain_timeout, seconds(180));
    assert_eq!(api.health.as_ref().unwrap().interval.as_secs(), 9);
}

/// What was good stays as it was when something else takes its place that cannot be.
#[test]
fn one_that_becomes_wrong_stays_as_it_was() {
    let config = file("[192.168.203.120]", "");
    let route = |hostname: &str| json!({ "type": "Route", "route": { "hostname": hostname } });
    let of = |hostname: &str, api: &str| {
        let api = ("APIServer", json!({ "type": api }));
        other("c", 1, &[api, ("OAuthServer", route(hostname))])
    };
    let good = with(
        &config,
        &config,
        &[of("oauth.c.example.com", "LoadBalancer")],
        true,
    )
    .config;
    assert_eq!(good.services.len(), 3);
    let wrong = with(&good, &good, &[of("_", "LoadBalancer")], true);
    assert_eq!((&wrong.config, wrong.refused.len()), (&good, 1));
    let unknown = with(&good, &good, &[of("oauth.c.example.com", "Shared")], true);
    assert_eq!(listen(&unknown.config), listen(&good));
    assert_eq!(unknown.refused.len(), 1);
    let mut nothing = of("oauth.c.example.com", "LoadBalancer");
    nothing["spec"] = json!({});
    let nothing = with(&good, &good, &[nothing], true);
    assert_eq!(
        (listen(&nothing.config), nothing.refused.len()),
        (listen(&good), 1)
    );
    // Its place is taken by the file: that comes first.
    let taken = "pools: { p: { network: mgmt, backends: [] } }
services: { s: { network: a, listen: [\"192.168.203.120:6443/tcp\"], pool: p } }
";
    let taken = file("[192.168.203.120]", taken);
    let all = with(
        &taken,
        &good,
        &[of("oauth.c.example.com", "LoadBalancer")],
        true,
    );
    assert_eq!(listen(&all.config), ["s 192.168.203.120:6443/tcp"]);
}

/// Routes need the shard of the file; without it that HostedCluster is refused alone.
#[test]
fn routes_without_a_shard_are_refused_alone() {
    let mut config = file("[192.168.203.120-192.168.203.129]", "");
    config.kubernetes[0].hosted_clusters[0].shard = None;
    let objects = [hosted(|_| ()), other("good", 40, &[balanced()])];
    let all = with(&config, &config, &objects, true);
    assert_eq!(
        all.refused.first().unwrap(),
        "HostedCluster clusters/tenant-a of hub: clusters.tenant-a.routes: missing; oauth has publish: Route, which needs them"
    );
    assert_eq!(listen(&all.config), ["good-api 192.168.203.121:6443/tcp"]);
}
