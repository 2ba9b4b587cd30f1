//! Commands that the documents name are commands: each `lb ...` between backticks is parsed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::error::ErrorKind;

/// What stands for something in a document, and an example of it.
const PLACEHOLDERS: [(&str, &str); 12] = [
    ("COMMAND", "status"),
    ("FILE", "my.yaml"),
    ("N", "10"),
    ("NAME", "node-2"),
    ("POOL", "kas-a"),
    ("POOL/BACKEND", "kas-a/node-2"),
    ("PREFIX", "192.168.203.0/24"),
    ("SNATIP:PORT", "10.32.96.50:31042"),
    ("TIME", "30s"),
    ("WHEN", "2020-01-01T00:00:00Z"),
    ("[POOL/]NAME", "kas-a/node-2"),
    ("[SNATIP]:PORT", "[fd00:32::50]:31042"),
];

#[test]
fn every_command_of_the_documents_is_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"]
        .map(|name| root.join(name))
        .into();
    collect(&root.join("docs"), &mut pages);
    let (mut commands, mut wrong) = (0, Vec::new());
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        for command in commands_of(&text) {
            commands += 1;
            if let Err(why) = parse(&command) {
                wrong.push(format!("{}: `{command}`: {why}", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(commands > 50, "{commands}");
}

#[test]
fn a_command_is_found_wherever_it_stands() {
    let text = "Run `lb\nplan FILE` or `lb status -o json | jq .config.stale`, not `lb.yaml`.\n\
                ```text\n`lb block`\n```\n`lb reload --confirm 30s && lb confirm`";
    let expected = [
        "lb plan FILE",
        "lb status -o json",
        "lb reload --confirm 30s",
        "lb confirm",
    ];
    assert_eq!(commands_of(text), expected);
}

#[test]
fn a_command_that_is_none_is_refused() {
    for command in [
        "lb who",
        "lb who SNATIP:PORT",
        "lb who [SNATIP]:PORT",
        "lb backend weight [POOL/]NAME N",
        "lb reload [FILE]",
        "lb COMMAND --help",
        "lb backend drain",
    ] {
        assert_eq!(parse(command), Ok(()), "{command}");
    }
    for command in [
        "lb drain",
        "lb plan --file FILE",
        "lb who SNATIP",
        "lb backend weight NAME",
        "lb status -o yaml",
    ] {
        assert!(parse(command).is_err(), "{command}");
    }
}

fn collect(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, pages);
        } else if path.extension().is_some_and(|end| end == "md") {
            pages.push(path);
        }
    }
}

/// The commands between the backticks of a text, not in its blocks.
fn commands_of(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2);
    let spans = prose.flat_map(|prose| prose.split('`').skip(1).step_by(2));
    let commands =
        spans.flat_map(|span| span.split("&&").filter_map(|part| part.split('|').next()));
    let commands = commands.map(|command| command.split_whitespace().collect::<Vec<_>>().join(" "));
    commands
        .filter(|command| command.starts_with("lb "))
        .collect()
}

/// Parses a command with examples for its placeholders; one that is only named may lack its arguments.
fn parse(command: &str) -> Result<(), String> {
    let words = command
        .split(' ')
        .map(example)
        .collect::<Result<Vec<_>, _>>()?;
    let is_named = command
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte == b' ');
    match super::command().try_get_matches_from(words) {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp => Ok(()),
            ErrorKind::MissingRequiredArgument
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                if is_named =>
            {
                Ok(())
            }
            kind => Err(kind.to_string()),
        },
    }
}

fn example(word: &str) -> Result<&str, String> {
    let optional = word
        .strip_prefix('[')
        .and_then(|word| word.strip_suffix(']'));
    let word = optional.unwrap_or(word);
    let found = PLACEHOLDERS
        .iter()
        .find(|(placeholder, _)| *placeholder == word);
    match found {
        Some((_, example)) => Ok(example),
        None if word.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            Err(format!("{word} is no known placeholder"))
        }
        None => Ok(word),
    }
}
