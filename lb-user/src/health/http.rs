//! The HTTP of a check: one GET request, of whose answer only the status counts.

use std::{
    cell::Cell,
    error::Error as _,
    future::poll_fn,
    io,
    net::SocketAddr,
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
    select,
};

use super::{Outcome, check::Fault, tcp, tls};
use crate::config::Get;

const US: &str = concat!("lb/", env!("CARGO_PKG_VERSION"));
/// The longest head of an answer, in bytes; its body is not read.
const MAX_HEAD: usize = 64 * 1024;

type Body = Empty<&'static [u8]>;

/// The request that `get` asks of `address`.
///
/// # Errors
///
/// If path or host cannot stand in one.
pub(super) fn request(get: &Get, address: SocketAddr) -> anyhow::Result<Request<Body>> {
    let host = get.host.clone().unwrap_or_else(|| address.to_string());
    Request::get(&get.path)
        .header(HOST, host)
        .header(USER_AGENT, US)
        .header(CONNECTION, "close")
        .body(Body::new())
        .with_context(|| format!("ask for {:?} by HTTP", get.path))
}

/// Asks the server at the other end of `stream`; gives the stream back for its closing.
pub(super) async fn ask<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    request: Request<Body>,
    good: (u16, u16),
) -> Result<(Outcome, S), Fault> {
    let heard = Rc::new(Cell::new(false));
    let stream = Ear {
        stream,
        heard: Rc::clone(&heard),
    };
    let failed = |error: &hyper::Error| failed(error, heard.get());
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
            // Over, well or badly: the answer knows.
            _over = &mut work => answer.await,
        }
        .map_err(|error| failed(&error))?
        .status()
    };
    let stream = connection.into_parts().io.into_inner().stream;
    Ok((judge(status, good), stream))
}

fn judge(status: StatusCode, (first, last): (u16, u16)) -> Outcome {
    let words = match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    };
    if (first..=last).contains(&status.as_u16()) {
        Outcome::Good(words)
    } else {
        Outcome::NotReady(words)
    }
}

/// What it means that no answer came; a server of which anything was heard is there.
fn failed(error: &hyper::Error, heard: bool) -> Fault {
    let stream = error.source().and_then(|cause| cause.downcast_ref());
    if let Some(error) = stream.and_then(tls::cause) {
        return Fault::NotReady(tls::words(error));
    }
    if heard {
        let what = if error.is_parse() {
            "no HTTP"
        } else {
            "its HTTP answer broke off"
        };
        return Fault::NotReady(what.to_owned());
    }
    Fault::Dead(stream.map_or_else(|| "connection closed".to_owned(), tcp::words))
}

/// A stream that knows whether anything was read from it.
struct Ear<S> {
    stream: S,
    heard: Rc<Cell<bool>>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Ear<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.heard.set(true);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Ear<S> {
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
