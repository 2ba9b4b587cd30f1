//! One GET request over TLS.

use anyhow::Result;
use tokio::net::TcpStream;

use super::{Exchange, OpenConnection, Probe, ProbeAnswer, Probing, http, tls::Handshake};
use crate::config;

/// Offered to the server: what the request is written in.
const HTTP: &[u8] = b"http/1.1";

/// See the module.
pub(super) struct HttpsProbe {
    handshake: Handshake,
    get: http::HttpProbe,
}

impl HttpsProbe {
    /// # Errors
    ///
    /// As for [`Handshake::new`].
    pub(super) fn new(tls: &config::Tls, get: &config::Get) -> Result<Self> {
        Ok(Self {
            handshake: Handshake::new(tls, Some(HTTP))?,
            get: http::HttpProbe::new(get),
        })
    }
}

impl Probe for HttpsProbe {
    fn probe<'p>(&'p self, stream: TcpStream, exchange: &'p Exchange) -> Probing<'p> {
        Box::pin(async {
            let stream = self.handshake.make(stream, exchange).await?;
            let (outcome, stream) = self.get.ask(Box::new(stream), exchange).await?;
            Ok(ProbeAnswer {
                outcome,
                open: OpenConnection::Tls(stream),
            })
        })
    }
}
