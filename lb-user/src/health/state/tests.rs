use HealthVerdict::{Dead, NotReady, Unknown, Up};

use super::*;
use crate::config::{Check, OnDead};

fn health() -> Health {
    Health {
        check: Check::Tcp,
        port: None,
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(3),
        rise: 2,
        fall: 3,
        fast_interval: Duration::from_secs(1),
        flap_hold: Duration::from_secs(30),
        on_dead: OnDead::None,
    }
}

/// A backend whose checks come one a second.
struct Story {
    course: Course,
    start: Instant,
    /// Seconds since the start.
    at: u64,
}

impl Story {
    fn from(health: &Health, saved: &Standing) -> Self {
        let start = Instant::now();
        let course = Course::new(health, saved, start);
        Self {
            course,
            start,
            at: 0,
        }
    }

    fn new() -> Self {
        Self::from(&health(), &Standing::default())
    }

    /// One more check; the verdict after it.
    fn says(&mut self, said: HealthVerdict) -> HealthVerdict {
        self.at += 1;
        let before = self.verdict();
        let now = self.start + Duration::from_secs(self.at);
        let changed = self.course.note(said, now);
        assert_eq!(changed, self.verdict() != before);
        self.verdict()
    }

    fn verdict(&self) -> HealthVerdict {
        self.course.standing().verdict
    }

    /// These checks one after the other; the verdicts after each.
    fn all(&mut self, said: &[HealthVerdict]) -> Vec<HealthVerdict> {
        said.iter().map(|&said| self.says(said)).collect()
    }

    fn against(&self) -> u32 {
        self.course.standing().against
    }

    fn flaps(&self) -> u32 {
        self.course.standing().flaps
    }

    /// From `Up` down by three checks; then good ones until it is up. How many seconds of good checks
    /// that took.
    fn flap(&mut self) -> u64 {
        assert_eq!(self.all(&[Dead; 3]), [Up, Up, Dead]);
        let first = self.at + 1;
        while self.says(Up) != Up {}
        self.at - first
    }
}

#[test]
fn the_first_check_decides_alone() {
    for said in [Up, NotReady, Dead] {
        let mut story = Story::new();
        assert_eq!(story.verdict(), Unknown);
        assert_eq!(story.says(said), said);
        assert_eq!((story.against(), story.flaps()), (0, 0));
    }
}

#[test]
fn it_goes_after_fall_bad_ones_in_a_row() {
    let mut story = Story::new();
    let said = [Up, Dead, Dead, Up, Dead, Dead, Dead];
    assert_eq!(story.all(&said), [Up, Up, Up, Up, Up, Up, Dead]);
    assert_eq!((story.against(), story.flaps()), (0, 1));
}

#[test]
fn the_kind_of_the_last_bad_one_decides() {
    for (last, said) in [(NotReady, [Dead, Dead]), (Dead, [NotReady, NotReady])] {
        let mut story = Story::new();
        story.says(Up);
        assert_eq!(story.all(&said), [Up, Up]);
        assert_eq!(story.against(), 2);
        assert_eq!(story.says(last), last);
    }
}

#[test]
fn it_comes_back_after_rise_good_ones_in_a_row() {
    for down in [NotReady, Dead] {
        let mut story = Story::new();
        let said = [down, Up, down, Up, Up];
        assert_eq!(story.all(&said), [down, down, down, down, Up]);
        assert_eq!((story.against(), story.flaps()), (0, 0));
    }
}

#[test]
fn not_ready_and_dead_change_places_after_fall_in_a_row() {
    for (one, other) in [(NotReady, Dead), (Dead, NotReady)] {
        let mut story = Story::new();
        story.says(one);
        assert_eq!(story.all(&[other, other, one]), [one; 3]);
        assert_eq!(story.all(&[other, other, other]), [one, one, other]);
        assert_eq!(story.flaps(), 0, "it was never up");
    }
}

/// A good one between two of another kind, and the other way round, begin a new row.
#[test]
fn what_is_down_counts_one_kind_at_a_time() {
    let mut story = Story::new();
    story.says(NotReady);
    let said = [Dead, Dead, Up, Dead, Dead, Up];
    assert_eq!(story.all(&said), [NotReady; 6]);
    assert_eq!(story.against(), 1);
    assert_eq!(story.says(Up), Up);
}

#[test]
fn rise_and_fall_of_one_need_one() {
    let health = Health {
        rise: 1,
        fall: 1,
        flap_hold: Duration::ZERO,
        ..health()
    };
    let mut story = Story::from(&health, &Standing::default());
    let said = [Dead, Up, NotReady, Dead, Up, Dead, Up, Dead, Up, Dead, Up];
    assert_eq!(story.all(&said), said);
}

/// The third departure within five minutes, and each one after it, is damped, twice as long from one
/// to the next and never longer than five minutes.
#[test]
fn who_comes_and_goes_is_held_back_longer_and_longer() {
    let mut story = Story::new();
    story.says(Up);
    let waited: Vec<u64> = (0..8).map(|_| story.flap()).collect();
    assert_eq!(waited, [1, 1, 30, 60, 120, 240, 300, 300]);
    assert_eq!(story.flaps(), 8);
}

#[test]
fn a_bad_check_begins_the_hold_anew() {
    let mut story = Story::new();
    story.says(Up);
    story.flap();
    story.flap();
    assert_eq!(story.all(&[Dead; 3]), [Up, Up, Dead]);
    assert_eq!(story.all(&[Up; 29]), [Dead; 29]);
    assert_eq!(story.says(NotReady), Dead);
    assert_eq!(story.all(&[Up; 30]), [Dead; 30]);
    assert_eq!(story.says(Up), Up);
}

#[test]
fn departures_far_apart_are_no_flapping() {
    let mut story = Story::new();
    story.says(Up);
    for _ in 0..5 {
        assert_eq!(story.flap(), 1);
        // Down for the rest of the time: only time up decays, but five minutes are five minutes.
        assert_eq!(story.all(&[Dead; 3]), [Up, Up, Dead]);
        story.at += 300;
        assert_eq!(story.all(&[Up; 2]), [Dead, Up]);
        assert_eq!(story.flaps(), 2);
        story.at += 300;
        story.says(Up);
    }
}

#[test]
fn the_third_departure_counts_within_five_minutes_only() {
    // The first departure is 299 s, or 300 s, before the third.
    for (pause, wait) in [(289, 30), (290, 1)] {
        let mut story = Story::new();
        story.says(Up);
        let first = story.at + 3;
        story.flap();
        story.flap();
        story.at += pause;
        let third = story.at + 3;
        assert_eq!(story.flap(), wait, "{} s", third - first);
        assert_eq!(story.flaps(), if wait == 1 { 2 } else { 3 });
    }
}

#[test]
fn one_flap_is_forgotten_for_each_five_minutes_up() {
    let mut story = Story::new();
    story.says(Up);
    for _ in 0..5 {
        story.flap();
    }
    assert_eq!(story.flaps(), 5);
    story.at += 298;
    story.says(Up);
    assert_eq!(story.flaps(), 5);
    story.says(Up);
    assert_eq!(story.flaps(), 4);
    // The next departure is the fifth again.
    assert_eq!(story.flap(), 120);
    story.at += 3600;
    story.says(Up);
    assert_eq!(story.flaps(), 0);
    assert_eq!(story.flap(), 1);
}

#[test]
fn time_down_is_not_time_up() {
    let mut story = Story::new();
    story.says(Up);
    for _ in 0..4 {
        story.flap();
    }
    assert_eq!(story.all(&[Dead; 3]), [Up, Up, Dead]);
    story.at += 3600;
    assert_eq!(story.says(Dead), Dead);
    assert_eq!(story.flaps(), 5);
}

#[test]
fn without_a_hold_nobody_is_held() {
    let health = Health {
        flap_hold: Duration::ZERO,
        ..health()
    };
    let mut story = Story::from(&health, &Standing::default());
    story.says(Up);
    let waited: Vec<u64> = (0..6).map(|_| story.flap()).collect();
    assert_eq!(waited, [1; 6]);
}

#[test]
fn a_hold_longer_than_five_minutes_stays_as_it_is() {
    let health = Health {
        flap_hold: Duration::from_secs(400),
        ..health()
    };
    let mut story = Story::from(&health, &Standing::default());
    story.says(Up);
    let waited: Vec<u64> = (0..4).map(|_| story.flap()).collect();
    assert_eq!(waited, [1, 1, 400, 400]);
}

/// The doubling has an end for every number of flaps.
#[test]
fn any_number_of_flaps_has_a_hold() {
    let saved = Standing {
        verdict: Dead,
        against: 0,
        flaps: u32::MAX,
        good_ms: 0,
    };
    let mut story = Story::from(&health(), &saved);
    assert_eq!(story.all(&[Up; 300]), [Dead; 300]);
    assert_eq!(story.says(Up), Up);
    assert_eq!(story.all(&[Dead; 3]), [Up, Up, Dead]);
    assert_eq!(story.flaps(), u32::MAX);
}

#[test]
fn what_was_saved_goes_on() {
    let saved = |verdict, against, flaps| Standing {
        verdict,
        against,
        flaps,
        good_ms: 0,
    };
    let mut story = Story::from(&health(), &saved(Up, 2, 0));
    assert_eq!(story.verdict(), Up);
    assert_eq!(story.says(Dead), Dead);
    // Whether those against a backend that is down were good or bad is not known any more.
    let mut story = Story::from(&health(), &saved(Dead, 1, 0));
    assert_eq!(story.all(&[Up, Up]), [Dead, Up]);
    // Flaps were lately, whenever that was.
    let mut story = Story::from(&health(), &saved(Up, 0, 2));
    assert_eq!(story.flap(), 30);
    let mut story = Story::from(&health(), &saved(Dead, 0, 4));
    assert_eq!(story.all(&[Up; 60]), [Dead; 60]);
    assert_eq!(story.says(Up), Up);
}

#[test]
fn the_next_check_is_due_an_interval_after_the_start_of_this_one() {
    let mut story = Story::new();
    let second = Duration::from_secs(1);
    let start = story.start;
    let due = |story: &Story, chance| story.course.next(start, start + second / 2, chance) - start;
    let close = |found: Duration, wanted: f64| {
        assert!(
            (found.as_secs_f64() - wanted).abs() < 1e-6,
            "{found:?}, {wanted}"
        );
    };
    story.says(Up);
    close(due(&story, 0.5), 5.0);
    close(due(&story, 0.0), 4.5);
    close(due(&story, 0.999_999_999), 5.5);
    story.says(Dead);
    close(due(&story, 0.5), 1.0);
    close(due(&story, 0.0), 0.9);
    story.says(Up);
    close(due(&story, 0.5), 5.0);
    // A check that takes longer than the interval is followed by the next at once.
    assert_eq!(
        story.course.next(start, start + 7 * second, 0.5),
        start + 7 * second
    );
}

#[test]
fn first_checks_are_spread_over_a_second_at_most() {
    let first = |interval, chance| {
        let interval = Duration::from_millis(interval);
        let health = Health {
            interval,
            ..health()
        };
        let now = Instant::now();
        let course = Course::new(&health, &Standing::default(), now);
        course.first(now, chance) - now
    };
    assert_eq!(first(5000, 0.0), Duration::ZERO);
    assert_eq!(first(5000, 0.75), Duration::from_millis(750));
    assert_eq!(first(200, 0.75), Duration::from_millis(150));
}

/// A backend that is held back goes on with its time in the next process, as long as its checks are good.
#[test]
fn a_hold_goes_on_in_the_next_process() {
    let flapping = Standing {
        verdict: Dead,
        flaps: 3,
        ..Standing::default()
    };
    let mut story = Story::from(&health(), &flapping);
    assert_eq!(story.all(&[Up; 20]), [Dead; 20]);
    let saved = story.course.standing().clone();
    let mut next = Story::from(&health(), &saved);
    assert_eq!(next.all(&[Up; 10]), [Dead; 10]);
    assert_eq!(next.says(Up), Up, "30 s in both");
    // What was not good in between begins it anew.
    let mut next = Story::from(&health(), &saved);
    assert_eq!(next.says(Dead), Dead);
    assert_eq!(next.all(&[Up; 30]), [Dead; 30]);
    assert_eq!(next.says(Up), Up);
}

#[test]
fn a_backend_is_about_to_die_when_one_more_silence_is_a_verdict() {
    let now = Instant::now();
    let begin = |saved: &Standing| Course::new(&health(), saved, now);
    let mut course = begin(&Standing::presumed_up(3));
    assert!(course.is_about_to_die(), "its first check decides");
    course.note(Up, now);
    for wanted in [false, false, true] {
        assert_eq!(course.is_about_to_die(), wanted);
        course.note(NotReady, now);
    }
    assert_eq!(course.standing().verdict, NotReady);
    // Only silences in a row count from here.
    for wanted in [false, false, true] {
        assert_eq!(course.is_about_to_die(), wanted);
        course.note(Dead, now);
    }
    assert_eq!(course.standing().verdict, Dead);
    assert!(!course.is_about_to_die());
    let unknown = begin(&Standing::default());
    assert!(!unknown.is_about_to_die());
}
