//! The rules of pools and backends.

use super::*;

#[test]
fn a_pool_needs_its_network_and_a_known_balance() {
    refused(
        &[(7, "    network: mgnt")],
        "pools.kas-a.network",
        "no network is called \"mgnt\"; did you mean \"mgmt\"?",
    );
    refused(
        &[(7, "    network: x")],
        "pools.kas-a.network",
        "expected one of \"mgmt\", \"tenant-a\"",
    );
    accepted(&[(7, "    network: mgmt\n    balance: maglev")]);
    refused_at(
        &[(7, "    network: mgmt\n    balance: random")],
        8,
        "pools.kas-a.balance",
        "found \"random\", expected maglev, round-robin, least-connections or source",
    );
    for (word, algorithm) in [
        ("round-robin", Algorithm::RoundRobin),
        ("least-connections", Algorithm::LeastConnections),
        ("source", Algorithm::Source),
    ] {
        let pool = format!("    network: mgmt\n    balance: {word}");
        assert_eq!(accepted(&[(7, &pool)]).pools[0].balance, algorithm);
    }
}

#[test]
fn clients_stay_for_a_time_with_the_algorithm_that_has_them_stay() {
    let with = |keys: &str| format!("    network: mgmt\n    {keys}");
    for (text, seconds) in [("1s", 1), ("1s1ms", 2), ("30d", 30 * 24 * 60 * 60)] {
        let config = accepted(&[(
            7,
            &with(&format!("balance: source\n    source_timeout: {text}")),
        )]);
        assert_eq!(config.pools[0].source_timeout_seconds(), seconds);
    }
    let config = accepted(&[(7, &with("balance: source"))]);
    assert_eq!(config.pools[0].source_timeout, None);
    assert_eq!(config.pools[0].source_timeout_seconds(), 0);
    let key = "pools.kas-a.source_timeout";
    for text in ["0s", "999ms", "30d1s"] {
        let keys = with(&format!("source_timeout: {text}\n    balance: source"));
        let words = format!("found \"{text}\", expected 1s to 30d");
        refused_at(&[(7, &keys)], 8, key, &words);
    }
    let words = "only a pool with `balance: source` has clients that stay with a backend";
    refused_at(&[(7, &with("source_timeout: 1h"))], 8, key, words);
    let keys = with("balance: least-connections\n    source_timeout: 1h");
    refused_at(&[(7, &keys)], 9, key, words);
}

#[test]
fn a_limit_of_each_backend_is_a_number_that_a_record_has_room_for() {
    let with = |number: &str| format!("    network: mgmt\n    max_connections: {number}");
    for number in [1, 65_535] {
        let config = accepted(&[(7, &with(&number.to_string()))]);
        assert_eq!(config.pools[0].max_connections, Some(number));
    }
    assert_eq!(accepted(&[]).pools[0].max_connections, None);
    for number in ["0", "65536"] {
        let key = "pools.kas-a.max_connections";
        let words = format!("found {number}, expected 1 to 65535");
        refused_at(&[(7, &with(number))], 8, key, &words);
    }
}

#[test]
fn a_pool_may_want_a_header_of_the_one_version() {
    let with = |word: &str| format!("    network: mgmt\n    proxy_protocol: {word}");
    let without_dns = (11, "");
    let config = accepted(&[(7, &with("v2")), without_dns]);
    assert_eq!(config.pools[0].proxy_protocol, Some(ProxyProtocol::V2));
    assert!(config.is_of_cell(&config.services[0]));
    let config = accepted(&[]);
    assert_eq!(config.pools[0].proxy_protocol, None);
    assert!(!config.is_of_cell(&config.services[0]));
    for word in ["v1", "true", "V2", "2"] {
        refused_at(
            &[(7, &with(word)), (11, ""), (12, "")],
            8,
            "pools.kas-a.proxy_protocol",
            &format!("found \"{word}\", expected v2 or none"),
        );
    }
}

/// There is no place for a header in front of datagrams.
#[test]
fn a_pool_that_wants_a_header_has_no_udp() {
    let words = "192.168.203.110:53/udp is UDP, which has no connection to begin with a header, but pool kas-a \
                 has proxy_protocol in line 8; expected tcp, or another pool";
    let pool = "    network: mgmt\n    proxy_protocol: v2";
    refused_at(&[(7, pool)], 12, "services.dns-a.listen[0]", words);
    let both = api("\"192.168.203.110:6443/tcp\", \"192.168.203.110:53/udp\"");
    refused_at(
        &[(7, pool), (10, &both), (11, "")],
        11,
        "services.api-a.listen[1]",
        words,
    );
}

/// A default is for every pool that does not say otherwise.
#[test]
fn the_header_may_be_a_default() {
    let defaults = "limits: {}\ndefaults: { pool: { proxy_protocol: v2 } }";
    let config = accepted(&[(11, ""), (12, defaults)]);
    assert_eq!(config.pools[0].proxy_protocol, Some(ProxyProtocol::V2));
    refused_at(
        &[(12, defaults)],
        11,
        "services.dns-a.listen[0]",
        "pool kas-a has proxy_protocol in line 13",
    );
    let none = "    network: mgmt\n    proxy_protocol: none";
    let config = accepted(&[(7, none), (12, defaults)]);
    assert_eq!(config.pools[0].proxy_protocol, None);
    assert!(!config.is_of_cell(&config.services[0]));
}

#[test]
fn backends_are_hosts_of_their_network() {
    let key = "pools.kas-a.backends[0]";
    refused(
        &[(8, &backends("\"10.33.0.1:80\""))],
        key,
        "is a backend outside its network's prefixes",
    );
    refused(
        &[(8, &backends("\"10.32.96.0:80\""))],
        key,
        "is the network address",
    );
    refused(&[(8, &backends("\"10.32.96.105\""))], key, "has no port");
    refused(
        &[(8, &backends("\"10.32.96.105:0\""))],
        key,
        "\"0\" is not a port; expected 1 to 65535",
    );
    refused(
        &[(8, &backends("\"10.32.96.105:65536\""))],
        key,
        "is not a port",
    );
    refused(
        &[(8, &backends("\"[fd00::1]\""))],
        key,
        "has no port; expected [ADDRESS]:PORT",
    );
    refused(
        &[(8, &backends("{ address: \"10.33.0.1:80\" }"))],
        &format!("{key}.address"),
        "outside",
    );
    assert!(accepted(&[(8, &backends(""))]).pools[0].backends.is_empty());
}

#[test]
fn backends_are_unique_within_their_pool() {
    refused(
        &[(
            8,
            &backends("\"10.32.96.105:80\", { address: \"10.32.96.105:80\", name: b }"),
        )],
        "pools.kas-a.backends[1].address",
        "10.32.96.105:80 is already listed in line 8",
    );
    refused(
        &[(
            8,
            &backends(
                "{ address: \"10.32.96.105:80\", name: b }, { address: \"10.32.96.106:80\", name: b }",
            ),
        )],
        "pools.kas-a.backends[1].name",
        "\"b\" is already used in line 8",
    );
    accepted(&[(8, &backends("\"10.32.96.105:80\", \"10.32.96.105:81\""))]);
}

#[test]
fn weights_are_1_to_256() {
    let with = |weight: &str| {
        backends(&format!(
            "{{ address: \"10.32.96.105:80\", weight: {weight} }}"
        ))
    };
    for weight in ["0", "257", "65537"] {
        let words = format!("found {weight}, expected 1 to 256");
        refused(
            &[(8, &with(weight))],
            "pools.kas-a.backends[0].weight",
            &words,
        );
    }
    assert_eq!(
        accepted(&[(8, &with("256"))]).pools[0].backends[0].weight,
        256
    );
}

#[test]
fn a_backend_is_never_the_load_balancer_itself() {
    refused(
        &[(8, &backends("\"10.32.96.50:80\""))],
        "pools.kas-a.backends[0]",
        "10.32.96.50 is a SNAT address of network mgmt in line 3",
    );
    let snat = tenant("prefixes: [192.168.203.0/24], snat: [192.168.203.9]");
    refused_at(
        &[
            (4, &snat),
            (7, "    network: tenant-a"),
            (8, &backends("\"192.168.203.110:80\"")),
        ],
        8,
        "pools.kas-a.backends[0]",
        "192.168.203.110 is the VIP of service api-a in line 10",
    );
}

#[test]
fn a_pool_in_use_needs_a_snat_address() {
    let words =
        "network mgmt in line 3 has no snat address, but service api-a in line 10 uses this pool";
    let key = "pools.kas-a.network";
    refused_at(&[(3, &mgmt("prefixes: [10.32.96.0/20]"))], 7, key, words);
    refused_at(
        &[(3, &mgmt("prefixes: [10.32.96.0/20], snat: []"))],
        7,
        key,
        words,
    );
    let unused = accepted(&[(3, &mgmt("prefixes: [10.32.96.0/20]")), (10, ""), (11, "")]);
    assert_eq!(unused.pools.len(), 1);
}
