//! What is done with the sockets of clients and backends, whatever they speak.

use std::{io, os::fd::AsRawFd as _, time::Duration};

use lb_common::client_hello::MAX_STREAM;
use nix::{
    libc::linger,
    sys::socket::{Shutdown, setsockopt, shutdown, sockopt},
};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{connections::Leg, snapshot::ProxyService};
use crate::system::tcp_info::Info;

/// How long a client may take to close, once it has been sent why it gets nothing.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_millis(250);
/// Bytes that are thrown away in one go.
const CHUNK: usize = 2048;
/// Unanswered probes after which an end is gone, and from one to the next.
const PROBES: u32 = 3;
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// How often a leg is looked at for being idle, at least: it may have been closed on one side meanwhile.
const IDLE_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// How long until it is looked whether a peer has acknowledged something: first, and then longer and longer, up to
/// this.
pub(super) const FIRST_POLL_INTERVAL: Duration = Duration::from_millis(1);
pub(super) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Sets an end of a leg up.
pub(super) fn prepare(end: &TcpStream, service: &ProxyService) {
    // Refused only for a socket that is no TCP socket.
    let _refused = end.set_nodelay(true);
    if let Some(keepalive) = service.keepalive {
        probe(end, keepalive);
    }
}

/// Has the kernel probe an end that is silent.
fn probe(end: &TcpStream, keepalive: Duration) {
    let seconds = u32::try_from(keepalive.as_secs())
        .unwrap_or(u32::MAX)
        .max(1);
    let interval = PROBE_INTERVAL.min(keepalive).as_secs().max(1);
    let interval = u32::try_from(interval).unwrap_or(1);
    // Refused only for a socket that is no TCP socket.
    let _refused = setsockopt(end, sockopt::KeepAlive, &true)
        .and_then(|()| setsockopt(end, sockopt::TcpKeepIdle, &seconds))
        .and_then(|()| setsockopt(end, sockopt::TcpKeepInterval, &interval))
        .and_then(|()| setsockopt(end, sockopt::TcpKeepCount, &PROBES));
}

/// Has an end get a reset when its socket is closed.
pub(super) fn reset_at_close(end: &TcpStream) {
    let now = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // Refused only for a socket that is no TCP socket.
    let _refused = setsockopt(end, sockopt::Linger, &now);
}

/// Waits until the kernel has nothing to do any more for a connection of which both sides are closed.
pub(super) async fn is_closed(end: &TcpStream) {
    let mut look = FIRST_POLL_INTERVAL;
    while Info::of(end).is_ok_and(|info| !info.is_closed()) {
        sleep(look).await;
        look = (look * 2).min(MAX_POLL_INTERVAL);
    }
}

/// Closes our side, and waits shortly until the client has read what it was sent: a close with bytes unread
/// sends a reset, which overtakes that.
pub(super) async fn hear_out(client: &TcpStream) {
    let last_words = async {
        shutdown(client.as_raw_fd(), Shutdown::Write)?;
        let mut unread = [0; CHUNK];
        let mut left = MAX_STREAM;
        while left > 0 {
            client.readable().await?;
            match client.try_read(&mut unread) {
                Ok(0) => break,
                Ok(bytes) => left = left.saturating_sub(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    // Closed with the socket in any case.
    let _gone = timeout(CLOSE_TIMEOUT, last_words).await;
}

/// Waits until nothing has gone either way for too long.
pub(super) async fn idle(leg: &Leg) {
    loop {
        let left = leg
            .most_idle()
            .map_or(IDLE_POLL_INTERVAL, |most| most.saturating_sub(leg.idle()));
        if left.is_zero() {
            return;
        }
        sleep(left.min(IDLE_POLL_INTERVAL)).await;
    }
}
