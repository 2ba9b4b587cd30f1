//! What the threads of a network are given, and what the connections of one thread share.

use std::{net::SocketAddrV4, sync::Arc};

use tokio::sync::{mpsc, watch};

use super::{
    AccessLog, Counts, Legs, Listeners, ProxyConfig,
    admission::NetworkAdmission,
    client_sockets::ClientSockets,
    dial::dialers::Dialers,
    fd_budget::Descriptors,
    hellos::HelloQueues,
    relay::pipe::Pipes,
    snapshot::ProxyService,
    splice::negotiated::Agreed,
    workers::{self, ThreadLoad},
};
use crate::dataplane::{
    affinities::Affinities, flow_lines::FlowLines, hellos::HelloRecord, vip_offers::VipOffers,
};

/// What the threads of a network have to do, and do it with.
#[derive(Clone)]
pub(super) struct AcceptorWork {
    pub(super) network: String,
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
    /// What backends agree on.
    pub(super) agreed: Agreed,
    /// CPUs that there are for them.
    pub(super) cpus: usize,
    /// Where hellos come from, and the sockets that are made of them; none in the host's own namespace.
    pub(super) cookies: Option<CookieWork>,
}

/// What a network needs for clients that were answered by cookies.
#[derive(Clone)]
pub(super) struct CookieWork {
    /// Id of the network.
    pub(super) network: u16,
    pub(super) queues: HelloQueues,
    /// Their connections.
    pub(super) sockets: ClientSockets,
    /// The flows that some of them are by now.
    pub(super) flows: Arc<FlowLines>,
    /// What they are offered.
    pub(super) offers: VipOffers,
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

/// What all connections of a thread share.
pub(crate) struct Context {
    pub(super) work: AcceptorWork,
    pub(super) pipes: Pipes,
    pub(super) load: ThreadLoad,
}

impl Context {
    /// That of a thread with this load.
    pub(super) fn new(work: AcceptorWork, load: ThreadLoad) -> Self {
        let pipes = Pipes::new(&work.descriptors, workers::most(work.cpus));
        Self { work, pipes, load }
    }

    /// The service of a VIP here, as it is now.
    pub(super) fn service(&self, vip: SocketAddrV4) -> Option<Arc<ProxyService>> {
        let key = (self.work.network.clone(), vip);
        self.work.setup.borrow().services.get(&key).cloned()
    }
}
