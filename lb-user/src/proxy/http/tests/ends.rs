//! How connections end: by time, by newer clients that need their place, by clients that go, and by cuts.

use std::{
    io::ErrorKind,
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use nix::{
    libc::linger,
    sys::socket::{setsockopt, sockopt::Linger},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task,
    time::{sleep, timeout},
};

use super::site::{Client, HEAD, Site, run};
use crate::{
    flows::evict::selector::EvictSelector,
    proxy::admission::{NetworkAdmission, Permit},
};

const UPGRADE: &str =
    "GET /upgrade HTTP/1.1\r\nHost: a.lab\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
/// More clients than there is a place for.
const MANY: usize = 10_000;

/// Waits until no connection to a backend is left; how long that took.
async fn all_legs_end(site: &Site) -> Duration {
    let start = Instant::now();
    while !site.shared.work.legs.all().is_empty() {
        assert!(start.elapsed() < Duration::from_secs(5));
        sleep(Duration::from_millis(5)).await;
    }
    start.elapsed()
}

/// As many clients of the same address as take all places.
fn flood(pending: &NetworkAdmission) -> Vec<Permit> {
    (0..MANY)
        .map(|_| pending.admit(Ipv4Addr::LOCALHOST))
        .collect()
}

#[test]
fn a_head_has_its_time() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let start = Instant::now();
        let mut slow = site.connect().await;
        slow.0
            .write_all(b"GET / HTTP/1.1\r\nHost: a")
            .await
            .unwrap();
        let mut silent = site.connect().await;
        assert_eq!(slow.hear().await.status(), 408);
        assert_eq!(silent.rest().await.unwrap(), "");
        let took = start.elapsed();
        assert!(
            (HEAD..HEAD + Duration::from_secs(1)).contains(&took),
            "{took:?}"
        );
        assert_eq!(site.refused("timeout"), 2);
        // The time is that of each head: between requests there is more.
        let mut client = site.connect().await;
        assert_eq!(client.get("a.lab", "/").await.status(), 200);
        sleep(2 * HEAD).await;
        assert_eq!(client.get("a.lab", "/").await.status(), 200);
        client.0.write_all(b"GET").await.unwrap();
        assert_eq!(client.hear().await.status(), 408);
    });
}

#[test]
fn who_is_idle_is_closed() {
    run(async {
        let idle = Duration::from_millis(400);
        let site = Site::start(&["a"], |service, _| service.idle = Some(idle)).await;
        let mut client = site.connect().await;
        assert_eq!(client.get("a.lab", "/").await.status(), 200);
        let start = Instant::now();
        assert_eq!(client.rest().await.unwrap(), "");
        let took = start.elapsed();
        assert!(
            (idle / 2..idle + Duration::from_secs(1)).contains(&took),
            "{took:?}"
        );
    });
}

/// Clients that do not read their answers, and how long these are: the first ones fit into the kernel.
async fn unread(site: &Site) -> Vec<(usize, Client)> {
    let mut clients = Vec::new();
    for step in 1..=40 {
        let mut client = site.connect_tight().await;
        let bytes = step * 8192;
        let ask = format!("GET /bytes/{bytes} HTTP/1.1\r\nHost: a.lab\r\n\r\n");
        client.0.write_all(ask.as_bytes()).await.unwrap();
        clients.push((bytes, client));
    }
    clients
}

/// Whatever did not fit is gone, so the client must not take what it has for all.
#[test]
fn an_answer_that_is_not_read_is_torn_loudly() {
    run(async {
        let idle = Duration::from_millis(200);
        let site = Site::start(&["a"], |service, _| service.idle = Some(idle)).await;
        let clients = unread(&site).await;
        sleep(6 * idle).await;
        let mut is_whole = Vec::new();
        for (bytes, mut client) in clients {
            let rest = client.rest().await;
            let rest = rest.map_err(|error| assert_eq!(error.kind(), ErrorKind::ConnectionReset));
            let length = rest.map(|rest| rest.len().saturating_sub(bytes));
            assert_ne!(length, Ok(0), "{bytes}");
            is_whole.push(length.is_ok());
        }
        assert!(is_whole[0] && !is_whole[39], "{is_whole:?}");
        assert!(
            is_whole.is_sorted_by(|one, next| one >= next),
            "{is_whole:?}"
        );
        assert!(site.shared.work.legs.all().is_empty());
    });
}

/// Reads an answer of so many bytes, and that the head behind it took too long.
async fn hear_late((bytes, mut client): (usize, Client)) {
    assert_eq!(client.hear().await.body, "x".repeat(bytes));
    let rest = client.rest().await.unwrap();
    assert!(rest.starts_with("HTTP/1.1 408 "), "{bytes}: {rest}");
}

#[test]
fn nothing_is_said_in_the_middle_of_an_answer() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let mut clients = unread(&site).await;
        sleep(HEAD).await;
        for (_, client) in &mut clients {
            client.0.write_all(b"GET / HTTP").await.unwrap();
        }
        // Now that head has taken too long, and the answer to it still waits for room.
        sleep(HEAD * 4 / 3).await;
        let heard = clients
            .into_iter()
            .map(|client| task::spawn_local(hear_late(client)));
        for heard in heard.collect::<Vec<_>>() {
            heard.await.unwrap();
        }
    });
}

/// How long a body, or an answer, may take where these are tested.
const WAIT: Duration = Duration::from_millis(400);

#[test]
fn a_body_that_does_not_come_is_not_waited_for() {
    run(async {
        let site = Site::start(&["a"], |_, http| http.body_timeout = WAIT).await;
        let mut client = site.connect().await;
        let head = "POST /hears/10 HTTP/1.1\r\nHost: a.lab\r\nContent-Length: 10\r\n\r\n12";
        client.0.write_all(head.as_bytes()).await.unwrap();
        // As long as something comes all is well.
        for _ in 0..3 {
            sleep(WAIT * 2 / 3).await;
            client.0.write_all(b"3").await.unwrap();
        }
        let start = Instant::now();
        assert_eq!(client.hear().await.status(), 408);
        let took = start.elapsed();
        assert!(took >= WAIT * 2 / 3 && took < 3 * WAIT, "{took:?}");
        assert_eq!(client.rest().await.unwrap(), "");
        assert_eq!(site.refused("body_timeout"), 1);
        all_legs_end(&site).await;
        // One that comes is served, however long its answer has to be waited for.
        let mut client = site.connect().await;
        client.0.write_all(head.as_bytes()).await.unwrap();
        sleep(WAIT / 2).await;
        client.0.write_all(b"34567890").await.unwrap();
        assert_eq!(client.hear().await.body, "a");
    });
}

#[test]
fn a_backend_that_does_not_answer_is_not_waited_for() {
    run(async {
        let site = Site::start(&["a"], |_, http| http.response_timeout = WAIT).await;
        let start = Instant::now();
        let mut client = waiting(&site).await;
        assert_eq!(client.hear().await.status(), 504);
        let took = start.elapsed();
        assert!(took >= WAIT && took < 3 * WAIT, "{took:?}");
        assert_eq!(client.rest().await.unwrap(), "");
        assert_eq!(site.refused("response_timeout"), 1);
        all_legs_end(&site).await;
        // What has begun may stop for longer: it falls under the idle time.
        let mut client = site.connect().await;
        assert_eq!(client.get("a.lab", "/halting").await.body, "12");
        // So does what is not HTTP any more.
        let mut client = site.connect().await;
        assert_eq!(client.ask(UPGRADE).await.status(), 101);
        sleep(2 * WAIT).await;
        client.0.write_all(b"word").await.unwrap();
        let mut echo = [0; 4];
        client.0.read_exact(&mut echo).await.unwrap();
        assert_eq!(echo, *b"word");
    });
}

/// However long a leg may be idle.
#[test]
fn an_answer_that_is_not_read_has_its_time() {
    run(async {
        let site = Site::start(&["a"], |_, http| http.response_timeout = WAIT).await;
        let mut client = site.connect_tight().await;
        let ask = b"GET /bytes/4000000 HTTP/1.1\r\nHost: a.lab\r\n\r\n";
        client.0.write_all(ask).await.unwrap();
        // As long as it reads all is well.
        let mut some = vec![0; 100_000];
        for _ in 0..4 {
            sleep(WAIT * 2 / 3).await;
            client.0.read_exact(&mut some).await.unwrap();
        }
        assert_eq!(site.shared.work.legs.all().len(), 1);
        let start = Instant::now();
        all_legs_end(&site).await;
        assert!(start.elapsed() < 3 * WAIT);
        let end = client.rest().await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn who_says_no_more_is_answered() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        for path in ["/", "/slow"] {
            let mut client = site.connect().await;
            let ask = format!("GET {path} HTTP/1.1\r\nHost: a.lab\r\n\r\n");
            client.0.write_all(ask.as_bytes()).await.unwrap();
            client.0.shutdown().await.unwrap();
            assert_eq!(client.hear().await.body, "a");
            assert_eq!(client.rest().await.unwrap(), "");
        }
        all_legs_end(&site).await;
    });
}

/// A client whose request is never answered.
async fn waiting(site: &Site) -> Client {
    let mut client = site.connect().await;
    let ask = b"GET /silent HTTP/1.1\r\nHost: a.lab\r\n\r\n";
    client.0.write_all(ask).await.unwrap();
    client
}

#[test]
fn who_has_gone_is_not_waited_for() {
    run(async {
        let most = Duration::from_millis(400);
        let site = Site::start(&["a"], |service, _| service.half_closed = most).await;
        // Both come at once.
        let mut client = waiting(&site).await;
        client.0.shutdown().await.unwrap();
        sleep(most / 2).await;
        assert_eq!(site.shared.work.legs.all().len(), 1);
        let end = client.rest().await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        all_legs_end(&site).await;
        let client = waiting(&site).await;
        sleep(most / 2).await;
        assert_eq!(site.shared.work.legs.all().len(), 1);
        let now = linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&client.0, Linger, &now).unwrap();
        drop(client);
        assert!(all_legs_end(&site).await < most);
    });
}

/// A client that was served once, and has begun another head if it is `slow`.
async fn served(site: &Site, slow: bool) -> Client {
    let mut client = site.connect().await;
    assert_eq!(client.get("a.lab", "/").await.status(), 200);
    if slow {
        client.0.write_all(b"GET").await.unwrap();
    }
    client
}

#[test]
fn who_is_waited_for_has_one_place_of_few() {
    run(async {
        let site = Site::start(&["a"], |_, http| http.timeout = Duration::from_secs(9)).await;
        let mut busy = waiting(&site).await;
        let [mut slow, mut idle] = [served(&site, true).await, served(&site, false).await];
        sleep(HEAD / 3).await;
        drop(flood(&site.shared.work.pending));
        assert_eq!(slow.rest().await.unwrap(), "");
        assert_eq!(site.refused("recycled"), 1);
        assert_eq!(idle.get("a.lab", "/").await.status(), 200);
        let mut slow = served(&site, true).await;
        sleep(HEAD / 3).await;
        drop(flood(&site.shared.work.kept));
        assert_eq!(idle.rest().await.unwrap(), "");
        slow.0
            .write_all(b" / HTTP/1.1\r\nHost: a.lab\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(slow.hear().await.status(), 200);
        assert_eq!(site.refused("recycled"), 1);
        // A request that is served is not evicted.
        let still = timeout(HEAD / 3, busy.rest()).await;
        assert!(still.is_err());
        assert_eq!(site.counted().refused.len(), 1);
    });
}

/// A process that gives its listeners away answers each client that it has accepted, and closes those that it
/// has answered.
#[test]
fn a_client_without_a_request_yet_outlives_the_listeners() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let mut idle = served(&site, false).await;
        let mut fresh = site.connect().await;
        let _given = site.shared.work.listeners.give().unwrap();
        assert_eq!(idle.rest().await.unwrap(), "");
        assert_eq!(fresh.get("a.lab", "/").await.status(), 200);
        assert_eq!(fresh.rest().await.unwrap(), "");
    });
}

#[test]
fn a_cut_resets_the_client() {
    run(async {
        let site = Site::start(&["a", "b"], |_, _| {}).await;
        let mut waits = waiting(&site).await;
        let mut idle = served(&site, false).await;
        let mut other = site.connect().await;
        assert_eq!(other.get("b.lab", "/").await.status(), 200);
        let mut turned = site.connect().await;
        assert_eq!(turned.ask(UPGRADE).await.status(), 101);
        assert_eq!(site.shared.work.legs.all().len(), 4);
        let cut = EvictSelector {
            backends: [1].into(),
            ..EvictSelector::default()
        };
        site.shared.work.legs.end_cut(&cut).await;
        for client in [&mut waits, &mut turned] {
            let end = client.rest().await.unwrap_err();
            assert_eq!(end.kind(), ErrorKind::ConnectionReset);
        }
        assert_eq!(other.get("b.lab", "/").await.status(), 200);
        assert_eq!(site.shared.work.legs.all().len(), 1);
        // That one was not in use.
        assert_eq!(idle.get("a.lab", "/").await.status(), 200);
        assert_eq!(site.backends[0].accepted.get(), 4);
    });
}

#[test]
fn a_cut_of_what_is_not_used_leaves_the_answer_of_another() {
    run(async {
        let site = Site::start(&["a", "b"], |_, _| {}).await;
        let mut client = served(&site, false).await;
        let ask = b"GET /slow HTTP/1.1\r\nHost: b.lab\r\n\r\n";
        client.0.write_all(ask).await.unwrap();
        sleep(HEAD / 4).await;
        assert_eq!(site.shared.work.legs.all().len(), 2);
        let cut = EvictSelector {
            backends: [1].into(),
            ..EvictSelector::default()
        };
        site.shared.work.legs.end_cut(&cut).await;
        assert_eq!(site.shared.work.legs.all().len(), 1);
        assert_eq!(client.hear().await.body, "b");
        assert_eq!(client.get("a.lab", "/").await.body, "a");
    });
}

#[test]
fn who_may_not_go_on_is_reset_whatever_it_uses() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let mut client = served(&site, false).await;
        let closed = EvictSelector {
            open: Some([].into()),
            ..EvictSelector::default()
        };
        site.shared.work.legs.end_cut(&closed).await;
        let end = client.rest().await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    });
}
