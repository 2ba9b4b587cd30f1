//! What networks have of SNAT ports that others use too: defaults, the file that has them written out, and
//! warnings.

use std::fs;

use super::*;

/// Two tenants of one hub; the second has these keys.
fn hub(snat: &str, keys: &str) -> String {
    format!(
        "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: {snat} }}
  tenant-a: {{ role: tenant, interface: eth0, vlan: 1, prefixes: [192.168.203.0/24] }}
  tenant-b:
    role: tenant
    interface: eth0
    vlan: 2
    prefixes: [192.168.203.0/24]
{keys}
pools:
  kas: {{ network: mgmt, backends: [\"10.32.96.105:30918\"] }}
services:
  api-a: {{ network: tenant-a, listen: [\"192.168.203.110:6443/tcp\"], pool: kas }}
  sni-a:
    network: tenant-a
    listen: [\"192.168.203.111:443/tcp\"]
    sni: {{ routes: [{{ names: [a.example.com], pool: kas }}] }}
  dns-b: {{ network: tenant-b, listen: [\"192.168.203.110:53/udp\"], pool: kas }}
"
    )
}

fn loaded(text: &str) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lb.yaml");
    fs::write(&path, text).unwrap();
    let mut loaded = load_text(&path).unwrap();
    for warning in &mut loaded.warnings {
        warning.problem.file = "lb.yaml".to_owned();
    }
    loaded
}

fn warnings(text: &str) -> Vec<String> {
    loaded(text)
        .warnings
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_parts_are_written_out_and_mean_the_same() {
    let loaded = loaded(&hub("[10.32.96.50]", ""));
    assert_eq!(loaded.warnings, []);
    let (text, config) = (loaded.expanded().unwrap(), loaded.config);
    let rings: Vec<_> = config
        .networks
        .iter()
        .map(|network| (&*network.name, network.half_open, network.udp_flows))
        .collect();
    // Of 28160 ports each, for what it has services for.
    let expected = [
        ("mgmt", 8192, 8192),
        ("tenant-a", 7040, 8192),
        ("tenant-b", 8192, 7040),
    ];
    assert_eq!(rings, expected);
    let most: Vec<_> = quotas(&config)
        .iter()
        .map(|quota| (quota.network, quota.most))
        .collect();
    assert_eq!(
        most,
        [("tenant-a", Some(21_120)), ("tenant-b", Some(21_120))]
    );
    let part = "
  # at most 21120 flows on the 56320 SNAT ports of mgmt (IPv4), which 2 networks share
  tenant-a:
    role: tenant
    interface: eth0
    vlan: 1
    sources: [192.168.203.0/24]
    reject: false
    half_open: 7040
    udp_flows: 8192
    second_segment: at_once
";
    assert!(text.contains(part), "{text}");
    assert_eq!(parse("again", &text).as_ref(), Ok(&config));
}

#[test]
fn what_is_written_is_kept_and_has_no_part() {
    let config = hub(
        "[10.32.96.50]",
        "    max_flows: 1000\n    udp_flows: 8192\n    half_open: 64",
    );
    let loaded = loaded(&config);
    assert_eq!(loaded.warnings, []);
    let (text, config) = (loaded.expanded().unwrap(), loaded.config);
    let most: Vec<_> = quotas(&config).iter().map(|quota| quota.most).collect();
    let part = 56_320 - 1000 - 8192;
    assert_eq!(most, [Some(part - 8192), None]);
    let written = "
    max_flows: 1000
    half_open: 64
    udp_flows: 8192
";
    assert!(text.contains(written), "{text}");
    assert_eq!(text.matches("\n  # at most ").count(), 1);
    assert_eq!(parse("again", &text).as_ref(), Ok(&config));
}

#[test]
fn more_than_there_is_is_warned_of_where_it_is_written() {
    let words = "2 networks share the 56320 SNAT ports of mgmt for IPv4, and may take 68160 (tenant-b up to \
                 47040, tenant-a up to 21120); expected more SNAT addresses there, or less in max_flows, half_open \
                 and udp_flows [few-snat-ports]";
    let most = hub("[10.32.96.50]", "    max_flows: 40000");
    assert_eq!(
        warnings(&most),
        [format!("lb.yaml:10: networks.tenant-b.max_flows: {words}")]
    );
    let more = hub("[10.32.96.50, 10.32.96.51]", "    max_flows: 40000");
    assert_eq!(warnings(&more), Vec::<String>::new());
    let ring = hub("[10.32.96.50]", "    udp_flows: 65536");
    assert_eq!(
        warnings(&ring),
        [
            "lb.yaml:10: networks.tenant-b.udp_flows: 2 networks share the 56320 SNAT ports of mgmt for IPv4, and may take \
          100736 (tenant-b up to 72576, tenant-a up to 28160); expected more SNAT addresses there, or less in max_flows, \
          half_open and udp_flows [few-snat-ports]"
        ]
    );
    // Alone it takes nothing from another.
    let alone = most.replace("network: tenant-a, listen", "network: tenant-b, listen");
    let alone = alone.replace("    network: tenant-a\n", "    network: tenant-b\n");
    assert_eq!(warnings(&alone), Vec::<String>::new());
}

#[test]
fn too_few_ports_for_all_rings_are_warned_of_at_the_addresses() {
    let few = hub("[{ address: 10.32.96.50, ports: 2000-2099 }]", "");
    assert_eq!(
        warnings(&few),
        [
            "lb.yaml:3: networks.mgmt.snat[0]: 2 networks share the 100 SNAT ports of mgmt for IPv4, and may take 152 \
          (tenant-a up to 76, tenant-b up to 76); expected more SNAT addresses there, or less in max_flows, half_open \
          and udp_flows [few-snat-ports]"
        ]
    );
}

/// A default is where the network is that it is too much for.
#[test]
fn what_the_defaults_say_is_warned_of_at_the_network() {
    let text = hub("[10.32.96.50]", "") + "defaults: { network: { max_flows: 30000 } }\n";
    let found = warnings(&text);
    assert!(
        found[0].starts_with("lb.yaml:4: networks.tenant-a: 2 networks share"),
        "{found:?}"
    );
}
