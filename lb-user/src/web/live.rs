//! Server-sent events: each overview as it is made, for as long as the page is open.
//!
//! <https://html.spec.whatwg.org/multipage/server-sent-events.html>

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::{Stream, stream};
use hyper::body::{Bytes, Frame};
use tokio::{sync::OwnedSemaphorePermit, time};

use super::exchange::Served;

/// How long nothing is sent at most: a page knows by that that it is still connected.
const SIGN_INTERVAL: Duration = Duration::from_secs(5);
/// A comment, which a page takes as a sign of life.
const SIGN: &[u8] = b": \n\n";
const BEFORE: &[u8] = b"event: overview\ndata: ";
const BEHIND: &[u8] = b"\n\n";

/// What a connection has taken of its stream so far, in frames: where that stands still, the peer does not read.
pub(super) type Taken = Arc<AtomicU64>;

/// The stream of a page.
struct Live {
    served: Arc<Served>,
    taken: Taken,
    /// When the latest overview that was sent was begun.
    sent: Option<Instant>,
    /// Gives its place back to the next page.
    _place: OwnedSemaphorePermit,
}

/// Every overview from now on.
pub(super) fn frames(
    served: Arc<Served>,
    taken: Taken,
    place: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> {
    let live = Live {
        served,
        taken,
        sent: None,
        _place: place,
    };
    stream::unfold(live, |mut live| async {
        let bytes = live.next().await;
        Some((Ok(Frame::data(bytes)), live))
    })
}

impl Live {
    /// The next bytes: it is called when those before are on their way.
    async fn next(&mut self) -> Bytes {
        self.taken.fetch_add(1, Ordering::Relaxed);
        let latest = time::timeout(SIGN_INTERVAL, self.later());
        latest.await.unwrap_or(Bytes::from_static(SIGN))
    }

    /// The next overview that was not sent yet.
    async fn later(&mut self) -> Bytes {
        loop {
            let latest = self.served.overviews.lock().await.latest().await;
            let until = match latest {
                Ok(made) if self.sent != Some(made.begun) => {
                    self.sent = Some(made.begun);
                    return [BEFORE, &made.json, BEHIND].concat().into();
                }
                Ok(made) => made.until(),
                Err(error) => {
                    tracing::warn!("admin.http: {error:#}");
                    Instant::now() + SIGN_INTERVAL
                }
            };
            time::sleep_until(until.into()).await;
        }
    }
}
