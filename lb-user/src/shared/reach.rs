//! Reach: from a pool to a connection with one of its backends, which is a leg from then on.

use std::{
    net::{SocketAddr, SocketAddrV4},
    sync::Arc,
};

use lb_common::{addr::Be16, maps::flow::FlowKey};
use tokio::net::TcpStream;

use super::{
    front::Shared,
    legs::{Guard, NewLeg, NotBegun},
    setup::Service,
};

/// The ends of a client's connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) client: SocketAddrV4,
    pub(super) vip: SocketAddrV4,
}

impl Addresses {
    /// The key that a flow of `service` would have.
    pub(super) fn key(self, service: &Service) -> FlowKey {
        FlowKey {
            client: (*self.client.ip()).into(),
            vip: (*self.vip.ip()).into(),
            client_port: Be16::new(self.client.port()),
            vip_port: Be16::new(self.vip.port()),
            network: service.network,
            protocol: 6,
        }
    }
}

/// Why there is no backend for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreached {
    /// There are as many legs as there may be.
    Budget,
    /// Nobody serves the pool.
    NoBackend,
    /// Those who do cannot be reached.
    Unreachable,
}

impl Unreached {
    /// The value of a metric's label. It stays the same from one version to the next.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Budget => "budget_spent",
            Self::NoBackend => "no_backend",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Who of a pool may serve a client: at least one.
#[derive(Debug)]
pub(super) struct Candidates {
    pool: String,
    /// [`Legs::cuts`](super::Legs::cuts) when they were chosen.
    cuts: u64,
    network: String,
    network_id: u16,
    /// Ids and addresses, in the order in which they are tried.
    pub(super) backends: Vec<(u32, SocketAddrV4)>,
}

impl Candidates {
    /// Those of a pool for a hash.
    pub(super) fn of(pool: &str, hash: u32, shared: &Shared) -> Result<Self, Unreached> {
        let cuts = shared.legs.cuts();
        let setup = shared.setup.borrow();
        let name = pool;
        let pool = setup.pools.get(name).ok_or(Unreached::NoBackend)?;
        let backends = pool.choose(hash);
        if backends.is_empty() {
            return Err(Unreached::NoBackend);
        }
        Ok(Self {
            pool: name.to_owned(),
            cuts,
            network: pool.network.clone(),
            network_id: pool.network_id,
            backends,
        })
    }

    /// Opens a connection to the first that answers, for a client who asks for `name`.
    pub(super) async fn connect(
        self,
        key: &FlowKey,
        service: &Service,
        name: Option<String>,
        shared: &Shared,
    ) -> Result<(TcpStream, Guard), Unreached> {
        if !shared.legs.has_room(service) {
            return Err(Unreached::Budget);
        }
        for (tried, (id, address)) in self.backends.into_iter().enumerate() {
            let Ok(backend) = shared.dialers.dial(&self.network, address).await else {
                continue;
            };
            if tried > 0 {
                let counts = &shared.counts;
                counts.of(&service.name, |counted| counted.redispatched += 1);
            }
            let Ok(SocketAddr::V4(snat)) = backend.local_addr() else {
                continue;
            };
            // It may have been taken out, or cut, while it was dialled.
            let setup = Arc::clone(&shared.setup.borrow());
            let pool = setup.pools.get(&self.pool);
            if !pool.is_some_and(|pool| pool.has(id)) {
                continue;
            }
            let new = NewLeg {
                key,
                service,
                backend: (id, address),
                network: self.network_id,
                snat,
                name: name.clone(),
            };
            match shared.legs.begin(new, self.cuts) {
                Ok(guard) => return Ok((backend, guard)),
                Err(NotBegun::NoRoom) => return Err(Unreached::Budget),
                Err(NotBegun::Cut) => {}
            }
        }
        Err(Unreached::Unreachable)
    }
}
