//! Where requests go, and the answers to those that go nowhere.

use tokio::io::AsyncWriteExt as _;

use super::site::{Site, run};
use crate::config::{Balance, Otherwise};

#[test]
fn two_hosts_of_one_connection_reach_two_pools() {
    run(async {
        let site = Site::start(&["a", "b"], |_, _| {}).await;
        let mut client = site.connect().await;
        for _ in 0..3 {
            assert_eq!(client.get("a.lab", "/").await.body, "a");
            assert_eq!(client.get("B.lab:80", "/x?y").await.body, "b");
        }
        let accepted = [0, 1].map(|backend: usize| site.backends[backend].accepted.get());
        assert_eq!(accepted, [1, 1]);
        let head = site.backends[1].heads.borrow()[0].clone();
        assert_eq!(
            head,
            "GET /x?y HTTP/1.1\r\nhost: B.lab:80\r\nx-forwarded-for: 127.0.0.1\r\n\r\n"
        );
        let legs = site.shared.work.legs.all();
        let names: Vec<Option<&str>> = legs.iter().map(|leg| leg.name.as_deref()).collect();
        assert_eq!(names, [Some("a.lab"), Some("b.lab")]);
        let counted = site.counted();
        let of_connections = (counted.accepted, counted.routed);
        assert_eq!((of_connections, counted.requests.routed), ((1, 1), 6));
        assert_eq!(legs[1].bytes()[0], 3 * u64::try_from(head.len()).unwrap());
    });
}

#[test]
fn the_target_counts_more_than_the_host() {
    run(async {
        let site = Site::start(&["a", "b"], |_, _| {}).await;
        let request = "GET http://b.lab/x HTTP/1.1\r\nHost: a.lab\r\n\r\n";
        assert_eq!(site.connect().await.ask(request).await.body, "b");
        let head = site.backends[1].heads.borrow()[0].clone();
        assert!(head.starts_with("GET /x HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("host: b.lab\r\n"), "{head}");
    });
}

#[test]
fn who_goes_nowhere_is_told_so() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        for (host, status) in [
            ("a..lab", 400),
            ("d.lab", 421),
            ("127.0.0.1", 421),
            ("theirs.lab", 421),
            ("gone.lab", 502),
            ("empty.lab", 503),
        ] {
            let answer = site.get(host, "/").await;
            assert_eq!(answer.status(), status, "{host}: {answer:?}");
        }
        let mut client = site.connect().await;
        assert_eq!(client.get("d.lab", "/").await.status(), 421);
        assert_eq!(client.get("a.lab", "/").await.body, "a");
        let labels = [
            "bad_request",
            "no_match",
            "deny_tenant_name",
            "unreachable",
            "no_backend",
        ];
        assert_eq!(labels.map(|label| site.refused(label)), [1, 3, 1, 1, 1]);
        // The client of that request was connected.
        let counted = site.counted();
        let of_connections = (counted.accepted, counted.routed, counted.refused);
        assert_eq!(of_connections, (7, 1, [].into()));
        assert_eq!(counted.requests.routed, 1);
        // An address is no name.
        let names = [("d.lab", 2), ("theirs.lab", 1)];
        let names = names.map(|(name, times)| (name.to_owned(), times));
        assert_eq!(site.counted().unrouted_names, names.into());
        let answer = site.connect().await.ask("GET / HTTP/1.0\r\n\r\n").await;
        assert_eq!(answer.status(), 421);
        // What cannot be a name is shown, and does nothing to a terminal.
        site.get("<script>", "/").await;
        let names = site.shared.work.counts.names.read();
        let mut names: Vec<_> = names
            .iter()
            .map(|one| (one.name.as_deref(), one.reason.as_str(), one.count))
            .collect();
        names.sort_unstable();
        let wanted = [
            (None, "no_match", 1),
            (Some("127.0.0.1"), "no_match", 1),
            (Some(r"\x3cscript\x3e"), "bad_request", 1),
            (Some("a..lab"), "bad_request", 1),
            (Some("d.lab"), "no_match", 2),
            (Some("theirs.lab"), "deny_tenant_name", 1),
        ];
        assert_eq!(names, wanted);
        let answer = site.connect().await.ask("GET / HTTP/1.1\r\n\r\n").await;
        assert_eq!(answer.status(), 400);
    });
}

#[test]
fn https_is_another_place() {
    run(async {
        let site = Site::start(&[], |_, _| {}).await;
        let answer = site.get("C.lab:80", "/x?y=1").await;
        assert_eq!(answer.status(), 308);
        assert!(
            answer.head.contains("location: https://c.lab/x?y=1\r\n"),
            "{answer:?}"
        );
    });
}

#[test]
fn who_goes_nowhere_may_be_closed_or_served() {
    run(async {
        let site = Site::start(&["a"], |_, http| http.no_match = Otherwise::Close).await;
        let mut client = site.connect().await;
        client
            .0
            .write_all(b"GET / HTTP/1.1\r\nHost: d.lab\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(client.rest().await.unwrap(), "");
        let site = Site::start(&["a"], |_, http| {
            http.no_match = Otherwise::Pool("a".to_owned());
        })
        .await;
        assert_eq!(site.get("d.lab", "/").await.body, "a");
        let answer = site.connect().await.ask("GET / HTTP/1.0\r\n\r\n").await;
        assert_eq!(answer.body, "a");
        let head = site.backends[0].heads.borrow()[1].clone();
        assert!(
            head.contains(&format!("host: {}\r\n", site.address)),
            "{head}"
        );
    });
}

#[test]
fn a_host_has_a_backend_of_its_own() {
    run(async {
        let names = ["a", "b", "d", "e"];
        let site = Site::start(&names, |_, http| http.balance = Balance::Host).await;
        let mut found = std::collections::BTreeSet::new();
        for host in 0..20 {
            let host = format!("h{host}.all.lab");
            let first = site.get(&host, "/").await.body;
            for _ in 0..5 {
                assert_eq!(site.get(&host, "/").await.body, first, "{host}");
            }
            found.insert(first);
        }
        assert_eq!(found.len(), 4);
        let site = Site::start(&names, |_, _| {}).await;
        let mut found = std::collections::BTreeSet::new();
        for _ in 0..40 {
            found.insert(site.get("h.all.lab", "/").await.body);
        }
        assert_eq!(found.len(), 4);
    });
}

#[test]
fn no_more_than_the_budget() {
    run(async {
        let site = Site::start(&["a"], |service, _| service.max_flows = Some(1)).await;
        let mut client = site.connect().await;
        assert_eq!(client.get("a.lab", "/").await.status(), 200);
        assert_eq!(site.get("a.lab", "/").await.status(), 503);
        assert_eq!(client.get("a.lab", "/").await.status(), 200);
        assert_eq!(site.refused("budget_spent"), 1);
    });
}
