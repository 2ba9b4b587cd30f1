//! One check: connect, speak TLS, ask by HTTP, as far as it goes; all of it within a time.

use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;

use super::{Outcome, Target, Verdict, http, tcp, tls};
use crate::{
    config::{self, Get, time_text},
    proxy_protocol::encode,
};

/// Characters of an outcome's words at most: some are a server's.
const MAX_WORDS: usize = 200;

/// The step until the backend is heard.
const CONNECTION: &str = "connection";

/// How a check ended that did not reach its end.
#[derive(Debug)]
pub(super) enum Fault {
    /// The backend gave another answer, in words.
    NotReady(String),
    /// It gave none.
    Dead(String),
    /// It was not asked, because this host could not: no outcome.
    Ours(anyhow::Error),
}

impl Fault {
    fn outcome(self) -> Result<Outcome> {
        match self {
            Self::NotReady(words) => Ok(Outcome::NotReady(clean(&words))),
            Self::Dead(words) => Ok(Outcome::Dead(clean(&words))),
            Self::Ours(error) => Err(error),
        }
    }
}

impl Outcome {
    /// The verdict that it speaks for.
    pub(super) const fn verdict(&self) -> Verdict {
        match self {
            Self::Good(_) => Verdict::Up,
            Self::NotReady(_) => Verdict::NotReady,
            Self::Dead(_) => Verdict::Dead,
        }
    }
}

/// A check that was made.
pub(super) struct Checked {
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
    /// Whether nothing was heard of it: it, or its next hop, may be at another MAC now.
    pub(super) was_silent: bool,
    /// What is still open.
    pub(super) open: Open,
}

/// A connection that is to be closed.
pub(super) enum Open {
    Nothing,
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Open {
    /// Closes it as a client does that has what it wanted; takes a moment at most.
    pub(super) async fn close(self) {
        match self {
            Self::Nothing => {}
            Self::Tcp(stream) => tcp::close(stream).await,
            Self::Tls(stream) => tls::close(*stream).await,
        }
    }
}

/// What is asked of whom.
#[derive(Debug)]
pub(super) struct Question<'a> {
    address: SocketAddr,
    is_told: bool,
    source: IpAddr,
    timeout: Duration,
    check: &'a config::Check,
    client: Option<Arc<ClientConfig>>,
    step: Cell<&'static str>,
}

impl<'a> Question<'a> {
    /// The question for a target; `client` is what it offers and accepts if it speaks TLS.
    pub(super) const fn new(target: &'a Target, client: Option<Arc<ClientConfig>>) -> Self {
        Self {
            address: target.address,
            is_told: target.is_told,
            source: target.source,
            timeout: target.health.timeout,
            check: &target.health.check,
            client,
            step: Cell::new(""),
        }
    }

    /// Asks.
    ///
    /// # Errors
    ///
    /// If this host could not ask.
    pub(super) async fn ask(&self) -> Result<Checked> {
        let begin = Instant::now();
        let asked = timeout(self.timeout, self.steps()).await;
        let took = begin.elapsed();
        let was_silent = asked.is_err() && self.step.get() == CONNECTION;
        let (outcome, open) = match asked {
            Ok(Ok((outcome, open))) => (outcome, open),
            Ok(Err(fault)) => (fault.outcome()?, Open::Nothing),
            Err(_) => {
                let words = format!("no {} within {}", self.step.get(), time_text(self.timeout));
                (Outcome::Dead(words), Open::Nothing)
            }
        };
        Ok(Checked {
            outcome,
            took,
            was_silent,
            open,
        })
    }

    async fn steps(&self) -> Result<(Outcome, Open), Fault> {
        self.step.set(CONNECTION);
        let mut stream = tcp::connect(self.source, self.address).await?;
        if self.is_told {
            let header = encode::local().context("say that a check is nobody's");
            tcp::say(&mut stream, &header.map_err(Fault::Ours)?).await?;
        }
        match self.check {
            config::Check::Tcp => Ok((Outcome::Good("connected".to_owned()), Open::Tcp(stream))),
            config::Check::Tls(tls) => {
                let stream = self.handshake(stream, tls).await?;
                let version = stream.get_ref().1.protocol_version();
                let version = version
                    .and_then(|version| version.as_str())
                    .unwrap_or("TLS");
                let words = version.replace("TLSv", "TLS ").replace('_', ".");
                Ok((Outcome::Good(words), Open::Tls(Box::new(stream))))
            }
            config::Check::Http(get) => {
                let (outcome, stream) = self.get(stream, get).await?;
                Ok((outcome, Open::Tcp(stream)))
            }
            config::Check::Https { tls, get } => {
                let stream = self.handshake(stream, tls).await?;
                let (outcome, stream) = self.get(Box::new(stream), get).await?;
                Ok((outcome, Open::Tls(stream)))
            }
        }
    }

    async fn handshake(
        &self,
        stream: TcpStream,
        tls: &config::Tls,
    ) -> Result<TlsStream<TcpStream>, Fault> {
        self.step.set("TLS handshake");
        let name = match &tls.sni {
            Some(sni) => ServerName::try_from(sni.clone())
                .with_context(|| format!("ask for {sni:?} by TLS"))
                .map_err(Fault::Ours)?,
            None => ServerName::IpAddress(self.address.ip().into()),
        };
        let client = self.client.clone().context("no TLS client was prepared");
        tls::handshake(stream, client.map_err(Fault::Ours)?, name).await
    }

    async fn get<S>(&self, stream: S, get: &Get) -> Result<(Outcome, S), Fault>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        self.step.set("HTTP answer");
        let request = http::request(get, self.address).map_err(Fault::Ours)?;
        http::ask(stream, request, get.status).await
    }
}

/// Words without what a terminal might obey, and not too many.
fn clean(words: &str) -> String {
    let words = words.chars().filter(|letter| !letter.is_control());
    words.take(MAX_WORDS).collect()
}
