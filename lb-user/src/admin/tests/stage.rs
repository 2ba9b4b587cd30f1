//! A server on a thread of its own, with a control loop that a test writes.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread::{self, JoinHandle},
    time::Duration,
};

use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};

use crate::{
    admin::{
        client::{self, Failure},
        read_group::ReadGroup,
        server::{AdminTimeouts, Order, Server},
    },
    api::{Answer, Request},
};

/// Longer than anything takes that does not hang.
pub(super) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A running server; it ends with the value.
pub(super) struct Stage {
    pub(super) folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Stage {
    /// Serves with these times; `control` has each order.
    pub(super) fn start(
        times: AdminTimeouts,
        mut control: impl FnMut(Order) + Send + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server =
            Server::with_times(&folder.path().join("lb.sock"), times, ReadGroup::default());
        let server = server.unwrap();
        let (stop, mut stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let (sender, mut orders) = mpsc::channel(1);
                let serving = tokio::spawn(server.serve(sender));
                loop {
                    tokio::select! {
                        Some(order) = orders.recv() => control(order),
                        _ = &mut stopped => break,
                    }
                }
                drop(orders);
                serving.await.unwrap().unwrap();
            });
        });
        Self {
            folder,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// One that answers every request with its words.
    pub(super) fn echo(times: AdminTimeouts) -> Self {
        Self::start(times, |order| reply(order, echoed))
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("lb.sock")
    }

    pub(super) fn ask(&self, request: &Request) -> Result<Answer, Failure> {
        client::ask_at(&self.socket(), "test", request, TEST_TIMEOUT)
    }

    pub(super) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    }

    /// What comes back for these bytes, until the server closes.
    pub(super) fn exchange(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may have closed already.
        let _early: std::io::Result<()> = stream.write_all(bytes);
        rest(stream)
    }

    /// That it still does its work.
    pub(super) fn assert_works(&self) {
        assert_eq!(
            self.ask(&Request::Confirm).unwrap(),
            echoed(&Request::Confirm)
        );
    }

    /// Ends the control loop, and waits for the server.
    pub(super) fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.stop();
        }
    }
}

/// All that still comes; a server that resets has sent all that it will.
pub(super) fn rest(mut stream: UnixStream) -> String {
    let mut bytes = Vec::new();
    if let Err(error) = stream.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn reply(order: Order, answer: impl FnOnce(&Request) -> Answer) {
    let answer = answer(&order.request);
    // The client of the request may be gone.
    let _gone: Result<(), Answer> = order.reply.send(answer);
}

pub(super) fn echoed(request: &Request) -> Answer {
    Answer::Done {
        lines: vec![format!("{request:?}")],
    }
}

/// A whole request over HTTP.
pub(super) fn post(body: &str) -> Vec<u8> {
    format!(
        "POST /v1/request HTTP/1.1\r\nHost: lb\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Times that end what hangs soon.
pub(super) fn short() -> AdminTimeouts {
    AdminTimeouts {
        read: Duration::from_millis(500),
        ..AdminTimeouts::default()
    }
}
