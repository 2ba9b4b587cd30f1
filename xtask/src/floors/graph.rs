//! The graph of a crate's modules: which file needs which, and the circles in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use super::imports::{self, Import};

/// A module's path below the root of its crate, as segments.
pub(super) type Module = Vec<String>;

/// A file of the crate.
#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) text: String,
    imports: Vec<Import>,
}

/// One file needs another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    pub(super) from: Module,
    pub(super) line: usize,
    pub(super) to: Module,
}

/// A crate's files by their modules, but for tests.
#[derive(Debug, Default)]
pub(super) struct Graph(pub(super) BTreeMap<Module, File>);

impl Graph {
    /// Reads the crate whose root is in this folder.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub(super) fn read(source: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        let mut folders = vec![source.to_owned()];
        while let Some(folder) = folders.pop() {
            let entries =
                fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))?;
            for entry in entries {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(module) = module(path.strip_prefix(source)?) {
                    let text = fs::read_to_string(&path)
                        .with_context(|| format!("read {}", path.display()))?;
                    files.insert(module.clone(), File::new(path, text, &module));
                }
            }
        }
        Ok(Self(files))
    }

    /// Every import of another file, where it is first named. A name that a module only passes on leads to where it is.
    pub(super) fn edges(&self) -> Vec<Edge> {
        let mut edges: BTreeMap<(Module, Module), usize> = BTreeMap::new();
        for (from, file) in &self.0 {
            for import in file.imports.iter().filter(|import| !import.is_exported) {
                let to = self.place(&import.path, 0);
                if to != *from && !to.is_empty() {
                    edges.entry((from.clone(), to)).or_insert(import.line);
                }
            }
        }
        let edges = edges.into_iter();
        edges
            .map(|((from, to), line)| Edge { from, line, to })
            .collect()
    }

    /// The module that a path leads to.
    fn place(&self, path: &[String], hops: usize) -> Module {
        let depth = (0..=path.len())
            .rev()
            .find(|&depth| self.0.contains_key(&path[..depth]));
        let module = &path[..depth.unwrap_or(0)];
        let passed_on = path.get(module.len()).and_then(|name| {
            let all = &self.0.get(module)?.imports;
            all.iter().find(|import| import.name == *name)
        });
        match passed_on {
            Some(import) if hops < 8 => self.place(&import.path, hops + 1),
            _ => module.to_vec(),
        }
    }

    /// The circles: modules that need one another, largest first.
    pub(super) fn circles(&self) -> Vec<BTreeSet<Module>> {
        let mut next: BTreeMap<&Module, BTreeSet<&Module>> = BTreeMap::new();
        let edges = self.edges();
        for edge in &edges {
            next.entry(&edge.from).or_default().insert(&edge.to);
        }
        let reach = |from: &Module| {
            let mut seen = BTreeSet::new();
            let mut todo: Vec<&Module> = next.get(from).into_iter().flatten().copied().collect();
            while let Some(module) = todo.pop() {
                if seen.insert(module.clone()) {
                    todo.extend(next.get(module).into_iter().flatten());
                }
            }
            seen
        };
        let reaches: BTreeMap<&Module, BTreeSet<Module>> = self
            .0
            .keys()
            .map(|module| (module, reach(module)))
            .collect();
        let mut circles = BTreeSet::new();
        for (&module, reached) in &reaches {
            if reached.contains(module) {
                let back = reached
                    .iter()
                    .filter(|other| reaches[*other].contains(module));
                circles.insert(back.cloned().collect::<BTreeSet<Module>>());
            }
        }
        let mut circles: Vec<BTreeSet<Module>> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

impl File {
    pub(super) fn new(path: PathBuf, text: String, module: &[String]) -> Self {
        let segments: Vec<&str> = module.iter().map(String::as_str).collect();
        let children = imports::children(&text);
        let children: Vec<&str> = children.iter().map(String::as_str).collect();
        let imports = imports::of(&text, &segments, &children);
        Self {
            path,
            text,
            imports,
        }
    }
}

/// The module of a file, by its path below the crate's root; none for tests and for what is no Rust.
fn module(path: &Path) -> Option<Module> {
    if path.extension()? != "rs" {
        return None;
    }
    let mut module: Module = Vec::new();
    for part in path.with_extension("").iter() {
        module.push(part.to_str()?.to_owned());
    }
    if module
        .iter()
        .any(|name| name == "tests" || name == "stress")
    {
        return None;
    }
    if let Some("mod" | "lib" | "main") = module.last().map(String::as_str) {
        module.pop();
    }
    Some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Graph {
        let files = files.iter().filter_map(|(path, text)| {
            let path = Path::new(path);
            let module = module(path)?;
            let file = File::new(path.to_owned(), (*text).to_owned(), &module);
            Some((module, file))
        });
        Graph(files.collect())
    }

    #[test]
    fn a_name_that_is_passed_on_leads_to_where_it_is() {
        let graph = graph(&[
            ("a/mod.rs", "mod b;\npub use self::b::C;"),
            ("a/b.rs", "use crate::d;"),
            ("d.rs", "fn e() { crate::a::C; }"),
            ("a/tests.rs", "use crate::d::f;"),
        ]);
        let edges = graph.edges();
        let edges: Vec<String> = edges
            .iter()
            .map(|edge| {
                format!(
                    "{}:{} {}",
                    edge.from.join("::"),
                    edge.line,
                    edge.to.join("::")
                )
            })
            .collect();
        assert_eq!(edges, ["a::b:1 d", "d:1 a::b"]);
        let circles = graph.circles();
        assert_eq!(circles.len(), 1);
        assert_eq!(circles[0].len(), 2);
    }
}
