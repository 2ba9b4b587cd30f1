//! A connection of a service that is routed by the Host of each request, from its first byte to its last.
//!
//! Its requests are served one after the other. Connections to backends are its own, and end with it: no
//! client gets what was meant for another one.

mod answer;
mod exchange;
mod head;
mod host;
mod lines;
mod upstream;
mod wire;

use std::{
    cell::{Cell, RefCell},
    error::Error as _,
    fmt,
    pin::pin,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use lb_common::maps::event::{EXPIRED, FINISHED, RESET_BY_BACKEND, RESET_BY_CLIENT};
use tokio::{
    io::{AsyncWriteExt as _, Interest, copy_bidirectional},
    net::TcpStream,
    select,
    time::{sleep, timeout},
};

pub(super) use self::upstream::MAX_IDLE_UPSTREAMS;
use self::{
    exchange::{Joined, exchange},
    lines::RequestLines,
    timeouts::{HttpTimeouts, Lapse, Stages, Wait},
    upstream::{ConnectionEnds, Upstreams},
    wire::{FromClient, Wire},
};
use super::{
    access_log::RequestOutcome,
    context::Context,
    dial::select::ConnectionAddresses,
    snapshot::{HttpRouting, ProxyService},
    sockets::{CLOSE_TIMEOUT, hear_out, prepare, reset_at_close},
};

/// The least that hyper takes for the bytes it holds.
const LEAST_BUFFER: usize = 8192;
/// How often it is looked whether a client that sends more than is read has closed its side.
const HALF_CLOSE_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The answer to a client that has begun a request and does not go on.
const TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// The answer to one that speaks HTTP/2.
const BAD_REQUEST: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
/// The answer to one whose backend does not answer.
const GATEWAY_TIMEOUT: &[u8] =
    b"HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// The label of what is no request.
const NO_REQUEST: &str = "bad_request";

/// What the requests of a client share.
struct Talk {
    addresses: ConnectionAddresses,
    shared: Rc<Context>,
    stages: Stages,
    lines: RequestLines,
    upstreams: Upstreams,
    /// What becomes of the request that is served, for the access log.
    outcome: RefCell<RequestOutcome>,
    /// Whether a backend has answered one of them.
    is_routed: Cell<bool>,
    /// What this connection turns into, once a backend has agreed.
    joined: RefCell<Option<Joined>>,
}

/// The connection ends without a word.
#[derive(Clone, Copy, Debug)]
struct ClosedInSilence;

impl fmt::Display for ClosedInSilence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("closed")
    }
}

impl std::error::Error for ClosedInSilence {}

/// How a client's connection ends.
#[derive(Debug, PartialEq, Eq)]
enum ConnectionEnd {
    /// In peace: it is waited for until it has read its last answer.
    Peace,
    /// Without a word.
    Silence,
    /// A request that has no answer yet has taken too long: the client gets this one. Its backends' legs end
    /// with this kind of [`event`](lb_common::maps::event).
    Late(&'static [u8], u32),
    /// With a reset, for this reason in [`event`](lb_common::maps::event).
    Reset(u32),
}

/// What is refused at the end of a connection, by the value of a metric's label, which stays the same from one version
/// to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusalLabel {
    /// What was no request, or none yet.
    Connection(&'static str),
    /// The request that was served.
    Request(&'static str),
}

/// Serves a client that has just connected.
pub(super) async fn serve(
    client: TcpStream,
    addresses: ConnectionAddresses,
    service: Arc<ProxyService>,
    http: Arc<HttpRouting>,
    shared: Rc<Context>,
) {
    let counts = shared.work.counts.clone();
    counts.of(&service.name, |counted| counted.accepted += 1);
    prepare(&client, &service);
    let client = Arc::new(client);
    let (fate, stages) = (ConnectionEnds::default(), Stages::default());
    let talk = Talk {
        addresses,
        shared,
        stages: stages.clone(),
        lines: RequestLines::default(),
        upstreams: Upstreams::new(fate.clone(), stages),
        outcome: RefCell::default(),
        is_routed: Cell::default(),
        joined: RefCell::default(),
    };
    let (end, refused) = converse(Arc::clone(&client), &service, &http, &talk, &fate).await;
    if let Some(RefusalLabel::Connection(label @ NO_REQUEST)) = refused {
        let of = [talk.shared.work.network.as_str(), service.name.as_str()];
        counts
            .names
            .note(of, None, label, *talk.addresses.client.ip());
    }
    drop(talk);
    counts.of(&service.name, |counted| match refused {
        Some(RefusalLabel::Connection(label)) => counted.refuse(label),
        Some(RefusalLabel::Request(label)) => counted.refuse_request(label),
        None => {}
    });
    match end {
        ConnectionEnd::Reset(kind) => {
            reset_at_close(&client);
            drop(client);
            // Backends end after the client.
            fate.end(kind);
        }
        ConnectionEnd::Silence => fate.end(FINISHED),
        ConnectionEnd::Peace => {
            fate.end(FINISHED);
            hear_out(&client).await;
        }
        ConnectionEnd::Late(answer, kind) => {
            fate.end(kind);
            tell_late(client, answer).await;
        }
    }
}

async fn tell_late(client: Arc<TcpStream>, answer: &[u8]) {
    if let Some(mut client) = Arc::into_inner(client)
        && let Ok(Ok(())) = timeout(CLOSE_TIMEOUT, client.write_all(answer)).await
    {
        hear_out(&client).await;
    }
}

/// Answers requests until the client, the time or a cut ends it; how, and as what it is counted if the client
/// was refused.
async fn converse(
    client: Arc<TcpStream>,
    service: &ProxyService,
    http: &HttpRouting,
    talk: &Talk,
    fate: &ConnectionEnds,
) -> (ConnectionEnd, Option<RefusalLabel>) {
    let source = *talk.addresses.client.ip();
    let admit = |wait| match wait {
        Wait::Head => talk.shared.work.pending.admit(source),
        Wait::Next => talk.shared.work.kept.admit(source),
    };
    let times = HttpTimeouts {
        head: http.timeout,
        body: http.body_timeout,
        response: http.response_timeout,
        idle: service.idle,
    };
    let note = FromClient(talk.stages.clone(), talk.lines.clone());
    let wire = Wire::new(Arc::clone(&client), note);
    let connection = http1::Builder::new()
        // The stages know how long a client may take.
        .header_read_timeout(None)
        // A client that has closed its side may still read.
        .half_close(true)
        .max_header_size(http.max_bytes)
        .max_buf_size(http.max_bytes.max(LEAST_BUFFER))
        .serve_connection(
            TokioIo::new(wire),
            service_fn(|request| exchange(request, talk)),
        )
        .with_upgrades();
    let connection = async {
        let mut connection = pin!(connection);
        select! {
            biased;
            result = connection.as_mut() => return result,
            () = ceased(talk) => {}
        }
        // Its next request is for the next process.
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    let result = select! {
        biased;
        kind = fate.is_doomed() => return (ConnectionEnd::Reset(kind), None),
        result = connection => result,
        lapse = talk.stages.lapse(times) => {
            let lapsed = lapsed(lapse);
            if let ConnectionEnd::Late(answer, _) = lapsed.0 {
                talk.outcome.borrow().answered(status_of(answer));
            }
            return lapsed;
        }
        () = has_reset(&client) => return gone(talk),
        () = has_left(&client, talk, service.half_closed) => return (ConnectionEnd::Reset(EXPIRED), None),
        wait = talk.stages.recycled(admit) => return match wait {
            Wait::Head => (ConnectionEnd::Silence, Some(RefusalLabel::Connection("recycled"))),
            Wait::Next => (ConnectionEnd::Peace, None),
        },
    };
    match result {
        Err(error) => ended(&error, talk),
        Ok(()) => (join(talk, fate).await, None),
    }
}

/// Waits until the listeners are given away. A client that has sent nothing yet is waited for as well: its
/// connection was accepted here, and the next process cannot answer its first request.
async fn ceased(talk: &Talk) {
    talk.shared.work.listeners.cease().await;
    talk.stages.begun().await;
}

/// What it means that something has taken too long.
const fn lapsed(lapse: Lapse) -> (ConnectionEnd, Option<RefusalLabel>) {
    match lapse {
        Lapse::Head => (
            ConnectionEnd::Late(TIMEOUT, FINISHED),
            Some(RefusalLabel::Connection("timeout")),
        ),
        Lapse::Silent => (
            ConnectionEnd::Silence,
            Some(RefusalLabel::Connection("timeout")),
        ),
        Lapse::Body(false) => (
            ConnectionEnd::Late(TIMEOUT, EXPIRED),
            Some(RefusalLabel::Request("body_timeout")),
        ),
        Lapse::Response => (
            ConnectionEnd::Late(GATEWAY_TIMEOUT, EXPIRED),
            Some(RefusalLabel::Request("response_timeout")),
        ),
        Lapse::Body(true) | Lapse::Answer => (ConnectionEnd::Reset(EXPIRED), None),
        Lapse::Idle => (ConnectionEnd::Peace, None),
    }
}

/// The status of an answer that is sent as it stands here.
fn status_of(answer: &[u8]) -> u16 {
    if answer == TIMEOUT { 408 } else { 504 }
}

/// Waits until the client has reset the connection: nothing is read while a request is served.
async fn has_reset(client: &TcpStream) {
    // What fails otherwise is over as well.
    let _ready = client.ready(Interest::ERROR).await;
}

/// Waits until the client has closed its side, and nothing has come or gone for `most`.
async fn has_left(client: &TcpStream, talk: &Talk, most: Duration) {
    while let Ok(ready) = client.ready(Interest::READABLE).await
        && !ready.is_read_closed()
    {
        sleep(HALF_CLOSE_POLL_INTERVAL).await;
    }
    talk.stages.quiet(most).await;
}

/// Carries bytes both ways if the connection has turned into something else than HTTP.
async fn join(talk: &Talk, fate: &ConnectionEnds) -> ConnectionEnd {
    let Some(joined) = talk.joined.take() else {
        return ConnectionEnd::Peace;
    };
    let carry = async {
        let Ok((client, backend)) = tokio::try_join!(joined.client, joined.backend) else {
            return ConnectionEnd::Reset(RESET_BY_BACKEND);
        };
        let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
        match copy_bidirectional(&mut client, &mut backend).await {
            Ok(_) => ConnectionEnd::Peace,
            Err(_) => ConnectionEnd::Reset(RESET_BY_CLIENT),
        }
    };
    select! {
        biased;
        kind = fate.is_doomed() => ConnectionEnd::Reset(kind),
        end = carry => end,
    }
}

/// What it means that hyper has given up.
fn ended(error: &hyper::Error, talk: &Talk) -> (ConnectionEnd, Option<RefusalLabel>) {
    let cause = error.source();
    if cause.is_some_and(|cause| cause.is::<ClosedInSilence>()) {
        // It was counted where it was decided.
        return (ConnectionEnd::Silence, None);
    }
    if error.is_parse_version_h2() {
        // HTTP/2 without TLS, which is not spoken here; the one answer that hyper leaves to us.
        return (
            ConnectionEnd::Late(BAD_REQUEST, FINISHED),
            Some(RefusalLabel::Connection(NO_REQUEST)),
        );
    }
    if error.is_parse() {
        // The client has been answered.
        let label = match error.is_parse_too_large() {
            true => "header_too_large",
            false => NO_REQUEST,
        };
        return (ConnectionEnd::Peace, Some(RefusalLabel::Connection(label)));
    }
    if error.is_user() {
        // The rest of a body did not come.
        return (ConnectionEnd::Reset(RESET_BY_BACKEND), None);
    }
    gone(talk)
}

/// What it means that the client has.
fn gone(talk: &Talk) -> (ConnectionEnd, Option<RefusalLabel>) {
    let is_first = talk.stages.is_first();
    (
        ConnectionEnd::Reset(RESET_BY_CLIENT),
        is_first.then_some(RefusalLabel::Connection("client_gone")),
    )
}

#[cfg(test)]
mod tests;
mod timeouts;
