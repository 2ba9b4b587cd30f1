//! The thread that sends lines to a syslog server. A server that is away costs lines once too many wait, and nothing
//! else.

use std::{
    io::{self, ErrorKind, Write as _},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    os::unix::net::UnixDatagram,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use crate::{config::SyslogServer, network::cell_thread};

/// Lines that wait for the server at most.
const MAX_WAITING: usize = 1024;
/// How long the server may take to accept a connection, and to read.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a failure a line is sent again: at first, and at most.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How often a thread that waits looks whether it is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the end of the process waits for the server.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Sends lines, without ever waiting for the server.
#[derive(Debug)]
pub(super) struct Sender {
    /// None while this is dropped.
    lines: Option<SyncSender<Vec<u8>>>,
    lost: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    done: Receiver<()>,
}

impl Sender {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub(super) fn start(server: SyslogServer) -> Result<Self> {
        let (lines, texts) = mpsc::sync_channel::<Vec<u8>>(MAX_WAITING);
        let (finished, done) = mpsc::sync_channel(1);
        let lost = Arc::new(AtomicU64::new(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let mut target = Target {
            server,
            connection: None,
            lost: Arc::clone(&lost),
            is_over: Arc::clone(&is_over),
            failure: None,
        };
        let work = move |()| {
            while let Ok(text) = texts.recv() {
                target.deliver(&text);
            }
            // The receiver is gone if the server has taken too long.
            let _late: Result<(), mpsc::SendError<()>> = finished.send(());
        };
        cell_thread::start("lb-syslog".to_owned(), None, || Ok(()), work)
            .context("start the thread that sends events to the syslog server")?;
        Ok(Self {
            lines: Some(lines),
            lost,
            is_over,
            done,
        })
    }

    /// Sends a line soon, or counts it as lost.
    pub(super) fn send(&self, line: Vec<u8>) {
        let sent = self.lines.as_ref().map(|lines| lines.try_send(line));
        if !matches!(sent, Some(Ok(()))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends what waits, if the server takes it soon.
    pub(super) fn finish(mut self) {
        self.end();
        let _in_time: Result<(), RecvTimeoutError> = self.done.recv_timeout(FLUSH_TIMEOUT);
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.lines.take());
    }
}

impl Drop for Sender {
    /// What the server takes at once is still sent.
    fn drop(&mut self) {
        self.end();
    }
}

/// The server, as the thread sees it.
struct Target {
    server: SyslogServer,
    connection: Option<Connection>,
    lost: Arc<AtomicU64>,
    /// Whether lines that the server does not take at once are not sent again.
    is_over: Arc<AtomicBool>,
    /// Why lines are not sent, as it was logged.
    failure: Option<String>,
}

enum Connection {
    Unix(UnixDatagram),
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Target {
    /// Sends a line until the server takes it, or the thread is to end.
    fn deliver(&mut self, text: &[u8]) {
        let mut pause = FIRST_RETRY;
        loop {
            let Err(error) = self.try_send(text) else {
                self.note_sent();
                return;
            };
            self.connection = None;
            self.note_failure(&error);
            if !self.wait(pause) {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            pause = MAX_RETRY_INTERVAL.min(2 * pause);
        }
    }

    fn try_send(&mut self, text: &[u8]) -> io::Result<()> {
        let connection = match self.connection.take().filter(Connection::is_open) {
            Some(connection) => connection,
            None => Connection::to(&self.server)?,
        };
        connection.send(text)?;
        self.connection = Some(connection);
        Ok(())
    }

    fn note_sent(&mut self) {
        if self.failure.take().is_some() {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            tracing::warn!(
                "events go to the syslog server {} again; {lost} were lost",
                self.server
            );
        }
    }

    fn note_failure(&mut self, error: &io::Error) {
        if self.failure.is_none() {
            tracing::error!(
                "send an event to the syslog server {} (log.syslog): {error}; trying again, and {MAX_WAITING} wait \
                 at most",
                self.server
            );
        }
        self.failure = Some(error.to_string());
    }

    /// Waits; whether the thread goes on then.
    fn wait(&self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        while Instant::now() < until {
            if self.is_over.load(Ordering::Relaxed) {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        !self.is_over.load(Ordering::Relaxed)
    }
}

impl Connection {
    fn to(server: &SyslogServer) -> io::Result<Self> {
        match server {
            SyslogServer::Unix(path) => {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Unix(socket))
            }
            SyslogServer::Udp(address) => {
                let any: SocketAddr = match address {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                let socket = UdpSocket::bind(any)?;
                socket.connect(address)?;
                socket.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Udp(socket))
            }
            SyslogServer::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                stream.set_nodelay(true)?;
                stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
                Ok(Self::Tcp(stream))
            }
        }
    }

    /// Whether the server has not closed it: what is written after that is lost without an error.
    fn is_open(&self) -> bool {
        let Self::Tcp(stream) = self else {
            return true;
        };
        let peeked = stream
            .set_nonblocking(true)
            .and_then(|()| stream.peek(&mut [0]));
        let is_silent = matches!(&peeked, Err(error) if error.kind() == ErrorKind::WouldBlock);
        (is_silent || peeked.is_ok_and(|bytes| bytes > 0)) && stream.set_nonblocking(false).is_ok()
    }

    fn send(&self, text: &[u8]) -> io::Result<()> {
        match self {
            Self::Unix(socket) => socket.send(text).map(drop),
            Self::Udp(socket) => socket.send(text).map(drop),
            Self::Tcp(stream) => {
                let mut stream = stream;
                stream.write_all(&[format!("{} ", text.len()).as_bytes(), text].concat())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, net::TcpListener};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn datagrams_have_a_line_each() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let unix = UnixDatagram::bind(&path).unwrap();
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        unix.set_read_timeout(Some(LIMIT)).unwrap();
        udp.set_read_timeout(Some(LIMIT)).unwrap();
        let to_unix = Sender::start(SyslogServer::Unix(path)).unwrap();
        let to_udp = Sender::start(SyslogServer::Udp(udp.local_addr().unwrap())).unwrap();
        for line in ["one", "two"] {
            to_unix.send(line.into());
            to_udp.send(line.into());
            let mut bytes = [0; 16];
            let length = unix.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], line.as_bytes());
            let length = udp.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], line.as_bytes());
        }
        to_unix.finish();
        to_udp.finish();
    }

    #[test]
    fn a_stream_has_lengths_and_is_made_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = Sender::start(SyslogServer::Tcp(listener.local_addr().unwrap())).unwrap();
        for (line, wanted) in [("one", "3 one"), ("a line", "6 a line")] {
            sender.send(line.into());
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let mut bytes = vec![0; wanted.len()];
            stream.read_exact(&mut bytes).unwrap();
            assert_eq!(bytes, wanted.as_bytes());
            // The server closes it, and the next line needs another one.
        }
        sender.finish();
    }

    #[test]
    fn a_server_that_is_away_keeps_no_sender_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let sender = Sender::start(SyslogServer::Unix(path.clone())).unwrap();
        let begun = Instant::now();
        for number in 0..2 * MAX_WAITING {
            sender.send(number.to_string().into());
        }
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert!(sender.lost.load(Ordering::Relaxed) >= 1000);
        // It comes, and gets what has waited, in order.
        let server = UnixDatagram::bind(&path).unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        for number in 0..MAX_WAITING {
            let mut bytes = [0; 16];
            let length = server.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], number.to_string().as_bytes());
        }
        drop(server);
        sender.send("lost".into());
        let begun = Instant::now();
        sender.finish();
        assert!(begun.elapsed() < 2 * FLUSH_TIMEOUT);
    }
}
