//! Servers that are written here: the test sets what they send.

use std::{future::Future, io, net::SocketAddrV4};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::LOCALHOST;

/// A port without a listener.
pub(super) async fn closed_port() -> SocketAddrV4 {
    let (listener, address) = listen().await;
    drop(listener);
    address
}

pub(super) async fn listen() -> (TcpListener, SocketAddrV4) {
    let listener = TcpListener::bind((LOCALHOST, 0)).await.expect("a port");
    let std::net::SocketAddr::V4(address) = listener.local_addr().expect("its address") else {
        panic!("an IPv4 address");
    };
    (listener, address)
}

/// A server for one connection; what `serve` makes of it is the handle's.
pub(super) async fn serve<T, F>(
    serve: impl FnOnce(TcpStream) -> F + Send + 'static,
) -> (SocketAddrV4, JoinHandle<T>)
where
    T: Send + 'static,
    F: Future<Output = T> + Send,
{
    let (listener, address) = listen().await;
    let handle = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        serve(stream).await
    });
    (address, handle)
}

/// A server that reads a request, sends this, and closes; the request that it got, and how that ended.
pub(super) async fn saying(
    answer: impl Into<Vec<u8>>,
) -> (SocketAddrV4, JoinHandle<(String, io::Result<usize>)>) {
    let answer = answer.into();
    serve(async move |mut stream| {
        let request = head(&mut stream).await;
        let said = stream.write_all(&answer).await;
        assert!(said.is_ok(), "{said:?}");
        let end = to_end(&mut stream).await;
        (request, end)
    })
    .await
}

/// Reads up to an empty line.
pub(super) async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("the rest of a head"));
    }
    String::from_utf8(head).expect("text")
}

/// Reads until the client's FIN, or until it resets the connection; how many bytes.
pub(super) async fn to_end(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await
}
