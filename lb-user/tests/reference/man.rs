//! The manual pages: one for each command, made of its help.

use std::{collections::BTreeMap, env, fs, path::Path};

use clap_mangen::Man;
use lb_user::cli;

/// Set by `cargo xtask man` to the folder for the pages.
const FOLDER: &str = "LB_MAN_FOLDER";

#[test]
fn every_command_has_a_page_with_its_options() {
    let mut lb = cli::command().disable_help_subcommand(true);
    lb.build();
    let source = format!("lb {}", lb.get_version().unwrap());
    let mut pages = BTreeMap::new();
    render(&lb, "lb", &source, &mut pages);
    assert!(pages.contains_key("lb-backend-drain"), "{:?}", pages.keys());
    for (name, page) in &pages {
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS"] {
            let heading = format!("\n.SH {section}\n");
            assert!(page.contains(&heading), "{name}: no {section}:\n{page}");
        }
        assert!(!page.contains("\n.SH EXTRA\n"), "{name}:\n{page}");
    }
    assert!(pages["lb-run"].contains("\n.SH EXAMPLES\n"));
    assert!(pages["lb-run"].contains("\\-\\-takeover\\fR\n"));
    if let Some(folder) = env::var_os(FOLDER) {
        write(Path::new(&folder), &pages);
    }
}

/// The pages of a command and of those inside of it, by their names.
fn render(command: &clap::Command, name: &str, source: &str, pages: &mut BTreeMap<String, String>) {
    let mut page = Vec::new();
    let man = Man::new(command.clone()).source(source);
    man.render(&mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    // What stands behind a command's help is its examples.
    let page = page.replace("\n.SH EXTRA\nExamples:\n", "\n.SH EXAMPLES\n");
    pages.insert(name.to_owned(), page);
    for inside in command.get_subcommands() {
        render(
            inside,
            &format!("{name}-{}", inside.get_name()),
            source,
            pages,
        );
    }
}

/// Pages of commands that are no more go.
fn write(folder: &Path, pages: &BTreeMap<String, String>) {
    if folder.exists() {
        fs::remove_dir_all(folder).unwrap();
    }
    fs::create_dir_all(folder).unwrap();
    for (name, page) in pages {
        fs::write(folder.join(format!("{name}.1")), page).unwrap();
    }
}
