//! Both families: services of IPv6 beside those of IPv4, and what cannot be mixed.

use std::time::Duration;

use super::*;

/// A valid file, of which the tests change words.
const BOTH: &str = r#"version: 1
networks:
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20, fd00:32:96::/64], snat: [fd00:32:96::50, 10.32.96.50] }
  tenant-a: { role: tenant, interface: eth0, prefixes: [192.168.203.0/24, fd00:203::/64], routes: [{ to: ::/0, via: fe80::1 }, { to: fd00:7::/48, via: fd00:203::7 }] }
  uplink: { role: uplink, interface: eth2, address: host, prefixes: [10.9.0.0/24], snat: [{ address: 10.9.0.1, ports: 2000-2999 }] }
nodes:
  kas: { network: mgmt, addresses: ["FD00:32:96:0::105", { name: node-2, address: "fd00:32:96::106" }] }
pools:
  kas-a: { network: mgmt, backends: ["10.32.96.105:30918"] }
  kas-6: { network: mgmt, health: { http: {} }, backends: [{ nodes: kas, port: 30918 }, { nodes: kas, port: 30919 }, "[fd00:32:96::107]:1", { address: "[fd00:32:96::108]:1", weight: 2 }] }
services:
  api-a: { network: tenant-a, listen: ["192.168.203.110:6443/tcp"], pool: kas-a, deny: [10.0.0.0/8] }
  api-6: { network: tenant-a, listen: ["[FD00:203::110]:6443/tcp", "[fd00:203::110]:53/udp"], pool: kas-6, deny: [fd00:7:8::/64] }
"#;

fn changed(from: &str, to: &str) -> String {
    assert!(BOTH.contains(from), "{from}");
    BOTH.replace(from, to)
}

fn accepts(text: &str) -> Config {
    parse("f", text).unwrap_or_else(|problems| panic!("{problems}"))
}

/// Asserts that the changed file has one problem, in this line and of this key.
fn refuses((from, to): (&str, &str), (line, key): (usize, &str), words: &str) {
    let found = problems(&changed(from, to));
    let expected = [(line, key.to_owned(), words.to_owned())];
    assert_eq!(found, expected, "{to}");
}

#[test]
fn a_service_of_ipv6_stands_beside_one_of_ipv4() {
    let config = accepts(BOTH);
    let pool = config.pool("kas-6").unwrap();
    let names = pool.backends.iter().map(|backend| backend.name.as_str());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "fd00:32:96::105",
            "node-2",
            "[fd00:32:96::105]:30919",
            "node-2:30919",
            "[fd00:32:96::107]:1",
            "[fd00:32:96::108]:1"
        ]
    );
    let service = &config.services[1];
    let listen: Vec<_> = service.listen.iter().map(Listen::to_string).collect();
    assert_eq!(
        listen,
        ["[fd00:203::110]:6443/tcp", "[fd00:203::110]:53/udp"]
    );
    let rules = |service: usize| {
        let rules = config.services[service].rules.iter();
        let rules = rules.map(|rule| (rule.prefix.to_string(), rule.allow));
        rules.collect::<Vec<_>>()
    };
    let rule = |prefix: &str, allow| (prefix.to_owned(), allow);
    // Those of the other family never come.
    assert_eq!(
        rules(0),
        [rule("0.0.0.0/0", true), rule("10.0.0.0/8", false)]
    );
    assert_eq!(rules(1), [rule("::/0", true), rule("fd00:7:8::/64", false)]);
    let tenant = config.network("tenant-a").unwrap();
    let hop = |address: &str| tenant.next_hop(address.parse().unwrap()).to_string();
    assert_eq!(hop("fd00:203::9"), "fd00:203::9");
    assert_eq!(hop("fd00:7::1"), "fd00:203::7");
    assert_eq!(hop("2001:db8::1"), "fe80::1");
    assert_eq!(hop("10.1.1.1"), "10.1.1.1");
}

#[test]
fn both_families_survive_being_written_out() {
    let any = "prefixes: [192.168.203.0/24, fd00:203::/64]";
    let with = |rest: &str| changed(any, &format!("{any}, {rest}"));
    for text in [
        BOTH.to_owned(),
        with("sources: any"),
        with("sources: [192.0.2.0/24, ::/0]"),
        with("backends: [fd00:203::/65]"),
        changed(
            "snat: [fd00:32:96::50,",
            "snat: [{ address: fd00:32:96::50, ports: 2000-2001 },",
        ),
        changed("deny: [fd00:7:8::/64]", "allow: [fd00:7:8::/64], deny: any"),
    ] {
        let config = accepts(&text);
        let written = expanded::text(&config, &Origins::default()).unwrap();
        assert_eq!(parse("f", &written).as_ref(), Ok(&config), "{written}");
    }
}

#[test]
fn nobody_mixes_families() {
    refuses(
        (
            "[\"10.32.96.105:30918\"]",
            "[\"10.32.96.105:30918\", \"[fd00:32:96::9]:1\"]",
        ),
        (9, "pools.kas-a.backends[1]"),
        "pool kas-a has IPv4 and IPv6 backends; a pool has one family",
    );
    refuses(
        (
            "[\"192.168.203.110:6443/tcp\"]",
            "[\"192.168.203.110:6443/tcp\", \"[fd00:203::9]:1/tcp\"]",
        ),
        (12, "services.api-a.listen[1]"),
        "fd00:203::9 is of IPv6, but the backends of pool kas-a are of IPv4; expected a service and a \
         pool for each family",
    );
    refuses(
        ("\"[fd00:203::110]:53/udp\"", "\"192.168.203.110:53/udp\""),
        (13, "services.api-6.listen[1]"),
        "192.168.203.110 is of IPv4, but the backends of pool kas-6 are of IPv6; expected a service \
         and a pool for each family",
    );
    refuses(
        ("to: fd00:7::/48", "to: 10.7.0.0/16"),
        (4, "networks.tenant-a.routes[1].via"),
        "fd00:203::7 cannot be the gateway of 10.7.0.0/16; expected a gateway of IPv4",
    );
}

#[test]
fn flows_of_ipv6_come_from_an_address_of_ipv6() {
    refuses(
        ("snat: [fd00:32:96::50, 10.32.96.50]", "snat: [10.32.96.50]"),
        (10, "pools.kas-6.network"),
        "network mgmt in line 3 has no IPv6 snat address, but service api-6 in line 13 uses this pool",
    );
    refuses(
        (
            "snat: [fd00:32:96::50, 10.32.96.50]",
            "snat: [fd00:32:96::50]",
        ),
        (9, "pools.kas-a.network"),
        "network mgmt in line 3 has no IPv4 snat address, but service api-a in line 12 uses this pool",
    );
    let neither = changed(", snat: [fd00:32:96::50, 10.32.96.50]", "");
    for (_, _, words) in problems(&neither) {
        assert!(
            words.starts_with("network mgmt in line 3 has no snat address, but"),
            "{words}"
        );
    }
    refuses(
        ("fd00:32:96::50,", "fd00:33::50,"),
        (3, "networks.mgmt.snat[0]"),
        "fd00:33::50 is a SNAT address outside its network's prefixes; network mgmt has \
         10.32.96.0/20, fd00:32:96::/64",
    );
    refuses(
        ("fd00:32:96::50,", "\"fd00:32:96::\","),
        (3, "networks.mgmt.snat[0]"),
        "fd00:32:96:: is the address of any router of fd00:32:96::/64 (RFC 4291 section 2.6.1)",
    );
    // What is IPv4's broadcast address is a host's here.
    assert!(
        parse(
            "f",
            &changed("fd00:32:96::50,", "\"fd00:32:96::ffff:ffff:ffff:ffff\",")
        )
        .is_ok()
    );
}

#[test]
fn what_ipv6_does_not_have_is_refused() {
    refuses(
        (
            "prefixes: [10.9.0.0/24]",
            "prefixes: [10.9.0.0/24, fd00:9::/64]",
        ),
        (5, "networks.uplink.prefixes[1]"),
        "fd00:9::/64 is of IPv6, which a network with address: host cannot have; leave it out, or \
         give the network addresses of its own",
    );
    refuses(
        (
            "tenant-a, listen: [\"[FD00:203::110]:6443/tcp\", ",
            "uplink, listen: [",
        ),
        (13, "services.api-6.listen[0]"),
        "fd00:203::110 is a VIP of IPv6, which network uplink cannot have with address: host; \
         expected an IPv4 address, or a network with addresses of its own",
    );
    refuses(
        ("deny: [fd00:7:8::/64]", "keepalive: 10m"),
        (13, "services.api-6.keepalive"),
        "flows of IPv6 are not probed, and this service has some in line 13; leave keepalive out",
    );
    let found = problems(&changed("health: { http: {} }", "proxy_protocol: v2"));
    let expected = (
        10,
        "pools.kas-6.proxy_protocol".to_owned(),
        "pool kas-6 has IPv6 backends in line 7, which get no header of the PROXY protocol; \
         expected proxy_protocol: none"
            .to_owned(),
    );
    assert_eq!(found[0], expected);
}

#[test]
fn nobody_looks_at_names_in_ipv6() {
    let sni = "sni: { routes: [{ names: [a.b], pool: kas-6 }] }";
    let text = changed(
        ", \"[fd00:203::110]:53/udp\"], pool: kas-6",
        &format!("], {sni}"),
    );
    let found = problems(&text);
    let words = found
        .iter()
        .map(|(_, key, words)| (key.as_str(), words.as_str()));
    assert_eq!(
        words.collect::<Vec<_>>(),
        [
            (
                "services.api-6.listen[0]",
                "fd00:203::110 is of IPv6, which has no routes by name; expected an IPv4 address, or \
                 pool instead of sni and http"
            ),
            (
                "services.api-6.sni.routes[0].pool",
                "the backends of \"kas-6\" are of IPv6, which no route by name leads to; expected a \
                 pool of IPv4"
            ),
        ]
    );
}

/// The registry has room for all names with an IPv4 address, and for most with one of IPv6.
#[test]
fn names_leave_room_for_an_address() {
    let long = "n".repeat(63);
    let text = BOTH
        .replace(" mgmt:", &format!(" {long}:"))
        .replace("network: mgmt", &format!("network: {long}"))
        .replace("kas-6", &"p".repeat(63));
    accepts(&text);
    let named = format!(
        "{{ address: \"[fd00:32:96::108]:1\", name: {}",
        "b".repeat(69)
    );
    let text = text.replace("{ address: \"[fd00:32:96::108]:1\"", &named);
    accepts(&text);
    let prefix = "fd00:32:96::/64";
    let text = text.replace(prefix, "fd00:32:96::/48");
    let text = text.replace("fd00:32:96::108", "fd00:32:96:1111:2222:3333:4444:5555");
    let found = problems(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].2.contains("characters too many together"),
        "{found:?}"
    );
}

#[test]
fn a_list_of_the_other_family_alone_is_a_mistake() {
    for list in ["deny", "allow"] {
        refuses(
            ("deny: [fd00:7:8::/64]", &format!("{list}: [10.0.0.0/8]")),
            (13, &format!("services.api-6.{list}[0]")),
            "10.0.0.0/8 is of IPv4, but service api-6 listens at IPv6 alone; expected a prefix of IPv6",
        );
    }
    accepts(&changed(
        "deny: [fd00:7:8::/64]",
        "deny: [10.0.0.0/8, fd00:7:8::/64]",
    ));
}

/// A default `deny` of the other family takes no client from a service; a default `allow` of it leaves it none.
#[test]
fn a_default_list_of_the_other_family_denies_nobody_and_lets_nobody_in() {
    let with = |list: &str| {
        changed(
            "services:\n",
            &format!("defaults: {{ service: {{ {list}: [10.8.0.0/16] }} }}\nservices:\n"),
        )
        .replace(", deny: [fd00:7:8::/64]", "")
    };
    let config = accepts(&with("deny"));
    let rules = config.services[1].rules.iter();
    assert!(
        rules
            .clone()
            .any(|rule| rule.allow && rule.prefix.to_string() == "::/0")
    );
    let words = "10.8.0.0/16 among the defaults is of IPv4, but service api-6 listens at IPv6 alone; \
                 expected a prefix of IPv6";
    let expected = [(14, "services.api-6".to_owned(), words.to_owned())];
    assert_eq!(problems(&with("allow")), expected);
}

#[test]
fn a_vip_whose_clients_may_not_come_is_a_mistake() {
    let any = "prefixes: [192.168.203.0/24, fd00:203::/64]";
    let with = |sources: &str| format!("{any}, sources: [{sources}]");
    let words = |address: &str, from: &str, family: &str| {
        format!(
            "{address} is of {family}, but clients of network tenant-a come from {from} alone; expected a \
             prefix of {family} among its sources"
        )
    };
    let six = problems(&changed(any, &with("192.168.203.0/24, 10.0.0.0/8")));
    let at = |index: usize| format!("services.api-6.listen[{index}]");
    let said = words("fd00:203::110", "192.168.203.0/24, 10.0.0.0/8", "IPv6");
    assert_eq!(six, [(13, at(0), said.clone()), (13, at(1), said)]);
    refuses(
        (any, &with("fd00:203::/64")),
        (12, "services.api-a.listen[0]"),
        &words("192.168.203.110", "fd00:203::/64", "IPv4"),
    );
    accepts(&changed(any, &with("192.168.203.0/24, fd00:203::/64")));
    // The clients are not known before all of the list can be read.
    refuses(
        (any, &with("192.168.203.0/24, fd00::/200")),
        (4, "networks.tenant-a.sources[1]"),
        "\"fd00::/200\" has no prefix length of 0 to 128",
    );
}

/// A link-local address is on every link, but without IPv6 there is no host for it.
#[test]
fn a_gateway_of_ipv6_is_for_a_network_with_ipv6() {
    let words = |network: &str| {
        format!(
            "fe80::1 is a gateway of IPv6, of which network {network} has no prefix; expected one in prefixes"
        )
    };
    let without = changed(
        "routes: [{ to: ::/0, via: fe80::1 }, { to: fd00:7::/48, via: fd00:203::7 }]",
        "",
    )
    .replace(
        ", fd00:32:96::/64]",
        "], routes: [{ to: ::/0, via: fe80::1 }]",
    );
    let found = problems(&without);
    let expected = (3, "networks.mgmt.routes[0].via".to_owned(), words("mgmt"));
    assert!(found.contains(&expected), "{found:?}");
    refuses(
        (
            "prefixes: [10.9.0.0/24],",
            "prefixes: [10.9.0.0/24], routes: [{ to: fd00:9::/64, via: fe80::1 }],",
        ),
        (5, "networks.uplink.routes[0].via"),
        &words("uplink"),
    );
}

#[test]
fn who_asks_for_a_name_comes_over_ipv4_or_through_a_proxy() {
    let shared = |rest: &str| {
        let shared =
            format!("sni: {{ routes: [{{ names: [a.b], pool: kas-a, from: [fd00::/8] }}]{rest} }}");
        changed(
            "], pool: kas-a, deny: [10.0.0.0/8]",
            &format!("], {shared}"),
        )
    };
    let said = |prefix: &str| {
        format!(
            "{prefix} is of IPv6, but service api-a listens at IPv4 alone; expected a prefix of IPv4"
        )
    };
    let key = "services.api-a.sni.routes[0].from[0]".to_owned();
    assert_eq!(problems(&shared("")), [(12, key, said("fd00::/8"))]);
    accepts(&shared(", proxy_protocol_from: [10.1.1.1/32]"));
    let key = "services.api-a.sni.proxy_protocol_from[0]".to_owned();
    let found = problems(&shared(", proxy_protocol_from: [fd00:1::/64]"));
    assert_eq!(found, [(12, key, said("fd00:1::/64"))]);
    let any = shared(", proxy_protocol_from: [10.1.1.1/32]").replace("[fd00::/8]", "any");
    let config = accepts(&any);
    let Target::Sni(sni) = &config.services[0].target else {
        panic!("{config:?}");
    };
    let from = sni.routes[0].from.iter().map(ToString::to_string);
    assert_eq!(from.collect::<Vec<_>>(), ["0.0.0.0/0", "::/0"]);
}

#[test]
fn a_pool_that_is_empty_now_will_be_of_one_family() {
    let empty = changed("backends: [\"10.32.96.105:30918\"]", "backends: []");
    accepts(&empty);
    let one = "listen: [\"192.168.203.110:6443/tcp\"]";
    assert!(empty.contains(one));
    let two = "listen: [\"192.168.203.110:6443/tcp\", \"[fd00:203::111]:6443/tcp\"]";
    let words = "fd00:203::111 is of IPv6, but 192.168.203.110 of IPv4; expected a service and a pool \
                 for each family";
    let expected = [(12, "services.api-a.listen[1]".to_owned(), words.to_owned())];
    assert_eq!(problems(&empty.replace(one, two)), expected);

    // An IPv6 backend gets no header of the PROXY protocol.
    let six = empty
        .replace(one, "listen: [\"[fd00:203::111]:6443/tcp\"]")
        .replace(", deny: [10.0.0.0/8]", "")
        .replace("backends: [] }", "backends: [], proxy_protocol: v2 }");
    let words = "fd00:203::111 is of IPv6, whose backends get no header of the PROXY protocol, but \
                 pool kas-a has proxy_protocol in line 9; expected proxy_protocol: none";
    let expected = [(12, "services.api-a.listen[0]".to_owned(), words.to_owned())];
    assert_eq!(problems(&six), expected);
}

#[test]
fn a_default_that_needs_probes_is_for_services_of_ipv4() {
    let with = changed(
        "services:\n",
        "defaults: { service: { idle_timeout: never, keepalive: 60s } }\nservices:\n",
    );
    let config = accepts(&with);
    let [four, six] = config.services.as_slice() else {
        panic!("{config:?}");
    };
    assert_eq!(four.idle_timeout, None);
    assert_eq!(four.keepalive, Some(Duration::from_secs(60)));
    assert_eq!(six.keepalive, None);
    assert!(six.idle_timeout.is_some());
}
