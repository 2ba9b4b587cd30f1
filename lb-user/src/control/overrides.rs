//! What the operator sets for backends, above file and checks.

use anyhow::{Result, bail, ensure};

use super::control_loop::Control;
use crate::{
    api::Override, config::Pool, flows::evict::selector::EvictSelector, model::names::backend_name,
};

impl Control {
    pub(super) async fn set_override(
        &mut self,
        name: &str,
        change: Override,
        by: Option<String>,
    ) -> Result<String> {
        let (pool, backend) = self.find_backend(name)?;
        if let Override::Weight { weight } = change {
            ensure!(
                (1..=256).contains(&weight),
                "a weight is 1 to 256, found {weight}"
            );
        }
        let name = backend_name(&pool, &pool.backends[backend]);
        let overrides = &mut self.state.overrides;
        let before = match change {
            Override::Enable => overrides.remove(&name),
            change => overrides.insert(name.clone(), change),
        };
        if let Err(error) = self.store() {
            // It would be forgotten at the next start.
            match before {
                Some(before) => drop(self.state.overrides.insert(name, before)),
                None => drop(self.state.overrides.remove(&name)),
            }
            return Err(error.context("keep the override; nothing is changed"));
        }
        self.share()?;
        if change == Override::Disable {
            let disabled = self.backend_ids([name.as_str()].into_iter());
            self.running.ending.cut(EvictSelector {
                disabled,
                ..EvictSelector::default()
            });
        }
        let config = self.running.config().clone();
        self.follow(&config);
        let left = self.state.drains.left(&name);
        let words = match (change, left) {
            (Override::Drain, Some(left)) => format!(
                "drains: no new flows, and those that it has end in {} s",
                left.as_millis().div_ceil(1000)
            ),
            (Override::Drain, None) => "drains: no new flows".to_owned(),
            (Override::Disable, _) => {
                "disabled: no new flows, and those that it had end".to_owned()
            }
            (Override::Enable, _) => "as the file and its checks say".to_owned(),
            (Override::Weight { weight }, _) => format!("weight {weight}"),
        };
        self.event("override", &format!("backend {name}"), &words, by);
        Ok(format!("backend {name}: {words}"))
    }

    /// A pool, and the index of a backend in it; named as `POOL/BACKEND`, or `BACKEND` alone.
    fn find_backend(&self, name: &str) -> Result<(Pool, usize)> {
        let mut found = Vec::new();
        for pool in &self.running.config().pools {
            for (index, backend) in pool.backends.iter().enumerate() {
                if backend.name == name || format!("{}/{}", pool.name, backend.name) == name {
                    found.push((pool, index));
                }
            }
        }
        match found[..] {
            [] => {
                bail!("there is no backend {name}; `lb backends` lists them, as POOL and BACKEND")
            }
            [(pool, index)] => Ok((pool.clone(), index)),
            _ => {
                let pools: Vec<&str> = found.iter().map(|(pool, _)| pool.name.as_str()).collect();
                bail!(
                    "{name} is a backend of {} pools ({}): say which, as POOL/{name}",
                    pools.len(),
                    pools.join(", ")
                )
            }
        }
    }
}
