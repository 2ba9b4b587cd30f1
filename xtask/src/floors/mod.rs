//! The floors of `lb-user`: its folders, each of which imports from those below it only.

mod graph;
mod imports;
mod type_names;

use std::{collections::BTreeSet, path::Path};

use anyhow::{Result, ensure};

use self::graph::{Graph, Module};
use crate::workspace::Workspace;

/// The folders, top to bottom.
const FLOORS: [&str; 22] = [
    "cli",
    "daemon",
    "control",
    "sources",
    "web",
    "metrics",
    "reports",
    "observe",
    "admin",
    "events",
    "proxy",
    "ha",
    "flows",
    "api",
    "health",
    "proxy_protocol",
    "host",
    "model",
    "dataplane",
    "network",
    "config",
    "system",
];

/// The one floor that knows aya.
const OF_AYA: &str = "dataplane";

/// Crates whose modules need one another in no circle.
const WITHOUT_CIRCLES: [&str; 1] = ["lb-ebpf/src"];

/// Crates in which the name of a type means one thing.
const PRODUCT: [&str; 3] = ["lb-user/src", "lb-common/src", "lb-ebpf/src"];

/// The files that may be unsafe; ARCHITECTURE says why each is.
const UNSAFE: [&str; 19] = [
    "admin::peer_groups",
    "dataplane::affinities",
    "dataplane::backend_answers",
    "dataplane::batch",
    "dataplane::counts",
    "dataplane::events",
    "dataplane::flows",
    "dataplane::grace",
    "dataplane::hellos",
    "dataplane::labels",
    "dataplane::mapped",
    "dataplane::quotas",
    "dataplane::spilled",
    "network::carrier",
    "network::garp_listener",
    "network::offload",
    "network::raw",
    "proxy::splice::saved_syn",
    "system::heap",
];

/// # Errors
///
/// With every import that goes up, every aya and every unsafe block where it does not belong, every circle of the
/// data plane's modules, and every name of a type that means several things.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut problems = problems(&Graph::read(&workspace.root.join("lb-user/src"))?);
    let crates = PRODUCT.map(|source| Graph::read(&workspace.root.join(source)));
    let crates = crates.into_iter().collect::<Result<Vec<_>>>()?;
    problems.extend(type_names::problems(&crates));
    for source in WITHOUT_CIRCLES {
        let circles = Graph::read(&workspace.root.join(source))?.circles();
        let words = circles.iter().map(names);
        problems.extend(words.map(|names| format!("{source}: a circle of {names}")));
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// Prints what the graph of a crate is like: for the tree of today, and for others beside it.
///
/// # Errors
///
/// If the crate cannot be read.
pub(crate) fn print(source: Option<&str>) -> Result<()> {
    let graph = match source {
        Some(source) => Graph::read(Path::new(source))?,
        None => Graph::read(&Workspace::locate()?.root.join("lb-user/src"))?,
    };
    let circles = graph.circles();
    let up = climbs(&graph).len();
    println!("files {}, imports {}", graph.0.len(), graph.edges().len());
    println!("imports that go up, or to no floor: {up}");
    println!("circles: {}", circles.len());
    for circle in circles {
        println!("{:>4}: {}", circle.len(), names(&circle));
    }
    Ok(())
}

fn problems(graph: &Graph) -> Vec<String> {
    let mut problems = climbs(graph);
    for (module, file) in &graph.0 {
        let name = module.join("::");
        let is_of_aya = module.first().is_some_and(|floor| floor == OF_AYA);
        for (number, line) in code_lines(&file.text) {
            let at = format!("{}:{number}", file.path.display());
            if !is_of_aya && (line.contains("aya::") || line.contains("aya_log::")) {
                problems.push(format!("{at}: only {OF_AYA} knows aya"));
            }
            if line.contains("unsafe {") && !UNSAFE.contains(&name.as_str()) {
                problems.push(format!(
                    "{at}: {name} is not among the files that may be unsafe"
                ));
            }
        }
    }
    problems
}

/// The lines of a file with their numbers, but for comments and the tests at its end.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = (1..).zip(text.lines());
    let lines = lines.take_while(|(_, line)| *line != "#[cfg(test)]");
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// The imports that go up. The root of the crate is no floor: it has them all.
fn climbs(graph: &Graph) -> Vec<String> {
    let mut climbs = Vec::new();
    for edge in graph.edges() {
        let (Some(from), Some(to)) = (edge.from.first(), edge.to.first()) else {
            continue;
        };
        let is_down = from == to || matches!((floor(from), floor(to)), (Some(a), Some(b)) if a < b);
        if !is_down {
            let path = graph.0[&edge.from].path.display();
            climbs.push(format!(
                "{path}:{}: {from} imports {}, which is above it",
                edge.line,
                edge.to.join("::")
            ));
        }
    }
    climbs
}

fn names(circle: &BTreeSet<Module>) -> String {
    let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
    names.join(" ")
}

fn floor(folder: &str) -> Option<usize> {
    FLOORS.iter().position(|&floor| floor == folder)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{graph::File, *};

    fn problems_of(module: &str, text: &str) -> Vec<String> {
        let mut graph = Graph::default();
        let files = [
            ("config", ""),
            ("proxy", ""),
            ("dataplane::maps", ""),
            (module, text),
        ];
        for (module, text) in files {
            let module: Module = module.split("::").map(str::to_owned).collect();
            let file = File::new(PathBuf::from("f.rs"), text.to_owned(), &module);
            graph.0.insert(module, file);
        }
        problems(&graph)
    }

    #[test]
    fn an_import_that_goes_up_is_found() {
        let text = "use crate::{config, proxy::Front};\nuse crate::dataplane::maps::Maps;";
        assert!(problems_of("control::change", text).is_empty());
        let wanted = ["f.rs:1: model imports proxy, which is above it"];
        assert_eq!(problems_of("model::names", text), wanted);
        let wanted = ["f.rs:1: cellar imports config, which is above it"];
        assert_eq!(problems_of("cellar::x", "use crate::config;"), wanted);
    }

    #[test]
    fn aya_and_unsafe_have_their_places() {
        let text = "use aya::maps::Map;\nfn f() { unsafe { g() } }";
        assert!(problems_of("dataplane::flows", text).is_empty());
        let wanted = [
            "f.rs:1: only dataplane knows aya",
            "f.rs:2: control::plan is not among the files that may be unsafe",
        ];
        assert_eq!(problems_of("control::plan", text), wanted);
    }
}
