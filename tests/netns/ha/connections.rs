//! Connections that must outlive their box: idle ones of which the test holds both ends, and busy ones.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    servers::echo::EchoServer,
    topology::TwoBoxes,
    traffic::{
        conn_pair::{Line, Pair},
        load::Load,
    },
};

use super::{BUSY, BUSY_PORT, IDLE, IDLE_PORT, server};

const IDLE_COUNT: usize = 200;
const BUSY_COUNT: usize = 20;
/// How many flows they are.
pub(super) const COUNT: usize = IDLE_COUNT + BUSY_COUNT;

/// How long a busy connection may hear nothing: TCP sends again after 0.2, 0.4, 0.8 and 1.6 s.
const GAP: Duration = Duration::from_secs(4);
/// In this time every busy connection has heard something.
const HEARD: Duration = Duration::from_secs(10);

/// All of them, open until this is dropped.
pub(super) struct Connections<'t> {
    idle: Vec<Pair>,
    busy: Load,
    server: EchoServer<'t>,
}

impl<'t> Connections<'t> {
    /// Opens them; each has carried something each way when this returns.
    pub(super) fn open(pair: &'t TwoBoxes) -> Result<Self> {
        let server = server(pair, BUSY_PORT)?;
        let line = Line::new(pair.client(), IDLE, &pair.nodes[0], IDLE_PORT)?;
        let connections = Self {
            idle: line.open_many(IDLE_COUNT)?,
            busy: Load::streams(pair.client(), BUSY, BUSY_COUNT)?,
            server,
        };
        connections.wait_for_busy()?;
        Ok(connections)
    }

    /// Every one carries bytes both ways, and is the same connection at the backend.
    pub(super) fn ensure_alive(&self) -> Result<()> {
        self.ensure_alive_after(GAP)
    }

    /// The same where a busy one may have heard nothing for so long.
    pub(super) fn ensure_alive_after(&self, gap: Duration) -> Result<()> {
        for (number, pair) in self.idle.iter().enumerate() {
            pair.talk()
                .with_context(|| format!("idle connection {number}, {}", pair.snat))?;
        }
        self.wait_for_busy()?;
        let tally = self.busy.take();
        println!("{}: {tally:?}", self.busy.name);
        ensure!(tally.failed == 0 && tally.longest < gap, "{tally:?}");
        let seen = self.server.seen();
        let accepted: u64 = seen.values().sum();
        ensure!(accepted == u64::try_from(BUSY_COUNT)?, "{seen:?}");
        Ok(())
    }

    /// Closes them, and sees that none had failed.
    pub(super) fn close(self) -> Result<()> {
        let tally = self.busy.take();
        ensure!(tally.failed == 0, "{tally:?}");
        self.busy.end()
    }

    /// Waits until so many answers have come that each busy connection may have had some.
    fn wait_for_busy(&self) -> Result<()> {
        let wanted = self.busy.done() + 10 * u64::try_from(BUSY_COUNT)?;
        poll::until("answers of busy connections", HEARD, || {
            Ok((self.busy.done() >= wanted).then_some(()))
        })
    }
}
