//! A service on the loopback interface, and its backends.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt::SndBuf};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task,
    time::{sleep, timeout},
};

use crate::{
    api::ServiceStats,
    config::{Balance, Otherwise},
    flows::log,
    proxy::{
        AccessLog, Counts, Legs, Listeners, ProxyConfig,
        admission::Admission,
        context::{AcceptorWork, Context},
        dial::{
            candidates::ProxyPool,
            connect::Origin,
            dialers::{Dialer, Dialers},
            select::ConnectionAddresses,
        },
        fair_share::Shares,
        fd_budget::Descriptors,
        http::serve,
        snapshot::{HttpRouting, ProxyService, Routing, tests as setup},
        splice::negotiated::Agreed,
        workers::ThreadLoad,
    },
};

const NETWORK: &str = "n";
/// How long anything may take here.
const SOON: Duration = Duration::from_secs(10);
/// How long nothing may come of a body or an answer, where a test does not set it.
const KEEP: Duration = Duration::from_secs(60);
/// How long a head may take.
pub(super) const HEAD: Duration = Duration::from_millis(300);

/// Bytes of an answer that are in the kernel at least while the client does not read: far less than usual.
const LITTLE: usize = 4096;

/// A backend that answers each request with its name, or by its path.
pub(super) struct Backend {
    pub(super) address: SocketAddrV4,
    /// The heads that it was sent.
    pub(super) heads: Rc<RefCell<Vec<String>>>,
    /// Connections that it has accepted.
    pub(super) accepted: Rc<Cell<usize>>,
}

async fn listen() -> (TcpListener, SocketAddrV4) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        panic!("bound to IPv6");
    };
    (listener, address)
}

impl Backend {
    pub(super) async fn start(name: &'static str) -> Self {
        let (listener, address) = listen().await;
        let heads: Rc<RefCell<Vec<String>>> = Rc::default();
        let accepted: Rc<Cell<usize>> = Rc::default();
        let (all, count) = (Rc::clone(&heads), Rc::clone(&accepted));
        task::spawn_local(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.set(count.get() + 1);
                task::spawn_local(talk(stream, name, Rc::clone(&all)));
            }
        });
        Self {
            address,
            heads,
            accepted,
        }
    }
}

/// Answers requests by their paths; a body is read before that only where the path is one for it.
async fn talk(mut stream: TcpStream, name: &'static str, heads: Rc<RefCell<Vec<String>>>) {
    let mut is_first = true;
    while let Some(head) = head(&mut stream).await {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        heads.borrow_mut().push(head);
        let answer = match path.as_str() {
            // The second request of a connection is read, and not answered.
            "/once" if !is_first => return,
            "/torn" => {
                let torn = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345";
                return stream.write_all(torn).await.unwrap();
            }
            "/upgrade" => {
                let turn = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
                stream.write_all(turn).await.unwrap();
                let (mut from, mut to) = stream.split();
                return drop(tokio::io::copy(&mut from, &mut to).await);
            }
            "/slow" => {
                sleep(HEAD / 2).await;
                whole(name)
            }
            path if path.starts_with("/bytes/") => whole(&"x".repeat(path[7..].parse().unwrap())),
            // It reads a body of that length, whenever it comes.
            path if path.starts_with("/hears/") => {
                let mut body = vec![0; path[7..].parse().unwrap()];
                if stream.read_exact(&mut body).await.is_err() {
                    return;
                }
                whole(name)
            }
            // It begins an answer, and goes on after a while.
            "/halting" => {
                let begin = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n1";
                stream.write_all(begin).await.unwrap();
                sleep(2 * HEAD).await;
                "2".to_owned()
            }
            "/silent" => return std::future::pending().await,
            _ => whole(name),
        };
        is_first = false;
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn whole(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// The next head, and nothing that follows it.
async fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return None,
        }
    }
    Some(String::from_utf8(head).unwrap())
}

/// A service with a route for each of `a.lab`, `b.lab` and so on.
pub(super) struct Site {
    pub(super) address: SocketAddrV4,
    pub(super) shared: Rc<Context>,
    pub(super) backends: Vec<Backend>,
    _setup: watch::Sender<Arc<ProxyConfig>>,
    _gone: TcpSocket,
}

impl Site {
    /// Backends of these names, each with a pool for the name with `.lab` after it; `gone.lab` has a pool
    /// whose backend is not there, `empty.lab` one without any, `c.lab` is there by https, and
    /// `theirs.lab` is for others.
    pub(super) async fn start(
        names: &[&'static str],
        change: impl FnOnce(&mut ProxyService, &mut HttpRouting),
    ) -> Self {
        let (listener, address) = listen().await;
        setsockopt(&listener, SndBuf, &LITTLE).unwrap();
        // Bound, so that no other process gets the port, and without a listener.
        let gone = TcpSocket::new_v4().unwrap();
        gone.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let SocketAddr::V4(closed) = gone.local_addr().unwrap() else {
            panic!("an address of IPv4");
        };
        let mut backends = Vec::new();
        for name in names {
            backends.push(Backend::start(name).await);
        }
        let mut http = HttpRouting {
            routes: setup::routes(&[
                ("a.lab", Some("a"), ""),
                ("b.lab", Some("b"), ""),
                ("gone.lab", Some("gone"), ""),
                ("empty.lab", Some("empty"), ""),
                ("c.lab", None, ""),
                ("theirs.lab", Some("a"), "192.0.2.0/24"),
                ("*.all.lab", Some("all"), ""),
            ]),
            no_match: Otherwise::Alert,
            balance: Balance::Client,
            timeout: HEAD,
            body_timeout: KEEP,
            response_timeout: KEEP,
            max_bytes: 4096,
        };
        let mut service = setup::service(None, None);
        change(&mut service, &mut http);
        service.routing = Routing::Http(Arc::new(http));
        let mut all = BTreeMap::new();
        let mut pools = BTreeMap::new();
        for (id, (name, backend)) in (1..).zip(names.iter().zip(&backends)) {
            all.insert(id, backend.address);
            let one = [(id, backend.address)].into();
            let pool = ProxyPool::new(NETWORK.to_owned(), 3, [id].into(), one, None);
            pools.insert((*name).to_owned(), Arc::new(pool));
        }
        let table = all.keys().copied().cycle().take(509).collect();
        for (name, table, backends) in [
            ("all", table, all),
            ("gone", vec![99], [(99, closed)].into()),
            ("empty", Vec::new(), BTreeMap::new()),
        ] {
            let pool = ProxyPool::new(NETWORK.to_owned(), 3, table.into(), backends, None);
            pools.insert(name.to_owned(), Arc::new(pool));
        }
        let setup = ProxyConfig {
            services: [((NETWORK.to_owned(), address), Arc::new(service))].into(),
            pools,
            sources: [(NETWORK.to_owned(), vec![Ipv4Addr::LOCALHOST])].into(),
            ..ProxyConfig::default()
        };
        let (sender, setup) = watch::channel(Arc::new(setup));
        let (reporter, _reports) = log::channel();
        let descriptors = Descriptors::of_this_process(Shares::default());
        let work = AcceptorWork {
            setup,
            dialers: dialers(),
            legs: Legs::new(reporter),
            affinities: None,
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
        let shared = Rc::new(Context::new(work, ThreadLoad::default()));
        task::spawn_local(accept(listener, address, Rc::clone(&shared)));
        Self {
            address,
            shared,
            backends,
            _setup: sender,
            _gone: gone,
        }
    }

    pub(super) async fn connect(&self) -> Client {
        Client(TcpStream::connect(self.address).await.unwrap())
    }

    /// As [`Self::connect`], by a client that has little room for what it does not read.
    pub(super) async fn connect_tight(&self) -> Client {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .set_recv_buffer_size(LITTLE.try_into().unwrap())
            .unwrap();
        Client(socket.connect(self.address.into()).await.unwrap())
    }

    /// What a request for this Host and path gets, on a connection of its own.
    pub(super) async fn get(&self, host: &str, path: &str) -> Answer {
        self.connect().await.get(host, path).await
    }

    /// The service's counters.
    pub(super) fn counted(&self) -> ServiceStats {
        self.shared
            .work
            .counts
            .read()
            .remove("s")
            .unwrap_or_default()
    }

    /// Connections and requests that were refused for this reason.
    pub(super) fn refused(&self, label: &str) -> u64 {
        let counted = self.counted();
        let both = [counted.refused, counted.requests.refused];
        both.iter().filter_map(|refused| refused.get(label)).sum()
    }
}

async fn accept(listener: TcpListener, vip: SocketAddrV4, shared: Rc<Context>) {
    loop {
        let (stream, source) = listener.accept().await.unwrap();
        let SocketAddr::V4(client) = source else {
            panic!("a client by IPv6");
        };
        let service = shared.service(vip).unwrap();
        let Routing::Http(http) = service.routing.clone() else {
            panic!("routed by SNI");
        };
        let addresses = ConnectionAddresses { client, vip };
        task::spawn_local(serve(stream, addresses, service, http, Rc::clone(&shared)));
    }
}

fn dialers() -> Dialers {
    let dialer = Dialer::new(NETWORK, Origin::Host, None, Shares::default(), 4);
    let dialers = Dialers::of([dialer]);
    if let Some(sockets) = dialers.sockets(NETWORK) {
        task::spawn_local(sockets.provide());
    }
    dialers
}

/// A client's connection.
pub(super) struct Client(pub(super) TcpStream);

/// What a client is answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: String,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn status(&self) -> u16 {
        let status = self.head.split(' ').nth(1).unwrap_or_default();
        status.parse().unwrap_or_default()
    }
}

impl Client {
    pub(super) async fn get(&mut self, host: &str, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))
            .await
    }

    /// Sends a request and reads its answer, which has a length if it has a body.
    pub(super) async fn ask(&mut self, request: &str) -> Answer {
        self.0.write_all(request.as_bytes()).await.unwrap();
        self.hear().await
    }

    pub(super) async fn hear(&mut self) -> Answer {
        let head = timeout(SOON, head(&mut self.0)).await.unwrap();
        let head = head.expect("an answer").to_ascii_lowercase();
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.split("\r\n").next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).await.unwrap();
        let body = String::from_utf8(body).unwrap();
        Answer { head, body }
    }

    /// All that still comes, or how the connection fails.
    pub(super) async fn rest(&mut self) -> std::io::Result<String> {
        let mut rest = Vec::new();
        timeout(SOON, self.0.read_to_end(&mut rest))
            .await
            .unwrap()?;
        Ok(String::from_utf8(rest).unwrap())
    }
}

/// Runs a test on one thread, as a front does.
pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    task::LocalSet::new().block_on(&runtime, test);
}
