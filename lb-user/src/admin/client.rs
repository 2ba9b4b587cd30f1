//! The command line's end of the socket.

use std::{
    fmt::{self, Display, Formatter},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    StatusCode,
    body::Bytes,
    client::conn::http1,
    header::{CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, time};

use super::PATH;
use crate::{
    api::{Answer, Request},
    dataplane::pins::Pins,
    host::Lock,
};

/// Bytes of an answer: as many backends as there can be, and then some.
const ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// What changes something may take a minute, and the server itself reports that it takes longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(75);
/// What only looks is answered between two other things that the control plane does.
const SHORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug)]
pub enum Failure {
    /// No control plane listens.
    NotRunning {
        /// The instance.
        instance: String,
    },
    /// The control plane runs, and its socket is not there.
    NoSocket {
        /// The instance.
        instance: String,
        /// The process.
        pid: String,
        /// Where its socket was.
        socket: PathBuf,
    },
    /// The socket belongs to another user.
    NotAllowed {
        /// The instance.
        instance: String,
    },
    /// It was not there in time.
    Late {
        /// The instance.
        instance: String,
        /// How long it had.
        patience: Duration,
    },
    /// Anything else.
    Other(anyhow::Error),
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotRunning { instance } => write!(
                f,
                "instance {instance} has no running control plane: start it with `lb run`"
            ),
            Self::NoSocket {
                instance,
                pid,
                socket,
            } => write!(
                f,
                "the control plane of instance {instance} runs (process {pid}), but its socket {} is not there: \
                 it starts or stops, or the socket was removed, and it makes another within a few seconds; \
                 try again",
                socket.display()
            ),
            Self::NotAllowed { instance } => write!(
                f,
                "the control plane of instance {instance} answers only root and its own user"
            ),
            Self::Late { instance, patience } => write!(
                f,
                "the control plane of instance {instance} has not answered within {} s: it is \
                 stopped, or busy; the request may still be carried out",
                patience.as_secs()
            ),
            Self::Other(error) => write!(f, "{error:#}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Sends the control plane of `instance` a request, and waits for the answer.
///
/// # Errors
///
/// Why there is none.
pub fn ask(instance: &str, request: &Request) -> Result<Answer, Failure> {
    let patience = match request {
        Request::Health
        | Request::Legs(_)
        | Request::RefusedNames
        | Request::Ha
        | Request::FollowMarker
        | Request::Events { .. } => SHORT_TIMEOUT,
        Request::Plan { .. }
        | Request::Reload { .. }
        | Request::Confirm
        | Request::Backend { .. }
        | Request::Node { .. }
        | Request::Kill(_) => ANSWER_TIMEOUT,
    };
    ask_within(instance, request, patience)
}

/// As [`ask`], and waits so long.
///
/// # Errors
///
/// As for [`ask`].
pub fn ask_within(
    instance: &str,
    request: &Request,
    patience: Duration,
) -> Result<Answer, Failure> {
    ask_at(&Pins::new(instance).socket(), instance, request, patience)
}

pub(super) fn ask_at(
    socket: &Path,
    instance: &str,
    request: &Request,
    patience: Duration,
) -> Result<Answer, Failure> {
    let instance = instance.to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start tokio")
        .map_err(Failure::Other)?;
    runtime.block_on(async {
        let stream = UnixStream::connect(socket).await;
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => return Err(not_connected(error, instance, socket)),
        };
        match time::timeout(patience, converse(stream, request)).await {
            Ok(answer) => answer.map_err(Failure::Other),
            Err(_) => Err(Failure::Late { instance, patience }),
        }
    })
}

fn not_connected(error: io::Error, instance: String, socket: &Path) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            match Lock::holder(&Pins::new(&instance)) {
                Some(pid) => Failure::NoSocket {
                    instance,
                    pid,
                    socket: socket.to_owned(),
                },
                None => Failure::NotRunning { instance },
            }
        }
        io::ErrorKind::PermissionDenied => Failure::NotAllowed { instance },
        io::ErrorKind::WouldBlock => Failure::Other(anyhow!(
            "the control plane of instance {instance} is stopped, or busy: too many wait for it"
        )),
        _ => Failure::Other(
            anyhow::Error::from(error).context(format!("connect to {}", socket.display())),
        ),
    }
}

async fn converse(stream: UnixStream, request: &Request) -> anyhow::Result<Answer> {
    let body = serde_json::to_vec(request).context("write the request as JSON")?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .context("begin to talk to the control plane")?;
    // It ends with the sender, whose error has what went wrong.
    let connection = tokio::spawn(connection);
    let request = hyper::Request::post(PATH)
        .header(HOST, HeaderValue::from_static("lb"))
        .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .body(Full::<Bytes>::from(body))
        .context("make the request")?;
    let response = sender.send_request(request).await;
    let response = response.context("the control plane ended before it answered")?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_BYTES).collect();
    let body = body.await.map_err(anyhow::Error::from_boxed);
    let body = body.context("read the answer of the control plane")?;
    connection.abort();
    let body = body.to_bytes();
    if status != StatusCode::OK {
        bail!(
            "the control plane says: {}",
            String::from_utf8_lossy(&body).trim_end()
        );
    }
    serde_json::from_slice(&body).context(
        "the control plane's answer is not understood: it is of another version than this `lb`",
    )
}
