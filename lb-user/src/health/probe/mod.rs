//! What a check sends to a backend over the connection that it has opened, and which answer it expects: each
//! probe has its file, and a line in [`of`].

mod http;
mod https;
mod tcp;
mod tls;

use std::{cell::Cell, net::SocketAddr, pin::Pin};

use anyhow::Result;
use lb_common::maps::vip_offer::VipOffer;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{CheckOutcome, connection};
use crate::config::Check;

/// The step until the backend has accepted the connection.
pub(super) const CONNECTION: &str = "connection";

/// A probe, made once for all checks of a backend.
pub(super) trait Probe {
    /// Probes the backend over `stream`. The check bounds its time, and reports which [step](Exchange::begin)
    /// was not reached in it.
    ///
    /// # Errors
    ///
    /// How it ended without an answer that counts.
    fn probe<'p>(&'p self, stream: TcpStream, exchange: &'p Exchange) -> Probing<'p>;
}

/// A probe on its way; it stays on the thread of its cell.
pub(super) type Probing<'p> = Pin<Box<dyn Future<Output = Result<ProbeAnswer, Fault>> + 'p>>;

/// What a backend has answered.
pub(super) struct ProbeAnswer {
    pub(super) outcome: CheckOutcome,
    /// What is still open.
    pub(super) open: OpenConnection,
}

/// How a probe ended that has no answer that counts.
#[derive(Debug)]
pub(super) enum Fault {
    /// The backend gave another answer, in words.
    NotReady(String),
    /// It gave none, or refused.
    Dead(String),
    /// Nothing has come from it or its node: only errors of the way to it, or none.
    Lost(String),
    /// This host could not probe it: no outcome.
    Ours(anyhow::Error),
}

/// One check of a backend, as far as it has come.
pub(super) struct Exchange {
    /// The address that is checked.
    pub(super) address: SocketAddr,
    step: Cell<&'static str>,
    agreed: Cell<Option<VipOffer>>,
}

impl Exchange {
    /// Begins with the connection.
    pub(super) const fn new(address: SocketAddr) -> Self {
        Self {
            address,
            step: Cell::new(CONNECTION),
            agreed: Cell::new(None),
        }
    }

    /// From now on the backend is to do this, in words that fit behind "no".
    pub(super) fn begin(&self, step: &'static str) {
        self.step.set(step);
    }

    /// What it is to do now.
    pub(super) const fn step(&self) -> &'static str {
        self.step.get()
    }

    /// The backend has accepted the connection, and agreed to this.
    pub(super) fn note_agreed(&self, agreed: Option<VipOffer>) {
        self.agreed.set(agreed);
    }

    /// What it has agreed to, if it has accepted the connection.
    pub(super) const fn agreed(&self) -> Option<VipOffer> {
        self.agreed.get()
    }
}

/// The probe of a check.
///
/// # Errors
///
/// If what it needs cannot be read.
pub(super) fn of(check: &Check) -> Result<Box<dyn Probe>> {
    Ok(match check {
        Check::Tcp => Box::new(tcp::Connect),
        Check::Tls(tls) => Box::new(tls::Handshake::new(tls, None)?),
        Check::Http(get) => Box::new(http::HttpProbe::new(get)),
        Check::Https { tls, get } => Box::new(https::HttpsProbe::new(tls, get)?),
    })
}

/// A connection that is to be closed.
pub(super) enum OpenConnection {
    Nothing,
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl OpenConnection {
    /// Closes it as a client does that has what it wanted; takes a moment at most.
    pub(super) async fn close(self) {
        match self {
            Self::Nothing => {}
            Self::Tcp(stream) => connection::close(stream).await,
            Self::Tls(stream) => tls::close(*stream).await,
        }
    }
}
