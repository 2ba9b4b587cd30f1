//! Words of comments, messages and documents: the noun stands where the thing is meant (`docs/design/words.md`).

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// Words that stand for a client, a backend, a process or an operator.
const WORDS: [&str; 4] = ["nobody", "somebody", "whoever", "whom"];

/// Folders whose texts are read, with those inside of them; of the first one the documents alone.
const FOLDERS: [&str; 7] = [
    "",
    "config",
    "docs",
    "lb-common",
    "lb-ebpf",
    "lb-user",
    "xtask",
];

/// The texts among the files, by how their names end.
const ENDS: [&str; 4] = ["md", "rs", "toml", "yaml"];

/// Files that have such a word for a reason.
const EXCEPTIONS: [(&str, &str); 3] = [
    ("docs/design/words.md", "it says what is written instead"),
    (
        "lb-user/src/host/prepare.rs",
        "it is the name of the user 65534",
    ),
    ("xtask/src/prose.rs", "it has the list"),
];

/// Fails with each line that has one of the words.
///
/// # Errors
/// When there is one, when an exception is none any more, or when a file cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), !folder.is_empty(), &mut files)?;
    }
    files.sort();
    let mut problems = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy();
        let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        problems.extend(judged(&name, &text));
    }
    if problems.is_empty() {
        return Ok(());
    }
    bail!("{}", problems.join("\n"))
}

fn collect(folder: &Path, is_deep: bool, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if is_deep && path.is_dir() {
            collect(&path, is_deep, files)?;
        } else if path
            .extension()
            .is_some_and(|end| ENDS.iter().any(|text| end == *text))
        {
            files.push(path);
        }
    }
    Ok(())
}

/// What is wrong with a file.
fn judged(name: &str, text: &str) -> Vec<String> {
    let found = found(text);
    let exception = EXCEPTIONS.iter().any(|(file, _)| *file == name);
    match (exception, found.is_empty()) {
        (true, false) => Vec::new(),
        (true, true) => vec![format!("{name}: it needs no exception any more")],
        (false, _) => {
            let line = |(line, word)| format!("{name}:{line}: `{word}`: name what is meant");
            found.into_iter().map(line).collect()
        }
    }
}

/// The words in a text, with the numbers of their lines.
fn found(text: &str) -> Vec<(usize, &str)> {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let words = (1..).zip(text.lines()).flat_map(move |(number, line)| {
        let words = line.split(move |c| !is_of_name(c));
        words.map(move |word| (number, word))
    });
    words
        .filter(|(_, word)| WORDS.iter().any(|listed| word.eq_ignore_ascii_case(listed)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
// Nobody listens.
let whomever = is_nobody(x);
panic!(\"to whom? somebody's\")
";

    #[test]
    fn the_words_are_found_and_not_names_with_them() {
        let expected = [(1, "Nobody"), (3, "whom"), (3, "somebody")];
        assert_eq!(found(TEXT), expected);
    }

    #[test]
    fn an_exception_is_for_one_file_and_must_be_needed() {
        assert_eq!(
            judged("a.rs", "x\n// nobody\n"),
            ["a.rs:2: `nobody`: name what is meant"]
        );
        assert!(judged("docs/design/words.md", "nobody").is_empty());
        assert_eq!(judged("docs/design/words.md", "no client").len(), 1);
    }

    #[test]
    fn the_project_names_what_it_means() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        if let Err(problems) = check(&root.canonicalize().unwrap()) {
            panic!("{problems:#}");
        }
    }
}
