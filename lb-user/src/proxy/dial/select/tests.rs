use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    rc::Rc,
};

use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    task::{LocalSet, spawn_local},
};

use super::*;
use crate::{
    dataplane::affinities::Affinities,
    flows::log,
    proxy::{
        AccessLog, Counts, Legs, Listeners, ProxyConfig,
        admission::Admission,
        context::AcceptorWork,
        dial::{
            connect::{Dialled, Undialled},
            dialers::{Dial, Dialer, Dialers},
        },
        fair_share::Shares,
        fd_budget::Descriptors,
        snapshot::tests::service,
        splice::negotiated::{Agreed, tests::offer},
        workers::ThreadLoad,
    },
    system::tcp_info::TcpOptions,
};

const NETWORK: &str = "n";
const POOL: &str = "p";
/// More than are tried where each takes its time.
const COUNT: u32 = 10;

/// Ten backends and a thread that connects to the one with this id, and to no other.
struct Site {
    shared: Context,
    /// The backends that were tried, in that order.
    asked: Rc<RefCell<Vec<SocketAddrV4>>>,
    /// Of these the ones that were to have a flow's port.
    lent: Rc<RefCell<Vec<SocketAddrV4>>>,
    /// Does not answer when it is asked next.
    silent: Rc<Cell<Option<SocketAddrV4>>>,
    _setup: watch::Sender<Arc<ProxyConfig>>,
}

impl Site {
    async fn start(serving: Option<u32>) -> Self {
        Self::limited(serving, None).await
    }

    /// With this limit of connections for each backend.
    async fn limited(serving: Option<u32>, max_connections: Option<u32>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let there = listener.local_addr().unwrap();
        let backends: BTreeMap<u32, SocketAddrV4> = (1..=COUNT).map(|id| (id, at(id))).collect();
        let table = backends.keys().copied().cycle().take(509).collect();
        let pool = ProxyPool::new(NETWORK.to_owned(), 3, table, backends, None);
        let pool = pool.limited(max_connections).remembering(1, 60);
        let (sender, setup) = watch::channel(Arc::new(ProxyConfig {
            pools: [(POOL.to_owned(), Arc::new(pool))].into(),
            ..ProxyConfig::default()
        }));
        let (dialer, mut dials) = mpsc::unbounded_channel();
        let asked: Rc<RefCell<Vec<_>>> = Rc::default();
        let lent: Rc<RefCell<Vec<_>>> = Rc::default();
        let silent: Rc<Cell<Option<SocketAddrV4>>> = Rc::default();
        let (all, ports, none) = (Rc::clone(&asked), Rc::clone(&lent), Rc::clone(&silent));
        spawn_local(async move {
            while let Some(dial) = dials.recv().await {
                let Dial { purpose, answer } = dial;
                let to = purpose.backend.1;
                all.borrow_mut().push(to);
                ports.borrow_mut().extend(purpose.mss.map(|_| to));
                if none.get() == Some(to) {
                    none.take();
                    answer.send(Err(Undialled::Silent)).unwrap();
                    continue;
                }
                let is_there = Some(to) == serving.map(at);
                let stream = match is_there {
                    true => TcpStream::connect(there).await,
                    false => Err(io::ErrorKind::ConnectionRefused.into()),
                };
                let dialled = stream.map(|stream| Dialled {
                    stream,
                    lease: None,
                    port: None,
                });
                answer.send(dialled.map_err(Undialled::from)).unwrap();
            }
            drop(listener);
        });
        let (reporter, _reports) = log::channel();
        let descriptors = Descriptors::of_this_process(Shares::default());
        let work = AcceptorWork {
            setup,
            dialers: Dialers::of([Dialer::asking(NETWORK, dialer)]),
            legs: Legs::new(reporter),
            affinities: Some(Affinities::anonymous()),
            counts: Counts::default(),
            access: AccessLog::default(),
            listeners: Listeners::default(),
            pending: Admission::up_to(descriptors.waiting()).of(NETWORK),
            kept: Admission::up_to(descriptors.kept()).of(NETWORK),
            agreed: Agreed::default(),
            descriptors,
            network: NETWORK.to_owned(),
            cpus: 1,
            cookies: None,
        };
        let shared = Context::new(work, ThreadLoad::default());
        Self {
            shared,
            asked,
            lent,
            silent,
            _setup: sender,
        }
    }

    /// Connects to the pool; the id of the backend.
    async fn connect(&self, candidates: Candidates) -> Result<u32, NoBackend> {
        let (service, key) = (service(None, None), FlowKey::default());
        let carriage = Ok(offer(TcpOptions::default()));
        let connected = candidates.connect(&key, &service, None, carriage, &self.shared);
        let BackendConnection { guard, .. } = connected.await?;
        Ok(guard.leg.flow().backend_id.into())
    }

    fn redispatched(&self) -> u64 {
        let counted = self.shared.work.counts.read();
        counted.values().map(|counted| counted.redispatched).sum()
    }
}

fn at(id: u32) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::from(0x0a00_0000 + id), 443)
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Each is tried once, however many have refused before.
#[test]
fn all_are_tried_until_one_is_there() {
    run(async {
        for hash in [0, 1 << 31, u32::MAX] {
            let empty = Site::start(None).await;
            let candidates = Candidates::of(POOL, ChosenBy::Name(hash), &empty.shared).unwrap();
            let order: Vec<(u32, SocketAddrV4)> = candidates.backends().collect();
            assert_eq!(order.len(), 10);
            let found = empty.connect(candidates).await;
            assert_eq!(found, Err(NoBackend::Unreachable));
            let addresses: Vec<_> = order.iter().map(|(_, address)| *address).collect();
            assert_eq!(*empty.asked.borrow(), addresses);
            assert_eq!(empty.redispatched(), 0);

            for tried in [1, 2, 4, 10] {
                let id = order[tried - 1].0;
                let site = Site::start(Some(id)).await;
                let candidates = Candidates::of(POOL, ChosenBy::Name(hash), &site.shared).unwrap();
                assert_eq!(site.connect(candidates).await, Ok(id));
                assert_eq!(*site.asked.borrow(), addresses[..tried]);
                assert_eq!(site.redispatched(), u64::from(tried > 1));
            }
        }
    });
}

/// A backend whose SYNs may have been lost is tried again when all others have been.
#[test]
fn one_that_was_silent_is_tried_again() {
    run(async {
        let site = Site::start(Some(1)).await;
        let candidates = || Candidates::of(POOL, ChosenBy::Name(0), &site.shared).unwrap();
        let mut order: Vec<_> = candidates().backends().map(|(_, to)| to).collect();
        order.push(at(1));
        site.silent.set(Some(at(1)));
        assert_eq!(site.connect(candidates()).await, Ok(1));
        assert_eq!(*site.asked.borrow(), order);
        let is_first = order[0] == at(1);
        assert_eq!(site.redispatched(), u64::from(!is_first));
    });
}

/// A full one is passed over without a connection, and where all others fail too, this is why.
#[test]
fn a_full_backend_is_passed_over() {
    run(async {
        let site = Site::limited(Some(3), Some(1)).await;
        let candidates = || Candidates::of(POOL, ChosenBy::Name(0), &site.shared).unwrap();
        let key = FlowKey::default();
        let service = service(None, None);
        let connect = || {
            let carriage = Ok(offer(TcpOptions::default()));
            candidates().connect(&key, &service, None, carriage, &site.shared)
        };
        let held = connect().await.unwrap();
        assert_eq!(held.guard.leg.flow().backend_id, 3);
        site.asked.borrow_mut().clear();
        assert_eq!(connect().await.map(|_| ()), Err(NoBackend::Unreachable));
        assert_eq!(site.asked.borrow().len(), 9);
        assert!(!site.asked.borrow().contains(&at(3)), "it has one");
        drop(held);
        assert!(connect().await.is_ok());

        let full = Site::limited(Some(3), Some(0)).await;
        let candidates = Candidates::of(POOL, ChosenBy::Name(0), &full.shared).unwrap();
        assert_eq!(full.connect(candidates).await, Err(NoBackend::Full));
        assert!(full.asked.borrow().is_empty());
    });
}

/// Backends that are known to agree on something else than the client get nothing that flows could have.
#[test]
fn who_is_going_to_be_copied_takes_no_port_of_a_flow() {
    run(async {
        let site = Site::start(None).await;
        for id in 1..=COUNT / 2 {
            site.shared.work.agreed.note(at(id), TcpOptions::ALL);
        }
        let candidates = Candidates::of(POOL, ChosenBy::Name(0), &site.shared).unwrap();
        assert_eq!(site.connect(candidates).await, Err(NoBackend::Unreachable));
        let mut lent = site.lent.borrow().clone();
        lent.sort_unstable();
        let alike: Vec<SocketAddrV4> = (COUNT / 2 + 1..=COUNT).map(at).collect();
        assert_eq!(lent, alike);
        assert_eq!(site.asked.borrow().len(), 10);
    });
}

/// The first one that a client has reached is the first one that is tried for its next connection, and for no other client's.
#[test]
fn a_client_stays_with_the_backend_that_it_has_reached() {
    run(async {
        let key = |network, port| FlowKey {
            client_port: Be16::new(port),
            network,
            ..FlowKey::default()
        };
        let site = Site::start(Some(3)).await;
        let candidates = |key: FlowKey, host| {
            let by = ChosenBy::flow(&key, Ipv4Addr::new(10, 9, 0, host).into());
            Candidates::of(POOL, by, &site.shared).unwrap()
        };
        let first = |key, host| candidates(key, host).backends().next().unwrap().0;
        let others = (1..100).find(|port| first(key(7, *port), 1) != 3);
        let port = others.expect("a port whose hash leads to another one");
        let usual = first(key(7, port), 1);
        assert_eq!(site.connect(candidates(key(7, port), 1)).await, Ok(3));
        assert_eq!(first(key(7, port), 1), 3);
        assert_eq!(first(key(8, port), 1), usual, "of another network");
        assert_eq!(first(key(7, port), 2), usual, "of another address");
        let all: Vec<u32> = candidates(key(7, port), 1)
            .backends()
            .map(|(id, _)| id)
            .collect();
        assert_eq!(all.len(), 10, "the others follow");
    });
}
