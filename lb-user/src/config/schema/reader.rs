//! Reads one node as what is expected there, or says what was found instead.

use super::{List, Named};
use crate::config::{
    address::number,
    place::{At, Place, child, element, quote},
    problem::Findings,
    suggest::closest,
    yaml::{Entry, Kind, Node},
};

/// A mapping with known keys.
pub(super) struct Mapping<'n> {
    /// Of the key whose value this is: where its missing keys are reported.
    place: Place,
    entries: &'n [Entry],
    /// The known keys that unknown ones were taken for: they are not missing as well.
    meant: Vec<&'static str>,
}

impl<'n> Mapping<'n> {
    pub(super) fn open(
        node: &'n Node,
        place: Place,
        known: &[&'static str],
        findings: &mut Findings,
    ) -> Option<Self> {
        let mut mapping = Self {
            entries: entries(node, &place, findings)?,
            place,
            meant: Vec::new(),
        };
        for entry in mapping.entries {
            if !known.contains(&entry.key.as_str()) {
                mapping.refuse(entry, known, findings);
            }
        }
        Some(mapping)
    }

    fn refuse(&mut self, entry: &Entry, known: &[&'static str], findings: &mut Findings) {
        let known = || known.iter().copied();
        let glued = entry.key.split_once(':').map(|(key, _)| key);
        let glued = glued.and_then(|glued| known().find(|key| *key == glued));
        let words = if entry.key == "<<" {
            "merge keys (<<) are not supported; write the values again".to_owned()
        } else if let Some(key) = glued {
            self.meant.push(key);
            format!("unknown key; is the space behind \"{key}:\" missing?")
        } else if let Some(key) = closest(&entry.key, known()) {
            self.meant.push(key);
            format!("unknown key; did you mean {}?", quote(key))
        } else {
            let known: Vec<_> = known().collect();
            format!("unknown key; expected one of {}", known.join(", "))
        };
        findings.add(&place_of(entry, &self.place), words);
    }

    pub(super) fn required<T>(
        &self,
        key: &str,
        findings: &mut Findings,
        read: impl FnOnce(&Node, Place, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        if self.is_absent(key) {
            let place = self.place.with_key(child(&self.place.key, key));
            findings.add(&place, "missing; this key is required");
        }
        self.optional(key, findings, read)
    }

    pub(super) fn optional<T>(
        &self,
        key: &str,
        findings: &mut Findings,
        read: impl FnOnce(&Node, Place, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let place = entry.value.place(child(&self.place.key, key));
        read(&entry.value, place, findings)
    }

    /// Whether nobody wrote this key, nor one that was taken for it.
    pub(super) fn is_absent(&self, key: &str) -> bool {
        let written = self.entries.iter().any(|entry| entry.key == key);
        !written && !self.meant.contains(&key)
    }
}

/// A section: a mapping from names. An entry whose value cannot be read keeps its name, so that
/// what refers to it is not blamed as well.
pub(super) fn named<T: Default>(
    node: &Node,
    place: &Place,
    findings: &mut Findings,
    read: impl Fn(&Node, Place, &mut Findings) -> Option<T>,
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
fn entries<'n>(node: &'n Node, place: &Place, findings: &mut Findings) -> Option<&'n [Entry]> {
    match &node.kind {
        Kind::Mapping(entries) => Some(entries),
        Kind::Null => Some(&[]),
        _ => {
            wrong_type(node, place, "a mapping (key: value)", findings);
            None
        }
    }
}

fn place_of(entry: &Entry, parent: &Place) -> Place {
    Place {
        line: entry.line,
        column: entry.column,
        key: child(&parent.key, &entry.key),
    }
}

pub(super) fn texts_not_empty(
    node: &Node,
    place: Place,
    findings: &mut Findings,
) -> Option<List<At<String>>> {
    if matches!(&node.kind, Kind::Sequence(nodes) if nodes.is_empty()) {
        findings.add(&place, "found an empty list, expected at least one element");
        return None;
    }
    texts(node, place, findings)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that `Mapping` calls"
)]
pub(super) fn texts(
    node: &Node,
    place: Place,
    findings: &mut Findings,
) -> Option<List<At<String>>> {
    Some(list(node, &place, findings, text))
}

pub(super) fn list<T>(
    node: &Node,
    place: &Place,
    findings: &mut Findings,
    read: impl Fn(&Node, Place, &mut Findings) -> Option<T>,
) -> List<T> {
    let Kind::Sequence(nodes) = &node.kind else {
        wrong_type(node, place, "a list such as [a, b]", findings);
        return List::default();
    };
    let elements = nodes.iter().enumerate().filter_map(|(index, node)| {
        let place = node.place(element(&place.key, index));
        read(node, place, findings)
    });
    let elements: Vec<T> = elements.collect();
    let whole = elements.len() == nodes.len();
    List { elements, whole }
}

pub(super) fn text(node: &Node, place: Place, findings: &mut Findings) -> Option<At<String>> {
    let Kind::Scalar { text, .. } = &node.kind else {
        wrong_type(node, &place, "a text", findings);
        return None;
    };
    let value = text.clone();
    Some(At { place, value })
}

pub(super) fn whole_number(node: &Node, place: Place, findings: &mut Findings) -> Option<At<u64>> {
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

fn wrong_type(node: &Node, place: &Place, expected: &str, findings: &mut Findings) {
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
