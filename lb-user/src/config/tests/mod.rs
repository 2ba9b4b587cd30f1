//! Each rule of the configuration, by the exact place and the words of its refusal.

mod admin;
mod authorities;
mod check_requests;
mod check_timing;
mod cluster_presets;
mod clusters;
mod difference;
mod family;
mod ha;
mod health;
mod health_and_drain;
mod hosted;
mod keys;
mod kubernetes;
mod model;
mod networks;
mod nodes;
mod on_disk;
mod pools;
mod quota;
mod robust;
mod routes;
mod rules;
mod secrets;
mod selection;
mod services;
mod shared;
mod timeouts;

use std::{net::IpAddr, path::Path};

use super::*;

/// The annotated example that an operator starts from.
const EXAMPLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../config/lb.yaml"));

/// The example without its `include`, which needs a file.
fn example() -> String {
    EXAMPLE.replace("\ninclude: conf.d/*.yaml\n", "\n\n")
}

/// A valid file, whose lines the tests replace by their number.
const LINES: [&str; 12] = [
    "version: 1",
    "networks:",
    "  mgmt: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }",
    "  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24] }",
    "pools:",
    "  kas-a:",
    "    network: mgmt",
    "    backends: [\"10.32.96.105:30918\", { address: \"10.32.96.106:30918\", weight: 2, name: node-2 }]",
    "services:",
    "  api-a: { network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], pool: kas-a }",
    "  dns-a: { network: tenant-a, listen: [\"192.168.203.110:53/udp\"], pool: kas-a }",
    "limits: { snat_addresses: 8 }",
];

/// The valid file with some lines replaced; an empty text leaves the line empty.
fn file(changes: &[(usize, &str)]) -> String {
    let mut lines = LINES;
    for (line, text) in changes {
        lines[line - 1] = text;
    }
    lines.join("\n")
}

/// The problems of `text` as (line, key, words).
fn problems(text: &str) -> Vec<(usize, String, String)> {
    match parse("lb.yaml", text) {
        Ok(config) => panic!("accepted: {config:?}"),
        Err(problems) => problems
            .as_slice()
            .iter()
            .map(|problem| (problem.line, problem.key.clone(), problem.words.clone()))
            .collect(),
    }
}

/// Asserts that the changed file has one problem, at the first changed line.
fn refused(changes: &[(usize, &str)], key: &str, piece: &str) {
    refused_at(changes, changes[0].0, key, piece);
}

fn refused_at(changes: &[(usize, &str)], line: usize, key: &str, piece: &str) {
    let problems = problems(&file(changes));
    let [(found_line, found_key, words)] = problems.as_slice() else {
        panic!("{changes:?}: not one problem: {problems:#?}");
    };
    assert_eq!((*found_line, found_key.as_str()), (line, key), "{words}");
    assert!(words.contains(piece), "{words:?} does not say {piece:?}");
}

fn accepted(changes: &[(usize, &str)]) -> Config {
    match parse("lb.yaml", &file(changes)) {
        Ok(config) => config,
        Err(problems) => panic!("{changes:?}:\n{problems}"),
    }
}

/// Validates `bytes` as `load` would those of a file `f`.
fn parse_bytes(bytes: &[u8]) -> Result<Config, Problems> {
    let mut findings = Findings::new("f");
    let text = files::into_text(bytes.to_vec(), place::MAIN, &mut findings);
    let raw = text.and_then(|text| files::read_text(&text, &mut findings));
    resolve(raw, findings).map(|resolved| resolved.config)
}

fn mgmt(rest: &str) -> String {
    format!("  mgmt: {{ role: mgmt, interface: eth1, {rest} }}")
}

fn tenant(rest: &str) -> String {
    format!("  tenant-a: {{ role: tenant, interface: eth0, {rest} }}")
}

fn backends(list: &str) -> String {
    format!("    backends: [{list}]")
}

fn api(listen: &str) -> String {
    format!("  api-a: {{ network: tenant-a, listen: [{listen}], pool: kas-a }}")
}

#[test]
fn a_valid_file_is_read_in_its_order() {
    let config = accepted(&[]);
    let names: Vec<_> = config
        .networks
        .iter()
        .map(|net| net.name.as_str())
        .collect();
    assert_eq!(names, ["mgmt", "tenant-a"]);
    let mgmt = config.network("mgmt").unwrap();
    assert_eq!((mgmt.role, mgmt.interface.as_str()), (Role::Mgmt, "eth1"));
    assert_eq!(mgmt.prefixes, ["10.32.96.0/20".parse().unwrap()]);
    let snat = Snat {
        address: IpAddr::from([10, 32, 96, 50]),
        first_port: 1024,
        ports: 56_320,
    };
    assert_eq!(mgmt.snat, [snat]);
    let pool = config.pool("kas-a").unwrap();
    assert_eq!(pool.network, "mgmt");
    let backends: Vec<_> = pool
        .backends
        .iter()
        .map(|backend| (backend.name.as_str(), backend.port, backend.weight))
        .collect();
    assert_eq!(
        backends,
        [("10.32.96.105:30918", 30918, 1), ("node-2", 30918, 2)]
    );
    let service = &config.services[0];
    assert_eq!(
        (
            service.name.as_str(),
            service.target.pools().next().unwrap()
        ),
        ("api-a", "kas-a")
    );
    assert_eq!(service.listen[0].to_string(), "192.168.203.110:6443/tcp");
    assert_eq!(config.limits, Limits::default());
    assert!(config.network("kas-a").is_none() && config.pool("mgmt").is_none());
}

#[test]
fn a_missing_file_is_a_problem_without_a_line() {
    let problems = load(Path::new("/nonexistent/lb.yaml")).unwrap_err();
    assert!(
        problems
            .to_string()
            .starts_with("/nonexistent/lb.yaml: cannot be read: ")
    );
    assert_eq!(problems.as_slice()[0].line, 0);
}

#[test]
fn bytes_that_are_no_configuration_are_refused() {
    let problems = parse_bytes(b"version: 1\n# \xff\n").unwrap_err();
    assert_eq!(problems.to_string(), "f:2: this line is not UTF-8 text");
    let problems = load(Path::new("/dev/zero")).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "/dev/zero: more than 4 MiB; is it a configuration?"
    );
}

#[test]
fn all_problems_are_listed_in_the_order_of_the_lines() {
    let text = file(&[
        (1, "version: 3"),
        (4, &tenant("prefixes: [192.168.203.0/24], mtu: 5")),
        (7, "    network: mgmtt"),
        (
            10,
            &api("\"192.168.203.0:6443/tcp\", \"192.168.203.7:0/tcp\""),
        ),
    ]);
    let keys: Vec<_> = problems(&text)
        .into_iter()
        .map(|(line, key, _)| (line, key))
        .collect();
    let expected = [
        (1, "version"),
        (4, "networks.tenant-a.mtu"),
        (7, "pools.kas-a.network"),
        (10, "services.api-a.listen[0]"),
        (10, "services.api-a.listen[1]"),
    ];
    assert_eq!(keys, expected.map(|(line, key)| (line, key.to_owned())));
}

#[test]
fn an_empty_file_lacks_what_is_required() {
    let missing = "missing; this key is required".to_owned();
    let expected = ["version", "networks"].map(|key| (1, key.to_owned(), missing.clone()));
    assert_eq!(problems("# nothing\n"), expected);
    assert_eq!(
        problems("[]")[0].2,
        "found a list, expected a mapping (key: value)"
    );
}

#[test]
fn one_mistake_is_reported_once() {
    // A misspelt key is not missing as well.
    let text = "  tenant-a: { role: tenant, interfcae: eth0, prefixes: [192.168.203.0/24] }";
    refused(&[(4, text)], "networks.tenant-a.interfcae", "did you mean");
    refused(
        &[(3, &mgmt("prefixes: [10.32.96.0/20], snta: [10.32.96.50]"))],
        "networks.mgmt.snta",
        "did you mean",
    );
    refused(&[(2, "network:")], "network", "did you mean \"networks\"?");
    refused(&[(5, "pool:")], "pool", "did you mean \"pools\"?");
    refused(
        &[(2, "networks: []"), (3, ""), (4, "")],
        "networks",
        "found a list",
    );
    // A reference to a network that cannot be read is not reported.
    refused(
        &[(3, "  mgmt: eth1")],
        "networks.mgmt",
        "expected a mapping",
    );
    refused(
        &[(3, &mgmt("prefixes: [10.32.96.0/20], snat: [x]"))],
        "networks.mgmt.snat[0]",
        "not an IP address",
    );
    refused(
        &[(3, &mgmt("prefixes: [10.32.96.1/20], snat: [10.32.96.50]"))],
        "networks.mgmt.prefixes[0]",
        "host bits",
    );
    refused(
        &[(3, &mgmt("prefixes: [{}], snat: [10.32.96.50]"))],
        "networks.mgmt.prefixes[0]",
        "a mapping",
    );
    refused(
        &[(6, "  kas-a: 1"), (7, ""), (8, "")],
        "pools.kas-a",
        "expected a mapping",
    );
}
