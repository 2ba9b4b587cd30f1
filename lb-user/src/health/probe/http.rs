//! The HTTP of a check: one GET request, of whose answer only the status counts.

use std::{
    cell::Cell,
    error::Error as _,
    future::poll_fn,
    io,
    net::SocketAddr,
    ops::RangeInclusive,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Poll},
};

use anyhow::Context as _;
use http_body_util::Empty;
use hyper::{
    Request, StatusCode,
    client::conn::http1,
    header::{CONNECTION, HOST, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    select,
};

use super::{Exchange, Fault, OpenConnection, Probe, ProbeAnswer, Probing, tls};
use crate::{
    config,
    health::{CheckOutcome, connection},
};

const US: &str = concat!("lb/", env!("CARGO_PKG_VERSION"));
/// The longest head of an answer, in bytes; its body is not read.
const MAX_HEAD: usize = 64 * 1024;

type EmptyBody = Empty<&'static [u8]>;

/// One GET request; the status of its answer is the outcome.
pub(super) struct HttpProbe(config::Get);

impl HttpProbe {
    pub(super) fn new(get: &config::Get) -> Self {
        Self(get.clone())
    }

    /// The request, of this address.
    ///
    /// # Errors
    ///
    /// If path or host cannot stand in one.
    fn request(&self, address: SocketAddr) -> anyhow::Result<Request<EmptyBody>> {
        let get = &self.0;
        let host = get.host.clone().unwrap_or_else(|| address.to_string());
        Request::get(&get.path)
            .header(HOST, host)
            .header(USER_AGENT, US)
            .header(CONNECTION, "close")
            .body(EmptyBody::new())
            .with_context(|| format!("ask for {:?} by HTTP", get.path))
    }

    /// Sends the request to the server at the other end of `stream`; gives the stream back for its closing.
    pub(super) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        exchange: &Exchange,
    ) -> Result<(CheckOutcome, S), Fault> {
        exchange.begin("HTTP answer");
        let request = self.request(exchange.address).map_err(Fault::Ours)?;
        let (status, stream) = send(stream, request).await?;
        let (first, last) = self.0.status;
        Ok((judge(status, first..=last), stream))
    }
}

impl Probe for HttpProbe {
    fn probe<'p>(&'p self, stream: TcpStream, exchange: &'p Exchange) -> Probing<'p> {
        Box::pin(async {
            let (outcome, stream) = self.ask(stream, exchange).await?;
            Ok(ProbeAnswer {
                outcome,
                open: OpenConnection::Tcp(stream),
            })
        })
    }
}

/// Sends a request, and receives the status of the answer.
async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    request: Request<EmptyBody>,
) -> Result<(StatusCode, S), Fault> {
    let has_received = Rc::new(Cell::new(false));
    let stream = Received {
        stream,
        any: Rc::clone(&has_received),
    };
    let failed = |error: &hyper::Error| failed(error, has_received.get());
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD).max_header_size(MAX_HEAD);
    let shaken = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, mut connection) = shaken.map_err(|error| failed(&error))?;
    let status = {
        let mut answer = pin!(sender.send_request(request));
        let mut work = pin!(poll_fn(|context| connection.poll_without_shutdown(context)));
        select! {
            biased;
            answer = &mut answer => answer,
            // Over, well or badly: `answer` has the result.
            _over = &mut work => answer.await,
        }
        .map_err(|error| failed(&error))?
        .status()
    };
    Ok((status, connection.into_parts().io.into_inner().stream))
}

fn judge(status: StatusCode, good: RangeInclusive<u16>) -> CheckOutcome {
    let words = match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    };
    if good.contains(&status.as_u16()) {
        CheckOutcome::Good(words)
    } else {
        CheckOutcome::NotReady(words)
    }
}

/// What it means that no answer came; a server that has sent anything is there.
fn failed(error: &hyper::Error, has_received: bool) -> Fault {
    let stream = error.source().and_then(|cause| cause.downcast_ref());
    if let Some(error) = stream.and_then(tls::cause) {
        return Fault::NotReady(tls::words(error));
    }
    if has_received {
        let what = if error.is_parse() {
            "answer is not HTTP"
        } else {
            "HTTP answer incomplete"
        };
        return Fault::NotReady(what.to_owned());
    }
    Fault::Dead(stream.map_or_else(|| "connection closed".to_owned(), connection::words))
}

/// A stream that knows whether anything was read from it.
struct Received<S> {
    stream: S,
    any: Rc<Cell<bool>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Received<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.any.set(true);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Received<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
