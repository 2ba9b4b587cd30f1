//! The text as a tree of nodes with their positions, built from the events of `saphyr-parser`.
//!
//! A configuration needs only a part of YAML. Duplicate keys, anchors and aliases, tags, several
//! documents and deep nesting are refused here, so that nothing behind this file meets them.

mod builder;

pub(super) use self::builder::read;
use super::place::Location;

/// One value of the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Line, from 1.
    pub(super) line: usize,
    /// Column in characters, from 1.
    pub(super) column: usize,
    pub(super) kind: Kind,
}

impl Node {
    /// A text without quotes that no file has.
    pub(super) fn plain(text: &str) -> Self {
        Self {
            line: 0,
            column: 0,
            kind: Kind::Scalar {
                text: text.to_owned(),
                plain: true,
            },
        }
    }

    /// The place of this node, which is the value of `key` in `file`.
    pub(super) fn place(&self, file: usize, key: String) -> Location {
        Location {
            file,
            line: self.line,
            column: self.column,
            key,
        }
    }
}

/// What a node is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Already reported: it gets no further problem.
    Invalid,
    /// In the order of the file; the keys are unique.
    Mapping(Vec<Entry>),
    /// No value at all, `~` or `null`.
    Null,
    /// Text as it is written, which is quoted or not (`plain`).
    Scalar {
        text: String,
        plain: bool,
    },
    Sequence(Vec<Node>),
}

/// One key of a mapping, its position and its value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) column: usize,
    pub(super) value: Node,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{place::MAIN, problem::Findings};

    /// What `text` is refused with, one problem per line.
    fn problems(text: &str) -> String {
        let mut findings = Findings::new("f");
        let tree = read(text, MAIN, &mut findings);
        match findings.into_result(tree) {
            Ok(tree) => panic!("{text:?} was read as {tree:?}"),
            Err(problems) => problems.to_string(),
        }
    }

    fn tree(text: &str) -> Node {
        let mut findings = Findings::new("f");
        let tree = read(text, MAIN, &mut findings);
        findings.into_result(tree).unwrap()
    }

    fn entries(node: Node) -> Vec<Entry> {
        match node.kind {
            Kind::Mapping(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nodes_know_their_line_and_column() {
        for text in ["a: 1\nb: [x, \"y\"]\n", "\u{feff}a: 1\r\nb: [x, \"y\"]\r\n"] {
            let mut entries = entries(tree(text));
            let list = entries.pop().unwrap();
            assert_eq!((list.line, list.column), (2, 1));
            assert_eq!((list.value.line, list.value.column), (2, 4));
            let Kind::Sequence(nodes) = list.value.kind else {
                panic!("not a list");
            };
            let places: Vec<_> = nodes.iter().map(|node| (node.line, node.column)).collect();
            assert_eq!(places, [(2, 5), (2, 8)]);
            let plain = |node: &Node| matches!(node.kind, Kind::Scalar { plain: true, .. });
            assert!(plain(&nodes[0]) && !plain(&nodes[1]));
        }
    }

    #[test]
    fn an_absent_value_stands_where_its_key_stands() {
        let entries = entries(tree("a:\n\n\nb: 1\n"));
        assert_eq!(entries[0].value.kind, Kind::Null);
        assert_eq!(entries[0].value.line, 1);
    }

    #[test]
    fn files_without_a_value_are_empty() {
        for text in ["", "# nothing\n", "---\n", "~\n", "---\n...\n"] {
            assert_eq!(tree(text).kind, Kind::Null, "{text:?}");
        }
    }

    #[test]
    fn duplicate_keys_name_both_lines() {
        assert_eq!(
            problems("a: 1\nb: { c: 1, c: 2 }\na: 3\n"),
            "f:2: b.c: duplicate key, first used in line 2\n\
             f:3: a: duplicate key, first used in line 1"
        );
        assert_eq!(
            problems("x:\n  - { a: 1,\n      a: 2 }\n"),
            "f:3: x[0].a: duplicate key, first used in line 2"
        );
    }

    #[test]
    fn a_section_written_twice_is_read_whole() {
        let mut findings = Findings::new("f");
        let text = "s:\n  a: 1\n  b: 2\ns:\n  b: 3\n  c: 4\n";
        let mut sections = entries(read(text, MAIN, &mut findings).unwrap());
        let section = entries(sections.pop().unwrap().value);
        let keys: Vec<_> = section.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["a", "b", "c"]);
        assert_eq!(
            findings.into_result(Some(())).unwrap_err().to_string(),
            "f:4: s: duplicate key, first used in line 1\n\
             f:5: s.b: duplicate key, first used in line 3"
        );
    }

    #[test]
    fn a_section_first_left_empty_is_read_where_it_is_not() {
        let mut findings = Findings::new("f");
        let sections = entries(read("s:\ns:\n  a: 1\n", MAIN, &mut findings).unwrap());
        assert!(matches!(&sections[0].value.kind, Kind::Mapping(entries) if entries.len() == 1));
        let problems = findings.into_result(Some(())).unwrap_err();
        let expected = "f:2: s: duplicate key, first used in line 1";
        assert_eq!(problems.to_string(), expected);
    }

    #[test]
    fn parts_of_yaml_that_hide_a_meaning_are_refused() {
        assert_eq!(
            problems("a: &x 1\nb: [*x]\nc: !!str 1\nd: &y { e: 1 }\n"),
            "f:1: a: anchors (&name) are not supported; write the value again\n\
             f:2: b[0]: aliases (*name) are not supported; write the value again\n\
             f:3: c: tags (!name) are not supported; write the value alone\n\
             f:4: d: anchors (&name) are not supported; write the value again"
        );
        assert_eq!(
            problems("a: *x\n"),
            "f:1: a: aliases (*name) are not supported; write the value again"
        );
        assert_eq!(
            problems("a: 1\n---\nb: 1\n"),
            "f:2: a second document starts here; expected one per file"
        );
        assert_eq!(problems("? [a]\n: b\n"), "f:1: a key must be a text");
    }

    #[test]
    fn a_syntax_error_has_its_line_and_the_key_it_is_in() {
        assert_eq!(
            problems("a:\n  b: [1, 2\nc: 3\n"),
            "f:3: a.b[1]: syntax error at column 2: invalid indentation (inside the list that \
             starts in line 2)"
        );
        assert!(problems("a:\n\tb: 1\n").starts_with("f:2: a: syntax error at column 2: tabs"));
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(entries(tree(&nested(builder::MAX_DEPTH - 1))).len(), 1);
        assert!(problems(&nested(builder::MAX_DEPTH)).ends_with("nested deeper than 16 levels"));
        assert!(problems(&nested(100_000)).contains(": a[0]"));
        let block: String = (0..1000)
            .map(|depth| format!("{}a:\n", " ".repeat(depth)))
            .collect();
        assert!(problems(&block).ends_with("nested deeper than 16 levels"));
    }
}
