//! A full box: it starts, plans, reloads and is started again within seconds, its supervisor gets its signs of life
//! meanwhile, and it costs next to nothing when nothing happens: FEATURES F7, K11.

use std::{
    env,
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    os::unix::net::UnixDatagram,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{
    poll,
    product::{config::Config, lb::Lb},
    servers::echo::EchoServer,
    topology::{Topology, VIP},
    traffic::client,
};

/// The bounds of the largest size; they are asserted times [`SLACK`], for machines that are slower or do other things.
const MAX_START: Duration = Duration::from_secs(5);
const MAX_PLAN: Duration = Duration::from_secs(2);
const MAX_RELOAD: Duration = Duration::from_secs(2);
const SLACK: u32 = 3;
/// The most of a CPU when nothing happens, in percent.
const MAX_IDLE: f64 = 1.0;
/// How long that is measured, and how often: the least counts.
const IDLE: Duration = Duration::from_secs(2);
const IDLE_WINDOWS: usize = 3;
/// The longest time between two signs of life: half of the watchdog of the unit.
const MAX_SILENCE: Duration = Duration::from_secs(15);
/// The first port of backends.
const FIRST_PORT: usize = 10_000;
/// The VIP and port that a client is served at, and its backend.
const SERVED: SocketAddrV4 = SocketAddrV4::new(VIP, 443);
const SERVES: u16 = 9_000;

/// How much there is.
#[derive(Clone, Copy, Debug)]
struct Size {
    pools: usize,
    /// Of each pool.
    backends: usize,
    vips: usize,
    services: usize,
}

/// The size of FEATURES K11; a tenth of it without `LB_TEST_LONG`.
fn size() -> Size {
    let tenth = match env::var_os("LB_TEST_LONG") {
        Some(_) => 10,
        None => 1,
    };
    Size {
        pools: 25 * tenth,
        backends: 256,
        vips: 100 * tenth,
        services: 1_000 * tenth,
    }
}

/// The file. Of so many pools one backend is another one.
fn file(topology: &Topology, size: Size, changed: usize) -> Result<String> {
    let nodes = &topology.nodes;
    let each = size.backends.div_ceil(nodes.len());
    let served = Config::poc()
        .network("tenant-a", |network| {
            network.set("prefixes", ["192.168.0.0/16"])
        })
        .mgmt_pool("served", [SocketAddrV4::new(nodes[0].address, SERVES)])
        .tcp_service("served", SERVED);
    let (networks, rest) = served.split_once("pools:\n").context("pools")?;
    let (pools, services) = rest.split_once("services:\n").context("services")?;
    let mut text = format!("{networks}watch: false\n");
    writeln!(
        text,
        "limits: {{ services: 11000, backends: 65535, pools: 300 }}\npools:\n{pools}"
    )?;
    for pool in 0..size.pools {
        let first = FIRST_PORT + pool * each;
        let backend = |index: usize| {
            let (node, port) = (&nodes[index % nodes.len()], first + index / nodes.len());
            format!("\"{}:{port}\"", node.address)
        };
        let skipped = usize::from(pool < changed);
        let backends = (skipped..size.backends + skipped).map(backend);
        let backends = backends.collect::<Vec<_>>().join(", ");
        writeln!(
            text,
            "  p{pool}: {{ network: mgmt, backends: [{backends}] }}"
        )?;
    }
    text += &format!("services:\n{services}");
    for service in 0..size.services {
        let vip = u32::from(Ipv4Addr::new(192, 168, 0, 1)) + u32::try_from(service % size.vips)?;
        let (vip, port) = (Ipv4Addr::from(vip), 1_000 + service / size.vips);
        let pool = service % size.pools;
        writeln!(
            text,
            "  s{service}: {{ network: tenant-a, listen: [\"{vip}:{port}/tcp\"], pool: p{pool} }}"
        )?;
    }
    Ok(text)
}

/// A supervisor: the longest time between two signs of life of what it watches.
struct Supervisor {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Duration>>,
}

impl Supervisor {
    fn listen(socket: UnixDatagram) -> Result<Self> {
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let (mut longest, mut last, mut message) = (Duration::ZERO, Instant::now(), [0; 4096]);
            while !ends.load(Ordering::Relaxed) {
                let length = socket.recv(&mut message).unwrap_or_default();
                let text = String::from_utf8_lossy(&message[..length]).into_owned();
                if text.lines().any(|line| line == "WATCHDOG=1") {
                    longest = longest.max(last.elapsed());
                    last = Instant::now();
                }
            }
            Ok(longest.max(last.elapsed()))
        });
        Ok(Self { is_over, thread })
    }

    fn end(self) -> Result<Duration> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the supervisor panicked")?
    }
}

/// How long something took; printed beside its bound, and asserted with slack.
fn timed<T>(what: &str, most: Duration, done: impl FnOnce() -> Result<T>) -> Result<T> {
    let begun = Instant::now();
    let result = done().with_context(|| what.to_owned())?;
    let took = begun.elapsed();
    println!("{what}: {took:.2?} of {most:?}");
    ensure!(took < most * SLACK, "{what} took {took:?}");
    Ok(result)
}

/// The CPU time of a process so far.
fn spent(process: u32) -> Result<Duration> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).context("look at its threads")?;
    let mut all = Duration::ZERO;
    for task in tasks {
        // A thread may have ended meanwhile.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
        all += Duration::from_nanos(ns.unwrap_or_default());
    }
    Ok(all)
}

/// What it takes of a CPU when nothing happens, in percent: the least of some windows.
fn idle(process: u32) -> Result<f64> {
    let window = |_| {
        let before = spent(process)?;
        thread::sleep(IDLE);
        let took = spent(process)?.saturating_sub(before);
        Ok(took.as_secs_f64() / IDLE.as_secs_f64() * 100.0)
    };
    let windows = (0..IDLE_WINDOWS).map(window).collect::<Result<Vec<_>>>()?;
    Ok(windows.into_iter().fold(f64::INFINITY, f64::min))
}

/// How many backends come with a plan.
fn added(plan: &str) -> usize {
    plan.lines()
        .filter(|line| line.ends_with(": added"))
        .count()
}

fn memory(process: u32) -> Result<String> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).context("its status")?;
    let line = text.lines().find(|line| line.starts_with("VmRSS"));
    Ok(line.context("its memory")?.to_owned())
}

/// A client at the VIP gets the answer of its backend.
fn ensure_served(topology: &Topology) -> Result<()> {
    poll::until("an answer", Duration::from_secs(10), || {
        let asked = topology
            .client()
            .netns
            .inside(|| client::who(None, SERVED))?;
        Ok(asked.ok())
    })
    .map(drop)
}

#[privileged_test]
fn k11_a_full_box_starts_plans_reloads_and_is_started_again_within_seconds() -> Result<()> {
    let topology = Topology::poc()?;
    let served = SocketAddrV4::new(topology.nodes[0].address, SERVES);
    let _server = EchoServer::start(&topology.nodes[0].netns, served, "served")?;
    let size = size();
    let [before, after, last] = [0, 1, size.pools].map(|changed| file(&topology, size, changed));
    let (before, after, last) = (before?, after?, last?);
    let path = topology.dir().join("notify");
    let supervisor = Supervisor::listen(UnixDatagram::bind(&path)?)?;
    let notify = format!("NOTIFY_SOCKET={}", path.display());
    println!("{size:?}");

    let mut lb = timed("start", MAX_START, || {
        Lb::start_through(&topology, &before, &["env", &notify])
    })?;
    ensure_served(&topology)?;
    let file = lb.file();
    let file = file.to_str().context("a path")?;
    lb.write(&after)?;
    let plan = timed("plan", MAX_PLAN, || lb.tell(&["plan", file]))?;
    assert_eq!(
        (plan.code, added(&plan.stdout)),
        (Some(3), 1),
        "{}",
        plan.stderr
    );
    timed("reload", MAX_RELOAD, || lb.tell(&["reload"])?.done())?;
    assert_eq!(lb.tell(&["plan", file])?.code, Some(0), "nothing is left");
    lb.write(&last)?;
    let plan = lb.tell(&["plan", file])?;
    assert_eq!((plan.code, added(&plan.stdout)), (Some(3), size.pools - 1));
    let begun = Instant::now();
    lb.tell(&["reload"])?.done()?;
    println!("reload of all pools: {:.2?}", begun.elapsed());
    ensure_served(&topology)?;

    println!("{}", memory(lb.id())?);
    let share = idle(lb.id())?;
    println!("idle: {share:.2} % of a CPU of {MAX_IDLE}");
    ensure!(share < MAX_IDLE * f64::from(SLACK), "idle: {share} %");

    lb.kill()?;
    ensure_served(&topology)?;
    timed("kill -9 and start", MAX_START, || lb.restart(&last))?;
    assert_eq!(lb.tell(&["plan", file])?.code, Some(0), "nothing is left");
    ensure_served(&topology)?;
    let longest = supervisor.end()?;
    println!("longest time without a sign of life: {longest:.2?}");
    ensure!(longest < MAX_SILENCE, "no sign of life for {longest:?}");
    Ok(())
}
