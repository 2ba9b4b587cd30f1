//! Where the control plane answers beside its socket: FEATURES C16.

use std::{fs, fs::Permissions, os::unix::fs::PermissionsExt as _};

use super::*;

fn admin(rest: &str) -> String {
    format!("admin: {{ http: {{ {rest} }} }}")
}

fn listener(rest: &str) -> Option<AdminHttp> {
    accepted(&[(12, &admin(rest))]).admin.http
}

#[test]
fn without_the_key_nothing_listens() {
    assert_eq!(accepted(&[]).admin.http, None);
    assert_eq!(accepted(&[(12, "admin: {}")]).admin.http, None);
}

#[test]
fn a_loopback_address_needs_no_more() {
    let http = listener("listen: \"127.0.0.1:9180\"").unwrap();
    assert_eq!(http.listen.to_string(), "127.0.0.1:9180");
    assert_eq!((http.token_file, http.allow_tenant), (None, false));
    let http = listener("listen: \"[::1]:9180\", hosts: [LB.example]").unwrap();
    assert_eq!(http.hosts, ["lb.example"]);
}

#[test]
fn another_address_needs_a_token() {
    let listen = "listen: \"10.32.96.7:9180\"";
    refused(
        &[(12, &admin(listen))],
        "admin.http.token_file",
        "missing; 10.32.96.7 is no loopback address",
    );
    let http = listener(&format!("{listen}, token_file: /etc/lb/admin.token")).unwrap();
    let token = http.token_file.unwrap();
    assert_eq!(token, Path::new("/etc/lb/admin.token"));
    refused(
        &[(12, &admin(&format!("{listen}, token_file: admin.token")))],
        "admin.http.token_file",
        "\"admin.token\" is not the path of a file",
    );
}

/// FEATURES C16: what clients may reach needs an explicit override.
#[test]
fn c16_an_address_that_clients_may_reach_is_refused_unless_it_is_allowed() {
    let token = "token_file: /etc/lb/admin.token";
    for (address, words) in [
        ("0.0.0.0", "0.0.0.0 is every address of the host"),
        ("[::]", ":: is every address of the host"),
        (
            "192.168.203.110",
            "192.168.203.110 is a VIP of service api-a",
        ),
        (
            "192.168.203.7",
            "192.168.203.7 is in 192.168.203.0/24, a prefix of network tenant-a (tenant)",
        ),
        ("[::ffff:192.168.203.7]", "a prefix of network tenant-a"),
    ] {
        let listen = format!("listen: \"{address}:9180\", {token}");
        refused(&[(12, &admin(&listen))], "admin.http.listen", words);
        let allowed = format!("{listen}, allow_tenant: true");
        assert!(listener(&allowed).unwrap().allow_tenant);
    }
}

#[test]
fn c16_the_sources_of_clients_are_no_address_for_it_either() {
    let sources = tenant("prefixes: [192.168.203.0/24], sources: [192.168.203.0/24, 10.0.0.0/8]");
    let at = |address: &str| {
        admin(&format!(
            "listen: \"{address}:9180\", token_file: /etc/lb/admin.token"
        ))
    };
    refused(
        &[(12, &at("10.1.2.3")), (4, &sources)],
        "admin.http.listen",
        "10.1.2.3 is in 10.0.0.0/8, the sources of network tenant-a",
    );
    // On the link of management, however wide they are.
    accepted(&[(12, &at("10.32.96.7")), (4, &sources)]);
}

#[test]
fn what_is_no_endpoint_and_no_host_is_refused() {
    for wrong in [
        "9180",
        "localhost:9180",
        "127.0.0.1",
        "127.0.0.1:0",
        "::1:9180",
        "224.0.0.1:9180",
    ] {
        refused(
            &[(12, &admin(&format!("listen: \"{wrong}\"")))],
            "admin.http.listen",
            "is not an address and port of this host",
        );
    }
    for wrong in ["", "a b", "lb/metrics", "ü"] {
        let hosts = format!("listen: \"127.0.0.1:9180\", hosts: [\"{wrong}\"]");
        refused(
            &[(12, &admin(&hosts))],
            "admin.http.hosts[0]",
            "is no name of a host",
        );
    }
    refused(
        &[(12, &admin("hosts: [lb]"))],
        "admin.http.listen",
        "missing",
    );
}

#[test]
fn a_token_that_others_may_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (token, main) = (folder.path().join("token"), folder.path().join("lb.yaml"));
    fs::write(&token, "0123456789abcdef\n").unwrap();
    let rest = format!(
        "listen: \"127.0.0.1:9180\", token_file: {}",
        token.display()
    );
    fs::write(&main, file(&[(12, &admin(&rest))])).unwrap();
    let load = |mode| {
        fs::set_permissions(&token, Permissions::from_mode(mode)).unwrap();
        load(&main).map(|config| config.admin.http.is_some())
    };
    assert!(load(0o600).unwrap());
    let problems = load(0o644).unwrap_err().to_string();
    assert!(
        problems.contains("lb.yaml:12: admin.http.token_file: ")
            && problems.contains("its mode 644 lets other users have it"),
        "{problems}"
    );
}
