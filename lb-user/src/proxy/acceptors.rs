//! The threads that serve clients of shared VIPs, those of all networks: their start, what they serve, and their hand-over to
//! the next process.

use std::{
    collections::BTreeMap,
    io,
    num::NonZero,
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result};
use lb_common::maps::vip_offer::VipOffer;
use tokio::{sync::watch, task::LocalSet};

use super::{
    AccessLog, Counts, Legs, Listeners, ProxyConfig,
    accept::serve,
    admission::Admission,
    client_sockets::ClientSockets,
    context::{AcceptorWork, CookieWork},
    dial::{
        connect::Origin,
        dialers::{Dialer, Dialers},
    },
    fair_share::Shares,
    fd_budget::Descriptors,
    hellos::{self, HelloQueues},
    splice::{negotiated::Agreed, port_lease::PortLeases},
};
use crate::{
    dataplane::{
        affinities::Affinities, cookies::Cookies, flow_lines::FlowLines, vip_offers::VipOffers,
    },
    network::{cell_thread, neighbour::Side},
    system::systemd::ListenerKey,
};

/// The fronts of all networks. They end with it.
#[derive(Debug)]
pub struct Acceptors {
    setup: Option<watch::Sender<Arc<ProxyConfig>>>,
    /// The thread that takes hellos ends with this.
    ends: Option<watch::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    shares: Shares,
    listeners: Listeners,
    /// What SYN-ACKs by cookies offer.
    offers: VipOffers,
    pending: Admission,
    kept: Admission,
}

/// A network whose shared VIPs are served, or whose backends are dialled.
pub struct NetworkSide {
    /// Its id.
    pub id: u16,
    /// Where its neighbours are resolved.
    pub side: Side,
    /// The ports that its sockets may have, if it has a cell.
    pub leases: Option<PortLeases>,
}

/// What all connections of shared VIPs are entered in, whichever thread carries them.
pub struct Accounts {
    /// Those that have a backend.
    pub legs: Legs,
    /// The backends that clients have had; none with a data plane that does not remember them.
    pub affinities: Option<Affinities>,
    /// How many there were, by service and outcome.
    pub counts: Counts,
    /// The requests of services with `http`.
    pub access: AccessLog,
    /// What each network may have of them.
    pub shares: Shares,
}

impl Acceptors {
    /// Starts the threads of each network, by its name. They serve nothing until [`Self::set`]. What of
    /// `listeners` is open already is not opened again.
    ///
    /// # Errors
    ///
    /// If a cell cannot be entered, or a thread not be started.
    pub fn start(
        sides: BTreeMap<String, NetworkSide>,
        accounts: &Accounts,
        listeners: Listeners,
        cookies: Cookies,
        maps: &Path,
    ) -> Result<Self> {
        let (setup, follow) = watch::channel(Arc::default());
        let (queues, sockets) = (
            HelloQueues::default(),
            ClientSockets::open(maps, accounts.shares.clone())?,
        );
        let offers = VipOffers::open(maps)?;
        let flows = Arc::new(FlowLines::open(maps)?);
        let descriptors = Descriptors::of_this_process(accounts.shares.clone());
        let names = sides.values().find_map(|side| side.leases.clone());
        let mut fronts = Vec::new();
        let dialers = sides.into_iter().map(|(network, of_network)| {
            let NetworkSide { id, side, leases } = of_network;
            let origin = match side.cell {
                Some(_) => Origin::Cell,
                None => Origin::Host,
            };
            let (shares, spare) = (accounts.shares.clone(), descriptors.spare_sockets());
            let dialer = Dialer::new(&network, origin, leases.clone(), shares, spare);
            fronts.push((network, id, side.cell, leases));
            dialer
        });
        let dialers = Dialers::of(dialers);
        listeners.retain_networks(|network| dialers.has(network));
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        let mut front = Self {
            shares: accounts.shares.clone(),
            setup: Some(setup),
            ends: None,
            threads: Vec::new(),
            listeners,
            offers: offers.clone(),
            pending: Admission::up_to(descriptors.waiting()),
            kept: Admission::up_to(descriptors.kept()),
        };
        for (network, id, cell, leases) in fronts {
            let work = AcceptorWork {
                listeners: front.listeners.clone(),
                pending: front.pending.of(&network),
                kept: front.kept.of(&network),
                network: network.clone(),
                setup: follow.clone(),
                dialers: dialers.clone(),
                legs: accounts.legs.clone(),
                affinities: accounts.affinities.clone(),
                counts: accounts.counts.clone(),
                access: accounts.access.clone(),
                descriptors: descriptors.clone(),
                agreed: Agreed::default(),
                cpus,
                cookies: cell.is_some().then(|| CookieWork {
                    network: id,
                    queues: queues.clone(),
                    sockets: sockets.clone(),
                    flows: Arc::clone(&flows),
                    offers: offers.clone(),
                }),
            };
            let thread = spawn(work, cell.as_deref(), leases)
                .with_context(|| format!("serve the shared VIPs of network {network}"))?;
            front.threads.push(thread);
        }
        let (ends, until) = watch::channel(());
        let ceased = front.listeners.ceased();
        let thread = hellos::start(maps, cookies, (queues, sockets), names, ceased, until)?;
        front.threads.push(thread);
        front.ends = Some(ends);
        Ok(front)
    }

    /// From now on new connections go where `setup` routes them. Listeners that are not in it are closed, and
    /// new ones that can be had are open when this returns; legs go on.
    pub fn set(&self, mut setup: ProxyConfig) {
        if let Some(sender) = &self.setup {
            setup.take_turns(&sender.borrow());
            let setup = Arc::new(setup);
            self.shares.divide_among(setup.client_networks());
            let before = Arc::clone(&sender.borrow());
            let mut added = Vec::new();
            for (place, service) in &setup.services {
                if before.services.contains_key(place) {
                    continue;
                }
                if !self.listeners.has(place) {
                    // Its id may have been another service's.
                    self.offers.set(service.id, VipOffer::default());
                }
                added.push(place);
            }
            sender.send_replace(Arc::clone(&setup));
            self.listeners.wait_for(&added);
        }
    }

    /// What SYN-ACKs by cookies offer clients.
    pub const fn offers(&self) -> &VipOffers {
        &self.offers
    }

    /// As [`Self::set`], but what is not wanted any more goes on beside it: the data plane may still send
    /// clients there.
    pub fn add(&self, mut setup: ProxyConfig) {
        if let Some(sender) = &self.setup {
            let before = Arc::clone(&sender.borrow());
            setup.keep(&before);
            self.set(setup);
        }
    }

    /// Duplicates of the listeners, for the next process. Clients that are here already are served to their
    /// end, and no others unless the listeners are [taken back](Self::take_back).
    ///
    /// # Errors
    ///
    /// If the process has too many open files.
    pub fn give(&self) -> io::Result<Vec<(ListenerKey, OwnedFd)>> {
        let listeners = self.listeners.give();
        self.look_again();
        listeners
    }

    /// Accepts again: there will be no next process.
    pub fn take_back(&self) {
        self.listeners.take_back();
        self.look_again();
    }

    /// The next process accepts.
    pub fn let_go(&self) {
        self.listeners.let_go();
    }

    /// Has each thread look at what it has to listen at.
    fn look_again(&self) {
        if let Some(sender) = &self.setup {
            sender.send_modify(|_| {});
        }
    }

    /// Whether no client waits for a backend, or for its next request.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.kept.is_empty()
    }
}

impl Drop for Acceptors {
    fn drop(&mut self) {
        // Threads see that no setup will come any more.
        drop((self.setup.take(), self.ends.take()));
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!(
                    "a thread of the shared VIPs has panicked, see the panic above: please report it"
                );
            }
        }
    }
}

fn spawn(
    work: AcceptorWork,
    cell: Option<&str>,
    leases: Option<PortLeases>,
) -> Result<JoinHandle<()>> {
    cell_thread::start_listener(work.thread_name(), cell, move |runtime| {
        LocalSet::new().block_on(&runtime, serve(work, leases));
    })
}
