//! Words and phrases that stand for a client, a backend, a process or an operator, found in a text.

/// Words that stand for one wherever they are.
const WORDS: [&str; 6] = [
    "anybody",
    "everybody",
    "nobody",
    "somebody",
    "whoever",
    "whom",
];

/// Words before `told`, with which it means an answer, a reset or a line of a log. Code has the name `told` without them.
const BEFORE_TOLD: [&str; 9] = [
    "and", "are", "be", "been", "being", "is", "not", "was", "were",
];

/// Words after `told`, with which it means the same.
const AFTER_TOLD: [&str; 6] = ["apart", "nothing", "of", "so", "that", "when"];

/// A word of a text, as far as the rules need to know it.
struct Word<'text> {
    /// Number of its line.
    line: usize,
    text: &'text str,
    /// Whether it begins a sentence, a clause behind a colon or semicolon, or a comment.
    begins: bool,
    /// Whether it is in a comment, or the file has prose alone.
    is_prose: bool,
}

/// What a text has of it, with the numbers of the lines. Of code a pronoun is looked for in comments alone.
pub(super) fn found(text: &str, is_code: bool) -> Vec<(usize, String)> {
    let words = words(text, is_code);
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let beside = |index: Option<usize>, listed: &[&str]| {
            let other = index.and_then(|index| words.get(index));
            other
                .filter(|other| is_among(other.text, listed))
                .map(|other| other.text)
        };
        let before = index.checked_sub(1);
        let phrase = if is_among(word.text, &WORDS) {
            Some(word.text.to_owned())
        } else if is_among(word.text, &["told"]) {
            let before = beside(before, &BEFORE_TOLD).map(|other| format!("{other} told"));
            before.or_else(|| {
                let after = beside(Some(index + 1), &AFTER_TOLD);
                after.map(|other| format!("told {other}"))
            })
        } else if is_among(word.text, &["who"]) && word.is_prose && word.begins {
            let next = words.get(index + 1).map_or("", |next| next.text);
            Some(format!("{} {next}", word.text))
        } else {
            None
        };
        found.extend(phrase.map(|phrase| (word.line, phrase)));
    }
    found
}

fn is_among(word: &str, listed: &[&str]) -> bool {
    listed.iter().any(|other| word.eq_ignore_ascii_case(other))
}

/// The words of a text in order; a phrase may go on in the next line.
fn words(text: &str, is_code: bool) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut was_prose = false;
    // How the line before ended, if this one goes on with it.
    let mut end = None;
    for (line, content) in (1..).zip(text.lines()) {
        let comment = if is_code { content.find("//") } else { Some(0) };
        if comment.is_none() || !was_prose {
            end = None;
        }
        was_prose = comment.is_some();
        let is_prose = |at: usize| comment.is_some_and(|start| at >= start);
        let mut rest = 0;
        while let Some((start, word)) = next_word(content, rest) {
            let between = content.get(rest..start).unwrap_or_default();
            let is_first = !is_prose(rest.saturating_sub(1)) || rest == 0;
            let begins = if between.ends_with('`') {
                false
            } else if is_first {
                end.is_none_or(is_end)
            } else {
                // In `a.who` and `a::who` it begins nothing.
                between.ends_with(' ') && between.trim_end().ends_with(is_end)
            };
            words.push(Word {
                line,
                text: word,
                begins,
                is_prose: is_prose(start),
            });
            rest = start + word.len();
        }
        let last = content.trim_end().chars().last();
        end = if rest == 0 { None } else { last };
    }
    words
}

/// Where the next word from a byte on begins, and the word.
fn next_word(line: &str, from: usize) -> Option<(usize, &str)> {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    let rest = line.get(from..)?;
    let start = rest.find(is_of_word)?;
    let word = rest.get(start..)?;
    let length = word.find(|c| !is_of_word(c)).unwrap_or(word.len());
    Some((from + start, word.get(..length)?))
}

/// Whether a sentence or clause ends with this.
const fn is_end(c: char) -> bool {
    matches!(c, '.' | ':' | ';' | '?' | '!')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, is_code: bool) -> Vec<(usize, String)> {
        found(text, is_code)
    }

    #[test]
    fn words_are_found_and_not_names_with_them() {
        let text = "\
// Nobody listens.
let whomever = is_nobody(x);
panic!(\"to whom? somebody's\")
";
        let expected = [(1, "Nobody"), (3, "whom"), (3, "somebody")];
        let expected = expected.map(|(line, word)| (line, word.to_owned()));
        assert_eq!(lines(text, true), expected);
    }

    #[test]
    fn told_is_found_with_what_makes_it_an_answer() {
        let text = "\
/// The client is told; both ends were
/// told when. It says so, told
/// so.
let told = asked(told, &told.and)?;
bail!(\"not told\");
";
        let expected = [
            (1, "is told"),
            (2, "were told"),
            (2, "told so"),
            (5, "not told"),
        ];
        let expected = expected.map(|(line, word)| (line, word.to_owned()));
        assert_eq!(lines(text, true), expected);
    }

    #[test]
    fn who_is_found_where_it_stands_for_a_noun() {
        let text = "\
/// Who asks is answered: who is denied
/// is not. Also
/// who has none. A user who may, the client
/// who asks.
lb.who(a)?; let b = who::run(who); // who runs
fn who() {}
";
        let expected = [(1, "Who asks"), (1, "who is"), (5, "who runs")];
        let expected = expected.map(|(line, word)| (line, word.to_owned()));
        assert_eq!(lines(text, true), expected);
    }

    #[test]
    fn a_document_is_prose_in_every_line() {
        let text = "# Clients\n\nThose that come. Who asks.\n| `who` | a command |\n`lb who`, the operator\nwho runs\n";
        assert_eq!(lines(text, false), [(3, "Who asks".to_owned())]);
    }
}
