//! The YAML of a configuration as values: mappings, lists and scalars, and nothing else.

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
use serde_json::Value;

use super::{Keys, SECTIONS};

/// What is behind a top-level key.
pub(super) enum Top {
    Section(Vec<(String, Keys)>),
    Value(Value),
}

/// The top-level keys of a file, in its order.
pub(super) fn file(text: &str) -> Vec<(String, Top)> {
    let mut events = Events(Parser::new_from_str(text));
    let first = events.next();
    events.mapping(&first, |events, key, first| {
        if SECTIONS.contains(&key) {
            Top::Section(events.mapping(&first, |events, _, first| Keys::from(events.value(first))))
        } else {
            Top::Value(events.value(first))
        }
    })
}

/// The keys of a mapping that is written without its braces.
pub(super) fn keys(text: &str) -> Value {
    let text = format!("{{ {text} }}");
    let mut events = Events(Parser::new_from_str(&text));
    let first = events.next();
    events.value(first)
}

struct Events<'t>(Parser<'t, StrInput<'t>>);

impl<'t> Events<'t> {
    /// The next part of the content.
    fn next(&mut self) -> Event<'t> {
        loop {
            let (event, _) = self.0.next().expect("a whole document").expect("YAML");
            if !matches!(event, Event::StreamStart | Event::DocumentStart(_)) {
                return event;
            }
        }
    }

    /// The mapping that starts with `first`; each value is read by its key and its own first event.
    fn mapping<T>(
        &mut self,
        first: &Event<'t>,
        mut value: impl FnMut(&mut Self, &str, Event<'t>) -> T,
    ) -> Vec<(String, T)> {
        assert!(matches!(first, Event::MappingStart(..)), "{first:?}");
        let mut entries = Vec::new();
        while let Event::Scalar(key, ..) = self.next() {
            let first = self.next();
            let value = value(self, &key, first);
            entries.push((key.into_owned(), value));
        }
        entries
    }

    fn value(&mut self, first: Event<'t>) -> Value {
        match first {
            Event::Scalar(text, ScalarStyle::Plain, ..) => scalar(&text),
            Event::Scalar(text, ..) => text.into(),
            Event::MappingStart(..) => {
                let entries = self.mapping(&first, |events, _, first| events.value(first));
                Value::Object(entries.into_iter().collect())
            }
            Event::SequenceStart(..) => {
                let mut list = Vec::new();
                loop {
                    match self.next() {
                        Event::SequenceEnd => return list.into(),
                        next => list.push(self.value(next)),
                    }
                }
            }
            other => panic!("{other:?} is no value"),
        }
    }
}

/// A scalar without quotes: nothing, a truth value, a number, else text.
fn scalar(text: &str) -> Value {
    match text {
        "" | "~" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
    }
}
