//! Connections of which a test holds both ends: its own sockets at the client and at the backend.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, SocketAddrV4, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    libc,
    sys::socket::{setsockopt, sockopt},
};

use crate::{poll, topology::Host, traffic::client};

/// How long a word may take from one end to the other.
const TIMEOUT: Duration = Duration::from_secs(20);
/// What a client says first, if it does not matter.
const FIRST: &[u8] = b"hello";

/// One client, one backend, and the address that the client connects to.
#[derive(Debug)]
pub struct Line<'t> {
    client: &'t Host,
    listener: TcpListener,
    to: SocketAddrV4,
    /// What the client says first.
    first: Vec<u8>,
}

impl<'t> Line<'t> {
    /// Listens at `port` of `backend`, for connections of `client` to `to`.
    ///
    /// # Errors
    ///
    /// When the port is taken.
    pub fn new(client: &'t Host, to: SocketAddrV4, backend: &Host, port: u16) -> Result<Self> {
        let address = SocketAddrV4::new(backend.address, port);
        let listener = backend
            .netns
            .inside(|| TcpListener::bind(address))?
            .with_context(|| format!("listen at {address} of {}", backend.name))?;
        listener
            .set_nonblocking(true)
            .context("accept with a deadline")?;
        Ok(Self {
            client,
            listener,
            to,
            first: FIRST.to_vec(),
        })
    }

    /// The same, with clients that say this first.
    #[must_use]
    pub fn saying(self, first: Vec<u8>) -> Self {
        Self { first, ..self }
    }

    /// Connects; a word has gone each way when this returns.
    ///
    /// # Errors
    ///
    /// When the connection is refused or carries nothing.
    pub fn open(&self) -> Result<Pair> {
        self.open_at(self.to)
    }

    /// Connects to another address that has the same backend.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub fn open_at(&self, to: SocketAddrV4) -> Result<Pair> {
        self.complete(self.client.netns.inside(|| client::open(None, to))??)
    }

    /// The same for a client that has connected, and sent nothing yet.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub fn complete(&self, client: TcpStream) -> Result<Pair> {
        // Behind SYN cookies a backend knows of a connection from its first word on.
        (&client)
            .write_all(&self.first)
            .context("send the first word")?;
        let accepted = poll::until("a connection at the backend", TIMEOUT, || {
            match self.listener.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                accepted => accepted.context("accept").map(Some),
            }
        });
        let (server, peer) = accepted?;
        let SocketAddr::V4(snat) = peer else {
            bail!("{peer} is no IPv4 peer")
        };
        hear(&server, &self.first).context("from the client")?;
        server.set_nodelay(true).context("send at once")?;
        let pair = Pair {
            client,
            server,
            snat,
        };
        pair.talk()?;
        Ok(pair)
    }

    /// Connects `count` times.
    ///
    /// # Errors
    ///
    /// As for [`Self::open`].
    pub fn open_many(&self, count: usize) -> Result<Vec<Pair>> {
        let open = |number| self.open().with_context(|| format!("connection {number}"));
        (0..count).map(open).collect()
    }

    /// Tries to connect, which must be refused; how long that took.
    ///
    /// # Errors
    ///
    /// When it is not.
    pub fn is_refused(&self) -> Result<Duration> {
        refused(self.client, self.to)
    }
}

/// Tries to connect from `client` to `to`, which must be refused; how long that took.
///
/// # Errors
///
/// When it is not.
pub fn refused(client: &Host, to: SocketAddrV4) -> Result<Duration> {
    let start = Instant::now();
    let Err(error) = client.netns.inside(|| client::open(None, to))? else {
        bail!("{to} lets {} in", client.name)
    };
    let error = error.root_cause().to_string();
    ensure!(error.starts_with("ECONNREFUSED"), "{error}");
    Ok(start.elapsed())
}

/// Both ends of a connection.
#[derive(Debug)]
pub struct Pair {
    /// The client's.
    pub client: TcpStream,
    /// The backend's.
    pub server: TcpStream,
    /// The client as the backend sees it.
    pub snat: SocketAddrV4,
}

impl Pair {
    /// Sends a word each way.
    ///
    /// # Errors
    ///
    /// When it does not arrive.
    pub fn talk(&self) -> Result<()> {
        say(&self.client, &self.server, b"request").context("from the client")?;
        say(&self.server, &self.client, b"reply").context("from the backend")
    }

    /// Waits until both ends are reset, and returns how long it took until the first was, and from
    /// then until the other was.
    ///
    /// # Errors
    ///
    /// When one of them ends otherwise, or lives for longer than `limit`.
    pub fn wait_for_resets(&self, limit: Duration) -> Result<[Duration; 2]> {
        let first = wait_for_reset(&self.client, limit).context("at the client")?;
        let second = wait_for_reset(&self.server, TIMEOUT).context("at the backend")?;
        Ok([first, second])
    }
}

/// Sends `word` from one end to the other.
///
/// # Errors
///
/// When it does not arrive.
pub fn say(mut from: &TcpStream, to: &TcpStream, word: &[u8]) -> Result<()> {
    from.write_all(word).context("send")?;
    hear(to, word)
}

/// Waits until `word` arrives.
///
/// # Errors
///
/// When something else does, or nothing in time.
pub fn hear(mut to: &TcpStream, word: &[u8]) -> Result<()> {
    to.set_read_timeout(Some(TIMEOUT))
        .context("set the read timeout")?;
    let mut heard = vec![0; word.len()];
    to.read_exact(&mut heard).context("receive")?;
    ensure!(heard == word, "{heard:?} came of {word:?}");
    Ok(())
}

/// Waits until this end is reset; how long that took.
///
/// # Errors
///
/// When it ends otherwise, or lives for longer than `limit`.
pub fn wait_for_reset(mut end: &TcpStream, limit: Duration) -> Result<Duration> {
    let start = Instant::now();
    end.set_read_timeout(Some(limit))
        .context("set the read timeout")?;
    match end.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(start.elapsed()),
        Err(error) => Err(error).context("no reset"),
        Ok(bytes) => bail!("{bytes} bytes instead of a reset"),
    }
}

/// Closes this end by a reset.
///
/// # Errors
///
/// When the kernel refuses.
pub fn reset(end: TcpStream) -> Result<()> {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&end, sockopt::Linger, &at_once).context("close by a reset")?;
    drop(end);
    Ok(())
}
