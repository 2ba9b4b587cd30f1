//! A full box: it starts, plans, reloads and is started again within seconds, its supervisor gets its signs of life
//! meanwhile, and it costs next to nothing when nothing happens: FEATURES F7, K11.

use std::{
    env,
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
    oracle::memory,
    poll,
    product::{
        full_box::{self, SERVED, Size},
        lb::Lb,
    },
    servers::echo::EchoServer,
    topology::Topology,
    traffic::client,
};

/// The bounds of the largest size; they are asserted times [`SLACK`], for machines that are slower or do other things.
const MAX_START: Duration = Duration::from_secs(5);
const MAX_PLAN: Duration = Duration::from_secs(2);
const MAX_RELOAD: Duration = Duration::from_secs(2);
const SLACK: u32 = 3;
/// The most of a CPU when nothing happens, in percent.
const MAX_IDLE: f64 = 1.0;
/// The longest time between two signs of life: half of the watchdog of the unit.
const MAX_SILENCE: Duration = Duration::from_secs(15);

/// The largest size; a tenth of it without `LB_TEST_LONG`.
fn size() -> Size {
    match env::var_os("LB_TEST_LONG") {
        Some(_) => Size::FULL,
        None => Size::TENTH,
    }
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

/// How many backends come with a plan.
fn added(plan: &str) -> usize {
    plan.lines()
        .filter(|line| line.ends_with(": added"))
        .count()
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
    let served = full_box::served_by(&topology);
    let _server = EchoServer::start(&topology.nodes[0].netns, served, "served")?;
    let size = size();
    let [before, after, last] = [0, 1, size.pools].map(|changed| size.file(&topology, changed));
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

    println!("resident: {} MiB", memory::now(lb.id())? >> 10);
    let share = full_box::idle(lb.id())?;
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
