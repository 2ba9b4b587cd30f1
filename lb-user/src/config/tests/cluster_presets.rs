//! The ports and the clients of each part, and parts whose backends are found by the API of the hub.

use super::*;

/// A file with a cluster that has these keys.
fn file(cluster: &str) -> String {
    format!(
        "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }}
  a: {{ role: tenant, interface: eth0, prefixes: [192.168.203.0/24], snat: [192.168.203.9] }}
nodes:
  hub: {{ network: mgmt, addresses: [10.32.96.105] }}
kubernetes:
  hub: {{ kubeconfig: /etc/lb/hub.kubeconfig }}
clusters:
  c:
    network: a
{cluster}"
    )
}

fn accepted(cluster: &str) -> Config {
    match parse("lb.yaml", &file(cluster)) {
        Ok(config) => config,
        Err(problems) => panic!("{cluster}:\n{problems}"),
    }
}

/// The problems, as `LINE KEY: WORDS` with the first line of the cluster's keys as 0.
fn refused(cluster: &str) -> Vec<String> {
    let found = problems(&file(cluster)).into_iter();
    let found = found.map(|(line, key, words)| {
        let line = line
            .checked_sub(12)
            .map_or(-1, |line| i64::try_from(line).unwrap());
        format!("{line} {key}: {words}")
    });
    found.collect()
}

/// The clients of a service that are written for it.
fn allowed(service: &Service) -> String {
    let rules = service.rules.iter().filter(|rule| rule.allow);
    let prefixes: Vec<String> = rules.map(|rule| rule.prefix.to_string()).collect();
    prefixes.join(" ")
}

const ALL: &str = "    nodes: hub
    workers: [192.168.203.96/28]
    api: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30001 }
    oauth: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30002 }
    konnectivity: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30003 }
    ignition: { publish: LoadBalancer, vip: 192.168.203.111, node_port: 30004 }
    ignition_proxy: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30005 }
    ignition_server: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30006 }
    machine_config: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30007 }
    dns: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30008 }
";

#[test]
fn each_part_has_its_port_and_its_clients() {
    let config = accepted(ALL);
    let parts = config.services.iter().map(|service| {
        let listen: Vec<String> = service.listen.iter().map(ToString::to_string).collect();
        format!(
            "{} {} <{}>",
            service.name,
            listen.join(" "),
            allowed(service)
        )
    });
    assert_eq!(
        parts.collect::<Vec<_>>(),
        [
            "c-api 192.168.203.110:6443/tcp <>",
            "c-oauth 192.168.203.110:443/tcp <>",
            "c-konnectivity 192.168.203.110:8091/tcp <192.168.203.96/28>",
            "c-ignition 192.168.203.111:443/tcp <192.168.203.96/28>",
            "c-ignition-proxy 192.168.203.110:8443/tcp <192.168.203.96/28>",
            "c-ignition-srv 192.168.203.110:9090/tcp <192.168.203.96/28>",
            "c-machine-config 192.168.203.110:22623/tcp <192.168.203.96/28>",
            "c-dns 192.168.203.110:53/tcp 192.168.203.110:53/udp <>",
        ]
    );
    // Its own list counts, and without `workers` that of the cluster.
    let own = ALL.replace("30003 }", "30003, allow: [192.168.203.0/25] }");
    assert_eq!(allowed(&accepted(&own).services[2]), "192.168.203.0/25");
    let all = "    nodes: hub
    allow: [192.168.203.128/25]
    konnectivity: { publish: NodePort, vip: 192.168.203.110, node_port: 30003 }
";
    assert_eq!(allowed(&accepted(all).services[0]), "192.168.203.128/25");
}

#[test]
fn the_machine_config_server_is_for_known_workers_alone() {
    let without = ALL.replace("    workers: [192.168.203.96/28]\n", "");
    assert_eq!(
        refused(&without),
        [
            "-1 clusters.c.workers: missing; machine-config is for worker nodes alone, and none are known"
        ]
    );
    let own = without.replace("30007 }", "30007, allow: [192.168.203.101/32] }");
    assert_eq!(allowed(&accepted(&own).services[6]), "192.168.203.101/32");
    let routed = ALL.replace(
        "machine_config: { publish: LoadBalancer",
        "machine_config: { publish: Route",
    );
    assert_eq!(
        refused(&routed),
        [
            "8 clusters.c.machine_config.publish: machine-config is no Route; expected LoadBalancer or NodePort"
        ]
    );
}

const DISCOVERED: &str = "    discover: { cluster: hub, namespace: clusters-c, network: mgmt }
    api: { publish: LoadBalancer, vip: 192.168.203.110, health: { https: { path: /readyz } } }
    oauth: { publish: Route, vip: 192.168.203.111, hostname: oauth.c.example.com }
    konnectivity: { publish: NodePort, vip: 192.168.203.110, node_port: 30191 }
    ignition: { publish: Route, vip: 192.168.203.111, hostname: ignition.c.example.com }
    routes: { service: openshift-ingress/router-nodeport-shard, proxy_protocol: v2 }
";

#[test]
fn parts_without_a_node_port_are_found_at_their_services() {
    let config = accepted(DISCOVERED);
    let pools = config.pools.iter().map(|pool| {
        let of: Vec<String> = pool.discover.iter().map(|one| one.of.to_string()).collect();
        format!("{} {} {}", pool.name, pool.network, of.join(", "))
    });
    let shard = "of service openshift-ingress/router-nodeport-shard of hub";
    assert_eq!(
        pools.collect::<Vec<_>>(),
        [
            "c-api mgmt port 6443 of service clusters-c/kube-apiserver of hub".to_owned(),
            "c-konnectivity mgmt port 8091 of service clusters-c/konnectivity-server of hub"
                .to_owned(),
            format!("c-routes-https mgmt port https {shard}"),
            format!("c-routes-http mgmt port http {shard}"),
        ]
    );
    let listen = config.services.iter().map(|one| one.listen[0].to_string());
    assert_eq!(
        listen.collect::<Vec<_>>(),
        [
            "192.168.203.110:6443/tcp",
            "192.168.203.110:30191/tcp",
            "192.168.203.111:443/tcp",
            "192.168.203.111:80/tcp",
        ]
    );
    assert!(config.pools[0].health.is_some() && config.pools[2].proxy_protocol.is_some());
    // What is written in the file is not asked for.
    let literal = DISCOVERED.replace(
        "vip: 192.168.203.110, health",
        "vip: 192.168.203.110, node_port: 30001, health",
    );
    let literal = format!("    nodes: hub\n{literal}");
    let config = accepted(&literal);
    let api = &config.pools[0];
    let backend = (api.backends[0].name.as_str(), api.backends[0].port);
    assert_eq!(backend, ("10.32.96.105", 30_001));
    assert!(api.discover.is_empty());
}

#[test]
fn what_says_nowhere_where_its_backends_are_is_refused() {
    for (from, to, wanted) in [
        (
            "cluster: hub,",
            "cluster: hup,",
            "0 clusters.c.discover.cluster: no cluster of Kubernetes is called \"hup\"; did you mean \"hub\"?",
        ),
        (
            "network: mgmt }",
            "network: mgnt }",
            "0 clusters.c.discover.network: no network is called \"mgnt\"; did you mean \"mgmt\"?",
        ),
        (
            "clusters-c,",
            "Clusters,",
            "0 clusters.c.discover.namespace: \"Clusters\" is not a namespace; expected one such as clusters-tenant-a",
        ),
        (
            ", node_port: 30191",
            "",
            "3 clusters.c.konnectivity.node_port: missing; only a component with publish: Route has no node_port of its own",
        ),
        (
            "shard, proxy",
            "shard, https: 30001, proxy",
            "5 clusters.c.routes.https: `service` has the ports; leave this key out",
        ),
        (
            "service: openshift-ingress/router-nodeport-shard, ",
            "",
            "5 clusters.c.routes.https: missing; expected the NodePort of the shard, or `service`",
        ),
        (
            "    api:",
            "    dns: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30053 }\n    api:",
            "-1 clusters.c.nodes: missing; the backends of dns are the nodes of a group",
        ),
    ] {
        let changed = DISCOVERED.replacen(from, to, 1);
        assert_ne!(changed, DISCOVERED, "{from}");
        let found = refused(&changed);
        assert!(found.iter().any(|one| one == wanted), "{from}: {found:#?}");
    }
    let without = DISCOVERED.replacen(
        "    discover: { cluster: hub, namespace: clusters-c, network: mgmt }\n",
        "    nodes: hub\n",
        1,
    );
    assert_eq!(
        refused(&without),
        [
            "1 clusters.c.api.node_port: missing; only a component with publish: Route has no node_port of its own",
            "5 clusters.c.routes.service: the cluster has no `discover`, which says whose Service it is",
        ]
    );
}
