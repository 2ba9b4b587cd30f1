//! `cargo xtask book`: docs/ and what it links to as a book of HTML pages, which needs nothing of the checkout.

mod pages;

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, Result};

pub(crate) use self::pages::check;
use crate::{progress::Progress, setup, stock::Purpose, tools::MDBOOK};

/// How the book looks, beside the pages in docs/.
const SETTINGS: [&str; 2] = ["book.toml", "book.css"];

/// # Errors
/// When set-up fails, a page cannot be read or written, or mdBook fails.
pub(crate) fn book() -> Result<ExitCode> {
    let workspace = setup::ensure(Purpose::Book, false)?;
    let book = workspace.target.join("book");
    stage(&workspace.root, &book)?;
    let mdbook = workspace.command(&MDBOOK.path(&workspace).to_string_lossy());
    Progress::new("book", 1).step("mdBook makes the pages", |progress| {
        mdbook.arg("build").arg(&book).run_beside(progress)
    })?;
    println!("{}", book.join("html/index.html").display());
    Ok(ExitCode::SUCCESS)
}

/// Writes what mdBook reads into the folder `book`, which is emptied first.
fn stage(root: &Path, book: &Path) -> Result<()> {
    if book.exists() {
        fs::remove_dir_all(book).with_context(|| format!("remove {}", book.display()))?;
    }
    for name in SETTINGS {
        let file = root.join("docs").join(name);
        write(&book.join(name), &crate::links::read(&file)?)?;
    }
    for page in pages::all(root)? {
        write(&book.join("src").join(page.path), &page.text)?;
    }
    Ok(())
}

fn write(file: &PathBuf, text: &str) -> Result<()> {
    let folder = file.parent().context("a page has no folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(file, text))
        .with_context(|| format!("write {}", file.display()))
}
