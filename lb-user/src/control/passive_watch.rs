//! Passive health while `lb` runs: how backends answer is looked at with every tick.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use lb_common::maps::{backend_answers::BackendAnswers, flow::TIME_SHIFT};

use super::{
    control_loop::Control,
    passive::{Finding, Passive},
    running::Running,
};
use crate::{
    config::time_text,
    dataplane::{backend_answers::AnswerTable, flows::coarse_now},
    health::Suspect,
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
    /// Whether another backend of the network has answered a client within the last second.
    others_answer: bool,
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
                others_answer,
            } = found;
            let words = match finding {
                Finding::Suspected => {
                    let suspect = Suspect {
                        backend: id,
                        others_answer,
                    };
                    self.running.checks.suspect(&network, suspect);
                    continue;
                }
                Finding::Out(hold) => out_words(hold),
                Finding::Trial => TRIAL.to_owned(),
                Finding::Answers => "answers again".to_owned(),
            };
            match finding {
                Finding::Out(_) => tracing::warn!(backend, "{words}"),
                _ => tracing::info!(backend, "{words}"),
            }
            self.event("health", &format!("backend {backend}"), &words, None);
        }
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
        let mut latest = BTreeMap::new();
        for pool in &self.applied.config.pools {
            for backend in &pool.backends {
                let name = backend_name(pool, backend);
                let Some(id) = self.applied.ids.get(Kind::Backend, &name) else {
                    continue;
                };
                ids.insert(id);
                let mut answers = table.get(id);
                answers.clients = table.take_clients(id);
                if has_just_answered(&answers) {
                    latest
                        .entry(&pool.network)
                        .or_insert_with(BTreeSet::new)
                        .insert(id);
                }
                let finding = passive.note(id, pool.health.is_some(), answers, now);
                all.extend(finding.map(|finding| Found {
                    backend: name,
                    id,
                    network: pool.network.clone(),
                    finding,
                    others_answer: false,
                }));
            }
        }
        for found in &mut all {
            let answering = latest.get(&found.network);
            let mut others = answering.into_iter().flatten();
            found.others_answer = others.any(|id| *id != found.id);
        }
        passive.retain(&ids);
        all
    }
}

/// Whether a backend has answered a client within the last second.
fn has_just_answered(answers: &BackendAnswers) -> bool {
    const SECOND: u32 = 1_000_000_000 >> TIME_SHIFT;
    let age = coarse_now().map(|now| now.wrapping_sub(answers.last_answer));
    answers.last_answer != 0 && age.is_ok_and(|age| age < SECOND)
}
