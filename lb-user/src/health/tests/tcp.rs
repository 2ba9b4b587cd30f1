use std::net::{IpAddr, SocketAddr};

use tokio::io::AsyncWriteExt as _;

use super::{
    server::{closed_port, listen, serve, to_end},
    *,
};

#[tokio::test]
async fn a_connection_is_good_and_ends_without_a_reset() {
    // A server that sends nothing, and ones that greet before the client has sent anything.
    for greeting in [&b""[..], b"220 ready\r\n", &[7; 100_000]] {
        let (address, server) = serve(async move |mut stream| {
            let peer = stream.peer_addr().expect("a peer");
            stream.write_all(greeting).await.expect("said");
            (peer, to_end(&mut stream).await)
        })
        .await;
        assert_eq!(outcome(address, Check::Tcp).await, good("connected"));
        let (peer, end) = server.await.expect("served");
        assert_eq!(peer.ip(), IpAddr::V4(SOURCE), "where a check comes from");
        assert_eq!(end.expect("no reset"), 0);
    }
}

/// A server that never closes is not waited for.
#[tokio::test]
async fn the_last_words_of_a_check_take_a_moment_at_most() {
    let (listener, address) = listen().await;
    let begin = Instant::now();
    assert_eq!(outcome(address, Check::Tcp).await, good("connected"));
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(250), "{took:?}");
    assert!(took < LONG, "{took:?}");
    drop(listener);
}

#[tokio::test]
async fn who_refuses_is_dead() {
    let address = closed_port().await;
    for check in [
        Check::Tcp,
        Check::Tls(any_tls()),
        Check::Http(get("/")),
        Check::https(any_tls(), get("/")),
    ] {
        assert_eq!(outcome(address, check).await, dead("connection refused"));
    }
}

/// A listener whose queue is full does not answer a SYN.
#[tokio::test]
async fn who_does_not_answer_is_dead_in_time() {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind(SocketAddr::from((LOCALHOST, 0)))
        .expect("a port");
    let listener = socket.listen(0).expect("a listener");
    let address = listener.local_addr().expect("its address");
    let SocketAddr::V4(address) = address else {
        panic!("an IPv4 address");
    };
    let mut full = Vec::new();
    while let Ok(Ok(stream)) =
        tokio::time::timeout(SHORT, tokio::net::TcpStream::connect(address)).await
    {
        full.push(stream);
    }
    let silent = in_vain(address, Check::Tcp).await;
    assert_eq!(silent, dead("no connection within 1s"));
}

/// That a check cannot be made is no verdict on the backend.
#[tokio::test]
async fn what_this_host_lacks_is_no_outcome() {
    let (_listener, address) = listen().await;
    let target = CheckTarget {
        source: Ipv4Addr::new(192, 0, 2, 1).into(),
        ..target(address, health(Check::Tcp))
    };
    let error = ask_openly(&target).await.err().expect("no outcome");
    let words = format!("{error:#}");
    assert!(
        words.starts_with("open a socket from 192.0.2.1: "),
        "{words}"
    );
    for check in [
        Check::Http(get("/with space")),
        Check::Http(Get {
            host: Some("two\nlines".to_owned()),
            ..get("/")
        }),
    ] {
        let (_listener, address) = listen().await;
        let error = ask(address, health(check)).await.expect_err("no outcome");
        assert!(format!("{error:#}").starts_with("ask for "), "{error:#}");
    }
}

/// A port that is taken before the destination is known is taken for all destinations, and a cell has a
/// thousand.
#[tokio::test]
async fn the_port_is_chosen_when_it_is_known_for_whom() {
    let socket = crate::health::connection::socket(SOURCE.into()).expect("a socket");
    let bound = socket.local_addr().expect("its address");
    assert_eq!(bound, SocketAddr::from((SOURCE, 0)));
}
