//! Text that comes from clients, files and the network, as a terminal, a log and a syslog server may have it.

use std::borrow::Cow;

/// The text with every character escaped that ends a line, moves a cursor, or changes the order of what is shown.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            clean.extend(character.escape_default());
        } else {
            clean.push(character);
        }
    }
    Cow::Owned(clean)
}

/// Controls (C0, DEL, C1), separators of lines, and marks that change the direction of what is behind them.
fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        for (text, clean) in [
            ("backend kas-a/ä: up", "backend kas-a/ä: up"),
            ("<script>\"]\\", "<script>\"]\\"),
            ("a\nb\tc\r", "a\\nb\\tc\\r"),
            ("\u{1b}[2J\u{7}\u{7f}", "\\u{1b}[2J\\u{7}\\u{7f}"),
            (
                "\u{9b}31m\u{2028}\u{202e}x",
                "\\u{9b}31m\\u{2028}\\u{202e}x",
            ),
            ("\0", "\\u{0}"),
        ] {
            assert_eq!(escaped(text), clean);
        }
    }
}
