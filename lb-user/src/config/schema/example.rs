//! The comments of `config/lb.yaml`, from the declarations.
//!
//! The example's keys, values and their order are its own, and so are its comments that begin with `##`. Above the
//! first line that begins with a key stands what the key means. A line such as `#ca: FILE`, without a space behind
//! the `#`, is a key that the example does not set; it is explained like one that it sets. No text of the example
//! has several lines, of which one could begin with a `#` that is no comment.

use std::collections::BTreeMap;

use super::{
    declare::{Declared as _, Key, Section},
    file::RawFile,
    kinds::Inside,
    reference::{default, meaning},
};
use crate::config::{
    place::MAIN,
    problem::{Findings, Problems},
    yaml::{self, Entry, Kind, Node},
};

/// The longest line of a comment, in characters.
const WIDTH: usize = 100;

/// What an optional key is without being written if it has no default value.
const NONE: &str = "none";

/// The text of the `example` with the comments of the declarations instead of those that it has.
///
/// # Errors
///
/// What of the example is no YAML.
pub(in crate::config) fn explained(example: &str) -> Result<String, Problems> {
    explained_by(example, RawFile::SECTION)
}

fn explained_by(example: &str, section: &'static Section) -> Result<String, Problems> {
    let lines: Vec<&str> = example
        .lines()
        .filter(|line| !is_explanation(line))
        .collect();
    let keys = explained_keys(&lines, section)?;
    let mut text = String::new();
    for (number, line) in (1..).zip(&lines) {
        let indentation = line.len() - line.trim_start().len();
        let comment = keys.get(&number).map(|key| explanation(key, indentation));
        for line in comment.iter().flatten().map(String::as_str).chain([*line]) {
            text.push_str(line);
            text.push('\n');
        }
    }
    Ok(text)
}

/// Whether a line is a comment of the declarations: neither one of the example, nor a key that it does not set.
fn is_explanation(line: &str) -> bool {
    let comment = line.trim_start().strip_prefix('#');
    comment.is_some_and(|comment| comment.is_empty() || comment.starts_with(' '))
}

/// The keys that are explained, by the numbers of their lines.
fn explained_keys(
    lines: &[&str],
    section: &'static Section,
) -> Result<BTreeMap<usize, &'static Key>, Problems> {
    let lines: Vec<String> = lines.iter().map(|line| with_unset_key(line)).collect();
    let mut findings = Findings::new("the example");
    let tree = yaml::read(&lines.join("\n"), MAIN, &mut findings);
    let tree = findings.into_result(tree)?;
    let mut keys = Vec::new();
    collect(&tree, &[section], &mut keys);
    let mut explained: BTreeMap<usize, &'static Key> = BTreeMap::new();
    for (entry, key) in keys {
        let is_new = !explained.values().any(|known| is_same(known, key));
        if is_new && begins_line(entry, &lines) {
            explained.insert(entry.line, key);
        }
    }
    Ok(explained)
}

/// A line as if the key that it does not set were set.
fn with_unset_key(line: &str) -> String {
    let text = line.trim_start();
    let is_comment = text.starts_with("##") || is_explanation(text);
    if text.starts_with('#') && !is_comment {
        line.replacen('#', "", 1)
    } else {
        line.to_owned()
    }
}

/// All keys of `node`, which are of one of the `sections`, in the order of the file.
fn collect<'n>(
    node: &'n Node,
    sections: &[&'static Section],
    keys: &mut Vec<(&'n Entry, &'static Key)>,
) {
    let has_all = |section: &'static Section, entries: &[Entry]| {
        entries
            .iter()
            .all(|entry| section.key(&entry.key).is_some())
    };
    match &node.kind {
        Kind::Sequence(nodes) => {
            for node in nodes {
                collect(node, sections, keys);
            }
        }
        Kind::Mapping(entries) => {
            let mut sections = sections.iter().copied();
            let section = sections.find(|section| has_all(section, entries));
            let known = |entry: &'n Entry| Some((entry, section?.key(&entry.key)?));
            for (entry, key) in entries.iter().filter_map(known) {
                keys.push((entry, key));
                collect_inside(&entry.value, key.inside, keys);
            }
        }
        Kind::Invalid | Kind::Null | Kind::Scalar { .. } => {}
    }
}

fn collect_inside<'n>(value: &'n Node, inside: Inside, keys: &mut Vec<(&'n Entry, &'static Key)>) {
    match (inside, &value.kind) {
        (Inside::Keys(sections), _) => collect(value, sections, keys),
        (Inside::Names(section), Kind::Mapping(entries)) => {
            for entry in entries {
                collect(&entry.value, &[section], keys);
            }
        }
        (Inside::Names(_), _) => {}
    }
}

/// Whether a key is explained where another one is, such as one that pools and the parts of a cluster have.
fn is_same(one: &Key, other: &Key) -> bool {
    (one.name, one.about) == (other.name, other.about)
}

/// Whether nothing of another key is in front.
fn begins_line(entry: &Entry, lines: &[String]) -> bool {
    let line = lines.get(entry.line - 1);
    let mut before = line
        .into_iter()
        .flat_map(|line| line.chars())
        .take(entry.column - 1);
    before.all(|c| c == ' ' || c == '-')
}

/// The lines of a comment.
fn explanation(key: &Key, indentation: usize) -> Vec<String> {
    let start = format!("{}#", " ".repeat(indentation));
    let mut lines = vec![start.clone()];
    let words = format!("{} {}.", meaning(key), value(key));
    let mut is_code = false;
    let is_gap = |c| {
        is_code ^= c == '`';
        c == ' ' && !is_code
    };
    for word in words.split(is_gap) {
        let is_full = |line: &String| line.chars().count() + 1 + word.chars().count() > WIDTH;
        if lines.last().is_none_or(is_full) {
            lines.push(start.clone());
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines
}

/// What is expected where the example shows one form of several, and what an absent key means.
fn value(key: &Key) -> String {
    let kind = Some(key.kind).filter(|kind| kind.contains(" or "));
    let default = match default(key) {
        default if default.starts_with("required") => default,
        default if default == NONE => "optional".to_owned(),
        default => format!("default: {default}"),
    };
    let mut words = kind.map_or_else(String::new, |kind| format!("{kind}; "));
    words.push_str(&default);
    if let Some(first) = words.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            kinds::{Clients, Filled, Name, Number},
            reference::SECTIONS,
            timeouts::RawTimeouts,
        },
        *,
    };

    const EXAMPLE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../config/lb.yaml"));

    const LITTLE: &Section = &Section {
        name: "little",
        about: "",
        keys: &[
            Key::required::<Name>("name", "The name."),
            Key::optional::<Number>("most", "As many\nas there may be.").value("8"),
            Key::optional::<Clients>("from", "The clients."),
            Key::optional::<Filled<RawTimeouts>>("timeouts", "The times."),
        ],
    };

    const CHANGED: &Section = &Section {
        keys: &[
            Key::required::<Name>("name", "Another name."),
            Key::optional::<Number>("most", "As many\nas there may be.").value("9"),
        ],
        ..*LITTLE
    };

    fn little(example: &str) -> String {
        explained_by(example, LITTLE).unwrap()
    }

    #[test]
    fn each_key_is_explained_above_its_line() {
        let expected = "\
# The name. Required.
name: a # which is a letter
# As many as there may be. Default: `8`.
#most: 8
## Of one host alone.
# The clients. List of prefixes, or `any`; optional.
from:
  - 10.0.0.1/32

# The times. Optional.
timeouts:
  # UDP without a reply. Default: `30s`.
  udp: 1m
";
        let without = expected.lines().filter(|line| !is_explanation(line));
        let without: Vec<_> = without.collect();
        assert_eq!(without.len(), 8);
        assert_eq!(little(&without.join("\n")), expected);
        assert_eq!(little(expected), expected);
    }

    #[test]
    fn a_changed_meaning_changes_its_comment_alone() {
        let example = little("## A name.\nname: a\n# What is no key.\n\nmost: 1\n");
        assert_eq!(
            example,
            "## A name.\n# The name. Required.\nname: a\n\n# As many as there may be. Default: `8`.\nmost: 1\n"
        );
        assert_eq!(
            explained_by(&example, CHANGED).unwrap(),
            "## A name.\n# Another name. Required.\nname: a\n\n# As many as there may be. Default: `9`.\nmost: 1\n"
        );
    }

    #[test]
    fn a_key_is_explained_where_it_begins_a_line_first() {
        let pool = "    { network: mgmt, backends: [] }\n";
        let block = "    network: mgmt\n    backends: []\n";
        let file = |first: &str, others: &str| format!("pools:\n  a:\n{first}  b:\n{others}");
        let count = |text: &str| {
            text.matches("# The network that the backends are on.")
                .count()
        };
        let text = explained(&file(pool, block)).unwrap();
        assert_eq!(count(&text), 1);
        assert!(text.contains("  b:\n    # The network that the backends are on. Required.\n"));
        let text = explained(&file(block, block)).unwrap();
        assert_eq!(count(&text), 1);
        assert!(text.contains("  a:\n    # The network"));
    }

    #[test]
    fn comments_are_wrapped_at_their_indentation() {
        let text = explained("networks:\n  a:\n    mss: 1460\n").unwrap();
        let comments = text.lines().filter(|line| line.starts_with("    # "));
        assert!(comments.count() > 1);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn what_is_no_yaml_is_a_problem() {
        assert!(explained("a: [\n").is_err());
    }

    #[test]
    fn the_example_explains_every_key() {
        let lines: Vec<&str> = EXAMPLE.lines().collect();
        let explained = explained_keys(&lines, RawFile::SECTION).unwrap();
        for (title, section) in SECTIONS {
            for key in section.keys() {
                let is_known = explained.values().any(|known| is_same(known, key));
                assert!(
                    is_known,
                    "{title}: {} begins no line of the example",
                    key.name
                );
            }
        }
    }
}
