//! Reads one node as what is expected there, or says what was found instead.

use super::{List, Named};
use crate::config::{
    address::number,
    did_you_mean::closest,
    place::{At, Location, child, element, quote},
    problem::Findings,
    yaml::{Entry, Kind, Node},
};

/// The most prefixes in one list.
const MAX_PREFIXES: usize = 1024;

/// A mapping with known keys.
pub(super) struct Mapping<'n> {
    /// Of the key whose value this is: where its missing keys are reported.
    place: Location,
    entries: &'n [Entry],
    /// The known keys that unknown ones were taken for: they are not missing as well.
    meant: Vec<&'static str>,
    /// Whether no key is required: this is a default, or there is one for each.
    lenient: bool,
}

/// What `defaults` says for the entries of one kind.
#[derive(Clone, Debug, Default)]
pub(in crate::config) struct Preset<T> {
    pub(in crate::config) value: T,
    /// The keys that are there, whether they could be read or not.
    written: Vec<String>,
}

impl<T> Preset<T> {
    pub(super) fn new(keys: &Mapping<'_>, value: T) -> Self {
        let written = keys.entries.iter().map(|entry| entry.key.clone());
        let meant = keys.meant.iter().copied().map(str::to_owned);
        Self {
            value,
            written: written.chain(meant).collect(),
        }
    }

    pub(super) fn says(&self, key: &str) -> bool {
        self.written.iter().any(|written| written == key)
    }
}

impl<'n> Mapping<'n> {
    pub(super) fn open(
        node: &'n Node,
        place: Location,
        known: &[&'static str],
        findings: &mut Findings,
    ) -> Option<Self> {
        let mut mapping = Self {
            entries: entries(node, &place, findings)?,
            place,
            meant: Vec::new(),
            lenient: false,
        };
        for entry in mapping.entries {
            if !known.contains(&entry.key.as_str()) {
                mapping.refuse(entry, known, findings);
            }
        }
        Some(mapping)
    }

    /// The same keys, with none of them required.
    pub(super) fn lenient(self) -> Self {
        Self {
            lenient: true,
            ..self
        }
    }

    /// Whether this is a default, in which nothing is required.
    pub(super) fn is_lenient(&self) -> bool {
        self.lenient
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
        read: impl FnOnce(&Node, Location, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        if self.is_absent(key) && !self.lenient {
            findings.add(&self.place_of_key(key), "missing; this key is required");
        }
        self.optional(key, findings, read)
    }

    /// As `required`, unless `defaults` have it.
    pub(super) fn required_or<T: Clone, D>(
        &self,
        key: &str,
        defaults: &Preset<D>,
        default: impl FnOnce(&D) -> &Option<T>,
        findings: &mut Findings,
        read: impl FnOnce(&Node, Location, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        if defaults.says(key) {
            self.optional_or(key, defaults, default, findings, read)
        } else {
            self.required(key, findings, read)
        }
    }

    /// The own value, or else the default one.
    pub(super) fn optional_or<T: Clone, D>(
        &self,
        key: &str,
        defaults: &Preset<D>,
        default: impl FnOnce(&D) -> &Option<T>,
        findings: &mut Findings,
        read: impl FnOnce(&Node, Location, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        if self.is_absent(key) {
            default(&defaults.value).clone()
        } else {
            self.optional(key, findings, read)
        }
    }

    /// The place of a key that is there, or where a missing one is reported.
    pub(super) fn place_of_key(&self, key: &str) -> Location {
        match self.entries.iter().find(|entry| entry.key == key) {
            Some(entry) => place_of(entry, &self.place),
            None => self.place.with_key(child(&self.place.key, key)),
        }
    }

    pub(super) fn optional<T>(
        &self,
        key: &str,
        findings: &mut Findings,
        read: impl FnOnce(&Node, Location, &mut Findings) -> Option<T>,
    ) -> Option<T> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        let place = entry
            .value
            .place(self.place.file, child(&self.place.key, key));
        read(&entry.value, place, findings)
    }

    /// Whether this key is written.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Whether nobody wrote this key, nor one that was taken for it.
    pub(super) fn is_absent(&self, key: &str) -> bool {
        !self.has(key) && !self.meant.contains(&key)
    }
}

/// A section of the file: a mapping from names that may be absent.
pub(super) fn section<T: Default>(
    file: &Mapping<'_>,
    key: &str,
    findings: &mut Findings,
    read: impl Fn(&Node, Location, &mut Findings) -> Option<T>,
) -> List<Named<T>> {
    let section = file.optional(key, findings, |node, place, findings| {
        Some(named(node, &place, findings, read))
    });
    section.unwrap_or_else(|| List::absent(file, key))
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
fn entries<'n>(node: &'n Node, place: &Location, findings: &mut Findings) -> Option<&'n [Entry]> {
    match &node.kind {
        Kind::Mapping(entries) => Some(entries),
        Kind::Null => Some(&[]),
        _ => {
            wrong_type(node, place, "a mapping (key: value)", findings);
            None
        }
    }
}

fn place_of(entry: &Entry, parent: &Location) -> Location {
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
pub(super) fn texts_not_empty(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<String>>> {
    list_not_empty(node, &place, findings, text)
}

/// A list of prefixes: each one is compared with others, so there must not be too many.
pub(super) fn prefixes(
    node: &Node,
    place: Location,
    findings: &mut Findings,
) -> Option<List<At<String>>> {
    bounded(node, &place, findings)?;
    texts_not_empty(node, place, findings)
}

/// Nothing if the list is too long.
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
