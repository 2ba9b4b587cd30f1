//! What dials in each network, for the threads of all others.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
};

#[cfg(test)]
use tokio::sync::{mpsc, oneshot};

use super::{
    connect::{DialSources, Dialled, LocalEnds, Origin, Undialled, open},
    spare_sockets::SpareSockets,
};
use crate::{
    model::snat::SnatSlot,
    proxy::{
        ProxyConfig,
        fair_share::Shares,
        splice::port_lease::{PortLeases, Purpose},
    },
};

/// Those of all networks, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dialers(Arc<BTreeMap<String, Dialer>>);

/// That of a network.
#[derive(Debug)]
pub(crate) struct Dialer {
    network: Arc<str>,
    shares: Shares,
    origin: Origin,
    leases: Option<PortLeases>,
    local: LocalEnds,
    /// What is dialled instead.
    #[cfg(test)]
    asked: Option<mpsc::UnboundedSender<Dial>>,
}

/// A connection that a test is asked for.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) purpose: Purpose,
    pub(crate) answer: oneshot::Sender<Result<Dialled, Undialled>>,
}

impl Dialers {
    /// Those of these networks.
    pub(crate) fn of(dialers: impl IntoIterator<Item = Dialer>) -> Self {
        let named = dialers.into_iter();
        let named = named.map(|dialer| (dialer.network.as_ref().to_owned(), dialer));
        Self(Arc::new(named.collect()))
    }

    /// Whether there is one of this network.
    pub(crate) fn has(&self, network: &str) -> bool {
        self.0.contains_key(network)
    }

    /// What makes the sockets of a network: a thread in its cell does so.
    pub(crate) fn sockets(&self, network: &str) -> Option<SpareSockets> {
        let dialer = self.0.get(network);
        dialer.map(|dialer| dialer.local.sockets.clone())
    }

    /// Forgets the backends of a network that are not in `setup`.
    pub(crate) fn follow(&self, network: &str, setup: &ProxyConfig) {
        if let Some(dialer) = self.0.get(network) {
            let is_there = |to: SocketAddrV4| setup.dials(network, to);
            dialer.local.ports().retain(is_there);
        }
    }

    /// Opens a connection to a backend of `network`, with the addresses of `setup`.
    ///
    /// # Errors
    ///
    /// Why there is none; after two seconds that it takes too long.
    pub(crate) async fn dial(
        &self,
        network: &str,
        purpose: Purpose,
        setup: &ProxyConfig,
    ) -> Result<Dialled, Undialled> {
        let dialer = self.0.get(network).ok_or(Undialled::Failed)?;
        #[cfg(test)]
        if let Some(asked) = &dialer.asked {
            let (answer, answered) = oneshot::channel();
            asked.send(Dial { purpose, answer }).unwrap();
            return answered.await.unwrap();
        }
        open(&purpose, dialer.sources(setup)).await
    }
}

impl Dialer {
    /// From where the connections to backends on `network` come, and how many sockets are made ahead for them.
    pub(crate) fn new(
        network: &str,
        origin: Origin,
        leases: Option<PortLeases>,
        shares: Shares,
        sockets: usize,
    ) -> Self {
        Self {
            network: network.into(),
            shares,
            origin,
            leases,
            local: LocalEnds::new(sockets),
            #[cfg(test)]
            asked: None,
        }
    }

    /// One that asks for each connection.
    #[cfg(test)]
    pub(crate) fn asking(network: &str, asked: mpsc::UnboundedSender<Dial>) -> Self {
        Self {
            asked: Some(asked),
            ..Self::new(network, Origin::Host, None, Shares::default(), 1)
        }
    }

    /// Where connections come from, with the addresses and slots of `setup`.
    fn sources<'s>(&'s self, setup: &'s ProxyConfig) -> DialSources<'s> {
        let name: &str = &self.network;
        let addresses: Option<&Vec<Ipv4Addr>> = setup.sources.get(name);
        let slots: Option<&Vec<SnatSlot>> = setup.slots.get(name);
        DialSources {
            network: &self.network,
            shares: &self.shares,
            origin: self.origin,
            addresses: addresses.map_or(&[][..], Vec::as_slice),
            slots: slots.map_or(&[][..], Vec::as_slice),
            leases: self.leases.as_ref(),
            local: &self.local,
        }
    }
}
