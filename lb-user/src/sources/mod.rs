//! Where a configuration comes from, and whether it has changed there since.
//!
//! A source is a file here that implements `Source`, and an entry in `Sources::of`. `kubernetes` is none: it says what the
//! backends of pools are that a configuration wants of it.

pub(crate) mod file;
pub(crate) mod kubernetes;

use std::path::Path;

use self::file::File;
use crate::config::{self, Declaration, Loaded, Problems};

/// One place that a configuration comes from.
pub(crate) trait Source {
    /// What it declares now. One that cannot be reached declares what it did last.
    fn declared(&self) -> Declaration;
}

/// All the places that a configuration comes from, and what they declared when that was applied, or refused.
pub(crate) struct Sources {
    file: File,
    others: Vec<Box<dyn Source>>,
    declared: Vec<Declaration>,
}

/// What all sources declare at one moment.
pub(crate) struct DeclaredNow {
    file: File,
    others: Vec<Declaration>,
}

impl DeclaredNow {
    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The configuration of all of them.
    ///
    /// # Errors
    ///
    /// Every problem, with the source and line that it is in.
    pub(crate) fn load(&self) -> Result<Loaded, Problems> {
        config::load_declared(&self.file.declared(), &self.others)
    }
}

impl Sources {
    /// The file at `path`, and what else there is.
    pub(crate) fn of(path: &Path) -> Self {
        Self::with(path, Vec::new())
    }

    fn with(path: &Path, others: Vec<Box<dyn Source>>) -> Self {
        Self {
            file: File::look(path),
            declared: declared(&others),
            others,
        }
    }

    /// Where the file is.
    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// What all of them declare now, with the file at `path`.
    pub(crate) fn look(&self, path: &Path) -> DeclaredNow {
        DeclaredNow {
            file: File::look(path),
            others: declared(&self.others),
        }
    }

    /// Notes that this was applied, or refused: from now on they have changed if they declare something else.
    pub(crate) fn take(&mut self, snapshot: DeclaredNow) {
        let DeclaredNow { file, others } = snapshot;
        (self.file, self.declared) = (file, others);
    }

    /// Whether one of them has changed.
    pub(crate) fn have_changed(&mut self) -> bool {
        self.file.has_changed() || declared(&self.others) != self.declared
    }
}

fn declared(sources: &[Box<dyn Source>]) -> Vec<Declaration> {
    sources.iter().map(|source| source.declared()).collect()
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, fs, rc::Rc};

    use super::*;

    /// A source that declares what a test says.
    #[derive(Clone)]
    struct Fake(Rc<RefCell<String>>);

    impl Source for Fake {
        fn declared(&self) -> Declaration {
            let text = self.0.borrow().clone();
            let name = "fake".to_owned();
            Declaration::Text { name, text }
        }
    }

    const FILE: &str = "version: 1
defaults: { service: { idle_timeout: 1h } }
networks:
  mgmt: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }
  tenant: { role: tenant, interface: eth0, prefixes: [10.1.0.0/24] }
pools:
  p: { network: mgmt, backends: [\"10.0.0.1:1\"] }
";

    fn sources(text: &str) -> (tempfile::TempDir, Sources, Fake) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        fs::write(&path, FILE).unwrap();
        let fake = Fake(Rc::new(RefCell::new(text.to_owned())));
        let sources = Sources::with(&path, vec![Box::new(fake.clone())]);
        (folder, sources, fake)
    }

    #[test]
    fn clusters_and_services_come_from_each_source() {
        let text = serde_json::json!({
            "services": { "s": { "network": "tenant", "listen": ["10.1.0.9:53/tcp"], "pool": "p" } },
            "nodes": { "n": { "network": "mgmt", "addresses": ["10.0.0.2"] } },
            "clusters": { "c": {
                "network": "tenant",
                "nodes": "n",
                "api": { "publish": "LoadBalancer", "node_port": 30001, "vip": "10.1.0.8" },
            } },
        });
        let (_folder, sources, _) = sources(&text.to_string());
        let config = sources.look(sources.path()).load().unwrap().config;
        let names: Vec<&str> = config
            .services
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(names, ["s", "c-api"]);
        let idle = config.services[0].idle_timeout;
        assert_eq!(
            idle,
            Some(std::time::Duration::from_secs(3600)),
            "a default of the file"
        );
    }

    #[test]
    fn a_problem_names_its_source_and_a_name_is_of_one_of_them() {
        let (folder, sources, _) =
            sources("pools:\n  p: { network: mgmt, backends: [] }\nwatch: true\n");
        let problems = sources.look(sources.path()).load().unwrap_err().to_string();
        let problems = problems.replace(&folder.path().display().to_string(), "");
        assert_eq!(
            problems,
            "fake:2: pools.p: \"p\" is already defined in /lb.yaml:7\n\
             fake:3: watch: only the main file can have this section"
        );
    }

    #[test]
    fn a_change_of_any_source_is_seen_until_it_is_taken() {
        let (_folder, mut sources, fake) = sources("");
        assert!(!sources.have_changed());
        *fake.0.borrow_mut() = "pools: { q: { network: mgmt, backends: [] } }".to_owned();
        assert!(sources.have_changed());
        let snapshot = sources.look(sources.path());
        let config = snapshot.load().unwrap().config;
        assert_eq!(config.pools.len(), 2);
        // What comes after the look is a change of its own.
        *fake.0.borrow_mut() = String::new();
        sources.take(snapshot);
        assert!(sources.have_changed());
        let snapshot = sources.look(sources.path());
        sources.take(snapshot);
        assert!(!sources.have_changed());
    }
}
