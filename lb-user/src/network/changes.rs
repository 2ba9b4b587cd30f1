//! Changes of the interfaces of a namespace, and of their addresses, as they happen.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::StreamExt as _;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::{
    runtime::Runtime,
    sync::mpsc::{self, Receiver, Sender},
    time::sleep,
};

/// How long after the first event the listener is woken: one change is several events.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// Pause after netlink has failed.
const RETRY: Duration = Duration::from_secs(1);

/// What is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowedEvents {
    /// Interfaces. The listener is woken a moment after the first of several events.
    Links,
    /// Addresses of interfaces. The listener is woken at once: clients wait for the box that gets one.
    Addresses,
}

impl FollowedEvents {
    const fn groups(self) -> &'static [MulticastGroup] {
        match self {
            Self::Links => &[MulticastGroup::Link],
            Self::Addresses => &[MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr],
        }
    }

    const fn settle_time(self) -> Duration {
        match self {
            Self::Links => SETTLE_TIME,
            Self::Addresses => Duration::ZERO,
        }
    }

    /// What it means that there are no events, in words.
    const fn failure(self) -> &'static str {
        match self {
            Self::Links => "interfaces are not watched, so changes of NICs are found late",
            Self::Addresses => {
                "addresses of the host are not watched, so a marker (ha) that comes or goes is found late"
            }
        }
    }
}

/// Wakes the listener each time that something has happened to what is followed in the calling thread's
/// namespace. What has happened to which is for the listener to find out, so no event that is lost matters
/// (`ENOBUFS`): its loss wakes it as well.
pub fn follow(runtime: &Runtime, followed: FollowedEvents) -> Receiver<()> {
    let (tell, told) = mpsc::channel(1);
    runtime.spawn(async move {
        while !tell.is_closed() {
            if let Err(error) = run(&tell, followed).await {
                tracing::error!("{}; trying again: {error:#}", followed.failure());
                sleep(RETRY).await;
            }
        }
    });
    told
}

async fn run(tell: &Sender<()>, followed: FollowedEvents) -> Result<()> {
    let (connection, _handle, mut events) =
        new_multicast_connection(followed.groups()).context("open a netlink socket")?;
    tokio::spawn(connection);
    loop {
        // At once the first time: there may have been events before the socket was open. Where the channel is
        // full, the listener has not looked yet since the last one, and will see this too.
        let _full = tell.try_send(());
        if events.next().await.is_none() {
            bail!("the netlink socket was closed");
        }
        if !followed.settle_time().is_zero() {
            sleep(followed.settle_time()).await;
        }
        while events.try_recv().is_ok() {}
    }
}
