//! The names of types in the product's crates: each means one thing. Pure.

use std::collections::BTreeMap;

use super::{code_lines, graph::Graph};

/// Names that several modules have, each with why.
const SEVERAL: [(&str, &str); 11] = [
    ("Backend", RECORD),
    ("Entry", "of a mapping of YAML, and of the flow table"),
    ("Health", "as it is written, and as it is"),
    (
        "Kind",
        "of ids, of values and nodes of a file, and of ICMP messages",
    ),
    ("Message", "ARP, ICMP and ICMPv6 have one each"),
    ("Network", RECORD),
    ("Numbers", "of a flow, and what a splice makes of them"),
    ("Quota", RECORD),
    ("Quote", "ICMP and ICMPv6 have one each"),
    ("Service", RECORD),
    ("State", "of a flow, and what a process keeps for the next"),
];

const RECORD: &str = "of the configuration, and its record in a map";

const KEYWORDS: [&str; 3] = ["enum", "struct", "trait"];

/// The names that more than one module of these crates declares for others, and those that only the list has.
pub(super) fn problems(crates: &[Graph]) -> Vec<String> {
    let mut declared: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in crates.iter().flat_map(|graph| graph.0.values()) {
        for (number, line) in code_lines(&file.text) {
            if let Some(name) = declares(line) {
                let at = format!("{}:{number}", file.path.display());
                declared.entry(name).or_default().push(at);
            }
        }
    }
    declared.retain(|_, places| places.len() > 1);
    let is_listed = |name: &str| SEVERAL.iter().any(|(listed, _)| *listed == name);
    let twice = declared.iter().filter(|(name, _)| !is_listed(name));
    let mut problems: Vec<String> = twice
        .map(|(name, places)| format!("{name} means several things: {}", places.join(", ")))
        .collect();
    let once = SEVERAL
        .iter()
        .filter(|(name, _)| !declared.contains_key(name));
    problems.extend(once.map(|(name, _)| format!("{name} is listed, and means one thing")));
    problems
}

/// The type that a line declares for other modules.
fn declares(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')')?.1,
        None => rest,
    };
    let (keyword, rest) = rest.strip_prefix(' ')?.split_once(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = rest.get(..end.unwrap_or(rest.len()))?;
    // A macro has a variable there.
    (KEYWORDS.contains(&keyword) && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{
        super::graph::{File, Module},
        *,
    };

    fn product(name: &str, text: &str) -> Graph {
        let module: Module = vec![name.to_owned()];
        let path = PathBuf::from(format!("{name}.rs"));
        let mut graph = Graph::default();
        graph
            .0
            .insert(module.clone(), File::new(path, text.to_owned(), &module));
        graph
    }

    /// Everything that is listed, so that only what is seeded is a problem.
    fn listed(name: &str) -> Graph {
        let lines = SEVERAL.map(|(name, _)| format!("pub struct {name};\n"));
        product(name, &lines.concat())
    }

    #[test]
    fn a_name_that_means_two_things_is_found() {
        let one = "pub(super) struct Known<'a>(&'a str);\nstruct Own;";
        let other = "    pub enum Known {\n}\nstruct Own;\npub type Known = u8;";
        let crates = [
            listed("a"),
            listed("b"),
            product("c", one),
            product("d", other),
        ];
        let wanted = ["Known means several things: c.rs:1, d.rs:1"];
        assert_eq!(problems(&crates), wanted);
        assert!(problems(&crates[..3]).is_empty());
    }

    #[test]
    fn a_listed_name_that_means_one_thing_is_found() {
        let found = problems(&[listed("a")]);
        assert_eq!(found.len(), SEVERAL.len());
        assert_eq!(found[0], "Backend is listed, and means one thing");
    }

    #[test]
    fn tests_comments_and_macros_declare_nothing() {
        let text = "// pub struct Known;\npub struct Known;\npub struct $name;\npub enum $name {}\n\
                    #[cfg(test)]\npub struct Known;";
        let crates = [listed("a"), listed("b"), product("c", text)];
        assert!(problems(&crates).is_empty());
    }
}
