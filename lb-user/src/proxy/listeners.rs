//! The listeners of shared VIPs: they may have come from an earlier process, and may go to the next one.
//! As long as one of the two, or the supervisor, has a listener open, the kernel of its cell takes
//! connections.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lb_common::maps::vip_offer::LEAST_OFFERED_MSS;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

use super::splice::saved_syn;
use crate::{
    network::namespace,
    system::systemd::{self, ListenerKey},
};

/// Connections that the kernel has made and that are not accepted yet. The kernel takes no more than
/// `net.core.somaxconn`, 4096 where it has not been changed.
const BACKLOG: u32 = 4096;

/// How long a listener takes to be opened at most; one that is not by then has been refused.
const OPEN_TIMEOUT: Duration = Duration::from_millis(200);

/// All of them, for all threads.
#[derive(Clone, Debug)]
pub struct Listeners(Arc<SharedListeners>);

#[derive(Debug)]
struct SharedListeners {
    known: Mutex<ListenerTable>,
    /// Whenever there is one more.
    opened: Condvar,
    /// Whether the next process accepts, and this one no more.
    ceased: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct ListenerTable {
    /// Those that clients are accepted from.
    open: BTreeMap<ListenerKey, std::net::TcpListener>,
    /// Those that were inherited, and that no thread of their network has looked at yet.
    inherited: BTreeMap<ListenerKey, std::net::TcpListener>,
    /// Those that the next process has got as well, and accepts from once it is up.
    lent: BTreeMap<ListenerKey, std::net::TcpListener>,
    /// The segment sizes that clients of some are held to.
    told: BTreeMap<ListenerKey, u16>,
}

impl Listeners {
    /// Those that were inherited, which the supervisor keeps already. What is no listener at its place is
    /// left out.
    pub fn new(inherited: Vec<(ListenerKey, OwnedFd)>) -> Self {
        let mut known = ListenerTable::default();
        for (place, descriptor) in inherited {
            let (network, vip) = &place;
            if listens(&descriptor, *vip) {
                known.inherited.insert(place, descriptor.into());
            } else {
                tracing::error!(
                    network,
                    address = %vip,
                    "the listener that was kept from the process before does not listen at this VIP: a new one is \
                     opened"
                );
                systemd::forget(&place);
            }
        }
        Self(Arc::new(SharedListeners {
            known: Mutex::new(known),
            opened: Condvar::new(),
            ceased: watch::Sender::new(false),
        }))
    }

    fn known(&self) -> MutexGuard<'_, ListenerTable> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one at that place, which is opened if it is not open yet. The calling thread is in the cell of
    /// its network, and in a runtime.
    ///
    /// # Errors
    ///
    /// The kernel's error, or that all were given away.
    pub fn at(&self, place: &ListenerKey) -> io::Result<TcpListener> {
        if let Some(open) = self.open_at(place)? {
            return TcpListener::from_std(open);
        }
        // The lock is free meanwhile.
        let listener = bind(place.1)?.into_std()?;
        self.add(place, listener.try_clone()?)?;
        systemd::keep(place, &listener);
        TcpListener::from_std(listener)
    }

    /// The one at that place, if it is open. One that was inherited may be of a namespace that the network
    /// has left since: no client comes there any more.
    fn open_at(&self, place: &ListenerKey) -> io::Result<Option<std::net::TcpListener>> {
        let mut known = self.known();
        let inherited = known.inherited.get(place);
        if let Some(is_here) = inherited.map(namespace::is_here).transpose()?
            && let Some(inherited) = known.inherited.remove(place)
        {
            if !is_here {
                drop((known, inherited));
                replace(place);
                return Ok(None);
            }
            known.open.insert(place.clone(), inherited);
            self.0.opened.notify_all();
        }
        let open = known.open.get(place);
        open.map(std::net::TcpListener::try_clone).transpose()
    }

    /// From now on it is known as open.
    fn add(&self, place: &ListenerKey, listener: std::net::TcpListener) -> io::Result<()> {
        let mut known = self.known();
        // They may have been given away while the lock was free.
        if self.have_ceased() {
            return Err(io::Error::other("the new process has this listener now"));
        }
        known.open.insert(place.clone(), listener);
        self.0.opened.notify_all();
        Ok(())
    }

    /// Whether the one at that place is open, or was inherited.
    pub(super) fn has(&self, place: &ListenerKey) -> bool {
        let known = self.known();
        known.open.contains_key(place) || known.inherited.contains_key(place)
    }

    /// Waits until those at these places are open, or may never be.
    pub(super) fn wait_for(&self, places: &[&ListenerKey]) {
        let lacks =
            |known: &mut ListenerTable| places.iter().any(|place| !known.open.contains_key(*place));
        let waited = self
            .0
            .opened
            .wait_timeout_while(self.known(), OPEN_TIMEOUT, lacks);
        drop(waited);
    }

    /// From now on SYN-ACKs to clients there announce no larger segments than a backend takes, if they
    /// announced larger ones.
    pub(super) fn tell_mss(&self, place: &ListenerKey, mss: u16) {
        let mut known = self.known();
        let is_news = known.told.get(place).is_none_or(|told| mss < *told);
        if mss < LEAST_OFFERED_MSS || !is_news {
            return;
        }
        if let Some(listener) = known.open.get(place)
            && setsockopt(listener, sockopt::TcpMaxSeg, &u32::from(mss)).is_ok()
        {
            known.told.insert(place.clone(), mss);
        }
    }

    /// Closes those of a network that are not wanted any more.
    pub(super) fn retain(&self, network: &str, is_wanted: impl Fn(SocketAddrV4) -> bool) {
        self.close(|(of, vip)| of == network && !is_wanted(*vip));
    }

    /// Closes those of networks that are configured no more.
    pub(super) fn retain_networks(&self, is_configured: impl Fn(&str) -> bool) {
        self.close(|(of, _)| !is_configured(of));
    }

    fn close(&self, is_unwanted: impl Fn(&ListenerKey) -> bool) {
        let mut known = self.known();
        let ListenerTable {
            open,
            inherited,
            told,
            lent: _,
        } = &mut *known;
        told.retain(|place, _| !is_unwanted(place));
        let open = open.extract_if(.., |place, _| is_unwanted(place));
        let inherited = inherited.extract_if(.., |place, _| is_unwanted(place));
        let closed: Vec<ListenerKey> = open.chain(inherited).map(|(place, _)| place).collect();
        drop(known);
        closed.iter().for_each(systemd::forget);
    }

    /// Duplicates of all of them, for the next process. From now on nothing is accepted here any more, unless
    /// they are taken back.
    ///
    /// # Errors
    ///
    /// If the process has too many open files.
    pub fn give(&self) -> io::Result<Vec<(ListenerKey, OwnedFd)>> {
        self.0.ceased.send_replace(true);
        let mut known = self.known();
        let ListenerTable {
            open, inherited, ..
        } = std::mem::take(&mut *known);
        known.lent.extend(open.into_iter().chain(inherited));
        let lent = known.lent.iter();
        lent.map(|(place, listener)| Ok((place.clone(), listener.try_clone()?.into())))
            .collect()
    }

    /// The next process will not accept from them: they are open here again.
    pub(super) fn take_back(&self) {
        let mut known = self.known();
        let lent = std::mem::take(&mut known.lent);
        for (place, listener) in &lent {
            // The next process may have had some of them forgotten.
            systemd::keep(place, listener);
        }
        known.open.extend(lent);
        self.0.ceased.send_replace(false);
    }

    /// The next process accepts: its duplicates are the listeners from now on.
    pub(super) fn let_go(&self) {
        self.known().lent.clear();
    }

    /// Whether they have been given away.
    pub(super) fn have_ceased(&self) -> bool {
        *self.0.ceased.borrow()
    }

    /// Whether they have been given away, from now on.
    pub(super) fn ceased(&self) -> watch::Receiver<bool> {
        self.0.ceased.subscribe()
    }

    /// Waits until they are given away.
    pub(super) async fn cease(&self) {
        let mut ceased = self.0.ceased.subscribe();
        // The sender is here.
        let _ceased = ceased.wait_for(|ceased| *ceased).await;
    }
}

impl Default for Listeners {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// Whether this is a listening socket with that address.
fn listens(descriptor: &OwnedFd, vip: SocketAddrV4) -> bool {
    let is_listening = getsockopt(descriptor, sockopt::AcceptConn) == Ok(true);
    let listener = descriptor.try_clone().map(std::net::TcpListener::from);
    let address = listener.and_then(|listener| listener.local_addr());
    is_listening && address.is_ok_and(|address| address == SocketAddr::V4(vip))
}

/// Logs that another one than the inherited one will be there.
fn replace(place: &ListenerKey) {
    let (network, vip) = place;
    tracing::warn!(
        network,
        address = %vip,
        "the listener that was kept from the process before is in another network namespace, which no client \
         reaches: a new one is opened"
    );
    systemd::forget(place);
}

fn bind(address: SocketAddrV4) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections of an earlier process may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address.into())?;
    let listener = socket.listen(BACKLOG)?;
    // Without them no connection can be handed over.
    if let Err(error) = saved_syn::save(&listener) {
        tracing::warn!(
            %address,
            "the kernel does not keep the SYNs of this shared VIP, so its connections are copied by lb, not \
             handed over to XDP: {error}"
        );
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, thread, time::Instant};

    use nix::sched::{CloneFlags, unshare};
    use tokio::net::TcpStream;

    use super::*;

    const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 78, 0, 1), 0);

    fn place(network: &str, vip: SocketAddrV4) -> ListenerKey {
        (network.to_owned(), vip)
    }

    fn address(listener: &TcpListener) -> SocketAddrV4 {
        match listener.local_addr().unwrap() {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => panic!("bound to IPv6"),
        }
    }

    /// A client that connects between two processes is accepted by the second.
    #[tokio::test]
    async fn who_connects_in_between_is_not_refused() {
        let free = address(&bind(ANY).unwrap());
        let here = place("a", free);
        let first = Listeners::default();
        let listener = first.at(&here).unwrap();
        assert!(!first.have_ceased());
        let given = first.give().unwrap();
        assert!(first.have_ceased());
        first.cease().await;
        first.let_go();
        drop((listener, first));
        let mut client = TcpStream::connect(free).await.unwrap();
        let second = Listeners::new(given);
        let listener = second.at(&here).unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        drop(accepted);
        let mut byte = [0];
        let read = tokio::io::AsyncReadExt::read(&mut client, &mut byte).await;
        assert_eq!(read.unwrap(), 0);
        // Another one cannot be opened beside it.
        assert!(Listeners::default().at(&here).is_err());
        second.retain("b", |_| false);
        assert!(second.at(&here).is_ok());
        second.retain("a", |_| false);
        drop(listener);
        assert!(TcpStream::connect(free).await.is_err());
    }

    /// A client that connects while the next process dies is accepted by the one that gave.
    #[tokio::test]
    async fn what_was_given_is_taken_back() {
        let free = address(&bind(ANY).unwrap());
        let here = place("a", free);
        let listeners = Listeners::default();
        drop(listeners.at(&here).unwrap());
        drop(listeners.give().unwrap());
        assert!(listeners.have_ceased() && listeners.at(&here).is_err());
        let _client = TcpStream::connect(free).await.unwrap();
        listeners.take_back();
        assert!(!listeners.have_ceased());
        let listener = listeners.at(&here).unwrap();
        assert!(listener.accept().await.is_ok());
        assert_eq!(listeners.give().unwrap().len(), 1);
    }

    /// What one backend takes is announced to all clients, and no less for the sake of one that takes very
    /// little.
    #[tokio::test]
    async fn clients_are_told_what_backends_take() {
        let free = address(&bind(ANY).unwrap());
        let here = place("a", free);
        let listeners = Listeners::default();
        let listener = listeners.at(&here).unwrap();
        let told = async || {
            let client = TcpStream::connect(free).await.unwrap();
            let (accepted, _) = listener.accept().await.unwrap();
            drop(accepted);
            getsockopt(&client, sockopt::TcpMaxSeg).unwrap()
        };
        let before = told().await;
        for (mss, expected) in [(1219, before), (1360, 1348), (1400, 1348), (1300, 1288)] {
            listeners.tell_mss(&here, mss);
            let told = told().await;
            // With the bytes of timestamps or without.
            assert!(told == expected || told == expected + 12, "{mss}: {told}");
        }
        listeners.tell_mss(&place("b", free), 1250);
        assert_ne!(told().await, 1238);
    }

    #[tokio::test]
    async fn what_is_no_listener_is_not_taken_for_one() {
        let listener = bind(ANY).unwrap();
        let vip = address(&listener);
        let stream = std::net::TcpStream::connect(vip).unwrap();
        let elsewhere = SocketAddrV4::new(*vip.ip(), vip.port() ^ 1);
        let inherited = vec![
            (place("a", vip), stream.into()),
            (place("b", elsewhere), listener.into_std().unwrap().into()),
        ];
        assert!(Listeners::new(inherited).give().unwrap().is_empty());
    }

    /// It would listen where no client comes any more.
    #[tokio::test]
    #[ignore = "needs CAP_SYS_ADMIN"]
    async fn an_inherited_listener_of_another_namespace_is_replaced() {
        let any = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
        let elsewhere = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            std::net::TcpListener::bind(any).unwrap()
        });
        let elsewhere = elsewhere.join().unwrap();
        elsewhere.set_nonblocking(true).unwrap();
        let SocketAddr::V4(vip) = elsewhere.local_addr().unwrap() else {
            panic!("bound to IPv6")
        };
        let here = place("a", vip);
        let listeners = Listeners::new(vec![(here.clone(), elsewhere.into())]);
        listeners.at(&here).unwrap();
        let near = SocketAddrV4::new(ANY.ip().to_owned(), vip.port());
        assert!(TcpStream::connect(near).await.is_ok());
        let given = listeners.give().unwrap();
        assert_eq!(given.len(), 1);
        assert!(namespace::is_here(&given[0].1).unwrap());
    }

    #[tokio::test]
    async fn only_what_is_open_is_not_waited_for() {
        let free = address(&bind(ANY).unwrap());
        let open = place("a", free);
        let never = place("a", SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 1));
        let listeners = Listeners::default();
        listeners.at(&open).unwrap();
        assert!(listeners.at(&never).is_err());
        let start = Instant::now();
        listeners.wait_for(&[&open]);
        assert!(start.elapsed() < OPEN_TIMEOUT);
        listeners.wait_for(&[&open, &never]);
        assert!(start.elapsed() >= OPEN_TIMEOUT);
        // A process that has given them away opens none any more.
        drop(listeners.give().unwrap());
        assert!(listeners.at(&open).is_err());
        listeners.let_go();
        assert!(listeners.give().unwrap().is_empty());
    }
}
