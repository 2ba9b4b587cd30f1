//! What requests and answers look like on their way.

use std::io::ErrorKind;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::site::{Site, run};

#[test]
fn a_kept_connection_that_is_closed_is_not_seen() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let mut client = site.connect().await;
        for count in 1..4 {
            // The second one is read, but not answered.
            assert_eq!(client.get("a.lab", "/once").await.body, "a");
            assert_eq!(site.backends[0].accepted.get(), count);
        }
        assert_eq!(site.backends[0].heads.borrow().len(), 5);
        // What may not happen twice is not sent twice.
        let post = "POST /once HTTP/1.1\r\nHost: a.lab\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(client.ask(post).await.status(), 502);
        assert_eq!(site.backends[0].heads.borrow().len(), 6);
        assert_eq!(site.refused("no_answer"), 1);
    });
}

#[test]
fn a_torn_answer_is_not_a_whole_one() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let mut client = site.connect().await;
        client
            .0
            .write_all(b"GET /torn HTTP/1.1\r\nHost: a.lab\r\n\r\n")
            .await
            .unwrap();
        let end = client.rest().await.unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_connection_may_become_something_else() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let mut client = site.connect().await;
        let ask =
            "GET /upgrade HTTP/1.1\r\nHost: a.lab\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
        let answer = client.ask(ask).await;
        assert_eq!(answer.status(), 101);
        assert!(answer.head.contains("upgrade: echo\r\n"), "{answer:?}");
        for word in ["some", "thing", "else"] {
            client.0.write_all(word.as_bytes()).await.unwrap();
            let mut echo = vec![0; word.len()];
            client.0.read_exact(&mut echo).await.unwrap();
            assert_eq!(echo, word.as_bytes());
        }
        let leg = site.shared.work.legs.all().swap_remove(0);
        assert!(leg.bytes().iter().all(|bytes| *bytes > 13));
        client.0.shutdown().await.unwrap();
        assert_eq!(client.rest().await.unwrap(), "");
        // A client that has not requested an upgrade does not get it.
        assert_eq!(site.get("a.lab", "/upgrade").await.status(), 502);
        let h2c = ask.replace("echo", "h2c");
        assert_eq!(site.connect().await.ask(&h2c).await.status(), 502);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(site.shared.work.legs.all().is_empty());
    });
}

#[test]
fn what_is_too_long_is_refused() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let with = |bytes| {
            format!(
                "GET / HTTP/1.1\r\nHost: a.lab\r\nX: {}\r\n\r\n",
                "x".repeat(bytes)
            )
        };
        assert_eq!(site.connect().await.ask(&with(4000)).await.status(), 200);
        for bytes in [4096, 100_000] {
            let answer = site.connect().await.ask(&with(bytes)).await;
            assert_eq!(answer.status(), 431, "{bytes}");
        }
        let many = format!(
            "GET / HTTP/1.1\r\nHost: a.lab\r\n{}\r\n",
            "X: 1\r\n".repeat(200)
        );
        assert_eq!(site.connect().await.ask(&many).await.status(), 431);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(site.refused("header_too_large"), 3);
    });
}

#[test]
fn nobody_disagrees_where_a_request_ends() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: a.lab\r\nHost: a.lab\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost : a.lab\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a.lab\r\n x: y\r\n\r\n", 400),
            (
                "POST / HTTP/1.1\r\nHost: a.lab\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a.lab\r\nContent-Length: +1\r\n\r\nx",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nHost: a.lab\r\nTransfer-Encoding: x\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.0\r\nHost: a.lab\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            ("CONNECT a.lab:80 HTTP/1.1\r\nHost: a.lab:80\r\n\r\n", 400),
            ("GET / HTTP/3.0\r\nHost: a.lab\r\n\r\n", 400),
        ] {
            let answer = site.connect().await.ask(request).await;
            assert_eq!(answer.status(), status, "{request}");
        }
        assert!(site.backends[0].heads.borrow().is_empty());
        // Of both the chunks count, and the connection ends with the answer.
        let both = "POST / HTTP/1.1\r\nHost: a.lab\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        let mut client = site.connect().await;
        assert_eq!(client.ask(both).await.status(), 200);
        assert_eq!(client.rest().await.unwrap(), "");
        let head = site.backends[0].heads.borrow()[0].clone();
        assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
        assert!(!head.contains("content-length"), "{head}");
    });
}

/// HTTP/2 is not spoken, and a client that begins with it gets an answer in HTTP/1, as from nginx.
#[test]
fn http2_has_an_answer() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        for behind in ["", "\0\0\0\u{4}\0\0\0\0\0"] {
            let mut client = site.connect().await;
            let answer = client.ask(&format!("{preface}{behind}")).await;
            assert_eq!(answer.status(), 400, "{answer:?}");
            assert_eq!(client.rest().await.unwrap(), "");
        }
        assert!(site.backends[0].heads.borrow().is_empty());
        assert_eq!(site.refused("bad_request"), 2);
    });
}

#[test]
fn a_body_in_other_codings_than_chunks_does_not_go_on() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        for codings in [
            "gzip, chunked",
            "identity, chunked",
            "chunked, chunked",
            "x\r\nTransfer-Encoding: chunked",
        ] {
            let request = format!(
                "POST / HTTP/1.1\r\nHost: a.lab\r\nTransfer-Encoding: {codings}\r\n\r\n0\r\n\r\n"
            );
            let mut client = site.connect().await;
            assert_eq!(client.ask(&request).await.status(), 501, "{codings}");
            assert_eq!(client.rest().await.unwrap(), "");
        }
        assert!(site.backends[0].heads.borrow().is_empty());
        assert_eq!(site.refused("transfer_encoding"), 4);
    });
}

#[test]
fn a_body_that_is_no_chunks_is_the_clients_fault() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let head = "POST /hears/100 HTTP/1.1\r\nHost: a.lab\r\nTransfer-Encoding: chunked\r\n\r\n";
        for body in [
            "zz\r\n",
            "fffffffffffffffff\r\n",
            "1\r\nxx\r\n",
            "1\r\nx\r\nzz\r\n",
        ] {
            let mut client = site.connect().await;
            let answer = client.ask(&format!("{head}{body}")).await;
            assert_eq!(answer.status(), 400, "{body:?}");
            assert_eq!(client.rest().await.unwrap(), "");
        }
        assert_eq!(site.refused("bad_request"), 4);
        assert_eq!(site.refused("no_answer"), 0);
    });
}

/// Also behind another request, in the same segment.
#[test]
fn a_target_has_no_fragment() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        let chunked = "POST /hears/15 HTTP/1.1\r\nHost: a.lab\r\nTransfer-Encoding: chunked\r\n\r\n\
            5\r\nGET #\r\n0\r\n\r\n";
        for target in [
            "http://a.lab#x",
            "http://a.lab/#x",
            "/x#y",
            "http://u@a.lab/",
        ] {
            let mut client = site.connect().await;
            let bad = format!("GET {target} HTTP/1.1\r\nHost: a.lab\r\n\r\n");
            let good = "GET /?# HTTP/1.1\r\nHost: a.lab\r\n\r\n".replace('#', "%23");
            let all = [chunked, &bad, chunked, &good].concat();
            client.0.write_all(all.as_bytes()).await.unwrap();
            let mut said = Vec::new();
            for _ in 0..4 {
                said.push(client.hear().await.status());
            }
            assert_eq!(said, [200, 400, 200, 200], "{target}");
        }
        let heads = site.backends[0].heads.borrow();
        assert!(
            heads.iter().all(|head| !head.contains("GET  ")),
            "{heads:?}"
        );
        assert_eq!(site.refused("bad_request"), 4);
    });
}

#[test]
fn a_server_as_a_whole_has_options() {
    run(async {
        let site = Site::start(&["a"], |_, _| {}).await;
        for (target, expected) in [("", "*"), ("/", "/"), ("/x", "/x"), ("?y", "/?y")] {
            let request = format!("OPTIONS http://a.lab{target} HTTP/1.1\r\nHost: a.lab\r\n\r\n");
            assert_eq!(site.connect().await.ask(&request).await.status(), 200);
            let head = site.backends[0].heads.borrow_mut().pop().unwrap();
            let line = format!("OPTIONS {expected} HTTP/1.1\r\n");
            assert!(head.starts_with(&line), "{target}: {head}");
        }
    });
}

#[test]
fn requests_that_come_at_once_are_answered_in_turn() {
    run(async {
        let site = Site::start(&["a", "b"], |_, _| {}).await;
        let mut client = site.connect().await;
        let requests = ["a.lab", "b.lab", "a.lab"];
        let all = requests.map(|host| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        client.0.write_all(all.concat().as_bytes()).await.unwrap();
        for expected in ["a", "b", "a"] {
            assert_eq!(client.hear().await.body, expected);
        }
    });
}
