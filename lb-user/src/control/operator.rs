//! What the operator orders over the admin socket.

use std::{collections::BTreeSet, path::Path, time::Duration};

use anyhow::Result;
use tokio::sync::oneshot;

use super::{
    backend_weights::BackendShare,
    control_loop::{Control, Refusal, Stale},
};
use crate::{
    admin::server::{Access, Order},
    api::{Answer, BackendHealth, Changes, ConfigStatus, ControlStatus, Filter, FlowLine, Request},
    flows::{
        evict::selector::{EvictSelector, FlowChoice},
        filter::choose,
    },
    health::HealthVerdict,
    model::{names::backend_name, registry::Kind},
    network::namespace,
};

impl Control {
    /// Carries an order out and answers it.
    pub async fn order(&mut self, order: Order) {
        let Order { request, by, reply } = order;
        if reply.is_closed() {
            // It waited for too long: the operator has got a timeout.
            return;
        }
        let is_foreign = |file: &Path| by.access != Access::All && file != self.file.path();
        if let Request::Plan { file } = &request
            && is_foreign(file)
        {
            // Its problems would show what is in any file that this process may read.
            let own = self.file.path().display();
            let words = format!(
                "a member of admin.group may plan the file of the instance alone, which is {own}"
            );
            let _gone: Result<(), Answer> = reply.send(refused(&words));
            return;
        }
        let by = Some(by.to_string());
        let answer = match request {
            Request::Plan { file } => changes(self.plan(&file)),
            Request::Reload {
                file,
                confirm_seconds,
            } => {
                let confirm = confirm_seconds.map(Duration::from_secs);
                let (file, loaded) = self.read(file.as_deref());
                let by_process = match &loaded {
                    Ok(loaded) => self.by_process(&file, loaded, confirm, by.clone()),
                    Err(_) => Ok(None),
                };
                match by_process {
                    Ok(Some(answer)) => answer,
                    Ok(None) => changes(self.reload_loaded(file, loaded, confirm, by).await),
                    // As any other file that is refused.
                    Err(refusal) => {
                        changes(self.reload_loaded(file, Err(refusal), confirm, by).await)
                    }
                }
            }
            Request::Confirm => match self.confirm(by) {
                Ok(()) => done("confirmed: the configuration stays"),
                Err(refusal) => refuse(&refusal),
            },
            Request::Health => Answer::Health(self.status()),
            Request::Backend { name, change } => match self.override_backend(&name, change, by) {
                Ok(words) => done(&words),
                Err(error) => refused(&format!("{error:#}")),
            },
            Request::Node { name, change } => return self.order_node(&name, change, by, reply),
            Request::Legs(filter) => match self.legs(&filter) {
                Ok(legs) => Answer::Legs { legs },
                Err(reason) => refused(&reason),
            },
            Request::RefusedNames => Answer::RefusedNames {
                names: self.running.shared_vips.counts.names.read(),
            },
            Request::Kill(filter) => match self.choose(&filter) {
                Ok(chosen) => return self.kill(chosen, &filter, by, reply),
                Err(reason) => refused(&reason),
            },
            Request::Ha => self.ha_status(),
            Request::FollowMarker => {
                self.follow_marker();
                self.ha_status()
            }
            Request::Events { after } => Answer::Events {
                events: self.history.after(after),
            },
        };
        // The operator's connection may have gone.
        let _gone: Result<(), Answer> = reply.send(answer);
    }

    fn ha_status(&self) -> Answer {
        match self.running.ha_status() {
            Some(status) => Answer::Ha(Box::new(status)),
            None => refused(&"this instance has no peer: its file has no `ha`"),
        }
    }

    /// Ends the chosen flows; the answer comes when it is done.
    fn kill(
        &mut self,
        chosen: Vec<FlowChoice>,
        filter: &Filter,
        by: Option<String>,
        reply: oneshot::Sender<Answer>,
    ) {
        let cut = EvictSelector {
            chosen,
            ..EvictSelector::default()
        };
        let cut = self.running.ending.cut_and_count(cut);
        self.event_by("kill", "flows", &words(filter), by);
        tokio::spawn(async move {
            let answer = match cut.finish().await {
                Ok(flows) => done(&format!("{flows} flows ended")),
                Err(gone) => refused(&gone),
            };
            let _gone: Result<(), Answer> = reply.send(answer);
        });
    }

    /// The flows that are meant, and the legs of shared VIPs.
    fn choose(&self, filter: &Filter) -> Result<Vec<FlowChoice>, String> {
        let ids = self.running.ids();
        let chosen = choose(filter, ids);
        if filter.snat.is_none() {
            return chosen;
        }
        // A port that no flow has, or that is lent to a socket, is a leg's.
        let legs = self.running.legs().meant(filter, ids)?;
        let legs = legs.iter().map(|leg| leg.choice());
        match chosen {
            Err(reason) if legs.len() == 0 => Err(reason),
            chosen => Ok(chosen.unwrap_or_default().into_iter().chain(legs).collect()),
        }
    }

    /// The legs that are meant, as flows.
    fn legs(&self, filter: &Filter) -> Result<Vec<FlowLine>, String> {
        let ids = self.running.ids();
        let legs = self.running.legs().meant(filter, ids)?;
        Ok(legs.iter().map(|leg| leg.line(ids)).collect())
    }

    /// Where everything stands.
    pub fn status(&self) -> ControlStatus {
        let unconfirmed = self.state.unconfirmed.as_ref();
        let layers = self.layers();
        let config = self.running.config();
        let ids = self.running.ids();
        let mut backends = Vec::new();
        let mut known = BTreeSet::new();
        for pool in &config.pools {
            for BackendShare {
                backend,
                status,
                share,
                ..
            } in layers.shares(pool).backends
            {
                let name = backend_name(pool, backend);
                let id = ids.get(Kind::Backend, &name).unwrap_or_default();
                let checks = self.running.checks.of(&name);
                backends.push(BackendHealth {
                    id,
                    pool: pool.name.clone(),
                    name: backend.name.clone(),
                    checked: pool.health.is_some(),
                    verdict: status.verdict,
                    effective_weight: share,
                    overridden: self.state.overrides.get(&name).copied(),
                    last: checks.and_then(super::checks::CheckedBackend::last_check),
                    since_seconds: checks
                        .and_then(|checks| checks.since)
                        .map(|since| since.elapsed().as_secs()),
                    transitions: checks.map(|checks| checks.transitions).unwrap_or_default(),
                    drain_seconds: self.state.drains.left(&name).map(|left| left.as_secs()),
                    retired: false,
                    backup: backend.backup,
                    unresponsive: self.running.is_unresponsive(id)
                        || checks.is_some_and(|checks| checks.is_unresponsive),
                    service_down: self.is_service_down(pool, &name),
                });
                known.insert(id);
            }
        }
        let retired = ids.of(Kind::Backend).filter(|(_, id)| !known.contains(id));
        backends.extend(retired.map(|(name, id)| {
            let (pool, rest) = name.split_once('/').unwrap_or(("", name));
            let backend = rest.rsplit_once('@').map_or(rest, |(backend, _)| backend);
            BackendHealth {
                id,
                pool: pool.to_owned(),
                name: backend.to_owned(),
                checked: false,
                verdict: HealthVerdict::Unknown,
                effective_weight: 0,
                overridden: None,
                last: None,
                since_seconds: None,
                transitions: 0,
                drain_seconds: self.state.drains.left(name).map(|left| left.as_secs()),
                retired: true,
                backup: false,
                unresponsive: false,
                service_down: false,
            }
        }));
        ControlStatus {
            config: ConfigStatus {
                file: self.file.path().to_owned(),
                generation: self.generation,
                age_seconds: self.applied_at.elapsed().as_secs(),
                confirm_seconds: unconfirmed.map(|one| one.until.left().as_secs()),
                stale: self.stale.as_ref().map(|stale| stale.words.clone()),
                staleness: self.stale.as_ref().map(Stale::staleness),
            },
            backends,
            shared: self.running.shared(),
            divided: self.running.divided(),
            wrong: self.mending.wrong().clone(),
            kubernetes: self.clusters(),
            namespace: namespace::own(),
            interfaces: self.running.interfaces(),
        }
    }
}

/// A filter for people.
fn words(filter: &Filter) -> String {
    let parts = [
        ("network", &filter.network),
        ("service", &filter.service),
        ("backend", &filter.backend),
        ("client", &filter.client),
        ("SNAT port", &filter.snat),
    ];
    let given = parts.into_iter().filter_map(|(key, value)| {
        let value = value.as_ref()?;
        Some(format!("{key} {value}"))
    });
    let given: Vec<String> = given.collect();
    if given.is_empty() {
        return "all".to_owned();
    }
    format!("of {}", given.join(", "))
}

fn changes(result: Result<Changes, Refusal>) -> Answer {
    match result {
        Ok(changes) => Answer::Changes(changes),
        Err(refusal) => refuse(&refusal),
    }
}

fn refuse(refusal: &Refusal) -> Answer {
    Answer::Refused {
        usage: matches!(refusal, Refusal::Config(_)),
        reasons: refusal.reasons(),
    }
}

pub(super) fn done(words: &str) -> Answer {
    Answer::Done {
        lines: vec![words.to_owned()],
    }
}

/// What was requested is not there, or wrong.
pub(super) fn refused(reason: &impl ToString) -> Answer {
    Answer::Refused {
        usage: true,
        reasons: vec![reason.to_string()],
    }
}
