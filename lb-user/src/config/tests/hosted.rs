//! Which hosted clusters of a hub are taken, and what is wrong with such an entry.

use super::*;

/// The valid file with a hub in line 12 that has this entry.
fn hub(entry: &str) -> String {
    format!(
        "kubernetes: {{ hub: {{ kubeconfig: /etc/lb/hub.kubeconfig, hosted_clusters: [{{ {entry} }}] }} }}"
    )
}

const ENTRY: &str = "name: clusters/*, network: tenant-a, hub_network: mgmt, vips: [192.168.203.120-192.168.203.129, 192.168.203.140]";

#[test]
fn hosted_clusters_have_a_place() {
    let all = accepted(&[(
        12,
        &hub(&format!(
            "{ENTRY}, shard: a/b, proxy_protocol: v2, allow: any"
        )),
    )]);
    let [one] = &all.kubernetes[0].hosted_clusters[..] else {
        panic!("one");
    };
    let has = |name: &str| one.of.has(&name.to_owned().try_into().unwrap());
    assert!(has("clusters/tenant-a") && !has("others/tenant-a"));
    let vips: Vec<_> = one
        .vips
        .iter()
        .flat_map(|range| range.addresses())
        .collect();
    assert_eq!(
        (vips.len(), vips[0].to_string(), vips[10].to_string()),
        (
            11,
            "192.168.203.120".to_owned(),
            "192.168.203.140".to_owned()
        )
    );
    let one = accepted(&[(12, &hub(&ENTRY.replace('*', "tenant-a")))]);
    let of = &one.kubernetes[0].hosted_clusters[0].of;
    assert!(of.has(&"clusters/tenant-a".to_owned().try_into().unwrap()));
    assert!(!of.has(&"clusters/tenant-b".to_owned().try_into().unwrap()));
    // What is kept of it is what it was.
    let kept = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&kept).unwrap(), all);
}

#[test]
fn what_is_no_place_of_hosted_clusters_is_refused() {
    let key = "kubernetes.hub.hosted_clusters[0]";
    for (from, to, wrong, piece) in [
        (
            "clusters/*",
            "clusters",
            "name",
            "\"clusters\" is no hosted cluster; expected NAMESPACE/NAME, or NAMESPACE/* for all of it",
        ),
        (
            "clusters/*",
            "'*/*'",
            "name",
            "\"*/*\" is no hosted cluster",
        ),
        (
            "network: tenant-a",
            "network: tenant-b",
            "network",
            "no network is called \"tenant-b\"",
        ),
        (
            "hub_network: mgmt",
            "hub_network: hub",
            "hub_network",
            "no network is called \"hub\"",
        ),
        (
            "192.168.203.140",
            "192.168.204.1",
            "vips[1]",
            "192.168.204.1 is in no prefix of network tenant-a",
        ),
        (
            "203.129",
            "203.119",
            "vips[0]",
            "is not a range; expected FIRST-LAST of one family, with at most 1024 addresses",
        ),
        ("203.129", "207.120", "vips[0]", "is not a range"),
        (
            "192.168.203.140",
            "x",
            "vips[1]",
            "\"x\" is not an IP address",
        ),
    ] {
        let entry = ENTRY.replacen(from, to, 1);
        assert_ne!(entry, ENTRY, "{from}");
        refused(&[(12, &hub(&entry))], &format!("{key}.{wrong}"), piece);
    }
}

#[test]
fn all_of_it_is_reported_at_once() {
    let entry = ENTRY
        .replace("clusters/*", "clusters")
        .replace("hub_network: mgmt", "hub_network: hub")
        .replace("203.129", "204.1");
    let found = problems(&file(&[(12, &hub(&entry))])).into_iter();
    let keys: Vec<String> = found.map(|(_, key, _)| key).collect();
    let key = |key: &str| format!("kubernetes.hub.hosted_clusters[0].{key}");
    assert_eq!(keys, ["name", "hub_network", "vips[0]"].map(key));
}
