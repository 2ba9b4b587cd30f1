//! The session that a peer begins: it gets the flows of this box.

use std::{
    convert::Infallible,
    fs, mem,
    net::SocketAddr,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::{self, JoinSet},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use super::{
    decisions::Decisions,
    dictionary::objects,
    frame::{self, MessageFrame, messages},
    message::{BoxHello, BoxState, SyncMessage, agreed},
    originals::{Originals, places},
    thread::PeerLink,
    tls,
    view::HaView,
};

/// How long a handshake may take.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the peer may take nothing of a frame.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long after a failure the address is listened at again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Connections at a time; all but one of them are handshakes.
const MAX_CONNECTIONS: usize = 8;
/// The shortest time between the begins of two passes, and the longest.
const PASS_INTERVALS: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Of the time, the part that passes may take: one in so many.
const PASS_SHARE: u32 = 20;

/// Listens at this box's address on the sync network, for as long as the process runs.
pub(super) async fn serve(address: SocketAddr, link: Arc<PeerLink>) {
    loop {
        let Err(error) = listen(address, &link).await;
        let words = format!("listen for the peer at {address} (ha.boxes): {error:#}");
        if link.progress.refuse(&words) {
            tracing::error!("{words}; trying again");
        }
        sleep(RETRY_INTERVAL).await;
    }
}

async fn listen(address: SocketAddr, link: &Arc<PeerLink>) -> Result<Infallible> {
    let listener = TcpListener::bind(address).await?;
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut sessions = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned().await?;
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Of one connection, or of descriptors: the session that there is goes on.
                tracing::warn!("accept the peer at {address} (ha.boxes): {error}; trying again");
                sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        while sessions.try_join_next().is_some() {}
        let link = Arc::clone(link);
        sessions.spawn(async move {
            let _place = place;
            let greeted = timeout(HANDSHAKE_TIMEOUT, accept(stream, &link)).await;
            match greeted.unwrap_or_else(|_| Err(anyhow!("the handshake took too long"))) {
                Ok((stream, theirs)) => send_all(stream, &theirs, &link).await,
                Err(error) => {
                    let words = format!("refused a session: {error:#}");
                    if link.progress.refuse(&words) {
                        tracing::warn!(%from, "{words}");
                    }
                }
            }
        });
    }
}

/// The peer, and no other.
async fn accept(stream: TcpStream, link: &PeerLink) -> Result<(TlsStream<TcpStream>, BoxHello)> {
    stream.set_nodelay(true)?;
    let acceptor = TlsAcceptor::from(tls::server(&link.ha)?);
    let mut stream = acceptor.accept(stream).await.context("TLS")?;
    let theirs = greet(&mut stream, link).await?;
    tls::verify(stream.get_ref().1.peer_certificates(), &theirs.name)?;
    Ok((stream, theirs))
}

/// A session, until it fails, or the peer has begun another one.
async fn send_all(mut stream: TlsStream<TcpStream>, theirs: &BoxHello, link: &PeerLink) {
    link.turn.send_modify(|turn| *turn += 1);
    let mut turns = link.turn.subscribe();
    link.progress.begin_sending(theirs);
    tracing::info!(peer = theirs.name, "the peer gets the flows of this box");
    tokio::select! {
        biased;
        _ = turns.changed() => {}
        Err(error) = run(&mut stream, link) => {
            let words = format!("{error:#}");
            tracing::warn!("the session by which the peer gets flows has ended: {words}");
            link.progress.end_sending(words);
        }
    }
}

async fn run(stream: &mut (impl AsyncWrite + Unpin), link: &PeerLink) -> Result<Infallible> {
    let sending = Sending {
        originals: Originals::open(&link.folder)?,
        views: link.views.clone(),
        decisions: link.decisions.clone(),
        view: Arc::default(),
        frame: MessageFrame::default(),
        link,
    };
    sending.run(stream).await
}

/// Reads the greeting of the peer, and answers it.
async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    link: &PeerLink,
) -> Result<BoxHello> {
    let frame = frame::receive(stream).await?;
    let theirs: BoxHello = messages(&frame).next().context("an empty greeting")??;
    let ours = BoxHello::ours(&link.ha.box_name);
    let mut frame = MessageFrame::default();
    frame.push(&ours)?;
    frame.send(stream).await?;
    agreed(&ours, &theirs)?;
    let is_peer = link.peer.name == theirs.name;
    ensure!(is_peer, "no other box is named {} (ha.boxes)", theirs.name);
    Ok(theirs)
}

/// The sending end of a session.
struct Sending<'l> {
    originals: Originals,
    views: watch::Receiver<Arc<HaView>>,
    decisions: watch::Receiver<Option<Decisions>>,
    /// The one whose objects the peer knows.
    view: Arc<HaView>,
    frame: MessageFrame,
    link: &'l PeerLink,
}

impl Sending<'_> {
    async fn run(mut self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<Infallible> {
        self.view = self.views.borrow_and_update().clone();
        self.name_objects(stream).await?;
        let age = self.view.is_active.then(|| age(&self.link.folder));
        self.frame.push(&SyncMessage::All(age))?;
        // What a box that has just begun has decided is not nothing.
        self.decisions.wait_for(Option::is_some).await?;
        self.decisions.mark_changed();
        let mut is_first = true;
        loop {
            let began = Instant::now();
            let took = self.pass(is_first, stream).await?;
            is_first = false;
            self.link.progress.sent(
                self.originals.counts,
                u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            );
            let [shortest, longest] = PASS_INTERVALS;
            let interval = (took * PASS_SHARE).clamp(shortest, longest);
            sleep(interval.saturating_sub(began.elapsed())).await;
        }
    }

    /// Names all objects of this box, before any flow that waits to be sent.
    async fn name_objects(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        let mut frame = MessageFrame::default();
        for named in objects(&self.view.ids) {
            frame.push(&SyncMessage::Object(named))?;
            if frame.is_full() {
                send(&mut frame, stream).await?;
            }
        }
        send(&mut frame, stream).await
    }

    /// Sends what is due of all flows; the time that it took, but for what the peer did.
    async fn pass(
        &mut self,
        is_first: bool,
        stream: &mut (impl AsyncWrite + Unpin),
    ) -> Result<Duration> {
        let mut took = Duration::ZERO;
        self.follow_view(stream).await?;
        let view = Arc::clone(&self.view);
        let state = BoxState {
            is_active: view.is_active,
            load: *self.link.load.borrow(),
        };
        let begin = self.originals.begin(state, is_first)?;
        self.frame.push(&begin)?;
        self.say_decisions(stream).await?;
        for mut place in places(&view) {
            loop {
                let began = Instant::now();
                let more = self.originals.piece(&mut place, &mut self.frame)?;
                took += began.elapsed();
                if self.frame.is_full() {
                    self.send(stream).await?;
                } else {
                    task::yield_now().await;
                }
                if !more {
                    break;
                }
            }
        }
        self.frame.push(&SyncMessage::Passed)?;
        self.send(stream).await?;
        Ok(took)
    }

    /// Says what was decided here, if that is new.
    async fn say_decisions(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        if self.decisions.has_changed()? {
            let decisions = self.decisions.borrow_and_update().clone();
            for message in decisions.iter().flat_map(Decisions::messages) {
                self.frame.push(&message)?;
                if self.frame.is_full() {
                    self.send(stream).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends what waits; before it the objects that it may refer to, which have their names before they have flows.
    async fn send(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        self.follow_view(stream).await?;
        send(&mut self.frame, stream).await
    }

    /// Names the objects that are new.
    async fn follow_view(&mut self, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
        if self.views.has_changed()? {
            let view = self.views.borrow_and_update().clone();
            let before = mem::replace(&mut self.view, view);
            if before.ids != self.view.ids {
                self.originals.forget_labels();
                self.name_objects(stream).await?;
            }
        }
        Ok(())
    }
}

async fn send(frame: &mut MessageFrame, stream: &mut (impl AsyncWrite + Unpin)) -> Result<()> {
    let sent = timeout(WRITE_TIMEOUT, frame.send(stream)).await;
    sent.context("the peer takes nothing")?
}

/// How old the flow table is, in units of coarse time; rather less than it is: a replica that could be of the table before is left alone.
fn age(folder: &Path) -> u32 {
    let made = fs::metadata(folder.join("FLOWS")).ok().and_then(|pin| {
        let seconds = u64::try_from(pin.ctime()).ok()?;
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds + 1))
    });
    let age = made.and_then(|made| made.elapsed().ok());
    let units = age.unwrap_or_default().as_nanos() >> lb_common::maps::flow::TIME_SHIFT;
    // A replica is not older than a quarter of what the clock counts.
    u32::try_from(units).unwrap_or(u32::MAX).min(1 << 30)
}
