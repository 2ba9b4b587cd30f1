//! Two boxes with one service: one file for both, in which each has what is its own.

use std::fs;

use super::*;

/// `ha` of a file with these changes, each a key and its value; an empty value leaves the key out.
fn ha(changes: &[(&str, &str)]) -> String {
    let mut keys = [
        ("box", "lb1"),
        (
            "boxes",
            "{ lb1: { sync: \"10.99.0.1:7433\" }, lb2: { sync: \"10.99.0.2:7433\" } }",
        ),
        ("marker", "10.32.96.60"),
        ("ca", "/etc/lb/ha/ca.pem"),
        ("certificate", "/etc/lb/ha/box.pem"),
        ("key", "/etc/lb/ha/box.key"),
    ];
    for (key, value) in changes {
        for known in keys.iter_mut().filter(|known| known.0 == *key) {
            known.1 = value;
        }
    }
    let keys = keys.iter().filter(|(_, value)| !value.is_empty());
    let keys = keys.map(|(key, value)| format!("{key}: {value}"));
    let keys = keys.collect::<Vec<_>>().join(", ");
    format!("ha: {{ {keys} }}\nsyn_cookie_key: /etc/lb/syn-cookie.key")
}

const SHARED: &str = "prefixes: [10.32.96.0/20], snat: [{ address: 10.32.96.50, box: lb1 }, \
                      { address: 10.32.96.51, ports: 2000-2999, box: lb2 }], checks_from: [";

/// Where the checks of each box come from.
const CHECKS: [&str; 2] = [
    "{ address: 10.32.96.58, box: lb1 }",
    "{ address: 10.32.96.59, box: lb2 }",
];

/// The valid file of two boxes, with these changes of `ha`.
fn two(changes: &[(&str, &str)]) -> String {
    checked_from(&CHECKS, changes)
}

/// The same with these addresses that checks come from.
fn checked_from(checks: &[&str], changes: &[(&str, &str)]) -> String {
    let network = format!("{SHARED}{}]", checks.join(", "));
    file(&[(12, &ha(changes)), (3, &mgmt(&network))])
}

fn addresses(all: &[Snat]) -> Vec<String> {
    all.iter().map(|snat| snat.address.to_string()).collect()
}

/// Asserts that the file of two boxes with these changes has this one problem.
fn refused_of(changes: &[(&str, &str)], key: &str, piece: &str) {
    let problems = problems(&two(changes));
    let [(line, found, words)] = problems.as_slice() else {
        panic!("{changes:?}: not one problem: {problems:#?}");
    };
    assert_eq!((*line, found.as_str()), (12, key), "{words}");
    assert!(words.contains(piece), "{words:?} does not say {piece:?}");
}

#[test]
fn each_box_has_its_own_addresses_of_the_same_file() {
    let first = parse("lb.yaml", &two(&[])).unwrap();
    let second = parse("lb.yaml", &two(&[("box", "lb2")])).unwrap();
    for (config, own, peer) in [(&first, "lb1", "lb2"), (&second, "lb2", "lb1")] {
        let ha = config.ha.as_ref().unwrap();
        let names = [ha.own(), ha.peer()].map(|one| one.unwrap().name.as_str());
        assert_eq!(names, [own, peer]);
        assert_eq!(ha.marker.to_string(), "10.32.96.60");
        assert_eq!(config.snat_addresses(), 2);
    }
    let [a, b] = [&first, &second].map(|config| config.network("mgmt").unwrap());
    assert_eq!(addresses(&a.snat), ["10.32.96.50"]);
    assert_eq!(addresses(&a.peer_snat), ["10.32.96.51"]);
    assert_eq!((&a.snat, &a.peer_snat), (&b.peer_snat, &b.snat));
    let of_checks = ["10.32.96.58", "10.32.96.59"].map(|text| text.parse().unwrap());
    let [first, second] = of_checks;
    assert_eq!(
        (&a.checks_from[..], &a.peer_checks_from[..]),
        (&[first][..], &[second][..])
    );
    assert_eq!(
        (&b.checks_from, &b.peer_checks_from),
        (&a.peer_checks_from, &a.checks_from)
    );
    assert_eq!(a.all_checks_from().collect::<Vec<_>>(), of_checks);
}

/// Asserts that the file with these addresses has this one problem.
fn refused_from(checks: &[&str], key: &str, piece: &str) {
    let problems = problems(&checked_from(checks, &[]));
    let [(line, found, words)] = problems.as_slice() else {
        panic!("{checks:?}: not one problem: {problems:#?}");
    };
    assert_eq!((*line, found.as_str()), (3, key), "{words}");
    assert!(words.contains(piece), "{words:?} does not say {piece:?}");
}

#[test]
fn each_box_has_an_address_that_its_checks_come_from() {
    let [a, b] = CHECKS;
    let all = "networks.mgmt.checks_from";
    let second = "networks.mgmt.checks_from[1]";
    let of = |key: &str| format!("{second}.{key}");
    refused_from(&[a], all, "box lb2 has 0 addresses of IPv4 in network mgmt");
    let one_more = "{ address: 10.32.96.57, box: lb1 }";
    refused_from(&[a, b, one_more], all, "box lb1 has 2 addresses of IPv4");
    refused_from(
        &[a, "{ address: 10.32.96.59, box: lb }"],
        &of("box"),
        "no box is called \"lb\"",
    );
    refused_from(&[a, "{ address: 10.32.96.59 }"], &of("box"), "missing");
    refused_from(&[a, "{ box: lb2 }"], &of("address"), "missing");
    for (address, words) in [
        ("10.33.0.1", "outside its network's prefixes"),
        ("10.32.96.0", "is the network address of 10.32.96.0/20"),
        ("10.32.111.255", "is the broadcast address of 10.32.96.0/20"),
        ("10.32.96.51", "is a SNAT address in line 3"),
        ("10.32.96.58", "is already listed in line 3"),
    ] {
        let other = format!("{{ address: {address}, box: lb2 }}");
        refused_from(&[a, &other], &of("address"), words);
    }
    refused_of(
        &[("marker", "10.32.96.59")],
        "ha.marker",
        "an address that checks of network mgmt come from",
    );
    let boxes = "{ lb1: { sync: \"10.32.96.58:7433\" }, lb2: { sync: \"10.99.0.2:7433\" } }";
    refused_of(
        &[("boxes", boxes)],
        "ha.boxes.lb1.sync",
        "that checks of network mgmt",
    );
}

#[test]
fn an_address_that_checks_come_from_is_nothing_else() {
    let of = |line: usize, text: &str| {
        let network = format!("{SHARED}{}]", CHECKS.join(", "));
        problems(&file(&[(12, &ha(&[])), (3, &mgmt(&network)), (line, text)]))
    };
    let vip = "  api-a: { network: mgmt, listen: [\"10.32.96.59:6443/tcp\"], pool: kas-a }";
    let found = of(10, vip);
    let words = "checks of network mgmt come from 10.32.96.59 in line 3";
    assert!(found[0].2.contains(words), "{found:?}");
    let found = of(8, &backends("\"10.32.96.58:30918\""));
    assert_eq!((found.len(), found[0].0), (1, 8), "{found:?}");
    assert!(
        found[0].2.contains("come from 10.32.96.58 in line 3"),
        "{found:?}"
    );
    let routed = format!(
        "{SHARED}{}], routes: [{{ to: 10.40.0.0/16, via: 10.32.96.58 }}]",
        CHECKS.join(", ")
    );
    let found = problems(&file(&[(12, &ha(&[])), (3, &mgmt(&routed))]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].2.contains("expected a gateway"), "{found:?}");
}

#[test]
fn a_box_alone_has_no_address_for_its_checks() {
    let checks = "prefixes: [10.32.96.0/20], snat: [10.32.96.50], checks_from: [{ address: 10.32.96.58, box: lb1 }]";
    refused(
        &[(3, &mgmt(checks))],
        "networks.mgmt.checks_from[0].box",
        "found \"lb1\", but there is no `ha`",
    );
}

#[test]
fn each_family_of_snat_addresses_has_checks_of_its_own() {
    let [a, b] = CHECKS;
    let of = |checks: &str| {
        let network = format!(
            "prefixes: [10.32.96.0/20, \"fd00:96::/64\"], snat: [{}], checks_from: [{a}, {b}{checks}]",
            "{ address: 10.32.96.50, box: lb1 }, { address: 10.32.96.51, box: lb2 }, \
             { address: \"fd00:96::50\", box: lb1 }, { address: \"fd00:96::51\", box: lb2 }"
        );
        file(&[(12, &ha(&[])), (3, &mgmt(&network))])
    };
    let of_6 = ", { address: \"fd00:96::58\", box: lb1 }, { address: \"fd00:96::59\", box: lb2 }";
    let config = parse("lb.yaml", &of(of_6)).unwrap();
    assert_eq!(config.networks[0].checks_from.len(), 2);
    let text = config.expanded().unwrap();
    assert_eq!(
        parse("expanded.yaml", &text).as_ref(),
        Ok(&config),
        "{text}"
    );
    let found = problems(&of(""));
    let words: Vec<_> = found.iter().map(|(_, _, words)| &words[..40]).collect();
    let expected =
        ["lb1", "lb2"].map(|name| format!("box {name} has 0 addresses of IPv6 in netwo"));
    assert_eq!(words, expected);
}

#[test]
fn without_the_section_a_box_is_alone() {
    let config = accepted(&[]);
    assert_eq!((config.ha, config.networks[0].peer_snat.len()), (None, 0));
    let snat = "prefixes: [10.32.96.0/20], snat: [{ address: 10.32.96.50, box: lb1 }]";
    refused(
        &[(3, &mgmt(snat))],
        "networks.mgmt.snat[0].box",
        "found \"lb1\", but there is no `ha`",
    );
}

#[test]
fn what_is_written_out_means_the_same() {
    let loaded = parse("lb.yaml", &two(&[])).unwrap();
    let text = loaded.expanded().unwrap();
    assert_eq!(
        parse("expanded.yaml", &text).as_ref(),
        Ok(&loaded),
        "{text}"
    );
}

#[test]
fn a_difference_is_in_the_words_of_the_file() {
    let [before, after] = [&[][..], &[("marker", "10.32.96.61"), ("box", "lb2")]]
        .map(|changes| parse("lb.yaml", &two(changes)).unwrap());
    let lines = difference(&before, &after).unwrap();
    assert_eq!(
        lines,
        [
            "ha.box: lb1 -> lb2",
            "ha.marker: 10.32.96.60 -> 10.32.96.61"
        ]
    );
    let alone = accepted(&[(3, &mgmt("prefixes: [10.32.96.0/20], snat: [10.32.96.50]"))]);
    let lines = difference(&alone, &before).unwrap();
    let ha = lines.iter().find(|line| line.starts_with("ha: "));
    assert!(
        ha.unwrap().contains("lb1: { sync: 10.99.0.1:7433 }"),
        "{lines:#?}"
    );
}

#[test]
fn the_boxes_are_two_and_this_is_one_of_them() {
    let three = "{ lb1: { sync: \"10.99.0.1:7433\" }, lb2: { sync: \"10.99.0.2:7433\" }, \
                 lb3: { sync: \"10.99.0.3:7433\" } }";
    let problems = problems(&two(&[("boxes", three)]));
    let found: Vec<_> = problems.iter().map(|(_, key, _)| key.as_str()).collect();
    let expected = [
        "networks.mgmt.snat",
        "networks.mgmt.checks_from",
        "ha.boxes",
    ];
    assert_eq!(found, expected, "{problems:?}");
    refused_of(
        &[("box", "lb3")],
        "ha.box",
        "no box is called \"lb3\"; did you mean",
    );
    let without = two(&[("box", "")]);
    let problems = problems_of_host(&without, "somewhere.example.com");
    assert!(
        problems.contains("ha.box: missing, and no box has the name of this host, \"somewhere\""),
        "{problems}"
    );
    assert_eq!(problems_of_host(&without, "lb2.example.com"), "");
}

/// The problems of a file on a host of that name, as far as boxes have some.
fn problems_of_host(text: &str, host: &str) -> String {
    let mut findings = Findings::of_text("lb.yaml");
    let raw = files::read_text(text, &mut findings).unwrap();
    validate::ha::Boxes::new(raw.ha.as_ref(), || Some(host.to_owned()), &mut findings);
    let result = findings.into_result(Some(()));
    result
        .err()
        .map(|problems| problems.to_string())
        .unwrap_or_default()
}

#[test]
fn each_box_has_a_part_of_the_snat_addresses() {
    let checks = CHECKS.join(", ");
    let checks = checks.clone() + ", " + &checks.replace("10.32.96.", "fd00:96::");
    let with = |snat: &str| {
        let network = mgmt(&format!(
            "prefixes: [10.32.96.0/20, \"fd00:96::/64\"], snat: [{snat}], checks_from: [{checks}]"
        ));
        file(&[(12, &ha(&[])), (3, &network)])
    };
    let [a, b] = [
        "{ address: 10.32.96.50, box: lb1 }",
        "{ address: 10.32.96.51, box: lb2 }",
    ];
    let of_6 = "{ address: \"fd00:96::50\", box: lb1 }";
    for (snat, key, words) in [
        (
            "10.32.96.50",
            "networks.mgmt.snat[0].box",
            "missing; with `ha` each SNAT address is of one box",
        ),
        (
            "{ address: 10.32.96.50, box: lb }",
            "networks.mgmt.snat[0].box",
            "no box is called \"lb\"",
        ),
        (
            a,
            "networks.mgmt.snat",
            "box lb2 has no SNAT address of IPv4 in network mgmt",
        ),
        (
            &format!("{a}, {b}, {of_6}"),
            "networks.mgmt.snat",
            "box lb2 has no SNAT address of IPv6 in network mgmt",
        ),
    ] {
        let problems = problems(&with(snat));
        let found = problems.first().unwrap();
        assert_eq!((found.0, found.1.as_str()), (3, key), "{problems:?}");
        assert!(found.2.contains(words), "{problems:?}");
    }
}

#[test]
fn the_marker_and_the_ends_of_the_session_are_the_hosts() {
    for (marker, other) in [
        ("192.168.203.110", "a VIP of service api-a"),
        ("10.32.96.51", "a SNAT address of network mgmt"),
    ] {
        refused_of(&[("marker", marker)], "ha.marker", other);
    }
    let boxes = |second: &str| {
        format!("{{ lb1: {{ sync: \"10.99.0.1:7433\" }}, lb2: {{ sync: \"{second}\" }} }}")
    };
    for (second, words) in [
        ("10.99.0.1:7433", "that of another box in line 12"),
        ("10.32.96.50:7433", "a SNAT address of network mgmt"),
        ("10.99.0.2:743", "found port 743, expected 1024 to 65535"),
        ("0.0.0.0:7433", "not an address and port of a box"),
    ] {
        refused_of(&[("boxes", &boxes(second))], "ha.boxes.lb2.sync", words);
    }
}

#[test]
fn it_needs_a_key_of_cookies_and_networks_with_addresses_of_their_own() {
    let alone = two(&[]).replace("\nsyn_cookie_key: /etc/lb/syn-cookie.key", "");
    let found = problems(&alone);
    assert_eq!(found[0].1, "syn_cookie_key", "{found:?}");
    let host =
        "  public: { role: uplink, interface: eth2, address: host, prefixes: [203.0.113.0/24] }";
    let found = problems(&two(&[]).replace("pools:", &format!("{host}\npools:")));
    assert_eq!(
        (found.len(), found[0].1.as_str()),
        (1, "networks.public.address"),
        "{found:?}"
    );
}

#[test]
fn all_problems_are_found_at_once() {
    let text = two(&[
        ("marker", "192.168.203.110"),
        ("box", "lb3"),
        ("key", "box.key"),
    ]);
    let found = problems(&text);
    let mut found: Vec<_> = found.iter().map(|(_, key, _)| key.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, ["ha.box", "ha.key", "ha.marker"]);
}

#[test]
fn files_are_read_with_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [ca, certificate, key] = ["ca.pem", "box.pem", "box.key"].map(path);
    let text = two(&[("ca", &ca), ("certificate", &certificate), ("key", &key)]);
    let main = folder.path().join("lb.yaml");
    fs::write(&main, text).unwrap();
    let words = |main: &Path| match load(main) {
        Ok(_) => String::new(),
        Err(problems) => problems.to_string(),
    };
    for key in ["ha.ca: ", "ha.certificate: ", "ha.key: "] {
        assert!(words(&main).contains(key), "{}", words(&main));
    }
    fs::write(&certificate, "nothing").unwrap();
    fs::write(&key, "nothing").unwrap();
    let found = words(&main);
    assert!(found.contains("has no certificate; expected"), "{found}");
    let others = "lets other users have it; expected 600 or 640";
    assert!(found.contains(others), "{found}");
}
