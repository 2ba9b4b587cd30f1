//! Whatever the bytes are, the answer is a value or a list of problems, and it comes soon.

use std::fmt::Write as _;

use super::*;

/// Comments are most of the example, and nothing can happen in them.
fn without_comments() -> String {
    let text = example();
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_prefix_of_the_example_is_answered() {
    let text = without_comments();
    for end in 0..text.len() {
        drop(parse_bytes(&text.as_bytes()[..end]));
    }
}

#[test]
fn every_changed_byte_of_the_example_is_answered() {
    let text = without_comments();
    assert!(parse("f", &text).is_ok());
    let nasty = b"\n:[\"&\xff";
    for round in 0..2 {
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = nasty[(at + 3 * round) % nasty.len()];
            drop(parse_bytes(&bytes));
        }
    }
}

#[test]
fn every_missing_line_of_the_example_is_answered() {
    let text = without_comments();
    let lines: Vec<&str> = text.lines().collect();
    for first in 0..lines.len() {
        for last in first..lines.len().min(first + 3) {
            let rest = [&lines[..first], &lines[last + 1..]].concat();
            drop(parse("f", &rest.join("\n")));
        }
    }
}

#[test]
fn every_value_of_the_example_may_be_of_another_kind() {
    let text = without_comments();
    let starts = text.match_indices(": ").map(|(at, _)| at + 2);
    for start in starts {
        let rest = &text[start..];
        let end = rest.find([',', '\n', '}', ']']).unwrap_or(rest.len());
        for other in [
            "[]",
            "{}",
            "~",
            "a",
            "0",
            "[{}]",
            "{ a: b }",
            "99999999999999999999",
        ] {
            drop(parse(
                "f",
                &format!("{}{other}{}", &text[..start], &rest[end..]),
            ));
        }
    }
}

#[test]
fn a_few_lines_that_mean_millions_of_backends_are_refused_soon() {
    let mut text = file(&[(12, "")]);
    text.push_str("\nnodes:\n  all: { network: mgmt, addresses: [");
    for index in 0..1000 {
        write!(text, "10.32.{}.{}, ", 97 + index / 250, 1 + index % 250).unwrap();
    }
    text.push_str("] }\nclusters:\n");
    for index in 0..2000 {
        writeln!(
            text,
            "  c{index}: {{ network: tenant-a, nodes: all, api: {{ publish: NodePort, \
             vip: 192.168.203.110, node_port: {} }} }}",
            10_000 + index
        )
        .unwrap();
    }
    let found = problems(&text);
    let expected = "more than 65535 backends in all, but limits.backends is 32768";
    assert!(
        found.iter().any(|(_, _, words)| words == expected),
        "{found:#?}"
    );
}

#[test]
fn what_once_hung_a_parser_is_answered() {
    for text in [
        "{---",
        "{...",
        "[---\n]",
        "a: ...",
        "a: ---\n...",
        "? ",
        "- - - -",
        "a: |",
        "a: >\n",
        "\"",
        "'",
        "&",
        "*",
        "!",
        "%",
        "%YAML 1.2",
        "%TAG ! x\n---",
        "@",
        "`",
        ",",
        "]",
        "a: [\n\t]",
        "\u{feff}\u{feff}",
        "a:\r- b\r",
        "\u{85}",
        "a: \"\\u0000\"",
        "a: \"\\ud800\"",
        "{a: b, ? c: d, : e}",
    ] {
        assert!(parse("f", text).is_err(), "{text:?}");
    }
}

#[test]
fn large_files_take_time_in_proportion() {
    let mut text = file(&[(12, "limits: { backends: 4096 }"), (8, "    backends:")]);
    let mut listed = String::new();
    for index in 0..5_000 {
        writeln!(listed, "      - \"10.32.96.1:{index}\"").unwrap();
    }
    text = text.replace("    backends:\n", &format!("    backends:\n{listed}"));
    // Port 0, and more than limits.backends.
    assert_eq!(problems(&text).len(), 2);
    let flat: String = (0..20_000).map(|index| format!("k{index}: \n")).collect();
    assert_eq!(problems(&flat).len(), 20_002);
    let long = format!("{}: [{}]", "k".repeat(100_000), "[],".repeat(20_000));
    assert!(problems(&long)[0].1.len() < 100);
}
