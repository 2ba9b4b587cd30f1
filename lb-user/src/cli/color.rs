//! Colours for a terminal, of words that say how something is; pipes, files and JSON get none.

use std::{
    env,
    ffi::OsStr,
    io::{self, IsTerminal},
    sync::OnceLock,
};

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;

/// When there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum When {
    // What stands here in `///` is printed with each command.
    Auto,
    Always,
    Never,
}

/// The header of a table.
const HEADER: Style = Style::new().bold();

/// What the command line has chosen; nothing in tests.
static CHOSEN: OnceLock<When> = OnceLock::new();

/// Chooses for this process; the first time counts.
pub(super) fn choose(when: When) {
    let _chosen = CHOSEN.set(when);
}

/// Whether standard output has colours.
pub(super) fn is_on() -> bool {
    CHOSEN
        .get()
        .is_some_and(|&when| is_wanted(when, &io::stdout()))
}

/// Whether standard error has colours.
pub(super) fn is_on_error() -> bool {
    CHOSEN
        .get()
        .is_some_and(|&when| is_wanted(when, &io::stderr()))
}

fn is_wanted(when: When, stream: &impl IsTerminal) -> bool {
    let [no_color, term] = ["NO_COLOR", "TERM"].map(env::var_os);
    chosen(
        when,
        stream.is_terminal(),
        no_color.as_deref(),
        term.as_deref(),
    )
}

/// What a user wants on the command line goes before what is in the environment: <https://no-color.org>.
fn chosen(when: When, is_terminal: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => {
            let is_refused = no_color.is_some_and(|value| !value.is_empty());
            is_terminal && !is_refused && term.is_none_or(|term| term != "dumb")
        }
    }
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    Good,
    Doubtful,
    Bad,
}

impl Standing {
    /// Of the worst of the words of a cell, if any says how something is.
    pub(super) fn worst(text: &str) -> Option<Self> {
        text.split(", ").filter_map(Self::of).max()
    }

    /// Of a word of the tables.
    fn of(word: &str) -> Option<Self> {
        match word {
            "ok" | "up" => Some(Self::Good),
            "dead" | "degraded" | "down" | "service down" | "unreachable" | "unresponsive" => {
                Some(Self::Bad)
            }
            "disabled" | "drained" | "draining" | "not ready" | "removed" | "slow" | "stale"
            | "unknown" => Some(Self::Doubtful),
            _ => count(word),
        }
    }

    const fn style(self) -> Style {
        let color = match self {
            Self::Good => AnsiColor::Green,
            Self::Doubtful => AnsiColor::Yellow,
            Self::Bad => AnsiColor::Red,
        };
        color.on_default()
    }
}

/// Of how many are up, such as `2/3`, or `p 2/3`.
fn count(word: &str) -> Option<Standing> {
    let (_, count) = word.rsplit_once(' ').unwrap_or(("", word));
    let (up, of) = count.split_once('/')?;
    let (up, of): (u32, u32) = (up.parse().ok()?, of.parse().ok()?);
    Some(match up {
        0 => Standing::Bad,
        up if up < of => Standing::Doubtful,
        _ => Standing::Good,
    })
}

/// A cell, in the colour of the worst of its words.
fn cell(text: &str) -> String {
    Standing::worst(text).map_or_else(|| text.to_owned(), |worst| styled(text, worst.style()))
}

fn styled(text: &str, style: Style) -> String {
    format!("{style}{text}{style:#}")
}

/// The columns whose cells are of such words.
const COLUMNS: [&str; 3] = ["STATE", "UP", "OVERRIDE"];

/// A table that is laid out already, so that no escape counts as width: with these headers in its first line.
pub(super) fn table<'h>(text: &str, headers: impl IntoIterator<Item = &'h str>) -> String {
    let Some((header, rows)) = text.split_once('\n') else {
        return styled(text, HEADER);
    };
    let mut columns = Vec::new();
    let mut end = 0;
    for name in headers {
        if let Some(at) = header.get(end..).and_then(|rest| rest.find(name)) {
            columns.push((name, end + at));
            end += at + name.len();
        }
    }
    let rows = rows.lines().map(|row| self::row(row, &columns));
    let lines: Vec<String> = [styled(header, HEADER)].into_iter().chain(rows).collect();
    lines.join("\n")
}

/// A row; each column is from where its header begins to where the next one does, in characters.
fn row(text: &str, columns: &[(&str, usize)]) -> String {
    let mut rest = text.chars();
    let mut painted = String::new();
    let mut before = ("", 0);
    for &(next, end) in columns.iter().chain([&("", usize::MAX)]) {
        let (name, start) = before;
        let piece: String = rest.by_ref().take(end - start).collect();
        let word = piece.trim_end();
        let is_painted = COLUMNS.contains(&name);
        painted.push_str(&if is_painted {
            cell(word)
        } else {
            word.to_owned()
        });
        painted.push_str(piece.get(word.len()..).unwrap_or_default());
        before = (next, end);
    }
    painted
}

/// A line whose first word, up to a colon, says how something is; as [`is_on`] says.
pub(super) fn line(text: &str) -> String {
    if is_on() {
        first_word(text)
    } else {
        text.to_owned()
    }
}

fn first_word(text: &str) -> String {
    match text.split_once(':') {
        Some((word, rest)) => format!("{}:{rest}", cell(word)),
        None => text.to_owned(),
    }
}

/// A line of a change, whose last word may say that an object comes or goes; as [`is_on`] says.
pub(super) fn change(text: &str) -> String {
    if is_on() {
        last_word(text)
    } else {
        text.to_owned()
    }
}

fn last_word(text: &str) -> String {
    let standing = match text.rsplit_once(": ") {
        Some((_, "added")) => Standing::Good,
        Some((_, "removed")) => Standing::Bad,
        _ => return text.to_owned(),
    };
    styled(text, standing.style())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEN: &str = "\u{1b}[32m";
    const YELLOW: &str = "\u{1b}[33m";
    const RED: &str = "\u{1b}[31m";
    const BOLD: &str = "\u{1b}[1m";
    const END: &str = "\u{1b}[0m";

    #[test]
    fn a_terminal_has_colours_unless_the_user_wants_none() {
        let set = OsStr::new;
        for (when, is_terminal, no_color, term, is_on) in [
            (When::Auto, true, None, Some("xterm"), true),
            (When::Auto, true, None, None, true),
            (When::Auto, false, None, Some("xterm"), false),
            (When::Auto, true, Some("1"), Some("xterm"), false),
            (When::Auto, true, Some("0"), Some("xterm"), false),
            // Set and empty means nothing.
            (When::Auto, true, Some(""), Some("xterm"), true),
            (When::Auto, true, None, Some("dumb"), false),
            (When::Always, false, Some("1"), Some("dumb"), true),
            (When::Never, true, None, Some("xterm"), false),
        ] {
            let found = chosen(when, is_terminal, no_color.map(set), term.map(set));
            assert_eq!(found, is_on, "{when:?} {is_terminal} {no_color:?} {term:?}");
        }
        // Where no command line has chosen.
        assert!(!is_on() && !is_on_error());
        assert_eq!(line("ok: all"), "ok: all");
        assert_eq!(change("pool p: added"), "pool p: added");
    }

    #[test]
    fn a_word_has_the_colour_of_what_it_says() {
        for (word, color) in [
            ("up", GREEN),
            ("3/3", GREEN),
            ("up, weight 10", GREEN),
            ("not ready", YELLOW),
            ("up, drained", YELLOW),
            ("2/3", YELLOW),
            ("web 2/2, api 1/2", YELLOW),
            ("dead", RED),
            ("dead, drained", RED),
            ("web 2/2, api 0/2", RED),
        ] {
            assert_eq!(cell(word), format!("{color}{word}{END}"));
        }
        for word in [
            "",
            "-",
            "established",
            "unchecked",
            "in use",
            "a/b",
            "1/x",
            "/",
        ] {
            assert_eq!(cell(word), word);
        }
    }

    #[test]
    fn a_table_is_laid_out_before_it_is_painted() {
        let text = " POOL  STATE      UP   NEXT UP\n p     up         0/2  dead\n dead  not ready";
        let painted = table(text, ["POOL", "STATE", "UP", "NEXT UP"]);
        let lines: Vec<&str> = painted.lines().collect();
        assert_eq!(
            lines,
            [
                format!("{BOLD} POOL  STATE      UP   NEXT UP{END}"),
                format!(" p     {GREEN}up{END}         {RED}0/2{END}  dead"),
                format!(" dead  {YELLOW}not ready{END}"),
            ]
        );
        // Only a header, and characters of more than a byte.
        assert_eq!(table(" STATE", ["STATE"]), format!("{BOLD} STATE{END}"));
        let text = " POOL  STATE\n \u{e9}\u{e9}    dead";
        let painted = table(text, ["POOL", "STATE"]);
        assert!(
            painted.ends_with(&format!(" \u{e9}\u{e9}    {RED}dead{END}")),
            "{painted}"
        );
    }

    #[test]
    fn a_line_has_one_word_in_colour() {
        let line = "degraded: pool p: 0/3 backends up";
        let rest = line.trim_start_matches("degraded");
        assert_eq!(first_word(line), format!("{RED}degraded{END}{rest}"));
        assert_eq!(first_word("  pool p: 0/3"), "  pool p: 0/3");
        let added = "pool p: backend a: added";
        assert_eq!(last_word(added), format!("{GREEN}{added}{END}"));
        assert_eq!(
            last_word("pool p: removed"),
            format!("{RED}pool p: removed{END}")
        );
        assert_eq!(
            last_word("pool p: allow: a -> removed"),
            "pool p: allow: a -> removed"
        );
    }
}
