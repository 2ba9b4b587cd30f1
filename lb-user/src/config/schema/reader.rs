//! Reads one node as what is expected there, or says what was found instead.

use super::{
    declare::Declared,
    mapping::{Mapping, Scope},
};
use crate::config::{
    list::{List, Named},
    number::number,
    place::{At, Location, child, element, quote},
    problem::Findings,
    yaml::{Entry, Kind, Node},
};

/// The most prefixes, or routes, in one list.
const MAX_PREFIXES: usize = 1024;

/// A section of the file: a mapping from names that may be absent.
pub(super) fn section<T: Default>(
    file: &Mapping<'_>,
    key: &str,
    findings: &mut Findings,
    read: impl Fn(&Node, Location, &mut Findings) -> Option<T>,
) -> List<Named<T>> {
    let section = file.own(key, findings, |node, place, findings| {
        Some(named(node, &place, findings, read))
    });
    section.unwrap_or(List {
        elements: Vec::new(),
        whole: file.is_absent(key),
    })
}

/// A mapping from names. An entry whose value cannot be read keeps its name, so that
/// what refers to it is not blamed as well.
fn named<T: Default>(
    node: &Node,
    place: &Location,
    findings: &mut Findings,
    read: impl Fn(&Node, Location, &mut Findings) -> Option<T>,
) -> List<Named<T>> {
    let Some(entries) = entries(node, place, findings) else {
        return List::default();
    };
    let read_entry = |entry: &Entry| {
        let place = place_of(entry, place);
        Named {
            name: entry.key.clone(),
            place: place.clone(),
            value: read(&entry.value, place, findings).unwrap_or_default(),
        }
    };
    List {
        elements: entries.iter().map(read_entry).collect(),
        whole: true,
    }
}

/// The entries of a mapping. No value at all is an empty one: all entries may be comments.
pub(super) fn entries<'n>(
    node: &'n Node,
    place: &Location,
    findings: &mut Findings,
) -> Option<&'n [Entry]> {
    match &node.kind {
        Kind::Mapping(entries) => Some(entries),
        Kind::Null => Some(&[]),
        _ => {
            wrong_type(node, place, "a mapping (key: value)", findings);
            None
        }
    }
}

pub(super) fn place_of(entry: &Entry, parent: &Location) -> Location {
    Location {
        line: entry.line,
        column: entry.column,
        ..parent.with_key(child(&parent.key, &entry.key))
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that `Mapping` calls"
)]
pub(super) fn texts(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<String>>> {
    list_not_empty(node, &place, findings, text)
}

/// Nothing if a list is too long, each of whose elements is compared with others.
pub(super) fn bounded(node: &Node, place: &Location, findings: &mut Findings) -> Option<()> {
    match &node.kind {
        Kind::Sequence(nodes) if nodes.len() > MAX_PREFIXES => {
            let words = format!(
                "found {} elements, expected at most {MAX_PREFIXES}",
                nodes.len()
            );
            findings.add(place, words);
            None
        }
        _ => Some(()),
    }
}

pub(super) fn list_not_empty<T>(
    node: &Node,
    place: &Location,
    findings: &mut Findings,
    read: impl Fn(&Node, Location, &mut Findings) -> Option<T>,
) -> Option<List<T>> {
    if matches!(&node.kind, Kind::Sequence(nodes) if nodes.is_empty()) {
        findings.add(place, "found an empty list, expected at least one element");
        return None;
    }
    Some(list(node, place, findings, read))
}

pub(super) fn list<T>(
    node: &Node,
    place: &Location,
    findings: &mut Findings,
    read: impl Fn(&Node, Location, &mut Findings) -> Option<T>,
) -> List<T> {
    let Kind::Sequence(nodes) = &node.kind else {
        wrong_type(node, place, "a list such as [a, b]", findings);
        return List::default();
    };
    let elements = nodes.iter().enumerate().filter_map(|(index, node)| {
        let place = node.place(place.file, element(&place.key, index));
        read(node, place, findings)
    });
    let elements: Vec<T> = elements.collect();
    let whole = elements.len() == nodes.len();
    List { elements, whole }
}

/// The keys of `S`, without defaults.
pub(super) fn whole<S: Declared>(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<S> {
    let keys = Mapping::open(node, place, S::SECTION, Scope::All, findings)?;
    Some(S::read(&keys, findings))
}

/// The same with its place.
pub(super) fn at<S: Declared>(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<At<S>> {
    let value = whole(node, place.clone(), findings)?;
    Some(At { place, value })
}

/// A list of texts, or one of them alone.
pub(super) fn one_or_more(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<String>>> {
    if let Kind::Scalar { .. } = node.kind {
        return Some(List {
            elements: vec![text(node, place, findings)?],
            whole: true,
        });
    }
    texts(node, place, findings)
}

pub(super) fn text(node: &Node, place: Location, findings: &mut Findings) -> Option<At<String>> {
    let Kind::Scalar { text, .. } = &node.kind else {
        wrong_type(node, &place, "a text", findings);
        return None;
    };
    let value = text.clone();
    Some(At { place, value })
}

pub(super) fn whole_number(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<At<u64>> {
    let value = match &node.kind {
        Kind::Scalar { text, plain: true } => number(text),
        _ => None,
    };
    let Some(value) = value else {
        wrong_type(node, &place, "a whole number", findings);
        return None;
    };
    Some(At { place, value })
}

pub(super) fn boolean(node: &Node, place: Location, findings: &mut Findings) -> Option<At<bool>> {
    let value = match &node.kind {
        Kind::Scalar { text, plain: true } => text.parse().ok(),
        _ => None,
    };
    let Some(value) = value else {
        wrong_type(node, &place, "true or false", findings);
        return None;
    };
    Some(At { place, value })
}

fn wrong_type(node: &Node, place: &Location, expected: &str, findings: &mut Findings) {
    let found = match &node.kind {
        Kind::Invalid => return,
        Kind::Mapping(_) => "a mapping".to_owned(),
        Kind::Null => "no value".to_owned(),
        Kind::Scalar { text, plain: true } => quote(text),
        Kind::Scalar { text, plain: false } => format!("the text {}", quote(text)),
        Kind::Sequence(_) => "a list".to_owned(),
    };
    findings.add(place, format!("found {found}, expected {expected}"));
}
