//! From the head of one request to its answer. A new page is a line of [`route`].

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Bytes,
    header::{
        ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE,
        X_CONTENT_TYPE_OPTIONS,
    },
};
use tokio::sync::Mutex;

use super::access::AccessRules;
use crate::metrics::{answered::Answered, encode::TextFormat, scrape::Scrape};

const TEXT: &str = "text/plain; charset=utf-8";
const METHODS: &str = "GET, HEAD";

/// What requests are answered with.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) access: AccessRules,
    pub(super) scrape: Mutex<Scrape>,
    pub(super) answered: Arc<Answered>,
}

/// The body of an answer, and what it is.
struct Reply {
    status: StatusCode,
    kind: &'static str,
    body: Bytes,
}

impl Reply {
    fn ok(kind: &'static str, body: Bytes) -> Self {
        Self {
            status: StatusCode::OK,
            kind,
            body,
        }
    }

    fn words(status: StatusCode, words: &str) -> Self {
        Self {
            status,
            kind: TEXT,
            body: Bytes::from(format!("{words}\n")),
        }
    }
}

/// Answers one request, in any case; sets `asked` because its head is there. Its body is never read.
pub(super) async fn exchange<B>(
    request: Request<B>,
    served: &Served,
    asked: &AtomicBool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    asked.store(true, Ordering::Relaxed);
    let reply = answer(&request, served).await;
    served.answered.count(reply.status);
    let mut response = Response::new(Full::from(reply.body));
    *response.status_mut() = reply.status;
    let headers = response.headers_mut();
    let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
    set(CONTENT_TYPE, reply.kind);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(CACHE_CONTROL, "no-store");
    match reply.status {
        StatusCode::METHOD_NOT_ALLOWED => set(ALLOW, METHODS),
        StatusCode::UNAUTHORIZED => set(WWW_AUTHENTICATE, "Bearer realm=\"lb\""),
        _ => None,
    };
    Ok(response)
}

async fn answer<B>(request: &Request<B>, served: &Served) -> Reply {
    match refused(request, &served.access) {
        Some(reply) => reply,
        None => route(request.uri().path(), request.headers(), served).await,
    }
}

/// What a request gets that is not answered, whatever it is for.
fn refused<B>(request: &Request<B>, access: &AccessRules) -> Option<Reply> {
    if let Err(denied) = access.check(request.uri(), request.headers()) {
        return Some(Reply::words(denied.status(), denied.words()));
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let words = "nothing can be changed here: GET and HEAD are all that is answered";
    (!is_read).then(|| Reply::words(StatusCode::METHOD_NOT_ALLOWED, words))
}

async fn route(path: &str, headers: &HeaderMap, served: &Served) -> Reply {
    match path {
        "/metrics" => metrics(headers, served).await,
        "/healthz" => health(served).await,
        _ => Reply::words(StatusCode::NOT_FOUND, "expected /metrics or /healthz"),
    }
}

async fn metrics(headers: &HeaderMap, served: &Served) -> Reply {
    let accepted = headers.get_all(ACCEPT).iter();
    let format = TextFormat::wanted(accepted.filter_map(|value| value.to_str().ok()));
    match served.scrape.lock().await.text(format).await {
        Ok(text) => Reply::ok(format.content_type(), text),
        Err(error) => {
            tracing::warn!("metrics: {error:#}");
            Reply::words(StatusCode::SERVICE_UNAVAILABLE, &format!("{error:#}"))
        }
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
