//! Where a value stands in the file, and how its key is written in a problem.

/// The most characters of the user's text that one problem repeats.
const MAX_QUOTED: usize = 64;

/// The file that the others are included by, as an index of [`Findings`](super::problem::Findings).
pub(super) const MAIN: usize = 0;

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Index of the file, [`MAIN`] or behind it.
    pub(super) file: usize,
    /// Line, from 1.
    pub(super) line: usize,
    /// Column in characters, from 1.
    pub(super) column: usize,
    /// The path of keys, such as `pools.kas-a.backends[1]`; empty for the whole file.
    pub(super) key: String,
}

impl Location {
    /// The value of the whole file.
    pub(super) fn root(file: usize) -> Self {
        Self {
            file,
            line: 1,
            column: 1,
            key: String::new(),
        }
    }

    /// The value that is declared for a key that is not written.
    pub(super) fn unwritten(file: usize, key: String) -> Self {
        Self {
            line: 0,
            column: 0,
            file,
            key,
        }
    }

    /// Whether there is such a line.
    pub(super) fn is_written(&self) -> bool {
        self.line > 0
    }

    /// A line that could not be split into keys; 0 for the file as a whole.
    pub(super) fn of_line(file: usize, line: usize) -> Self {
        Self {
            line,
            column: 0,
            ..Self::root(file)
        }
    }

    /// The same line and column under another key: where a missing key is reported.
    pub(super) fn with_key(&self, key: String) -> Self {
        Self { key, ..*self }
    }

    /// Whether this is a part of what stands at `outer`, and not a default for it.
    pub(super) fn is_inside(&self, outer: &Self) -> bool {
        let rest = self.key.strip_prefix(&outer.key);
        self.file == outer.file && rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
    }
}

/// A value and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct At<T> {
    pub(super) place: Location,
    pub(super) value: T,
}

/// The value of a key that has one also where it is not written. It lacks one only in a mapping that could not be read,
/// which is reported: there any value will do.
pub(super) fn value_of<T: Clone + Default>(key: &Option<At<T>>) -> T {
    let value = key.as_ref().map(|at| at.value.clone());
    value.unwrap_or_default()
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
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_. ".contains(&byte);
    // Nearly every key, of which there are many.
    if text.len() <= MAX_QUOTED && text.bytes().all(is_plain) {
        return text.to_owned();
    }
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
    fn a_default_is_not_inside_of_what_it_is_for() {
        let at = |key: &str| Location::root(MAIN).with_key(key.to_owned());
        let pool = at("pools.kas-a");
        assert!(at("pools.kas-a").is_inside(&pool));
        assert!(at("pools.kas-a.network").is_inside(&pool));
        assert!(!at("defaults.pool.network").is_inside(&pool));
        assert!(!at("pools.kas-ab.network").is_inside(&pool));
        assert!(
            !Location {
                file: 1,
                ..pool.clone()
            }
            .is_inside(&pool)
        );
    }

    #[test]
    fn quoted_text_is_one_short_line_without_control_characters() {
        assert_eq!(quote("a\n\u{1b}[2J"), r#""a\n\u{1b}[2J""#);
        assert_eq!(quote(&"x".repeat(65)), format!("\"{}...\"", "x".repeat(64)));
        assert_eq!(quote(&"ü".repeat(64)), format!("\"{}\"", "ü".repeat(64)));
    }
}
