//! A load that tells what it lost: connections that say a byte every 10 ms, connections that come and go,
//! datagrams with numbers.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddrV4, UdpSocket},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{
    servers::teller::ask,
    topology::Host,
    traffic::{client, hello::named},
};

/// From one byte or datagram to the next, and from one connection to the next.
const PAUSE: Duration = Duration::from_millis(10);
/// How long an answer to a byte may take before its connection counts as lost: longer than what TCP
/// waits after a few losses in a row.
const TIMEOUT: Duration = Duration::from_secs(20);
/// After this a datagram counts as lost.
const LATE: Duration = Duration::from_millis(500);

/// What came of one kind of load since it was asked last.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Bytes, connections or datagrams that were answered.
    pub done: u64,
    /// Those that were not: lost, refused, without an answer.
    pub failed: u64,
    /// The longest time between two that were.
    pub longest: Duration,
    /// Why the first one failed.
    pub why: Option<String>,
}

/// One kind of load: its threads end with it.
#[derive(Debug)]
pub struct Load {
    /// What it is called in reports.
    pub name: &'static str,
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<()>>>,
}

/// What a thread of it works with.
#[derive(Clone, Debug)]
struct Meter {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
}

impl Meter {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Counts what came of one attempt; `last` is when the one before had its answer.
    fn count(&self, result: Result<()>, last: &mut Instant) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.longest = tally.longest.max(last.elapsed());
        match result {
            Ok(()) => {
                tally.done += 1;
                *last = Instant::now();
            }
            Err(error) => {
                tally.failed += 1;
                tally.why.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }
}

impl Load {
    /// So many connections to an echo server behind `to`, each of which sends a byte and waits for it,
    /// again and again; one that breaks has failed, and is not opened again.
    ///
    /// # Errors
    ///
    /// When one cannot be opened.
    pub fn streams(from: &Host, to: SocketAddrV4, count: usize) -> Result<Self> {
        let mut load = Self::new("long connections");
        for _ in 0..count {
            let mut stream = from.netns.inside(|| client::open(None, to))??;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(b"echo\n").context("say what it is for")?;
            load.start(from, move |meter| {
                let mut last = Instant::now();
                while meter.goes_on() {
                    let mut talk = || -> Result<()> {
                        stream.write_all(b"x").context("send a byte")?;
                        stream.read_exact(&mut [0]).context("hear it back")
                    };
                    let result = talk();
                    let is_lost = result.is_err();
                    meter.count(result, &mut last);
                    if is_lost {
                        return;
                    }
                    thread::sleep(PAUSE);
                }
            })?;
        }
        Ok(load)
    }

    /// One connection after the other to an echo server behind `to`.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn connects(name: &'static str, from: &Host, to: SocketAddrV4) -> Result<Self> {
        Self::again(name, from, move || {
            let stream = client::open(None, to)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            (&stream).write_all(b"who\n").context("ask")?;
            let mut line = String::new();
            let read = BufReader::new(&stream).read_line(&mut line);
            ensure!(read.context("hear the answer")? > 0, "no answer");
            Ok(())
        })
    }

    /// One connection after the other to the server that has this name at a shared VIP.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn named(from: &Host, to: SocketAddrV4, name: &str) -> Result<Self> {
        let hello = named(name.as_bytes());
        Self::again("connections to the shared VIP", from, move || {
            let who = ask(to, &[&hello], Duration::ZERO)?;
            who.map(drop).context("closed without an answer")
        })
    }

    /// One datagram after the other, each with a number that must come back.
    ///
    /// # Errors
    ///
    /// When there is no socket or thread.
    pub fn datagrams(from: &Host, to: SocketAddrV4) -> Result<Self> {
        let at = (from.address, 0);
        let socket = from.netns.inside(|| UdpSocket::bind(at))??;
        socket.set_read_timeout(Some(LATE))?;
        let mut number = 0_u64;
        Self::again("datagrams", from, move || {
            number += 1;
            socket.send_to(&number.to_be_bytes(), to).context("send")?;
            let begun = Instant::now();
            while begun.elapsed() < LATE {
                let mut heard = [0; 8];
                socket.recv(&mut heard).context("no answer")?;
                // Those before it may come late.
                if u64::from_be_bytes(heard) == number {
                    return Ok(());
                }
            }
            Err(anyhow!("only late answers"))
        })
    }

    /// How many came through since [`Self::take`] was asked last.
    pub fn done(&self) -> u64 {
        let tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.done
    }

    /// What has come of it since this was asked last.
    pub fn take(&self) -> Tally {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *tally)
    }

    /// Ends it.
    ///
    /// # Errors
    ///
    /// When one of its threads has failed.
    pub fn end(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| anyhow!("a load panicked"))??;
        }
        Ok(())
    }

    fn new(name: &'static str) -> Self {
        Self {
            name,
            tally: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        }
    }

    fn again(
        name: &'static str,
        from: &Host,
        mut attempt: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let mut load = Self::new(name);
        load.start(from, move |meter| {
            let mut last = Instant::now();
            while meter.goes_on() {
                meter.count(attempt(), &mut last);
                thread::sleep(PAUSE);
            }
        })?;
        Ok(load)
    }

    fn start(&mut self, from: &Host, work: impl FnOnce(&Meter) + Send + 'static) -> Result<()> {
        let meter = Meter {
            tally: Arc::clone(&self.tally),
            stop: Arc::clone(&self.stop),
        };
        let work = move || {
            work(&meter);
            Ok(())
        };
        self.threads.push(from.netns.spawn(work)?);
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A server that gives each datagram back; it ends with this.
#[derive(Debug)]
pub struct Mirror(Arc<AtomicBool>);

impl Mirror {
    /// Listens at an address of a host.
    ///
    /// # Errors
    ///
    /// When the port is taken.
    pub fn start(host: &Host, port: u16) -> Result<Self> {
        let socket = host
            .netns
            .inside(|| UdpSocket::bind((host.address, port)))??;
        socket.set_read_timeout(Some(LATE))?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        host.netns.spawn(move || {
            let mut datagram = [0; 64];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut datagram) {
                    // A server that is not there any more is no failure of ours.
                    let _gone = socket.send_to(datagram.get(..length).unwrap_or_default(), from);
                }
            }
            Ok(())
        })?;
        Ok(Self(stop))
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
