//! The session that this box begins: it gets the flows of its peer.

use std::{convert::Infallible, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;

use super::{
    frame::{self, MessageFrame, messages},
    message::{BoxHello, agreed},
    serving::HANDSHAKE_TIMEOUT,
    standby::Standby,
    thread::PeerLink,
    tls,
};
use crate::dataplane::maps::Maps;

/// How long the peer may say nothing: it ends a pass each second at least.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after a failure the peer is dialled again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Gets the flows of the peer, for as long as the process runs.
pub(super) async fn follow(link: Arc<PeerLink>, mut standby: Standby) {
    loop {
        let Err(error) = session(&link, &mut standby).await;
        let (peer, address) = (&link.peer.name, link.peer.sync);
        let words = format!("get the flows of the box {peer} from {address}: {error:#}");
        if link.progress.end_receiving(words.clone()) {
            tracing::warn!("{words}; trying again");
        }
        sleep(RETRY_INTERVAL).await;
        standby.begin_anew();
    }
}

/// Opens what replicas are placed in.
///
/// # Errors
///
/// If a map cannot be opened.
pub(super) fn open(link: &PeerLink, maps: Maps) -> Result<Standby> {
    let view = link.views.borrow().clone();
    Standby::open(&link.folder, maps, view.as_ref().clone())
}

/// A session, until it fails.
async fn session(link: &PeerLink, standby: &mut Standby) -> Result<Infallible> {
    let connector = TlsConnector::from(tls::client(&link.ha)?);
    let name = tls::name(&link.peer.name)?;
    let (mut stream, theirs) = timeout(HANDSHAKE_TIMEOUT, async {
        let stream = TcpStream::connect(link.peer.sync).await?;
        stream.set_nodelay(true)?;
        let mut stream = connector.connect(name, stream).await.context("TLS")?;
        let theirs = greet(&mut stream, link).await?;
        anyhow::Ok((stream, theirs))
    })
    .await
    .context("no answer")??;
    link.progress.begin_receiving(&theirs);
    tracing::info!(peer = theirs.name, "this box gets the flows of its peer");
    let mut views = link.views.clone();
    views.mark_changed();
    loop {
        // A frame is read whole or not at all: a view waits for the end of one.
        let frame = timeout(SILENCE_TIMEOUT, frame::receive(&mut stream)).await;
        let frame = frame.context("the peer says nothing")??;
        if views.has_changed()? {
            let view = views.borrow_and_update().clone();
            ensure!(
                standby.set_names(&view),
                "flows that have not come can come now: this box has other objects"
            );
        }
        let mut is_end = false;
        for message in messages(&frame) {
            is_end |= standby.take(message?)?;
        }
        if is_end {
            if let Some(decisions) = standby.decisions.take() {
                link.progress.decided(decisions);
            }
            link.progress.placed(standby.counts, standby.peer);
            if let Some(differences) = standby.new_differences() {
                link.progress.differ(differences);
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Greets the peer, and reads its answer.
async fn greet(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    link: &PeerLink,
) -> Result<BoxHello> {
    let ours = BoxHello::ours(&link.ha.box_name);
    let mut frame = MessageFrame::default();
    frame.push(&ours)?;
    frame.send(stream).await?;
    let frame = frame::receive(stream).await?;
    let theirs: BoxHello = messages(&frame).next().context("an empty greeting")??;
    agreed(&ours, &theirs)?;
    Ok(theirs)
}
