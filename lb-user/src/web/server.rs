//! The listening end, a thread of its own: how many connections at a time, and for how long.

use std::{
    collections::BTreeSet,
    io, mem,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context as _, Result};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::thread::CapabilitySet;
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{Semaphore, mpsc, oneshot},
    time,
};

use super::{
    access::AccessRules,
    exchange::{self, MAX_PAGES, Progress, Served},
    overviews::Overviews,
};
use crate::{
    admin::connections::{Connections, GRACE},
    config::{AdminHttp, BearerToken},
    dataplane::readings::Readings,
    host,
    metrics::{answered::Answered, report::LoopRequest, scrape::Scrape, snapshot::Looks},
    network::cell_thread,
    system::{panics, privileges},
};

/// Connections at a time; of those that have sent no request the oldest goes for one more.
const CONNECTIONS: usize = 8;
/// Connections that wait to be accepted; the kernel drops what comes beyond.
const BACKLOG: u32 = 64;
/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may take in all, and one of a page without a part of its stream.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a request's head; hyper takes no fewer.
const HEAD_BYTES: usize = 8 * 1024;
/// Lines of a request's head.
const HEADERS: usize = 32;
/// After an error that may pass, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// How often it is tried to listen, where another process still does, or the address is not there yet.
const LISTEN_INTERVAL: Duration = Duration::from_millis(250);
/// How often it is looked whether a page is open.
const REST_INTERVAL: Duration = Duration::from_secs(2);
/// How often that may fail before it is reported: the process that has handed over closes its port a moment later.
const SILENT_FAILURES: u32 = 4;

/// How it is to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSettings {
    /// As it is configured.
    pub http: AdminHttp,
    /// What is in its token file.
    pub token: Option<BearerToken>,
    /// Interfaces by which clients reach this host, and no management does.
    pub client_interfaces: BTreeSet<String>,
}

/// Whether it listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListenState {
    /// Not yet.
    #[default]
    Opening,
    /// It does.
    Listening,
    /// It does not, and is tried again: why.
    Failed(String),
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub struct WebServer {
    _stop: oneshot::Sender<()>,
    state: Arc<Mutex<ListenState>>,
}

impl WebServer {
    /// Starts it. Reports of the control loop are requested from `requests`.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub fn start(
        settings: WebSettings,
        readings: Readings,
        requests: mpsc::Sender<LoopRequest>,
    ) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let state = Arc::<Mutex<ListenState>>::default();
        let of_thread = Arc::clone(&state);
        cell_thread::start_listener("metrics".to_owned(), None, move |runtime| {
            // It reads maps, and changes nothing.
            if let Err(error) = privileges::give_up(CapabilitySet::BPF) {
                tracing::warn!("metrics: {error:#}");
            }
            runtime.block_on(async {
                tokio::select! {
                    // The sender sends nothing: it goes.
                    _gone = stopped => {}
                    () = serve(settings, readings, requests, &of_thread) => {}
                }
            });
        })
        .context("start the thread of metrics")?;
        Ok(Self { _stop: stop, state })
    }

    /// Whether it listens.
    pub fn state(&self) -> ListenState {
        let state = self.state.lock();
        state.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves, for ever.
async fn serve(
    settings: WebSettings,
    readings: Readings,
    requests: mpsc::Sender<LoopRequest>,
    state: &Mutex<ListenState>,
) {
    let set = |new| *state.lock().unwrap_or_else(PoisonError::into_inner) = new;
    let mut failures = 0;
    let listener = loop {
        match listen(&settings) {
            Ok(listener) => break listener,
            Err(error) => {
                failures += 1;
                if failures >= SILENT_FAILURES {
                    set(ListenState::Failed(format!("{error:#}")));
                }
                time::sleep(LISTEN_INTERVAL).await;
            }
        }
    };
    set(ListenState::Listening);
    let answered = Arc::<Answered>::default();
    let looks = Looks::new(readings, Arc::clone(&answered));
    let overviews = Overviews::new(requests.clone());
    let served = Arc::new(Served {
        access: AccessRules::new(&settings.http, settings.token),
        scrape: tokio::sync::Mutex::new(Scrape::new(looks, requests)),
        overviews: tokio::sync::Mutex::new(overviews),
        pages: Arc::new(Semaphore::new(MAX_PAGES)),
        answered,
    });
    let mut connections = Connections::new(CONNECTIONS);
    let mut rests = time::interval(REST_INTERVAL);
    loop {
        let has_room = connections.have_room();
        tokio::select! {
            () = connections.ended() => {}
            _ = rests.tick() => {
                // It is looked at right now otherwise.
                if let Ok(mut overviews) = served.overviews.try_lock() {
                    overviews.rest();
                }
            }
            () = time::sleep(GRACE), if !has_room => {}
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, peer)) => {
                    let progress = Progress::default();
                    let asked = Arc::clone(&progress.asked);
                    let task = connection(stream, peer, progress, Arc::clone(&served));
                    connections.add(panics::of_connection(task), asked);
                }
                Err(error) => {
                    tracing::debug!("metrics: accept a connection: {error}");
                    time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Listens where it is configured, unless clients reach that.
fn listen(settings: &WebSettings) -> Result<TcpListener> {
    let address = settings.http.listen;
    let doing = || format!("listen at {address} for metrics (admin.http)");
    if !settings.http.allow_tenant {
        let of_clients = host::interfaces_with(address.ip())
            .find(|interface| settings.client_interfaces.contains(interface));
        if let Some(interface) = of_clients {
            let words = format!(
                "clients reach that address of interface {interface}; expected one of the network of management, or \
                 `allow_tenant: true`"
            );
            return Err(anyhow::Error::msg(words)).with_context(doing);
        }
    }
    open(address).with_context(doing)
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// One request, and its answer, for as long as the peer takes of it.
async fn connection(stream: TcpStream, peer: SocketAddr, progress: Progress, served: Arc<Served>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(
            TokioIo::new(stream),
            service_fn(|request| exchange::exchange(request, &served, &progress)),
        );
    let mut connection = std::pin::pin!(connection);
    let mut taken = 0;
    loop {
        match time::timeout(CONNECTION_TIMEOUT, connection.as_mut()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => return tracing::debug!("admin.http: {peer}: {error}"),
            Err(_) => {
                let before = mem::replace(&mut taken, progress.taken.load(Ordering::Relaxed));
                if taken == before {
                    tracing::debug!(
                        "admin.http: {peer}: nothing taken within {CONNECTION_TIMEOUT:?}"
                    );
                    return;
                }
            }
        }
    }
}
