//! New connections at a fixed pace, none of which waits for another one: which of them the first SYN has opened.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket},
};

use crate::{topology::Host, traffic::client::Answer};

/// From one SYN to the next.
pub const PACE: Duration = Duration::from_millis(10);
/// Before this there is no second SYN: Linux sends it after a second.
const FIRST_SYN: Duration = Duration::from_millis(900);
/// Between two looks at connections.
const LOOK: Duration = Duration::from_millis(2);
/// How long those that are not open yet may take when no more are begun.
const LAST: Duration = Duration::from_secs(5);

/// One connection: a question to an echo server, and its answer.
#[derive(Clone, Debug)]
pub struct Dialed {
    /// When its first SYN was sent.
    pub begun: Instant,
    /// How long it took to be open, if it was.
    pub opened: Option<Duration>,
    /// What answered, and what it saw.
    pub answer: Option<Answer>,
    /// Why there is no answer, if the reason is another one than silence.
    pub failed: Option<String>,
}

impl Dialed {
    /// Whether its first SYN was answered.
    pub fn is_by_first_syn(&self) -> bool {
        self.opened.is_some_and(|opened| opened < FIRST_SYN)
    }
}

/// A thread that begins connections.
#[derive(Debug)]
pub struct Dialer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Dialed>>>,
}

impl Dialer {
    /// Begins with them.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn start(from: &Host, to: SocketAddrV4) -> Result<Self> {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = from.netns.spawn(move || dial(to, &stopped))?;
        Ok(Self { stop, thread })
    }

    /// Begins no more, and waits for the last ones; all, in the order of their SYNs.
    ///
    /// # Errors
    ///
    /// When there was no socket for one.
    pub fn end(self) -> Result<Vec<Dialed>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.join();
        ended.map_err(|_| anyhow!("the dialer panicked"))?
    }
}

fn dial(to: SocketAddrV4, stop: &AtomicBool) -> Result<Vec<Dialed>> {
    let (mut done, mut pending) = (Vec::new(), Vec::new());
    let mut next = Instant::now();
    let mut last = next;
    while !stop.load(Ordering::Relaxed) || (!pending.is_empty() && last.elapsed() < LAST) {
        if !stop.load(Ordering::Relaxed) {
            last = Instant::now();
            if next <= last {
                pending.push(Pending::begin(to)?);
                // What was missed is not made up for.
                next = last.max(next + PACE);
            }
        }
        pending.retain_mut(|one: &mut Pending| {
            let is_done = one.step();
            if is_done {
                done.push(one.dialed.clone());
            }
            !is_done
        });
        thread::sleep(LOOK);
    }
    done.extend(pending.into_iter().map(|one| one.dialed));
    done.sort_by_key(|dialed| dialed.begun);
    Ok(done)
}

#[derive(Debug)]
struct Pending {
    stream: TcpStream,
    heard: Vec<u8>,
    dialed: Dialed,
}

impl Pending {
    fn begin(to: SocketAddrV4) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
        let dialed = Dialed {
            begun: Instant::now(),
            opened: None,
            answer: None,
            failed: None,
        };
        match connect(fd.as_raw_fd(), &SockaddrIn::from(to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(error) => return Err(error).context("begin a connection"),
        }
        Ok(Self {
            stream: TcpStream::from(fd),
            heard: Vec::new(),
            dialed,
        })
    }

    /// Does what can be done now; whether nothing is left to do.
    fn step(&mut self) -> bool {
        match self.try_step() {
            Ok(is_done) => is_done,
            Err(error) => {
                self.dialed.failed = Some(format!("{error:#}"));
                true
            }
        }
    }

    fn try_step(&mut self) -> Result<bool> {
        if let Some(error) = self.stream.take_error()? {
            return Err(error.into());
        }
        if self.dialed.opened.is_none() {
            if self.stream.peer_addr().is_err() {
                return Ok(false);
            }
            self.dialed.opened = Some(self.dialed.begun.elapsed());
            self.stream.write_all(b"who\n").context("ask")?;
        }
        let mut some = [0; 64];
        let length = match self.stream.read(&mut some) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            read => read.context("read the answer")?,
        };
        self.heard
            .extend_from_slice(some.get(..length).unwrap_or_default());
        if length > 0 && !self.heard.ends_with(b"\n") {
            return Ok(false);
        }
        let line = String::from_utf8_lossy(&self.heard);
        self.dialed.answer = Some(Answer::read(&line)?);
        Ok(true)
    }
}
