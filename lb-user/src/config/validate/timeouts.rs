//! How long flows may be idle, and how many there may be.

use std::{path::PathBuf, time::Duration};

use crate::config::{
    duration::{self, NEVER},
    list::Named,
    listen::{Listen, Protocol},
    model::{TCP_IDLE, Timeouts, UDP_IDLE},
    names,
    place::{At, Location, value_of},
    problem::Findings,
    schema::{RawService, RawTimeouts},
};

/// What of a service says how long its flows live.
pub(super) struct Life {
    pub(super) idle_timeout: Option<Duration>,
    pub(super) udp_idle_timeout: Duration,
    pub(super) keepalive: Option<Duration>,
}

/// What was written, as far as it could be read.
struct Written<'r> {
    /// None in it: for ever.
    idle: Option<(Option<Duration>, &'r Location)>,
    keepalive: Option<(Duration, &'r Location)>,
}

impl Life {
    /// Of a service that has `listen`; `whole` if that is all of it.
    ///
    /// A default is for the services that can have it: one that listens for UDP alone, or at IPv6, is not
    /// probed and not idle for ever.
    pub(super) fn read(
        named: &Named<RawService>,
        listen: &[Listen],
        whole: bool,
        findings: &mut Findings,
    ) -> Self {
        let mut written = Written::read(named);
        if listen.iter().any(|entry| entry.address.is_ipv6()) {
            written.forget_inherited_probes();
        }
        let udp_only = whole && listen.iter().all(|entry| entry.protocol == Protocol::Udp);
        if udp_only {
            return written.of_udp(named, findings);
        }
        written.check(named, findings);
        let Written { idle, keepalive } = written;
        let idle = idle.map(|(idle, _)| idle);
        Self {
            idle_timeout: idle.unwrap_or(Some(TCP_IDLE)),
            udp_idle_timeout: idle.flatten().unwrap_or(UDP_IDLE),
            keepalive: keepalive.map(|(keepalive, _)| keepalive),
        }
    }
}

impl<'r> Written<'r> {
    fn read(named: &'r Named<RawService>) -> Self {
        let life = &named.value.life;
        let idle = life.idle_timeout.as_ref().map(|at| (at.value, &at.place));
        let keepalive = life.keepalive.as_ref().map(|at| (at.value, &at.place));
        Self { idle, keepalive }
    }

    /// A default that needs probes is for others.
    fn forget_inherited_probes(&mut self) {
        self.keepalive = self.keepalive.filter(|(_, place)| is_own(place));
        self.idle = self
            .idle
            .filter(|(idle, place)| idle.is_some() || is_own(place));
    }

    fn of_udp(self, named: &Named<RawService>, findings: &mut Findings) -> Life {
        if let Some((_, place)) = self.keepalive.filter(|(_, place)| is_own(place)) {
            let words = "UDP has no keepalive; expected it at a service with a tcp listener";
            findings.add(place, words);
        }
        let idle = match self.idle {
            Some((None, place)) if is_own(place) => {
                let words =
                    format!("a UDP flow has no end of its own; expected a time, not {NEVER}");
                findings.add(named.blame(place), words);
                None
            }
            Some((idle, _)) => idle,
            None => None,
        };
        let idle = idle.unwrap_or(UDP_IDLE);
        Life {
            idle_timeout: Some(idle),
            udp_idle_timeout: idle,
            keepalive: None,
        }
    }

    /// A flow that is never idle for too long must be found dead in another way, and one that is
    /// must not end before its keepalive probes had their time.
    fn check(&self, named: &Named<RawService>, findings: &mut Findings) {
        match (self.idle, self.keepalive) {
            (Some((None, idle)), None) if named.value.life.without_keepalive => {
                let words = format!(
                    "{NEVER} needs keepalive, or a peer that is gone would hold its flow for ever"
                );
                let place = if is_own(idle) { idle } else { &named.place };
                findings.add(place, words);
            }
            (Some((Some(idle), idle_place)), Some((keepalive, place)))
                if idle < answered(keepalive) =>
            {
                let words = format!(
                    "{}; expected an idle_timeout of {} or more in {}",
                    too_late(keepalive, idle),
                    duration::text(answered(keepalive)),
                    findings.line(idle_place, place)
                );
                // Reported at the entry's own key, not at the default that it is in conflict with.
                let own = [place, idle_place].into_iter().find(|place| is_own(place));
                findings.add(own.unwrap_or(place), words);
            }
            (None, Some((keepalive, place))) if TCP_IDLE < answered(keepalive) => {
                let words = format!(
                    "{}; expected an idle_timeout of {} or more",
                    too_late(keepalive, TCP_IDLE),
                    duration::text(answered(keepalive))
                );
                findings.add(place, words);
            }
            _ => {}
        }
    }
}

/// When an idle flow that is probed after `keepalive` has had the time for all three probes: a third
/// of `keepalive` and at least a second each, and a second for the passes of the expiry.
fn answered(keepalive: Duration) -> Duration {
    keepalive + keepalive.max(Duration::from_secs(3)) + Duration::from_secs(1)
}

fn too_late(keepalive: Duration, idle: Duration) -> String {
    format!(
        "a keepalive of {} comes too late when flows end after {}: three probes take as long again",
        duration::text(keepalive),
        duration::text(idle)
    )
}

/// Whether this was written for the entry itself, and not among the defaults.
pub(super) fn is_own(place: &Location) -> bool {
    !place.key.starts_with("defaults.")
}

pub(super) fn timeouts(raw: &RawTimeouts) -> Timeouts {
    Timeouts {
        half_open: value_of(&raw.half_open),
        half_closed: value_of(&raw.half_closed),
        udp: value_of(&raw.udp),
    }
}

/// The file that flows are written to.
pub(super) fn flow_log(raw: Option<&At<String>>, findings: &mut Findings) -> Option<PathBuf> {
    names::file_path(raw?, "/var/log/lb/flows.json", findings)
}

/// The file that requests are written to, which is not that of flows.
pub(super) fn http_log(
    raw: Option<&At<String>>,
    flows: Option<&At<String>>,
    findings: &mut Findings,
) -> Option<PathBuf> {
    let log = raw?;
    if flows.is_some_and(|flows| flows.value == log.value) {
        findings.add(
            &log.place,
            "found the file of log.flows, expected another one",
        );
    }
    names::file_path(log, "/var/log/lb/http.json", findings)
}
