//! The shared VIP guards itself and its backends: FEATURES B8, B9, B13, RELIABILITY 11.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::raw::RawPort,
    netns::Netns,
    oracle::{memory, observe::links},
    process,
    product::{
        config::{Config, Keys},
        lb::Lb,
    },
    servers::teller::{self, Teller},
    topology::{Host, TENANT_NIC, Topology},
    traffic::{
        client::open,
        flood::Flood,
        hello::{CAPTURED_NAME, captured, named},
    },
};
use lb_user::network::{cell, namespace};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::json;

use crate::proxy::{
    bind::ensure_all_bound,
    sni::{PORT, SHARED, Site, counted, counted_refusal, reaches, send},
};

/// The alert of RFC 8446 section 6 for an encrypted hello that is not wanted.
const ILLEGAL_PARAMETER: [u8; 7] = [21, 3, 1, 0, 2, 2, 47];
/// The most that a handshake may take while others do harm.
const QUICK: Duration = Duration::from_secs(1);
/// From one handshake that is measured to the next.
const PAUSE: Duration = Duration::from_millis(5);

/// B8: a hello with another one in it goes by its outer name, is counted, or denied; none of its bytes
/// is changed. One without is none of that.
#[privileged_test]
fn b8_what_becomes_of_an_encrypted_hello() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let config = |ech: &str| config(&topology, Keys::default().set("ech", ech));
    let lb = Lb::start(&topology, &config("route"))?;
    let client = topology.client();
    let (with, without): (Vec<_>, Vec<_>) = captured()?
        .into_iter()
        .filter(lb_tests::traffic::hello::Captured::has_name)
        .partition(lb_tests::traffic::hello::Captured::has_ech);
    ensure!(
        with.len() >= 3 && !without.is_empty(),
        "{} captures",
        with.len()
    );
    let many = u64::try_from(with.len())?;
    let go = |what: &str, hello: &[u8]| -> Result<()> {
        let reached = client
            .netns
            .inside(|| teller::ask(SHARED, &[hello], PAUSE))??;
        ensure!(reached.as_deref() == Some("a"), "{what}: {reached:?}");
        Ok(())
    };
    for captured in &with {
        go(&captured.client, &captured.bytes)?;
    }
    assert_eq!((counted(&lb, "ech")?, counted_refusal(&lb, "ech")?), (0, 0));

    lb.reload(&config("count"))?;
    for captured in with.iter().chain(&without) {
        go(&captured.client, &captured.bytes)?;
    }
    assert_eq!(
        (counted(&lb, "ech")?, counted_refusal(&lb, "ech")?),
        (many, 0)
    );

    lb.reload(&config("deny"))?;
    for captured in &with {
        let answer = send(client, &[&captured.bytes])?;
        assert_eq!(answer, ILLEGAL_PARAMETER, "{}", captured.client);
    }
    for captured in &without {
        go(&captured.client, &captured.bytes)?;
    }
    assert_eq!(
        (counted(&lb, "ech")?, counted_refusal(&lb, "ech")?),
        (many, many)
    );
    Ok(())
}

/// B9: a client that offers a protocol goes where that is spoken, one that offers others or none goes where all go.
#[privileged_test]
fn b9_protocols_of_a_name_have_backends_of_their_own() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology)?;
    let config = site.config(
        "routes: [{ names: [a.lab], alpn: [acme-tls/1], pool: b }, \
         { names: [a.lab], alpn: [h2], pool: c }, { names: [a.lab], pool: a }]",
    );
    let lb = Lb::start(&topology, &config)?;
    let clients = [
        ("-alpn h2", "c.lab"),
        ("-alpn acme-tls/1", "b.lab"),
        ("-alpn http/1.1", "a.lab"),
        ("", "a.lab"),
        ("-alpn http/1.1,h2", "c.lab"),
        // The first route of those that it may take.
        ("-alpn h2,acme-tls/1", "b.lab"),
        ("-alpn h2 -tls1_2", "c.lab"),
        ("-alpn acme-tls/1 -tls1_2", "b.lab"),
    ];
    for (words, name) in clients {
        reaches(topology.client(), Some("a.lab"), name, words)?;
    }
    ensure_all_bound(&lb, clients.len())
}

/// Clients that say nothing, or a byte each second, and how many of them one address has.
const SLOW: u8 = 40;
const OF_ONE: usize = 250;
/// How long a hello may take where nothing else is said, and until it is seen that it has.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_secs(3);
/// How many of them a network may have that have not said what they want.
const MAX_LATE: u64 = 4096;
/// KiB of the process alone: 100 MB, less the maps that it had in its memory when that was asked for.
const MUCH_MEMORY: u64 = 36 * 1024;

/// B13: ten thousand that do not get to the point are all closed in time, cost little, and no other client
/// is slow for them.
#[privileged_test]
fn b13_who_does_not_get_to_the_point_is_closed() -> Result<()> {
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let mut lb = Lb::start(&topology, &config(&topology, ""))?;
    // Only now: `lb` has what it has.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let pid = lb.process().id();
    let before = memory::now(pid)?;
    let [slow, other] = &topology.clients[..] else {
        anyhow::bail!("there are two clients");
    };

    let (mut closed, measured) = beside(other, || slow.netns.inside(|| dawdle(slow))?)?;

    let (peak, mapped) = (memory::peak(pid)?, memory::mapped(pid)?);
    let [late, recycled] = ["timeout", "recycled"].map(|reason| counted_refusal(&lb, reason));
    let (late, recycled) = (late?, recycled?);
    closed.sort_unstable();
    let longest = closed.last().copied().unwrap_or_default();
    println!(
        "{late} closed for their time, the last after {longest:.1?}, {recycled} for others; \
         {measured}, asked for p99 < 20 ms; {before} KiB, at most {peak} KiB, {mapped} KiB of them mapped"
    );
    let expected = usize::from(SLOW) * OF_ONE;
    assert_eq!(closed.len(), expected);
    assert_eq!(late + recycled, u64::try_from(expected)?);
    ensure!(
        (1..=MAX_LATE).contains(&late) && recycled > 0,
        "{late}, {recycled}"
    );
    // Those whose place was not taken had all of their time, and no more.
    let shortest = closed[usize::try_from(recycled)?];
    let time = HELLO_TIMEOUT..HELLO_TIMEOUT + SLACK;
    ensure!(
        time.contains(&shortest) && time.contains(&longest),
        "closed after {shortest:?} to {longest:?}"
    );
    let own = peak - mapped;
    ensure!(own < MUCH_MEMORY, "{own} KiB of {peak} KiB are its own");
    measured.ensure_quick()
}

/// A client that takes its time.
struct Slow {
    stream: TcpStream,
    since: Instant,
    /// What it sends, byte by byte.
    sends: std::vec::IntoIter<u8>,
}

impl Slow {
    fn new(from: Ipv4Addr, sends: Vec<u8>) -> Result<Self> {
        // No process can have accepted it before.
        let since = Instant::now();
        let stream = open(Some(from), SHARED)?;
        stream.set_nonblocking(true)?;
        let mut slow = Self {
            stream,
            since,
            sends: sends.into_iter(),
        };
        // Of a client that sends nothing nothing is kept.
        slow.dribble();
        Ok(slow)
    }

    /// How long it was there, if it has been closed.
    fn closed(&mut self) -> Option<Duration> {
        let read = self.stream.read(&mut [0; 16]);
        let waits = matches!(&read, Err(error) if error.kind() == ErrorKind::WouldBlock);
        (!waits && read.is_err() || read.is_ok_and(|bytes| bytes == 0))
            .then(|| self.since.elapsed())
    }

    fn dribble(&mut self) {
        if let Some(byte) = self.sends.next() {
            // Seen when it is read from.
            let _closed = self.stream.write(&[byte]);
        }
    }
}

/// Opens the connections, every second of which dribbles; how long each was there, when none is.
fn dawdle(host: &Host) -> Result<Vec<Duration>> {
    let addresses: Vec<_> = (0..SLOW)
        .map(|number| Ipv4Addr::new(192, 168, 203, 180 + number))
        .collect();
    for address in &addresses {
        host.netns
            .ip_batch(&format!("addr add {address}/24 dev eth0\n"))?;
    }
    let hello = named(CAPTURED_NAME.as_bytes());
    let mut open = Vec::new();
    for number in 0..OF_ONE {
        for address in &addresses {
            let sends = if number % 2 == 0 {
                hello.clone()
            } else {
                hello[..1].to_vec()
            };
            open.push(
                Slow::new(*address, sends).with_context(|| format!("number {}", open.len()))?,
            );
        }
    }
    let (mut closed, mut dribbled) = (Vec::new(), Instant::now());
    while !open.is_empty() {
        open.retain_mut(|slow| {
            let gone = slow.closed();
            closed.extend(gone);
            gone.is_none()
        });
        if dribbled.elapsed() > Duration::from_secs(1) {
            open.iter_mut().for_each(Slow::dribble);
            dribbled = Instant::now();
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(closed)
}

/// A MAC that no station has: what is sent to the spoofed addresses reaches no stack.
const UNUSED: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);
/// SYNs a second at most, how long they are sent, between two looks at the clock, and the least in all.
const RATE: u64 = 50_000;
const BURST: u64 = 256;
const LEAST: u64 = 50_000;
/// KiB that the process may grow by while it is flooded: connections that are measured cost some.
const LITTLE_MEMORY: u64 = 8 * 1024;

/// RELIABILITY 11: SYNs from addresses that are let in cost no memory and keep no client out; the kernel of the cell
/// sees none of them.
#[privileged_test]
fn r11_a_flood_keeps_nobody_out() -> Result<()> {
    let [answers, kernels] = flooded("late_binding: never", Floods::Syns)?;
    ensure!(answers > LEAST / 2, "{answers} answers");
    assert_eq!(kernels, 0, "cookies of the kernel");
    Ok(())
}

/// The same beside clients whose connections XDP opens.
#[privileged_test]
fn r11_a_flood_keeps_no_bound_client_out() -> Result<()> {
    let [answers, kernels] = flooded("", Floods::Syns)?;
    ensure!(answers > LEAST / 2, "{answers} answers");
    assert_eq!(kernels, 0, "cookies of the kernel");
    Ok(())
}

/// Hellos that guess the number of a SYN-ACK open no connection, and keep no client out.
#[privileged_test]
fn r11_forged_hellos_keep_no_client_out() -> Result<()> {
    let [answers, kernels] = flooded("", Floods::Hellos)?;
    ensure!(answers < LEAST / 2, "{answers} answers");
    assert_eq!(kernels, 0, "cookies of the kernel");
    Ok(())
}

/// The same where the kernel answers SYNs.
#[privileged_test]
fn r11_the_kernel_of_a_cell_answers_a_flood() -> Result<()> {
    let [_, kernels] = flooded("syn_cookies: never", Floods::Syns)?;
    // Without cookies it would keep out clients that it has not seen before.
    ensure!(kernels > LEAST / 2, "{kernels} cookies");
    Ok(())
}

/// What a station sends.
#[derive(Clone, Copy, Debug)]
enum Floods {
    Syns,
    Hellos,
}

/// Floods a service with these keys, and looks at others meanwhile; what the station that floods has received, and how many
/// cookies the kernel of the cell has sent.
fn flooded(keys: &'static str, floods: Floods) -> Result<[u64; 2]> {
    let is_long = std::env::var_os("LB_TEST_LONG").is_some();
    let time = Duration::from_secs(if is_long { 60 } else { 10 });
    let topology = Topology::poc()?;
    let _tellers = tellers(&topology)?;
    let mut lb = Lb::start(&topology, &config(&topology, keys))?;
    let [flooder, other] = &topology.clients[..] else {
        anyhow::bail!("there are two clients");
    };
    let (_, calm) = beside(other, || {
        thread::sleep(Duration::from_secs(2));
        Ok(())
    })?;
    let pid = lb.process().id();
    memory::forget_peak(pid)?;
    let before = memory::peak(pid)?;
    let sources = (120..250).map(|host| Ipv4Addr::new(192, 168, 203, host));
    let sources = sources.collect();
    let stations = [UNUSED, topology.mac(TENANT_NIC)?];
    let mut flood = match floods {
        Floods::Syns => Flood::new(stations, sources, SHARED),
        Floods::Hellos => {
            let hello = named(CAPTURED_NAME.as_bytes());
            Flood::guessing(stations, sources, SHARED, &hello)
        }
    };
    let port = RawPort::open(&flooder.netns, "eth0")?;

    let answers = || received(&flooder.netns);
    let already = answers()?;
    let start = Instant::now();
    let (_, measured) = beside(other, || {
        while start.elapsed() < time {
            flood.send(&port, BURST)?;
            let due = Duration::from_millis(flood.sent() * 1000 / RATE);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
        Ok(())
    })?;

    let peak = memory::peak(pid)?;
    let sent = flood.sent();
    let (answers, cookies) = (answers()? - already, cookies(&topology)?);
    println!(
        "{sent} {floods:?}, {answers} answers, {cookies} cookies of the kernel; before: {calm}, beside: {measured}, p99 {:.1} x as long, \
         asked for < 2 x; {before} KiB, at most {peak} KiB",
        measured.at(99).as_secs_f64() / calm.at(99).as_secs_f64()
    );
    ensure!(sent >= LEAST, "a flood of {sent}");
    ensure!(
        peak < before + LITTLE_MEMORY,
        "{before} KiB, at most {peak} KiB"
    );
    measured.ensure_quick()?;
    Ok([answers, cookies])
}

/// Frames that the NIC of a client has received.
fn received(netns: &Netns) -> Result<u64> {
    let links = links(netns)?;
    let nic = links.into_iter().find(|link| link.name == "eth0");
    Ok(nic.context("eth0")?.rx_packets)
}

/// SYN cookies that the kernel of the tenant's cell has sent.
fn cookies(topology: &Topology) -> Result<u64> {
    let cell = namespace::path(&cell::name(topology.run(), "tenant-a"));
    let mut read = Command::new("nsenter");
    read.arg(format!("--net={}", cell.display()));
    read.args(["cat", "/proc/net/netstat"]);
    let text = process::succeed(&mut read)?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (
        lines.next().context("names")?,
        lines.next().context("values")?,
    );
    let mut both = names.split(' ').zip(values.split(' '));
    let sent = both.find(|(name, _)| *name == "SyncookiesSent");
    Ok(sent.context("no such counter")?.1.parse()?)
}

/// How long handshakes took, the quickest first.
pub(crate) struct Measured(Vec<Duration>);

impl Measured {
    fn at(&self, percent: usize) -> Duration {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }

    pub(crate) fn ensure_quick(&self) -> Result<()> {
        ensure!(self.at(99) < QUICK, "{self}");
        Ok(())
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [half, most, all] = [50, 99, 100].map(|percent| self.at(percent));
        let count = self.0.len();
        write!(
            f,
            "{count} handshakes, p50 {half:.1?}, p99 {most:.1?}, max {all:.1?}"
        )
    }
}

/// Does `work` while `client` makes one connection after the other, none of which may fail: a hello
/// there, the backend's name back.
pub(crate) fn beside<T>(client: &Host, work: impl FnOnce() -> Result<T>) -> Result<(T, Measured)> {
    let hello = named(CAPTURED_NAME.as_bytes());
    let done = AtomicBool::new(false);
    let measure = || {
        let mut times = Vec::new();
        while !done.load(Ordering::Acquire) || times.is_empty() {
            let start = Instant::now();
            let reached = teller::ask(SHARED, &[&hello], PAUSE)?;
            times.push(start.elapsed());
            ensure!(
                reached.as_deref() == Some("a"),
                "{reached:?} after {} more",
                times.len()
            );
            thread::sleep(PAUSE);
        }
        times.sort_unstable();
        Ok(Measured(times))
    };
    thread::scope(|scope| {
        let measuring = scope.spawn(|| client.netns.inside(measure)?);
        let worked = work();
        done.store(true, Ordering::Release);
        let measured = measuring.join().expect("the clients do not panic");
        Ok((worked?, measured?))
    })
}

/// One on the first node, which is the pool `a`.
pub(crate) fn tellers(topology: &Topology) -> Result<Teller> {
    teller(&topology.nodes[0], "a")
}

/// One on a node, where its pool expects it.
pub(crate) fn teller(node: &Host, name: &str) -> Result<Teller> {
    Teller::start(&node.netns, SocketAddrV4::new(node.address, PORT), name)
}

/// The pool `a` for the name of captures, and more words for the key `sni`.
pub(crate) fn config(topology: &Topology, more: impl Into<Keys>) -> Config {
    let routes = json!([{ "names": [CAPTURED_NAME], "pool": "a" }]);
    crate::proxy::sni::config(topology, more.into().set("routes", routes))
}
