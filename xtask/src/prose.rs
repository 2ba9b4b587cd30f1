//! Words of comments, messages and documents: the noun stands where the thing is meant (`docs/design/words.md`).

mod phrases;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// Folders whose texts are read, with those inside of them; of the first one the documents alone.
const FOLDERS: [&str; 9] = [
    "",
    ".ci",
    "config",
    "docs",
    "lb-common",
    "lb-ebpf",
    "lb-user",
    "tests",
    "xtask",
];

/// The texts among the files, by how their names end; a script may have no such end.
const ENDS: [&str; 6] = ["md", "rs", "sh", "toml", "txt", "yaml"];

/// Folders of a program that is not built by the workspace, and what cargo writes there.
const NOT_OURS: [&str; 2] = ["target", "corpus"];

/// Files that have such a word for a reason.
const EXCEPTIONS: [(&str, &str); 6] = [
    ("docs/design/words.md", "it says what is written instead"),
    (
        "lb-user/src/host/prepare.rs",
        "it is the name of the user 65534",
    ),
    (
        "tests/netns/lifecycle/privileges.rs",
        "it is the name of the user 65534",
    ),
    (
        "tests/netns/lifecycle/unit.rs",
        "it is an option of systemctl",
    ),
    ("xtask/src/prose.rs", "its tests have them"),
    ("xtask/src/prose/phrases.rs", "it has the list"),
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
            if !NOT_OURS.iter().any(|name| path.ends_with(name)) {
                collect(&path, is_deep, files)?;
            }
        } else if is_text(&path, is_deep) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_text(path: &Path, is_deep: bool) -> bool {
    match path.extension() {
        Some(end) => ENDS.iter().any(|text| end == *text),
        None => is_deep && path.ends_with(".ci/run"),
    }
}

/// What is wrong with a file.
fn judged(name: &str, text: &str) -> Vec<String> {
    let found = phrases::found(text, name.ends_with(".rs"));
    let exception = EXCEPTIONS.iter().any(|(file, _)| *file == name);
    match (exception, found.is_empty()) {
        (true, false) => Vec::new(),
        (true, true) => vec![format!("{name}: it needs no exception any more")],
        (false, _) => {
            let line = |(line, words)| {
                format!("{name}:{line}: `{words}`: name what is meant (docs/design/words.md)")
            };
            found.into_iter().map(line).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_is_for_one_file_and_must_be_needed() {
        assert_eq!(
            judged("a.rs", "x\n// nobody\n"),
            ["a.rs:2: `nobody`: name what is meant (docs/design/words.md)"]
        );
        assert!(judged("docs/design/words.md", "nobody").is_empty());
        assert_eq!(judged("docs/design/words.md", "no client").len(), 1);
    }

    #[test]
    fn tests_and_the_script_of_a_bare_machine_are_read() {
        let root = root();
        let mut files = Vec::new();
        for folder in [".ci", "tests"] {
            collect(&root.join(folder), true, &mut files).unwrap();
        }
        for name in [
            ".ci/run",
            "tests/netns/main.rs",
            "tests/packet/main.rs",
            "tests/kernels/guest.sh",
        ] {
            assert!(files.contains(&root.join(name)), "{name}");
        }
    }

    #[test]
    fn the_project_names_what_it_means() {
        if let Err(problems) = check(&root()) {
            panic!("{problems:#}");
        }
    }

    fn root() -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        root.canonicalize().unwrap()
    }
}
