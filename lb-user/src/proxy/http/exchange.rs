//! One request and its answer.

use http_body_util::{Either, Empty};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Body as _, Incoming},
    header::{CONNECTION, CONTENT_LENGTH, HOST, HeaderValue},
    http::request::Parts,
    upgrade::{self, OnUpgrade},
};
use lb_common::maglev;
use tokio::io::AsyncWriteExt as _;

use super::{
    ClosedInSilence, Talk,
    answer::{AnswerBody, RequestRefusal},
    head::{self, Framing},
    host::{RequestTarget, RouteTarget, way},
    lines::RequestLine,
    timeouts::RequestTurn,
    upstream::{RequestBody, ToBackend, Upstream},
};
use crate::{
    config::Balance,
    proxy::{
        access_log::{AccessRecord, RequestOutcome},
        connections,
        dial::{
            candidates::ChosenBy,
            select::{BackendConnection, Candidates, NoBackend},
        },
        refused_names,
        snapshot::{HttpRouting, ProxyService, Routing},
        sockets::prepare,
        splice::handoff::NotSpliced,
    },
};

/// The two ends of a connection that turns into something else than HTTP.
pub(super) struct Joined {
    pub(super) client: OnUpgrade,
    pub(super) backend: OnUpgrade,
}

/// Answers a request.
///
/// # Errors
///
/// If the connection is to end without an answer.
pub(super) async fn exchange(
    request: Request<Incoming>,
    talk: &Talk,
) -> Result<Response<AnswerBody>, ClosedInSilence> {
    let turn = talk.stages.asked();
    let host = request.headers().get(HOST).cloned();
    // Of each request, whatever becomes of it: they are counted off.
    let line = talk.lines.next(&request.body().size_hint());
    // The service as it is now: it may have changed since the client has connected.
    let service = talk
        .shared
        .service(talk.addresses.vip)
        .ok_or(ClosedInSilence)?;
    let Routing::Http(http) = &service.routing else {
        return Err(ClosedInSilence);
    };
    let counts = &talk.shared.work.counts;
    let outcome = RequestOutcome::default();
    talk.outcome.replace(outcome.clone());
    let mut record = begin(&request, &service, talk, &outcome);
    let answered = answer(request, line, &service, http, talk).await;
    talk.stages.answered();
    let refused = match answered {
        Ok(Answered::Backend(answer)) => {
            outcome.answered(answer.status().as_u16());
            let is_first = !talk.is_routed.replace(true);
            counts.of(&service.name, |counted| {
                counted.routed += u64::from(is_first);
                counted.requests.routed += 1;
            });
            return Ok(answer.map(|body| AnswerBody::of_backend(body, turn).recorded(record)));
        }
        Ok(Answered::Https(redirect)) => {
            let answer = redirect(turn);
            outcome.answered(answer.status().as_u16());
            return Ok(answer.map(|body| body.recorded(record)));
        }
        Err(refused) => refused,
    };
    if let Some(record) = &mut record {
        record.refused = Some(refused.label());
    }
    counts.of(&service.name, |counted| {
        counted.refuse_request(refused.label());
        if let Some(name) = refused.name() {
            counted.unrouted(name);
        }
    });
    if let Some(name) = refused.refused_name() {
        let of = [talk.shared.work.network.as_str(), service.name.as_str()];
        // What is no name is shown as it was sent.
        let sent = host.map(|host| refused_names::shown(host.as_bytes().iter().copied()));
        let name = name.or(sent.as_deref());
        let client = *talk.addresses.client.ip();
        counts.names.note(of, name, refused.label(), client);
    }
    let status = refused.status().ok_or(ClosedInSilence)?;
    outcome.answered(status.as_u16());
    let mut answer = AnswerBody::status(status, turn).map(|body| body.recorded(record));
    if refused == RequestRefusal::Coding {
        // Where such a body ends others may see differently.
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(CONNECTION, close);
    }
    Ok(answer)
}

/// What the access log has of a request, if there is one.
fn begin(
    request: &Request<Incoming>,
    service: &ProxyService,
    talk: &Talk,
    outcome: &RequestOutcome,
) -> Option<AccessRecord> {
    let of = [talk.shared.work.network.as_str(), service.name.as_str()];
    let ends = [talk.addresses.client, talk.addresses.vip];
    talk.shared.work.access.begin(of, ends, request, outcome)
}

/// What a client gets that is not refused.
enum Answered {
    /// The answer of a backend.
    Backend(Response<Incoming>),
    /// That the place is elsewhere.
    Https(Box<dyn FnOnce(RequestTurn) -> Response<AnswerBody>>),
}

async fn answer(
    request: Request<Incoming>,
    line: Option<RequestLine>,
    service: &ProxyService,
    http: &HttpRouting,
    talk: &Talk,
) -> Result<Answered, RequestRefusal> {
    let (method, uri) = (request.method(), request.uri());
    let sent = line.as_ref().and_then(|line| line.target(method));
    let sent = sent.ok_or(RequestRefusal::Bad)?;
    let asked = RequestTarget::of(method, request.version(), uri, sent, request.headers());
    let RequestTarget { name: asked, host } = asked.map_err(|_| RequestRefusal::Bad)?;
    if !head::is_decoded(request.headers()) {
        return Err(RequestRefusal::Coding);
    }
    let target = head::target(method, uri, sent);
    let name = asked.as_ref().map(ToString::to_string);
    let pool = match way(asked.as_ref(), http, *talk.addresses.client.ip()) {
        RouteTarget::Pool(pool) => pool,
        RouteTarget::Https(name) => {
            let (name, uri) = (name.clone(), uri.clone());
            let redirect = move |turn| AnswerBody::https(&name, &uri, turn);
            return Ok(Answered::Https(Box::new(redirect)));
        }
        RouteTarget::Denied => return Err(RequestRefusal::Denied(name)),
        RouteTarget::Nothing => return Err(RequestRefusal::Nothing(name)),
        RouteTarget::Close => return Err(RequestRefusal::Close(name)),
    };
    let by = match (http.balance, &name) {
        (Balance::Host, Some(name)) => ChosenBy::Name(maglev::hash_of_name(name)),
        (Balance::Host | Balance::Client, _) => {
            let key = talk.addresses.key(service);
            ChosenBy::flow(&key, (*talk.addresses.client.ip()).into())
        }
    };
    let client = PoolClient {
        talk,
        service,
        pool,
        by,
        name,
    };
    client
        .ask(request, target, host)
        .await
        .map(Answered::Backend)
}

/// A client whose request goes to a pool.
struct PoolClient<'r> {
    talk: &'r Talk,
    service: &'r ProxyService,
    pool: &'r str,
    by: ChosenBy,
    name: Option<String>,
}

impl PoolClient<'_> {
    /// What a backend answers.
    async fn ask(
        &self,
        mut request: Request<Incoming>,
        target: Uri,
        host: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, RequestRefusal> {
        let version = request.version();
        let upgrade =
            head::wishes_upgrade(version, request.headers()).then(|| upgrade::on(&mut request));
        let (mut parts, body) = request.into_parts();
        parts.uri = target;
        let sent = self.send(self.forwarded(parts, &body, host)?, body).await;
        let mut answer = sent.map_err(|refused| match refused {
            RequestRefusal::NoAnswer if self.talk.stages.has_torn_body() => RequestRefusal::Bad,
            refused => refused,
        })?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            // Only a client that requested an upgrade may get one.
            let client = upgrade.ok_or(RequestRefusal::NoAnswer)?;
            let backend = upgrade::on(&mut answer);
            self.talk.joined.replace(Some(Joined { client, backend }));
        }
        let status = answer.status();
        head::give_back(status, answer.headers_mut());
        Ok(answer)
    }

    /// The head of the request for the backend.
    fn forwarded(
        &self,
        parts: Parts,
        body: &Incoming,
        host: Option<HeaderValue>,
    ) -> Result<Request<()>, RequestRefusal> {
        let Parts {
            method,
            uri,
            mut headers,
            ..
        } = parts;
        let framing = match body.is_end_stream() || headers.contains_key(CONTENT_LENGTH) {
            true => Framing::Length,
            false => Framing::Chunks,
        };
        let addresses = self.talk.addresses;
        // A client that names no host gets the VIP that it has connected to.
        let host = match host {
            Some(host) => host,
            None => HeaderValue::from_str(&addresses.vip.to_string())
                .map_err(|_| RequestRefusal::Bad)?,
        };
        head::forward(&mut headers, host, *addresses.client.ip(), framing);
        let mut request = Request::new(());
        *request.uri_mut() = uri;
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Sends it, once more where the backend has closed a connection that was kept for it meanwhile.
    async fn send(
        &self,
        request: Request<()>,
        body: Incoming,
    ) -> Result<Response<Incoming>, RequestRefusal> {
        let is_harmless = request.method().is_idempotent() && body.is_end_stream();
        let again = is_harmless.then(|| request.clone().map(|()| Either::Right(Empty::new())));
        let body = RequestBody::new(body, self.talk.stages.clone());
        let mut request: Request<ToBackend> = request.map(|()| Either::Left(body));
        let candidates = self.candidates()?;
        let mut upstream = match self.kept(&candidates).await {
            Some(upstream) => upstream,
            None => self.fresh(candidates).await?,
        };
        self.talk.outcome.borrow().sent_to(upstream.address());
        let is_used = upstream.is_used;
        let heard = upstream.heard();
        match upstream.sender().try_send_request(request).await {
            Ok(answer) => return Ok(self.keep(upstream, answer)),
            Err(mut error) => {
                let unsent = error.take_message();
                let is_unheard = upstream.heard() == heard;
                let again = again.filter(|_| is_unheard);
                request = unsent
                    .or(again)
                    .filter(|_| is_used)
                    .ok_or(RequestRefusal::NoAnswer)?;
            }
        }
        let mut upstream = self.fresh(self.candidates()?).await?;
        self.talk.outcome.borrow().sent_to(upstream.address());
        match upstream.sender().send_request(request).await {
            Ok(answer) => Ok(self.keep(upstream, answer)),
            Err(_) => Err(RequestRefusal::NoAnswer),
        }
    }

    fn keep(&self, upstream: Upstream, answer: Response<Incoming>) -> Response<Incoming> {
        self.talk.upstreams.keep(upstream);
        answer
    }

    fn candidates(&self) -> Result<Candidates, NoBackend> {
        Candidates::of(self.pool, self.by, &self.talk.shared)
    }

    /// A connection that was kept for this.
    async fn kept(&self, candidates: &Candidates) -> Option<Upstream> {
        for (backend, _) in candidates.backends() {
            let kept = self.talk.upstreams.take(backend, self.name.as_deref());
            if let Some(upstream) = kept.await {
                return Some(upstream);
            }
        }
        None
    }

    /// A new connection.
    async fn fresh(&self, candidates: Candidates) -> Result<Upstream, RequestRefusal> {
        let Talk {
            addresses,
            shared,
            upstreams,
            ..
        } = self.talk;
        let (key, name) = (addresses.key(self.service), self.name.clone());
        let carriage = Err(NotSpliced::Requests);
        let connect = candidates.connect(&key, self.service, name.clone(), carriage, shared);
        let reached = connect.await?;
        // The name of a request stands in its head.
        let preface = reached.preface(addresses.endpoints(), None, None)?;
        let BackendConnection {
            mut backend, guard, ..
        } = reached;
        prepare(&backend, self.service);
        let told = backend.write_all(&preface).await;
        told.map_err(|_| RequestRefusal::NoAnswer)?;
        guard
            .leg
            .note(connections::CopyDirection::ToBackend, preface.len());
        let begun = upstreams.begin(backend, guard, name).await;
        begun.map_err(|_| RequestRefusal::NoAnswer)
    }
}
