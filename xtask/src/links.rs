//! Links of the documents: each one to a file leads to one that is there, and to a heading that it has.

use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// Folders with documents, and whether those inside of them count, too.
const FOLDERS: [(&str, bool); 2] = [("", false), ("docs", true)];

/// Fails with each link that leads nowhere.
///
/// # Errors
/// When there is one, or a document cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut documents = Vec::new();
    for (folder, is_deep) in FOLDERS {
        collect(&root.join(folder), is_deep, &mut documents)?;
    }
    let mut broken = Vec::new();
    for document in documents {
        let text = read(&document)?;
        for (line, target) in links(&text) {
            if let Some(why) = problem(&document, &target) {
                let name = document.strip_prefix(root).unwrap_or(&document);
                broken.push(format!("{}:{line}: {target}: {why}", name.display()));
            }
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    bail!("{}", broken.join("\n"))
}

/// The documents of a folder.
pub(crate) fn collect(folder: &Path, is_deep: bool, documents: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "md") {
            documents.push(path);
        } else if is_deep && path.is_dir() {
            collect(&path, is_deep, documents)?;
        }
    }
    Ok(())
}

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

/// The lines of a text that are no code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(lines(text));
    lines.filter_map(|(number, (line, is_code))| (!is_code).then_some((number, line)))
}

/// The lines of a text, and whether each is code or its fence.
fn lines(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut is_code = false;
    text.lines().map(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (line, is_code || is_fence)
    })
}

/// The targets of links in this project, with the numbers of their lines.
pub(crate) fn links(text: &str) -> Vec<(usize, String)> {
    let targets = prose(text).flat_map(|(number, line)| {
        let behind = line.split("](").skip(1);
        behind.filter_map(move |rest| Some((number, rest.split_once(')')?.0.to_owned())))
    });
    targets.filter(|(_, target)| is_here(target)).collect()
}

fn is_here(target: &str) -> bool {
    !target.contains("://") && !target.starts_with("mailto:")
}

/// The text with what `replace` makes of the target of each link in this project.
pub(crate) fn replaced(text: &str, replace: impl Fn(&str) -> String) -> String {
    let line_replaced = |line: &str| {
        let mut parts = line.split("](");
        let mut new = parts.next().unwrap_or_default().to_owned();
        for rest in parts {
            new.push_str("](");
            match rest.split_once(')') {
                Some((target, behind)) if is_here(target) => {
                    new.extend([&replace(target), ")", behind]);
                }
                _ => new.push_str(rest),
            }
        }
        new
    };
    let lines = lines(text).map(|(line, is_code)| match is_code {
        true => format!("{line}\n"),
        false => line_replaced(line) + "\n",
    });
    lines.collect()
}

/// Why the target of a link in `document` is none.
fn problem(document: &Path, target: &str) -> Option<String> {
    let (path, heading) = match target.split_once('#') {
        Some((path, heading)) => (path, Some(heading)),
        None => (target, None),
    };
    let file = match path {
        "" => document.to_owned(),
        path => plain(&document.parent()?.join(path)),
    };
    if !file.exists() {
        return Some("there is no such file".to_owned());
    }
    let heading = heading?;
    match read(&file) {
        Ok(text) if headings(&text).contains(heading) => None,
        Ok(_) => Some("it has no such heading".to_owned()),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// The path without `..`.
pub(crate) fn plain(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut plain, part| {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
        plain
    })
}

/// The names that links have for the headings of a document: letters in lower case, digits, `_` and `-`, which is also
/// what stands for a space.
fn headings(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter_map(|(_, line)| line.strip_prefix('#'));
    let names = headings.map(|heading| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        let letters = heading.chars().filter_map(|c| match c {
            ' ' => Some('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
            _ => None,
        });
        letters.collect()
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A page
## What the nodes' firewalls must let in
[here](#a-page), [a file](../x.rs) and [elsewhere](https://example.com/a)
```sh
# no heading [no link](nowhere)
```
`code` [twice](a.md) [over](b.md#c)
";

    #[test]
    fn links_are_those_of_prose_to_this_project() {
        let expected = [(3, "#a-page"), (3, "../x.rs"), (7, "a.md"), (7, "b.md#c")];
        let expected = expected.map(|(line, target)| (line, target.to_owned()));
        assert_eq!(links(TEXT), expected);
    }

    #[test]
    fn targets_are_replaced_where_links_are_found() {
        let text = replaced(TEXT, |target| format!("<{target}>"));
        let found = links(&text).into_iter().map(|(_, target)| target);
        let expected = ["<#a-page>", "<../x.rs>", "<a.md>", "<b.md#c>"];
        assert!(found.eq(expected.map(str::to_owned)));
        assert_eq!(text.replace(['<', '>'], ""), TEXT);
    }

    #[test]
    fn headings_have_the_names_that_links_use() {
        let names = ["a-page", "what-the-nodes-firewalls-must-let-in"];
        assert_eq!(headings(TEXT), names.map(str::to_owned).into());
    }

    #[test]
    fn a_link_that_leads_nowhere_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let readme = plain(&root.join("README.md"));
        assert_eq!(problem(&readme, "docs/operations.md#privileges"), None);
        let missing = problem(&readme, "docs/nowhere.md");
        assert_eq!(missing.as_deref(), Some("there is no such file"));
        let heading = problem(&readme, "docs/operations.md#nothing");
        assert_eq!(heading.as_deref(), Some("it has no such heading"));
    }

    #[test]
    fn every_link_leads_somewhere() {
        let root = plain(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        if let Err(broken) = check(&root) {
            panic!("{broken:#}");
        }
    }
}
