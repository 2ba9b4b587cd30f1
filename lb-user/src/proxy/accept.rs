//! The front: the threads in a network's cell. They accept the connections of the network's shared VIPs, and open
//! those to backends, whichever network these are of. The first one has the listeners, and makes the sockets of
//! connections to backends in its network.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    io,
    net::{SocketAddr, SocketAddrV4},
    num::NonZero,
    os::fd::OwnedFd,
    path::Path,
    rc::Rc,
    sync::Arc,
    task::Poll,
    thread::{self, JoinHandle},
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
    client_sockets::{ClientSocket, ClientSockets},
    dial::{
        connect::Origin,
        dialers::{Dialer, Dialers},
        select::{ConnectionAddresses, NoBackend},
    },
    fair_share::Shares,
    fd_budget::Descriptors,
    hellos::{self, HelloQueues},
    http, passthrough,
    relay::pipe::Pipes,
    snapshot::{ProxyService, Routing},
    sni,
    sockets::reset_at_close,
    splice::{
        negotiated::Agreed,
        port_lease::{LEASE_HEARTBEAT, PUT_BACK_INTERVAL, PortLeases},
    },
    workers::{self, ThreadLoad, Workers},
};
use crate::{
    dataplane::{affinities::Affinities, hellos::HelloRecord, vip_mss::VipMss},
    network::{cell_thread, neighbour::Side},
    system::{panics::spawn_connection, systemd::ListenerKey},
};

/// How long until an address that could not be had is tried again, and until a front that has no
/// descriptors left accepts again.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a thread that carries more clients than another one lets that accept first.
const LETS_OTHERS: Duration = Duration::from_millis(1);

/// The fronts of all networks. They end with it.
#[derive(Debug)]
pub struct Acceptors {
    setup: Option<watch::Sender<Arc<ProxyConfig>>>,
    /// The thread that takes hellos ends with this.
    ends: Option<watch::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    shares: Shares,
    listeners: Listeners,
    /// The segment sizes that clients are held to which are answered by cookies.
    sizes: VipMss,
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
        maps: &Path,
    ) -> Result<Self> {
        let (setup, follow) = watch::channel(Arc::default());
        let (queues, sockets) = (
            HelloQueues::default(),
            ClientSockets::open(maps, accounts.shares.clone())?,
        );
        let sizes = VipMss::open(maps)?;
        let descriptors = Descriptors::of_this_process(accounts.shares.clone());
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
            sizes: sizes.clone(),
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
                    sizes: sizes.clone(),
                }),
            };
            let thread = spawn(work, cell.as_deref(), leases)
                .with_context(|| format!("serve the shared VIPs of network {network}"))?;
            front.threads.push(thread);
        }
        let (ends, until) = watch::channel(());
        let ceased = front.listeners.ceased();
        let thread = hellos::start(maps, queues, sockets, ceased, until)?;
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
                    self.sizes.forget(service.id);
                }
                added.push(place);
            }
            sender.send_replace(Arc::clone(&setup));
            self.listeners.wait_for(&added);
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

/// What the threads of a network have to do, before they run.
#[derive(Clone)]
pub(super) struct AcceptorWork {
    pub(super) network: String,
    setup: watch::Receiver<Arc<ProxyConfig>>,
    dialers: Dialers,
    legs: Legs,
    affinities: Option<Affinities>,
    counts: Counts,
    access: AccessLog,
    listeners: Listeners,
    pending: NetworkAdmission,
    kept: NetworkAdmission,
    pub(super) descriptors: Descriptors,
    agreed: Agreed,
    /// CPUs that there are for them.
    pub(super) cpus: usize,
    /// Where hellos come from, and the sockets that are made of them; none in the host's own namespace.
    cookies: Option<CookieWork>,
}

/// What a network needs for clients that were answered by cookies.
#[derive(Clone)]
pub(super) struct CookieWork {
    /// Id of the network.
    network: u16,
    queues: HelloQueues,
    /// Their connections.
    pub(super) sockets: ClientSockets,
    /// The segment sizes that they are held to.
    pub(super) sizes: VipMss,
}

impl AcceptorWork {
    /// That of each thread.
    pub(super) fn thread_name(&self) -> String {
        format!("vip-{}", self.network)
    }

    /// The hellos of a thread with this load.
    pub(super) fn hellos(&self, load: &ThreadLoad) -> Option<mpsc::Receiver<HelloRecord>> {
        let cookies = self.cookies.as_ref()?;
        Some(cookies.queues.of_thread(cookies.network, load.clone()))
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

/// What all connections of a thread share.
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
    pub(super) load: ThreadLoad,
    pub(super) network: String,
    /// What is for clients that were answered by cookies; none in the host's own namespace.
    pub(super) cookies: Option<CookieWork>,
}

impl Context {
    /// That of a thread with this load.
    pub(super) fn new(work: AcceptorWork, load: ThreadLoad) -> Self {
        let AcceptorWork {
            network,
            setup,
            dialers,
            legs,
            affinities,
            counts,
            access,
            listeners,
            pending,
            kept,
            descriptors,
            agreed,
            cpus,
            cookies,
        } = work;
        Self {
            setup,
            dialers,
            legs,
            affinities,
            counts,
            access,
            listeners,
            pending,
            kept,
            pipes: Pipes::new(&descriptors, workers::most(cpus)),
            descriptors,
            agreed,
            load,
            network,
            cookies,
        }
    }

    /// The service of a VIP here, as it is now.
    pub(super) fn service(&self, vip: SocketAddrV4) -> Option<Arc<ProxyService>> {
        let key = (self.network.clone(), vip);
        self.setup.borrow().services.get(&key).cloned()
    }
}

/// What the first thread does: it follows the setup until there is no sender of one any more.
async fn serve(work: AcceptorWork, leases: Option<PortLeases>) {
    if let Some(leases) = leases {
        task::spawn_local(say(leases.clone()));
        task::spawn_local(put_back(leases));
    }
    if let Some(sockets) = work.dialers.sockets(&work.network) {
        task::spawn_local(sockets.provide());
    }
    let mut setup = work.setup.clone();
    let load = ThreadLoad::default();
    let hellos = work.hellos(&load);
    let front = Rc::new(Front {
        shared: Rc::new(Context::new(work.clone(), load.clone())),
        workers: Workers::new(work, load),
    });
    let Front { shared, workers } = &*front;
    if let Some(hellos) = hellos {
        task::spawn_local(hellos::take(hellos, Rc::clone(shared)));
    }
    let mut accepted = BTreeMap::new();
    while setup.changed().await.is_ok() {
        let now = Arc::clone(&setup.borrow_and_update());
        shared.dialers.follow(&shared.network, &now);
        let vips = match shared.listeners.have_ceased() {
            true => BTreeSet::new(),
            false => now.vips(&shared.network),
        };
        let is_wanted = |vip: &SocketAddrV4| vips.contains(vip);
        accepted.retain(|vip, _| is_wanted(vip));
        shared
            .listeners
            .retain(&shared.network, |vip| is_wanted(&vip));
        if !vips.is_empty() {
            workers.start(&now);
        }
        for vip in vips {
            let listen = || listen(vip, &front);
            accepted.entry(vip).or_insert_with(listen);
        }
    }
    workers.end();
}

/// A network's first thread, and the others.
struct Front {
    shared: Rc<Context>,
    workers: Workers,
}

/// A listener that is accepted from until this is dropped.
struct Listening(AbortHandle);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn listen(address: SocketAddrV4, front: &Rc<Front>) -> Listening {
    let accept = accept(address, Rc::clone(front));
    Listening(task::spawn_local(accept).abort_handle())
}

/// Makes the listener of a VIP, and accepts connections there as long as this is wanted, with all threads.
async fn accept(vip: SocketAddrV4, front: Rc<Front>) {
    let Front { shared, workers } = &*front;
    let place = (shared.network.clone(), vip);
    let mut retries = Retries::default();
    let listener = loop {
        match shared.listeners.at(&place) {
            Ok(listener) => break listener,
            Err(error) => retries.wait(&error, vip, shared).await,
        }
    };
    let _accept = workers.accept(vip, &listener);
    accept_all(&listener, vip, shared).await;
}

/// What is tried until it succeeds, and logged once.
#[derive(Default)]
struct Retries {
    was_said: bool,
}

impl Retries {
    async fn wait(&mut self, error: &io::Error, vip: SocketAddrV4, shared: &Context) {
        if !self.was_said {
            tracing::error!(
                network = shared.network,
                address = %vip,
                "the shared VIP accepts no new connections, trying again: {error}"
            );
        }
        self.was_said = true;
        sleep(ACCEPT_RETRY_INTERVAL).await;
    }
}

/// Accepts connections to a VIP for ever, whatever comes in between.
pub(super) async fn accept_all(listener: &TcpListener, vip: SocketAddrV4, shared: &Rc<Context>) {
    let mut retries = Retries::default();
    loop {
        match accept_one(listener, vip, shared).await {
            Ok(()) => retries = Retries::default(),
            Err(error) => retries.wait(&error, vip, shared).await,
        }
    }
}

/// Serves the next client that connects to a VIP, with a task of its own. Another thread may be first, which is let
/// be while this one carries more.
async fn accept_one(
    listener: &TcpListener,
    vip: SocketAddrV4,
    shared: &Rc<Context>,
) -> io::Result<()> {
    if shared.load.is_ahead() {
        sleep(LETS_OTHERS).await;
    }
    let mut has_looked = false;
    let next = poll_fn(|context| {
        // A client has woken all threads.
        if has_looked && shared.load.is_ahead() {
            return Poll::Ready(None);
        }
        has_looked = true;
        listener.poll_accept(context).map(Some)
    });
    match next.await {
        Some(Ok((stream, SocketAddr::V4(client)))) => {
            begin(stream, ConnectionAddresses { client, vip }, None, shared);
            // Pending clients that are evicted for it go before the next one comes.
            yield_now().await;
        }
        Some(Ok(_)) | None => {}
        // One that is gone before it is accepted has no bearing on the next one.
        Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
        Some(Err(error)) => return Err(error),
    }
    Ok(())
}

/// Serves a client, in a task of its own, if there is a descriptor for it. `rebuilt` is one whose socket was made of a
/// hello.
pub(super) fn begin(
    client: TcpStream,
    addresses: ConnectionAddresses,
    rebuilt: Option<ClientSocket>,
    shared: &Rc<Context>,
) {
    let Some(service) = shared.service(addresses.vip) else {
        return;
    };
    let descriptor = match shared.descriptors.socket(service.network) {
        Ok(descriptor) => descriptor,
        Err(spent) => {
            return refuse(
                &client,
                &service,
                NoBackend::without_descriptor(spent),
                shared,
            );
        }
    };
    let (shared, carried) = (Rc::clone(shared), shared.load.carry());
    spawn_connection(async move {
        match service.routing.clone() {
            Routing::Sni(sni) => {
                sni::serve(client, addresses, rebuilt, service, sni, shared).await;
            }
            // A client of `sni` has no memory for these.
            Routing::Http(http) => {
                Box::pin(http::serve(client, addresses, service, http, shared)).await;
            }
            Routing::Pool(pool) => {
                Box::pin(passthrough::serve(
                    client, addresses, service, &pool, shared,
                ))
                .await;
            }
        }
        drop((descriptor, carried));
    });
}

/// Resets a client before anything is known of what it wants.
pub(super) fn refuse(
    client: &TcpStream,
    service: &ProxyService,
    reason: NoBackend,
    shared: &Context,
) {
    shared.counts.of(&service.name, |counted| {
        counted.accepted += 1;
        counted.refuse(reason.label());
    });
    reset_at_close(client);
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
