//! The rules of how backends are checked.

use std::{path::PathBuf, time::Duration};

use super::*;

pub(super) const KEY: &str = "pools.kas-a.health";

/// The line of the pool's network, with its `health` behind it in line 8.
pub(super) fn health(text: &str) -> String {
    format!("    network: mgmt\n    health: {text}")
}

/// The check that the file with these keys means.
pub(super) fn read(text: &str) -> Health {
    let mut config = accepted(&[(7, &health(text))]);
    config.pools.remove(0).health.unwrap()
}

/// Asserts that the only problem is that of `key`, in all its words.
pub(super) fn wrong(text: &str, key: &str, words: &str) {
    let found = problems(&file(&[(7, &health(text))]));
    let key = format!("{KEY}{key}");
    assert_eq!(found, [(8, key, words.to_owned())], "{text}");
}

pub(super) fn get(path: &str) -> Get {
    Get {
        path: path.to_owned(),
        host: None,
        status: (200, 299),
    }
}

#[test]
fn a_pool_without_a_check_has_none() {
    assert_eq!(accepted(&[]).pools[0].health, None);
    assert_eq!(accepted(&[(7, &health("none"))]).pools[0].health, None);
}

/// The answer of `lb check -o json` has the keys of the file.
#[test]
fn a_check_is_written_out_with_names() {
    for (text, json) in [
        ("{ tcp: {} }", r#""tcp""#),
        ("{ tls: { sni: a } }", r#"{"tls":{"sni":"a","ca":null}}"#),
        (
            "{ http: { host: a } }",
            r#"{"http":{"path":"/","host":"a","status":[200,299]}}"#,
        ),
        (
            "{ https: { path: /x, sni: a, status: 204 } }",
            r#"{"https":{"sni":"a","ca":null,"path":"/x","host":null,"status":[204,204]}}"#,
        ),
    ] {
        assert_eq!(serde_json::to_string(&read(text).check).unwrap(), json);
    }
}

#[test]
fn one_of_four_kinds_of_check_is_asked_for() {
    for (text, check) in [
        ("{ tcp: {} }", Check::Tcp),
        ("{ tcp: }", Check::Tcp),
        ("{ tls: {} }", Check::Tls(Tls::default())),
        ("{ http: {} }", Check::Http(get("/"))),
        ("{ https: {} }", Check::https(Tls::default(), get("/"))),
    ] {
        let health = read(text);
        assert_eq!((health.check, health.port), (check, None), "{text}");
    }
    let all = "{ https: { path: \"/readyz?verbose\", host: \"api.a:6443\", status: 200-399, \
               sni: api.a, ca: /etc/lb/ca.pem, port: 65535 } }";
    let tls = Tls {
        sni: Some("api.a".to_owned()),
        ca: Some(Authorities::read(PathBuf::from("/etc/lb/ca.pem"))),
    };
    let asked = Get {
        host: Some("api.a:6443".to_owned()),
        status: (200, 399),
        ..get("/readyz?verbose")
    };
    let health = read(all);
    assert_eq!(health.check, Check::https(tls.clone(), asked.clone()));
    assert_eq!(health.port, Some(65_535));
    let health = read("{ tls: { sni: api.a, ca: /etc/lb/ca.pem, port: 1 } }");
    assert_eq!((health.check, health.port), (Check::Tls(tls), Some(1)));
    let text = "{ http: { path: \"/readyz?verbose\", host: \"api.a:6443\", status: 200-399 } }";
    assert_eq!(read(text).check, Check::Http(asked));
    assert_eq!(read("{ tcp: { port: 22 } }").port, Some(22));

    let none = "found no check; expected one of tcp, tls, http, https";
    wrong("{}", "", none);
    wrong("{ interval: 5s }", "", none);
    wrong("", "", none);
    let words = "a pool has one check, and \"https\" is already there in line 8";
    wrong("{ https: {}, tcp: {} }", ".tcp", words);
    wrong("tcp", "", "found \"tcp\", expected a mapping (key: value)");
    let words = "found \"6443\", expected a mapping (key: value)";
    wrong("{ tcp: 6443 }", ".tcp", words);
    // A misspelt check is not missing as well.
    wrong(
        "{ htps: {} }",
        ".htps",
        "unknown key; did you mean \"https\"?",
    );
}

#[test]
fn each_kind_has_its_own_keys() {
    for (kind, key, known) in [
        ("tcp", "path", "port"),
        ("tcp", "sni", "port"),
        ("tls", "host", "sni, ca, port"),
        ("http", "sni", "path, host, status, port"),
        ("http", "ca", "path, host, status, port"),
        ("https", "verify", "path, host, status, sni, ca, port"),
    ] {
        let words = format!("unknown key; expected one of {known}");
        wrong(
            &format!("{{ {kind}: {{ {key}: x }} }}"),
            &format!(".{kind}.{key}"),
            &words,
        );
    }
    let words = "unknown key; did you mean \"interval\"?";
    wrong("{ tcp: {}, intervall: 5s }", ".intervall", words);
    let words = "unknown key; expected one of tcp, tls, http, https, interval, timeout, rise, fall, \
                 fast_interval, flap_hold, on_dead";
    wrong("{ tcp: {}, retries: 3 }", ".retries", words);
}

#[test]
fn a_check_has_usual_times() {
    let usual = Health {
        check: Check::Tcp,
        port: None,
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(3),
        rise: 2,
        fall: 3,
        fast_interval: Duration::from_secs(1),
        flap_hold: Duration::from_secs(30),
        on_dead: OnDead::Reselect,
    };
    assert_eq!(read("{ tcp: {} }"), usual);
    let short = Duration::from_millis(500);
    let quick = Health {
        interval: short,
        timeout: short,
        fast_interval: short,
        ..usual.clone()
    };
    assert_eq!(read("{ tcp: {}, interval: 500ms }"), quick);
    let all = "{ tcp: {}, interval: 1h, timeout: 1h, rise: 1, fall: 100, fast_interval: 100ms, \
               flap_hold: 0s, on_dead: reset }";
    let odd = Health {
        interval: HOUR,
        timeout: HOUR,
        rise: 1,
        fall: 100,
        fast_interval: Duration::from_millis(100),
        flap_hold: Duration::ZERO,
        on_dead: OnDead::Reset,
        ..usual
    };
    assert_eq!(read(all), odd);
    assert_eq!(read("{ tcp: {}, on_dead: drain }").on_dead, OnDead::Drain);
    assert_eq!(read("{ tcp: {}, on_dead: none }").on_dead, OnDead::None);
    assert_eq!(read("{ tcp: {}, flap_hold: 1h }").flap_hold, HOUR);
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn times_and_counts_have_bounds() {
    for (key, value, range) in [
        ("interval", "99ms", "100ms to 1h"),
        ("interval", "1h1ms", "100ms to 1h"),
        ("timeout", "99ms", "100ms to 1h"),
        ("timeout", "61m", "100ms to 1h"),
        ("fast_interval", "0s", "100ms to 1h"),
        ("flap_hold", "3601s", "0s to 1h"),
    ] {
        let words = format!("found \"{value}\", expected {range}");
        let text = format!("{{ tcp: {{}}, {key}: {value} }}");
        wrong(&text, &format!(".{key}"), &words);
    }
    for (key, value) in [
        ("rise", "0"),
        ("rise", "101"),
        ("fall", "0"),
        ("fall", "101"),
    ] {
        let words = format!("found {value}, expected 1 to 100");
        let text = format!("{{ tcp: {{}}, {key}: {value} }}");
        wrong(&text, &format!(".{key}"), &words);
    }
    let words = "\"never\" is not a time; expected whole numbers with units d, h, m, s or ms, such \
                 as 30s or 2h10m";
    wrong("{ tcp: {}, flap_hold: never }", ".flap_hold", words);
    let words = "found \"close\", expected reselect, drain, reset or none";
    wrong("{ tcp: {}, on_dead: close }", ".on_dead", words);
    for port in ["0", "65536"] {
        let words = format!("found {port}, expected 1 to 65535");
        let text = format!("{{ tcp: {{ port: {port} }} }}");
        wrong(&text, ".tcp.port", &words);
    }
}

#[test]
fn no_time_of_a_check_is_longer_than_its_interval() {
    let words =
        "a timeout of 3001ms is longer than the interval of 3s in line 8; expected at most \
                 as long"
            .replace("3001ms", "3s1ms");
    wrong(
        "{ tcp: {}, interval: 3s, timeout: 3001ms }",
        ".timeout",
        &words,
    );
    let words = "a fast_interval of 6s is longer than the interval of 5s, which is the default; \
                 expected at most as long";
    wrong("{ tcp: {}, fast_interval: 6s }", ".fast_interval", words);
    read("{ tcp: {}, interval: 3s, timeout: 3s, fast_interval: 3s }");
    // An interval that cannot be read is compared with nothing.
    let words = "found \"0s\", expected 100ms to 1h";
    wrong("{ tcp: {}, interval: 0s, timeout: 9s }", ".interval", words);
    let words = "unknown key; did you mean \"interval\"?";
    wrong("{ tcp: {}, intervals: 9s }", ".intervals", words);
}

#[test]
fn every_mistake_of_a_check_is_listed() {
    let text = "{ https: { path: x, host: \"?\", status: 1, sni: 1.2.3.4, ca: y, port: 0 }, \
                interval: 1, timeout: 2, rise: 0, fall: 0, fast_interval: 3, flap_hold: 4, \
                on_dead: z }";
    let found = problems(&file(&[(7, &health(text))]));
    let keys: Vec<_> = found.iter().map(|(_, key, _)| key.as_str()).collect();
    let expected = [
        ".https.path",
        ".https.host",
        ".https.status",
        ".https.sni",
        ".https.ca",
        ".https.port",
        ".interval",
        ".timeout",
        ".rise",
        ".fall",
        ".fast_interval",
        ".flap_hold",
        ".on_dead",
    ];
    assert_eq!(keys, expected.map(|key| format!("{KEY}{key}")));
}

#[test]
fn checks_come_from_a_snat_address() {
    let words =
        "network mgmt in line 3 has no snat address, which checks of this pool would come from";
    let unused = [
        (3, mgmt("prefixes: [10.32.96.0/20]")),
        (7, health("{ tcp: {} }")),
        (10, String::new()),
        (11, String::new()),
    ];
    let unused: Vec<_> = unused
        .iter()
        .map(|(at, text)| (*at, text.as_str()))
        .collect();
    let found = problems(&file(&unused));
    assert_eq!(found, [(8, KEY.to_owned(), words.to_owned())]);
    // One mistake is reported once.
    let used = problems(&file(&unused[..2]));
    assert_eq!(used.len(), 1, "{used:?}");
    assert!(
        used[0]
            .2
            .contains("but service api-a in line 11 uses this pool")
    );
    // Nor is it reported of a pool without a check.
    let timing = format!(
        "{}\ndefaults: {{ pool: {{ health: {{ interval: 9s }} }} }}",
        LINES[11]
    );
    let lines = [unused[0], (12, &timing), unused[2], unused[3]];
    assert_eq!(accepted(&lines).pools[0].health, None);
    let none = health("none");
    let unchecked = [unused[0], (7, &none), unused[2], unused[3]];
    assert_eq!(accepted(&unchecked).pools[0].health, None);
}
