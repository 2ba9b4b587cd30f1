//! Passive health while `lb` runs: how backends answer is looked at with every tick.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    checks::Response,
    control_loop::Control,
    passive::{Finding, Passive},
    running::Running,
    verdicts::pool_of,
};
use crate::{
    api::Severity,
    config::{Config, time_text},
    dataplane::backend_answers::{AnswerTable, AnswerWords},
    model::{
        names::backend_name,
        registry::{Ids, Kind},
    },
};

/// What the data plane counts, and what was found by it.
#[derive(Debug)]
pub struct PassiveWatch {
    table: Option<AnswerTable>,
    /// The ids of the backends that are configured, in order, with what was counted of them at the last look. A list: all of it
    /// is walked four times a second.
    seen: Vec<(u32, Option<AnswerWords>)>,
    pub(super) passive: Passive,
}

impl PassiveWatch {
    /// Follows the counts that are pinned in `folder`.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the mapping.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        Ok(Self {
            table: AnswerTable::open(folder)?,
            seen: Vec::new(),
            passive: Passive::default(),
        })
    }

    /// From now on the backends of `config` are looked at.
    pub(crate) fn set(&mut self, config: &Config, ids: &Ids) {
        let pools = config.pools.iter();
        let names = pools.flat_map(|pool| {
            let backends = pool.backends.iter();
            backends.map(|backend| backend_name(pool, backend))
        });
        let before: HashMap<_, _> = mem::take(&mut self.seen).into_iter().collect();
        let seen = names.filter_map(|name| {
            let id = ids.get(Kind::Backend, &name)?;
            Some((id, before.get(&id).copied().flatten()))
        });
        self.seen = seen.collect();
        self.seen.sort_unstable_by_key(|(id, _)| *id);
        let ids = self.seen.iter().map(|(id, _)| *id);
        self.passive.retain(&ids.collect());
    }

    /// The backends that something has been counted of since the last look, and those that are out.
    fn changed(&mut self) -> BTreeSet<u32> {
        let Some(table) = &self.table else {
            return BTreeSet::new();
        };
        let mut changed: BTreeSet<u32> = self.passive.out().collect();
        for (id, seen) in &mut self.seen {
            let words = table.words(*id);
            if *seen != Some(words) {
                // Clients are taken at each look.
                *seen = Some(words.without_clients());
                changed.insert(*id);
            }
        }
        changed
    }
}

/// A finding, and whose it is.
struct Found {
    /// The backend's name in the registry.
    backend: String,
    id: u32,
    network: String,
    finding: Finding,
}

impl Control {
    /// Looks how backends have answered since the last time: checks at once what is suspected, and takes out what nothing
    /// checks.
    pub(super) fn look_at_answers(&mut self) {
        for found in self.running.look_at_answers() {
            let Found {
                backend,
                id,
                network,
                finding,
            } = found;
            let words = match finding {
                Finding::Suspected => {
                    self.running.checks.suspect(&network, id);
                    continue;
                }
                Finding::Out(hold) => out_words(hold),
                Finding::Trial => TRIAL.to_owned(),
                Finding::Answers => "answers again".to_owned(),
            };
            self.running.applied.is_share_due = true;
            self.note_answers(&backend, matches!(finding, Finding::Out(_)), &words);
        }
    }
}

impl Control {
    /// Logs which suspected backends have not answered their check either, and which answer again.
    pub(super) fn note_responses(&mut self, responses: Vec<Response>) {
        for response in responses {
            let Response {
                backend,
                is_missing,
                words,
            } = response;
            let words = match is_missing {
                true => format!(
                    "does not answer clients, nor its check: {words}; no new flows until it does"
                ),
                false => format!("answers again: {words}"),
            };
            self.note_answers(&backend, is_missing, &words);
        }
    }

    /// Logs how a backend has answered its clients.
    fn note_answers(&mut self, backend: &str, is_missing: bool, words: &str) {
        let severity = if is_missing {
            tracing::warn!(backend, "{words}");
            Severity::Warning
        } else {
            tracing::info!(backend, "{words}");
            Severity::Notice
        };
        self.event("health", severity, &format!("backend {backend}"), words);
    }
}

const TRIAL: &str = "gets new flows again, to see whether it answers";

/// The message for a backend that nothing checks, and that is out for so long.
fn out_words(hold: Duration) -> String {
    format!(
        "does not answer: no client had a SYN-ACK; no new flows for {}",
        time_text(hold)
    )
}

impl Running {
    fn look_at_answers(&mut self) -> Vec<Found> {
        let changed = self.passive.changed();
        let now = Instant::now();
        let found = changed.into_iter().filter_map(|id| self.look_at(id, now));
        found.collect()
    }

    fn look_at(&mut self, id: u32, now: Instant) -> Option<Found> {
        let table = self.passive.table.as_ref()?;
        let name = self.applied.ids.name(Kind::Backend, id)?;
        let pool = self.applied.config.pool(pool_of(name))?;
        let mut answers = table.get(id);
        answers.clients = table.take_clients(id);
        let is_checked = pool.health.is_some();
        let finding = self.passive.passive.note(id, is_checked, answers, now)?;
        Some(Found {
            backend: name.to_owned(),
            id,
            network: pool.network.clone(),
            finding,
        })
    }
}
