//! How the backends of a pool are checked, and how soon that shows.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{check::Check, duration};

/// How the backends of a pool are checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// What is requested.
    pub check: Check,
    /// Another port than the backend's.
    pub port: Option<u16>,
    /// From the beginning of one check to that of the next; default 5 s.
    #[serde(with = "duration::as_text")]
    pub interval: Duration,
    /// How long a check may take, no longer than `interval`; default 3 s, or `interval` if that is less.
    #[serde(with = "duration::as_text")]
    pub timeout: Duration,
    /// Good checks in a row after which a backend is up; default 2.
    pub rise: u32,
    /// Bad checks in a row after which it is not; default 3.
    pub fall: u32,
    /// As `interval`, between a first other answer and the verdict; default 1 s, or `interval` if that
    /// is less.
    #[serde(with = "duration::as_text")]
    pub fast_interval: Duration,
    /// How long a backend must be good without a break to come back, once it has come and gone too
    /// often; default 30 s, 0 for no such rule.
    #[serde(with = "duration::as_text")]
    pub flap_hold: Duration,
    /// What becomes of its flows when it is dead.
    pub on_dead: OnDead,
}

impl Health {
    /// How long it takes at most from when a backend fails until the verdict says so. It fails right
    /// after a check has begun, the next one begins as late as its jitter allows, and every one takes
    /// all of its time to find out.
    #[must_use]
    pub fn worst_case_down(&self) -> Duration {
        self.worst_case(self.fall)
    }

    /// How long it takes at most from when a backend recovers until the verdict says so, as
    /// [`Self::worst_case_down`]. After it has come and gone too often, [`Self::flap_hold`] comes on
    /// top.
    #[must_use]
    pub fn worst_case_up(&self) -> Duration {
        self.worst_case(self.rise)
    }

    /// The time to `checks` in a row that speak against the verdict. The second and later ones begin
    /// at the fast interval, but never before the one before has ended.
    fn worst_case(&self, checks: u32) -> Duration {
        let again = late(self.fast_interval).max(self.timeout);
        let more = again.saturating_mul(checks.saturating_sub(1));
        let first = late(self.interval);
        first.saturating_add(more).saturating_add(self.timeout)
    }
}

/// How long after the one before a check begins at the latest: its start is spread by
/// [`JITTER_PERCENT`].
fn late(interval: Duration) -> Duration {
    interval.saturating_add(interval.saturating_mul(JITTER_PERCENT) / 100)
}

/// By how much of the interval the start of a check is earlier or later, in percent: backends are not
/// asked all at once.
pub const JITTER_PERCENT: u32 = 10;

#[cfg(test)]
impl Health {
    /// A check with everything left out that can be.
    pub(crate) const fn tcp() -> Self {
        Self {
            check: Check::Tcp,
            port: None,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(3),
            rise: 2,
            fall: 3,
            fast_interval: Duration::from_secs(1),
            flap_hold: Duration::from_secs(30),
            on_dead: OnDead::Reselect,
        }
    }
}

/// What becomes of the flows of a dead backend. No new ones go there in any case, and those that it has not
/// answered end without a reset, but with [`Self::None`]: what the client repeats goes to another backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDead {
    /// They stay as long as they can.
    None,
    /// Those that it has answered stay as long as they can.
    #[default]
    Reselect,
    /// They end as those of a drained backend.
    Drain,
    /// Both ends get a reset at once.
    Reset,
}
