//! Backends that come and go: FEATURES E7, RELIABILITY 5.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_tests::{product::lb::Lb, topology::Topology};

use crate::{
    flows::life::LIMIT,
    health::verdicts::{SOON, Site, lasts, wait_for},
};

/// E7, RELIABILITY 5: a backend that comes and goes all the time stays out after a while.
#[privileged_test]
fn e7_a_flapping_backend_is_damped() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let lb = Lb::start(&topology, &site.http(""))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    let until = Instant::now() + 3 * lasts();
    let mut turns = 0;
    while Instant::now() < until {
        for status in [500, 200] {
            site.health[1].answer(status);
            std::thread::sleep(Duration::from_millis(700));
            turns += 1;
        }
        assert_eq!(site.who(1)?.len(), 1);
    }
    let health = lb.health()?;
    println!("{turns} turns, {health:?}");
    ensure!(turns >= 16, "{turns} turns");
    ensure!((1..=6).contains(&health[1].transitions), "{health:?}");
    assert_eq!(health[0].transitions, 1, "{health:?}");
    Ok(())
}

/// E7: a backend that comes back has its share step by step.
#[privileged_test]
fn e7_a_backend_that_comes_back_starts_slowly() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let lb = Lb::start(&topology, &site.http("slow_start: 10s"))?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    assert_eq!(
        lb.health()?
            .iter()
            .map(|one| one.effective_weight)
            .collect::<Vec<_>>(),
        [1.0, 1.0]
    );
    site.health[1].answer(500);
    wait_for(&lb, &["up", "not_ready"], SOON)?;
    site.health[1].answer(200);
    wait_for(&lb, &["up", "up"], SOON)?;
    let back = Instant::now();
    let mut shares = Vec::new();
    while back.elapsed() < Duration::from_secs(11) {
        let before = back.elapsed();
        let share = lb.health()?[1].effective_weight;
        let (least, most) = (part(before), part(back.elapsed() + SLACK));
        ensure!(
            (least - 0.1..=most + 0.1).contains(&share),
            "{share} after {before:?}"
        );
        shares.push(share);
        std::thread::sleep(Duration::from_millis(250));
    }
    println!("shares: {shares:?}");
    ensure!(shares.is_sorted() && shares[0] <= 0.25, "{shares:?}");
    assert_eq!(shares.last(), Some(&1.0));
    Ok(())
}

/// Until a verdict is seen.
const SLACK: Duration = Duration::from_millis(500);

/// What a backend has of its share after so long, of ten seconds.
fn part(after: Duration) -> f64 {
    (after.as_secs_f64() / 10.0).min(1.0)
}
