//! The schemas of `-o json`, and the page that has them.

use std::{collections::BTreeSet, fmt::Write as _, fs, path::Path};

use lb_user::cli::{self, AnswerSchema};

use super::compare;

/// Where the schemas are, from the root of the checkout.
const FOLDER: &str = "docs/json";

#[test]
fn the_schemas_are_those_of_the_types() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::create_dir_all(root.join(FOLDER)).unwrap();
    let mut names = BTreeSet::new();
    for AnswerSchema { name, schema, .. } in cli::schemas() {
        let file = file(name);
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        compare(&format!("{FOLDER}/{file}"), |_| text.clone());
        names.insert(file);
    }
    let entries = fs::read_dir(root.join(FOLDER)).unwrap();
    let found = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let found: BTreeSet<String> = found.collect();
    assert_eq!(found, names, "files of no schema are in {FOLDER}");
}

#[test]
fn the_page_of_json_has_all_schemas() {
    compare("docs/json.md", |_| page());
}

fn file(name: &str) -> String {
    format!("{name}.schema.json")
}

fn page() -> String {
    let mut page = "\
# JSON

Every command that prints an answer takes `-o json`, for programs. This page and the schemas are generated from the types
that are printed: `cargo xtask reference` writes them.

- An answer is one object. Its first field is `\"version\": 1`, the version of the form; the others have the content by
  name. `lb events --follow` prints such an object for each event, in one line each.
- Within a version fields are added, also new words where a field is one of some words; none is renamed or taken away, and
  none changes its type, its unit or its meaning. A program ignores the fields that it does not know. What breaks this
  has the next version.
- A time is a number of seconds, to the millisecond where that is known, in a field whose name ends with `_seconds`. A
  moment is a text as RFC 3339 has it, in UTC. `share` is in percent, as SHARE in the table.
- What is not known is `null`: so is `health` of a backend where no control plane runs. A field that may be absent is not in
  `required` of its schema.
- `words`, `lines`, `reasons`, `problems` and `why` are for people, and change as the program does.
- In `config` of `lb check` are the keys of the file with all defaults, and times in its words, as `5s`.
- An error that is no answer, such as that no instance is up, is a text on standard error, with the exit code of the
  command: [operations](operations.md#commands).

The schemas are of JSON Schema 2020-12. They are those of this version of the program and refuse any other field, so
that its tests find what no schema has; a program that validates answers with them leaves out `additionalProperties` and
`unevaluatedProperties`, which later fields would fail.

| Command | Schema |
|---|---|
"
    .to_owned();
    for AnswerSchema { name, commands, .. } in cli::schemas() {
        let commands: Vec<String> = commands.iter().map(|words| format!("`{words}`")).collect();
        let commands = commands.join(", ");
        let file = file(name);
        writeln!(page, "| {commands} | [{name}](json/{file}) |").unwrap();
    }
    page
}
