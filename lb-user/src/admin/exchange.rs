//! From the bytes of one request to those of its answer.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::{
    Method, Response, StatusCode,
    body::{Body as _, Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{self, Instant},
};

use super::{
    PATH,
    server::{Access, Order, Peer},
};
use crate::api::{Answer, Request};

/// Bytes of a request's body: a path, and a few names.
const BODY_BYTES: usize = 64 * 1024;

/// The peer of a request, and what answers it.
pub(super) struct Caller {
    pub(super) peer: Peer,
    /// Whether the whole request is there.
    pub(super) asked: Arc<AtomicBool>,
    pub(super) orders: mpsc::Sender<Order>,
    /// When the whole request must be there.
    pub(super) read_by: Instant,
    /// How long the answer may take.
    pub(super) answer: Duration,
}

/// Why there is no [`Answer`].
struct ErrorAnswer(StatusCode, String);

/// Answers one request, in any case.
pub(super) async fn exchange(
    request: hyper::Request<Incoming>,
    caller: &Caller,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let answer = answer(request, caller).await.and_then(|answer| {
        serde_json::to_vec(&answer).map_err(|error| {
            let words = format!("the answer cannot be written as JSON: {error}");
            ErrorAnswer(StatusCode::INTERNAL_SERVER_ERROR, words)
        })
    });
    let (status, kind, body) = match answer {
        Ok(json) => (StatusCode::OK, "application/json", json),
        Err(ErrorAnswer(status, words)) => {
            let words = format!("{words}\n").into_bytes();
            (status, "text/plain; charset=utf-8", words)
        }
    };
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        headers.insert(ALLOW, HeaderValue::from_static("POST"));
    }
    Ok(response)
}

async fn answer(request: hyper::Request<Incoming>, caller: &Caller) -> Result<Answer, ErrorAnswer> {
    let Caller { peer, orders, .. } = caller;
    if peer.access == Access::None {
        tracing::warn!("admin socket: refused a request of {peer}");
        let words = format!(
            "uid {} may not use the admin socket: only root, lb's own user and members of admin.group may",
            peer.uid
        );
        return Err(ErrorAnswer(StatusCode::FORBIDDEN, words));
    }
    if request.uri().path() != PATH {
        let words = format!("found another path, expected {PATH}");
        return Err(ErrorAnswer(StatusCode::NOT_FOUND, words));
    }
    if request.method() != Method::POST {
        let words = format!("{PATH} takes POST, with a request as JSON");
        return Err(ErrorAnswer(StatusCode::METHOD_NOT_ALLOWED, words));
    }
    let body = body(request.into_body(), caller.read_by).await?;
    caller.asked.store(true, Ordering::Relaxed);
    let request: Request = serde_json::from_slice(&body).map_err(|error| {
        let words = format!("the request is of another version than this `lb`, or none: {error}");
        ErrorAnswer(StatusCode::BAD_REQUEST, words)
    })?;
    if peer.access == Access::Read && !request.is_look() {
        tracing::warn!("admin socket: refused an order of {peer}");
        let words = format!(
            "uid {} may only look, as a member of admin.group: root and lb's own user may change something",
            peer.uid
        );
        return Ok(Answer::Refused {
            usage: false,
            reasons: vec![words],
        });
    }
    if let Err(reason) = request.check() {
        return Ok(Answer::Refused {
            usage: true,
            reasons: vec![reason],
        });
    }
    let (reply, answer) = oneshot::channel();
    let order = Order {
        request,
        by: *peer,
        reply,
    };
    let done = async {
        orders.send(order).await.ok()?;
        answer.await.ok()
    };
    match time::timeout(caller.answer, done).await {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(ErrorAnswer(
            StatusCode::SERVICE_UNAVAILABLE,
            "the control plane is ending".to_owned(),
        )),
        Err(_) => Err(ErrorAnswer(
            StatusCode::GATEWAY_TIMEOUT,
            format!(
                "not done within {} s; the request may still be carried out",
                caller.answer.as_secs()
            ),
        )),
    }
}

/// The whole body, if it is small and comes in time.
async fn body(body: Incoming, by: Instant) -> Result<Bytes, ErrorAnswer> {
    let too_large = || {
        let words = format!("the request has more than {BODY_BYTES} bytes");
        ErrorAnswer(StatusCode::PAYLOAD_TOO_LARGE, words)
    };
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_large());
    }
    match time::timeout_at(by, Limited::new(body, BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => Err(ErrorAnswer(
            StatusCode::BAD_REQUEST,
            format!("the request cannot be read: {error}"),
        )),
        Err(_) => Err(ErrorAnswer(
            StatusCode::REQUEST_TIMEOUT,
            "the request takes too long".to_owned(),
        )),
    }
}
