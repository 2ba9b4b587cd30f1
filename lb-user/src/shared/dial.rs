//! Dial: connections to backends, opened in the cell of their network, from the ports of its SNAT
//! addresses that are kept for legs.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    io,
    net::{self, Ipv4Addr, SocketAddrV4},
    sync::Arc,
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
    sync::{mpsc, oneshot},
    task::consume_budget,
    time::{Instant, timeout},
};

use super::leases::{Lease, Leases, Purpose};
use crate::control::snat::SnatSlot;

/// Ports of flows that are tried at one address.
const LENT_TRIES: usize = 4;
/// How long a backend may take to answer a SYN: one that got lost is sent again after a second.
const PATIENCE: Duration = Duration::from_secs(2);
/// Ports of one address: all are tried for a backend before the next address is.
const PORTS: u16 = FIRST_LOCAL_PORT - FIRST_LEG_PORT;

/// A wish for a connection.
#[derive(Debug)]
pub(super) struct Dial {
    pub(super) to: SocketAddrV4,
    /// For whom, if it may be handed over.
    pub(super) purpose: Option<Purpose>,
    pub(super) answer: oneshot::Sender<io::Result<Dialled<net::TcpStream>>>,
}

/// A connection, and the flow whose port it has.
#[derive(Debug)]
pub(super) struct Dialled<S> {
    pub(super) stream: S,
    pub(super) lease: Option<Lease>,
}

/// Who opens connections in each network, by its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Dialers(pub(super) Arc<BTreeMap<String, mpsc::UnboundedSender<Dial>>>);

impl Dialers {
    /// Opens a connection to a backend of `network`.
    ///
    /// # Errors
    ///
    /// Why there is none; after two seconds that it takes too long.
    pub(super) async fn dial(
        &self,
        network: &str,
        to: SocketAddrV4,
        purpose: Option<Purpose>,
    ) -> io::Result<Dialled<TcpStream>> {
        let gone = || io::Error::other("nobody opens connections in that network");
        let dialer = self.0.get(network).ok_or_else(gone)?;
        let (answer, connected) = oneshot::channel();
        let dial = Dial {
            to,
            purpose,
            answer,
        };
        dialer.send(dial).map_err(|_| gone())?;
        let Dialled { stream, lease } = connected.await.map_err(|_| gone())??;
        let stream = TcpStream::from_std(stream)?;
        Ok(Dialled { stream, lease })
    }
}

/// How long nobody looks for a port again where all were taken.
const EXHAUSTED: Duration = Duration::from_secs(1);

/// The ports of each SNAT address for each backend.
#[derive(Debug, Default)]
pub(super) struct Ports {
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

/// Where connections come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// From the cell's own addresses, whose ports are divided.
    Cell,
    /// From the host's, which chooses the ports itself.
    Host,
}

/// Where the connections of a network come from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sources<'s> {
    pub(super) origin: Origin,
    pub(super) addresses: &'s [Ipv4Addr],
    pub(super) slots: &'s [SnatSlot],
    pub(super) leases: Option<&'s Leases>,
}

/// Opens a connection and tells who wished for it.
pub(super) async fn open(mut dial: Dial, sources: Sources<'_>, ports: &RefCell<Ports>) {
    let connect = async {
        let leases = sources.leases.filter(|_| sources.origin == Origin::Cell);
        if let (Some(leases), Some(purpose)) = (leases, &dial.purpose)
            && let Some(lent) = connect_lent(leases, sources.slots, purpose).await
        {
            let (stream, lease) = lent?;
            let lease = Some(lease);
            return Ok(Dialled { stream, lease });
        }
        let Sources {
            origin, addresses, ..
        } = sources;
        let stream = connect(dial.to, origin, addresses, ports).await?;
        let lease = None;
        Ok(Dialled { stream, lease })
    };
    let stream = tokio::select! {
        biased;
        // Who has gone takes no port from others.
        () = dial.answer.closed() => return,
        stream = timeout(PATIENCE, connect) => stream,
    };
    let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let dialled = stream.and_then(|Dialled { stream, lease }| {
        let stream = stream.into_std()?;
        Ok(Dialled { stream, lease })
    });
    // Nobody may wait any more.
    let _late: Result<(), _> = dial.answer.send(dialled);
}

/// From a port that is a flow's; none if there is none to be had.
async fn connect_lent(
    leases: &Leases,
    slots: &[SnatSlot],
    purpose: &Purpose,
) -> Option<io::Result<(TcpStream, Lease)>> {
    let start = maglev::hash(&purpose.key);
    let start = usize::try_from(start).unwrap_or_default() % slots.len().max(1);
    let (before, from) = slots.split_at_checked(start).unwrap_or_default();
    for slot in from.iter().chain(before) {
        for _ in 0..LENT_TRIES {
            let Some(lease) = leases.lend(slot, purpose) else {
                break;
            };
            let (source, to) = (lease.source, purpose.backend.1);
            let connected = match socket(*source.ip(), source.port()) {
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
                Ok(stream) => return Some(Ok((stream, lease))),
                Err(error) if has_no_port(&error) => lease.give_back(),
                Err(error) => {
                    if error.kind() == io::ErrorKind::ConnectionRefused {
                        lease.give_back();
                    }
                    return Some(Err(error));
                }
            }
        }
    }
    None
}

async fn connect(
    to: SocketAddrV4,
    origin: Origin,
    sources: &[Ipv4Addr],
    ports: &RefCell<Ports>,
) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let sources = ports.borrow_mut().sources(sources);
    for source in sources {
        let connected = match origin {
            Origin::Cell => connect_from(source, to, ports).await,
            Origin::Host => socket(source, 0)?.connect(to.into()).await,
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
    ports: &RefCell<Ports>,
) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    if ports.borrow_mut().are_exhausted(source, to) {
        return Err(last);
    }
    for _ in 0..PORTS {
        let port = ports.borrow_mut().next(source, to);
        // Any port can be had of an address that is there.
        let socket = socket(source, port)?;
        match socket.connect(to.into()).await {
            Err(error) if has_no_port(&error) => last = error,
            connected => return connected,
        }
        // Where most are taken others have their turn in between.
        consume_budget().await;
    }
    let exhausted = &mut ports.borrow_mut().exhausted;
    exhausted.insert((source, to), Instant::now());
    Err(last)
}

/// A socket whose port others have as well, to other backends; port 0 is any that is free.
fn socket(source: Ipv4Addr, port: u16) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    if port == 0 {
        setsockopt(&socket, IpBindAddressNoPort, &true)?;
    } else {
        socket.set_reuseaddr(true)?;
    }
    socket.bind(SocketAddrV4::new(source, port).into())?;
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
    use tokio::net::TcpListener;

    use super::*;

    const SOURCE: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);

    async fn listen() -> (TcpListener, SocketAddrV4) {
        let listener = TcpListener::bind((SOURCE, 0)).await.unwrap();
        let net::SocketAddr::V4(address) = listener.local_addr().unwrap() else {
            panic!("bound to IPv6");
        };
        (listener, address)
    }

    fn port(stream: &TcpStream) -> u16 {
        stream.local_addr().unwrap().port()
    }

    #[tokio::test]
    async fn every_connection_has_the_next_port_and_backends_share_them() {
        let (_first, one) = listen().await;
        let (_second, other) = listen().await;
        let ports = RefCell::new(Ports::default());
        let dial = async |to| connect(to, Origin::Cell, &[SOURCE], &ports).await.unwrap();
        let streams = [dial(one).await, dial(one).await, dial(other).await];
        let found = streams.each_ref().map(port);
        assert_eq!(found, [0, 1, 0].map(|more| FIRST_LEG_PORT + more));
        // The first port again: it is taken.
        *ports.borrow_mut() = Ports::default();
        assert_eq!(port(&dial(one).await), FIRST_LEG_PORT + 2);
    }

    /// An address that is not there, or not yet, is passed over.
    #[tokio::test]
    async fn an_address_that_is_missing_is_passed_over() {
        let (_listener, to) = listen().await;
        let ports = RefCell::new(Ports::default());
        let missing = Ipv4Addr::new(192, 0, 2, 1);
        let sources = [SOURCE, missing];
        let stream = connect(to, Origin::Cell, &sources, &ports).await.unwrap();
        assert_eq!(port(&stream), FIRST_LEG_PORT);
        // Its first port was enough to know.
        let next = ports.borrow().next[&(missing, to)];
        assert_eq!(next, FIRST_LEG_PORT + 1);
    }

    /// Nobody looks through all ports again and again.
    #[tokio::test]
    async fn where_all_ports_are_taken_nobody_looks_for_a_while() {
        let (_listener, to) = listen().await;
        let ports = RefCell::new(Ports::default());
        let dial = async || connect(to, Origin::Cell, &[SOURCE], &ports).await;
        let long_ago = Instant::now() - EXHAUSTED;
        ports.borrow_mut().exhausted.insert((SOURCE, to), long_ago);
        assert!(dial().await.is_ok());
        assert!(ports.borrow().exhausted.is_empty());
        let now = Instant::now();
        ports.borrow_mut().exhausted.insert((SOURCE, to), now);
        let error = dial().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        assert_eq!(ports.borrow().next[&(SOURCE, to)], FIRST_LEG_PORT + 1);
    }

    /// A backend that is silent costs nothing for who has gone.
    #[tokio::test]
    async fn who_has_gone_is_not_dialled_for() {
        let (answer, gone) = oneshot::channel();
        drop(gone);
        let (listener, to) = listen().await;
        let ports = RefCell::new(Ports::default());
        let dial = Dial {
            to,
            purpose: None,
            answer,
        };
        let sources = Sources {
            origin: Origin::Cell,
            addresses: &[SOURCE],
            slots: &[],
            leases: None,
        };
        open(dial, sources, &ports).await;
        let accepted = timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(accepted.is_err() && ports.borrow().next.is_empty());
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
        let ports = RefCell::new(Ports::default());
        let error = connect(address, Origin::Cell, &[SOURCE], &ports).await;
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
