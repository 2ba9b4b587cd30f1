//! What the ends of a connection have agreed on when it was opened. A client's connection can be handed
//! over only if its backend agrees on the same, so what backends agree on is remembered: a connection that is
//! going to be copied is known before it is dialled, and takes no port from flows.

use std::{
    collections::HashMap,
    net::SocketAddrV4,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::net::TcpStream;

use super::{
    handoff::NotSpliced,
    saved_syn::{self, Syn},
};
use crate::system::tcp_info::{Info, TcpOptions};

/// Backends of which it is remembered; more begin anew.
const MAX_BACKENDS: usize = 1 << 16;

/// A client's connection that may be handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// How it began.
    pub(super) syn: Syn,
    options: TcpOptions,
}

impl Offer {
    /// That of a client that has no backend yet; `syn` is what it has sent first, where the kernel has not seen that.
    ///
    /// # Errors
    ///
    /// Why the connection stays with its sockets, whichever its backend is.
    pub(crate) fn of(client: &TcpStream, syn: Option<Syn>) -> Result<Self, NotSpliced> {
        let syn = syn.or_else(|| saved_syn::saved(client).ok().flatten());
        let syn = syn.filter(|syn| syn.source_mac.is_some());
        let syn = syn.ok_or(NotSpliced::NoSyn)?;
        let info = Info::of(client).map_err(|_| NotSpliced::Refused)?;
        let options = info.options();
        let offer = info.is_established().then_some(Self { syn, options });
        offer.ok_or(NotSpliced::Client)
    }
}

/// What each backend has agreed on with a socket of ours lately, where that was not what its client has. For all
/// threads of a network.
#[derive(Clone, Debug, Default)]
pub(crate) struct Agreed(Arc<Mutex<HashMap<SocketAddrV4, TcpOptions>>>);

impl Agreed {
    fn known(&self) -> MutexGuard<'_, HashMap<SocketAddrV4, TcpOptions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a client's connection is going to fit one with this backend, as far as is known.
    ///
    /// # Errors
    ///
    /// [`NotSpliced::Options`].
    pub(crate) fn fits(&self, offer: Offer, backend: SocketAddrV4) -> Result<Syn, NotSpliced> {
        match self.known().get(&backend) {
            Some(options) if *options != offer.options => Err(NotSpliced::Options),
            _ => Ok(offer.syn),
        }
    }

    /// Remembers what a backend has agreed on, now that a connection with it is copied.
    pub(crate) fn note(&self, backend: SocketAddrV4, options: TcpOptions) {
        let mut known = self.known();
        if known.len() >= MAX_BACKENDS && !known.contains_key(&backend) {
            known.clear();
        }
        known.insert(backend, options);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Of a client with these options.
    pub(crate) fn offer(options: TcpOptions) -> Offer {
        let syn = Syn {
            source_mac: None,
            sequence: 1,
            time: None,
            mss: Some(1460),
            scale: None,
            announced: None,
        };
        Offer { syn, options }
    }

    fn backend(number: usize) -> SocketAddrV4 {
        let number = u32::try_from(number).unwrap();
        SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + number), 443)
    }

    #[test]
    fn who_differs_from_what_a_backend_has_agreed_on_is_known() {
        let agreed = Agreed::default();
        let [with, without] = [TcpOptions::ALL, TcpOptions::default()];
        for options in [with, without] {
            assert!(agreed.fits(offer(options), backend(1)).is_ok());
        }
        agreed.note(backend(1), with);
        let differs = |options, number| {
            let fits = agreed.fits(offer(options), backend(number));
            fits.map(drop)
        };
        assert_eq!(differs(without, 1), Err(NotSpliced::Options));
        assert_eq!((differs(with, 1), differs(without, 2)), (Ok(()), Ok(())));
        // It may be another one by now.
        agreed.note(backend(1), without);
        assert_eq!(differs(with, 1), Err(NotSpliced::Options));
        assert_eq!(differs(without, 1), Ok(()));
    }

    #[test]
    fn so_many_backends_are_remembered() {
        let agreed = Agreed::default();
        for number in 0..MAX_BACKENDS {
            agreed.note(backend(number), TcpOptions::ALL);
        }
        agreed.note(backend(0), TcpOptions::ALL);
        assert_eq!(agreed.known().len(), MAX_BACKENDS);
        agreed.note(backend(MAX_BACKENDS), TcpOptions::ALL);
        assert_eq!(agreed.known().len(), 1);
    }
}
