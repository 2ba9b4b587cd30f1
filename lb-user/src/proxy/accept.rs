//! The front: the threads in a network's cell. They accept the connections of the network's shared VIPs, and open
//! those to backends, whichever network these are of. The first one has the listeners, and makes the sockets of
//! connections to backends in its network.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::poll_fn,
    io,
    net::{SocketAddr, SocketAddrV4},
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    task::{self, AbortHandle, yield_now},
    time::sleep,
};

use super::{
    client_sockets::ClientSocket,
    context::{AcceptorWork, Context},
    dial::select::{ConnectionAddresses, NoBackend},
    hellos, http, passthrough,
    snapshot::{ProxyService, Routing},
    sni,
    sockets::reset_at_close,
    splice::port_lease::{LEASE_HEARTBEAT, PUT_BACK_INTERVAL, PortLeases},
    workers::{ThreadLoad, Workers},
};
use crate::system::panics::spawn_connection;

/// How long until an address that could not be had is tried again, and until a front that has no
/// descriptors left accepts again.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a thread that carries more clients than another one lets that accept first.
const LETS_OTHERS: Duration = Duration::from_millis(1);

/// What the first thread does: it follows the setup until there is no sender of one any more.
pub(super) async fn serve(work: AcceptorWork, leases: Option<PortLeases>) {
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
        shared.work.dialers.follow(&shared.work.network, &now);
        let vips = match shared.work.listeners.have_ceased() {
            true => BTreeSet::new(),
            false => now.vips(&shared.work.network),
        };
        let is_wanted = |vip: &SocketAddrV4| vips.contains(vip);
        accepted.retain(|vip, _| is_wanted(vip));
        shared
            .work
            .listeners
            .retain(&shared.work.network, |vip| is_wanted(&vip));
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
    let place = (shared.work.network.clone(), vip);
    let mut retries = Retries::default();
    let listener = loop {
        match shared.work.listeners.at(&place) {
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
                network = shared.work.network,
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
    let descriptor = match shared.work.descriptors.socket(service.network) {
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
    shared.work.counts.of(&service.name, |counted| {
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
