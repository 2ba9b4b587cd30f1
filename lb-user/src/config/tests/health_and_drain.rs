//! The rules of how backends are taken out and brought back, and of files that are watched.

use std::time::Duration;

use super::*;

fn pool(text: &str) -> String {
    format!("    network: mgmt\n    {text}")
}

fn read(text: &str) -> Pool {
    accepted(&[(7, &pool(text))]).pools.remove(0)
}

fn wrong(key: &str, value: &str, words: &str) {
    let found = problems(&file(&[(7, &pool(&format!("{key}: {value}")))]));
    let key = format!("pools.kas-a.{key}");
    assert_eq!(found, [(8, key, words.to_owned())], "{value}");
}

#[test]
fn a_pool_says_how_long_flows_may_go_on() {
    let of = |text: &str| read(text).drain_timeout;
    assert_eq!(of(""), Some(Duration::from_secs(300)));
    assert_eq!(of("drain_timeout: never"), None);
    assert_eq!(of("drain_timeout: 0s"), Some(Duration::ZERO));
    let month = Duration::from_secs(30 * 24 * 3600);
    assert_eq!(of("drain_timeout: 30d"), Some(month));
    let words = "found \"30d1ms\", expected 0s to 30d";
    wrong("drain_timeout", "30d1ms", words);
    let words = "\"0\" is not a time; expected whole numbers with units d, h, m, s or ms, such as \
                 30s or 2h10m";
    wrong("drain_timeout", "0", words);
}

#[test]
fn a_pool_says_how_slowly_a_backend_comes_back() {
    assert_eq!(read("").slow_start, Duration::ZERO);
    assert_eq!(read("slow_start: 0s").slow_start, Duration::ZERO);
    assert_eq!(read("slow_start: 1h").slow_start, Duration::from_secs(3600));
    wrong("slow_start", "61m", "found \"61m\", expected 0s to 1h");
}

#[test]
fn a_pool_says_what_is_too_few() {
    let of = |text: &str| {
        let pool = read(text);
        (pool.min_up, pool.below_min_up)
    };
    assert_eq!(of(""), (0, BelowMinUp::Refuse));
    assert_eq!(of("min_up: 0%"), (0, BelowMinUp::Refuse));
    let all = "min_up: \"100%\"\n    below_min_up: all";
    assert_eq!(of(all), (100, BelowMinUp::All));
    assert_eq!(of("below_min_up: refuse").1, BelowMinUp::Refuse);
    for value in ["60", "101%", "-1%", "1.5%", "\"%\"", "060%", "256%", "60 %"] {
        let words = format!("found \"{}\", expected 0% to 100%", value.trim_matches('"'));
        wrong("min_up", value, &words);
    }
    let words = "found \"drop\", expected refuse or all";
    wrong("below_min_up", "drop", words);
    let words = "found a list, expected a text";
    wrong("min_up", "[60%]", words);
}

#[test]
fn defaults_are_for_pools_that_do_not_say_otherwise() {
    let all = "drain_timeout: never, slow_start: 30s, min_up: 60%, below_min_up: all";
    let last = format!("{}\ndefaults: {{ pool: {{ {all} }} }}", LINES[11]);
    let usual = accepted(&[(12, &last)]).pools.remove(0);
    assert_eq!(usual.drain_timeout, None);
    assert_eq!(usual.slow_start, Duration::from_secs(30));
    assert_eq!((usual.min_up, usual.below_min_up), (60, BelowMinUp::All));
    let own = "drain_timeout: 1m\n    slow_start: 1s\n    min_up: 1%\n    below_min_up: refuse";
    let own = accepted(&[(7, &pool(own)), (12, &last)]).pools.remove(0);
    assert_eq!(own.drain_timeout, Some(Duration::from_secs(60)));
    assert_eq!(own.slow_start, Duration::from_secs(1));
    assert_eq!((own.min_up, own.below_min_up), (1, BelowMinUp::Refuse));
    let wrong = last.replace("60%", "6");
    refused_at(&[(12, &wrong)], 13, "defaults.pool.min_up", "found \"6\"");
    let list = last.replace(all, "backends: []");
    refused_at(
        &[(12, &list)],
        13,
        "defaults.pool.backends",
        "unknown key; expected one of network, balance, source_timeout, max_connections, proxy_protocol, health, drain_timeout, slow_start, min_up, \
         below_min_up",
    );
}

#[test]
fn the_parts_of_a_cluster_are_pools_as_well() {
    let keys = "health: { https: { path: /readyz } }, drain_timeout: 2m, min_up: 50%";
    let file = clusters::file(&[
        (
            11,
            &format!(
                "api: {{ publish: LoadBalancer, vip: 192.168.203.110, node_port: 1, {keys} }},"
            ),
        ),
        (
            15,
            "routes: { https: 2, http: 3, health: { http: { port: 32095 } } },",
        ),
        (
            16,
            "apps: { vip: 192.168.203.112, nodes: workers, https: 4, http: 5, slow_start: 9s } }",
        ),
    ]);
    let config = parse("f", &file).unwrap_or_else(|problems| panic!("{problems}"));
    let pool = |name: &str| config.pool(name).unwrap();
    let api = pool("a-api");
    let health = api.health.as_ref().unwrap();
    assert!(matches!(&health.check, Check::Https { get, .. } if get.path == "/readyz"));
    assert_eq!(api.drain_timeout, Some(Duration::from_secs(120)));
    assert_eq!(api.min_up, 50);
    for name in [
        "a-routes-https",
        "a-routes-http",
        "a-routes-https-2",
        "a-routes-http-2",
    ] {
        assert_eq!(pool(name).health.as_ref().unwrap().port, Some(32_095));
    }
    for name in ["a-apps-https", "a-apps-http"] {
        assert_eq!(pool(name).slow_start, Duration::from_secs(9));
    }
    assert_eq!(pool("a-konnectivity").health, None);
    // The defaults of clusters are for them, and those of pools are not.
    let with = |defaults: &str| {
        let text = format!("{}\ndefaults: {{ {defaults} }}", clusters::file(&[]));
        parse("f", &text).unwrap_or_else(|problems| panic!("{problems}"))
    };
    let api = |config: &Config| config.pool("a-api").unwrap().health.is_some();
    assert!(api(&with("cluster: { api: { health: { tcp: {} } } }")));
    assert!(!api(&with("pool: { health: { tcp: {} } }")));
}

#[test]
fn what_is_published_as_route_is_checked_as_its_routes() {
    let words =
        "a component with publish: Route has the checks and drains of routes; leave this key out";
    for (key, value) in [
        ("health", "{ tcp: {} }"),
        ("drain_timeout", "1s"),
        ("slow_start", "1s"),
        ("min_up", "1%"),
        ("below_min_up", "all"),
    ] {
        let oauth = format!("oauth: {{ publish: Route, vip: 192.168.203.111, {key}: {value} }},");
        clusters::refused(&[(12, &oauth)], &format!("clusters.a.oauth.{key}"), words);
    }
    // One mistake is not one for each pool.
    let routes = "routes: { https: 2, http: 3, health: { tcp: { port: 0 } } },";
    let key = "clusters.a.routes.health.tcp.port";
    clusters::refused(&[(15, routes)], key, "found 0, expected 1 to 65535");
    let unsaid = "routes: { https: 2, http: 3, health: { rise: 1 } },";
    clusters::refused(
        &[(15, unsaid)],
        "clusters.a.routes.health",
        "found no check",
    );
}

#[test]
fn a_seed_is_a_text_of_the_main_file() {
    assert_eq!(accepted(&[]).seed, None);
    let seed = |text: &str| accepted(&[(12, text)]).seed;
    assert_eq!(seed("seed: two boxes").as_deref(), Some("two boxes"));
    assert_eq!(seed("seed: 42").as_deref(), Some("42"));
    assert_eq!(
        seed(&format!("seed: {}", "x".repeat(64))).map(|it| it.len()),
        Some(64)
    );
    let words = "found 0 characters, expected 1 to 64";
    refused(&[(12, "seed: \"\"")], "seed", words);
    let words = "found 65 characters, expected 1 to 64";
    refused(&[(12, &format!("seed: {}", "x".repeat(65)))], "seed", words);
}

#[test]
fn files_are_watched_if_that_is_said() {
    assert!(!accepted(&[]).watch);
    assert!(accepted(&[(12, "watch: true")]).watch);
    assert!(!accepted(&[(12, "watch: false")]).watch);
    let words = "found \"yes\", expected true or false";
    refused(&[(12, "watch: yes")], "watch", words);
}

#[test]
fn a_stop_goes_on_or_drops() {
    assert_eq!(accepted(&[]).on_stop, OnStop::Forward);
    assert_eq!(
        accepted(&[(12, "on_stop: forward")]).on_stop,
        OnStop::Forward
    );
    assert_eq!(accepted(&[(12, "on_stop: drop")]).on_stop, OnStop::Drop);
    let words = "found \"reject\", expected forward or drop";
    refused(&[(12, "on_stop: reject")], "on_stop", words);
}
