//! Where a value stands in the file, and how its key is written in a problem.

/// The most characters of the user's text that one problem repeats.
const MAX_QUOTED: usize = 64;

/// A place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Line, from 1.
    pub(super) line: usize,
    /// Column in characters, from 1.
    pub(super) column: usize,
    /// The path of keys, such as `pools.kas-a.backends[1]`; empty for the whole file.
    pub(super) key: String,
}

impl Place {
    /// The whole file.
    pub(super) fn root() -> Self {
        Self {
            line: 1,
            column: 1,
            key: String::new(),
        }
    }

    /// The same line and column under another key: where a missing key is reported.
    pub(super) fn with_key(&self, key: String) -> Self {
        Self { key, ..*self }
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct At<T> {
    pub(super) place: Place,
    pub(super) value: T,
}

/// The path of `key` in the mapping at `parent`.
pub(super) fn child(parent: &str, key: &str) -> String {
    let key = shorten(key);
    if parent.is_empty() {
        key
    } else {
        format!("{parent}.{key}")
    }
}

/// The path of the element `index`, from 0, of the list at `parent`.
pub(super) fn element(parent: &str, index: usize) -> String {
    format!("{parent}[{index}]")
}

/// The user's text in quotes.
pub(super) fn quote(text: &str) -> String {
    format!("\"{}\"", shorten(text))
}

/// The user's text, short enough for one line and without characters that could command a terminal.
fn shorten(text: &str) -> String {
    let mut short: String = text
        .chars()
        .take(MAX_QUOTED)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
        short.push_str("...");
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_read_as_in_the_documentation() {
        let pool = child(&child("", "pools"), "kas-a");
        assert_eq!(
            element(&child(&pool, "backends"), 1),
            "pools.kas-a.backends[1]"
        );
    }

    #[test]
    fn quoted_text_is_one_short_line_without_control_characters() {
        assert_eq!(quote("a\n\u{1b}[2J"), r#""a\n\u{1b}[2J""#);
        assert_eq!(quote(&"x".repeat(65)), format!("\"{}...\"", "x".repeat(64)));
        assert_eq!(quote(&"ü".repeat(64)), format!("\"{}\"", "ü".repeat(64)));
    }
}
