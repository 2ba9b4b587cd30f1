//! Whatever the bytes are, the answer is a value or a list of problems, and it comes soon.

use std::fmt::Write as _;

use super::*;

#[test]
fn every_prefix_of_the_example_is_answered() {
    for end in 0..EXAMPLE.len() {
        drop(parse_bytes("f", &EXAMPLE.as_bytes()[..end]));
    }
}

#[test]
fn every_changed_byte_of_the_example_is_answered() {
    // Without the comments: they are most of the example, and nothing can happen in them.
    let lines = EXAMPLE
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    assert!(parse("f", &text).is_ok());
    for nasty in *b"\n:[\"&\xff" {
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] = nasty;
            drop(parse_bytes("f", &bytes));
        }
    }
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
    let mut text = file(&[(12, "limits: {}"), (8, "    backends:")]);
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
