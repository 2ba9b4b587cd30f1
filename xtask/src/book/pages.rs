//! The pages of the book: those of `docs/SUMMARY.md`, and a page for each other file that one of them links to. They have
//! the places that they have in the checkout, so that links between them stay as they are.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

use crate::links;

const SUMMARY: &str = "docs/SUMMARY.md";

/// The page of all that is no chapter of the summary.
const FILES: &str = "files.md";

/// Longer than any fence inside of a file.
const FENCE: &str = "````````";

/// A page as mdBook reads it.
#[derive(Debug)]
pub(crate) struct Page {
    /// Below the folder of the sources.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
}

/// Every page, with the summary.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn all(root: &Path) -> Result<Vec<Page>> {
    let summary = links::read(&root.join(SUMMARY))?;
    let mut sources = linked(Path::new(SUMMARY), &summary);
    let chapters = sources.len();
    let mut pages = Vec::new();
    while let Some(source) = sources.get(pages.len()).cloned() {
        let text = if is_page(&source) {
            let text = links::read(&root.join(&source))?;
            for target in linked(&source, &text) {
                if !sources.contains(&target) {
                    sources.push(target);
                }
            }
            links::replaced(&text, placed)
        } else {
            shown(root, &source)?
        };
        let path = PathBuf::from(placed(&source.to_string_lossy()));
        pages.push(Page { path, text });
    }
    let mut files = sources.split_off(chapters);
    files.sort();
    pages.push(Page {
        path: FILES.into(),
        text: format!(
            "# Files\n\nWhat the other pages link to.\n\n{}",
            list(&files, "")
        ),
    });
    pages.push(Page {
        path: "SUMMARY.md".into(),
        text: with_files(&summary, &files),
    });
    Ok(pages)
}

/// Fails with each page of docs/ that is not in the summary. That those in it are there is checked with all links.
///
/// # Errors
/// When there is one, or the summary cannot be read.
pub(crate) fn check(root: &Path) -> Result<()> {
    let summary = links::read(&root.join(SUMMARY))?;
    let mut documents = Vec::new();
    links::collect(&root.join("docs"), true, &mut documents)?;
    let documents = documents
        .iter()
        .map(|document| document.strip_prefix(root).unwrap_or(document));
    let missing = missing(&summary, documents);
    ensure!(missing.is_empty(), "not in {SUMMARY}: {missing:?}");
    Ok(())
}

/// Those of `documents`, but for the summary itself, that it does not link to.
fn missing<'a>(summary: &str, documents: impl Iterator<Item = &'a Path>) -> Vec<&'a Path> {
    let chapters = linked(Path::new(SUMMARY), summary);
    documents
        .filter(|document| *document != Path::new(SUMMARY))
        .filter(|document| !chapters.iter().any(|chapter| chapter == document))
        .collect()
}

/// The other files and folders that the text of `source` links to, from the root of the checkout.
fn linked(source: &Path, text: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (_, target) in links::links(text) {
        let file = from_root(source, &target);
        if file != source && !files.contains(&file) {
            files.push(file);
        }
    }
    files
}

/// Where a link in `source` leads to, without the heading.
fn from_root(source: &Path, target: &str) -> PathBuf {
    match target.split('#').next() {
        None | Some("") => source.to_owned(),
        Some(path) => links::plain(&source.parent().unwrap_or(source).join(path)),
    }
}

/// The link to the page of what `target` leads to: that of a file which is none is beside the file.
fn placed(target: &str) -> String {
    let (path, heading) = match target.find('#') {
        Some(at) => target.split_at(at),
        None => (target, ""),
    };
    if path.is_empty() || is_page(Path::new(path)) {
        return target.to_owned();
    }
    format!("{}.md{heading}", path.trim_end_matches('/'))
}

fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "md")
}

/// The page of a file that is none, or of all files in a folder.
fn shown(root: &Path, source: &Path) -> Result<String> {
    let mut page = format!("# `{}`\n", source.display());
    let path = root.join(source);
    if !path.is_dir() {
        page.push_str(&code(&path)?);
        return Ok(page);
    }
    let entries = fs::read_dir(&path).with_context(|| format!("list {}", path.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry?.path());
    }
    files.sort();
    for file in files.iter().filter(|file| file.is_file()) {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        page += &format!("\n## `{name}`\n{}", code(file)?);
    }
    Ok(page)
}

/// A file as a block of code.
fn code(file: &Path) -> Result<String> {
    let end = file.extension().unwrap_or_default().to_string_lossy();
    let language = match &*end {
        "conf" | "service" => "ini",
        "rs" => "rust",
        "" => "text",
        other => other,
    };
    let text = links::read(file)?;
    let text = text.trim_end();
    Ok(format!("\n{FENCE}{language}\n{text}\n{FENCE}\n"))
}

/// The summary as that of the root, with the pages of single files.
fn with_files(summary: &str, files: &[PathBuf]) -> String {
    let chapters = links::replaced(summary, |target| {
        from_root(Path::new(SUMMARY), target)
            .to_string_lossy()
            .into_owned()
    });
    format!("{chapters}- [Files]({FILES})\n{}", list(files, "  "))
}

fn list(files: &[PathBuf], indentation: &str) -> String {
    files.iter().fold(String::new(), |mut list, file| {
        let name = file.to_string_lossy();
        let _infallible = writeln!(list, "{indentation}- [{name}]({})", placed(&name));
        list
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        links::plain(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
    }

    #[test]
    fn a_page_that_the_summary_has_not_is_found() {
        let summary = "[lb](../README.md)\n- [One](one.md)\n";
        let documents = ["docs/SUMMARY.md", "docs/one.md", "docs/design/two.md"];
        assert_eq!(
            missing(summary, documents.iter().map(Path::new)),
            [Path::new("docs/design/two.md")]
        );
    }

    #[test]
    fn the_summary_has_every_page() {
        if let Err(missing) = check(&root()) {
            panic!("{missing:#}");
        }
    }

    #[test]
    fn links_to_files_lead_to_their_pages() {
        assert_eq!(placed("../config/lab.yaml"), "../config/lab.yaml.md");
        assert_eq!(placed("../config/systemd/"), "../config/systemd.md");
        assert_eq!(placed("a.rs#L3"), "a.rs.md#L3");
        assert_eq!(placed("sizing.md#limits"), "sizing.md#limits");
        assert_eq!(placed("#limits"), "#limits");
    }

    #[test]
    fn no_link_leaves_the_book() {
        let pages = all(&root()).unwrap();
        for page in &pages {
            for target in linked(&page.path, &page.text) {
                let leads_to = pages.iter().any(|other| other.path == target);
                assert!(leads_to, "{}: {}", page.path.display(), target.display());
            }
        }
    }

    #[test]
    fn a_folder_is_a_page_with_its_files() {
        let page = shown(&root(), Path::new("config/systemd")).unwrap();
        assert!(
            page.contains("\n## `lb.service`\n\n````````ini\n"),
            "{page}"
        );
    }
}
