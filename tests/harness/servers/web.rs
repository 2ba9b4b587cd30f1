//! A small HTTP server of our own: it reads a request to the end of its body, however slowly that comes, and
//! answers with its name.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddrV4, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow};
use nix::sys::socket;

use crate::{process::complain, topology::Host};

/// A connection that is silent for this long is given up.
const SILENCE: Duration = Duration::from_secs(120);

/// The server on one node; it ends with this.
#[derive(Debug)]
pub struct Web {
    listener: TcpListener,
    acceptor: Option<JoinHandle<Result<()>>>,
}

impl Web {
    /// Listens at a port of a host, under a name of its own.
    ///
    /// # Errors
    ///
    /// When the port is taken.
    pub fn start(host: &Host, port: u16, name: &str) -> Result<Self> {
        let at = SocketAddrV4::new(host.address, port);
        let listener = host.netns.inside(|| TcpListener::bind(at))?;
        let listener = listener.with_context(|| format!("listen at {at}"))?;
        let accepting = listener.try_clone().context("share the listener")?;
        let name = name.to_owned();
        let acceptor = host.netns.spawn(move || {
            // Until the listener is shut down.
            while let Ok((stream, _)) = accepting.accept() {
                let name = name.clone();
                let work = move || {
                    // The client's business to report.
                    let _gone: Result<()> = serve(&stream, &name);
                };
                let started = thread::Builder::new().spawn(work);
                started.context("start a thread")?;
            }
            Ok(())
        })?;
        Ok(Self {
            listener,
            acceptor: Some(acceptor),
        })
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        // Refused only for what does not listen.
        let _refused = socket::shutdown(self.listener.as_raw_fd(), socket::Shutdown::Both);
        let ended = self.acceptor.take().map(JoinHandle::join);
        let ended = ended.unwrap_or(Ok(Ok(())));
        if let Err(error) = ended.unwrap_or_else(|_| Err(anyhow!("panicked"))) {
            complain(format_args!("an HTTP server: {error:#}"));
        }
    }
}

/// One request after the other.
fn serve(stream: &TcpStream, name: &str) -> Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    let mut requests = BufReader::new(stream);
    while let Some(body) = head(&mut requests)? {
        let read = std::io::copy(&mut (&mut requests).take(body), &mut std::io::sink())?;
        if read < body {
            break;
        }
        let length = name.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}");
        (&mut &*stream).write_all(answer.as_bytes())?;
    }
    stream.shutdown(Shutdown::Both)?;
    Ok(())
}

/// Reads a head; the length of the body behind it, or `None` at the end.
fn head(requests: &mut BufReader<&TcpStream>) -> Result<Option<u64>> {
    let mut body = 0;
    loop {
        let mut line = String::new();
        if requests.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let Some((key, value)) = line.trim().split_once(':') else {
            if line.trim().is_empty() {
                return Ok(Some(body));
            }
            continue;
        };
        if key.eq_ignore_ascii_case("content-length") {
            body = value.trim().parse().context("a length")?;
        }
    }
}
