//! Connections to backends, opened by sockets of their network's cell in the thread of the client, from the ports of
//! the network's SNAT addresses that are kept for legs.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lb_common::{
    maglev,
    maps::snat::{FIRST_LEG_PORT, FIRST_LOCAL_PORT},
};
use nix::sys::socket::{
    setsockopt,
    sockopt::{IpBindAddressNoPort, TcpMaxSeg},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    task::consume_budget,
    time::{Instant, timeout},
};

use super::spare_sockets::SpareSockets;
use crate::{
    model::snat::SnatSlot,
    proxy::{
        fair_share::{Resource, Shares, Spent, TakenShare},
        splice::port_lease::{PortLease, PortLeases, Purpose},
    },
};

/// Ports of flows that are tried at one address.
const LENT_TRIES: usize = 4;
/// How long a backend may take to answer a SYN: one that got lost is sent again after a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Ports of one address: all are tried for a backend before the next address is.
const PORTS: u16 = FIRST_LOCAL_PORT - FIRST_LEG_PORT;
/// Those that a host gives to its own connections, with the default of `ip_local_port_range`.
const HOST_PORTS: u16 = 60_999 - 32_768 + 1;

/// A connection, and its port: that of a flow, or one that is no flow's.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(super) stream: TcpStream,
    pub(super) lease: Option<PortLease>,
    pub(super) port: Option<TakenShare>,
}

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undialled {
    /// No port is free, or clients of the same network have their share of them.
    NoPort(Spent),
    /// The backend refuses, or this host cannot connect to it.
    Failed,
    /// The backend does not answer in time.
    Silent,
}

impl From<io::Error> for Undialled {
    fn from(error: io::Error) -> Self {
        match has_no_port(&error) {
            true => Self::NoPort(Spent::All),
            false => Self::Failed,
        }
    }
}

impl From<Spent> for Undialled {
    fn from(spent: Spent) -> Self {
        Self::NoPort(spent)
    }
}

/// How long no port is searched again where all were taken.
const EXHAUSTED: Duration = Duration::from_secs(1);

/// The ports of each SNAT address for each backend.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    /// Which is the next one: those that were used last come last.
    next: HashMap<(Ipv4Addr, SocketAddrV4), u16>,
    /// When all were found to be taken.
    exhausted: HashMap<(Ipv4Addr, SocketAddrV4), Instant>,
    turn: usize,
}

impl Ports {
    /// The SNAT addresses, beginning with another one each time.
    fn sources(&mut self, all: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
        self.turn = self.turn.wrapping_add(1);
        let mut sources = all.to_vec();
        if !all.is_empty() {
            sources.rotate_left(self.turn % all.len());
        }
        sources
    }

    fn next(&mut self, source: Ipv4Addr, to: SocketAddrV4) -> u16 {
        let next = self.next.entry((source, to)).or_insert(FIRST_LEG_PORT);
        let port = *next;
        *next = if port + 1 < FIRST_LOCAL_PORT {
            port + 1
        } else {
            FIRST_LEG_PORT
        };
        port
    }
}

impl Ports {
    /// Forgets backends that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(SocketAddrV4) -> bool) {
        self.next.retain(|(_, to), _| is_there(*to));
        self.exhausted.retain(|(_, to), _| is_there(*to));
    }

    /// Whether there is none, as was found a moment ago.
    fn are_exhausted(&mut self, source: Ipv4Addr, to: SocketAddrV4) -> bool {
        let since = self.exhausted.get(&(source, to));
        let are_exhausted = since.is_some_and(|since| since.elapsed() < EXHAUSTED);
        if !are_exhausted {
            self.exhausted.remove(&(source, to));
        }
        are_exhausted
    }
}

/// What all threads that dial in a network have in common.
#[derive(Debug)]
pub(crate) struct LocalEnds {
    ports: Mutex<Ports>,
    pub(super) sockets: SpareSockets,
}

impl LocalEnds {
    /// All ports are to be had, and so many sockets are made ahead.
    pub(crate) fn new(sockets: usize) -> Self {
        Self {
            ports: Mutex::default(),
            sockets: SpareSockets::up_to(sockets),
        }
    }

    pub(super) fn ports(&self) -> MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where connections come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From the cell's own addresses, whose ports are divided.
    Cell,
    /// From the host's, which chooses the ports itself.
    Host,
}

impl Origin {
    /// How many ports each address has for a backend.
    const fn ports(self) -> u16 {
        match self {
            Self::Cell => PORTS,
            Self::Host => HOST_PORTS,
        }
    }
}

/// Where the connections of a network come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DialSources<'s> {
    pub(crate) network: &'s Arc<str>,
    pub(crate) shares: &'s Shares,
    pub(crate) origin: Origin,
    pub(crate) addresses: &'s [Ipv4Addr],
    pub(crate) slots: &'s [SnatSlot],
    pub(crate) leases: Option<&'s PortLeases>,
    pub(crate) local: &'s LocalEnds,
}

/// Opens a connection, in the calling thread.
///
/// # Errors
///
/// Why there is none; after two seconds that it takes too long.
pub(super) async fn open(
    purpose: &Purpose,
    sources: DialSources<'_>,
) -> Result<Dialled, Undialled> {
    let dialled = timeout(CONNECT_TIMEOUT, connect_any(purpose, sources)).await;
    dialled.unwrap_or(Err(Undialled::Silent))
}

/// From the port of a flow if the connection may be handed over, and else from one that is no flow's; from the
/// other kind where none is left.
async fn connect_any(purpose: &Purpose, sources: DialSources<'_>) -> Result<Dialled, Undialled> {
    let mut why = Spent::All;
    for is_of_flow in [purpose.mss.is_some(), purpose.mss.is_none()] {
        let dialled = match is_of_flow {
            true => connect_lent(purpose, sources).await,
            false => connect_leg(purpose, sources).await,
        };
        match dialled {
            Err(Undialled::NoPort(Spent::All)) => {}
            Err(Undialled::NoPort(Spent::Share)) => why = Spent::Share,
            dialled => return dialled,
        }
    }
    Err(why.into())
}

/// From a port that is a flow's.
async fn connect_lent(purpose: &Purpose, sources: DialSources<'_>) -> Result<Dialled, Undialled> {
    let leases = sources.leases.filter(|_| sources.origin == Origin::Cell);
    let leases = leases.ok_or(Spent::All)?;
    let slots = sources.slots;
    let start = maglev::hash(&purpose.key);
    let start = usize::try_from(start).unwrap_or_default() % slots.len().max(1);
    let (before, from) = slots.split_at_checked(start).unwrap_or_default();
    for slot in from.iter().chain(before) {
        for _ in 0..LENT_TRIES {
            let Some(lease) = leases.lend(slot, slots, purpose)? else {
                break;
            };
            let (source, to) = (lease.source, purpose.backend.1);
            let connected = match socket(sources.local, source).await {
                Ok(socket) => {
                    if let Some(mss) = purpose.mss {
                        // Refused where it is out of all bounds: then the connection is copied.
                        let _refused = setsockopt(&socket, TcpMaxSeg, &u32::from(mss));
                    }
                    socket.connect(to.into()).await
                }
                Err(error) => Err(error),
            };
            match connected {
                Ok(stream) => {
                    return Ok(Dialled {
                        stream,
                        lease: Some(lease),
                        port: None,
                    });
                }
                Err(error) if has_no_port(&error) => lease.give_back(),
                Err(error) => {
                    if error.kind() == io::ErrorKind::ConnectionRefused {
                        lease.give_back();
                    }
                    return Err(error.into());
                }
            }
        }
    }
    Err(Spent::All.into())
}

/// From a port that is no flow's.
async fn connect_leg(purpose: &Purpose, sources: DialSources<'_>) -> Result<Dialled, Undialled> {
    let (to, addresses) = (purpose.backend.1, sources.addresses);
    let resource = Resource::LegPorts(Arc::clone(sources.network), to);
    let most = usize::from(sources.origin.ports()) * addresses.len();
    let port = sources.shares.take(resource, purpose.key.network, most)?;
    let stream = connect(to, sources.origin, addresses, sources.local).await?;
    Ok(Dialled {
        stream,
        lease: None,
        port: Some(port),
    })
}

async fn connect(
    to: SocketAddrV4,
    origin: Origin,
    sources: &[Ipv4Addr],
    local: &LocalEnds,
) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let sources = local.ports().sources(sources);
    for source in sources {
        let connected = match origin {
            Origin::Cell => connect_from(source, to, local).await,
            Origin::Host => {
                let source = SocketAddrV4::new(source, 0);
                socket(local, source).await?.connect(to.into()).await
            }
        };
        match connected {
            Err(error) if has_no_port(&error) => last = error,
            connected => return connected,
        }
    }
    Err(last)
}

/// From the first port of `source` that is free for this backend.
async fn connect_from(
    source: Ipv4Addr,
    to: SocketAddrV4,
    local: &LocalEnds,
) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    if local.ports().are_exhausted(source, to) {
        return Err(last);
    }
    for _ in 0..PORTS {
        let port = local.ports().next(source, to);
        // Any port can be had of an address that is there.
        let socket = socket(local, SocketAddrV4::new(source, port)).await?;
        match socket.connect(to.into()).await {
            Err(error) if has_no_port(&error) => last = error,
            connected => return connected,
        }
        // Where most are taken others have their turn in between.
        consume_budget().await;
    }
    let exhausted = (source, to);
    local.ports().exhausted.insert(exhausted, Instant::now());
    Err(last)
}

/// A socket whose port others have as well, to other backends; port 0 is any that is free.
async fn socket(local: &LocalEnds, source: SocketAddrV4) -> io::Result<TcpSocket> {
    let socket = local.sockets.take().await?;
    if source.port() == 0 {
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
    } else {
        socket.set_reuseaddr(true)?;
    }
    socket.bind(source.into())?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// Whether the port is in use for this backend, or the address is not there.
fn has_no_port(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrNotAvailable | io::ErrorKind::AddrInUse
    )
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use lb_common::maps::flow::FlowKey;
    use tokio::net::TcpListener;

    use super::*;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);

    async fn listen() -> (TcpListener, SocketAddrV4) {
        let listener = TcpListener::bind((SOURCE, 0)).await.unwrap();
        let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            panic!("bound to IPv6");
        };
        (listener, address)
    }

    /// With sockets of the calling thread's namespace.
    fn local() -> LocalEnds {
        let local = LocalEnds::new(4);
        tokio::spawn(local.sockets.clone().provide());
        local
    }

    fn port(stream: &TcpStream) -> u16 {
        stream.local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn every_connection_has_the_next_port_and_backends_share_them() {
        let (_first, one) = listen().await;
        let (_second, other) = listen().await;
        let local = local();
        let dial = async |to| connect(to, Origin::Cell, &[SOURCE], &local).await.unwrap();
        let streams = [dial(one).await, dial(one).await, dial(other).await];
        let found = streams.each_ref().map(port);
        assert_eq!(found, [0, 1, 0].map(|more| FIRST_LEG_PORT + more));
        // The first port again: it is taken.
        *local.ports() = Ports::default();
        assert_eq!(port(&dial(one).await), FIRST_LEG_PORT + 2);
    }

    /// An address that is not there, or not yet, is passed over.
    #[tokio::test]
    async fn an_address_that_is_missing_is_passed_over() {
        let (_listener, to) = listen().await;
        let local = local();
        let missing = Ipv4Addr::new(192, 0, 2, 1);
        let sources = [SOURCE, missing];
        let stream = connect(to, Origin::Cell, &sources, &local).await.unwrap();
        assert_eq!(port(&stream), FIRST_LEG_PORT);
        // Its first port was enough to know.
        let next = local.ports().next[&(missing, to)];
        assert_eq!(next, FIRST_LEG_PORT + 1);
    }

    /// All ports are not searched again and again.
    #[tokio::test]
    async fn where_all_ports_are_taken_nobody_looks_for_a_while() {
        let (_listener, to) = listen().await;
        let local = local();
        let dial = async || connect(to, Origin::Cell, &[SOURCE], &local).await;
        let long_ago = Instant::now() - EXHAUSTED;
        local.ports().exhausted.insert((SOURCE, to), long_ago);
        assert!(dial().await.is_ok());
        assert!(local.ports().exhausted.is_empty());
        let now = Instant::now();
        local.ports().exhausted.insert((SOURCE, to), now);
        let error = dial().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert_eq!(local.ports().next[&(SOURCE, to)], FIRST_LEG_PORT + 1);
    }

    /// Of a client of this network.
    fn purpose(network: u16, to: SocketAddrV4) -> Purpose {
        Purpose {
            key: FlowKey {
                network,
                ..FlowKey::default()
            },
            service: 1,
            backend: (7, to),
            mss: None,
        }
    }

    fn sources<'s>(
        network: &'s Arc<str>,
        shares: &'s Shares,
        local: &'s LocalEnds,
    ) -> DialSources<'s> {
        DialSources {
            network,
            shares,
            origin: Origin::Cell,
            addresses: &[SOURCE],
            slots: &[],
            leases: None,
            local,
        }
    }

    /// A network that has half of the ports to a backend gets no more of them, while others do, and it of other
    /// backends.
    #[tokio::test]
    async fn the_ports_to_a_backend_are_divided_among_networks() {
        let [(_first, one), (_second, other)] = [listen().await, listen().await];
        let (network, shares): (Arc<str>, _) = ("n".into(), Shares::default());
        shares.divide_among(2);
        let local = local();
        let dial = async |of, to| {
            let sources = sources(&network, &shares, &local);
            let dialled = connect_any(&purpose(of, to), sources).await;
            dialled.map(|dialled| dialled.port)
        };
        let take = || {
            let resource = Resource::LegPorts(Arc::clone(&network), one);
            shares.take(resource, 1, PORTS.into())
        };
        let mut taken: Vec<TakenShare> = (0..PORTS / 2).flat_map(|_| take()).collect();
        assert_eq!(taken.len(), usize::from(PORTS / 2));
        let spent = dial(1, one).await.unwrap_err();
        assert_eq!(spent, Undialled::NoPort(Spent::Share));
        let others = [dial(2, one).await.unwrap(), dial(1, other).await.unwrap()];
        assert!(others.iter().all(Option::is_some));
        assert_eq!(shares.read()[&2].leg_ports, 1);
        drop(others);
        assert!(!shares.read().contains_key(&2));
        taken.truncate(1);
        assert!(dial(1, one).await.is_ok());
    }

    #[test]
    fn after_the_last_port_comes_the_first() {
        let mut ports = Ports::default();
        let to = SocketAddrV4::new(SOURCE, 443);
        let all: Vec<u16> = (0..PORTS).map(|_| ports.next(SOURCE, to)).collect();
        assert!(all.is_sorted());
        assert_eq!(all.last(), Some(&(FIRST_LOCAL_PORT - 1)));
        assert_eq!(ports.next(SOURCE, to), FIRST_LEG_PORT);
    }

    #[test]
    fn backends_that_are_gone_are_forgotten() {
        let mut ports = Ports::default();
        let [stays, goes] = [443, 444].map(|port| SocketAddrV4::new(SOURCE, port));
        for to in [stays, goes] {
            ports.next(SOURCE, to);
            ports.exhausted.insert((SOURCE, to), Instant::now());
        }
        ports.retain(|to| to == stays);
        assert_eq!(ports.next.keys().collect::<Vec<_>>(), [&(SOURCE, stays)]);
        assert_eq!(ports.exhausted.len(), 1);
        assert_eq!(ports.next(SOURCE, stays), FIRST_LEG_PORT + 1);
    }

    #[test]
    fn every_address_has_its_turn() {
        let mut ports = Ports::default();
        let all = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last));
        assert_eq!(ports.sources(&all), [all[1], all[0]]);
        assert_eq!(ports.sources(&all), all);
        assert!(ports.sources(&[]).is_empty());
    }

    #[tokio::test]
    async fn who_refuses_is_known_at_once() {
        let (listener, address) = listen().await;
        drop(listener);
        let local = local();
        let error = connect(address, Origin::Cell, &[SOURCE], &local).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
