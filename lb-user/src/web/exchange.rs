//! From the head of one request to its answer. A new path is a line of [`route`].

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::StreamExt as _;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Bytes,
    header::{
        ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue,
        REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    },
};
use tokio::sync::{Mutex, Semaphore};

use super::{
    access::AccessRules,
    files,
    live::{self, Taken},
    overviews::Overviews,
};
use crate::metrics::{answered::Answered, encode::TextFormat, scrape::Scrape};

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const METHODS: &str = "GET, HEAD";
/// What a browser may do with an answer: nothing but to show the page, with files and data of this port.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";
/// The pages that may be open: other connections are for scrapers.
pub(super) const MAX_PAGES: usize = 4;

/// What requests are answered with.
pub(super) struct Served {
    pub(super) access: AccessRules,
    pub(super) scrape: Mutex<Scrape>,
    pub(super) overviews: Mutex<Overviews>,
    /// Places for pages.
    pub(super) pages: Arc<Semaphore>,
    pub(super) answered: Arc<Answered>,
}

/// What a connection has done so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Whether its request is there.
    pub(super) asked: Arc<AtomicBool>,
    /// What it has taken of a stream.
    pub(super) taken: Taken,
}

/// The bytes of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The body of an answer, and what it is.
struct Reply {
    status: StatusCode,
    kind: &'static str,
    body: Body,
}

impl Reply {
    fn ok(kind: &'static str, body: Bytes) -> Self {
        Self {
            status: StatusCode::OK,
            kind,
            body: Full::from(body).boxed_unsync(),
        }
    }

    fn words(status: StatusCode, words: &str) -> Self {
        Self {
            status,
            kind: TEXT,
            body: Full::from(format!("{words}\n")).boxed_unsync(),
        }
    }
}

/// Answers one request, in any case, and notes in `progress` that its head is there. Its body is never read.
pub(super) async fn exchange<B>(
    request: Request<B>,
    served: &Arc<Served>,
    progress: &Progress,
) -> Result<Response<Body>, Infallible> {
    progress.asked.store(true, Ordering::Relaxed);
    let reply = answer(&request, served, progress).await;
    served.answered.count(reply.status);
    let mut response = Response::new(reply.body);
    *response.status_mut() = reply.status;
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(CONTENT_TYPE, reply.kind);
    set(CONTENT_SECURITY_POLICY, POLICY);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(REFERRER_POLICY, "no-referrer");
    set(CACHE_CONTROL, "no-store");
    match reply.status {
        StatusCode::METHOD_NOT_ALLOWED => set(ALLOW, METHODS),
        StatusCode::UNAUTHORIZED => set(WWW_AUTHENTICATE, "Bearer realm=\"lb\""),
        _ => None,
    };
    Ok(response)
}

async fn answer<B>(request: &Request<B>, served: &Arc<Served>, progress: &Progress) -> Reply {
    match refused(request, &served.access) {
        Some(reply) => reply,
        None => route(request, served, progress).await,
    }
}

/// What a request gets that is not answered, whatever it is for.
fn refused<B>(request: &Request<B>, access: &AccessRules) -> Option<Reply> {
    let is_file = files::find(request.uri().path()).is_some();
    let checked = access.check_host(request.uri(), request.headers());
    let checked = checked.and_then(|()| match is_file {
        true => Ok(()),
        false => access.check_token(request.headers()),
    });
    if let Err(denied) = checked {
        return Some(Reply::words(denied.status(), denied.words()));
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let words = "nothing can be changed here: GET and HEAD are all that is answered";
    (!is_read).then(|| Reply::words(StatusCode::METHOD_NOT_ALLOWED, words))
}

async fn route<B>(request: &Request<B>, served: &Arc<Served>, progress: &Progress) -> Reply {
    match request.uri().path() {
        "/metrics" => metrics(request.headers(), served).await,
        "/healthz" => health(served).await,
        "/v1/overview" => overview(served).await,
        "/v1/live" if *request.method() == Method::HEAD => Reply::ok(EVENTS, Bytes::new()),
        "/v1/live" => live(served, progress),
        path => match files::find(path) {
            Some(file) => Reply::ok(file.kind, file.body()),
            None => Reply::words(
                StatusCode::NOT_FOUND,
                "expected / (the page), /metrics, /healthz, /v1/overview or /v1/live",
            ),
        },
    }
}

async fn metrics(headers: &HeaderMap, served: &Served) -> Reply {
    let accepted = headers.get_all(ACCEPT).iter();
    let format = TextFormat::wanted(accepted.filter_map(|value| value.to_str().ok()));
    match served.scrape.lock().await.text(format).await {
        Ok(text) => Reply::ok(format.content_type(), text),
        Err(error) => unavailable("metrics", &error),
    }
}

/// Whether the control plane answers.
async fn health(served: &Served) -> Reply {
    match served.scrape.lock().await.control_responds().await {
        true => Reply::words(StatusCode::OK, "ok"),
        false => Reply::words(
            StatusCode::SERVICE_UNAVAILABLE,
            "the control plane does not answer",
        ),
    }
}

async fn overview(served: &Served) -> Reply {
    match served.overviews.lock().await.latest().await {
        Ok(made) => Reply::ok(JSON, made.json),
        Err(error) => unavailable("the overview", &error),
    }
}

/// Overviews as they are made, as long as the client takes them.
fn live(served: &Arc<Served>, progress: &Progress) -> Reply {
    let Ok(place) = Arc::clone(&served.pages).try_acquire_owned() else {
        let words = format!("{MAX_PAGES} pages are open already");
        return Reply::words(StatusCode::SERVICE_UNAVAILABLE, &words);
    };
    let frames = live::frames(Arc::clone(served), Arc::clone(&progress.taken), place);
    Reply {
        status: StatusCode::OK,
        kind: EVENTS,
        body: StreamBody::new(frames.boxed()).boxed_unsync(),
    }
}

fn unavailable(what: &str, error: &anyhow::Error) -> Reply {
    tracing::warn!("{what}: {error:#}");
    Reply::words(StatusCode::SERVICE_UNAVAILABLE, &format!("{error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AdminHttp;

    fn status(method: &str, host: &str) -> Option<u16> {
        let http = AdminHttp {
            listen: "127.0.0.1:9180".parse().unwrap(),
            hosts: Vec::new(),
            token_file: None,
            allow_tenant: false,
        };
        let request = Request::builder().method(method).uri("/metrics");
        let request = request.header("Host", host).body(()).unwrap();
        let refused = refused(&request, &AccessRules::new(&http, None));
        refused.map(|reply| reply.status.as_u16())
    }

    #[test]
    fn a_request_that_would_change_something_is_refused() {
        for method in ["GET", "HEAD"] {
            assert_eq!(status(method, "localhost"), None);
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "X"] {
            assert_eq!(status(method, "localhost"), Some(405), "{method}");
        }
    }

    /// A stranger does not learn more than that.
    #[test]
    fn another_host_is_refused_first() {
        assert_eq!(status("POST", "evil.example"), Some(421));
        assert_eq!(status("POST", ""), Some(400));
    }
}
