//! The rules of a network's place, routes, sources, backends and SNAT ports.

use super::*;

fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

#[test]
fn a_frame_belongs_to_one_network() {
    for id in ["0", "4095", "70000"] {
        let words = format!("{id} is not a VLAN id; expected 1 to 4094");
        let text = tenant(&format!("vlan: {id}, prefixes: [192.168.203.0/24]"));
        refused(&[(4, &text)], "networks.tenant-a.vlan", &words);
    }
    let two = |first: &str, second: &str| {
        let entry = "role: tenant, interface: eth0, prefixes: [192.168.203.0/24]";
        format!("  tenant-a: {{ {entry}{first} }}\n  tenant-b: {{ {entry}{second} }}")
    };
    let config = accepted(&[(4, &two(", vlan: 1", ", vlan: 4094"))]);
    assert_eq!(config.network("tenant-b").unwrap().vlan, Some(4094));
    accepted(&[(4, &two("", ", vlan: 1"))]);
    refused_at(
        &[(4, &two(", vlan: 7", ", vlan: 7"))],
        5,
        "networks.tenant-b.vlan",
        "VLAN 7 of \"eth0\" already carries network tenant-a in line 4",
    );
    refused_at(
        &[(4, &two("", ""))],
        5,
        "networks.tenant-b.interface",
        "\"eth0\" without a vlan already carries network tenant-a in line 4",
    );
}

#[test]
fn only_an_untagged_network_without_a_tenant_has_the_hosts_address() {
    let key = "networks.tenant-a.address";
    let with = |rest: &str| {
        let entry = "interface: eth0, prefixes: [192.168.203.0/24]";
        format!("  tenant-a: {{ {entry}, {rest} }}")
    };
    let uplink = accepted(&[(4, &with("role: uplink, address: host"))]);
    assert!(uplink.networks[1].host && uplink.networks[1].role == Role::Uplink);
    assert!(!uplink.networks[0].host);
    accepted(&[(4, &with("role: mgmt, address: host"))]);
    let words = "a tenant's network has addresses of its own";
    refused(&[(4, &with("role: tenant, address: host"))], key, words);
    let words = "a network with a vlan has addresses of its own";
    let text = with("role: uplink, address: host, vlan: 5");
    refused(&[(4, &text)], key, words);
    let text = with("role: uplink, address: 192.168.203.1");
    let words = "found \"192.168.203.1\", expected host";
    refused(&[(4, &text)], key, words);
}

#[test]
fn routes_lead_elsewhere_by_a_gateway_that_is_on_link() {
    let key = "networks.tenant-a.routes";
    let with = |routes: &str| tenant(&format!("prefixes: [192.168.203.0/24], routes: [{routes}]"));
    let routes = "{ to: 10.1.0.0/16, via: 192.168.203.1 }, { to: 0.0.0.0/0, via: 192.168.203.2 }";
    let network = accepted(&[(4, &with(routes))]).networks.remove(1);
    assert_eq!(network.routes[0].to, net("10.1.0.0/16"));
    assert_eq!(network.routes[1].via, IpAddr::from([192, 168, 203, 2]));
    // What the default gateway leads to is no source and no backend unless the keys list it.
    assert_eq!(
        network.sources,
        [net("192.168.203.0/24"), net("10.1.0.0/16")]
    );
    assert_eq!(network.backends, network.sources);

    let to = |to: &str| with(&format!("{{ to: {to}, via: 192.168.203.1 }}"));
    let first = format!("{key}[0].to");
    let overlaps = "overlaps 192.168.203.0/24, which needs no gateway";
    refused(&[(4, &to("192.168.203.0/25"))], &first, overlaps);
    refused(&[(4, &to("192.168.0.0/16"))], &first, overlaps);
    refused(&[(4, &to("10.1.0.1/16"))], &first, "host bits set");
    refused(&[(4, &to("127.0.0.0/16"))], &first, "is a loopback address");
    accepted(&[(4, &to("10.1.2.3/32"))]);
    let twice = "{ to: 10.1.0.0/16, via: 192.168.203.1 }, { to: 10.1.0.0/16, via: 192.168.203.2 }";
    let words = "10.1.0.0/16 is already routed in line 4";
    refused(&[(4, &with(twice))], &format!("{key}[1].to"), words);
    let words = "missing";
    refused(
        &[(4, &with("{ to: 10.1.0.0/16 }"))],
        &format!("{key}[0].via"),
        words,
    );
}

#[test]
fn a_gateway_is_a_host_but_not_the_load_balancer() {
    let key = "networks.tenant-a.routes[0].via";
    let via = |via: &str| {
        tenant(&format!(
            "prefixes: [192.168.203.0/24], snat: [192.168.203.9], routes: [{{ to: 10.1.0.0/16, via: {via} }}]"
        ))
    };
    for (address, words) in [
        ("10.1.0.1", "is a gateway outside its network's prefixes"),
        ("192.168.203.0", "is the network address"),
        ("192.168.203.255", "is the broadcast address"),
        (
            "192.168.203.9",
            "is a SNAT address in line 4; expected a gateway",
        ),
        (
            "192.168.203.110",
            "is the VIP of service api-a in line 10; expected a gateway",
        ),
    ] {
        refused(&[(4, &via(address))], key, words);
    }
}

#[test]
fn sources_are_prefixes_or_any() {
    let key = "networks.tenant-a.sources";
    let with = |sources: &str| tenant(&format!("prefixes: [192.168.203.0/24], sources: {sources}"));
    let of = |sources: &str| accepted(&[(4, &with(sources))]).networks[1].sources.clone();
    assert_eq!(of("any"), [net("0.0.0.0/0"), net("::/0")]);
    assert_eq!(
        of("[192.0.2.0/24, ::/0]"),
        [net("192.0.2.0/24"), net("::/0")]
    );
    assert_eq!(
        of("[10.0.0.0/7, 192.168.203.5/32]"),
        [net("10.0.0.0/7"), net("192.168.203.5/32")]
    );
    assert_eq!(of("[\"::ffff:192.0.2.0/120\"]"), [net("192.0.2.0/24")]);
    refused(&[(4, &with("[]"))], key, "found an empty list");
    refused(&[(4, &with("all"))], key, "found \"all\", expected a list");
    let first = format!("{key}[0]");
    refused(
        &[(4, &with("[169.254.0.0/16]"))],
        &first,
        "is a link-local address",
    );
    refused(
        &[(4, &with("[\"fe80::/64\"]"))],
        &first,
        "is a link-local address",
    );
    let twice = with("[10.0.0.0/8, 10.0.0.0/8]");
    refused(
        &[(4, &twice)],
        &format!("{key}[1]"),
        "10.0.0.0/8 is already listed in line 4",
    );
}

#[test]
fn lists_of_prefixes_have_an_end() {
    let many = |count: usize, form: fn(String) -> String| {
        let host = |index: usize| form(format!("10.{}.{}.0/24", index / 256, index % 256));
        format!("[{}]", (0..count).map(host).collect::<Vec<_>>().join(", "))
    };
    let plain: fn(String) -> String = |prefix| prefix;
    let route: fn(String) -> String = |to| format!("{{ to: {to}, via: 192.168.203.1 }}");
    let with = |key: &str, list: String| {
        let prefixes = "prefixes: [192.168.203.0/24]";
        let text = tenant(&format!("{prefixes}, {key}: {list}"));
        text.replace(&format!("{prefixes}, prefixes"), "prefixes")
    };
    accepted(&[(4, &with("sources", many(1024, plain)))]);
    for (key, form) in [
        ("prefixes", plain),
        ("sources", plain),
        ("backends", plain),
        ("routes", route),
    ] {
        refused(
            &[(4, &with(key, many(1025, form)))],
            &format!("networks.tenant-a.{key}"),
            "found 1025 elements, expected at most 1024",
        );
    }
}

#[test]
fn backends_lie_where_their_network_has_them() {
    let key = "networks.mgmt.backends[0]";
    let with = |rest: &str| {
        mgmt(&format!(
            "prefixes: [10.32.96.0/20], snat: [10.32.96.50], {rest}"
        ))
    };
    let outside = "is neither on-link nor behind one gateway";
    refused(&[(3, &with("backends: [10.0.0.0/8]"))], key, outside);
    refused(&[(3, &with("backends: [10.40.0.0/16]"))], key, outside);
    let routed = "routes: [{ to: 10.40.0.0/16, via: 10.32.96.1 }]";
    let own = format!("backends: [10.32.96.0/20, 10.40.1.0/24], {routed}");
    accepted(&[(3, &with(&own))]);
    let behind = backends("\"10.40.1.5:80\"");
    accepted(&[(3, &with(&own)), (8, &behind)]);
    accepted(&[(3, &with(routed)), (8, &behind)]);
    let words = "10.40.1.5 is a backend outside its network's prefixes; network mgmt has backends in 10.32.96.0/20";
    refused_at(&[(8, &behind)], 8, "pools.kas-a.backends[0]", words);
    let default = "routes: [{ to: 0.0.0.0/0, via: 10.32.96.1 }]";
    refused_at(
        &[(3, &with(default)), (8, &behind)],
        8,
        "pools.kas-a.backends[0]",
        "outside",
    );
    let every = format!("{default}, backends: [0.0.0.0/0]");
    accepted(&[(3, &with(&every)), (8, &behind)]);
    let on_link = backends("\"10.32.111.255:80\"");
    let words = "is the broadcast address";
    refused_at(
        &[(3, &with(&every)), (8, &on_link)],
        8,
        "pools.kas-a.backends[0]",
        words,
    );
}

#[test]
fn snat_ports_are_those_of_flows() {
    let with = |snat: &str| mgmt(&format!("prefixes: [10.32.96.0/20], snat: [{snat}]"));
    let ports = |range: &str| with(&format!("{{ address: 10.32.96.50, ports: {range} }}"));
    let config = accepted(&[(3, &ports("2000-2999"))]);
    let snat = config.networks[0].snat[0];
    assert_eq!((snat.first_port, snat.ports), (2000, 1000));
    let config = accepted(&[(3, &ports("1024-57343"))]);
    assert_eq!(config.networks[0].snat[0].ports, 56_320);
    let key = "networks.mgmt.snat[0].ports";
    let words = "expected ports in 1024-57343";
    refused(&[(3, &ports("1023-2000"))], key, words);
    refused(&[(3, &ports("2000-57344"))], key, words);
    refused(&[(3, &ports("2000"))], key, "is not a range of ports");
    refused(&[(3, &ports("2000-1999"))], key, "ends before it starts");
    let missing = "networks.mgmt.snat[0].address";
    refused(&[(3, &with("{ ports: 2000-2999 }"))], missing, "missing");
}

#[test]
fn snat_ports_of_the_host_are_named() {
    let with = |snat: &str| {
        mgmt(&format!(
            "address: host, prefixes: [10.32.96.0/20], snat: [{snat}]"
        ))
    };
    let ports = |range: &str| with(&format!("{{ address: 10.32.96.50, ports: {range} }}"));
    let words = "an address of the host needs its ports";
    refused(&[(3, &with("10.32.96.50"))], "networks.mgmt.snat[0]", words);
    accepted(&[(3, &ports("9216-65535"))]);
    let key = "networks.mgmt.snat[0].ports";
    let words = "found 56321 ports, expected at most 56320";
    refused(&[(3, &ports("9215-65535"))], key, words);
    refused(
        &[(3, &ports("1023-2000"))],
        key,
        "expected ports in 1024-65535",
    );
}

#[test]
fn a_vip_of_the_host_may_be_its_snat_address() {
    let entry = "interface: eth0, prefixes: [192.168.203.0/24], snat: [{ address: 192.168.203.110, ports: 6000-6999 }]";
    let host = format!("  tenant-a: {{ role: uplink, address: host, {entry} }}");
    let cell = format!("  tenant-a: {{ role: uplink, {entry} }}");
    let key = "services.api-a.listen[0]";
    let words =
        "port 6443 belongs to flows: network tenant-a has SNAT ports 6000-6999 there in line 4";
    refused_at(&[(4, &host)], 10, key, words);
    accepted(&[(4, &host), (10, &api("\"192.168.203.110:443/tcp\""))]);
    for port in [6000, 6999] {
        let listen = api(&format!("\"192.168.203.110:{port}/tcp\""));
        refused_at(&[(4, &host), (10, &listen)], 10, key, "belongs to flows");
    }
    for port in [5999, 7000] {
        accepted(&[
            (4, &host),
            (10, &api(&format!("\"192.168.203.110:{port}/tcp\""))),
        ]);
    }
    // Ports that cannot be read are compared with nothing.
    let unknown = host.replace("6000-6999", "6999-6000");
    refused(
        &[(4, &unknown)],
        "networks.tenant-a.snat[0].ports",
        "ends before it starts",
    );
    let found = problems(&file(&[(4, &cell)]));
    assert!(
        found[0].2.contains("expected an address of its own"),
        "{found:?}"
    );
}
