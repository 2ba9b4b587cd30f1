//! What the operator sets for backends, and for all backends of a node, above file and checks.

use std::{mem, slice, time::Duration};

use anyhow::{Context as _, Error, Result, bail, ensure};
use tokio::sync::oneshot;

use super::{
    control_loop::Control,
    ended_count::{EndedPart, Flows},
    ending::CutCount,
    operator::{done, refused},
};
use crate::{
    api::{Answer, Override, Overrides},
    config::Pool,
    flows::evict::selector::EvictSelector,
    model::{
        names::backend_name,
        nodes::{find, ids_by_place, nodes},
    },
};

/// What comes of an override of a node.
struct NodeOverridden {
    /// The node, how many backends of how many pools those are, and what they do now.
    words: String,
    /// The flows that end with it.
    cut: Option<CutCount>,
}

impl Control {
    /// Overrides file and checks for a backend. Gives what comes of it, in words.
    pub(super) fn override_backend(
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
        self.set_overrides(slice::from_ref(&name), change)?;
        if change == Override::Disable {
            let disabled = self.backend_ids([name.as_str()].into_iter());
            self.running.ending.cut(EvictSelector {
                disabled,
                ..EvictSelector::default()
            });
        }
        let config = self.running.config().clone();
        self.follow(&config);
        let words = words(change, &[self.state.drains.left(&name)]);
        self.event_by("override", &format!("backend {name}"), &words, by);
        Ok(format!("backend {name}: {words}"))
    }

    /// Overrides file and checks for all backends of a node. The answer comes when the flows that end with it have ended.
    pub(super) fn order_node(
        &mut self,
        name: &str,
        change: Override,
        by: Option<String>,
        reply: oneshot::Sender<Answer>,
    ) {
        let overridden = self.override_node(name, change, by);
        tokio::spawn(async move {
            let answer = match finish(overridden).await {
                Ok(words) => done(&words),
                Err(error) => refused(&format!("{error:#}")),
            };
            // The operator's connection may have gone.
            let _gone: Result<(), Answer> = reply.send(answer);
        });
    }

    fn override_node(
        &mut self,
        name: &str,
        change: Override,
        by: Option<String>,
    ) -> Result<NodeOverridden> {
        let config = self.running.config().clone();
        let nodes = nodes(&config);
        let node = find(&nodes, name).map_err(Error::msg)?;
        let names = node.backends.iter();
        let names: Vec<String> = names
            .map(|(pool, backend)| backend_name(pool, backend))
            .collect();
        self.set_overrides(&names, change)?;
        // Also of backends that were taken out of the file, and finish their flows: the node may go down.
        let ids = node.ids(&ids_by_place(self.running.ids()));
        let flows = EvictSelector {
            disabled: ids,
            ..EvictSelector::default()
        };
        let is_cut = change == Override::Disable;
        let cut = is_cut.then(|| self.running.ending.cut_and_count(flows.clone()));
        self.follow(&config);
        let left = names.iter().map(|name| self.state.drains.left(name));
        let mut words = words(change, &left.collect::<Vec<_>>());
        if change == Override::Drain {
            let part = EndedPart {
                words,
                flows,
                of: None,
            };
            words = self.running.count_ended(vec![part]).concat();
        }
        let extent = extent(names.len(), node.pools().len());
        let object = format!("node {}", node.name);
        self.event_by("override", &object, &format!("{extent}: {words}"), by);
        Ok(NodeOverridden {
            words: format!("{object}: {extent}: {words}"),
            cut,
        })
    }

    /// Sets the overrides of these backends, by their names in the registry.
    fn set_overrides(&mut self, backends: &[String], change: Override) -> Result<()> {
        self.check_overrides_are_own()?;
        let mut overrides = self.state.overrides.clone();
        for name in backends {
            match change {
                Override::Enable => overrides.remove(name),
                change => overrides.insert(name.clone(), change),
            };
        }
        self.replace_overrides(overrides)
    }

    /// Sets all overrides: first on the disk, then in the tables of all pools at once. Flows and drains follow.
    ///
    /// # Errors
    ///
    /// If they cannot be written: they would be forgotten at the next start.
    pub(super) fn replace_overrides(&mut self, overrides: Overrides) -> Result<()> {
        let before = mem::replace(&mut self.state.overrides, overrides);
        if let Err(error) = self.store() {
            self.state.overrides = before;
            return Err(error.context("keep the override; nothing is changed"));
        }
        self.share()
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
                    "{name} is a backend of {} pools ({}): say which, as POOL/{name}, or override all of them by \
                     `lb node`",
                    pools.len(),
                    pools.join(", ")
                )
            }
        }
    }
}

/// What came of an override of a node, in words, with how many flows have ended by it.
async fn finish(overridden: Result<NodeOverridden>) -> Result<String> {
    let NodeOverridden { words, cut } = overridden?;
    let Some(cut) = cut else {
        return Ok(words);
    };
    let flows = cut.finish().await.with_context(|| words.clone())?;
    let flows = usize::try_from(flows).unwrap_or(usize::MAX);
    Ok(format!("{words} ({})", Flows(flows)))
}

/// What backends do from now on; `left` is how long the flows of each of them may stay, none: as long as they live.
fn words(change: Override, left: &[Option<Duration>]) -> String {
    match change {
        Override::Drain => {
            let seconds = left.iter().flatten();
            let seconds = seconds.map(|left| left.as_millis().div_ceil(1000));
            let ends = match (seconds.clone().min(), seconds.max()) {
                (Some(first), Some(last)) if first < last => format!("in {first} to {last} s"),
                (Some(first), _) => format!("in {first} s"),
                (None, _) => return "drains: no new flows".to_owned(),
            };
            let by_themselves = match left.contains(&None) {
                true => ", or by themselves",
                false => "",
            };
            format!("drains: no new flows, and those that it has end {ends}{by_themselves}")
        }
        Override::Disable => "disabled: no new flows, and those that it had end".to_owned(),
        Override::Enable => "as the file and its checks say".to_owned(),
        Override::Weight { weight } => format!("weight {weight}"),
    }
}

/// Of how many backends and pools something is.
fn extent(backends: usize, pools: usize) -> String {
    let counted = |count: usize, noun: &str| match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    };
    format!(
        "{} of {}",
        counted(backends, "backend"),
        counted(pools, "pool")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_says_until_when_each_of_its_flows_may_stay() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        // Of 30 s there is a little less, by now.
        let thirty = Some(Duration::from_millis(29_900));
        for (left, ends) in [
            (&[seconds(30)][..], " end in 30 s"),
            (&[seconds(30), thirty], " end in 30 s"),
            (
                &[seconds(1800), thirty, seconds(60)],
                " end in 30 to 1800 s",
            ),
            (&[None, thirty], " end in 30 s, or by themselves"),
        ] {
            assert_eq!(
                words(Override::Drain, left),
                format!("drains: no new flows, and those that it has{ends}")
            );
        }
        for left in [&[][..], &[None], &[None, None]] {
            assert_eq!(words(Override::Drain, left), "drains: no new flows");
        }
    }

    #[test]
    fn an_extent_is_in_words() {
        assert_eq!(extent(1, 1), "1 backend of 1 pool");
        assert_eq!(extent(3, 2), "3 backends of 2 pools");
    }
}
