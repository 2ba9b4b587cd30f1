//! Whether backends can serve, found out by asking them.
//!
//! Each network has a thread in its cell that checks the network's backends on their schedules, from a
//! SNAT address, as their flows come. What follows from a verdict is not decided here.

mod all_silent;
mod check;
mod checker;
mod connection;
mod pace;
mod probe;

mod carrier_gate;
pub(crate) mod concurrency;
mod state;
mod suspicion;
mod target;
#[cfg(test)]
pub(crate) mod tests;

use std::{fmt, net::SocketAddr, time::Duration};

use lb_common::maps::vip_offer::VipOffer;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::{
    checker::{Checker, Commons},
    concurrency::turns,
    target::{CheckTarget, join},
};

/// Whether a backend can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthVerdict {
    /// It has never been checked; its first check decides alone.
    #[default]
    Unknown,
    /// It can.
    Up,
    /// It answers, but not as it should: no new flows, and those that it has go on.
    NotReady,
    /// It does not answer, or refuses: no new flows, and for those that it has the pool's `on_dead` decides.
    Dead,
}

impl HealthVerdict {
    /// Whether checks keep new flows away.
    pub const fn is_down(self) -> bool {
        matches!(self, Self::NotReady | Self::Dead)
    }
}

/// How a check ended; the words are for people, as `503 Service Unavailable` or `connection refused`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "result", content = "words", rename_all = "snake_case")]
pub enum CheckOutcome {
    /// As it should.
    Good(String),
    /// With another answer.
    NotReady(String),
    /// Without an answer.
    Dead(String),
}

/// What is known of a backend; kept over restarts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// The verdict.
    pub verdict: HealthVerdict,
    /// Checks in a row, up to now, that spoke against the verdict.
    pub against: u32,
    /// How often it came and went lately.
    pub flaps: u32,
    /// Where these checks are good, for how long they have been, in milliseconds.
    #[serde(default)]
    pub good_ms: u64,
}

/// One check of a backend, and where it stands after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its id.
    pub backend: u32,
    /// What was probed: what comes late may be of where it was checked before.
    pub address: SocketAddr,
    /// Whether it was checked because it has left a client without an answer.
    pub is_suspected: bool,
    /// How the check ended.
    pub outcome: CheckOutcome,
    /// Whether the backend or its node has answered at all, be it by a refusal: else the way to it may be lost.
    pub is_answered: bool,
    /// How long it took.
    pub took: Duration,
    /// What the backend has agreed to with the connection of the check, if there was one.
    pub agreed: Option<VipOffer>,
    /// Whether the verdict is another than before.
    pub changed: bool,
    /// Where the backend stands now.
    pub standing: Standing,
}

impl CheckOutcome {
    /// The words.
    pub fn words(&self) -> &str {
        match self {
            Self::Good(words) | Self::NotReady(words) | Self::Dead(words) => words,
        }
    }
}

impl Standing {
    /// Of a backend that serves and was never checked: its first check decides, as for one that is
    /// unknown, but until then it goes on.
    pub const fn presumed_up(fall: u32) -> Self {
        Self {
            verdict: HealthVerdict::Up,
            against: fall.saturating_sub(1),
            flaps: 0,
            good_ms: 0,
        }
    }
}

impl fmt::Display for HealthVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "unknown",
            Self::Up => "up",
            Self::NotReady => "not ready",
            Self::Dead => "dead",
        })
    }
}
