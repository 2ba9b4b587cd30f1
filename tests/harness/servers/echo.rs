//! A small TCP server of our own, for what nginx cannot do: it tells who it saw, and
//! moves bulk data in either direction with a digest on both sides.
//!
//! The first line of a connection says what it is for:
//!
//! | line               | the server                                                          |
//! |--------------------|---------------------------------------------------------------------|
//! | `who`              | answers `<node> <peer>` and waits for the client to close first     |
//! | `echo`             | sends every byte back until the client closes its direction         |
//! | `sink BYTES`       | reads BYTES, answers their SHA-256 in hex as one line                |
//! | `source BYTES SEED`| sends BYTES of a pattern, then their SHA-256 in hex as one line      |
//! | `secret WORD`      | answers `<node> <peer>`, then every line `WORD ROUND` with the same  |

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    netns::Netns,
    process,
    traffic::pattern::{Digest, Pattern, copy_digest},
};

/// A connection that is silent for this long is given up, so that no thread waits for ever.
const SILENCE: Duration = Duration::from_secs(600);

/// The server on one node; its threads live in the node's namespace and end with it.
#[derive(Debug)]
pub struct EchoServer<'t> {
    netns: &'t Netns,
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    stopping: AtomicBool,
    seen: Mutex<BTreeMap<Ipv4Addr, u64>>,
    mixed_up: Mutex<Vec<String>>,
}

impl<'t> EchoServer<'t> {
    /// Starts the server at an address of `netns`, under a name of its own; it listens when this
    /// returns.
    ///
    /// # Errors
    ///
    /// When the port cannot be bound.
    pub fn start(netns: &'t Netns, address: impl Into<SocketAddr>, name: &str) -> Result<Self> {
        let address = address.into();
        let listener = netns
            .inside(|| TcpListener::bind(address))?
            .with_context(|| format!("listen at {address} of {}", netns.name()))?;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            stopping: AtomicBool::new(false),
            seen: Mutex::default(),
            mixed_up: Mutex::default(),
        });
        let for_thread = Arc::clone(&shared);
        let acceptor = netns.spawn(move || accept(&listener, &for_thread))?;
        Ok(Self {
            netns,
            address,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// The IPv4 addresses that connected so far, each with its number of connections.
    pub fn seen(&self) -> BTreeMap<Ipv4Addr, u64> {
        self.shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Lines that came on a connection whose secret they do not carry.
    pub fn mixed_up(&self) -> Vec<String> {
        self.shared
            .mixed_up
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for EchoServer<'_> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // `accept` has no deadline: one last connection from the node itself wakes it.
        if let Err(error) = wake(self.netns, self.address) {
            process::complain(format_args!(
                "end the echo server on {}: {error:#}",
                self.shared.name
            ));
            return;
        }
        match self.acceptor.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => process::complain(format_args!(
                "echo server on {}: {error:#}",
                self.shared.name
            )),
            Some(Err(_)) => process::complain(format_args!(
                "the echo server on {} panicked",
                self.shared.name
            )),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

fn wake(netns: &Netns, address: SocketAddr) -> Result<()> {
    netns
        .inside(|| TcpStream::connect(address))?
        .map(drop)
        .context("connect to itself")
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) -> Result<()> {
    loop {
        let (stream, peer) = listener.accept().context("accept")?;
        if shared.stopping.load(Ordering::Acquire) {
            return Ok(());
        }
        if let SocketAddr::V4(peer) = peer {
            let mut seen = shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
            *seen.entry(*peer.ip()).or_default() += 1;
        }
        let shared = Arc::clone(shared);
        thread::Builder::new()
            .name(format!("{}-echo", shared.name))
            .spawn(move || {
                // A client that goes away in the middle is the client's business to report.
                if let Err(error) = serve(&stream, &shared, peer) {
                    let name = &shared.name;
                    process::complain(format_args!("echo server on {name}, {peer}: {error:#}"));
                }
            })
            .context("start a thread")?;
    }
}

fn serve(stream: &TcpStream, shared: &Shared, peer: SocketAddr) -> Result<()> {
    let name = &shared.name;
    stream
        .set_read_timeout(Some(SILENCE))
        .context("set the read timeout")?;
    stream
        .set_write_timeout(Some(SILENCE))
        .context("set the write timeout")?;
    stream.set_nodelay(true).context("send at once")?;
    let mut requests = BufReader::new(stream);
    let mut replies = stream;
    let mut line = String::new();
    requests
        .read_line(&mut line)
        .context("read the first line")?;

    let words: Vec<&str> = line.split_whitespace().collect();
    match words.as_slice() {
        // A probe that only connects and closes.
        [] => Ok(()),
        ["who"] => {
            replies
                .write_all(format!("{name} {peer}\n").as_bytes())
                .context("answer")?;
            wait_for_close(&mut requests)
        }
        ["echo"] => {
            std::io::copy(&mut requests, &mut replies).context("echo")?;
            Ok(())
        }
        ["sink", bytes] => {
            let digest = copy_digest(&mut requests, bytes.parse()?)?;
            replies
                .write_all(format!("{digest}\n").as_bytes())
                .context("answer")?;
            wait_for_close(&mut requests)
        }
        ["source", bytes, seed] => {
            let digest: Digest = Pattern::new(seed.parse()?).send(&mut replies, bytes.parse()?)?;
            replies
                .write_all(format!("{digest}\n").as_bytes())
                .context("answer")?;
            wait_for_close(&mut requests)
        }
        ["secret", secret] => {
            replies
                .write_all(format!("{name} {peer}\n").as_bytes())
                .context("answer")?;
            repeat(requests, replies, secret, shared)
        }
        _ => bail!("no such request: {line:?}"),
    }
}

/// Answers lines that carry the secret; the first other one is noted and ends the connection.
fn repeat(
    requests: impl BufRead,
    mut replies: impl Write,
    secret: &str,
    shared: &Shared,
) -> Result<()> {
    for line in requests.lines() {
        let line = match line {
            // A client that forgets a connection without a FIN is no failure of ours.
            Err(silence) if silence.kind() == ErrorKind::WouldBlock => return Ok(()),
            line => line.context("read a line")?,
        };
        if line.split(' ').next() != Some(secret) {
            let words = format!("{}: {line:?} came to {secret}", shared.name);
            let mixed_up = &shared.mixed_up;
            mixed_up
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(words);
            return Ok(());
        }
        replies
            .write_all(format!("{line}\n").as_bytes())
            .context("answer a line")?;
    }
    Ok(())
}

/// The client closes first, so that TIME_WAIT stays with it and not with the node's port.
fn wait_for_close(requests: &mut impl Read) -> Result<()> {
    std::io::copy(requests, &mut std::io::sink()).context("wait for the client to close")?;
    Ok(())
}
