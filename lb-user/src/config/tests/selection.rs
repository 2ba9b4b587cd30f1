//! How the parts of a cluster say how their backends are chosen.

use super::*;

/// Each part has its own, and both pools of the routes and of the applications theirs.
#[test]
fn the_parts_of_a_cluster_say_how_their_backends_are_chosen() {
    let config = clusters::accepted(&[
        (
            11,
            "api: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 30918, balance: least-connections, max_connections: 5 },",
        ),
        (
            15,
            "routes: { https: 32488, http: 32460, balance: round-robin },",
        ),
        (
            16,
            "apps: { vip: 192.168.203.112, nodes: workers, https: 30190, http: 30282, balance: source, source_timeout: 1h } }",
        ),
    ]);
    let found = |name: &str| {
        let pool = config.pool(name).unwrap();
        (pool.balance, pool.max_connections)
    };
    assert_eq!(found("a-api"), (Algorithm::LeastConnections, Some(5)));
    assert_eq!(found("a-konnectivity"), (Algorithm::Maglev, None));
    for name in ["a-routes-https", "a-routes-http", "a-routes-https-2"] {
        assert_eq!(found(name), (Algorithm::RoundRobin, None));
    }
    for name in ["a-apps-https", "a-apps-http"] {
        assert_eq!(found(name), (Algorithm::Source, None));
        assert_eq!(config.pool(name).unwrap().source_timeout_seconds(), 3600);
    }
}

#[test]
fn what_is_published_as_route_has_the_backends_of_its_routes() {
    let words = "a component with publish: Route has the backends of routes; leave this key out";
    for (key, value) in [
        ("balance", "source"),
        ("source_timeout", "1h"),
        ("max_connections", "9"),
    ] {
        let oauth = format!("oauth: {{ publish: Route, vip: 192.168.203.111, {key}: {value} }},");
        clusters::refused(&[(12, &oauth)], &format!("clusters.a.oauth.{key}"), words);
    }
}
