//! The front: a thread in a network's cell. It accepts the connections of the network's shared VIPs, and
//! opens those to its backends.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io,
    net::{SocketAddr, SocketAddrV4},
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, watch},
    task::{self, AbortHandle, LocalSet, yield_now},
    time::sleep,
};

use super::{
    AccessLog, Counts, Legs, Listeners, ProxyConfig,
    admission::{Admission, NetworkAdmission},
    dial::{
        connect::{Dial, DialSources, Dialers, Origin, Ports, open},
        select::{ConnectionAddresses, NoBackend},
    },
    fair_share::Shares,
    fd_budget::Descriptors,
    http, passthrough,
    relay::pipe::Pipes,
    snapshot::{ProxyService, Routing},
    sni,
    sockets::reset_at_close,
    splice::{
        negotiated::Agreed,
        port_lease::{LEASE_HEARTBEAT, PUT_BACK_INTERVAL, PortLeases},
    },
};
use crate::{
    dataplane::affinities::Affinities,
    network::{cell_thread, neighbour::Side},
    system::{panics::spawn_connection, systemd::ListenerKey},
};

/// How long until an address that could not be had is tried again, and until a front that has no
/// descriptors left accepts again.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The fronts of all networks. They end with it.
#[derive(Debug)]
pub struct Acceptors {
    setup: Option<watch::Sender<Arc<ProxyConfig>>>,
    threads: Vec<JoinHandle<()>>,
    shares: Shares,
    listeners: Listeners,
    pending: Admission,
    kept: Admission,
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
        sides: BTreeMap<String, (Side, Option<PortLeases>)>,
        accounts: &Accounts,
        listeners: Listeners,
    ) -> Result<Self> {
        let (setup, follow) = watch::channel(Arc::default());
        let mut dialers = BTreeMap::new();
        let mut dials = Vec::new();
        for (network, (side, leases)) in sides {
            let (dialer, asked) = mpsc::unbounded_channel();
            dialers.insert(network.clone(), dialer);
            dials.push((network, side, leases, asked));
        }
        let dialers = Dialers(Arc::new(dialers));
        listeners.retain_networks(|network| dialers.0.contains_key(network));
        let descriptors = Descriptors::of_this_process(accounts.shares.clone());
        let mut front = Self {
            shares: accounts.shares.clone(),
            setup: Some(setup),
            threads: Vec::new(),
            listeners,
            pending: Admission::up_to(descriptors.waiting()),
            kept: Admission::up_to(descriptors.kept()),
        };
        for (network, side, leases, asked) in dials {
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
                shares: accounts.shares.clone(),
                descriptors: descriptors.clone(),
                leases,
            };
            let thread = spawn(work, side, asked)
                .with_context(|| format!("serve the shared VIPs of network {network}"))?;
            front.threads.push(thread);
        }
        Ok(front)
    }

    /// From now on new connections go where `setup` routes them. Listeners that are not in it are closed, and
    /// new ones that can be had are open when this returns; legs go on.
    pub fn set(&self, mut setup: ProxyConfig) {
        if let Some(sender) = &self.setup {
            setup.take_turns(&sender.borrow());
            let setup = Arc::new(setup);
            self.shares.divide_among(setup.client_networks());
            let before = sender.send_replace(Arc::clone(&setup));
            let places = setup.services.keys();
            let added = places.filter(|place| !before.services.contains_key(*place));
            self.listeners.wait_for(&added.collect::<Vec<_>>());
        }
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
        drop(self.setup.take());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!(
                    "a thread of the shared VIPs has panicked, see the panic above: please report it"
                );
            }
        }
    }
}

/// What a thread has to do, before it runs.
struct AcceptorWork {
    network: String,
    setup: watch::Receiver<Arc<ProxyConfig>>,
    dialers: Dialers,
    legs: Legs,
    affinities: Option<Affinities>,
    counts: Counts,
    access: AccessLog,
    listeners: Listeners,
    pending: NetworkAdmission,
    kept: NetworkAdmission,
    shares: Shares,
    descriptors: Descriptors,
    leases: Option<PortLeases>,
}

fn spawn(
    work: AcceptorWork,
    side: Side,
    asked: mpsc::UnboundedReceiver<Dial>,
) -> Result<JoinHandle<()>> {
    let name = format!("vip-{}", work.network);
    let cell = side.cell.clone();
    cell_thread::start_listener(name, cell.as_deref(), move |runtime| {
        LocalSet::new().block_on(&runtime, serve(work, &side, asked));
    })
}

/// What all connections of a network share.
pub(crate) struct Context {
    pub(super) setup: watch::Receiver<Arc<ProxyConfig>>,
    pub(super) dialers: Dialers,
    pub(super) legs: Legs,
    pub(super) affinities: Option<Affinities>,
    pub(super) counts: Counts,
    pub(super) access: AccessLog,
    pub(super) listeners: Listeners,
    /// Clients that have no backend yet.
    pub(super) pending: NetworkAdmission,
    /// Clients whose request was answered, and that may send another.
    pub(super) kept: NetworkAdmission,
    pub(super) descriptors: Descriptors,
    pub(super) pipes: Pipes,
    /// What backends agree on.
    pub(super) agreed: Agreed,
    pub(super) network: String,
}

impl Context {
    /// The service of a VIP here, as it is now.
    pub(super) fn service(&self, vip: SocketAddrV4) -> Option<Arc<ProxyService>> {
        let key = (self.network.clone(), vip);
        self.setup.borrow().services.get(&key).cloned()
    }
}

/// Follows the setup until there is no sender of one any more.
async fn serve(work: AcceptorWork, side: &Side, asked: mpsc::UnboundedReceiver<Dial>) {
    let AcceptorWork {
        network,
        mut setup,
        dialers,
        legs,
        affinities,
        counts,
        access,
        listeners,
        pending,
        kept,
        shares,
        descriptors,
        leases,
    } = work;
    let origin = match side.cell {
        Some(_) => Origin::Cell,
        None => Origin::Host,
    };
    if let Some(leases) = leases.clone() {
        task::spawn_local(say(leases.clone()));
        task::spawn_local(put_back(leases));
    }
    let connector = Connector {
        network: network.as_str().into(),
        shares,
        origin,
        leases,
    };
    task::spawn_local(dial_all(asked, connector, setup.clone()));
    let shared = Rc::new(Context {
        setup: setup.clone(),
        dialers,
        legs,
        affinities,
        counts,
        access,
        listeners,
        pending,
        kept,
        pipes: Pipes::new(&descriptors),
        descriptors,
        agreed: Agreed::default(),
        network,
    });
    let mut accepted = BTreeMap::new();
    while setup.changed().await.is_ok() {
        let now = Arc::clone(&setup.borrow_and_update());
        let vips = match shared.listeners.have_ceased() {
            true => BTreeSet::new(),
            false => now.vips(&shared.network),
        };
        let is_wanted = |vip: &SocketAddrV4| vips.contains(vip);
        accepted.retain(|vip, _| is_wanted(vip));
        shared
            .listeners
            .retain(&shared.network, |vip| is_wanted(&vip));
        for vip in vips {
            let listen = || listen(vip, &shared);
            accepted.entry(vip).or_insert_with(listen);
        }
    }
}

/// A listener that is accepted from until this is dropped.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn listen(address: SocketAddrV4, shared: &Rc<Context>) -> Listening {
    let accept = accept(address, Rc::clone(shared));
    Listening(task::spawn_local(accept).abort_handle())
}

/// Accepts connections to a VIP as long as this is wanted, whatever comes in between.
async fn accept(vip: SocketAddrV4, shared: Rc<Context>) {
    let mut listener = None;
    let mut was_said = false;
    loop {
        let Err(error) = accept_one(&mut listener, vip, &shared).await else {
            was_said = false;
            continue;
        };
        if !was_said {
            tracing::error!(
                network = shared.network,
                address = %vip,
                "the shared VIP accepts no new connections, trying again: {error}"
            );
        }
        was_said = true;
        sleep(ACCEPT_RETRY_INTERVAL).await;
    }
}

/// Serves the next client that connects to a VIP, with a task of its own; first makes the listener if
/// there is none.
async fn accept_one(
    listener: &mut Option<TcpListener>,
    vip: SocketAddrV4,
    shared: &Rc<Context>,
) -> io::Result<()> {
    let listener = match listener {
        Some(listener) => listener,
        None => listener.insert(shared.listeners.at(&(shared.network.clone(), vip))?),
    };
    match listener.accept().await {
        Ok((stream, SocketAddr::V4(client))) => {
            begin(stream, ConnectionAddresses { client, vip }, shared);
            // Pending clients that are evicted for it go before the next one comes.
            yield_now().await;
        }
        Ok(_) => {}
        // One that is gone before it is accepted has no bearing on the next one.
        Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Serves a client, in a task of its own, if there is a descriptor for it.
fn begin(client: TcpStream, addresses: ConnectionAddresses, shared: &Rc<Context>) {
    let Some(service) = shared.service(addresses.vip) else {
        return;
    };
    let descriptor = match shared.descriptors.socket(service.network) {
        Ok(descriptor) => descriptor,
        Err(spent) => {
            shared.counts.of(&service.name, |counted| {
                counted.accepted += 1;
                counted.refuse(NoBackend::without_descriptor(spent).label());
            });
            reset_at_close(&client);
            return;
        }
    };
    let shared = Rc::clone(shared);
    spawn_connection(async move {
        match service.routing.clone() {
            Routing::Sni(sni) => sni::serve(client, addresses, service, sni, shared).await,
            Routing::Http(http) => http::serve(client, addresses, service, http, shared).await,
            Routing::Pool(pool) => {
                passthrough::serve(client, addresses, service, &pool, shared).await
            }
        }
        drop(descriptor);
    });
}

/// Marks the ports that are lent as in use, for ever.
async fn say(leases: PortLeases) {
    loop {
        leases.say();
        sleep(LEASE_HEARTBEAT).await;
    }
}

/// Puts ports back that were left a moment ago, for ever.
async fn put_back(leases: PortLeases) {
    loop {
        sleep(PUT_BACK_INTERVAL).await;
        leases.put_back();
    }
}

/// What opens the connections to the backends on a network.
struct Connector {
    network: Arc<str>,
    shares: Shares,
    origin: Origin,
    leases: Option<PortLeases>,
}

impl Connector {
    /// Where connections come from, with the addresses and slots of `setup`.
    fn sources<'s>(&'s self, setup: &'s ProxyConfig) -> DialSources<'s> {
        let name: &str = &self.network;
        DialSources {
            network: &self.network,
            shares: &self.shares,
            origin: self.origin,
            addresses: setup.sources.get(name).map_or(&[][..], Vec::as_slice),
            slots: setup.slots.get(name).map_or(&[][..], Vec::as_slice),
            leases: self.leases.as_ref(),
        }
    }
}

/// Opens the connections that are wished for.
async fn dial_all(
    mut asked: mpsc::UnboundedReceiver<Dial>,
    connector: Connector,
    mut setup: watch::Receiver<Arc<ProxyConfig>>,
) {
    let connector = Rc::new(connector);
    let ports = Rc::new(RefCell::new(Ports::default()));
    while let Some(dial) = asked.recv().await {
        if setup.has_changed().unwrap_or_default() {
            let now = Arc::clone(&setup.borrow_and_update());
            ports
                .borrow_mut()
                .retain(|to| now.dials(&connector.network, to));
        }
        let setup = Arc::clone(&setup.borrow());
        let (connector, ports) = (Rc::clone(&connector), Rc::clone(&ports));
        spawn_connection(async move {
            open(dial, connector.sources(&setup), &ports).await;
        });
    }
}
