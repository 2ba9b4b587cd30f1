//! The reference page says what the declarations say.

use std::{env, fs};

use super::*;

/// Set by `cargo xtask reference`, which has the page written.
const WRITE: &str = "LB_WRITE_REFERENCE";

#[test]
fn the_reference_page_is_that_of_the_declarations() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let page = reference();
    if env::var_os(WRITE).is_some() {
        fs::write(path, &page).unwrap();
    }
    let written = fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is out of date: run `cargo xtask reference`"
    );
}
