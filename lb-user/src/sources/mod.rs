//! Where a configuration comes from, and whether it has changed there since.
//!
//! A source is a file here that implements [`Source`], and an entry in [`Sources::of`]; what the operator says of it is a
//! section of `config/schema`.

pub(crate) mod file;

use std::path::Path;

use self::file::File;
use crate::config::{self, Declared, Loaded, Problems};

/// One place that a configuration comes from.
pub(crate) trait Source {
    /// What it declares now. One that cannot be reached declares what it did last.
    fn declared(&self) -> Declared;

    /// Whether it declares something else than what is applied of it, and that has come to rest.
    fn has_changed(&mut self) -> bool;
}

/// All the places that a configuration comes from.
pub(crate) struct Sources {
    file: File,
    others: Vec<Box<dyn Source>>,
}

impl Sources {
    /// The file at `path`, and what else there is.
    pub(crate) fn of(path: &Path) -> Self {
        Self {
            file: File::look(path),
            others: Vec::new(),
        }
    }

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
        self.load_with(&self.file)
    }

    /// The same with another file, or the same one as it was looked at another time.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub(crate) fn load_with(&self, file: &File) -> Result<Loaded, Problems> {
        let others: Vec<_> = self.others.iter().map(|source| source.declared()).collect();
        config::load_declared(&file.declared(), &others)
    }

    /// Takes the file that was applied, as it was looked at before that.
    pub(crate) fn set_file(&mut self, file: File) {
        self.file = file;
    }

    /// Whether one of them has changed.
    pub(crate) fn have_changed(&mut self) -> bool {
        let mut others = self.others.iter_mut();
        self.file.has_changed() || others.any(|source| source.has_changed())
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, fs, rc::Rc};

    use super::*;

    /// A source that declares what a test says.
    #[derive(Clone)]
    struct Fake(Rc<RefCell<(String, bool)>>);

    impl Source for Fake {
        fn declared(&self) -> Declared {
            let text = self.0.borrow().0.clone();
            let name = "fake".to_owned();
            Declared::Text { name, text }
        }

        fn has_changed(&mut self) -> bool {
            self.0.borrow().1
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
        let mut sources = Sources::of(&path);
        let fake = Fake(Rc::new(RefCell::new((text.to_owned(), false))));
        sources.others.push(Box::new(fake.clone()));
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
        let config = sources.load().unwrap().config;
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
        let problems = sources.load().unwrap_err().to_string();
        let problems = problems.replace(&folder.path().display().to_string(), "");
        assert_eq!(
            problems,
            "fake:2: pools.p: \"p\" is already defined in /lb.yaml:7\n\
             fake:3: watch: only the main file can have this section"
        );
    }

    #[test]
    fn a_change_of_any_source_is_seen() {
        let (_folder, mut sources, fake) = sources("");
        assert!(!sources.have_changed());
        fake.0.borrow_mut().1 = true;
        assert!(sources.have_changed());
    }
}
