//! The reference page and the comments of the example say what the declarations say.

use std::{env, fs};

use super::*;

/// Set by `cargo xtask reference`, which has both written.
const WRITE: &str = "LB_WRITE_REFERENCE";

/// Compares the file at `path` in the repository with what `text` makes of it, which is written first if that is
/// wanted.
fn compare(path: &str, text: impl Fn(&str) -> String) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    let written = || fs::read_to_string(&file).unwrap_or_default();
    if env::var_os(WRITE).is_some() {
        fs::write(&file, text(&written())).unwrap();
    }
    assert!(
        written() == text(&written()),
        "{path} is out of date: run `cargo xtask reference`"
    );
}

#[test]
fn the_reference_page_is_that_of_the_declarations() {
    compare("docs/configuration.md", |_| reference());
}

#[test]
fn the_comments_of_the_example_are_those_of_the_declarations() {
    compare("config/lb.yaml", |example| {
        explained(example).unwrap_or_else(|problems| panic!("{problems}"))
    });
}
