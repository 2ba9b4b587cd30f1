//! What a file of Rust imports, read from its text: every path that begins in its own crate. Pure.
//!
//! Comments, strings and test modules are left out. A macro that builds paths is not understood.

/// A path that a file names, as segments below the root of its crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Import {
    pub(super) line: usize,
    pub(super) path: Vec<String>,
    /// What it is called here.
    pub(super) name: String,
    /// Whether it is exported to other modules (`pub use`): they find it here.
    pub(super) is_exported: bool,
}

/// The imports of a module's file; `module` are the segments of its own path, `children` the modules it declares.
pub(super) fn of(text: &str, module: &[&str], children: &[&str]) -> Vec<Import> {
    let code = code(text);
    let tokens = tokens(&code);
    let mut imports = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let known = |name: &str| imports.iter().rfind(|one: &&Import| one.name == name);
        let imported = known(tokens[at].text).map(|import| import.path.clone());
        let Some(base) = base(&tokens, at, module, children)
            .or_else(|| is_path(&tokens, at).then_some((imported?, 2)))
        else {
            at += 1;
            continue;
        };
        let is_exported = is_exported(&tokens, at);
        let line = tokens[at].line;
        let (leaves, end) = tree(&tokens, at + base.1);
        for (leaf, name) in leaves {
            let path: Vec<String> = base.0.iter().cloned().chain(leaf).collect();
            let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
            imports.push(Import {
                line,
                path,
                name,
                is_exported,
            });
        }
        at = end.max(at + 1);
    }
    imports
}

/// The modules that a file declares.
pub(super) fn children(text: &str) -> Vec<String> {
    let code = code(text);
    let tokens = tokens(&code);
    let declared = tokens
        .windows(3)
        .filter(|three| three[0].is("mod") && three[2].is(";"));
    declared.map(|three| three[1].text.to_owned()).collect()
}

/// Where a path begins, and how many tokens that takes; none if no path of this crate begins here.
fn base(
    tokens: &[Token<'_>],
    at: usize,
    module: &[&str],
    children: &[&str],
) -> Option<(Vec<String>, usize)> {
    if !is_path(tokens, at) {
        return None;
    }
    let below = |depth: usize| {
        module
            .iter()
            .take(depth)
            .map(|&name| name.to_owned())
            .collect()
    };
    match tokens[at].text {
        "crate" => Some((Vec::new(), 2)),
        "self" => Some((below(module.len()), 2)),
        "super" => {
            let mut supers = 1;
            while tokens
                .get(at + 2 * supers)
                .is_some_and(|token| token.is("super"))
            {
                supers += 1;
            }
            Some((below(module.len().checked_sub(supers)?), 2 * supers))
        }
        name if children.contains(&name) => Some((below(module.len()), 0)),
        _ => None,
    }
}

/// Whether a path of several segments begins here, and is not the module of a visibility.
fn is_path(tokens: &[Token<'_>], at: usize) -> bool {
    let is_inside = at > 0 && (tokens[at - 1].is("::") || tokens[at - 1].is("."));
    let is_visibility = at >= 3
        && ["pub", "(", "in"]
            .iter()
            .zip(&tokens[at - 3..])
            .all(|(word, token)| token.is(word));
    !is_inside && !is_visibility && tokens.get(at + 1).is_some_and(|next| next.is("::"))
}

/// Whether the `use` that a path follows is a public one.
fn is_exported(tokens: &[Token<'_>], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).filter(|&before| tokens[before].is("use")) else {
        return false;
    };
    before > 0 && (tokens[before - 1].is("pub") || tokens[before - 1].is(")"))
}

/// A path, and the other name that it gets.
type Leaf = (Vec<String>, Option<String>);

/// The paths of a tree of imports, and the token behind it.
fn tree(tokens: &[Token<'_>], mut at: usize) -> (Vec<Leaf>, usize) {
    let mut path = Vec::new();
    while let Some(token) = tokens.get(at) {
        if token.is("{") {
            let (leaves, end) = group(tokens, at + 1);
            let whole = leaves
                .into_iter()
                .map(|(leaf, name)| (path.iter().cloned().chain(leaf).collect(), name));
            return (whole.collect(), end);
        }
        if !token.is("self") && !token.is("*") {
            path.push(token.text.to_owned());
        }
        at += 1;
        if !tokens.get(at).is_some_and(|token| token.is("::")) {
            break;
        }
        at += 1;
    }
    match tokens.get(at..at + 2) {
        Some([word, name]) if word.is("as") => (vec![(path, Some(name.text.to_owned()))], at + 2),
        _ => (vec![(path, None)], at),
    }
}

/// What stands between braces, and the token behind them.
fn group(tokens: &[Token<'_>], mut at: usize) -> (Vec<Leaf>, usize) {
    let mut leaves = Vec::new();
    while let Some(token) = tokens.get(at) {
        match token.text {
            "}" => return (leaves, at + 1),
            "," => at += 1,
            _ => {
                let (more, end) = tree(tokens, at);
                leaves.extend(more);
                at = end;
            }
        }
    }
    (leaves, at)
}

#[derive(Clone, Copy, Debug)]
struct Token<'t> {
    text: &'t str,
    line: usize,
}

impl Token<'_> {
    fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// Names, `::`, and single characters.
fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_of_name = |char: char| char.is_alphanumeric() || char == '_';
            let length = match first {
                _ if is_of_name(first) => rest.find(|char| !is_of_name(char)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                _ => first.len_utf8(),
            };
            let (text, after) = rest.split_at(length);
            tokens.push(Token {
                text,
                line: number + 1,
            });
            rest = after.trim_start();
        }
    }
    tokens
}

/// The text without line comments, without what stands in strings, and without the test module at its end. Lines stay
/// where they are.
fn code(text: &str) -> String {
    let mut lines = Vec::new();
    let mut is_test = false;
    for line in text.lines() {
        if is_test && line.contains("mod ") && line.ends_with('{') {
            break;
        }
        is_test = line == "#[cfg(test)]" || (is_test && line.starts_with("#["));
        lines.push(bare(line));
    }
    lines.join("\n")
}

/// A line without its comment and without the content of its strings.
fn bare(line: &str) -> String {
    let mut bare = String::new();
    let mut chars = line.chars().peekable();
    let mut is_string = false;
    while let Some(char) = chars.next() {
        match char {
            '\\' if is_string => drop(chars.next()),
            '"' => is_string = !is_string,
            '/' if !is_string && chars.peek() == Some(&'/') => break,
            _ if !is_string => bare.push(char),
            _ => {}
        }
    }
    bare
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str, module: &[&str]) -> Vec<String> {
        let children = children(text);
        let children: Vec<&str> = children.iter().map(String::as_str).collect();
        let all = of(text, module, &children);
        all.into_iter().map(|one| one.path.join("::")).collect()
    }

    #[test]
    fn every_way_of_writing_a_path_is_read() {
        let text = "

use std::fs; // crate::not
pub(crate) use crate::{a::{self, b::C as D, *}, e};
use super::super::f::G;
use self::h::I;
mod j;
pub mod k { }
fn x() { let _ = (crate::l::m(), j::n(), other::crate_::o(), \"crate::p\", y.super_::<self::q>()); }
#[cfg(test)]
mod tests {
    use crate::r;
}
";
        let wanted = [
            "a",
            "a::b::C",
            "a",
            "e",
            "f::G",
            "s::t::h::I",
            "l::m",
            "s::t::j::n",
            "s::t::q",
        ];
        assert_eq!(paths(text, &["s", "t"]), wanted);
    }

    #[test]
    fn the_module_of_a_visibility_is_no_import() {
        let text = "pub(in crate::a) fn f() { for x in crate::b::c() {} }";
        let all = of(text, &["m"], &[]);
        let paths: Vec<String> = all.iter().map(|one| one.path.join("::")).collect();
        assert_eq!(paths, ["b::c"]);
    }

    #[test]
    fn what_others_find_here_is_known() {
        let text = "pub use crate::a::B;\npub(super) use self::c::D;\nuse crate::e::F;";
        let all = of(text, &["m"], &[]);
        let exported: Vec<bool> = all.iter().map(|one| one.is_exported).collect();
        assert_eq!(exported, [true, true, false]);
        assert_eq!(all[2].line, 3);
        let named = of("use crate::a::b;\nfn f() { b::c::d() }", &["m"], &[]);
        assert_eq!(named[1].path, ["a", "b", "c", "d"]);
        let renamed = of("use crate::a::{b as c, d};", &["m"], &[]);
        let names: Vec<&str> = renamed.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["c", "d"]);
    }
}
