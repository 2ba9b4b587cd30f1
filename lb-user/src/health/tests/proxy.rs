use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    server::{head, serve, to_end},
    *,
};

/// The LOCAL header: a connection without a client.
const LOCAL: &[u8; 16] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// The first bytes of a connection.
async fn first(stream: &mut TcpStream) -> [u8; 16] {
    let mut first = [0; 16];
    stream.read_exact(&mut first).await.expect("a header");
    first
}

async fn told(address: SocketAddrV4, check: Check) -> CheckOutcome {
    let target = CheckTarget {
        send_proxy_header: true,
        ..target(address, health(check))
    };
    let (outcome, open) = ask_openly(&target).await.expect("a check");
    open.close().await;
    outcome
}

#[tokio::test]
async fn who_expects_a_header_is_told_that_a_check_is_nobodys() {
    let (address, server) =
        serve(async |mut stream| (first(&mut stream).await, to_end(&mut stream).await)).await;
    assert_eq!(told(address, Check::Tcp).await, good("connected"));
    let (header, end) = server.await.expect("served");
    assert_eq!((&header, end.expect("no reset")), (LOCAL, 0));

    let (address, server) = serve(async |mut stream| {
        let header = first(&mut stream).await;
        head(&mut stream).await;
        let answer = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        answer.expect("said");
        header
    })
    .await;
    let outcome = told(address, Check::Http(get("/"))).await;
    assert_eq!(outcome, good("204 No Content"));
    assert_eq!(&server.await.expect("served"), LOCAL);
}

/// In front of TLS, whose own first record is what comes next.
#[tokio::test]
async fn the_header_comes_before_tls() {
    for check in [Check::Tls(any_tls()), Check::https(any_tls(), get("/"))] {
        let (address, server) = serve(async |mut stream| {
            let header = first(&mut stream).await;
            (header, stream.read_u8().await.expect("a record"))
        })
        .await;
        let outcome = told(address, check).await;
        assert!(matches!(outcome, CheckOutcome::Dead(_)), "{outcome:?}");
        assert_eq!(server.await.expect("served"), (*LOCAL, 22));
    }
}

#[tokio::test]
async fn who_expects_none_gets_none() {
    let (address, server) = serve(async |mut stream| head(&mut stream).await).await;
    outcome(address, Check::Http(get("/"))).await;
    assert!(server.await.expect("served").starts_with("GET / "));
}
