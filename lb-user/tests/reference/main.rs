//! The pages and comments that are generated say what the declarations say.
#![expect(
    clippy::tests_outside_test_module,
    reason = "an integration test target is all tests"
)]

mod json;
mod man;

use std::{env, fmt::Write as _, fs, path::Path};

use lb_common::{
    maps::declarations::{MAPS, MapDeclaration, MapSize, MapType},
    verdict::DropReason,
};
use lb_user::{
    cli, config,
    dataplane::{object, pins::Pins},
};

/// Set by `cargo xtask reference`, which has all of them written.
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
fn the_page_of_the_configuration_is_that_of_the_declarations() {
    compare("docs/configuration.md", |_| config::reference());
}

#[test]
fn the_comments_of_the_example_are_those_of_the_declarations() {
    compare("config/lb.yaml", |example| {
        config::explained(example).unwrap_or_else(|problems| panic!("{problems}"))
    });
}

#[test]
fn the_page_of_drop_reasons_has_them_all() {
    compare("docs/drop-reasons.md", |_| drop_reasons());
}

#[test]
fn the_page_of_the_command_line_is_its_help() {
    compare("docs/command-line.md", |_| command_line());
}

fn drop_reasons() -> String {
    let mut page = "\
# Drop reasons

Every packet has one verdict, and a dropped one has one reason. `lb drops` counts them by network, and has the latest
packet of each. A packet that is refused with a TCP reset or an ICMP error has a reason, too. This page is generated from
`lb-common/src/verdict.rs`: `cargo xtask reference` writes it.

| Reason | What it means | What to do |
|---|---|---|
"
    .to_owned();
    for reason in DropReason::ALL {
        let (label, help, remedy) = (reason.label(), reason.help(), reason.remedy());
        writeln!(page, "| `{label}` | {help} | {remedy} |").unwrap();
    }
    page
}

fn command_line() -> String {
    let mut page = "\
# Command line

What `lb help` and `lb COMMAND --help` print. This page is generated: `cargo xtask reference` writes it.
"
    .to_owned();
    let mut lb = cli::command();
    lb.build();
    help(&mut lb, "lb", &mut page);
    page
}

/// The help of a command, and of those inside of it.
fn help(command: &mut clap::Command, name: &str, page: &mut String) {
    let text = command.render_long_help().to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let text = lines.join("\n");
    writeln!(page, "\n## `{name}`\n\n```text\n{}\n```", text.trim_end()).unwrap();
    for inside in command.get_subcommands_mut() {
        if inside.get_name() != "help" {
            let name = format!("{name} {}", inside.get_name());
            help(inside, &name, page);
        }
    }
}

#[test]
fn the_page_of_maps_has_them_all() {
    compare("docs/design/maps.md", |_| maps());
}

fn maps() -> String {
    let version = Pins::version();
    let mut page = format!(
        "\
# Maps

All are BTF maps, pinned under `/sys/fs/bpf/lb/INSTANCE/{version}`; layouts are in `lb-common/src/maps`, without
padding by compile-time assertion. [Ids and labels](flow-table.md#ids-and-labels) says what the indexes are. *User* is
userspace; what it alone writes, a start and `lb status` read, too. Entries by name are those of `limits`, which are
taken at the first start, and the number in parentheses is that of the defaults. A hash *as used* takes memory for an entry
when that comes, as tries do; all others take all of it at once. This page is generated from
`lb-common/src/maps/declarations.rs`: `cargo xtask reference` writes it.

| Map | Type | Key → value | Bytes | Entries | Written by | Read by |
|---|---|---|---|---|---|---|
"
    );
    // As a file that sets none of them has them.
    let text = "{ version: 1, networks: { a: { role: uplink, interface: eth0, prefixes: [10.0.0.0/8] } } }";
    let config = config::parse("lb.yaml", text).unwrap_or_else(|problems| panic!("{problems}"));
    let limited = object::sizes(&config.limits.room());
    for map in &MAPS {
        writeln!(page, "{}", map_line(map, &limited)).unwrap();
    }
    page
}

/// A map as a line of the table; `limited` are the sizes that the limits give.
fn map_line(map: &MapDeclaration, limited: &[(&str, u32)]) -> String {
    let limited = limited.iter().find(|(name, _)| *name == map.name);
    let entries = match (map.size, limited) {
        (MapSize::Fixed(entries), sized) if sized.is_none_or(|(_, size)| *size == entries) => {
            entries.to_string()
        }
        (MapSize::Limited(formula), Some((_, entries))) => format!("{formula} ({entries})"),
        (size, limited) => panic!("{}: {size:?}, but by the limits {limited:?}", map.name),
    };
    let MapDeclaration {
        name,
        map_type,
        key,
        value,
        key_bytes,
        value_bytes,
        written_by,
        read_by,
        ..
    } = map;
    let label = map_type.label();
    let mapped = if map.is_mmapable { ", mmapable" } else { "" };
    // A trie never is: the kernel makes none that would be.
    let grows = *map_type == MapType::Hash && !map.is_preallocated;
    let grows = if grows { ", as used" } else { "" };
    let (holds, bytes) = match key_bytes {
        0 => ((*value).to_owned(), value_bytes.to_string()),
        _ => (
            format!("{key} → {value}"),
            format!("{key_bytes} → {value_bytes}"),
        ),
    };
    format!(
        "| `{name}` | {label}{mapped}{grows} | {holds} | {bytes} | {entries} | {written_by} | {read_by} |"
    )
}
