//! How long an end that is probed may be silent, and what is done meanwhile. Pure.

use crate::flows::idle::{Ticks, age};

/// Probes without an answer that make an end dead.
const MAX_PROBES: u8 = 3;
/// At least so long from one probe to the next, about a second: Linux answers old sequence numbers
/// of a connection twice a second at most (`net.ipv4.tcp_invalid_ratelimit`).
const SHORTEST_GAP: Ticks = 1000;
/// How long before the next probe the inquiry for its next hop goes out, or half a gap: long enough for an
/// answer, and short enough that the answer still holds.
const SEEK: Ticks = 4000;

/// How long to wait for the answer to a probe of a flow that is probed after `keepalive`.
pub fn gap(keepalive: Ticks) -> Ticks {
    (keepalive / 3).max(SHORTEST_GAP)
}

/// An end that has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silent {
    /// Its bytes when probing began.
    bytes: u64,
    /// Probes that went out one after the other.
    tries: u8,
    last: Option<Ticks>,
    /// Whether an inquiry for its next hop has been made since the last probe.
    sought: bool,
}

/// What is to be done about an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndAction {
    Answered,
    Wait,
    Step(ProbeStep),
    Dead,
}

/// What is to be done for an end that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeStep {
    /// A probe to where the end was seen.
    Probe,
    /// A probe to where it may be now.
    ProbeAgain,
    /// Its next hop is to be resolved: it may have moved.
    Seek,
}

impl Silent {
    pub(super) const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            tries: 0,
            last: None,
            sought: false,
        }
    }

    /// `answers`: whether the end is known to answer probes.
    pub(super) fn turn(
        &self,
        bytes: u64,
        answers: bool,
        now: Ticks,
        keepalive: Ticks,
    ) -> EndAction {
        if bytes != self.bytes {
            return EndAction::Answered;
        }
        let Some(last) = self.last else {
            return EndAction::Step(ProbeStep::Probe);
        };
        let gap = gap(keepalive);
        let tried = self.tries >= MAX_PROBES;
        let rest = if tried && !answers {
            keepalive.max(gap)
        } else {
            gap
        };
        match age(now, last) {
            waited if waited < rest => {
                let soon = rest - SEEK.min(gap / 2);
                let seek = self.tries > 0 && !self.sought && waited >= soon;
                if seek {
                    EndAction::Step(ProbeStep::Seek)
                } else {
                    EndAction::Wait
                }
            }
            _ if tried && answers => EndAction::Dead,
            _ if self.tries > 0 => EndAction::Step(ProbeStep::ProbeAgain),
            _ => EndAction::Step(ProbeStep::Probe),
        }
    }

    /// Notes that a probe went out, or that it could not be `sent`: then the count begins anew, because it is
    /// not known how long that has been so.
    pub(super) const fn probed(&mut self, sent: bool, now: Ticks) {
        self.last = Some(now);
        self.sought = false;
        self.tries = if sent {
            self.tries.saturating_add(1)
        } else {
            0
        };
    }

    /// Notes that an inquiry for its next hop has been made.
    pub(super) const fn sought(&mut self) {
        self.sought = true;
    }

    /// Whether a probe is on its way to it, so that what comes may be the answer.
    pub(super) const fn is_asked(&self) -> bool {
        self.tries > 0
    }

    /// Whether all its probes have had their time.
    pub(super) const fn is_tried(&self) -> bool {
        self.tries > MAX_PROBES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_a_second_apart_at_least() {
        assert_eq!(gap(100), SHORTEST_GAP);
        assert_eq!(gap(60_000), 20_000);
    }
}
