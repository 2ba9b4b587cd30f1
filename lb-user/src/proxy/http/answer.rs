//! Answers of our own, and the body of any answer.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use http_body_util::{Either, Full};
use hyper::{
    Response, StatusCode, Uri,
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    header::{CONTENT_TYPE, HeaderValue, LOCATION},
};
use lb_common::server_name::ServerName;

use super::timeouts::RequestTurn;
use crate::proxy::{access_log::AccessRecord, dial::select::NoBackend};

/// Why a request gets no answer of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestRefusal {
    /// What it requests cannot be determined.
    Bad,
    /// Its body is in codings that are not for us.
    Coding,
    /// Its name, or its lack of one, goes nowhere.
    Nothing(Option<String>),
    /// The same, and the connection is closed without an answer.
    Close(Option<String>),
    /// The name is not for this client.
    Denied(Option<String>),
    /// There is no backend to be had.
    Unreached(NoBackend),
    /// The backend has not answered, or not in HTTP.
    NoAnswer,
}

impl RequestRefusal {
    /// The value of a metric's label. It stays the same from one version to the next.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Bad => "bad_request",
            Self::Coding => "transfer_encoding",
            Self::Nothing(_) | Self::Close(_) => "no_match",
            Self::Denied(_) => "deny_tenant_name",
            Self::Unreached(unreached) => unreached.label(),
            Self::NoAnswer => "no_answer",
        }
    }

    /// The status that the client gets; none: the connection is closed.
    pub(super) const fn status(&self) -> Option<StatusCode> {
        Some(match self {
            Self::Bad => StatusCode::BAD_REQUEST,
            Self::Coding => StatusCode::NOT_IMPLEMENTED,
            Self::Nothing(_) | Self::Denied(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Unreached(
                NoBackend::Budget
                | NoBackend::Full
                | NoBackend::NoneServes
                | NoBackend::NoDescriptors
                | NoBackend::NoPorts
                | NoBackend::Share,
            ) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unreached(NoBackend::Unreachable) | Self::NoAnswer => StatusCode::BAD_GATEWAY,
            Self::Close(_) => return None,
        })
    }

    /// The name that goes nowhere.
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Self::Nothing(name) | Self::Close(name) | Self::Denied(name) => name.as_deref(),
            Self::Bad | Self::Coding | Self::Unreached(_) | Self::NoAnswer => None,
        }
    }

    /// What the client has requested, if it is refused for that; none in it: it has sent no name.
    pub(super) fn refused_name(&self) -> Option<Option<&str>> {
        match self {
            Self::Nothing(name) | Self::Close(name) | Self::Denied(name) => Some(name.as_deref()),
            Self::Bad => Some(None),
            Self::Coding | Self::Unreached(_) | Self::NoAnswer => None,
        }
    }
}

impl From<NoBackend> for RequestRefusal {
    fn from(unreached: NoBackend) -> Self {
        Self::Unreached(unreached)
    }
}

/// The body of an answer. The client's turn ends with it.
pub(super) struct AnswerBody {
    body: Either<Incoming, Full<Bytes>>,
    _turn: RequestTurn,
    record: Option<AccessRecord>,
}

impl AnswerBody {
    pub(super) const fn of_backend(body: Incoming, turn: RequestTurn) -> Self {
        Self {
            body: Either::Left(body),
            _turn: turn,
            record: None,
        }
    }

    /// The same, with what the access log has of the request.
    pub(super) fn recorded(self, record: Option<AccessRecord>) -> Self {
        Self { record, ..self }
    }

    /// A status, and nothing else.
    pub(super) fn status(status: StatusCode, turn: RequestTurn) -> Response<Self> {
        let reason = status.canonical_reason().unwrap_or_default();
        let text = format!("{} {reason}\n", status.as_u16());
        let mut answer = Response::new(Self {
            body: Either::Right(Full::from(text)),
            _turn: turn,
            record: None,
        });
        *answer.status_mut() = status;
        let plain = HeaderValue::from_static("text/plain");
        answer.headers_mut().insert(CONTENT_TYPE, plain);
        answer
    }

    /// A redirect to the same place by https, for good and for whatever method.
    pub(super) fn https(name: &ServerName, target: &Uri, turn: RequestTurn) -> Response<Self> {
        let mut answer = Self::status(StatusCode::PERMANENT_REDIRECT, turn);
        let path = target.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "*" { "/" } else { path };
        let location = format!("https://{name}{path}");
        // A target that was read can stand there.
        if let Ok(location) = HeaderValue::from_bytes(location.as_bytes()) {
            answer.headers_mut().insert(LOCATION, location);
        }
        answer
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let (Some(record), Poll::Ready(Some(Ok(frame)))) = (&mut self.record, &frame) {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            record.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
