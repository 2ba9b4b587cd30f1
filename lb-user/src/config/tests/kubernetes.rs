//! Clusters of Kubernetes, what pools want of them, and which of their Services get VIPs.

use super::*;

const HUB: &str = "kubernetes: { hub: { kubeconfig: /etc/lb/hub.kubeconfig } }";

/// The valid file with these backends of the pool, in line 8, and the cluster in line 12.
fn wanting(backends: &str) -> [(usize, String); 2] {
    [
        (8, format!("    backends: {backends}")),
        (12, HUB.to_owned()),
    ]
}

fn refused_wish(backends: &str, key: &str, piece: &str) {
    let [(line, backends), (other, hub)] = wanting(backends);
    refused(&[(line, &backends), (other, &hub)], key, piece);
}

#[test]
fn a_pool_wants_a_port_of_a_service() {
    let one = "{ discover: { cluster: hub, service: clusters-a/kas, port: https } }";
    let [(line, backends), (other, hub)] = wanting(one);
    let config = accepted(&[(line, &backends), (other, &hub)]);
    let [wanted] = &config.pool("kas-a").unwrap().discover[..] else {
        panic!("one");
    };
    assert_eq!((wanted.weight, wanted.backup), (1, false));
    assert_eq!(
        wanted.of.to_string(),
        "port https of service clusters-a/kas of hub"
    );
    let both = format!("[{one}, \"10.32.96.105:30918\", {one}]");
    refused_wish(&both, "pools.kas-a.backends[2]", "is already listed");
}

#[test]
fn what_is_no_service_and_no_cluster_is_refused() {
    let key = |key: &str| format!("pools.kas-a.backends.discover.{key}");
    for (name, service, port, wrong, piece) in [
        ("hub", "kas", "https", "service", "expected NAMESPACE/NAME"),
        (
            "hub",
            "a/Kas",
            "https",
            "service",
            "expected NAMESPACE/NAME",
        ),
        (
            "hub",
            "a/b/c",
            "https",
            "service",
            "expected NAMESPACE/NAME",
        ),
        ("hub", "a/kas", "0", "port", "expected 1 to 65535"),
        ("hub", "a/kas", "65536", "port", "expected 1 to 65535"),
        ("hub", "a/kas", "Https", "port", "is not the name of a port"),
        (
            "hup",
            "a/kas",
            "https",
            "cluster",
            "no cluster of Kubernetes is called \"hup\"; did you mean \"hub\"?",
        ),
    ] {
        let wish =
            format!("{{ discover: {{ cluster: {name}, service: {service}, port: {port} }} }}");
        refused_wish(&wish, &key(wrong), piece);
    }
}

/// The valid file with a cluster, and these Services that get VIPs, in line 12.
fn with_load_balancers(list: &str) -> String {
    HUB.replace(" } }", &format!(", load_balancers: {list} }} }}"))
}

#[test]
fn services_get_vips_in_the_order_of_the_file() {
    let both =
        "[{ service: a/kas, vip: 192.168.203.110 }, { service: b/kas, vip: 192.168.203.110 }]";
    let config = accepted(&[(12, &with_load_balancers(both))]);
    let [hub] = &config.kubernetes[..] else {
        panic!("one");
    };
    let all = hub.load_balancers.iter();
    let all: Vec<String> = all
        .map(|one| format!("{} {}", one.service, one.vip))
        .collect();
    assert_eq!(all, ["a/kas 192.168.203.110", "b/kas 192.168.203.110"]);
}

#[test]
fn what_gets_no_vip_is_refused() {
    let key = "kubernetes.hub.load_balancers[0]";
    for (one, inside, piece) in [
        (
            "{ service: a/kas, vip: 192.168.203.109 }",
            ".vip",
            "no service listens at 192.168.203.109; expected a VIP of `services`",
        ),
        (
            "{ service: kas, vip: 192.168.203.110 }",
            ".service",
            "expected NAMESPACE/NAME",
        ),
        ("{ service: a/kas }", ".vip", "missing"),
    ] {
        let list = with_load_balancers(&format!("[{one}]"));
        refused(&[(12, &list)], &format!("{key}{inside}"), piece);
    }
    let one = "{ service: a/kas, vip: 192.168.203.110 }";
    let twice = with_load_balancers(&format!("[{one}, {one}]"));
    let words = "192.168.203.110 for service a/kas is already listed";
    refused(&[(12, &twice)], "kubernetes.hub.load_balancers[1]", words);
    refused(
        &[(12, &with_load_balancers("[]"))],
        "kubernetes.hub.load_balancers",
        "",
    );
}

#[test]
fn a_hosted_cluster_is_reached_through_its_hub() {
    let with = |of_hub: &str, cluster: &str| {
        format!(
            "kubernetes: {{ hub: {{ kubeconfig: /etc/lb/h{of_hub} }}, a: {{ kubeconfig: /etc/lb/a, through: {{ cluster: {cluster}, \
             service: a/kas, port: client }} }} }}"
        )
    };
    let config = accepted(&[(12, &with("", "hub"))]);
    let through = config.kubernetes[1].through.as_ref().unwrap();
    assert_eq!(through.to_string(), "port client of service a/kas of hub");
    let key = "kubernetes.a.through.cluster";
    refused(
        &[(12, &with("", "a"))],
        key,
        "cluster a has `through` itself",
    );
    refused(&[(12, &with("", "hup"))], key, "did you mean \"hub\"?");
    let of_hub = ", through: { cluster: hub, service: a/kas, port: 1 }";
    let problems = problems(&file(&[(12, &with(of_hub, "hub"))]));
    let keys: Vec<&str> = problems.iter().map(|(_, key, _)| key.as_str()).collect();
    assert_eq!(keys, ["kubernetes.hub.through.cluster", key]);
}

/// What is expanded is read as the same.
#[test]
fn what_is_expanded_means_the_same() {
    let one = "[{ service: a/kas, vip: 192.168.203.110 }]";
    let wish = "    backends: { discover: { cluster: hub, service: a/kas, port: 6443 }, weight: 3, backup: true }";
    let config = accepted(&[(8, wish), (12, &with_load_balancers(one))]);
    let text = expanded::text(&config, &Origins::default()).unwrap();
    assert_eq!(parse("lb.yaml", &text).unwrap(), config, "{text}");
}

/// A hub with these keys, and a hosted cluster with those.
fn with_secret(hub: &str, hosted: &str) -> String {
    format!("kubernetes: {{ hub: {{ kubeconfig: /etc/lb/hub{hub} }}, a: {{ {hosted} }} }}")
}

#[test]
fn a_hosted_cluster_is_known_by_a_secret_of_its_hub() {
    let through = "through: { cluster: hub, service: a/kas, port: client }";
    let secret = format!("secret: clusters/a-admin, {through}");
    let config = accepted(&[(12, &with_secret(", secrets: true", &secret))]);
    let [hub, hosted] = &config.kubernetes[..] else {
        panic!("two");
    };
    assert!(hub.secrets && !hosted.secrets);
    let name = "clusters/a-admin".to_owned().try_into().unwrap();
    assert_eq!(hosted.credentials, Credentials::Secret(name));
    let text = expanded::text(&config, &Origins::default()).unwrap();
    assert_eq!(parse("lb.yaml", &text).unwrap(), config, "{text}");

    let key = "kubernetes.a.secret";
    for (hub, hosted, key, words) in [
        (
            "",
            &*secret,
            key,
            "cluster hub lets no Secret be read; expected `secrets: true` there",
        ),
        (
            ", secrets: true",
            "secret: clusters/a-admin",
            key,
            "expected with `through`",
        ),
        (
            ", secrets: true",
            &format!("secret: a-admin, {through}"),
            key,
            "is not a secret; expected NAMESPACE/NAME",
        ),
        (
            ", secrets: true",
            &format!("{secret}, kubeconfig: /etc/lb/a"),
            "kubernetes.a.kubeconfig",
            "there is `secret`, too; expected one of them",
        ),
        ("", "secrets: true", "kubernetes.a.kubeconfig", "missing"),
    ] {
        refused(&[(12, &with_secret(hub, hosted))], key, words);
    }
}
