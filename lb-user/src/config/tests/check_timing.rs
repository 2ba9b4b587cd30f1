//! Checks that are usual for all pools, and how soon checks find out.

use std::time::Duration;

use super::{
    health::{KEY, get, health, read},
    *,
};

#[test]
fn a_check_of_all_is_taken_key_by_key() {
    let with = |own: &str, all: &str| {
        let last = format!("{}\ndefaults: {{ pool: {{ health: {all} }} }}", LINES[11]);
        file(&[(7, &format!("    network: mgmt\n{own}")), (12, &last)])
    };
    let of = |own: &str, all: &str| {
        let text = with(own, all);
        let config = parse("f", &text).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
        config.pools[0].health.clone()
    };
    let all = "{ https: { path: /readyz, sni: a }, interval: 10s, rise: 5, on_dead: reset }";
    let usual = of("", all).unwrap();
    let tls = Tls {
        sni: Some("a".to_owned()),
        ca: None,
    };
    assert_eq!(usual.check, Check::https(tls, get("/readyz")));
    let interval = Duration::from_secs(10);
    assert_eq!((usual.interval, usual.rise), (interval, 5));
    // What is requested counts as one key.
    let own = of("    health: { https: { path: /x }, rise: 1 }", all).unwrap();
    assert_eq!(own.check, Check::https(Tls::default(), get("/x")));
    assert_eq!((own.interval, own.rise), (interval, 1));
    assert_eq!(own.on_dead, OnDead::Reset);
    let own = of("    health: { fall: 7 }", all).unwrap();
    assert_eq!((own.check, own.fall, own.rise), (usual.check, 7, 5));
    assert_eq!(of("    health: none", all), None);
    // A default without a check is only for pools that have one.
    let timing = "{ interval: 10s }";
    assert_eq!(of("", timing), None);
    assert_eq!(
        of("    health: { tcp: {} }", timing).unwrap().interval,
        interval
    );
    assert_eq!(of("", "none"), None);
    assert_eq!(of("    health: { tcp: {} }", "none").unwrap().rise, 2);

    let refused = |own: &str, all: &str, line: usize, key: &str, piece: &str| {
        let found = problems(&with(own, all));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0, found[0].1.as_str()), (line, key), "{found:?}");
        assert!(found[0].2.contains(piece), "{found:?}");
    };
    let own = "    health: { interval: 2s }";
    let piece = "found no check";
    refused(own, timing, 8, "pools.kas-a.health", piece);
    // Reported at the pool's own key, not at the default that it is in conflict with.
    let slow = "{ tcp: {}, interval: 10s, timeout: 8s }";
    let words = "a timeout of 8s is longer than the interval of 2s in line 8; expected at most";
    refused(own, slow, 8, "pools.kas-a.health.interval", words);
    let own = "    health: { timeout: 20s }";
    let words = "a timeout of 20s is longer than the interval of 10s in line 14";
    refused(own, slow, 8, "pools.kas-a.health.timeout", words);
    let key = "defaults.pool.health.timeout";
    refused("", "{ tcp: {}, timeout: 8s }", 14, key, "is longer");
    let key = "defaults.pool.health.tcp.port";
    refused("", "{ tcp: { port: 0 } }", 14, key, "found 0");
}

#[test]
fn a_backend_is_out_and_back_within_a_known_time() {
    let millis = Duration::from_millis;
    let mut health = read("{ tcp: {} }");
    // 5.5 s, two more of 3 s each, and 3 s for the last; one less to come back.
    assert_eq!(health.worst_case_down(), millis(14_500));
    assert_eq!(health.worst_case_up(), millis(11_500));
    // The fast interval, late, is longer than a check.
    health.timeout = millis(500);
    assert_eq!(health.worst_case_down(), millis(5500 + 2 * 1100 + 500));
    assert_eq!(health.worst_case_up(), millis(5500 + 1100 + 500));
    // One check decides.
    (health.fall, health.rise) = (1, 1);
    assert_eq!(health.worst_case_down(), millis(6000));
    assert_eq!(health.worst_case_up(), millis(6000));
    // Whatever is in the fields.
    (health.fall, health.timeout) = (u32::MAX, Duration::MAX);
    assert_eq!(health.worst_case_down(), Duration::MAX);
    health.fall = 0;
    assert_eq!(health.worst_case_down(), Duration::MAX);
}

#[test]
fn a_check_that_is_too_slow_for_openshift_is_a_warning() {
    let warnings = |lines: &[(usize, &str)]| {
        let mut findings = Findings::new("lb.yaml");
        let raw = files::read_text(&file(lines), &mut findings);
        let warnings = resolve(raw, findings).unwrap().warnings;
        warnings.iter().map(Warning::to_string).collect::<Vec<_>>()
    };
    let of = |text: &str| warnings(&[(7, &health(text))]);
    assert!(of("{ tcp: {} }").is_empty());
    // 30 s is what is required: 11 s, two of 1.5 s, and as much for the last; 22 s to come back.
    let just = "{ tcp: {}, interval: 20s, timeout: 2s, fall: 4, rise: 1";
    assert!(of(&format!("{just} }}")).is_empty());
    let words = |down: &str, up: &str| {
        format!(
            "a backend of pool kas-a that fails is out after at most {down}, and one that recovers \
             is back after at most {up}; OpenShift expects at most 30s of an API [slow-check]"
        )
    };
    assert_eq!(
        of("{ tcp: {}, interval: 20s, timeout: 2001ms, fall: 4, rise: 1 }"),
        [format!("lb.yaml:8: {KEY}: {}", words("30s4ms", "24s1ms"))]
    );
    assert_eq!(
        of("{ tcp: {}, interval: 10s, rise: 7 }"),
        [format!("lb.yaml:8: {KEY}: {}", words("20s", "32s"))]
    );
    let slow = format!(
        "{}\ndefaults: {{ pool: {{ health: {{ tcp: {{}}, interval: 30s }} }} }}",
        LINES[11]
    );
    assert_eq!(
        warnings(&[(12, &slow)]),
        [format!("lb.yaml:6: pools.kas-a: {}", words("42s", "39s"))]
    );
}
