//! Short connections in great number: a word, the word back, and the end that was asked for.
//!
//! Both sides count for themselves, and no connection of a client shares its address and port with
//! another one until all ports have had their turn.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::{
    socket::{setsockopt, sockopt},
    time::{TimeVal, TimeValLike as _},
};

use crate::{process, topology::Host, traffic::client};

/// How long a word may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How often a server without connections looks whether it is to end, in milliseconds.
const LOOK_MS: i64 = 100;
/// The first port of a client.
const FIRST_PORT: u16 = 10_000;
/// Which byte of a word says who closes.
const CLOSER: usize = 4;

type Word = [u8; 8];

/// Which end closes first, and has TIME_WAIT then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Closer {
    /// The end that connected.
    Client,
    /// The end that accepted.
    Backend,
}

/// A server for as many of them at a time as it has threads.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    stopping: AtomicBool,
    accepted: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Server {
    /// Listens at `port` of `host`.
    ///
    /// # Errors
    ///
    /// When the port is taken.
    pub fn start(host: &Host, port: u16, threads: usize) -> Result<Self> {
        let address = SocketAddrV4::new(host.address, port);
        host.netns.keep_flows_on_a_cpu("eth0")?;
        let listener = host
            .netns
            .inside(|| TcpListener::bind(address))?
            .with_context(|| format!("listen at {address} of {}", host.name))?;
        setsockopt(
            &listener,
            sockopt::ReceiveTimeout,
            &TimeVal::milliseconds(LOOK_MS),
        )
        .context("accept with a deadline")?;
        let (listener, shared) = (Arc::new(listener), Arc::<Shared>::default());
        let start = |_| {
            let (listener, shared) = (Arc::clone(&listener), Arc::clone(&shared));
            host.netns.spawn(move || accept(&listener, &shared))
        };
        Ok(Self {
            threads: (0..threads).map(start).collect::<Result<_>>()?,
            shared,
        })
    }

    /// How many connections there were.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Acquire)
    }

    /// What went wrong with them.
    pub fn failures(&self) -> Vec<String> {
        locked(&self.shared.failures).clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => process::complain(format_args!("a server: {error:#}")),
                Err(_) => process::complain(format_args!("a server panicked")),
            }
        }
    }
}

fn accept(listener: &TcpListener, shared: &Shared) -> Result<()> {
    while !shared.stopping.load(Ordering::Acquire) {
        let (stream, peer) = match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            accepted => accepted.context("accept")?,
        };
        shared.accepted.fetch_add(1, Ordering::AcqRel);
        if let Err(error) = serve(&stream) {
            locked(&shared.failures).push(format!("{peer}: {error:#}"));
        }
    }
    Ok(())
}

fn serve(mut stream: &TcpStream) -> Result<()> {
    // The listener's deadline is inherited.
    stream
        .set_read_timeout(Some(TIMEOUT))
        .context("set the read timeout")?;
    let mut word = Word::default();
    stream.read_exact(&mut word).context("receive a word")?;
    stream.write_all(&reply(word)).context("reply")?;
    end(stream, word[CLOSER] == 1)
}

/// Ends a connection that carries nothing more, before or after the other side has done so.
fn end(mut stream: &TcpStream, first: bool) -> Result<()> {
    if first {
        stream.shutdown(Shutdown::Write).context("close")?;
    }
    let rest = stream.read(&mut [0]).context("wait for the other's end")?;
    ensure!(rest == 0, "more than a word came");
    Ok(())
}

/// What the server makes of a word: something else, so that no echo on the way is taken for it.
fn reply(word: Word) -> Word {
    word.map(|byte| !byte)
}

/// Connections that a client makes.
#[derive(Clone, Copy, Debug)]
pub struct Load<'l> {
    /// Where to.
    pub to: SocketAddrV4,
    /// The addresses that they come from in turn; the client has them.
    pub sources: &'l [Ipv4Addr],
    /// How many ports of each.
    pub ports: u16,
    /// How many connections in all.
    pub count: u32,
    /// How many at a time.
    pub workers: usize,
    /// How many in a second at most; none: as many as go.
    pub rate: Option<u32>,
    /// The end that closes the connection with this number.
    pub closer: fn(u32) -> Closer,
}

/// What came of a load.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// From the first SYN to the word that came back, in order of length.
    pub times: Vec<Duration>,
    /// What went wrong, with the number of the connection.
    pub failures: Vec<String>,
    /// From the first to the last.
    pub elapsed: Duration,
}

impl Outcome {
    /// The time that so many of 1000 connections do not exceed.
    pub fn permille(&self, part: usize) -> Duration {
        let place = self.times.len() * part / 1000;
        let last = self.times.len().saturating_sub(1);
        self.times.get(place.min(last)).copied().unwrap_or_default()
    }

    /// Fails if one of them did.
    ///
    /// # Errors
    ///
    /// With the first of them.
    pub fn ensure_none_failed(&self) -> Result<()> {
        let Self {
            times, failures, ..
        } = self;
        let first: Vec<_> = failures.iter().take(10).collect();
        let all = times.len() + failures.len();
        ensure!(
            failures.is_empty(),
            "{} of {all} failed: {first:#?}",
            failures.len()
        );
        Ok(())
    }
}

impl Load<'_> {
    /// Makes all of them.
    ///
    /// # Errors
    ///
    /// When the client's namespace cannot be entered.
    pub fn run(&self, client: &Host) -> Result<Outcome> {
        let (next, start) = (AtomicU32::new(0), Instant::now());
        let outcome = Mutex::new(Outcome::default());
        let work = || loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            self.wait_for_turn(number, start);
            let made = self.connect(number);
            let mut outcome = locked(&outcome);
            match made {
                Ok(time) => outcome.times.push(time),
                Err(error) => outcome.failures.push(format!("{number}: {error:#}")),
            }
        };
        client.netns.inside(|| {
            thread::scope(|scope| {
                for _ in 0..self.workers {
                    scope.spawn(work);
                }
            });
        })?;
        let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcome.times.sort_unstable();
        outcome.elapsed = start.elapsed();
        Ok(outcome)
    }

    fn wait_for_turn(&self, number: u32, start: Instant) {
        if let Some(rate) = self.rate {
            let turn = Duration::from_secs(1).mul_f64(f64::from(number) / f64::from(rate));
            thread::sleep(turn.saturating_sub(start.elapsed()));
        }
    }

    /// One connection: how long it took until the word was back.
    fn connect(&self, number: u32) -> Result<Duration> {
        let closer = (self.closer)(number);
        let mut word = Word::default();
        word[..CLOSER].copy_from_slice(&number.to_be_bytes());
        word[CLOSER] = u8::from(closer == Closer::Backend);

        let start = Instant::now();
        let mut stream = client::open_from(Some(self.source(number)), self.to)?;
        stream.write_all(&word).context("send a word")?;
        let mut back = Word::default();
        stream.read_exact(&mut back).context("wait for the reply")?;
        let elapsed = start.elapsed();

        ensure!(back == reply(word), "{back:?} came of {word:?}");
        end(&stream, closer == Closer::Client)?;
        Ok(elapsed)
    }

    fn source(&self, number: u32) -> SocketAddrV4 {
        let number = usize::try_from(number).unwrap_or_default();
        let sources = self.sources.len();
        let port = number / sources % usize::from(self.ports);
        let port = FIRST_PORT + u16::try_from(port).unwrap_or_default();
        SocketAddrV4::new(self.sources[number % sources], port)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
