//! Changes of the interfaces of a namespace, as they happen.

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

/// Wakes the listener each time that something has happened to an interface of the calling thread's
/// namespace. What has happened to which is for the listener to find out, so no event that is lost matters
/// (`ENOBUFS`): its loss wakes it as well.
pub fn follow(runtime: &Runtime) -> Receiver<()> {
    let (tell, told) = mpsc::channel(1);
    runtime.spawn(async move {
        while !tell.is_closed() {
            if let Err(error) = run(&tell).await {
                tracing::error!(
                    "interfaces are not watched, so changes of NICs are found late; trying again: {error:#}"
                );
                sleep(RETRY).await;
            }
        }
    });
    told
}

async fn run(tell: &Sender<()>) -> Result<()> {
    let (connection, _handle, mut events) =
        new_multicast_connection(&[MulticastGroup::Link]).context("open a netlink socket")?;
    tokio::spawn(connection);
    loop {
        // At once the first time: there may have been events before the socket was open. Where the channel is
        // full, the listener has not looked yet since the last one, and will see this too.
        let _full = tell.try_send(());
        if events.next().await.is_none() {
            bail!("the netlink socket was closed");
        }
        sleep(SETTLE_TIME).await;
        while events.try_recv().is_ok() {}
    }
}
