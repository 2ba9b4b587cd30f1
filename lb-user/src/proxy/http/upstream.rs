//! Connections to the backends of one client. Each is a leg.

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    net::SocketAddrV4,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use http_body_util::{Either, Empty};
use hyper::{
    body::{Body, Bytes, Frame, Incoming, SizeHint},
    client::conn::http1::{Builder, SendRequest},
};
use hyper_util::rt::TokioIo;
use lb_common::maps::event::{EXPIRED, FINISHED, RESET_BY_BACKEND, RESET_BY_CLIENT};
use tokio::{
    net::TcpStream,
    select,
    sync::{oneshot, watch},
    time::timeout,
};

use super::{
    timeouts::Stages,
    wire::{Note, Wire},
};
use crate::{
    flows::evict::selector::EndReason,
    proxy::{
        connections::{CopyDirection, Guard, Leg},
        sockets::{CLOSE_TIMEOUT, idle, reset_at_close},
    },
    system::panics::spawn_connection,
};

/// Connections that are kept for later requests of a client.
pub(crate) const MAX_IDLE_UPSTREAMS: usize = 4;
/// The longest head of an answer.
const MAX_HEAD: usize = 1 << 16;

/// What a request brings along.
pub(super) type ToBackend = Either<RequestBody, Empty<Bytes>>;

/// The body of a request, which notes when more of it is waited for.
pub(super) struct RequestBody {
    body: Incoming,
    stages: Stages,
}

impl RequestBody {
    pub(super) const fn new(body: Incoming, stages: Stages) -> Self {
        Self { body, stages }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.stages.waits_for_body(frame.is_pending());
        if let Poll::Ready(Some(Err(_))) = frame {
            self.stages.tore_body();
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

impl Drop for RequestBody {
    fn drop(&mut self) {
        self.stages.waits_for_body(false);
    }
}

/// What the connections to backends and that of their client know of each other's end.
#[derive(Clone, Debug, Default)]
pub(super) struct ConnectionEnds(Rc<EndSignals>);

#[derive(Debug, Default)]
struct EndSignals {
    /// Why the client's connection has to end.
    doom: watch::Sender<Option<u32>>,
    /// As what it has ended.
    end: watch::Sender<Option<u32>>,
}

impl ConnectionEnds {
    /// The client's connection has ended, as this in [`event`](lb_common::maps::event).
    pub(super) fn end(&self, kind: u32) {
        self.0.end.send_replace(Some(kind));
    }

    /// Waits until the client's connection has to end.
    pub(super) async fn is_doomed(&self) -> u32 {
        some(&self.0.doom).await
    }

    /// Ends the client's connection, and waits until it has ended.
    async fn doom(&self, kind: u32) {
        self.0.doom.send_replace(Some(kind));
        self.is_over().await;
    }

    /// Waits until the client's connection has ended.
    async fn is_over(&self) -> u32 {
        some(&self.0.end).await
    }
}

/// Waits until there is something.
async fn some(sender: &watch::Sender<Option<u32>>) -> u32 {
    let mut receiver = sender.subscribe();
    // The sender is here.
    let kind = receiver.wait_for(Option::is_some).await;
    kind.ok().and_then(|kind| *kind).unwrap_or(RESET_BY_CLIENT)
}

/// A connection to a backend, for requests for one name.
pub(super) struct Upstream {
    backend: u32,
    name: Option<String>,
    sender: SendRequest<ToBackend>,
    leg: Arc<Leg>,
    /// Whether it has had a request before.
    pub(super) is_used: bool,
}

/// The connections to backends that wait for the next request.
pub(super) struct Upstreams {
    kept: RefCell<Vec<Upstream>>,
    fate: ConnectionEnds,
    stages: Stages,
}

impl Upstreams {
    pub(super) const fn new(fate: ConnectionEnds, stages: Stages) -> Self {
        let kept = RefCell::new(Vec::new());
        Self { kept, fate, stages }
    }

    /// Takes one to this backend for that name out, if there is one that still goes. It serves the request
    /// from now on.
    pub(super) async fn take(&self, backend: u32, name: Option<&str>) -> Option<Upstream> {
        let mut upstream = {
            let mut kept = self.kept.borrow_mut();
            let mut all = kept.iter();
            let found = all.position(|upstream| {
                upstream.backend == backend && upstream.name.as_deref() == name
            })?;
            kept.remove(found)
        };
        // Its last answer has been read: it is ready at once, or never.
        let ready = timeout(CLOSE_TIMEOUT, upstream.sender.ready()).await;
        let upstream = matches!(ready, Ok(Ok(()))).then_some(upstream)?;
        self.stages.served_by(upstream.leg.id);
        Some(upstream)
    }

    /// Keeps one for later. The one that was used least lately goes for it if there are too many.
    pub(super) fn keep(&self, upstream: Upstream) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= MAX_IDLE_UPSTREAMS {
            kept.remove(0);
        }
        kept.push(Upstream {
            is_used: true,
            ..upstream
        });
    }

    /// One more, of a connection that was just opened, which serves the request from now on.
    pub(super) async fn begin(
        &self,
        stream: TcpStream,
        guard: Guard,
        name: Option<String>,
    ) -> hyper::Result<Upstream> {
        guard.carried();
        let leg = Arc::clone(&guard.leg);
        let stream = Arc::new(stream);
        let broken = Arc::new(AtomicBool::new(false));
        let (held, is_free) = oneshot::channel();
        let note = ToLeg {
            leg: Arc::clone(&leg),
            stages: self.stages.clone(),
            broken: Arc::clone(&broken),
            _held: held,
        };
        let wire = TokioIo::new(Wire::new(Arc::clone(&stream), note));
        let mut builder = Builder::new();
        builder.max_buf_size(MAX_HEAD).max_header_size(MAX_HEAD);
        let (sender, connection) = builder.handshake(wire).await?;
        let carried = UpstreamConnection {
            stream,
            guard,
            broken,
            is_free,
            fate: self.fate.clone(),
            stages: self.stages.clone(),
        };
        self.stages.served_by(leg.id);
        spawn_connection(carried.carry(connection.with_upgrades()));
        Ok(Upstream {
            backend: leg.flow().backend_id.into(),
            name,
            sender,
            leg,
            is_used: false,
        })
    }
}

impl Upstream {
    pub(super) const fn sender(&mut self) -> &mut SendRequest<ToBackend> {
        &mut self.sender
    }

    /// Where it leads.
    pub(super) fn address(&self) -> SocketAddrV4 {
        self.leg.backend()
    }

    /// Bytes that the backend has sent so far.
    pub(super) fn heard(&self) -> u64 {
        self.leg.bytes()[1]
    }
}

/// A connection to a backend, for as long as it is there.
struct UpstreamConnection {
    stream: Arc<TcpStream>,
    guard: Guard,
    broken: Arc<AtomicBool>,
    /// Resolves when no task holds the wire any more.
    is_free: oneshot::Receiver<Infallible>,
    fate: ConnectionEnds,
    stages: Stages,
}

impl UpstreamConnection {
    /// Carries it to its end: that of the leg.
    async fn carry(self, connection: impl Future<Output = hyper::Result<()>>) {
        let Self {
            stream,
            guard,
            broken,
            is_free,
            fate,
            stages,
        } = self;
        let leg = Arc::clone(&guard.leg);
        let is_joined = Cell::new(false);
        let over = async {
            if connection.await.is_err() {
                let is_clients = stages.is_served_by(leg.id) && stages.has_torn_body();
                return match is_clients {
                    true => RESET_BY_CLIENT,
                    false => RESET_BY_BACKEND,
                };
            }
            // It may have become something else, and go on.
            is_joined.set(true);
            let _free = is_free.await;
            FINISHED
        };
        let kind = select! {
            biased;
            why = leg.is_cut() => {
                // One that is not in use goes alone, unless its client may not go on at all.
                let is_used = is_joined.get() || stages.is_served_by(leg.id);
                if is_used || why == EndReason::Policy {
                    fate.doom(why.event()).await;
                }
                why.event()
            }
            kind = fate.is_over() => kind,
            kind = over => kind,
            () = idle(&leg) => {
                if is_joined.get() {
                    fate.doom(EXPIRED).await;
                }
                EXPIRED
            }
        };
        let kind = match kind {
            RESET_BY_CLIENT if broken.load(Ordering::Relaxed) => RESET_BY_BACKEND,
            kind => kind,
        };
        if kind != FINISHED {
            reset_at_close(&stream);
        }
        drop(stream);
        stages.left_by(leg.id);
        guard.end(kind);
    }
}

/// What goes through the wire to a backend, for its leg.
struct ToLeg {
    leg: Arc<Leg>,
    stages: Stages,
    broken: Arc<AtomicBool>,
    _held: oneshot::Sender<Infallible>,
}

impl Note for ToLeg {
    fn read(&self, bytes: &[u8]) {
        match bytes.len() {
            0 => self.leg.note_half_closed(),
            bytes => self.leg.note(CopyDirection::ToClient, bytes),
        }
    }

    fn written(&self, bytes: usize) {
        self.stages.sent_on();
        self.leg.note(CopyDirection::ToBackend, bytes);
    }

    fn closed(&self) {
        self.leg.note_half_closed();
    }

    fn failed(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}
