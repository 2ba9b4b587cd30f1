//! Routes of clusters: VIPs that are shared by name, and the rules of names.

use std::time::Duration;

use super::{
    clusters::{accepted, refused, refused_at},
    *,
};

/// The cluster with names for what its VIP .111 serves, and none for .113.
fn named() -> [(usize, &'static str); 3] {
    [
        (
            12,
            "oauth: { publish: Route, vip: 192.168.203.111, hostname: oauth.a.example.com },",
        ),
        (
            13,
            "konnectivity: { publish: Route, vip: 192.168.203.111, hostname: konnectivity.a.example.com },",
        ),
        (14, "ignition: { publish: Route, vip: 192.168.203.113 },"),
    ]
}

#[test]
fn a_vip_of_routes_with_hostnames_leads_to_these_alone() {
    let config = accepted(&named());
    let to = |pool: &str| {
        vec![NameRoute {
            no_name: false,
            clusters: Vec::new(),
            proxies: Vec::new(),
            names: ["oauth.a.example.com", "konnectivity.a.example.com"]
                .map(str::to_owned)
                .to_vec(),
            expressions: Vec::new(),
            alpn: Vec::new(),
            from: Vec::new(),
            to: To::Pool(pool.to_owned()),
        }]
    };
    let service = |name: &str| {
        let mut services = config.services.iter();
        let service = services.find(|service| service.name == name).unwrap();
        (service.listen[0].to_string(), service.target.clone())
    };
    let sni = Sni {
        routes: to("a-routes-https"),
        no_name: Otherwise::Alert,
        no_match: Otherwise::Alert,
        ech: Ech::Route,
        hello_timeout: Duration::from_secs(5),
        max_hello: 65_536,
        syn_cookies: SynCookies::Always,
        late_binding: LateBinding::Always,
        proxies: Vec::new(),
    };
    assert_eq!(
        service("a-routes-https"),
        ("192.168.203.111:443/tcp".to_owned(), Target::Sni(sni))
    );
    let http = Http {
        routes: to("a-routes-http"),
        no_match: Otherwise::Alert,
        balance: Balance::Client,
        header_timeout: Duration::from_secs(5),
        body_timeout: Duration::from_secs(60),
        response_timeout: Duration::from_secs(60),
        max_header: 16_384,
    };
    assert_eq!(
        service("a-routes-http"),
        ("192.168.203.111:80/tcp".to_owned(), Target::Http(http))
    );
    for (what, port) in [("https", 443), ("http", 80)] {
        let name = format!("a-routes-{what}-2");
        let listen = format!("192.168.203.113:{port}/tcp");
        assert_eq!(service(&name), (listen, Target::Pool(name)));
    }
    let ports: Vec<_> = ["a-routes-https", "a-routes-http"]
        .map(|pool| config.pool(pool).unwrap().backends[1].port)
        .to_vec();
    assert_eq!(ports, [32488, 32460]);
    let mut https = named().to_vec();
    https.push((15, "routes: { https: 32488 },"));
    assert_eq!(accepted(&https).services.len(), config.services.len() - 2);
}

/// A component of the cluster, published as Route.
/// The API server takes no header.
#[test]
fn a_shard_and_an_ingress_can_ask_for_the_header() {
    let config = accepted(&[(
        15,
        "routes: { https: 32488, http: 32460, proxy_protocol: v2 },",
    )]);
    let of = |name: &str| config.pool(name).unwrap().proxy_protocol;
    for (pool, header) in [
        ("a-api", None),
        ("a-routes-https", Some(ProxyProtocol::V2)),
        ("a-routes-http", Some(ProxyProtocol::V2)),
        ("a-apps-https", None),
    ] {
        assert_eq!(of(pool), header, "{pool}");
    }
}

fn route(name: &str, vip: u8, hostname: &str) -> String {
    format!("{name}: {{ publish: Route, vip: 192.168.203.{vip}{hostname} }},")
}

#[test]
fn hostnames_are_dns_names() {
    let key = "clusters.a.oauth.hostname";
    for (hostname, words) in [
        ("\"*.a.example.com\"", "is not a DNS name"),
        ("a_b.example.com", "is not a DNS name"),
        ("A.example.com", "is not a DNS name"),
        ("a.", "is not a DNS name"),
        ("\"\"", "is not a DNS name"),
        ("[a.example.com]", "expected a text"),
    ] {
        let text = route("oauth", 111, &format!(", hostname: {hostname}"));
        refused(&[(12, &text), named()[1]], key, words);
    }
}

#[test]
fn a_vip_has_a_hostname_once() {
    let [oauth, konnectivity, _] = named();
    let same = route("konnectivity", 111, ", hostname: oauth.a.example.com");
    let words = "\"oauth.a.example.com\" is clusters.a.oauth.hostname in line 12 already";
    let key = "clusters.a.konnectivity.hostname";
    refused(&[(13, &same), oauth], key, words);
    // At another VIP it leads to the same shard.
    let elsewhere = route("ignition", 113, ", hostname: oauth.a.example.com");
    accepted(&[oauth, konnectivity, (14, &elsewhere)]);
}

#[test]
fn all_parts_of_a_vip_have_hostnames_or_none() {
    let [oauth, konnectivity, _] = named();
    let without = route("ignition", 111, "");
    let words = "missing; clusters.a.oauth in line 12 has a hostname, and the same VIP";
    let key = "clusters.a.ignition.hostname";
    refused(&[(14, &without), oauth, konnectivity], key, words);
    // A route without one is reported once, also if it is the first.
    let without = route("oauth", 111, "");
    let third = route("ignition", 111, ", hostname: ignition.a.example.com");
    let words = "missing; clusters.a.konnectivity in line 13 has a hostname, and the same VIP";
    let key = "clusters.a.oauth.hostname";
    refused(&[(12, &without), konnectivity, (14, &third)], key, words);
}

#[test]
fn only_routes_have_hostnames() {
    let words = "hostname is for a component with publish: Route";
    let api = "api: { publish: LoadBalancer, vip: 192.168.203.110, node_port: 1, hostname: a.b },";
    refused(&[(11, api)], "clusters.a.api.hostname", words);
    let default = "version: 1\ndefaults: { cluster: { oauth: { hostname: a.example.com } } }";
    let key = "defaults.cluster.oauth.hostname";
    refused_at(&[(1, default)], 2, key, "unknown key");
}
