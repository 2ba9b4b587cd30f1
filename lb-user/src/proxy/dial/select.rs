//! From a pool to a connection with one of its backends, which is a leg from then on.

use std::{
    collections::VecDeque,
    net::{SocketAddr, SocketAddrV4},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use lb_common::{addr::Be16, maps::flow::FlowKey};
use tokio::net::TcpStream;

use super::{
    candidates::{ChosenBy, ProxyPool},
    connect::{Dialled, Undialled},
};
use crate::{
    config::ProxyProtocol,
    dataplane::{affinities::AffineClient, flows::monotonic_us},
    proxy::{
        connections::{Guard, NewLeg, NotBegun},
        context::Context,
        fair_share::Spent,
        snapshot::ProxyService,
        splice::{
            handoff::NotSpliced,
            negotiated::Offer,
            port_lease::{PortLease, Purpose},
            saved_syn::Syn,
        },
    },
    proxy_protocol::{Endpoints, encode},
};

/// How long there is a next backend to be tried, from the first one on. One that refuses costs no time, so
/// that all of a pool may; of those that are silent there are three, or one three times: its SYNs may have been lost.
const TRYING: Duration = Duration::from_secs(5);

/// The ends of a client's connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionAddresses {
    pub(crate) client: SocketAddrV4,
    pub(crate) vip: SocketAddrV4,
}

impl ConnectionAddresses {
    /// Both ends, as a header has them.
    pub(crate) fn endpoints(self) -> Endpoints {
        Endpoints {
            source: self.client.into(),
            destination: self.vip.into(),
        }
    }

    /// The key that a flow of `service` would have.
    pub(crate) fn key(self, service: &ProxyService) -> FlowKey {
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
pub(crate) enum NoBackend {
    /// There are as many legs as there may be.
    Budget,
    /// No backend serves the pool.
    NoneServes,
    /// Those that do cannot be reached.
    Unreachable,
    /// They have as many connections as they may have.
    Full,
    /// No descriptors are left.
    NoDescriptors,
    /// No port is left to reach them from.
    NoPorts,
    /// Clients of the same network have their share of descriptors or ports.
    Share,
}

impl NoBackend {
    /// The value of a metric's label. It stays the same from one version to the next.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Budget => "budget_spent",
            Self::NoneServes => "no_backend",
            Self::Unreachable => "unreachable",
            Self::Full => "backends_full",
            Self::NoDescriptors => "no_descriptors",
            Self::NoPorts => "no_ports",
            Self::Share => "network_share",
        }
    }
}

impl NoBackend {
    /// Why a client has no descriptor.
    pub(crate) const fn without_descriptor(spent: Spent) -> Self {
        match spent {
            Spent::All => Self::NoDescriptors,
            Spent::Share => Self::Share,
        }
    }

    /// Why a client has no socket behind a cookie.
    pub(crate) const fn without_socket(spent: Spent) -> Self {
        match spent {
            Spent::All => Self::Budget,
            Spent::Share => Self::Share,
        }
    }
}

impl From<Undialled> for NoBackend {
    fn from(undialled: Undialled) -> Self {
        match undialled {
            Undialled::NoPort(Spent::All) => Self::NoPorts,
            Undialled::NoPort(Spent::Share) => Self::Share,
            Undialled::Failed | Undialled::Silent => Self::Unreachable,
        }
    }
}

/// A connection with a backend, which is a leg.
#[derive(Debug)]
pub(crate) struct BackendConnection {
    pub(crate) backend: TcpStream,
    pub(crate) guard: Guard,
    /// The flow whose port it has.
    pub(crate) lease: Option<PortLease>,
    /// How the client's connection began, if it may be handed over; or why it may not.
    pub(crate) syn: Result<Syn, NotSpliced>,
    /// How the backend gets the client's address.
    proxy_protocol: Option<ProxyProtocol>,
}

impl BackendConnection {
    /// What the backend gets first: the PROXY header with the client's address, the name that it requested,
    /// and the unique id that it has already; nothing if the backend expects none.
    ///
    /// # Errors
    ///
    /// If there is no room for it: the backend would take what comes instead for one.
    pub(crate) fn preface(
        &self,
        Endpoints {
            source,
            destination,
        }: Endpoints,
        authority: Option<&str>,
        unique_id: Option<&[u8]>,
    ) -> Result<Vec<u8>, NoBackend> {
        let Some(ProxyProtocol::V2) = self.proxy_protocol else {
            return Ok(Vec::new());
        };
        let own = encode::unique_id(self.guard.leg.snat, SystemTime::now());
        let id = unique_id.unwrap_or(own.as_bytes());
        let header = encode::header(source, destination, authority, id);
        header.map_err(|_| NoBackend::Unreachable)
    }
}

/// Whether a client's connection may be handed over to the data plane, as far as that is known before it has
/// a backend: if not, why.
pub(super) type Carriage = Result<Offer, NotSpliced>;

/// The backends of a pool that may serve a client: at least one.
#[derive(Debug)]
pub(crate) struct Candidates {
    name: String,
    pool: Arc<ProxyPool>,
    /// The entry of its table that the client begins with.
    first: u32,
    /// The backend that the client has had, if it keeps that.
    kept: Option<u32>,
    /// The client that is remembered with the backend that it gets, and the id of the pool.
    remembers: Option<(AffineClient, u32)>,
    /// [`Legs::cuts`](crate::proxy::Legs::cuts) when they were chosen.
    cuts: u64,
}

impl Candidates {
    /// Those of the pool with this name for a client.
    pub(crate) fn of(name: &str, by: ChosenBy, shared: &Context) -> Result<Self, NoBackend> {
        let cuts = shared.work.legs.cuts();
        let setup = shared.work.setup.borrow();
        let pool = setup.pools.get(name).ok_or(NoBackend::NoneServes)?;
        let remembers = pool.remembers(by);
        let kept = remembers.and_then(|(client, id, timeout)| {
            let had = shared
                .work
                .affinities
                .as_ref()?
                .backend(client, id, timeout);
            had.filter(|backend| pool.serves(*backend))
        });
        let candidates = Self {
            name: name.to_owned(),
            pool: Arc::clone(pool),
            first: pool.first(by, |backend| shared.work.legs.live(backend)),
            kept,
            remembers: remembers.map(|(client, id, _)| (client, id)),
            cuts,
        };
        let first = candidates.backends().next();
        first.map(|_| ()).ok_or(NoBackend::NoneServes)?;
        Ok(candidates)
    }

    /// Ids and addresses, in the order in which they are tried.
    pub(crate) fn backends(&self) -> impl Iterator<Item = (u32, SocketAddrV4)> {
        self.pool.choose(self.kept, self.first)
    }

    /// Opens a connection to the first that answers, for a client that requests `name`.
    pub(crate) async fn connect(
        self,
        key: &FlowKey,
        service: &ProxyService,
        name: Option<String>,
        carriage: Carriage,
        shared: &Context,
    ) -> Result<BackendConnection, NoBackend> {
        let has_ports = shared
            .work
            .legs
            .has_ports(service.network, self.pool.network_id);
        if !has_ports || !shared.work.legs.has_room(service) {
            return Err(NoBackend::Budget);
        }
        let descriptor = shared.work.descriptors.socket(service.network);
        let descriptor = descriptor.map_err(NoBackend::without_descriptor)?;
        let mut why = NoBackend::Unreachable;
        let (start, since) = (Instant::now(), monotonic_us());
        let (mut backends, mut silent) = (self.backends(), VecDeque::new());
        let mut first = None;
        while start.elapsed() < TRYING
            && let Some((id, address)) = backends.next().or_else(|| silent.pop_front())
        {
            let first = *first.get_or_insert(id);
            let max_connections = self.pool.max_connections();
            if max_connections.is_some_and(|most| shared.work.legs.live(id) >= most) {
                why = NoBackend::Full;
                continue;
            }
            let syn = carriage.and_then(|offer| shared.work.agreed.fits(offer, address));
            let purpose = Purpose {
                key: *key,
                service: service.id,
                backend: (id, address),
                mss: syn.ok().map(|syn| syn.takes()),
            };
            let dialling = Instant::now();
            let setup = Arc::clone(&shared.work.setup.borrow());
            let dialled = shared
                .work
                .dialers
                .dial(&self.pool.network, purpose, &setup);
            let Dialled {
                stream: backend,
                lease,
                port,
            } = match dialled.await {
                Ok(dialled) => dialled,
                Err(undialled) => {
                    if !matches!(undialled, Undialled::NoPort(_)) {
                        shared.work.legs.note_failure(id);
                    }
                    if undialled == Undialled::Silent {
                        silent.push_back((id, address));
                    }
                    why = undialled.into();
                    continue;
                }
            };
            let connected_us = u64::try_from(dialling.elapsed().as_micros()).unwrap_or_default();
            if id != first {
                let counts = &shared.work.counts;
                counts.of(&service.name, |counted| counted.redispatched += 1);
            }
            let Ok(SocketAddr::V4(snat)) = backend.local_addr() else {
                continue;
            };
            // It may have been taken out, or cut, while it was dialled.
            let setup = Arc::clone(&shared.work.setup.borrow());
            let pool = setup.pools.get(&self.name);
            let Some(pool) = pool.filter(|pool| pool.has(id)) else {
                continue;
            };
            let new = NewLeg {
                key,
                service,
                backend: (id, address),
                network: self.pool.network_id,
                snat,
                name: name.clone(),
                max_connections,
                since,
                connected_us,
            };
            match shared.work.legs.begin(new, self.cuts) {
                Ok(guard) => {
                    if let (Some(affinities), Some((client, pool))) =
                        (&shared.work.affinities, self.remembers)
                    {
                        affinities.note(client, pool, id);
                    }
                    return Ok(BackendConnection {
                        backend,
                        guard: guard.with([descriptor].into_iter().chain(port).collect()),
                        lease,
                        syn,
                        proxy_protocol: pool.proxy_protocol,
                    });
                }
                Err(NotBegun::NoRoom) => return Err(NoBackend::Budget),
                // Others have got there first.
                Err(NotBegun::BackendFull) => why = NoBackend::Full,
                Err(NotBegun::Cut) => {}
            }
        }
        if why == NoBackend::Unreachable {
            shared.work.legs.note_unreached(service);
        }
        Err(why)
    }
}

#[cfg(test)]
mod tests;
