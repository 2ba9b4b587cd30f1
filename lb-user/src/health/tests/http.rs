use std::{net::Ipv6Addr, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpListener,
    task::JoinHandle,
    time::{Instant as TokioInstant, interval, timeout_at},
};
use tokio_rustls::TlsAcceptor;

use super::{
    certificate::{Certificates, NAME, versions},
    server::{closed_port, head, listen, saying, serve, to_end},
    *,
};

fn status(first: u16, last: u16) -> Get {
    Get {
        status: (first, last),
        ..get("/")
    }
}

#[tokio::test]
async fn the_request_is_a_get_that_is_the_last() {
    for host in [None, Some("api.example:6443".to_owned())] {
        let (address, server) = saying("HTTP/1.1 200 OK\r\n\r\nok").await;
        let ask = Get {
            host: host.clone(),
            ..get("/readyz?verbose=1&exclude=etcd")
        };
        assert_eq!(outcome(address, Check::Http(ask)).await, good("200 OK"));
        let (request, end) = server.await.expect("served");
        let host = host.unwrap_or_else(|| address.to_string());
        let wanted = format!(
            "GET /readyz?verbose=1&exclude=etcd HTTP/1.1\r\nhost: {host}\r\n\
             user-agent: lb/{}\r\nconnection: close\r\n\r\n",
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(request, wanted);
        assert_eq!(end.expect("no reset"), 0);
    }
}

/// From an address of IPv6, whose brackets stand in the request (RFC 9110 section 7.2).
#[tokio::test]
async fn a_backend_of_ipv6_is_asked_by_ipv6() {
    let Ok(listener) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await else {
        // This machine has none.
        return;
    };
    let address = listener.local_addr().expect("its address");
    let asked = tokio::spawn(async move {
        let (mut stream, peer) = listener.accept().await.expect("a connection");
        let request = head(&mut stream).await;
        let said = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        said.expect("said");
        (request, peer.ip())
    });
    let target = CheckTarget {
        address,
        source: Ipv6Addr::LOCALHOST.into(),
        ..target(closed_port().await, health(Check::Http(get("/"))))
    };
    let (outcome, _open) = ask_openly(&target).await.expect("a check");
    assert_eq!(outcome, good("200 OK"));
    let (request, source) = asked.await.expect("served");
    let host = format!("host: [::1]:{}\r\n", address.port());
    assert!(request.contains(&host), "{request}");
    assert_eq!(source, target.source);
}

#[tokio::test]
async fn the_status_decides() {
    let ok = (200, 299);
    for (line, range, wanted) in [
        ("200 OK", ok, good("200 OK")),
        ("200 Splendid", ok, good("200 OK")),
        ("204 No Content", ok, good("204 No Content")),
        ("299 ", ok, good("299")),
        ("300 ", ok, not_ready("300 Multiple Choices")),
        ("404 Not Found", ok, not_ready("404 Not Found")),
        ("503 no", ok, not_ready("503 Service Unavailable")),
        ("999 ", ok, not_ready("999")),
        ("101 Switching", ok, not_ready("101 Switching Protocols")),
        ("401 Unauthorized", (401, 401), good("401 Unauthorized")),
        ("400 ", (401, 401), not_ready("400 Bad Request")),
        ("200 OK", (401, 403), not_ready("200 OK")),
        ("404 ", (401, 403), not_ready("404 Not Found")),
    ] {
        let answer = format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\n\r\n");
        let (address, server) = saying(answer).await;
        let found = outcome(address, Check::Http(status(range.0, range.1))).await;
        assert_eq!(found, wanted);
        assert_eq!(server.await.expect("served").1.expect("no reset"), 0);
    }
}

/// Another place is another question.
#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (listener, elsewhere) = listen().await;
    let answer = format!("HTTP/1.1 301 Moved\r\nlocation: http://{elsewhere}/\r\n\r\n");
    let (address, server) = saying(answer).await;
    let found = outcome(address, Check::Http(get("/"))).await;
    assert_eq!(found, not_ready("301 Moved Permanently"));
    assert_eq!(server.await.expect("served").1.expect("no reset"), 0);
    let soon = TokioInstant::now() + SHORT;
    assert!(timeout_at(soon, listener.accept()).await.is_err());
}

#[tokio::test]
async fn answers_on_the_way_are_not_the_answer() {
    let early = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </>\r\n\r\n";
    let (address, _server) = saying(format!("{early}HTTP/1.1 503 \r\n\r\n")).await;
    let found = outcome(address, Check::Http(get("/"))).await;
    assert_eq!(found, not_ready("503 Service Unavailable"));

    let (address, _server) = saying(early).await;
    let found = in_vain(address, Check::Http(get("/"))).await;
    assert_eq!(found, dead("no HTTP answer within 1s"));
}

#[tokio::test]
async fn what_is_no_http_is_not_ready() {
    let long = format!("HTTP/1.1 200 OK\r\nlong: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: y\r\n".repeat(1000));
    for answer in [
        &b"SSH-2.0-OpenSSH_9.2\r\n\r\n"[..],
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00",
        b"HTTP/1.1 two hundred\r\n\r\n",
        b"HTTP/3.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno header\r\n\r\n",
        long.as_bytes(),
        many.as_bytes(),
    ] {
        let (address, _server) = serve({
            let answer = answer.to_vec();
            async move |mut stream| {
                head(&mut stream).await;
                // A client that gives up on it does not wait for all of it.
                let _said = stream.write_all(&answer).await;
                let _end = to_end(&mut stream).await;
            }
        })
        .await;
        let found = outcome(address, Check::Http(get("/"))).await;
        let begin = String::from_utf8_lossy(&answer[..answer.len().min(40)]);
        assert_eq!(found, not_ready("answer is not HTTP"), "{begin}");
    }
}

#[tokio::test]
async fn who_breaks_off_was_there_and_who_says_nothing_was_not() {
    for (said, reset, wanted) in [
        ("", false, dead("connection closed")),
        ("", true, dead("connection reset")),
        ("HTTP/1.1 200 O", false, not_ready("HTTP answer incomplete")),
        (
            "HTTP/1.1 200 OK\r\na: b\r\n",
            false,
            not_ready("HTTP answer incomplete"),
        ),
    ] {
        let (address, _server) = serve(async move |mut stream| {
            head(&mut stream).await;
            stream.write_all(said.as_bytes()).await.expect("said");
            if reset {
                stream.set_zero_linger().expect("a reset");
            }
        })
        .await;
        assert_eq!(outcome(address, Check::Http(get("/"))).await, wanted);
    }
    let (address, _server) = serve(async |mut stream| to_end(&mut stream).await).await;
    let found = in_vain(address, Check::Http(get("/"))).await;
    assert_eq!(found, dead("no HTTP answer within 1s"));
}

/// The time is that of the whole check, not of each step.
#[tokio::test]
async fn a_head_that_comes_byte_by_byte_is_cut_off() {
    let (address, server) = serve(async |mut stream| {
        head(&mut stream).await;
        let mut ticks = interval(Duration::from_millis(10));
        let answer = b"HTTP/1.1 200 OK\r\n".iter();
        let headers = b"a: b\r\n".iter().cycle();
        for (said, byte) in answer.chain(headers).enumerate() {
            ticks.tick().await;
            if stream.write_all(&[*byte]).await.is_err() {
                return said;
            }
        }
        0
    })
    .await;
    let found = in_vain(address, Check::Http(get("/"))).await;
    assert_eq!(found, dead("no HTTP answer within 1s"));
    assert!(server.await.expect("served") > 1);
}

/// The status is enough: a check never waits for a body, and never keeps one.
#[tokio::test]
async fn a_body_of_any_size_is_not_waited_for() {
    const BODY: usize = 10 << 20;
    let (address, server) = serve(async |mut stream| {
        head(&mut stream).await;
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {BODY}\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.expect("said");
        stream.write_all(&vec![b'x'; BODY]).await
    })
    .await;
    assert_eq!(
        outcome(address, Check::Http(get("/"))).await,
        good("200 OK")
    );
    server.await.expect("served").expect_err("it is not read");
    // One that never comes.
    let (address, server) = saying("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await;
    assert_eq!(
        outcome(address, Check::Http(get("/"))).await,
        good("200 OK")
    );
    assert_eq!(server.await.expect("served").1.expect("no reset"), 0);
}

/// What a server has seen: the request, the protocol that was agreed on, and how it ended.
type Seen = (String, Option<Vec<u8>>, usize);

async fn over_tls(
    config: Arc<ServerConfig>,
    answer: &'static str,
) -> (SocketAddrV4, JoinHandle<std::io::Result<Seen>>) {
    serve(async move |stream| {
        let mut stream = TlsAcceptor::from(config).accept(stream).await?;
        let request = head(&mut stream).await;
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
        let end = to_end(&mut stream).await?;
        let protocol = stream.get_ref().1.alpn_protocol();
        Ok((request, protocol.map(<[u8]>::to_vec), end))
    })
    .await
}

#[tokio::test]
async fn https_is_http_over_tls_and_ends_with_a_word() {
    let certificates = Certificates::new();
    let mut server = Arc::unwrap_or_clone(certificates.server());
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let server = Arc::new(server);
    for (answer, wanted) in [
        ("HTTP/1.1 200 OK\r\n\r\nok", good("200 OK")),
        (
            "HTTP/1.1 500 \r\n\r\n",
            not_ready("500 Internal Server Error"),
        ),
    ] {
        let (address, server) = over_tls(Arc::clone(&server), answer).await;
        let tls = trusting(Some(NAME), certificates.path("ca.pem"));
        let check = Check::https(tls, get("/readyz"));
        assert_eq!(outcome(address, check).await, wanted);
        let (request, protocol, end) = server.await.expect("served").expect("a clean end");
        assert!(request.starts_with("GET /readyz HTTP/1.1\r\n"), "{request}");
        assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
        assert_eq!(end, 0);
    }
}

/// With TLS 1.3 a client learns only after its own handshake that it should have had a certificate.
#[tokio::test]
async fn a_server_that_wants_a_certificate_is_there() {
    let certificates = Certificates::new();
    let mut roots = rustls::RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(certificates.path("ca.pem"));
    roots.add(ca.expect("a certificate")).expect("a CA");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let server = versions().with_client_cert_verifier(clients.build().expect("a verifier"));
    let key = PrivateKeyDer::from_pem_file(certificates.path("server.key")).expect("a key");
    let server = server.with_single_cert(certificates.chain(), key);
    let (address, _server) = over_tls(Arc::new(server.expect("a pair")), "").await;
    let check = Check::https(any_tls(), get("/"));
    let wanted = not_ready("TLS alert CertificateRequired");
    assert_eq!(outcome(address, check).await, wanted);
}

#[tokio::test]
async fn a_handshake_without_an_answer_is_dead() {
    let certificates = Certificates::new();
    let (address, _server) = serve({
        let server = certificates.server();
        async move |stream| {
            let mut stream = TlsAcceptor::from(server).accept(stream).await?;
            to_end(&mut stream).await
        }
    })
    .await;
    let check = Check::https(any_tls(), get("/"));
    let health = Health {
        timeout: Duration::from_secs(2),
        ..health(check)
    };
    let found = ask(address, health).await.expect("a check");
    assert_eq!(found, dead("no HTTP answer within 2s"));
}
