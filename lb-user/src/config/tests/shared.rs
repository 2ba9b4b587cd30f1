//! Services that share a VIP.

use std::time::Duration;

use super::*;

const CLUSTERS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../config/three-clusters.yaml"
));

/// The valid file with this instead of the pool of `api-a`.
fn with(target: &str) -> String {
    let service = format!(
        "  api-a: {{ network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], {target} }}"
    );
    file(&[(10, &service)])
}

fn target(target: &str) -> Target {
    let config = parse("lb.yaml", &with(target)).unwrap();
    config.services[0].target.clone()
}

/// Asserts that this target has one problem, at the line of the service.
fn refused_target(target: &str, key: &str, piece: &str) {
    let problems = problems(&with(target));
    let [(line, found, words)] = problems.as_slice() else {
        panic!("{target}: not one problem: {problems:#?}");
    };
    let key = format!("services.api-a{key}");
    assert_eq!((*line, found.as_str()), (10, key.as_str()), "{words}");
    assert!(words.contains(piece), "{words:?} does not say {piece:?}");
}

fn to(names: &[&str], pool: &str) -> NameRoute {
    NameRoute {
        names: names.iter().map(|&name| name.to_owned()).collect(),
        expressions: Vec::new(),
        no_name: false,
        clusters: Vec::new(),
        proxies: Vec::new(),
        alpn: Vec::new(),
        from: Vec::new(),
        to: To::Pool(pool.to_owned()),
    }
}

#[test]
fn what_is_left_out_has_its_default() {
    let sni = target(
        "sni: { routes: [{ names: [API.Example.com., \"*.apps.example.com\"], pool: kas-a }] }",
    );
    let expected = Sni {
        routes: vec![to(&["api.example.com", "*.apps.example.com"], "kas-a")],
        no_name: Otherwise::Alert,
        no_match: Otherwise::Alert,
        ech: Ech::Route,
        hello_timeout: Duration::from_secs(5),
        max_hello: 65_536,
        syn_cookies: SynCookies::Always,
        late_binding: LateBinding::Always,
        proxies: Vec::new(),
    };
    assert_eq!(sni, Target::Sni(expected));
    let http = target(
        "http: { routes: [{ names: [a.example.com], pool: kas-a }, { names: [b.example.com], redirect: https }] }",
    );
    let expected = Http {
        routes: vec![
            to(&["a.example.com"], "kas-a"),
            NameRoute {
                to: To::Https,
                ..to(&["b.example.com"], "")
            },
        ],
        no_match: Otherwise::Alert,
        balance: Balance::Client,
        header_timeout: Duration::from_secs(5),
        body_timeout: Duration::from_secs(60),
        response_timeout: Duration::from_secs(60),
        max_header: 16_384,
    };
    assert_eq!(http, Target::Http(expected));
}

#[test]
fn xdp_opens_no_connections_of_clients_that_the_kernel_answers() {
    for (keys, expected) in [
        ("", LateBinding::Always),
        ("syn_cookies: never, ", LateBinding::Never),
        ("late_binding: never, ", LateBinding::Never),
    ] {
        let text = with(&format!(
            "sni: {{ {keys}routes: [{{ names: [a.b], pool: kas-a }}] }}"
        ));
        let sni = &parse("lb.yaml", &text).unwrap().services[0].target;
        let Target::Sni(sni) = sni else {
            panic!("{keys}")
        };
        assert_eq!(sni.late_binding, expected, "{keys}");
    }
}

#[test]
fn everything_can_be_said_and_is_said_again_when_it_is_written_out() {
    let text = with(
        "sni: { routes: [{ names: [a.example.com], regex: [\"[^.]+\\\\.b\\\\.example\"], alpn: [h2, acme-tls/1], \
         from: [192.168.203.0/25], pool: kas-a }, { no_name: true, alpn: [h2], from: [192.168.203.128/25], pool: kas-a }, \
         { cluster_ids: [8f3c, \"b c\"], proxies: [10.1.0.0/16], pool: kas-a }], proxy_protocol_from: [192.168.203.7/32, 10.0.0.0/8], \
         no_name: { pool: kas-a }, no_match: close, ech: deny, \
         hello_timeout: 300ms, max_hello: 2048, syn_cookies: never, late_binding: never }",
    );
    let config = parse("lb.yaml", &text).unwrap();
    let expected = Sni {
        routes: vec![
            NameRoute {
                expressions: vec!["[^.]+\\.b\\.example".to_owned()],
                alpn: vec!["h2".to_owned(), "acme-tls/1".to_owned()],
                from: vec!["192.168.203.0/25".parse().unwrap()],
                ..to(&["a.example.com"], "kas-a")
            },
            NameRoute {
                no_name: true,
                alpn: vec!["h2".to_owned()],
                from: vec!["192.168.203.128/25".parse().unwrap()],
                ..to(&[], "kas-a")
            },
            NameRoute {
                clusters: vec!["8f3c".to_owned(), "b c".to_owned()],
                proxies: vec!["10.1.0.0/16".parse().unwrap()],
                ..to(&[], "kas-a")
            },
        ],
        no_name: Otherwise::Pool("kas-a".to_owned()),
        no_match: Otherwise::Close,
        ech: Ech::Deny,
        hello_timeout: Duration::from_millis(300),
        max_hello: 2048,
        syn_cookies: SynCookies::Never,
        late_binding: LateBinding::Never,
        proxies: vec![
            "192.168.203.7/32".parse().unwrap(),
            "10.0.0.0/8".parse().unwrap(),
        ],
    };
    assert_eq!(config.services[0].target, Target::Sni(expected));
    let http = parse(
        "lb.yaml",
        &with(
            "http: { routes: [{ regex: [\".*\"], redirect: https }], no_match: { pool: kas-a }, balance: host, \
             header_timeout: 1s, body_timeout: 2s, response_timeout: 1h, max_header: 4096 }",
        ),
    );
    let clusters = parse("three-clusters.yaml", CLUSTERS);
    for config in [config, http.unwrap(), clusters.unwrap()] {
        let written = expanded::text(&config, &Origins::default()).unwrap();
        assert_eq!(
            parse("written.yaml", &written).as_ref(),
            Ok(&config),
            "{written}"
        );
    }
}

#[test]
fn the_pools_of_a_target_are_named_once() {
    let target = target(
        "sni: { routes: [{ names: [a.b], pool: kas-a }, { names: [c.d], pool: kas-a }], no_name: { pool: kas-a } }",
    );
    assert_eq!(target.pools().collect::<Vec<_>>(), ["kas-a"]);
    assert_eq!(target.pool(), None);
}

#[test]
fn a_service_has_one_way_to_its_pools() {
    let routes = "routes: [{ names: [a.b], pool: kas-a }]";
    refused_target(
        &format!("pool: kas-a, sni: {{ {routes} }}"),
        ".sni",
        "one of pool, sni and http; another of them is in line 10",
    );
    refused_target(
        &format!("sni: {{ {routes} }}, http: {{ {routes} }}"),
        ".http",
        "one of pool, sni and http",
    );
    let udp = format!(
        "  dns-a: {{ network: tenant-a, listen: [\"192.168.203.110:53/udp\"], sni: {{ {routes} }} }}"
    );
    refused(
        &[(11, &udp)],
        "services.dns-a.listen[0]",
        "is UDP, which sends no name to route by; expected tcp",
    );
}

#[test]
fn routes_have_names_and_lead_somewhere() {
    let route = ".sni.routes[0]";
    let one = |route: &str| format!("sni: {{ routes: [{route}] }}");
    refused_target("sni: {}", ".sni.routes", "missing; this key is required");
    refused_target(
        "sni: { syn_cookies: never, late_binding: always, routes: [{ names: [a.b], pool: kas-a }] }",
        ".sni.late_binding",
        "needs syn_cookies: always",
    );
    refused_target(&one(""), ".sni.routes", "found an empty list");
    refused_target(&one("{ pool: kas-a }"), route, "found no name");
    refused_target(&one("{ names: [a.b] }"), route, "no destination");
    refused_target(
        &one("{ names: [a.b], pool: kas-b }"),
        ".sni.routes[0].pool",
        "no pool is called \"kas-b\"; did you mean \"kas-a\"?",
    );
    refused_target(
        &one("{ names: [a.b], redirect: https }"),
        ".sni.routes[0].redirect",
        "unknown key",
    );
    for name in [
        "10.0.0.1", "a..b", "*.", "*", "a.*.b", "*a.b", "-a.b", "a b",
    ] {
        refused_target(
            &one(&format!("{{ names: [\"{name}\"], pool: kas-a }}")),
            ".sni.routes[0].names[0]",
            "is not a name; expected one such as api.example.com or *.apps.example.com",
        );
    }
    refused_target(
        &one("{ regex: [\"a(\"], pool: kas-a }"),
        ".sni.routes[0].regex[0]",
        "is not a regular expression",
    );
    refused_target(
        &one("{ names: [a.b], alpn: [\"\"], pool: kas-a }"),
        ".sni.routes[0].alpn[0]",
        "is not a protocol",
    );
    refused_target(
        &one("{ names: [a.b], from: [10.0.0.1/8], pool: kas-a }"),
        ".sni.routes[0].from[0]",
        "10.0.0.0/8",
    );
}

#[test]
fn a_name_goes_to_one_place() {
    refused_target(
        "sni: { routes: [{ names: [a.b], pool: kas-a }, { names: [A.B.], pool: kas-a }] }",
        ".sni.routes[1].names[0]",
        "\"A.B.\" has a route already, in line 10",
    );
    // Behind one that is not for all clients there may be others.
    let conditions = "{ names: [a.b], alpn: [h2], pool: kas-a }, { names: [a.b], from: [10.0.0.0/8], pool: kas-a }";
    target(&format!(
        "sni: {{ routes: [{conditions}, {{ names: [a.b], pool: kas-a }}] }}"
    ));
}

#[test]
fn a_route_is_for_names_or_for_none() {
    let routes = |routes: &str| format!("sni: {{ routes: [{routes}] }}");
    let route = ".sni.routes[0].no_name";
    for names in ["names: [a.b]", "regex: [a]"] {
        refused_target(
            &routes(&format!("{{ {names}, no_name: true, pool: kas-a }}")),
            route,
            "a route has names, or no_name: true",
        );
    }
    refused_target(
        &routes("{ no_name: false, pool: kas-a }"),
        ".sni.routes[0]",
        "found no name; expected names or regex, or no_name: true",
    );
    refused_target(
        &routes("{ no_name: alert, pool: kas-a }"),
        route,
        "expected true or false",
    );
    refused_target(
        &routes("{ no_name: true }"),
        ".sni.routes[0]",
        "no destination",
    );
    let all = "{ no_name: true, pool: kas-a }";
    refused_target(
        &routes(&format!("{all}, {all}")),
        ".sni.routes[1].no_name",
        "clients that send no name (SNI) have a route already, in line 10",
    );
    let some = "{ no_name: true, alpn: [h2], pool: kas-a }, { no_name: true, from: [10.0.0.0/8], pool: kas-a }";
    target(&routes(&format!(
        "{some}, {all}, {{ names: [a.b], no_name: false, pool: kas-a }}"
    )));
    // A request without a name goes by `no_match`.
    refused_target(
        "http: { routes: [{ no_name: true, pool: kas-a }] }",
        ".http.routes[0].no_name",
        "unknown key; expected one of names, regex, from, pool, redirect",
    );
}

#[test]
fn the_rest_has_few_words() {
    let with = |rest: &str| format!("sni: {{ routes: [{{ names: [a.b], pool: kas-a }}], {rest} }}");
    for (rest, key, piece) in [
        (
            "no_name: maybe",
            "no_name",
            "expected alert, close or { pool: NAME }",
        ),
        (
            "no_match: { pool: other }",
            "no_match.pool",
            "no pool is called \"other\"",
        ),
        ("ech: no", "ech", "expected route, count or deny"),
        ("hello_timeout: 99ms", "hello_timeout", "100ms"),
        ("hello_timeout: 61s", "hello_timeout", "1m"),
        ("max_hello: 1023", "max_hello", "expected 1024 to 131396"),
        ("max_hello: 131397", "max_hello", "expected 1024 to 131396"),
        ("balance: host", "balance", "unknown key"),
    ] {
        refused_target(&with(rest), &format!(".sni.{key}"), piece);
    }
    refused_target(
        "http: { routes: [{ names: [a.b], redirect: http }] }",
        ".http.routes[0].redirect",
        "found \"http\", expected https",
    );
    refused_target(
        "http: { routes: [{ names: [a.b], redirect: https, pool: kas-a }] }",
        ".http.routes[0].redirect",
        "pool or redirect, not both",
    );
    for (time, least) in [
        ("body_timeout: 99ms", "100ms"),
        ("body_timeout: 25h", "1d"),
        ("response_timeout: 99ms", "100ms"),
        ("response_timeout: never", "never"),
    ] {
        let key = time.split(':').next().unwrap_or_default();
        let http = format!("http: {{ routes: [{{ names: [a.b], pool: kas-a }}], {time} }}");
        refused_target(&http, &format!(".http.{key}"), least);
    }
    refused_target(
        "http: { routes: [{ names: [a.b], pool: kas-a }], balance: source }",
        ".http.balance",
        "expected client or host",
    );
}

#[test]
fn only_proxies_say_of_which_cluster_somebody_is() {
    let with = |routes: &str, from: &str| {
        format!("sni: {{ routes: [{routes}], proxy_protocol_from: [{from}] }}")
    };
    let a = "{ cluster_ids: [a], pool: kas-a }";
    target(&with(a, "10.0.0.0/8"));
    let key = ".sni.proxy_protocol_from";
    refused_target(&with(a, ""), key, "found an empty list");
    let one = format!("{key}[0]");
    refused_target(&with(a, "0.0.0.0/0"), &one, "expected prefixes of proxies");
    refused_target(
        &with(a, "10.0.0.0/8").replace("[10.0.0.0/8]", "any"),
        key,
        "expected prefixes of proxies",
    );
    refused_target(&with(a, "10.0.0.1/8"), &one, "10.0.0.0/8");
    let cluster = ".sni.routes[0].cluster_ids[0]";
    refused_target(
        &format!("sni: {{ routes: [{a}] }}"),
        cluster,
        "expected proxy_protocol_from",
    );
    for other in ["names: [a.b]", "regex: [a]", "no_name: true"] {
        let both = format!("{{ cluster_ids: [a], {other}, pool: kas-a }}");
        refused_target(&with(&both, "10.0.0.0/8"), cluster, "one route for each");
    }
    let empty = a.replace("[a]", "[\"\"]");
    refused_target(
        &with(&empty, "10.0.0.0/8"),
        cluster,
        "has 0 bytes, expected 1 to 255",
    );
    let long = a.replace("[a]", &format!("[{}]", "a".repeat(256)));
    refused_target(
        &with(&long, "10.0.0.0/8"),
        cluster,
        "has 256 bytes, expected 1 to 255",
    );
    let http = format!("http: {{ routes: [{a}] }}");
    refused_target(&http, ".http.routes[0].cluster_ids", "unknown key");
    // To another pool by the same cluster only where the first is not for all clients.
    let twice = format!("{a}, {a}");
    let again = ".sni.routes[1].cluster_ids[0]";
    refused_target(
        &with(&twice, "10.0.0.0/8"),
        again,
        "\"a\" has a route already",
    );
    let some = a.replace("pool", "alpn: [h2], pool");
    target(&with(&format!("{some}, {a}"), "10.0.0.0/8"));
}

#[test]
fn of_several_clusters_each_has_its_proxies() {
    let with =
        |routes: &str| format!("sni: {{ routes: [{routes}], proxy_protocol_from: [10.0.0.0/8] }}");
    let a = "{ cluster_ids: [a], proxies: [10.1.0.0/16], pool: kas-a }";
    let b = a.replace("[a]", "[b]").replace("10.1.", "10.2.");
    let open = |text: &str| text.replace("proxies: [10.1.0.0/16], ", "");
    target(&with(&format!("{a}, {b}")));
    target(&with(&open(a)));
    let cluster = ".sni.routes[0].cluster_ids[0]";
    let words = "network tenant-a has 2 clusters";
    refused_target(&with(&format!("{}, {b}", open(a))), cluster, words);
    refused_target(&with(&open(&a.replace("[a]", "[a, b]"))), cluster, words);
    let proxies = ".sni.routes[0].proxies";
    let named = a.replace("cluster_ids: [a]", "names: [a.b]");
    refused_target(&with(&named), proxies, "expected cluster_ids");
    let elsewhere = a.replace("10.1.0.0/16", "11.0.0.0/16");
    let words = "11.0.0.0/16 is not in proxy_protocol_from";
    refused_target(&with(&elsewhere), &format!("{proxies}[0]"), words);
}

#[test]
fn nobody_on_mgmt_asks_for_a_pool_of_a_tenant() {
    let text = with("sni: { routes: [{ names: [a.b], pool: workers }] }")
        .replace(
            "network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"]",
            "network: mgmt, listen: [\"10.32.96.60:6443/tcp\"]",
        )
        .replace(
            "services:",
            "  workers: { network: tenant-a, backends: [\"192.168.203.101:1\"] }\nservices:",
        )
        .replace(
            "prefixes: [192.168.203.0/24]",
            "prefixes: [192.168.203.0/24], snat: [192.168.203.9]",
        );
    let problems = problems(&text);
    let [(_, key, words)] = problems.as_slice() else {
        panic!("not one problem: {problems:#?}");
    };
    assert_eq!(key, "services.api-a.sni.routes[0].pool");
    assert!(words.contains("no flow to a tenant is opened"), "{words}");
}
