//! Passive health while `lb` runs: how backends answer is looked at with every tick.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    checks::Response,
    control_loop::Control,
    passive::{Finding, Passive},
    running::Running,
};
use crate::{
    api::Severity,
    config::time_text,
    dataplane::backend_answers::AnswerTable,
    model::{names::backend_name, registry::Kind},
};

/// What the data plane counts, and what was found by it.
#[derive(Debug)]
pub struct PassiveWatch {
    table: Option<AnswerTable>,
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
            passive: Passive::default(),
        })
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
        let PassiveWatch { table, passive } = &mut self.passive;
        let Some(table) = table else {
            return Vec::new();
        };
        let (mut ids, mut all, now) = (BTreeSet::new(), Vec::new(), Instant::now());
        for pool in &self.applied.config.pools {
            for backend in &pool.backends {
                let name = backend_name(pool, backend);
                let Some(id) = self.applied.ids.get(Kind::Backend, &name) else {
                    continue;
                };
                ids.insert(id);
                let mut answers = table.get(id);
                answers.clients = table.take_clients(id);
                let finding = passive.note(id, pool.health.is_some(), answers, now);
                all.extend(finding.map(|finding| Found {
                    backend: name,
                    id,
                    network: pool.network.clone(),
                    finding,
                }));
            }
        }
        passive.retain(&ids);
        all
    }
}
