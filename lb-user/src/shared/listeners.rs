//! The listeners of shared VIPs: they may have come from an earlier process, and may go to the next one.
//! As long as one of the two has a listener open, the kernel of its cell takes connections.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nix::sys::socket::{getsockopt, sockopt};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

/// Connections that the kernel has made and nobody has accepted yet. The kernel takes no more than
/// `net.core.somaxconn`, 4096 where nobody has changed it.
const BACKLOG: u32 = 4096;

/// Where a listener is: the name of a network, and the VIP and port there.
pub type Place = (String, SocketAddrV4);

/// All of them, for all threads.
#[derive(Clone, Debug)]
pub struct Listeners(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    open: Mutex<BTreeMap<Place, std::net::TcpListener>>,
    /// Whether the next process accepts, and nobody here any more.
    ceased: watch::Sender<bool>,
}

impl Listeners {
    /// Those that were inherited. What is no listener at its place is left out.
    pub fn new(inherited: Vec<(Place, OwnedFd)>) -> Self {
        let mut open = BTreeMap::new();
        for (place, descriptor) in inherited {
            let (network, vip) = &place;
            if listens(&descriptor, *vip) {
                open.insert(place, descriptor.into());
            } else {
                tracing::error!(network, address = %vip, "what was inherited is no listener there");
            }
        }
        Self(Arc::new(Shared {
            open: Mutex::new(open),
            ceased: watch::Sender::new(false),
        }))
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Place, std::net::TcpListener>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one at that place, which is opened if it is not open yet. The calling thread is in the cell of
    /// its network.
    pub(super) fn at(&self, place: &Place) -> io::Result<TcpListener> {
        let mut all = self.open();
        if let Some(open) = all.get(place) {
            return TcpListener::from_std(open.try_clone()?);
        }
        let listener = bind(place.1)?.into_std()?;
        let listener = all.entry(place.clone()).or_insert(listener);
        TcpListener::from_std(listener.try_clone()?)
    }

    /// Closes those of a network that are not wanted any more.
    pub(super) fn retain(&self, network: &str, is_wanted: impl Fn(SocketAddrV4) -> bool) {
        let mut open = self.open();
        open.retain(|(of, vip), _| of != network || is_wanted(*vip));
    }

    /// Gives all of them away. From now on nobody accepts here any more.
    pub fn give(&self) -> Vec<(Place, OwnedFd)> {
        self.0.ceased.send_replace(true);
        let open = std::mem::take(&mut *self.open());
        let open = open.into_iter();
        open.map(|(place, listener)| (place, listener.into()))
            .collect()
    }

    /// Whether they have been given away.
    pub(super) fn have_ceased(&self) -> bool {
        *self.0.ceased.borrow()
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

fn bind(address: SocketAddrV4) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // Connections of an earlier process may still be closing.
    socket.set_reuseaddr(true)?;
    socket.bind(address.into())?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::net::TcpStream;

    use super::*;

    const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 78, 0, 1), 0);

    fn place(network: &str, vip: SocketAddrV4) -> Place {
        (network.to_owned(), vip)
    }

    fn address(listener: &TcpListener) -> SocketAddrV4 {
        match listener.local_addr().unwrap() {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => panic!("bound to IPv6"),
        }
    }

    /// Who connects between two processes is accepted by the second.
    #[tokio::test]
    async fn who_connects_in_between_is_not_refused() {
        let free = address(&bind(ANY).unwrap());
        let here = place("a", free);
        let first = Listeners::default();
        let listener = first.at(&here).unwrap();
        assert!(!first.have_ceased());
        let given = first.give();
        assert!(first.have_ceased());
        first.cease().await;
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
        assert!(Listeners::new(inherited).give().is_empty());
    }
}
