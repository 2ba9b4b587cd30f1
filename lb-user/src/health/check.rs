//! One check: connect, announce that no client is behind it, probe; all of it within a time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_common::maps::vip_offer::VipOffer;
use tokio::{net::TcpStream, time::timeout};

use super::{
    CheckOutcome, CheckTarget, HealthVerdict, connection,
    probe::{CONNECTION, Exchange, Fault, OpenConnection, Probe, ProbeAnswer},
};
use crate::{config::time_text, proxy_protocol::encode};

/// Characters of an outcome's words at most: some are a server's.
const MAX_WORDS: usize = 200;

impl Fault {
    fn outcome(self) -> Result<CheckOutcome> {
        match self {
            Self::NotReady(words) => Ok(CheckOutcome::NotReady(clean(&words))),
            Self::Dead(words) | Self::Lost(words) => Ok(CheckOutcome::Dead(clean(&words))),
            Self::Ours(error) => Err(error),
        }
    }
}

impl CheckOutcome {
    /// The verdict that it counts for.
    pub(super) const fn verdict(&self) -> HealthVerdict {
        match self {
            Self::Good(_) => HealthVerdict::Up,
            Self::NotReady(_) => HealthVerdict::NotReady,
            Self::Dead(_) => HealthVerdict::Dead,
        }
    }
}

/// A check that was made.
pub(super) struct Checked {
    pub(super) outcome: CheckOutcome,
    pub(super) took: Duration,
    /// Whether the backend sent nothing at all: it, or its next hop, may be at another MAC now.
    pub(super) was_silent: bool,
    /// Whether it, or its node, has answered, be it by a refusal.
    pub(super) is_answered: bool,
    /// What it has agreed to.
    pub(super) agreed: Option<VipOffer>,
    /// What is still open.
    pub(super) open: OpenConnection,
}

/// Checks a backend once, within `limit`.
///
/// # Errors
///
/// If this host could not.
pub(super) async fn check(
    target: &CheckTarget,
    probe: &dyn Probe,
    limit: Duration,
) -> Result<Checked> {
    let begin = Instant::now();
    let exchange = Exchange::new(target.address);
    let probed = timeout(limit, connect_and_probe(target, probe, &exchange)).await;
    let took = begin.elapsed();
    let was_silent = probed.is_err() && exchange.step() == CONNECTION;
    let is_answered = !was_silent && !matches!(probed, Ok(Err(Fault::Lost(_))));
    let (outcome, open) = match probed {
        Ok(Ok(ProbeAnswer { outcome, open })) => (outcome, open),
        Ok(Err(fault)) => (fault.outcome()?, OpenConnection::Nothing),
        Err(_) => {
            let words = format!("no {} within {}", exchange.step(), time_text(limit));
            (CheckOutcome::Dead(words), OpenConnection::Nothing)
        }
    };
    Ok(Checked {
        outcome,
        took,
        was_silent,
        is_answered,
        agreed: exchange.agreed(),
        open,
    })
}

async fn connect_and_probe(
    target: &CheckTarget,
    probe: &dyn Probe,
    exchange: &Exchange,
) -> Result<ProbeAnswer, Fault> {
    let mut stream = connection::connect(target.source, target.address).await?;
    exchange.note_agreed(connection::agreed(&stream));
    if target.send_proxy_header {
        send_header(&mut stream).await?;
    }
    probe.probe(stream, exchange).await
}

/// Sends the header of a connection that no client is behind.
async fn send_header(stream: &mut TcpStream) -> Result<(), Fault> {
    let header = encode::local().context("write the PROXY header of a check");
    connection::send(stream, &header.map_err(Fault::Ours)?).await
}

/// Words without what a terminal might obey, and not too many.
fn clean(words: &str) -> String {
    let words = words.chars().filter(|letter| !letter.is_control());
    words.take(MAX_WORDS).collect()
}
