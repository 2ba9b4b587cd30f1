//! A small TCP server of our own on a node, for what nginx cannot do: it tells who it saw, and
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

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read, Write},
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
    pattern::{Digest, Pattern, copy_digest},
    process,
    topology::{ECHO_NODE_PORT, Host},
};

/// A connection that is silent for this long is given up, so that no thread waits for ever.
const SILENCE: Duration = Duration::from_secs(60);

/// The server on one node; its threads live in the node's namespace and end with it.
#[derive(Debug)]
pub struct EchoServer<'t> {
    node: &'t Host,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug)]
struct Shared {
    node: &'static str,
    stopping: AtomicBool,
    seen: Mutex<BTreeMap<Ipv4Addr, u64>>,
}

impl<'t> EchoServer<'t> {
    /// Starts the server on the echo NodePort of `node`; it listens when this returns.
    ///
    /// # Errors
    ///
    /// When the port cannot be bound.
    pub fn start(node: &'t Host) -> Result<Self> {
        let listener = node
            .netns
            .inside(|| TcpListener::bind((node.address, ECHO_NODE_PORT)))?
            .with_context(|| format!("listen on {}", node.name))?;
        let shared = Arc::new(Shared {
            node: node.name,
            stopping: AtomicBool::new(false),
            seen: Mutex::new(BTreeMap::new()),
        });
        let for_thread = Arc::clone(&shared);
        let acceptor = node.netns.spawn(move || accept(&listener, &for_thread))?;
        Ok(Self {
            node,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// The addresses that connected so far, each with its number of connections.
    pub fn seen(&self) -> BTreeMap<Ipv4Addr, u64> {
        self.shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for EchoServer<'_> {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // `accept` has no deadline: one last connection from the node itself wakes it.
        if let Err(error) = wake(&self.node.netns, self.node.address) {
            process::complain(format_args!(
                "end the echo server on {}: {error:#}",
                self.node.name
            ));
            return;
        }
        match self.acceptor.take().map(JoinHandle::join) {
            Some(Ok(Err(error))) => {
                process::complain(format_args!("echo server on {}: {error:#}", self.node.name))
            }
            Some(Err(_)) => process::complain(format_args!(
                "the echo server on {} panicked",
                self.node.name
            )),
            Some(Ok(Ok(()))) | None => {}
        }
    }
}

fn wake(netns: &Netns, address: Ipv4Addr) -> Result<()> {
    netns
        .inside(|| TcpStream::connect((address, ECHO_NODE_PORT)))?
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
        let node = shared.node;
        thread::Builder::new()
            .name(format!("{node}-echo"))
            .spawn(move || {
                // A client that goes away in the middle is the client's business to report.
                if let Err(error) = serve(&stream, node, peer) {
                    process::complain(format_args!("echo server on {node}, {peer}: {error:#}"));
                }
            })
            .context("start a thread")?;
    }
}

fn serve(stream: &TcpStream, node: &str, peer: SocketAddr) -> Result<()> {
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
                .write_all(format!("{node} {peer}\n").as_bytes())
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
        _ => bail!("no such request: {line:?}"),
    }
}

/// The client closes first, so that TIME_WAIT stays with it and not with the node's port.
fn wait_for_close(requests: &mut impl Read) -> Result<()> {
    std::io::copy(requests, &mut std::io::sink()).context("wait for the client to close")?;
    Ok(())
}
