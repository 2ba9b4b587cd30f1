//! Until when backends that get no new flows may keep those that they have. Pure.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    backend_weights::{BackendShare, Layers},
    persisted_state::Uptime,
};
use crate::{
    api::Override,
    config::{Config, DRAIN_TIMEOUT, OnDead},
    health::HealthVerdict,
    model::names::backend_name,
};

/// One backend that drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// When its flows end; none: when they end by themselves.
    pub until: Option<Uptime>,
    /// Whether they have been ended.
    pub done: bool,
}

/// Those of all backends, by their names in the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Drains(BTreeMap<String, Drain>);

impl Drains {
    /// Takes in `config` and `layers` as they are now. `retired` are the backends that are configured no
    /// more; `before` is the configuration that had them, if it is known.
    pub fn follow<'n>(
        &mut self,
        config: &Config,
        layers: &Layers,
        retired: impl Iterator<Item = &'n str>,
        before: &Config,
    ) {
        let mut wanted = BTreeMap::new();
        for pool in &config.pools {
            for BackendShare {
                backend,
                status,
                share,
                ..
            } in layers.shares(pool).backends
            {
                let on_dead = pool.health.as_ref().map(|health| health.on_dead);
                // One that is believed in all the same has new flows.
                let is_dead = status.verdict == HealthVerdict::Dead
                    && share == 0
                    && on_dead == Some(OnDead::Drain);
                if is_dead || status.overridden == Some(Override::Drain) {
                    wanted.insert(backend_name(pool, backend), pool.drain_timeout);
                }
            }
        }
        for name in retired {
            let pool = name.split_once('/').map_or(name, |(pool, _)| pool);
            let timeout = before.pool(pool).map(|pool| pool.drain_timeout);
            wanted.insert(name.to_owned(), timeout.unwrap_or(Some(DRAIN_TIMEOUT)));
        }
        self.0.retain(|name, _| wanted.contains_key(name));
        for (name, timeout) in wanted {
            self.0.entry(name).or_insert_with(|| Drain {
                until: timeout.map(|timeout| Uptime::now().after(timeout)),
                done: false,
            });
        }
    }

    /// The backends whose time is over, each only once.
    pub fn take_over(&mut self) -> Vec<String> {
        let over = self
            .0
            .iter_mut()
            .filter(|(_, drain)| !drain.done && drain.until.is_some_and(Uptime::is_over));
        over.map(|(name, drain)| {
            drain.done = true;
            name.clone()
        })
        .collect()
    }

    /// The backends whose time is over, as long as they drain.
    pub fn over(&self) -> impl Iterator<Item = &str> {
        let over = self.0.iter().filter(|(_, drain)| drain.done);
        over.map(|(name, _)| name.as_str())
    }

    /// How long the flows of a backend have; none if it does not drain, or drains for ever.
    pub fn left(&self, name: &str) -> Option<Duration> {
        self.0.get(name)?.until.map(Uptime::left)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::{config, control::backend_weights::BackendStatus};

    const NAME: &str = "p/10.0.0.1:1@mgmt/10.0.0.1";
    const GONE: &str = "old/x@mgmt/10.0.0.7";

    fn config(keys: &str) -> Config {
        let text = format!(
            "
version: 1
networks: {{ mgmt: {{ role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] }} }}
pools:
  p: {{ network: mgmt, backends: [\"10.0.0.1:1\", \"10.0.0.2:1\"] }}
  {keys}
"
        );
        config::parse("f", &text).unwrap()
    }

    fn said(verdict: HealthVerdict, overridden: Option<Override>) -> Layers {
        let said = BackendStatus {
            verdict,
            overridden,
            back_for: None,
            is_silent: false,
        };
        let is_first = |backend: &config::Backend| backend.address == Ipv4Addr::new(10, 0, 0, 1);
        Layers::new(&config(""), |_, backend| match is_first(backend) {
            true => said,
            false => BackendStatus::default(),
        })
    }

    fn names(drains: &Drains) -> Vec<&str> {
        drains.0.keys().map(String::as_str).collect()
    }

    #[test]
    fn who_is_drained_has_a_time_that_does_not_begin_anew() {
        let mut config = config("");
        let mut drains = Drains::default();
        let drained = said(HealthVerdict::Up, Some(Override::Drain));
        drains.follow(&config, &drained, [].into_iter(), &config);
        assert_eq!(names(&drains), [NAME]);
        let left = drains.left(NAME).unwrap();
        assert!(left <= DRAIN_TIMEOUT && left > DRAIN_TIMEOUT - Duration::from_secs(60));
        let first = drains.clone();
        config.pools[0].drain_timeout = None;
        drains.follow(&config, &drained, [].into_iter(), &config);
        assert_eq!(drains, first);
        drains.follow(
            &config,
            &said(HealthVerdict::Up, None),
            [].into_iter(),
            &config,
        );
        assert_eq!(names(&drains), [""; 0]);
    }

    #[test]
    fn the_dead_drain_only_where_the_pool_says_so() {
        let mut config = config("");
        let mut health = config::Health::tcp();
        for (on_dead, verdict, drains_it) in [
            (OnDead::Drain, HealthVerdict::Dead, true),
            (OnDead::Drain, HealthVerdict::NotReady, false),
            (OnDead::Drain, HealthVerdict::Unknown, false),
            (OnDead::Reset, HealthVerdict::Dead, false),
            (OnDead::None, HealthVerdict::Dead, false),
        ] {
            health.on_dead = on_dead;
            config.pools[0].health = Some(health.clone());
            let mut drains = Drains::default();
            drains.follow(&config, &said(verdict, None), [].into_iter(), &config);
            assert_eq!(
                !names(&drains).is_empty(),
                drains_it,
                "{on_dead:?} {verdict:?}"
            );
        }
    }

    #[test]
    fn what_was_taken_out_of_the_file_has_the_time_of_its_pool() {
        let after = config("");
        let mut before =
            config("old: { network: mgmt, backends: [{ name: x, address: \"10.0.0.7:1\" }] }");
        before.pools[1].drain_timeout = Some(Duration::ZERO);
        let mut drains = Drains::default();
        drains.follow(&after, &Layers::default(), [GONE].into_iter(), &before);
        assert_eq!(drains.take_over(), [GONE]);
        assert_eq!(drains.take_over(), [""; 0], "once");
        drains.follow(&after, &Layers::default(), [GONE].into_iter(), &after);
        assert_eq!(drains.take_over(), [""; 0]);
        before.pools[1].drain_timeout = None;
        let mut drains = Drains::default();
        drains.follow(&after, &Layers::default(), [GONE].into_iter(), &before);
        assert_eq!((drains.left(GONE), names(&drains)), (None, vec![GONE]));
        let mut drains = Drains::default();
        drains.follow(&after, &Layers::default(), [GONE].into_iter(), &after);
        assert!(
            drains.left(GONE) > Some(Duration::from_secs(200)),
            "the default"
        );
    }
}
