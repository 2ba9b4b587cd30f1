//! RELIABILITY 36: whatever scrapers do, clients are served and the operator has answers.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::{oracle::memory, product::lb::Lb, topology::Topology};

use super::page::{LISTEN, curl, page};
use crate::{
    flows::life::LIMIT,
    health::verdicts::{Site, wait_for},
};

/// Threads that open slow connections, and how many each has open at a time.
const SCRAPERS: usize = 40;
const EACH: usize = 40;
/// How long `lb status` may take.
const ANSWER: Duration = Duration::from_secs(2);
/// How long connections of clients may take in all.
const CLIENTS: Duration = Duration::from_secs(5);
/// The most bytes of a header that are taken off, in the socket or by `lb`.
const TAKEN: usize = 32 << 20;
/// Memory that abuse may cost, in KiB.
const MAX_MEMORY: u64 = 32 << 10;

/// How many slow connections there must have been; about 80 in a second get the place of another one.
fn enough() -> usize {
    match std::env::var_os("LB_TEST_LONG") {
        Some(_) => 10_000,
        None => 300,
    }
}

/// Slow connections until `stop`: each sends a piece of a request, and the oldest makes room for the next.
fn slow(stop: &AtomicBool, opened: &AtomicUsize) -> Result<()> {
    let to: SocketAddr = LISTEN.parse()?;
    let mut open = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match TcpStream::connect_timeout(&to, Duration::from_millis(100)) {
            Ok(mut stream) => {
                // It may have been closed for another one.
                let _closed = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.");
                opened.fetch_add(1, Ordering::Relaxed);
                open.push(stream);
                if open.len() > EACH {
                    open.remove(0);
                }
            }
            Err(_) => thread::sleep(Duration::from_millis(10)),
        }
    }
    Ok(())
}

#[privileged_test]
fn r36_slow_scrapers_and_huge_headers_cost_clients_and_the_operator_nothing() -> Result<()> {
    let topology = Topology::poc()?;
    let site = Site::new(&topology, 2)?;
    let config = site.http("").set("admin.http.listen", LISTEN);
    let lb = Lb::start(&topology, &config)?;
    wait_for(&lb, &["up", "up"], LIMIT)?;
    page(&topology.lb)?;
    let (stop, opened) = (AtomicBool::new(false), AtomicUsize::new(0));
    let memory_before = memory::now(lb.id())?;
    memory::forget_peak(lb.id())?;
    let netns = &topology.lb;
    thread::scope(|scope| {
        let scrapers: Vec<_> = (0..SCRAPERS)
            .map(|_| scope.spawn(|| netns.inside(|| slow(&stop, &opened))))
            .collect();
        let measured = beside(&lb, &site, &opened);
        stop.store(true, Ordering::Relaxed);
        for scraper in scrapers {
            let ended = scraper.join().ok().context("a scraper panicked")?;
            ended??;
        }
        measured
    })?;
    println!("{} slow connections", opened.load(Ordering::Relaxed));
    // Nothing of them is left.
    page(netns)?;

    let (taken, answer) = netns.inside(huge_header)??;
    println!("{taken} bytes of a header, {answer:?}");
    ensure!(taken < TAKEN, "{taken} bytes");
    ensure!(answer.is_empty() || answer.contains(" 431 "), "{answer}");
    let (status, _) = curl(
        netns,
        &["-X", "POST", "-d", "x", &format!("http://{LISTEN}/metrics")],
    )?;
    assert_eq!(status, 405);
    page(netns)?;
    assert_eq!(site.who(1)?.len(), 1);
    let grown = memory::peak(lb.id())?.saturating_sub(memory_before);
    println!("{grown} KiB more at most");
    ensure!(grown < MAX_MEMORY, "{grown} KiB");
    lb.down()
}

/// Measures clients and the operator beside slow scrapers, until there were enough of these.
fn beside(lb: &Lb<'_>, site: &Site<'_>, opened: &AtomicUsize) -> Result<()> {
    let begun = Instant::now();
    let mut rounds = 0;
    let limit = LIMIT * u32::try_from(enough() / 100)?;
    while rounds < 3 || opened.load(Ordering::Relaxed) < enough() {
        ensure!(begun.elapsed() < limit, "only {opened:?} slow connections");
        let start = Instant::now();
        assert_eq!(site.who(20)?.values().sum::<usize>(), 20);
        let clients = start.elapsed();
        let start = Instant::now();
        lb.tell(&["status"])?.done()?;
        let status = start.elapsed();
        println!("20 connections took {clients:?}, lb status {status:?}");
        ensure!(clients < CLIENTS, "20 connections took {clients:?}");
        ensure!(status < ANSWER, "lb status took {status:?}");
        rounds += 1;
    }
    Ok(())
}

/// Sends a header of a GB, as far as it is taken: how many bytes were, and the answer if there was one.
fn huge_header() -> Result<(usize, String)> {
    let mut stream = TcpStream::connect(LISTEN)?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ")?;
    let mut taken = 0;
    while taken < 1 << 30
        && let Ok(bytes) = stream.write(&[b'1'; 65_536])
    {
        taken += bytes;
    }
    let mut answer = Vec::new();
    // A server that did not read all of it resets.
    let _reset = stream.read_to_end(&mut answer);
    Ok((taken, String::from_utf8_lossy(&answer).into_owned()))
}
