use std::time::Duration;

use super::*;

use HealthVerdict::{Dead, NotReady, Unknown, Up};

const POOL: &str = "p";
/// How long a change is held at most, and how long others have to follow one that is back.
const HOLD: Duration = Duration::from_secs(10);

/// A pool, its verdicts, and what the clock shows.
struct Pool {
    services: ServiceVerdicts,
    statuses: Vec<CheckedStatus>,
    now: Instant,
}

impl Pool {
    /// With so many backends that are up, whose checks began a second ago.
    fn new(backends: usize) -> Self {
        let now = Instant::now() + Duration::from_secs(60);
        let status = |index: usize| CheckedStatus {
            name: format!("p/{index}@mgmt/10.0.0.{index}"),
            backend: index.to_string(),
            verdict: Up,
            answers: true,
            good_from: now.checked_sub(Duration::from_secs(1)),
            words: "200 OK".to_owned(),
        };
        Self {
            services: ServiceVerdicts::default(),
            statuses: (0..backends).map(status).collect(),
            now,
        }
    }

    /// A second later the check of a backend ends with another verdict; the notices of it.
    fn turn(&mut self, index: usize, to: HealthVerdict, answers: bool) -> Vec<Notice> {
        self.now += Duration::from_secs(1);
        let status = &mut self.statuses[index];
        let words = match (to, answers) {
            (Up, _) => "200 OK",
            (NotReady, _) => "503",
            (_, true) => "refused",
            (_, false) => "no answer",
        };
        let change = VerdictChange {
            backend: status.name.clone(),
            from: status.verdict,
            to,
            words: words.to_owned(),
        };
        status.verdict = to;
        status.answers = answers;
        status.words = words.to_owned();
        status.good_from = (to == Up).then_some(self.now);
        let failing = Failing {
            since: self.now,
            until: self.now + HOLD,
        };
        let failing = (to != Up && answers).then_some(failing);
        let mut notices = self.services.note(POOL, change, failing);
        notices.extend(self.settle());
        notices
    }

    fn settle(&mut self) -> Vec<Notice> {
        let until = self.now + HOLD;
        self.services.settle(POOL, &self.statuses, until, self.now)
    }

    /// A second later a check of a backend is good again.
    fn check(&mut self, index: usize) -> Vec<Notice> {
        self.now += Duration::from_secs(1);
        self.statuses[index].good_from = Some(self.now);
        self.settle()
    }
}

/// Each notice in a line.
fn lines(notices: &[Notice]) -> Vec<String> {
    let lines = notices.iter().map(|notice| match notice {
        Notice::Backend(VerdictChange {
            backend,
            from,
            to,
            words,
        }) => {
            let (name, _) = backend.split_once('@').unwrap();
            format!("{name}: {from} -> {to}: {words}")
        }
        Notice::Down {
            answering,
            backends,
            words,
        } => format!("down: {answering}/{backends}: {words}"),
        Notice::Up { backend, words } => format!("up: {backend}: {words}"),
    });
    lines.collect()
}

const NONE: [&str; 0] = [];

#[test]
fn backends_that_fail_together_and_answer_are_one_service() {
    for (to, words) in [(Dead, "refused"), (NotReady, "503")] {
        let mut pool = Pool::new(4);
        for index in [2, 0, 3] {
            assert_eq!(lines(&pool.turn(index, to, true)), NONE);
            assert!(pool.services.is_open(POOL) && !pool.services.is_down(POOL));
        }
        let wanted = format!("down: 4/4: {words}");
        assert_eq!(lines(&pool.turn(1, to, true)), [wanted]);
        assert!(pool.services.is_down(POOL) && !pool.services.is_open(POOL));
        assert_eq!(pool.services.down(), [POOL.to_owned()].into());
        // What they answer meanwhile makes no difference.
        assert_eq!(lines(&pool.turn(2, NotReady, true)), NONE);

        assert_eq!(lines(&pool.turn(3, Up, true)), ["up: 3: 200 OK"]);
        for index in [0, 1, 2] {
            assert_eq!(lines(&pool.turn(index, Up, true)), NONE);
        }
        assert!(pool.services.pools().is_empty());
    }
}

#[test]
fn one_that_fails_alone_is_named_once_another_one_serves() {
    let mut pool = Pool::new(4);
    assert_eq!(lines(&pool.turn(1, Dead, true)), NONE);
    assert_eq!(lines(&pool.check(1)), NONE, "its own check shows nothing");
    assert_eq!(lines(&pool.check(2)), ["p/1: up -> dead: refused"]);
    assert!(pool.services.pools().is_empty());
    // It has its own notice when it is back.
    assert_eq!(lines(&pool.turn(1, Up, true)), ["p/1: dead -> up: 200 OK"]);
}

#[test]
fn one_that_does_not_answer_is_named_at_once() {
    let mut pool = Pool::new(3);
    let lost = "p/0: up -> dead: no answer";
    assert_eq!(lines(&pool.turn(0, Dead, false)), [lost]);
    // The service may be down beside a node that is.
    assert_eq!(lines(&pool.turn(1, Dead, true)), NONE);
    let down = "down: 2/3: refused";
    assert_eq!(lines(&pool.turn(2, Dead, true)), [down]);
    assert_eq!(lines(&pool.turn(1, Up, true)), ["up: 1: 200 OK"]);
    // What was known of it is known.
    pool.now += HOLD;
    let wanted = ["p/0: up -> dead: no answer", "p/2: up -> dead: refused"];
    assert_eq!(lines(&pool.settle()), wanted);
}

#[test]
fn all_that_do_not_answer_are_no_service() {
    let mut pool = Pool::new(2);
    for index in [0, 1] {
        let wanted = format!("p/{index}: up -> dead: no answer");
        assert_eq!(lines(&pool.turn(index, Dead, false)), [wanted]);
    }
    // Nor is the only one that is left.
    let mut pool = Pool::new(2);
    pool.turn(0, Dead, false);
    let wanted = "p/1: up -> dead: refused";
    assert_eq!(lines(&pool.turn(1, Dead, true)), [wanted]);
    assert!(!pool.services.is_down(POOL));
}

#[test]
fn a_notice_waits_no_longer_than_the_checks_of_the_others() {
    let mut pool = Pool::new(2);
    assert_eq!(lines(&pool.turn(0, Dead, true)), NONE);
    pool.now += HOLD;
    assert_eq!(lines(&pool.settle()), ["p/0: up -> dead: refused"]);
}

#[test]
fn one_that_changes_again_meanwhile_loses_no_notice() {
    let mut pool = Pool::new(3);
    assert_eq!(lines(&pool.turn(0, NotReady, true)), NONE);
    assert_eq!(lines(&pool.turn(0, Dead, true)), NONE);
    assert_eq!(lines(&pool.check(1)), ["p/0: up -> dead: refused"]);

    let mut pool = Pool::new(3);
    assert_eq!(lines(&pool.turn(0, Dead, true)), NONE);
    let wanted = ["p/0: up -> dead: refused", "p/0: dead -> up: 200 OK"];
    assert_eq!(lines(&pool.turn(0, Up, true)), wanted);

    let mut pool = Pool::new(3);
    assert_eq!(lines(&pool.turn(0, NotReady, true)), NONE);
    let wanted = [
        "p/0: up -> not ready: 503",
        "p/0: not ready -> dead: no answer",
    ];
    assert_eq!(lines(&pool.turn(0, Dead, false)), wanted);
}

#[test]
fn a_backend_that_does_not_follow_its_service_is_named() {
    let mut pool = Pool::new(3);
    for index in [0, 1, 2] {
        pool.turn(index, Dead, true);
    }
    assert_eq!(lines(&pool.turn(0, Up, true)), ["up: 0: 200 OK"]);
    assert_eq!(lines(&pool.check(0)), NONE, "that it is back is known");
    assert_eq!(lines(&pool.turn(1, Up, true)), NONE);
    pool.now += HOLD;
    assert_eq!(lines(&pool.settle()), ["p/2: up -> dead: refused"]);
    assert_eq!(lines(&pool.turn(2, Up, true)), ["p/2: dead -> up: 200 OK"]);
}

#[test]
fn a_service_that_goes_down_again_is_named_again() {
    let mut pool = Pool::new(3);
    for index in [0, 1, 2] {
        pool.turn(index, Dead, true);
    }
    pool.turn(0, Up, true);
    assert_eq!(lines(&pool.turn(0, Dead, true)), ["down: 3/3: refused"]);
    assert_eq!(lines(&pool.turn(2, Up, true)), ["up: 2: 200 OK"]);
}

#[test]
fn first_checks_that_all_fail_are_a_service_and_one_beside_others_is_not() {
    let mut pool = Pool::new(3);
    for status in &mut pool.statuses {
        (status.verdict, status.good_from) = (Unknown, None);
    }
    assert_eq!(lines(&pool.turn(0, Dead, true)), NONE);
    assert_eq!(lines(&pool.turn(1, Dead, true)), NONE);
    assert_eq!(lines(&pool.turn(2, Dead, true)), ["down: 3/3: refused"]);

    let mut pool = Pool::new(2);
    pool.statuses[1].verdict = Unknown;
    assert_eq!(
        lines(&pool.turn(1, Dead, true)),
        ["p/1: unknown -> dead: refused"]
    );
}

#[test]
fn the_next_process_knows_that_a_service_is_down() {
    let mut pool = Pool::new(3);
    for index in [0, 1, 2] {
        pool.turn(index, Dead, true);
    }
    pool.services = ServiceVerdicts::adopt(&pool.services.down());
    assert!(pool.services.is_down(POOL));
    assert_eq!(lines(&pool.settle()), NONE);
    assert_eq!(lines(&pool.turn(1, Up, true)), ["up: 1: 200 OK"]);
    assert_eq!(lines(&pool.turn(0, Up, true)), NONE);
}

#[test]
fn a_backend_that_is_configured_no_more_has_no_notice() {
    let mut pool = Pool::new(3);
    pool.turn(0, Dead, true);
    pool.statuses.remove(0);
    assert_eq!(lines(&pool.check(1)), NONE);
    assert!(pool.services.pools().is_empty());
}
