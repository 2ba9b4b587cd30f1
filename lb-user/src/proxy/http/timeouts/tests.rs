use std::{
    cell::RefCell,
    net::Ipv4Addr,
    pin::{Pin, pin},
};

use tokio::time::{sleep, timeout};

use super::*;
use crate::proxy::admission::{self, Admission};

const HEAD: Duration = Duration::from_millis(80);
const IDLE: Duration = Duration::from_millis(200);
const LEG: u32 = 7;
/// More than there is a place for.
const MANY: usize = 10_000;

/// How long a body, and an answer, may take.
const BODY: Duration = Duration::from_millis(120);
const RESPONSE: Duration = Duration::from_millis(300);

fn times(idle: Option<Duration>) -> HttpTimeouts {
    HttpTimeouts {
        head: HEAD,
        body: BODY,
        response: RESPONSE,
        idle,
    }
}

#[tokio::test]
async fn each_stage_has_its_time() {
    let stages = Stages::default();
    let start = Instant::now();
    assert_eq!(stages.lapse(times(None)).await, Lapse::Silent);
    assert!((HEAD..IDLE).contains(&start.elapsed()));
    stages.read(b"x");
    assert_eq!(stages.lapse(times(None)).await, Lapse::Head);
    assert!(stages.is_first());
    let turn = stages.asked();
    assert!(!stages.is_first());
    drop(turn);
    stages.flushed();
    let start = Instant::now();
    assert_eq!(stages.lapse(times(Some(IDLE))).await, Lapse::Idle);
    assert!(start.elapsed() >= IDLE);
    stages.read(b"x");
    assert_eq!(stages.lapse(times(Some(KEEP))).await, Lapse::Head);
}

/// That of the answer, which is the leg's once it has begun.
#[tokio::test]
async fn a_request_has_its_time() {
    let stages = Stages::default();
    let _turn = stages.asked();
    for leg in [None, Some(LEG)] {
        if let Some(leg) = leg {
            stages.served_by(leg);
        }
        let start = Instant::now();
        // Each byte counts.
        let bytes = async {
            sleep(BODY).await;
            stages.read(b"x");
            sleep(BODY).await;
            stages.sent_on();
        };
        let (lapse, ()) = tokio::join!(stages.lapse(times(Some(IDLE))), bytes);
        assert_eq!(lapse, Lapse::Response);
        assert!(start.elapsed() >= 2 * BODY + RESPONSE);
        stages.read(b"x");
    }
    stages.answered();
    stages.left_by(LEG + 1);
    assert!(stages.is_served_by(LEG));
    let served = timeout(2 * RESPONSE, stages.lapse(times(Some(HEAD)))).await;
    assert!(served.is_err());
    stages.left_by(LEG);
    let start = Instant::now();
    assert_eq!(stages.lapse(times(Some(IDLE))).await, Lapse::Answer);
    assert!((IDLE..RESPONSE).contains(&start.elapsed()));
}

#[tokio::test]
async fn a_body_has_its_time_from_one_piece_to_the_next() {
    let stages = Stages::default();
    let _turn = stages.asked();
    stages.served_by(LEG);
    let start = Instant::now();
    let pieces = async {
        for _ in 0..3 {
            stages.waits_for_body(true);
            sleep(BODY / 2).await;
            stages.waits_for_body(true);
            stages.waits_for_body(false);
        }
        stages.waits_for_body(true);
    };
    let (lapse, ()) = tokio::join!(stages.lapse(times(None)), pieces);
    assert_eq!(lapse, Lapse::Body(false));
    let took = start.elapsed();
    assert!(took >= BODY / 2 * 3 + BODY, "{took:?}");
    // The client may have its answer before its body is whole.
    stages.answered();
    assert_eq!(stages.lapse(times(None)).await, Lapse::Body(true));
    // The next request owes nothing yet.
    drop(stages.asked());
    stages.flushed();
    assert_eq!(stages.lapse(times(Some(IDLE))).await, Lapse::Idle);
}

/// A backend that waits for the client's bytes is not the one that takes too long.
#[tokio::test]
async fn a_backend_has_its_time_once_it_has_all_of_a_request() {
    let stages = Stages::default();
    let _turn = stages.asked();
    stages.served_by(LEG);
    let times = HttpTimeouts {
        response: BODY,
        body: RESPONSE,
        ..times(None)
    };
    stages.waits_for_body(true);
    let start = Instant::now();
    assert_eq!(stages.lapse(times).await, Lapse::Body(false));
    assert!(start.elapsed() >= RESPONSE);
    stages.waits_for_body(false);
    stages.read(b"x");
    assert_eq!(stages.lapse(times).await, Lapse::Response);
}

#[tokio::test]
async fn an_answer_has_its_time_while_its_client_does_not_read() {
    let stages = Stages::default();
    let _turn = stages.asked();
    stages.served_by(LEG);
    stages.answered();
    stages.blocked();
    let start = Instant::now();
    let reads = async {
        sleep(RESPONSE / 2).await;
        stages.blocked();
        stages.written(1);
        stages.blocked();
    };
    let (lapse, ()) = tokio::join!(stages.lapse(times(None)), reads);
    assert_eq!(lapse, Lapse::Answer);
    assert!(start.elapsed() >= RESPONSE * 3 / 2);
}

#[tokio::test]
async fn an_answer_is_not_over_until_it_has_been_written() {
    let stages = Stages::default();
    drop(stages.asked());
    stages.read(b"x");
    assert_eq!(stages.lapse(times(Some(IDLE))).await, Lapse::Answer);
    stages.written(1);
    let start = Instant::now();
    assert_eq!(stages.lapse(times(Some(IDLE))).await, Lapse::Answer);
    assert!(start.elapsed() >= IDLE);
    stages.flushed();
    assert_eq!(stages.lapse(times(Some(IDLE))).await, Lapse::Idle);
}

/// hyper's own answer to a head that is none.
#[tokio::test]
async fn a_head_that_is_answered_does_not_go_on() {
    let stages = Stages::default();
    stages.read(b"x");
    stages.written(1);
    assert_eq!(stages.lapse(times(Some(IDLE))).await, Lapse::Answer);
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
        stages.read(b"x");
    };
    tokio::join!(stages.quiet(IDLE), bytes);
    assert!(start.elapsed() >= 2 * HEAD + IDLE);
}

/// Whether it is evicted now, and for what.
async fn told(recycled: &mut Pin<&mut impl Future<Output = Wait>>) -> Option<Wait> {
    timeout(Duration::ZERO, recycled).await.ok()
}

#[tokio::test]
async fn a_client_has_a_place_for_what_it_makes_wait() {
    let (heads, kept) = (Admission::up_to(9).of("a"), Admission::up_to(9).of("a"));
    let source = Ipv4Addr::LOCALHOST;
    let places = RefCell::new(Vec::new());
    let admit = |wait| {
        places.borrow_mut().push(wait);
        match wait {
            Wait::Head => heads.admit(source),
            Wait::Next => kept.admit(source),
        }
    };
    let flood = |pending: &admission::NetworkAdmission| {
        let tickets = (0..MANY).map(|_| pending.admit(source));
        drop(tickets.collect::<Vec<Permit>>());
    };
    let stages = Stages::default();
    let mut recycled = pin!(stages.recycled(admit));
    assert_eq!(told(&mut recycled).await, None);
    stages.read(b"x");
    assert_eq!(told(&mut recycled).await, None);
    // A request that is served has no place, whichever client comes.
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
    // Another one's heads do not evict a client that waits for its next request.
    flood(&heads);
    assert_eq!(told(&mut recycled).await, None);
    // A client that goes on is not evicted.
    flood(&kept);
    stages.read(b"x");
    assert_eq!(told(&mut recycled).await, None);
    assert_eq!(*places.borrow(), [Wait::Head, Wait::Next, Wait::Head]);
    flood(&kept);
    assert_eq!(told(&mut recycled).await, None);
    flood(&heads);
    assert_eq!(told(&mut recycled).await, Some(Wait::Head));
}
