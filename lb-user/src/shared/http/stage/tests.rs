use std::{
    cell::RefCell,
    net::Ipv4Addr,
    pin::{Pin, pin},
};

use tokio::time::{sleep, timeout};

use super::*;
use crate::shared::pending::{self, Everywhere};

const HEAD: Duration = Duration::from_millis(80);
const IDLE: Duration = Duration::from_millis(200);
const LEG: u32 = 7;
/// More than there is a place for.
const MANY: usize = 10_000;

#[tokio::test]
async fn each_stage_has_its_time() {
    let stages = Stages::default();
    let start = Instant::now();
    assert_eq!(stages.lapse(HEAD, None).await, Lapse::Silent);
    assert!((HEAD..IDLE).contains(&start.elapsed()));
    stages.read(1);
    assert_eq!(stages.lapse(HEAD, None).await, Lapse::Head);
    assert!(stages.is_first());
    let turn = stages.asked();
    assert!(!stages.is_first());
    drop(turn);
    stages.flushed();
    let start = Instant::now();
    assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Idle);
    assert!(start.elapsed() >= IDLE);
    stages.read(1);
    assert_eq!(stages.lapse(HEAD, Some(KEEP)).await, Lapse::Head);
}

/// What a leg works at has the time of the leg.
#[tokio::test]
async fn a_request_has_its_time_while_no_leg_serves_it() {
    let stages = Stages::default();
    let _turn = stages.asked();
    assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Answer);
    stages.served_by(LEG);
    stages.left_by(LEG + 1);
    assert!(stages.is_served_by(LEG));
    let served = timeout(2 * IDLE, stages.lapse(HEAD, Some(HEAD))).await;
    assert!(served.is_err());
    stages.left_by(LEG);
    let start = Instant::now();
    assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Answer);
    assert!(start.elapsed() >= IDLE);
}

#[tokio::test]
async fn an_answer_is_not_over_until_it_has_been_written() {
    let stages = Stages::default();
    drop(stages.asked());
    stages.read(1);
    assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Answer);
    stages.written(1);
    let start = Instant::now();
    assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Answer);
    assert!(start.elapsed() >= IDLE);
    stages.flushed();
    assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Idle);
}

/// What hyper itself says to a head that is none.
#[tokio::test]
async fn a_head_that_is_answered_does_not_go_on() {
    let stages = Stages::default();
    stages.read(1);
    stages.written(1);
    assert_eq!(stages.lapse(HEAD, Some(IDLE)).await, Lapse::Answer);
}

#[tokio::test]
async fn each_byte_counts_for_who_waits_until_it_is_quiet() {
    let stages = Stages::default();
    let _turn = stages.asked();
    let start = Instant::now();
    let bytes = async {
        sleep(HEAD).await;
        stages.written(1);
        sleep(HEAD).await;
        stages.read(1);
    };
    tokio::join!(stages.quiet(IDLE), bytes);
    assert!(start.elapsed() >= 2 * HEAD + IDLE);
}

/// Whether it is told to go now, and for what.
async fn told(recycled: &mut Pin<&mut impl Future<Output = Wait>>) -> Option<Wait> {
    timeout(Duration::ZERO, recycled).await.ok()
}

#[tokio::test]
async fn a_client_has_a_place_for_what_it_makes_wait() {
    let (heads, kept) = (Everywhere::up_to(9).of("a"), Everywhere::up_to(9).of("a"));
    let source = Ipv4Addr::LOCALHOST;
    let places = RefCell::new(Vec::new());
    let admit = |wait| {
        places.borrow_mut().push(wait);
        match wait {
            Wait::Head => heads.admit(source),
            Wait::Next => kept.admit(source),
        }
    };
    let flood = |pending: &pending::Pending| {
        let tickets = (0..MANY).map(|_| pending.admit(source));
        drop(tickets.collect::<Vec<Ticket>>());
    };
    let stages = Stages::default();
    let mut recycled = pin!(stages.recycled(admit));
    assert_eq!(told(&mut recycled).await, None);
    stages.read(1);
    assert_eq!(told(&mut recycled).await, None);
    // A request that is served has no place, whoever comes.
    let turn = stages.asked();
    assert_eq!(told(&mut recycled).await, None);
    flood(&heads);
    flood(&kept);
    assert_eq!(told(&mut recycled).await, None);
    drop(turn);
    assert_eq!(told(&mut recycled).await, None);
    flood(&kept);
    stages.flushed();
    assert_eq!(told(&mut recycled).await, None);
    // Another one's heads are nothing to who waits for nothing.
    flood(&heads);
    assert_eq!(told(&mut recycled).await, None);
    // Who goes on is not sent away.
    flood(&kept);
    stages.read(1);
    assert_eq!(told(&mut recycled).await, None);
    assert_eq!(*places.borrow(), [Wait::Head, Wait::Next, Wait::Head]);
    flood(&kept);
    assert_eq!(told(&mut recycled).await, None);
    flood(&heads);
    assert_eq!(told(&mut recycled).await, Some(Wait::Head));
}
