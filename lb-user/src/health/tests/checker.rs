use std::net::SocketAddr;

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, unbounded_channel},
    },
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    certificate::Certificates,
    server::{closed_port, listen, to_end},
    *,
};
use crate::{
    health::{Checker, Commons, HealthVerdict, Report, turns},
    network::neighbour::Side,
};

/// The index of the loopback interface in every namespace.
const LOOPBACK: u32 = 1;

const INTERVAL: Duration = Duration::from_millis(50);

/// A checker on the host's own side, and what it reports.
fn checker() -> (Checker, UnboundedReceiver<Report>) {
    let (commons, reports) = commons();
    (start(None, commons).expect("a checker"), reports)
}

fn commons() -> (Commons, UnboundedReceiver<Report>) {
    let (sender, receiver) = unbounded_channel();
    let commons = Commons {
        reports: sender,
        turns: turns(),
    };
    (commons, receiver)
}

fn start(cell: Option<&str>, commons: Commons) -> anyhow::Result<Checker> {
    start_on(LOOPBACK, cell, commons)
}

fn start_on(nic: u32, cell: Option<&str>, commons: Commons) -> anyhow::Result<Checker> {
    let side = Side {
        cell: cell.map(str::to_owned),
        interface: "lo".to_owned(),
    };
    let (asks, _) = tokio::sync::mpsc::channel(1);
    Checker::start(side, nic, "test", commons, asks)
}

/// A target that is checked often.
fn often(backend: u32, address: SocketAddrV4, check: Check) -> CheckTarget {
    let health = Health {
        interval: INTERVAL,
        fast_interval: INTERVAL,
        ..health(check)
    };
    CheckTarget {
        backend,
        ..target(address, health)
    }
}

async fn next(reports: &mut UnboundedReceiver<Report>) -> Report {
    let report = timeout(LONG, reports.recv()).await;
    report.expect("a report in time").expect("a checker")
}

/// A listener that takes every connection and keeps it until the client goes.
fn keep(listener: TcpListener) -> JoinSet<()> {
    let mut work = JoinSet::new();
    work.spawn(async move {
        let mut kept = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            kept.spawn(async move { to_end(&mut stream).await });
        }
    });
    work
}

#[tokio::test]
async fn every_check_is_one_report() {
    let (listener, address) = listen().await;
    let served = keep(listener);
    let (checker, mut reports) = checker();
    checker.set(vec![often(3, address, Check::Tcp)]);
    let standing = |verdict, against, flaps| Standing {
        verdict,
        against,
        flaps,
        good_ms: 0,
    };
    for changed in [true, false, false] {
        let report = next(&mut reports).await;
        assert_eq!((report.backend, report.changed), (3, changed));
        assert_eq!(report.outcome, good("connected"));
        assert_eq!(report.standing, standing(HealthVerdict::Up, 0, 0));
        assert!(report.took < LONG);
    }
    drop(served);
    let mut against = Vec::new();
    loop {
        let report = next(&mut reports).await;
        // One may have been on its way.
        if report.outcome == good("connected") {
            continue;
        }
        against.push(report.standing.against);
        if report.changed {
            assert_eq!(report.standing, standing(HealthVerdict::Dead, 0, 1));
            break;
        }
    }
    assert_eq!(against, [1, 2, 0]);
}

/// Each connection is a report for all backends that are checked alike.
#[tokio::test]
async fn a_check_that_backends_share_is_made_once() {
    let (listener, address) = listen().await;
    let (checker, mut reports) = checker();
    let target = CheckTarget {
        also: vec![4, 9],
        ..often(3, address, Check::Tcp)
    };
    checker.set(vec![target]);
    let (begun, mut connections) = (Instant::now(), 0);
    while begun.elapsed() < INTERVAL * 6 {
        if let Ok(Ok((stream, _))) = timeout(INTERVAL, listener.accept()).await {
            connections += 1;
            drop(stream);
        }
    }
    drop(checker);
    let mut backends = Vec::new();
    while let Some(report) = reports.recv().await {
        backends.push(report.backend);
    }
    assert!(connections > 2, "{connections}");
    assert!(
        backends.chunks(3).all(|each| each == [3, 4, 9]),
        "{backends:?}"
    );
    // One may be on its way, or ended without its report.
    assert!(
        (backends.len() / 3).abs_diff(connections) <= 1,
        "{connections}, {backends:?}"
    );
}

#[tokio::test]
async fn checks_of_a_backend_follow_each_other_at_the_interval() {
    let (listener, address) = listen().await;
    let (checker, mut reports) = checker();
    let health = Health {
        interval: SHORT,
        timeout: SHORT,
        ..health(Check::Http(get("/")))
    };
    checker.set(vec![target(address, health)]);
    let mut last: Option<Instant> = None;
    for _ in 0..4 {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            // The clock of this thread may be late for the one and not for the other.
            assert!(now - last >= SHORT.mul_f64(0.5), "{:?}", now - last);
        }
        let early = timeout(SHORT / 4, listener.accept()).await;
        assert!(early.is_err(), "two at a time");
        // It waits in vain, and goes.
        let _end = to_end(&mut stream).await;
        assert_eq!(
            next(&mut reports).await.outcome,
            dead("no HTTP answer within 1s")
        );
    }
}

/// What is unchanged goes on where it is; what has changed begins with what was saved.
#[tokio::test]
async fn a_target_is_known_again() {
    let address = closed_port().await;
    let (checker, mut reports) = checker();
    let up = Standing {
        verdict: HealthVerdict::Up,
        against: 1,
        ..Standing::default()
    };
    let mut target = CheckTarget {
        saved: up,
        ..often(3, address, Check::Tcp)
    };
    target.health.fall = 1000;
    checker.set(vec![target.clone()]);
    let first = next(&mut reports).await;
    assert_eq!((first.standing.against, first.changed), (2, false));
    // Something else was saved meanwhile, and another target came.
    target.saved = Standing::default();
    let other = often(4, address, Check::Tcp);
    checker.set(vec![other.clone(), target.clone()]);
    let mut against = first.standing.against;
    let mut other_came = false;
    while !other_came || against < 10 {
        let report = next(&mut reports).await;
        if report.backend == 4 {
            assert_eq!(report.standing.verdict, HealthVerdict::Dead);
            assert_eq!(report.changed, !other_came);
            other_came = true;
        } else {
            against += 1;
            assert_eq!(report.standing.against, against, "it goes on");
        }
    }
    target.health.rise += 1;
    checker.set(vec![other, target]);
    loop {
        let report = next(&mut reports).await;
        if report.backend == 3 && report.standing.verdict == HealthVerdict::Dead {
            assert!(report.changed, "the first check decides");
            break;
        }
    }
}

#[tokio::test]
async fn who_is_not_wanted_any_more_is_let_go_at_once() {
    let (listener, address) = listen().await;
    let (checker, mut reports) = checker();
    let silent = |backend| often(backend, address, Check::Http(get("/")));
    checker.set(vec![silent(1)]);
    let (mut stream, _) = listener.accept().await.expect("a connection");
    checker.set(Vec::new());
    let end = timeout(LONG / 2, to_end(&mut stream)).await;
    assert!(end.is_ok(), "the check goes on");

    checker.set(vec![silent(2)]);
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let begin = Instant::now();
    drop(checker);
    assert!(begin.elapsed() < LONG / 2, "the drop waits for a check");
    let end = timeout(LONG / 2, to_end(&mut stream)).await;
    assert!(end.is_ok(), "the check goes on");
    assert_eq!(reports.recv().await, None);
}

/// A backend that cannot be checked gets no report, and the checks of others go on.
#[tokio::test]
async fn one_that_cannot_be_asked_disturbs_closed_port() {
    let (listener, address) = listen().await;
    let _served = keep(listener);
    let (checker, mut reports) = checker();
    let mut nowhere = often(1, address, Check::Tcp);
    nowhere.source = Ipv4Addr::new(192, 0, 2, 1).into();
    let path = Check::Http(get("/no path"));
    let targets = [nowhere, often(2, address, path)];
    let others = (3..6).map(|backend| often(backend, address, Check::Tcp));
    checker.set(targets.into_iter().chain(others).collect());
    let mut seen = [0; 6];
    while seen[3..].iter().any(|&reports| reports < 5) {
        let report = next(&mut reports).await;
        seen[report.backend as usize] += 1;
    }
    assert_eq!(seen[..3], [0; 3]);
}

/// Targets at a listener that takes all connections and sends nothing.
async fn silent(count: u32) -> (TcpListener, Vec<CheckTarget>) {
    let (_, address) = listen().await;
    let listener = tokio::net::TcpSocket::new_v4().expect("a socket");
    listener.set_reuseaddr(true).expect("an option");
    listener.bind(SocketAddr::V4(address)).expect("a port");
    let listener = listener.listen(1024).expect("a listener");
    let targets = (0..count).map(|backend| {
        let health = Health {
            interval: LONG * 3,
            timeout: LONG * 3,
            ..health(Check::Http(get("/")))
        };
        CheckTarget {
            backend,
            ..target(address, health)
        }
    });
    (listener, targets.collect())
}

async fn take(listener: &TcpListener) -> TcpStream {
    let taken = timeout(LONG, listener.accept()).await;
    let (stream, _) = taken.expect("in time").expect("a connection");
    stream
}

/// Checks of silent backends take all of their own time, and delay no other check.
#[tokio::test]
async fn nobody_waits_for_the_dead() {
    let (listener, targets) = silent(300).await;
    let (checker, _reports) = checker();
    checker.set(targets);
    let mut taken = Vec::new();
    for _ in 0..300 {
        taken.push(take(&listener).await);
    }
}

#[tokio::test]
async fn only_so_many_checks_are_on_their_way_as_there_may_be_files() {
    let (listener, targets) = silent(5).await;
    let (reports, _reports) = unbounded_channel();
    let turns = Arc::new(Semaphore::new(2));
    let checker = start(None, Commons { reports, turns }).expect("a checker");
    checker.set(targets);
    let mut taken = vec![take(&listener).await, take(&listener).await];
    // First checks begin within a second.
    let one_more = timeout(Duration::from_millis(1500), listener.accept()).await;
    assert!(one_more.is_err(), "3 at a time");
    // A check that ends makes room.
    taken.pop();
    take(&listener).await;
}

/// A check that is answered counts all the same: the backend may be on this host.
#[tokio::test]
async fn who_does_not_answer_a_nic_without_carrier_is_not_dead() {
    let (listener, address) = listen().await;
    let served = keep(listener);
    let (commons, mut reports) = commons();
    let checker = start_on(0x7fff_ffff, None, commons).expect("a checker");
    checker.set(vec![often(1, address, Check::Tcp)]);
    assert_eq!(next(&mut reports).await.outcome, good("connected"));
    drop(served);
    let mut last = good("connected");
    while let Ok(report) = timeout(10 * INTERVAL, reports.recv()).await {
        last = report.expect("a checker").outcome;
    }
    assert_eq!(last, good("connected"));
}

#[tokio::test]
async fn a_cell_that_is_not_there_is_an_error() {
    let (commons, _reports) = commons();
    let error = start(Some("lb.no-such.cell"), commons).expect_err("no cell");
    let words = format!("{error:#}");
    assert!(
        words.starts_with("check the backends of network test: open /run/netns/lb.no-such.cell: "),
        "{words}"
    );
}

/// A backend that cannot be checked for want of CAs is not checked, and other CAs are insisted on from when
/// they are set.
#[tokio::test]
async fn other_cas_make_another_check() {
    let certificates = Certificates::new();
    let (listener, address) = listen().await;
    let server = certificates.server();
    let mut served = JoinSet::new();
    served.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = tokio_rustls::TlsAcceptor::from(Arc::clone(&server));
            if let Ok(mut stream) = server.accept(stream).await {
                let _end = to_end(&mut stream).await;
            }
        }
    });
    let (checker, mut reports) = checker();
    let trusting = |ca: &str| {
        let tls = trusting(None, certificates.path(ca));
        vec![often(1, address, Check::Tls(tls))]
    };
    checker.set(trusting("none.pem"));
    sleep(4 * INTERVAL).await;
    assert!(reports.try_recv().is_err(), "asked without its CA");
    checker.set(trusting("ca.pem"));
    assert_eq!(next(&mut reports).await.outcome, good("TLS 1.3"));
    checker.set(trusting("other.pem"));
    while let CheckOutcome::Good(_) = next(&mut reports).await.outcome {}
}

/// A suspected backend is checked long before its next check is due, once a second at most.
#[tokio::test]
async fn a_suspicion_begins_a_check() {
    let seldom = |backend, address| {
        let health = Health {
            interval: Duration::from_secs(60),
            fast_interval: Duration::from_secs(60),
            fall: 5,
            ..health(Check::Tcp)
        };
        CheckTarget {
            backend,
            also: vec![backend + 1],
            // Its first check is not spread over a second.
            saved: Standing {
                verdict: HealthVerdict::Up,
                ..Standing::default()
            },
            ..target(address, health)
        }
    };
    let (listener, address) = listen().await;
    let served = keep(listener);
    let (checker, mut reports) = checker();
    checker.set(vec![seldom(3, address)]);
    let first = next(&mut reports).await;
    assert_eq!((first.backend, first.changed), (3, false));
    assert_eq!(next(&mut reports).await.backend, 4);

    checker.suspect(4);
    let good_one = next(&mut reports).await;
    assert_eq!(good_one.outcome, good("connected"));
    assert_eq!(
        (good_one.standing.verdict, good_one.standing.against),
        (HealthVerdict::Up, 0)
    );
    assert_eq!(next(&mut reports).await.backend, 4);

    assert!(good_one.is_suspected && !first.is_suspected);

    drop(served);
    sleep(Duration::from_millis(1100)).await;
    let begun = Instant::now();
    checker.suspect(3);
    let bad = next(&mut reports).await;
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!((bad.standing.against, bad.is_suspected), (1, true));
    assert_eq!(next(&mut reports).await.backend, 4);
    checker.suspect(9);
    checker.suspect(3);
    let quiet = timeout(Duration::from_millis(300), reports.recv()).await;
    assert!(quiet.is_err(), "too soon");
}
