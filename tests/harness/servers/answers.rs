//! A backend's health endpoint, which answers what a test wants.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{netns::Netns, seeded_rng::Dice};

/// Instead of a status: accepts, and says nothing.
const SILENT: u16 = 1;
/// Instead of a status: does not listen.
const REFUSING: u16 = 2;
/// Instead of a status: the thread ends.
const OVER: u16 = 3;
/// Instead of a status: 200 to two requests of three, and 500 to the others, in no order.
const DICE: u16 = 4;
/// How often it looks what it is to do.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long it waits for a request.
const READ: Duration = Duration::from_secs(2);

/// An HTTP server with one answer to everything; it ends when it is dropped.
#[derive(Debug)]
pub struct Answers {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// What it does: a status, or one of the constants.
    does: AtomicU16,
    /// What it is doing.
    doing: AtomicU16,
    /// Requests so far.
    asked: AtomicU64,
}

impl Answers {
    /// Answers at an address of `netns` with 200, from when this returns.
    ///
    /// # Errors
    ///
    /// When the port is taken.
    pub fn start(netns: &Netns, address: impl Into<SocketAddr>) -> Result<Self> {
        let address = address.into();
        let shared = Arc::new(Shared::default());
        shared.does.store(200, Ordering::SeqCst);
        let for_thread = Arc::clone(&shared);
        let thread = netns.spawn(move || serve(address, &for_thread))?;
        let answers = Self {
            shared,
            thread: Some(thread),
        };
        answers.wait();
        Ok(answers)
    }

    /// From now on every request gets this status.
    pub fn answer(&self, status: u16) {
        self.turn(status);
    }

    /// From now on one of three requests gets 500, in no order: one of three servers behind the node is
    /// not ready, and which one answers is open.
    pub fn throw_dice(&self) {
        self.turn(DICE);
    }

    /// From now on connections are accepted and nothing is said.
    pub fn fall_silent(&self) {
        self.turn(SILENT);
    }

    /// From now on connections are refused.
    pub fn refuse(&self) {
        self.turn(REFUSING);
    }

    /// Requests and silent connections so far.
    pub fn asked(&self) -> u64 {
        self.shared.asked.load(Ordering::SeqCst)
    }

    fn turn(&self, to: u16) {
        self.shared.does.store(to, Ordering::SeqCst);
        self.wait();
    }

    fn wait(&self) {
        let Shared { does, doing, .. } = &*self.shared;
        let is_over = || self.thread.as_ref().is_some_and(JoinHandle::is_finished);
        while doing.load(Ordering::SeqCst) != does.load(Ordering::SeqCst) && !is_over() {
            thread::sleep(POLL_INTERVAL);
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.shared.does.store(OVER, Ordering::SeqCst);
        if let Some(thread) = self.thread.take()
            && !matches!(thread.join(), Ok(Ok(())))
        {
            crate::process::complain(format_args!("a health endpoint has failed"));
        }
    }
}

fn serve(address: SocketAddr, shared: &Shared) -> Result<()> {
    let mut listener = None;
    let mut held = Vec::new();
    let mut dice = Dice::new(seed(address.ip()));
    loop {
        let does = shared.does.load(Ordering::SeqCst);
        match does {
            OVER => return Ok(()),
            REFUSING => {
                listener = None;
                held.clear();
            }
            _ if listener.is_none() => listener = Some(listen(address)?),
            SILENT => {}
            _ => held.clear(),
        }
        shared.doing.store(does, Ordering::SeqCst);
        let accepted = listener.as_ref().map(TcpListener::accept);
        let Some(Ok((connection, _))) = accepted else {
            thread::sleep(POLL_INTERVAL);
            continue;
        };
        shared.asked.fetch_add(1, Ordering::SeqCst);
        if does == SILENT {
            held.push(connection);
        } else {
            let status = match (does, dice.below(3)) {
                (DICE, 0) => 500,
                (DICE, _) => 200,
                (status, _) => status,
            };
            // The client may go away at any time.
            let _gone = reply(&connection, status);
        }
    }
}

/// Each address has dice of its own.
fn seed(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.segments();
            [a, b, c, d]
                .into_iter()
                .fold(0, |seed, word| seed << 16 | u64::from(word))
        }
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| format!("listen at {address}"))?;
    listener.set_nonblocking(true).context("accept in turn")?;
    Ok(listener)
}

fn reply(mut connection: &TcpStream, status: u16) -> Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(READ))?;
    let mut request: Vec<u8> = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match connection.read(&mut part) {
            Ok(0) => return Ok(()),
            Ok(bytes) => request.extend(part.iter().take(bytes)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    connection.write_all(answer.as_bytes())?;
    Ok(())
}
