//! A change that the operator must confirm, and what a start makes of it.
//!
//! A start of `lb run` with another file than the one that waits cancels the confirmation: the file of the
//! start runs, and nothing waits any more. With the same file, or one that cannot be used, a start confirms
//! nothing and undoes nothing: what waits runs on until its deadline, and from then on what was before it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    fixed_at_start::moved_networks,
    persisted_state::{State, Uptime},
};
use crate::config::{Config, Kept, Loaded};

/// A change that must be confirmed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconfirmed {
    /// Until when.
    pub until: Uptime,
    /// The configuration that comes back else.
    pub before: Kept,
    /// The one that must be confirmed.
    #[serde(default)]
    pub after: Kept,
    /// The file of the configuration that comes back; none of a process of before, which did not note it.
    #[serde(default)]
    pub file: Option<PathBuf>,
}

/// Which configuration a start runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenFrom {
    /// That of its file.
    File,
    /// The one that waits to be confirmed.
    After,
    /// What was before that one.
    Before,
    /// The one that was applied last, because the file cannot be used.
    Applied,
}

/// What a start runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The configuration.
    pub config: Config,
    /// Where it is from.
    pub source: ChosenFrom,
}

/// Chooses between a file, what waits in `state`, and what was `applied` last, if anything was: that
/// goes on where the file cannot be used.
///
/// # Errors
///
/// Why the file cannot be used, if nothing else can run.
pub fn choose<E>(
    file: Result<Loaded, E>,
    state: &State,
    applied: Option<&Config>,
) -> Result<Chosen, E> {
    let config = file.as_ref().ok().map(|loaded| &loaded.config);
    let waits = state.unconfirmed.as_ref();
    let waits = waits.and_then(|waits| waits.goes_on(config));
    if let Some((source, kept)) = waits {
        match kept.config() {
            Ok(config) => return Ok(Chosen { config, source }),
            Err(problems) => tracing::error!(
                "the kept configuration of before an unconfirmed reload cannot be used: {problems}"
            ),
        }
    }
    match (file, applied) {
        (Err(_), Some(applied)) => Ok(Chosen {
            config: applied.clone(),
            source: ChosenFrom::Applied,
        }),
        (file, _) => Ok(Chosen {
            config: file?.config,
            source: ChosenFrom::File,
        }),
    }
}

impl Unconfirmed {
    /// Whether only a new process can go back from what runs: networks have come, gone or moved.
    pub(crate) fn needs_process(&self, running: &Config) -> bool {
        let before = self.before.config();
        before.is_ok_and(|before| !moved_networks(running, &before).is_empty())
    }

    /// What runs instead of a file with this configuration, or of none that can be used.
    fn goes_on(&self, file: Option<&Config>) -> Option<(ChosenFrom, &Kept)> {
        // What was discovered for it is none of the file's.
        let after = self.after.config().map(|after| after.literal());
        let is_other = |file: &Config| after.as_ref() != Ok(&file.literal());
        match file {
            Some(file) if is_other(file) => None,
            _ if self.until.is_over() => Some((ChosenFrom::Before, &self.before)),
            _ => Some((ChosenFrom::After, &self.after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;
    use crate::config::{self, Problems};

    /// A configuration that differs from others by this port.
    fn text(port: u16) -> String {
        format!(
            "version: 1
networks:
  mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }}
  a: {{ role: tenant, interface: eth0, prefixes: [10.1.0.0/24] }}
pools:
  p: {{ network: mgmt, backends: [\"10.0.0.1:1\"] }}
services:
  s: {{ network: a, listen: [\"10.1.0.9:{port}/tcp\"], pool: p }}
"
        )
    }

    fn load(text: &str) -> Result<Loaded, Problems> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lb.yaml");
        fs::write(&path, text).unwrap();
        config::load_text(&path)
    }

    const BEFORE: u16 = 1;
    const AFTER: u16 = 2;
    const OTHER: u16 = 3;

    /// Which port a start with this file listens on, and why; none if it is refused.
    fn started(file: &str, left: Option<Duration>) -> Option<(u16, ChosenFrom)> {
        let unconfirmed = left.map(|left| Unconfirmed {
            until: Uptime::now().after(left),
            before: load(&text(BEFORE)).unwrap().config.into(),
            after: load(&text(AFTER)).unwrap().config.into(),
            file: None,
        });
        let state = State {
            unconfirmed,
            ..State::default()
        };
        let chosen = choose(load(file), &state, None).ok()?;
        Some((chosen.config.services[0].listen[0].port, chosen.source))
    }

    #[test]
    fn a_start_goes_by_its_file_but_for_what_waits() {
        const LEFT: Option<Duration> = Some(Duration::from_secs(60));
        const OVER: Option<Duration> = Some(Duration::ZERO);
        let same = format!("# Nothing else.\n{}", text(AFTER));
        for (file, left, wanted) in [
            (text(OTHER).as_str(), None, Some((OTHER, ChosenFrom::File))),
            ("version: [", None, None),
            (&text(OTHER), LEFT, Some((OTHER, ChosenFrom::File))),
            (&text(OTHER), OVER, Some((OTHER, ChosenFrom::File))),
            (&text(BEFORE), LEFT, Some((BEFORE, ChosenFrom::File))),
            (&text(BEFORE), OVER, Some((BEFORE, ChosenFrom::File))),
            (&same, LEFT, Some((AFTER, ChosenFrom::After))),
            (&same, OVER, Some((BEFORE, ChosenFrom::Before))),
            ("version: [", LEFT, Some((AFTER, ChosenFrom::After))),
            ("version: [", OVER, Some((BEFORE, ChosenFrom::Before))),
        ] {
            assert_eq!(started(file, left), wanted, "{file} {left:?}");
        }
    }

    #[test]
    fn what_was_discovered_makes_no_other_file() {
        let file = "version: 1
networks: { m: { role: mgmt, interface: e, prefixes: [10.0.0.0/8], snat: [10.9.9.9] } }
kubernetes: { hub: { kubeconfig: /k } }
pools:
  p: { network: m, backends: [\"10.0.0.1:1\", { discover: { cluster: hub, service: a/b, port: 1 } }] }
";
        let loaded = load(file).unwrap();
        let mut after = loaded.config.clone();
        let mut found = after.pools[0].backends[0].clone();
        found.name = "n1".to_owned();
        found.discovered = Some(after.pools[0].discover[0].of.clone());
        after.pools[0].backends.push(found);
        let state = State {
            unconfirmed: Some(Unconfirmed {
                until: Uptime::now().after(Duration::from_secs(60)),
                before: loaded.config.clone().into(),
                after: after.clone().into(),
                file: None,
            }),
            ..State::default()
        };
        let chosen = choose(Ok::<_, Problems>(loaded), &state, None).unwrap();
        assert_eq!((chosen.source, chosen.config), (ChosenFrom::After, after));
    }

    #[test]
    fn a_network_that_came_goes_by_another_process() {
        let config = |text: &str| load(text).unwrap().config;
        let before = text(BEFORE);
        let more = before.replace(
            "pools:",
            "  b: { role: tenant, interface: eth2, prefixes: [10.2.0.0/24] }\npools:",
        );
        let waits = Unconfirmed {
            until: Uptime::now(),
            before: config(&before).into(),
            after: config(&more).into(),
            file: None,
        };
        assert!(waits.needs_process(&config(&more)));
        assert!(!waits.needs_process(&config(&text(AFTER))));
    }

    #[test]
    fn what_cannot_be_read_any_more_leaves_the_file() {
        let state = State {
            unconfirmed: Some(Unconfirmed {
                until: Uptime::now(),
                before: Kept::Text("version: 0".to_owned()),
                after: load(&text(AFTER)).unwrap().config.into(),
                file: None,
            }),
            ..State::default()
        };
        let chosen = choose(load(&text(AFTER)), &state, None).unwrap();
        assert_eq!(chosen.source, ChosenFrom::File);
        assert!(choose(load(""), &state, None).is_err());
        let other = load(&text(OTHER)).unwrap().config;
        let chosen = choose(load(""), &state, Some(&other)).unwrap();
        assert_eq!(chosen.source, ChosenFrom::Applied);
    }

    #[test]
    fn a_file_that_cannot_be_used_leaves_what_was_applied() {
        let state = State::default();
        let choose = |file: &str, applied| choose(load(file), &state, applied);
        let applied = load(&text(BEFORE)).unwrap().config;
        let chosen = choose("version: [", Some(&applied)).unwrap();
        assert_eq!(
            (&chosen.config, chosen.source),
            (&applied, ChosenFrom::Applied)
        );
        let chosen = choose(&text(OTHER), Some(&applied)).unwrap();
        assert_eq!(chosen.source, ChosenFrom::File);
        let problems = choose("version: [", None).unwrap_err();
        assert!(problems.to_string().contains("lb.yaml"), "{problems}");
    }

    #[test]
    fn what_a_version_before_left_to_be_confirmed_is_read() {
        let after = load(&text(AFTER)).unwrap();
        let json = serde_json::json!({ "until": 0, "before": text(BEFORE), "after": after.expanded().unwrap() });
        let state = State {
            unconfirmed: Some(serde_json::from_value(json).unwrap()),
            ..State::default()
        };
        let chosen = choose(load(&text(AFTER)), &state, None).unwrap();
        assert_eq!(chosen.source, ChosenFrom::Before);
        assert_eq!(chosen.config, load(&text(BEFORE)).unwrap().config);
    }
}
