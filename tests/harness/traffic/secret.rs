//! A connection with a secret of its own: the server answers nothing else on it, and the client
//! takes nothing else. A byte that reaches another connection is seen at both ends.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddrV4, TcpStream},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    libc::linger,
    sys::socket::{setsockopt, sockopt},
};
use sha2::{Digest as _, Sha256};

use crate::{netns::Netns, traffic::client};

/// The client's end of a connection to `secret` of the echo server.
#[derive(Debug)]
pub struct SecretFlow {
    stream: BufReader<TcpStream>,
    secret: String,
    rounds: u64,
    server: String,
    peer: SocketAddrV4,
}

impl SecretFlow {
    /// Connects from `from` in `netns`, or from anywhere there, and learns who answers.
    ///
    /// # Errors
    ///
    /// When no server answers.
    pub fn open(netns: &Netns, from: Option<SocketAddrV4>, to: SocketAddrV4) -> Result<Self> {
        let stream = netns.inside(|| client::open_from(from, to))??;
        let mut flow = Self {
            stream: BufReader::new(stream),
            secret: secret(),
            rounds: 0,
            server: String::new(),
            peer: to,
        };
        let line = flow.ask(&format!("secret {}\n", flow.secret))?;
        let (server, peer) = line
            .split_once(' ')
            .with_context(|| format!("answer {line:?}"))?;
        flow.server = server.to_owned();
        flow.peer = peer.parse().with_context(|| format!("answer {line:?}"))?;
        Ok(flow)
    }

    /// The server that answers.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The client as the server sees it.
    pub const fn peer(&self) -> SocketAddrV4 {
        self.peer
    }

    /// The client's own end.
    ///
    /// # Errors
    ///
    /// When the connection is gone.
    pub fn local(&self) -> Result<String> {
        Ok(self.stream.get_ref().local_addr()?.to_string())
    }

    /// Waits no longer than this for an answer from now on.
    ///
    /// # Errors
    ///
    /// When the socket refuses.
    pub fn set_patience(&self, limit: Duration) -> Result<()> {
        self.stream
            .get_ref()
            .set_read_timeout(Some(limit))
            .context("set the receive timeout")
    }

    /// Forgets the connection at once: its port is free again, whatever becomes of the other end.
    ///
    /// # Errors
    ///
    /// When the socket refuses.
    pub fn abort(self) -> Result<()> {
        let at_once = linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(self.stream.get_ref(), sockopt::Linger, &at_once).context("do not linger")
    }

    /// Sends the secret with a number that is new, and takes nothing but the same back.
    ///
    /// # Errors
    ///
    /// When something else comes, or nothing.
    pub fn round(&mut self) -> Result<()> {
        let line = format!("{} {}", self.secret, self.rounds);
        self.rounds += 1;
        let answer = self.ask(&format!("{line}\n"))?;
        ensure!(answer == line, "sent {line:?}, and {answer:?} came back");
        Ok(())
    }

    fn ask(&mut self, words: &str) -> Result<String> {
        self.stream
            .get_mut()
            .write_all(words.as_bytes())
            .context("send")?;
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).context("receive")?;
        ensure!(read > 0, "the connection was closed");
        Ok(line.trim_end().to_owned())
    }
}

/// 128 bits that no other connection has.
fn secret() -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut sha = Sha256::new();
    sha.update(std::process::id().to_le_bytes());
    sha.update(time.as_nanos().to_le_bytes());
    sha.update(NUMBER.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    sha.finalize()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
