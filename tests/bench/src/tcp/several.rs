//! A carrier of connections on several CPUs, each of which has a client and a server, too.

use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{process::Process, topology::path::Path};

use crate::{
    path::{
        configurations::{PORT, VIP},
        wire::{Ports, Wire},
    },
    tcp::{
        answer::Speech,
        carrier::Carrier,
        client::{Load, Told},
        stand::{Ask, CLIENT_COUNT, CLIENTS, TIMEOUT, end, prepare, serve},
        way::Way,
    },
};

/// A carrier with as many clients and servers as it has CPUs.
#[derive(Debug)]
pub(crate) struct Several<'p> {
    pub(crate) way: Way,
    path: &'p Path,
    cpus: &'p [usize],
    speech: Speech,
    _carrier: Carrier<'p>,
    servers: Vec<Process>,
    _wire: Wire,
    /// Connections that were made.
    pub(crate) made: u64,
    /// The number of the next connection of each client.
    next: u64,
}

impl<'p> Several<'p> {
    /// Sets it up on these CPUs; connections pass when this returns.
    ///
    /// # Errors
    ///
    /// When something does not start.
    pub(crate) fn build(way: Way, path: &'p Path, cpus: &'p [usize]) -> Result<Self> {
        prepare(path)?;
        if way.is_copied() {
            let client = &path.client.netns;
            client.set_sysctl("ipv4/tcp_timestamps", "0")?;
        }
        let mut wire = Wire::plug(path, Ports::Open)?;
        let speech = way.speech();
        let servers = cpus.iter().map(|cpu| serve(path, speech, *cpu));
        Ok(Self {
            way,
            path,
            cpus,
            speech,
            servers: servers.collect::<Result<_>>()?,
            _carrier: Carrier::start(way, path, &mut wire, cpus)?,
            _wire: wire,
            made: 0,
            next: 0,
        })
    }

    /// Connections in a second of all clients, which ask at the same time; all of them are right.
    ///
    /// # Errors
    ///
    /// When one is not.
    pub(crate) fn rate(&mut self, ask: Ask) -> Result<f64> {
        let (of_each, clients) = (usize::from(CLIENT_COUNT) / self.cpus.len(), self.cpus);
        let begun = Instant::now();
        let places = clients.iter().enumerate();
        let asking: Vec<Process> = places
            .map(|(place, cpu)| {
                let first = u32::from(CLIENTS) + u32::try_from(place * of_each)?;
                let load = self.load(ask, first.into(), u8::try_from(of_each)?);
                let words = serde_json::to_string(&load)?;
                let (host, name) = (self.path.client.netns.path(), format!("client-{cpu}"));
                end(self.path, &host, &name, *cpu, &["client", &words])
            })
            .collect::<Result<_>>()?;
        let limit = Duration::from_millis(ask.millis) + TIMEOUT;
        let mut rate = 0.0;
        let mut most = 0;
        for client in asking {
            let told = self.hear(client, limit.saturating_sub(begun.elapsed()));
            let told = told.with_context(|| format!("through {}", self.way.name()))?;
            rate += told.connections as f64 / told.seconds;
            self.made += told.connections;
            most = most.max(told.connections);
        }
        self.next += most;
        Ok(rate)
    }

    fn load(&self, ask: Ask, from: Ipv4Addr, clients: u8) -> Load {
        Load {
            to: SocketAddrV4::new(VIP, PORT),
            backends: 1,
            from,
            clients,
            speech: self.speech,
            answer: ask.answer,
            concurrency: ask.concurrency,
            millis: ask.millis,
            first: self.next,
        }
    }

    fn hear(&self, mut client: Process, limit: Duration) -> Result<Told> {
        let status = client.wait_for_end(limit)?;
        let servers = self.servers.iter().map(Process::stderr);
        ensure!(
            status.success(),
            "the client: {}; the servers: {}",
            client.stderr().trim(),
            servers.collect::<String>().trim()
        );
        serde_json::from_str(&client.stdout()).context("read what the client tells")
    }
}
