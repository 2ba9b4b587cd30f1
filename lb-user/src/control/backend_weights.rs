//! The status of backends beside the file: verdicts of their checks, whether their next hops answer, and overrides
//! of the operator. Pure.
//!
//! The desired state is the file with these laid over it. A backend's share of new flows is what all
//! of them together leave of its weight.

use std::{collections::BTreeMap, iter, time::Duration};

use crate::{
    api::Override,
    config::{Backend, BelowMinUp, Config, Pool},
    health::HealthVerdict,
};

/// The status of one backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendStatus {
    /// By its checks.
    pub verdict: HealthVerdict,
    /// By the operator.
    pub overridden: Option<Override>,
    /// How long it has been back, if it came back.
    pub back_for: Option<Duration>,
    /// Whether its next hop does not answer.
    pub is_silent: bool,
}

/// The status of all backends of a configuration: by pool, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers(BTreeMap<String, Vec<BackendStatus>>);

/// The percentage of its share that a backend begins with when it comes back, and of each step to
/// the whole.
pub const RAMP_STEP: u32 = 5;
/// What a backend has of its share that has all of it.
const WHOLE: u32 = 100;

/// A backend of a pool, and what it has of the pool's new flows, in relation to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendShare<'p> {
    /// The backend.
    pub backend: &'p Backend,
    /// Its status.
    pub status: BackendStatus,
    /// What it has now; 0 for one that gets no new flows.
    pub share: u32,
    /// What it has while nothing takes of it: at least 1.
    pub whole: u32,
}

/// The share of each backend of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendShares<'p> {
    /// In the order of the file.
    pub backends: Vec<BackendShare<'p>>,
    /// Whether too few of them are up.
    pub below: bool,
}

impl BackendShares<'_> {
    /// The shares alone.
    pub fn numbers(&self) -> Vec<u32> {
        self.backends.iter().map(|it| it.share).collect()
    }
}

impl Layers {
    /// Each backend of `config` with its status.
    pub fn new(config: &Config, status: impl Fn(&Pool, &Backend) -> BackendStatus) -> Self {
        let pools = config.pools.iter().map(|pool| {
            let backends = pool.backends.iter();
            let statuses = backends.map(|backend| status(pool, backend));
            (pool.name.clone(), statuses.collect())
        });
        Self(pools.collect())
    }

    /// The shares of all pools of `config`, by name.
    pub fn all(&self, config: &Config) -> BTreeMap<String, Vec<u32>> {
        let pools = config.pools.iter();
        pools
            .map(|pool| (pool.name.clone(), self.shares(pool).numbers()))
            .collect()
    }

    /// Whether a backend has only a part of its share yet, because it came back: the part grows with time.
    pub fn are_growing(&self, config: &Config) -> bool {
        let mut pools = config.pools.iter();
        pools.any(|pool| {
            let mut times = self.of(pool).filter_map(|status| status.back_for);
            times.any(|back_for| back_for < pool.slow_start)
        })
    }

    /// The status of each backend of a pool, in the order of the file; where it is not known, that of one that was never
    /// checked.
    pub fn of<'l>(&'l self, pool: &'l Pool) -> impl Iterator<Item = BackendStatus> + use<'l> {
        let said = self.0.get(&pool.name).into_iter().flatten().copied();
        let said = said.chain(iter::repeat(BackendStatus::default()));
        let said = said.take(pool.backends.len());
        said.map(|said| BackendStatus {
            verdict: match pool.health {
                Some(_) => said.verdict,
                None => HealthVerdict::Up,
            },
            ..said
        })
    }

    /// Each backend's share of a pool's new flows. Of these views of the pool the first one counts in which enough
    /// backends are up:
    ///
    /// 1. those alone that are no `backup`, less those whose next hop does not answer;
    /// 2. all of them, less those;
    /// 3. as 1, and 4. as 2, whether next hops answer or not: what takes the way to so many may be the fault of this
    ///    host or its link.
    pub fn shares<'p>(&self, pool: &'p Pool) -> BackendShares<'p> {
        let said: Vec<BackendStatus> = self.of(pool).collect();
        let has_backup = pool.backends.iter().any(|backend| backend.backup);
        let has_lost = said.iter().any(is_lost);
        let views = strict_first(has_lost).flat_map(|without_lost| {
            strict_first(has_backup).map(move |without_backup| (without_lost, without_backup))
        });
        let mut shares = views.map(|view| divide(pool, &seen(pool, &said, view)));
        let enough = shares.find(|shares| !shares.below);
        let mut shares = enough.unwrap_or_else(|| divide(pool, &said));
        for (share, status) in shares.backends.iter_mut().zip(said) {
            share.status = status;
        }
        shares
    }
}

/// The ways to take something that `exists`: without it first.
fn strict_first(exists: bool) -> impl Iterator<Item = bool> {
    exists.then_some(true).into_iter().chain([false])
}

/// The status of the backends in a view of [`Layers::shares`].
fn seen(
    pool: &Pool,
    said: &[BackendStatus],
    (without_lost, without_backup): (bool, bool),
) -> Vec<BackendStatus> {
    let backends = pool.backends.iter().zip(said);
    let seen = backends.map(|(backend, said)| BackendStatus {
        verdict: match without_lost && is_lost(said) {
            true => HealthVerdict::Dead,
            false => said.verdict,
        },
        overridden: match without_backup && backend.backup {
            true => Some(Override::Drain),
            false => said.overridden,
        },
        ..*said
    });
    seen.collect()
}

/// Whether it would be up if its next hop answered.
fn is_lost(said: &BackendStatus) -> bool {
    said.is_silent && said.verdict == HealthVerdict::Up
}

/// The shares of a pool whose backends have this status, in the order of the file.
fn divide<'p>(pool: &'p Pool, said: &[BackendStatus]) -> BackendShares<'p> {
    let taken_part: Vec<&BackendStatus> = said.iter().filter(|said| !is_out(said)).collect();
    let up = taken_part
        .iter()
        .filter(|said| said.verdict == HealthVerdict::Up);
    let up = up.count();
    let asked = taken_part
        .iter()
        .filter(|said| said.verdict != HealthVerdict::Unknown)
        .count();
    let below = up == 0 || up * 100 < usize::from(pool.min_up) * asked;
    // A backend that was never checked may be what is missing.
    let is_known = asked == taken_part.len();
    let all = below && is_known && pool.below_min_up == BelowMinUp::All;
    let share = |backend: &Backend, said: &BackendStatus| {
        let counts = all || !below && said.verdict == HealthVerdict::Up;
        if is_out(said) || !counts {
            return 0;
        }
        let ramp = if all {
            WHOLE
        } else {
            ramp(said, pool.slow_start)
        };
        u32::from(weight(backend, said)) * ramp
    };
    let backends = pool.backends.iter().zip(said);
    let backends = backends.map(|(backend, said)| BackendShare {
        backend,
        status: *said,
        share: share(backend, said),
        whole: u32::from(weight(backend, said)) * WHOLE,
    });
    BackendShares {
        backends: backends.collect(),
        below,
    }
}

/// Whether the operator has taken it out.
const fn is_out(said: &BackendStatus) -> bool {
    matches!(said.overridden, Some(Override::Drain | Override::Disable))
}

const fn weight(backend: &Backend, said: &BackendStatus) -> u16 {
    match said.overridden {
        Some(Override::Weight { weight }) => weight,
        _ => backend.weight,
    }
}

/// How much of its share a backend has, in percent: after it came back it grows in steps.
fn ramp(said: &BackendStatus, slow_start: Duration) -> u32 {
    match said.back_for {
        Some(back_for) if back_for < slow_start && said.verdict == HealthVerdict::Up => {
            let percent = back_for.as_millis() * u128::from(WHOLE) / slow_start.as_millis();
            let percent = u32::try_from(percent).unwrap_or(WHOLE);
            (percent / RAMP_STEP + 1) * RAMP_STEP
        }
        _ => WHOLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    /// A pool of four, checked or not, with more of its keys.
    fn pool(checked: bool, change: impl FnOnce(&mut Pool)) -> Pool {
        let text = "
version: 1
networks: { mgmt: { role: mgmt, interface: eth1, prefixes: [10.0.0.0/24], snat: [10.0.0.9] } }
pools:
  p: { network: mgmt, backends: [\"10.0.0.1:1\", { address: \"10.0.0.2:1\", weight: 3 }, \"10.0.0.3:1\", \"10.0.0.4:1\"] }
";
        let mut pool = config::parse("f", text).unwrap().pools.remove(0);
        if checked {
            pool.health = Some(config::Health::tcp());
        }
        change(&mut pool);
        pool
    }

    fn layers(pool: &Pool, said: &[BackendStatus]) -> Layers {
        Layers([(pool.name.clone(), said.to_vec())].into())
    }

    fn verdicts(verdicts: [HealthVerdict; 4]) -> [BackendStatus; 4] {
        verdicts.map(|verdict| BackendStatus {
            verdict,
            ..BackendStatus::default()
        })
    }

    fn shares(pool: &Pool, said: &[BackendStatus]) -> (Vec<u32>, bool) {
        let layers = layers(pool, said);
        let shares = layers.shares(pool);
        (shares.numbers(), shares.below)
    }

    use HealthVerdict::{Dead, NotReady, Unknown, Up};

    #[test]
    fn without_checks_every_backend_has_its_weight() {
        let pool = pool(false, |_| {});
        assert_eq!(shares(&pool, &[]), (vec![100, 300, 100, 100], false));
        let said = verdicts([Dead; 4]);
        assert_eq!(shares(&pool, &said), (vec![100, 300, 100, 100], false));
    }

    #[test]
    fn only_who_is_up_gets_new_flows() {
        let pool = pool(true, |_| {});
        let said = verdicts([Up, NotReady, Dead, Unknown]);
        assert_eq!(shares(&pool, &said), (vec![100, 0, 0, 0], false));
        assert_eq!(
            shares(&pool, &[]),
            (vec![0; 4], true),
            "no backend was checked yet"
        );
    }

    #[test]
    fn an_override_is_stronger_than_the_checks() {
        let pool = pool(true, |_| {});
        let mut said = verdicts([Up; 4]);
        said[0].overridden = Some(Override::Drain);
        said[1].overridden = Some(Override::Weight { weight: 7 });
        said[2].overridden = Some(Override::Disable);
        assert_eq!(shares(&pool, &said), (vec![0, 700, 0, 100], false));
        said[1].verdict = Dead;
        assert_eq!(shares(&pool, &said), (vec![0, 0, 0, 100], false));
        said[3].overridden = Some(Override::Drain);
        assert_eq!(shares(&pool, &said), (vec![0; 4], true));
    }

    #[test]
    fn below_its_watermark_a_pool_refuses_or_takes_all() {
        let at = |min_up, below_min_up| {
            pool(true, |pool| {
                pool.min_up = min_up;
                pool.below_min_up = below_min_up;
            })
        };
        let half = verdicts([Up, Up, Dead, NotReady]);
        let whole = (vec![100, 300, 0, 0], false);
        for action in [BelowMinUp::All, BelowMinUp::Refuse] {
            assert_eq!(shares(&at(50, action), &half), whole);
        }
        assert_eq!(
            shares(&at(51, BelowMinUp::Refuse), &half),
            (vec![0; 4], true)
        );
        let all = (vec![100, 300, 100, 100], true);
        assert_eq!(shares(&at(51, BelowMinUp::All), &half), all);
        let none = verdicts([Dead, Dead, NotReady, Dead]);
        assert_eq!(shares(&at(0, BelowMinUp::All), &none), all);
        assert_eq!(
            shares(&at(0, BelowMinUp::Refuse), &none),
            (vec![0; 4], true)
        );
        let mut drained = half;
        drained[3].overridden = Some(Override::Drain);
        drained[2].overridden = Some(Override::Drain);
        let whole = (vec![100, 300, 0, 0], false);
        assert_eq!(
            shares(&at(100, BelowMinUp::Refuse), &drained),
            whole,
            "they do not count"
        );
    }

    /// Marks these backends as behind a next hop that does not answer.
    fn silent(said: [BackendStatus; 4], silent: &[usize]) -> [BackendStatus; 4] {
        let mut said = said;
        for index in silent {
            said[*index].is_silent = true;
        }
        said
    }

    #[test]
    fn a_backend_behind_a_silent_next_hop_gets_no_new_flows() {
        let unchecked = pool(false, |_| {});
        let said = silent(verdicts([Unknown; 4]), &[0, 2]);
        assert_eq!(shares(&unchecked, &said), (vec![0, 300, 0, 100], false));

        let checked = pool(true, |_| {});
        let said = silent(verdicts([Up, NotReady, Dead, Up]), &[0, 1, 2]);
        assert_eq!(shares(&checked, &said), (vec![0, 0, 0, 100], false));
        let layers = layers(&checked, &said);
        let status = layers.shares(&checked).backends[0].status;
        assert_eq!(status.verdict, Up, "that of its checks");
    }

    #[test]
    fn silence_that_would_leave_too_few_changes_nothing() {
        let all = (vec![100, 300, 100, 100], false);
        let unchecked = pool(false, |_| {});
        let said = silent(verdicts([Unknown; 4]), &[0, 1, 2, 3]);
        assert_eq!(shares(&unchecked, &said), all);

        for below_min_up in [BelowMinUp::Refuse, BelowMinUp::All] {
            let half = pool(true, |pool| {
                pool.min_up = 50;
                pool.below_min_up = below_min_up;
            });
            let said = silent(verdicts([Up; 4]), &[0, 1]);
            assert_eq!(shares(&half, &said), (vec![0, 0, 100, 100], false));
            let said = silent(verdicts([Up; 4]), &[0, 1, 2]);
            assert_eq!(shares(&half, &said), all, "one of four would be left");
            let said = silent(verdicts([Up, Up, Dead, Dead]), &[1]);
            let whole = (vec![100, 300, 0, 0], false);
            assert_eq!(shares(&half, &said), whole, "the verdicts hold");
        }

        let mut drained = silent(verdicts([Unknown; 4]), &[0, 1, 2]);
        drained[3].overridden = Some(Override::Drain);
        let rest = (vec![100, 300, 100, 0], false);
        assert_eq!(
            shares(&unchecked, &drained),
            rest,
            "none but the drained one answers"
        );
    }

    /// The last of four is a backup.
    fn with_backup(checked: bool, change: impl FnOnce(&mut Pool)) -> Pool {
        pool(checked, |pool| {
            pool.backends[3].backup = true;
            change(pool);
        })
    }

    #[test]
    fn a_backup_has_new_flows_as_long_as_too_few_others_are_up() {
        let pool = with_backup(true, |_| {});
        let alone = (vec![0, 0, 0, 100], false);
        let said = verdicts([Dead, NotReady, Dead, Up]);
        assert_eq!(shares(&pool, &said), alone);
        let said = verdicts([Dead, NotReady, Up, Up]);
        assert_eq!(shares(&pool, &said), (vec![0, 0, 100, 0], false));
        let mut said = verdicts([Up; 4]);
        said[..3]
            .iter_mut()
            .for_each(|said| said.overridden = Some(Override::Drain));
        assert_eq!(shares(&pool, &said), alone);
        said[3].overridden = Some(Override::Disable);
        assert_eq!(shares(&pool, &said), (vec![0; 4], true));

        let unchecked = with_backup(false, |_| {});
        assert_eq!(shares(&unchecked, &[]), (vec![100, 300, 100, 0], false));
    }

    #[test]
    fn a_backup_helps_out_below_min_up() {
        let pool = with_backup(true, |pool| pool.min_up = 50);
        let said = verdicts([Up, Dead, Dead, Up]);
        assert_eq!(shares(&pool, &said), (vec![100, 0, 0, 100], false));
        let said = verdicts([Up, Up, Dead, Up]);
        assert_eq!(shares(&pool, &said), (vec![100, 300, 0, 0], false));
        let said = verdicts([Dead, Dead, Dead, Up]);
        assert_eq!(shares(&pool, &said), (vec![0; 4], true), "one of four");
    }

    /// That it answers says that the way is no fault of this host.
    #[test]
    fn a_backup_that_answers_comes_before_others_that_do_not() {
        let pool = with_backup(false, |_| {});
        let said = silent(verdicts([Unknown; 4]), &[0, 1, 2]);
        assert_eq!(shares(&pool, &said), (vec![0, 0, 0, 100], false));
        let said = silent(verdicts([Unknown; 4]), &[0, 1, 2, 3]);
        assert_eq!(shares(&pool, &said), (vec![100, 300, 100, 0], false));
    }

    /// The first check of a backend that is silent has not ended yet.
    #[test]
    fn a_silent_backend_without_a_verdict_counts_for_nothing() {
        let pool = pool(true, |pool| pool.min_up = 60);
        let said = silent(verdicts([Up, Up, Unknown, Unknown]), &[2, 3]);
        assert_eq!(shares(&pool, &said), (vec![100, 300, 0, 0], false));
    }

    /// At a start backends have not been checked yet: that is no reason to send flows to all.
    #[test]
    fn unknown_is_not_down() {
        let pool = pool(true, |pool| pool.below_min_up = BelowMinUp::All);
        let said = verdicts([Dead, Dead, Unknown, Dead]);
        assert_eq!(shares(&pool, &said), (vec![0; 4], true));
    }

    /// A backend that is added to a pool has its first check still before it; the others go on.
    #[test]
    fn who_was_never_asked_does_not_count() {
        let pool = pool(true, |pool| pool.min_up = 60);
        let said = verdicts([Up, Up, Unknown, Unknown]);
        assert_eq!(shares(&pool, &said), (vec![100, 300, 0, 0], false));
        let said = verdicts([Up, Dead, Unknown, Unknown]);
        assert_eq!(
            shares(&pool, &said),
            (vec![0; 4], true),
            "half of those asked"
        );
    }

    #[test]
    fn who_comes_back_gets_more_and_more() {
        let pool = pool(true, |pool| pool.slow_start = Duration::from_secs(20));
        let mut said = verdicts([Up; 4]);
        for (ms, share) in [
            (0, 5),
            (999, 5),
            (1000, 10),
            (10_000, 55),
            (19_999, 100),
            (20_000, 100),
            (1 << 40, 100),
        ] {
            said[1].back_for = Some(Duration::from_millis(ms));
            let wanted = (vec![100, 3 * share, 100, 100], false);
            assert_eq!(shares(&pool, &said), wanted, "{ms} ms");
        }
    }
}
