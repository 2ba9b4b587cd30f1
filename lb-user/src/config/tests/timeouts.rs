//! The rules of how long flows live, how many there may be, and which clients are answered.

use std::time::Duration;

use super::*;
use crate::config::Facility;

const TCP: &str = "\"192.168.203.110:6443/tcp\"";
const UDP: &str = "\"192.168.203.110:1053/udp\"";
const HOUR: Duration = Duration::from_secs(3600);
const TWO_MINUTES: Duration = Duration::from_secs(120);

fn service(listen: &str, rest: &str) -> String {
    format!("  api-a: {{ network: tenant-a, listen: [{listen}], pool: kas-a{rest} }}")
}

/// The service api-a, with defaults behind the last line.
fn read(listen: &str, rest: &str, defaults: &str) -> Service {
    let last = format!("{}\ndefaults: {{ service: {{ {defaults} }} }}", LINES[11]);
    accepted(&[(10, &service(listen, rest)), (12, &last)])
        .services
        .remove(0)
}

fn idle(listen: &str, rest: &str, defaults: &str) -> [Option<Duration>; 2] {
    let service = read(listen, rest, defaults);
    [Protocol::Tcp, Protocol::Udp].map(|protocol| service.idle(protocol))
}

#[test]
fn flows_may_be_idle_for_as_long_as_their_protocol_asks() {
    let both = format!("{TCP}, {UDP}");
    let tcp = Some(Duration::from_secs(7800));
    assert_eq!(idle(TCP, "", "")[0], tcp);
    assert_eq!(idle(&both, "", ""), [tcp, Some(TWO_MINUTES)]);
    let udp = read(UDP, "", "");
    assert_eq!(udp.idle_timeout, Some(TWO_MINUTES));
    assert_eq!(udp.idle(Protocol::Udp), Some(TWO_MINUTES));
    assert!(!udp.listens(Protocol::Tcp) && udp.listens(Protocol::Udp));
    for listen in [TCP, UDP, &both] {
        assert_eq!(idle(listen, ", idle_timeout: 1h", ""), [Some(HOUR); 2]);
        assert_eq!(idle(listen, "", "idle_timeout: 1h"), [Some(HOUR); 2]);
        let own = idle(listen, ", idle_timeout: 1h", "idle_timeout: 3h");
        assert_eq!(own, [Some(HOUR); 2]);
    }
    let never = ", idle_timeout: never, keepalive: 60s";
    assert_eq!(idle(TCP, never, "")[0], None);
    assert_eq!(idle(&both, never, ""), [None, Some(TWO_MINUTES)]);
    // UDP alone cannot have what the defaults have.
    let defaults = "idle_timeout: never, keepalive: 60s";
    assert_eq!(idle(TCP, "", defaults)[0], None);
    assert_eq!(idle(UDP, "", defaults)[1], Some(TWO_MINUTES));
    assert_eq!(read(UDP, "", defaults).keepalive, None);
    let words = "a UDP flow has no end of its own; expected a time, not never";
    let key = "services.api-a.idle_timeout";
    refused(&[(10, &service(UDP, ", idle_timeout: never"))], key, words);
}

#[test]
fn times_have_units_and_bounds() {
    let key = "services.api-a.idle_timeout";
    for text in ["3600", "1.5h", "forever", "\"\""] {
        let text = service(TCP, &format!(", idle_timeout: {text}"));
        refused(&[(10, &text)], key, "is not a time; expected whole numbers");
    }
    for text in ["99ms", "721h"] {
        let words = format!("found \"{text}\", expected 100ms to 30d");
        let text = service(TCP, &format!(", idle_timeout: {text}"));
        refused(&[(10, &text)], key, &words);
    }
    let text = service(TCP, ", idle_timeout: [1h]");
    refused(&[(10, &text)], key, "found a list, expected a text");
    let text = service(TCP, ", keepalive: never");
    refused(
        &[(10, &text)],
        "services.api-a.keepalive",
        "\"never\" is not a time",
    );
}

#[test]
fn never_needs_keepalive() {
    let key = "services.api-a.idle_timeout";
    let words = "never needs keepalive";
    let never = ", idle_timeout: never";
    refused(&[(10, &service(TCP, never))], key, words);
    refused(
        &[(10, &service(&format!("{TCP}, {UDP}"), never))],
        key,
        words,
    );
    assert!(read(TCP, never, "keepalive: 60s").keepalive.is_some());
    // Reported at the service that takes it from the defaults, and not at the defaults.
    let last = format!(
        "{}\ndefaults: {{ service: {{ idle_timeout: never }} }}",
        LINES[11]
    );
    refused_at(&[(12, &last)], 10, "services.api-a", words);
    // A keepalive that cannot be read is not missing as well.
    let both = service(TCP, ", idle_timeout: never, keepalive: x");
    refused(&[(10, &both)], "services.api-a.keepalive", "is not a time");
    let last = format!("{}\ndefaults: {{ service: {{ keepalive: x }} }}", LINES[11]);
    refused_at(
        &[(10, &service(TCP, never)), (12, &last)],
        13,
        "defaults.service.keepalive",
        "is not a time",
    );
    let both = service(TCP, ", idle_timeout: never, kepalive: 60s");
    refused(&[(10, &both)], "services.api-a.kepalive", "did you mean");
}

#[test]
fn keepalive_is_for_tcp_and_comes_before_the_end() {
    let key = "services.api-a.keepalive";
    let config = accepted(&[(10, &service(TCP, ", keepalive: 60s"))]);
    assert_eq!(config.services[0].keepalive, Some(Duration::from_secs(60)));
    let words = "UDP has no keepalive";
    refused(&[(10, &service(UDP, ", keepalive: 60s"))], key, words);
    let both = service(&format!("{TCP}, {UDP}"), ", keepalive: 60s");
    accepted(&[(10, &both)]);
    // The protocol of a listener that cannot be read is unknown.
    refused(
        &[(10, &service(&format!("{UDP}, x"), ", keepalive: 60s"))],
        "services.api-a.listen[1]",
        "has no port",
    );
    let words = "a keepalive of 30m comes too late when flows end after 1h: three probes take as \
                 long again; expected an idle_timeout of 1h1s or more in line 10";
    let text = service(TCP, ", idle_timeout: 1h, keepalive: 30m");
    refused(&[(10, &text)], key, words);
    accepted(&[(10, &service(TCP, ", idle_timeout: 3601s, keepalive: 30m"))]);
    // Probes are a second apart at least.
    for (times, least) in [
        (", idle_timeout: 4s, keepalive: 3900ms", "8s800ms"),
        (", idle_timeout: 4999ms, keepalive: 1s", "5s"),
    ] {
        let words = format!("expected an idle_timeout of {least} or more in line 10");
        refused(&[(10, &service(TCP, times))], key, &words);
    }
    accepted(&[(10, &service(TCP, ", idle_timeout: 5s, keepalive: 1s"))]);
    let words = "flows end after 2h10m: three probes take as long again; expected an \
                 idle_timeout of 2h10m1s or more";
    refused(&[(10, &service(TCP, ", keepalive: 65m"))], key, words);
    accepted(&[(10, &service(TCP, ", keepalive: 3899s"))]);
    let last = format!(
        "{}\ndefaults: {{ service: {{ keepalive: 1h }} }}",
        LINES[11]
    );
    refused_at(
        &[(10, &service(TCP, ", idle_timeout: 30m")), (12, &last)],
        10,
        "services.api-a.idle_timeout",
        "a keepalive of 1h comes too late when flows end after 30m",
    );
}

#[test]
fn budgets_and_rings_have_bounds() {
    let network = |rest: &str| tenant(&format!("prefixes: [192.168.203.0/24], {rest}"));
    let all = "max_flows: 1, half_open: 64, udp_flows: 65536, mss: 65495";
    let one = accepted(&[(4, &network(all))]);
    let one = &one.networks[1];
    assert_eq!(
        (one.max_flows, one.half_open, one.udp_flows, one.mss),
        (Some(1), 64, 65_536, Some(65_495))
    );
    let none = accepted(&[]);
    let (network_a, service_a) = (&none.networks[1], &none.services[0]);
    assert_eq!((network_a.max_flows, service_a.max_flows), (None, None));
    assert_eq!((network_a.half_open, network_a.udp_flows), (8192, 8192));
    assert_eq!(network_a.mss, None, "what the interface has room for");
    assert_eq!(
        accepted(&[(4, &network("mss: 64"))]).networks[1].mss,
        Some(64)
    );
    let range = "1 to 4294967295";
    for (key, value, range) in [
        ("max_flows", "0", range),
        ("max_flows", "4294967296", range),
        ("half_open", "63", "64 to 65536"),
        ("half_open", "65537", "64 to 65536"),
        ("udp_flows", "0", "64 to 65536"),
        ("mss", "63", "64 to 65495"),
        ("mss", "65496", "64 to 65495"),
        ("mss", "65600", "64 to 65495"),
    ] {
        refused(
            &[(4, &network(&format!("{key}: {value}")))],
            &format!("networks.tenant-a.{key}"),
            &format!("found {value}, expected {range}"),
        );
    }
    refused(
        &[(10, &service(TCP, ", max_flows: 0"))],
        "services.api-a.max_flows",
        "found 0, expected 1 to 4294967295",
    );
    assert_eq!(
        read(TCP, ", max_flows: 7", "max_flows: 9").max_flows,
        Some(7)
    );
    assert_eq!(read(TCP, "", "max_flows: 9").max_flows, Some(9));
    let last = format!(
        "{}\ndefaults: {{ network: {{ max_flows: 5, half_open: 100, udp_flows: 200, mss: 1400, reject: true }} }}",
        LINES[11]
    );
    let config = accepted(&[(12, &last)]);
    let mgmt = &config.networks[0];
    assert_eq!(
        (mgmt.max_flows, mgmt.half_open, mgmt.udp_flows, mgmt.mss),
        (Some(5), 100, 200, Some(1400))
    );
    assert!(mgmt.reject);
}

#[test]
fn reject_is_true_or_false() {
    assert!(!read(TCP, "", "").reject);
    assert!(read(TCP, ", reject: true", "").reject);
    assert!(read(TCP, "", "reject: true").reject);
    assert!(!read(TCP, ", reject: false", "reject: true").reject);
    for (text, found) in [
        ("yes", "found \"yes\""),
        ("1", "found \"1\""),
        ("\"true\"", "found the text \"true\""),
        ("[]", "found a list"),
    ] {
        let words = format!("{found}, expected true or false");
        let text = service(TCP, &format!(", reject: {text}"));
        refused(&[(10, &text)], "services.api-a.reject", &words);
    }
    let text = tenant("prefixes: [192.168.203.0/24], reject: no");
    refused(
        &[(4, &text)],
        "networks.tenant-a.reject",
        "expected true or false",
    );
}

#[test]
fn timeouts_are_those_of_all() {
    assert_eq!(accepted(&[]).timeouts, Timeouts::default());
    let line = |text: &str| format!("timeouts: {{ {text} }}");
    let read = accepted(&[(12, &line("half_open: 5s, half_closed: 1m, udp: 200ms"))]).timeouts;
    let times = [read.half_open, read.half_closed, read.udp];
    assert_eq!(times, [5000, 60_000, 200].map(Duration::from_millis));
    let key = "timeouts.half_open";
    refused(&[(12, &line("half_open: never"))], key, "is not a time");
    refused(
        &[(12, &line("half_open: 10ms"))],
        key,
        "expected 100ms to 30d",
    );
    refused(
        &[(12, &line("established: 1h"))],
        "timeouts.established",
        "unknown key; expected one of half_open, half_closed, udp",
    );
}

#[test]
fn the_access_log_is_another_file() {
    let line = |path: &str| format!("log: {{ flows: /var/log/lb/flows.json, http: {path} }}");
    let config = accepted(&[(12, &line("/var/log/lb/http.json"))]);
    assert_eq!(
        config.http_log.as_deref(),
        Some(Path::new("/var/log/lb/http.json"))
    );
    assert_eq!(accepted(&[(12, "log: { flows: /a }")]).http_log, None);
    let words = "is not the path of a file; expected one from the root";
    refused(&[(12, &line("http.json"))], "log.http", words);
    let words = "found the file of log.flows, expected another one";
    refused(&[(12, &line("/var/log/lb/flows.json"))], "log.http", words);
}

#[test]
fn the_flow_log_is_a_file_from_the_root() {
    let line = |path: &str| format!("log: {{ flows: {path} }}");
    let config = accepted(&[(12, &line("/var/log/lb/flows.json"))]);
    assert_eq!(
        config.flow_log.as_deref(),
        Some(Path::new("/var/log/lb/flows.json"))
    );
    assert_eq!(accepted(&[(12, "log:")]).flow_log, None);
    for path in ["flows.json", "\"\"", "/", "/var/log/", "\"/a\\0b\""] {
        let words = "is not the path of a file; expected one from the root";
        refused(&[(12, &line(path))], "log.flows", words);
    }
}

#[test]
fn a_cluster_says_how_the_flows_of_its_parts_live() {
    let with = |text: &str| clusters::file(&[(10, &format!("{{ network: a, nodes: hub, {text},"))]);
    let config = parse(
        "f",
        &with("idle_timeout: never, keepalive: 60s, reject: true"),
    )
    .unwrap();
    assert_eq!(config.services.len(), 8);
    for service in &config.services {
        assert_eq!((service.idle_timeout, service.reject), (None, true));
        assert_eq!(service.keepalive, Some(Duration::from_secs(60)));
    }
    // One mistake is not one for each part.
    let problems = problems(&with("idle_timeout: never"));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].1, "clusters.a.idle_timeout");
    // Only its own defaults are for a cluster.
    let defaults = |kind: &str| {
        let text = with("deny: [192.168.203.1/32]");
        format!("{text}\ndefaults: {{ {kind}: {{ idle_timeout: 1h, reject: true }} }}")
    };
    let of = |kind: &str| parse("f", &defaults(kind)).unwrap().services.remove(0);
    assert_eq!(of("cluster").idle_timeout, Some(HOUR));
    assert!(of("cluster").reject && !of("service").reject);
}

#[test]
fn what_is_for_all_stands_in_the_main_file() {
    let main = format!("{}\ninclude: other.yaml", file(&[]));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("main.yaml");
    std::fs::write(&path, main).unwrap();
    let other = "timeouts: { udp: 1s }\nlog: { flows: /a }\nseed: s\nwatch: true\non_stop: drop\n";
    std::fs::write(folder.path().join("other.yaml"), other).unwrap();
    let problems = load(&path).unwrap_err();
    let found: Vec<_> = problems
        .as_slice()
        .iter()
        .map(|problem| (problem.key.as_str(), problem.words.as_str()))
        .collect();
    let words = "only the main file can have this section";
    let keys = ["timeouts", "log", "seed", "watch", "on_stop"];
    assert_eq!(found, keys.map(|key| (key, words)));
}

#[test]
fn the_syslog_server_has_an_address_and_a_facility() {
    let to = |server: &str| {
        let log = format!("log: {{ syslog: {{ to: \"{server}\" }} }}");
        accepted(&[(12, &log)]).syslog
    };
    for server in ["udp:10.0.0.1:514", "tcp:[2001:db8::1]:601", "unix:/dev/log"] {
        let syslog = to(server).unwrap();
        assert_eq!(syslog.to.to_string(), server);
        assert_eq!(syslog.facility, Facility::Daemon);
    }
    let log = "log: { syslog: { to: udp:10.0.0.1:514, facility: local7 } }";
    let syslog = accepted(&[(12, log)]).syslog.unwrap();
    assert_eq!(syslog.facility, Facility::Local7);
    assert_eq!(accepted(&[(12, "log:")]).syslog, None);
}

#[test]
fn the_group_that_may_look_has_a_name() {
    let group = |group: &str| {
        let admin = format!("admin: {{ group: {group} }}");
        accepted(&[(12, &admin)]).admin.group
    };
    assert_eq!(group("lb-read").as_deref(), Some("lb-read"));
    assert_eq!(group("\"998\"").as_deref(), Some("998"));
    assert_eq!(accepted(&[(12, "admin:")]).admin.group, None);
}
