//! Files on disk: what includes what, the examples, and the file that means the same as all of them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::*;

const NETWORKS: &str = "networks:\n  \
    mgmt: { role: mgmt, interface: eth1, prefixes: [10.32.96.0/20], snat: [10.32.96.50] }\n";

/// A folder with these files, the first of which is the main one.
fn folder(files: &[(&str, &str)]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let main = folder.path().join(files[0].0);
    (folder, main)
}

/// The problems of the files, without the name of the folder.
fn problems_of(files: &[(&str, &str)]) -> Vec<String> {
    let (folder, main) = folder(files);
    let prefix = format!("{}/", folder.path().display());
    let problems = load(&main).unwrap_err().to_string().replace(&prefix, "");
    problems.lines().map(str::to_owned).collect()
}

fn main_file(include: &str) -> String {
    format!("version: 1\ninclude: {include}\n{NETWORKS}")
}

fn examples() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect()
}

#[test]
fn every_example_is_valid_and_means_the_same_when_written_out() {
    let examples = examples();
    assert!(examples.len() >= 5);
    for path in examples {
        let loaded = load_text(&path).unwrap_or_else(|problems| panic!("{problems}"));
        let (text, config) = (loaded.expanded().unwrap(), loaded.config);
        assert_eq!(loaded.warnings, [], "{}", path.display());
        let again = parse("expanded.yaml", &text);
        assert_eq!(again.as_ref(), Ok(&config), "{}\n{text}", path.display());
    }
}

#[test]
fn every_configuration_of_the_documents_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(end) if end == "md" => pages.push(path),
                _ => {}
            }
        }
    }
    let mut configurations = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let blocks = text.split("```yaml\n").skip(1);
        let blocks = blocks.map(|rest| rest.split("```").next().unwrap());
        for block in blocks.filter(|block| block.starts_with("version:")) {
            let name = page.display().to_string();
            if let Err(problems) = parse(&name, block) {
                panic!("{problems}");
            }
            configurations += 1;
        }
    }
    assert!(configurations >= 8, "{configurations}");
}

#[test]
fn a_text_that_is_no_file_includes_none() {
    let text = |include: &str| Declaration::Text {
        name: "standard input".to_owned(),
        text: format!("version: 1\n{include}\n{NETWORKS}"),
    };
    assert!(load_declared(&text("")).is_ok());
    let problems = load_declared(&text("include: \"*.yaml\"")).unwrap_err();
    let words = "standard input:2: include: only a file can include others; \
                 expected all of the configuration in this text";
    assert_eq!(problems.to_string(), words);
}

#[test]
fn whatever_is_written_out_means_the_same() {
    let config = parse("lb.yaml", include_str!("kept/lb.yaml"))
        .unwrap_or_else(|problems| panic!("{problems}"));
    let text = expanded::text(&config, &Origins::default()).unwrap();
    assert_eq!(parse("f", &text).as_ref(), Ok(&config), "{text}");
    let empty = format!("version: 1\n{NETWORKS}");
    let config = parse("f", &empty).unwrap();
    let text = expanded::text(&config, &Origins::default()).unwrap();
    assert_eq!(parse("f", &text), Ok(config));
}

#[test]
fn what_is_written_out_says_where_it_comes_from() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/poc.yaml");
    let loaded = load_text(&path).unwrap();
    let (text, config) = (loaded.expanded().unwrap(), loaded.config);
    assert_eq!(config.services.len(), 5);
    assert!(config.pools.iter().all(|pool| pool.health.is_some()));
    let origin = "  # from clusters.tenant-a.api in ";
    assert_eq!(
        text.lines().filter(|line| line.starts_with(origin)).count(),
        2
    );
    assert!(text.contains(", tenant-a.example.com\n  tenant-a-apps-https:\n"));
    let names =
        ["oauth", "konnectivity", "ignition"].map(|name| format!("{name}.tenant-a.example.com"));
    for (what, how) in [("https", "sni"), ("http", "http")] {
        let names = names.join(", ");
        let pool = format!("tenant-a-routes-{what}");
        let routes =
            format!("    {how}:\n      routes:\n      - names: [{names}]\n        pool: {pool}\n");
        assert!(text.contains(&routes), "{text}");
    }
}

#[test]
fn the_example_has_every_key_and_shows_the_default_limits() {
    let config = parse("config/lb.yaml", &example()).unwrap();
    assert_eq!(config.limits, Limits::default());
    assert_eq!(config.timeouts, Timeouts::default());
    let mgmt = &config.networks[0];
    assert_eq!((mgmt.half_open, mgmt.udp_flows), (8192, 8192));
    assert_eq!(config.pools[0].backends[3].name, "node-4");
    // The problem of an unknown key lists the known ones.
    let unknown = "zzzzzzzz: 1\n\
        networks: { n: { zzzzzzzz: 1, routes: [{ zzzzzzzz: 1 }], snat: [{ zzzzzzzz: 1 }] } }\n\
        nodes: { n: { zzzzzzzz: 1, addresses: [{ zzzzzzzz: 1 }] } }\n\
        pools: { p: { zzzzzzzz: 1, health: { zzzzzzzz: 1, https: { zzzzzzzz: 1 } }, backends: [{ zzzzzzzz: 1 }, { nodes: n, zzzzzzzz: 1 }] } }\n\
        services: { s: { zzzzzzzz: 1 } }\n\
        clusters: { c: { zzzzzzzz: 1, api: { zzzzzzzz: 1 }, routes: { zzzzzzzz: 1 }, apps: { zzzzzzzz: 1 } } }\n\
        defaults: { zzzzzzzz: 1 }\n\
        limits: { zzzzzzzz: 1 }\n\
        timeouts: { zzzzzzzz: 1 }\n\
        log: { zzzzzzzz: 1 }\n";
    let problems = problems(unknown);
    let lists = problems
        .iter()
        .filter_map(|(_, _, words)| words.split_once("unknown key; expected one of "));
    let keys: Vec<&str> = lists.flat_map(|(_, list)| list.split(", ")).collect();
    assert!(keys.len() > 60, "{keys:?}");
    for key in keys {
        let written = |before: char| EXAMPLE.contains(&format!("{before}{key}:"));
        let is_there = [' ', '\n', '#'].into_iter().any(written);
        assert!(is_there, "{key} is not in the example");
    }
}

#[test]
fn twelve_faults_in_two_files_are_twelve_lines() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/tests/faults/main.yaml");
    let folder = format!("{}/", path.parent().unwrap().display());
    let problems = load(&path).unwrap_err().to_string().replace(&folder, "");
    let lines: Vec<&str> = problems.lines().collect();
    let expected = [
        "main.yaml:4: networks.mgmt.mtu: unknown key; expected one of role,",
        "main.yaml:5: networks.tenant-a.vlan: 4095 is not a VLAN id",
        "main.yaml:9: pools.kas-a.backends.nodes: no node group is called \"hup\"",
        "main.yaml:10: pools.dns-a.backends[0]: 10.33.0.1 is a backend outside",
        "main.yaml:12: services.api-a.listen[0]: \"192.168.203.110:6443\" has no protocol",
        "tenant-b.yaml:7: networks.tenant-b.routes[0].to: 192.168.203.128/25 overlaps",
        "tenant-b.yaml:8: networks.tenant-b.sources[0]: 127.0.0.0/8 is a loopback",
        "tenant-b.yaml:10: services.api-a: \"api-a\" is already defined in main.yaml:12",
        "tenant-b.yaml:11: services.dns-b.allow[0]: 10.0.0.1/8 has host bits set",
        "tenant-b.yaml:16: clusters.tenant-b.api.publish: the API cannot be a Route",
        "tenant-b.yaml:17: clusters.tenant-b.oauth.vip: 192.168.204.1 is a VIP outside",
        "tenant-b.yaml:18: limits: only the main file can have this section",
    ];
    assert_eq!(lines.len(), expected.len(), "{problems}");
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{line}");
    }
}

#[test]
fn files_are_included_in_the_order_of_their_names() {
    let pool = |name: &str| format!("pools: {{ {name}: {{ network: mgmt, backends: [] }} }}\n");
    let main = main_file("[d/*-x.yaml, own.yaml, \"d/*\"]") + &pool("main");
    let (_folder, main) = folder(&[
        ("main.yaml", &main),
        ("d/b-x.yaml", &(pool("b") + "version: 1\n")),
        ("d/a-x.yaml", &pool("a")),
        ("d/c.yaml", &pool("c")),
        ("d/.hidden", "nothing"),
        ("d/sub/x.yaml", "nothing"),
        ("own.yaml", &pool("own")),
    ]);
    let config = load(&main).unwrap_or_else(|problems| panic!("{problems}"));
    let names: Vec<_> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["main", "a", "b", "c", "own"]);
}

#[test]
fn a_file_does_not_include_itself() {
    let (_folder, main) = folder(&[("main.yaml", &main_file("\"*.yaml\""))]);
    assert_eq!(load(&main).unwrap().networks.len(), 1);
}

#[test]
fn a_path_without_a_star_leads_to_a_file() {
    let missing = problems_of(&[("main.yaml", &main_file("[gone.yaml, \"gone/*.yaml\"]"))]);
    assert_eq!(missing.len(), 1);
    assert!(missing[0].starts_with("main.yaml:2: include[0]: \"gone.yaml\" cannot be read: "));
    for path in ["\"d*/x.yaml\"", "\"\"", "d/"] {
        let found = problems_of(&[("main.yaml", &main_file(path))]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("include: ") && found[0].contains("only its last part"));
    }
    let folder = problems_of(&[("main.yaml", &main_file("d")), ("d/x", "")]);
    assert_eq!(folder.len(), 1);
    assert!(folder[0].starts_with("d: cannot be read: "), "{folder:?}");
    // A reference to something that was in a missing file is not reported.
    let text = main_file("gone.yaml") + "pools: { p: { network: gone, backends: [] } }\n";
    assert_eq!(problems_of(&[("main.yaml", &text)]).len(), 1);
}

#[test]
fn only_a_file_includes_others() {
    let found = problems(&main_file("x.yaml"));
    assert_eq!(
        found[0].2,
        "only a file can include others; expected all of the configuration in this text"
    );
}

#[test]
fn a_name_is_defined_in_one_file() {
    let pool = "pools: { p: { network: mgmt, backends: [] } }\n";
    let found = problems_of(&[
        ("main.yaml", &(main_file("more.yaml") + pool)),
        ("more.yaml", &format!("# more\n{pool}{NETWORKS}")),
    ]);
    assert_eq!(
        found,
        [
            "more.yaml:2: pools.p: \"p\" is already defined in main.yaml:5",
            "more.yaml:4: networks.mgmt: \"mgmt\" is already defined in main.yaml:4",
        ]
    );
}

#[test]
fn every_file_has_its_own_problems() {
    let main = main_file("more.yaml")
        + "services: { s: { network: x, listen: [\"10.32.96.9:1/udp\"], pool: q } }\n";
    // Behind a syntax error nothing is known: a reference to what may have been there is not reported.
    let found = problems_of(&[("main.yaml", &main), ("more.yaml", "a: [")]);
    assert_eq!(found.len(), 1);
    assert!(
        found[0].starts_with("more.yaml:2: a[0]: syntax error"),
        "{found:?}"
    );
    let later =
        "version: 2\npools: { p: { network: y, backends: [] } }\ninclude: x\ndefaults: {}\n";
    let found = problems_of(&[("main.yaml", &main), ("more.yaml", later)]);
    let places: Vec<_> = found
        .iter()
        .map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        places,
        [
            "main.yaml:5 services.s.network",
            "main.yaml:5 services.s.pool",
            "more.yaml:1 version",
            "more.yaml:2 pools.p.network",
            "more.yaml:3 include",
            "more.yaml:4 defaults",
        ]
    );
    let words = "no file has a network, expected at least one";
    let none = problems_of(&[("main.yaml", "version: 1\ninclude: \"*.yml\"\n")]);
    assert_eq!(none, [format!("main.yaml:2: include: {words}")]);
}

#[test]
fn there_is_a_limit_on_files_and_bytes() {
    let (folder, main) = folder(&[("main.yaml", &main_file("\"d/*\""))]);
    fs::create_dir(folder.path().join("d")).unwrap();
    let write = |number: usize, text: &str| {
        fs::write(folder.path().join(format!("d/{number}")), text).unwrap();
    };
    for number in 0..1024 {
        write(number, "");
    }
    assert!(load(&main).is_ok());
    write(1024, "");
    let found = load(&main).unwrap_err();
    assert_eq!(
        found.as_slice()[0].words,
        "1025 files, expected at most 1024"
    );
    fs::remove_dir_all(folder.path().join("d")).unwrap();
    fs::create_dir(folder.path().join("d")).unwrap();
    let comment = format!("#{}", "x".repeat((4 << 20) - 1));
    for number in 0..16 {
        write(number, &comment);
    }
    let found = load(&main).unwrap_err();
    assert_eq!(found.as_slice().len(), 1);
    assert_eq!(found.as_slice()[0].words, "more than 64 MiB in all files");
}
