//! Builds the tree from the events, which come one by one: what is open is kept on a stack.

use std::collections::{HashMap, hash_map};

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::{Entry, Kind, Node};
use crate::config::{
    place::{Location, child, element},
    problem::Findings,
};

/// The deepest nesting that is read; the deepest key of a configuration is five levels down.
/// It bounds the recursion of everything that walks the tree.
pub(super) const MAX_DEPTH: usize = 16;

/// The tree of `text`, which is `file`; nothing behind a syntax error, or behind nesting that is too deep.
pub(in crate::config) fn read(text: &str, file: usize, findings: &mut Findings) -> Option<Node> {
    let mut builder = Builder {
        file,
        findings,
        open: Vec::new(),
        root: None,
    };
    let mut documents = 0;
    // A byte order mark is no part of the text.
    let mut parser = Parser::new_from_str(text.strip_prefix('\u{feff}').unwrap_or(text));
    while let Some(next) = parser.next_event() {
        let (event, span) = match next {
            Ok(next) => next,
            Err(error) => {
                builder.syntax_error(&error);
                return None;
            }
        };
        if let Event::DocumentStart(_) = event {
            documents += 1;
        }
        if documents > 1 {
            let place = position(span).place(file, String::new());
            let words = "a second document starts here; expected one per file";
            builder.findings.add(&place, words);
            break;
        }
        builder.event(event, span)?;
    }
    // A file without a value (empty, or comments only) is a mapping without keys.
    Some(builder.root.unwrap_or(Node {
        line: 1,
        column: 1,
        kind: Kind::Null,
    }))
}

/// The tree so far.
struct Builder<'f> {
    file: usize,
    findings: &'f mut Findings,
    /// The mappings and lists that have started and not yet ended, outermost first.
    open: Vec<Open>,
    root: Option<Node>,
}

struct Open {
    place: Location,
    inside: Inside,
}

enum Inside {
    Mapping {
        entries: Vec<Entry>,
        /// Key -> index in `entries`: a search there would take quadratic time.
        known: HashMap<String, usize>,
        /// The key whose value comes next.
        key: Option<Key>,
    },
    Sequence(Vec<Node>),
}

struct Key {
    /// `None`: not a text, already reported.
    text: Option<String>,
    line: usize,
    column: usize,
}

impl Builder<'_> {
    /// Takes one event; `None` ends the reading, with the reason reported.
    fn event(&mut self, event: Event<'_>, span: Span) -> Option<()> {
        match event {
            Event::Alias(_) => {
                self.refuse(
                    span,
                    "aliases (*name) are not supported; write the value again",
                );
                self.value(position(span));
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_properties(span, anchor, tag.is_some());
                let plain = style == ScalarStyle::Plain;
                let kind = if plain && matches!(&*text, "" | "~" | "null" | "Null" | "NULL") {
                    Kind::Null
                } else {
                    let text = text.into_owned();
                    Kind::Scalar { text, plain }
                };
                self.value(Node {
                    kind,
                    ..position(span)
                });
            }
            Event::SequenceStart(anchor, tag) => {
                self.start(span, anchor, tag.as_deref(), Inside::Sequence(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                let inside = Inside::Mapping {
                    entries: Vec::new(),
                    known: HashMap::new(),
                    key: None,
                };
                self.start(span, anchor, tag.as_deref(), inside)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(open) = self.open.pop() {
                    self.value(Node {
                        line: open.place.line,
                        column: open.place.column,
                        kind: match open.inside {
                            Inside::Mapping { entries, .. } => Kind::Mapping(entries),
                            Inside::Sequence(nodes) => Kind::Sequence(nodes),
                        },
                    });
                }
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => {}
        }
        Some(())
    }

    fn start(
        &mut self,
        span: Span,
        anchor: usize,
        tag: Option<&Tag>,
        inside: Inside,
    ) -> Option<()> {
        self.refuse_properties(span, anchor, tag.is_some());
        if self.open.len() == MAX_DEPTH {
            self.refuse(span, &format!("nested deeper than {MAX_DEPTH} levels"));
            return None;
        }
        self.open.push(Open {
            place: position(span).place(self.file, self.path()),
            inside,
        });
        Some(())
    }

    /// Puts a complete node where it belongs: into the innermost open mapping or list.
    fn value(&mut self, node: Node) {
        let outermost = self.open.len() == 1;
        let Some(Open { place, inside }) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match inside {
            Inside::Sequence(nodes) => nodes.push(node),
            Inside::Mapping {
                entries,
                known,
                key,
            } => match key.take() {
                None => *key = Some(into_key(node, place, self.findings)),
                Some(key) => {
                    if let Some(entry) = into_entry(key, node) {
                        insert(entries, known, entry, place, outermost, self.findings);
                    }
                }
            },
        }
    }

    fn refuse_properties(&mut self, span: Span, anchor: usize, tag: bool) {
        if anchor != 0 {
            self.refuse(
                span,
                "anchors (&name) are not supported; write the value again",
            );
        }
        if tag {
            self.refuse(
                span,
                "tags (!name) are not supported; write the value alone",
            );
        }
    }

    fn refuse(&mut self, span: Span, words: &str) {
        let place = position(span).place(self.file, self.path());
        self.findings.add(&place, words);
    }

    fn syntax_error(&mut self, error: &ScanError) {
        let column = error.marker().col() + 1;
        let place = Location {
            file: self.file,
            line: error.marker().line(),
            column,
            key: self.path(),
        };
        // An alias to nothing is for the parser what a wrong bracket is.
        let words = if error.info().contains("unknown anchor") {
            "aliases (*name) are not supported; write the value again".to_owned()
        } else {
            let inside = self.innermost(place.line);
            format!("syntax error at column {column}: {}{inside}", error.info())
        };
        self.findings.add(&place, words);
    }

    /// Where the innermost list or mapping started, if not in `line`: a missing bracket or a wrong
    /// indentation is often seen only lines below.
    fn innermost(&self, line: usize) -> String {
        let Some(open) = self.open.last().filter(|open| open.place.line != line) else {
            return String::new();
        };
        let what = match open.inside {
            Inside::Mapping { .. } => "mapping",
            Inside::Sequence(_) => "list",
        };
        format!(
            " (inside the {what} that starts in line {})",
            open.place.line
        )
    }

    /// The path of the value that comes next.
    fn path(&self) -> String {
        let Some(Open { place, inside }) = self.open.last() else {
            return String::new();
        };
        match inside {
            Inside::Mapping { key, .. } => match key.as_ref().and_then(|key| key.text.as_ref()) {
                Some(key) => child(&place.key, key),
                None => place.key.clone(),
            },
            Inside::Sequence(nodes) => element(&place.key, nodes.len()),
        }
    }
}

/// A node that is nothing yet, at the start of `span`.
fn position(span: Span) -> Node {
    Node {
        line: span.start.line(),
        column: span.start.col() + 1,
        kind: Kind::Invalid,
    }
}

fn into_key(node: Node, parent: &Location, findings: &mut Findings) -> Key {
    let (line, column) = (node.line, node.column);
    let text = match node.kind {
        Kind::Scalar { text, .. } => Some(text),
        Kind::Invalid => None,
        Kind::Mapping(_) | Kind::Null | Kind::Sequence(_) => {
            findings.add(
                &node.place(parent.file, parent.key.clone()),
                "a key must be a text",
            );
            None
        }
    };
    Key { text, line, column }
}

fn into_entry(key: Key, mut value: Node) -> Option<Entry> {
    // The parser puts an absent value at the next thing it saw, which may be lines further down.
    if value.kind == Kind::Null {
        (value.line, value.column) = (key.line, key.column);
    }
    Some(Entry {
        key: key.text?,
        line: key.line,
        column: key.column,
        value,
    })
}

/// Adds `entry` to the mapping at `parent`. A key that is there already is a problem, and its second
/// value is dropped. Only of a section of the file that is written twice (`pools:` at the top and again
/// further down) both parts are read, so that what refers to the second one is not blamed as well.
fn insert(
    entries: &mut Vec<Entry>,
    known: &mut HashMap<String, usize>,
    entry: Entry,
    parent: &Location,
    outermost: bool,
    findings: &mut Findings,
) {
    match known.entry(entry.key.clone()) {
        hash_map::Entry::Vacant(vacant) => {
            vacant.insert(entries.len());
            entries.push(entry);
        }
        hash_map::Entry::Occupied(occupied) => {
            let first = &mut entries[*occupied.get()];
            let place = Location {
                line: entry.line,
                column: entry.column,
                ..parent.with_key(child(&parent.key, &entry.key))
            };
            let words = format!("duplicate key, first used in line {}", first.line);
            findings.add(&place, words);
            if !outermost {
                return;
            }
            match (&mut first.value.kind, entry.value.kind) {
                (Kind::Mapping(merged), Kind::Mapping(more)) => {
                    merge(merged, more, &place, findings);
                }
                (empty @ Kind::Null, more) => *empty = more,
                _ => {}
            }
        }
    }
}

fn merge(entries: &mut Vec<Entry>, more: Vec<Entry>, parent: &Location, findings: &mut Findings) {
    let keys = entries.iter().map(|entry| entry.key.clone()).zip(0..);
    let mut known = keys.collect();
    for entry in more {
        insert(entries, &mut known, entry, parent, false, findings);
    }
}
