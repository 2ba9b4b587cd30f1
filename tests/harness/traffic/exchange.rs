//! Bytes that go both ways over a connection all the time, each of which is looked at.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{poll, seeded_rng::Dice, traffic::conn_pair::Pair};

/// Bytes that are written in one go, and the pause after them.
const BLOCK: usize = 16 * 1024;
const PAUSE: Duration = Duration::from_millis(20);
/// After so many bytes they come again. A prime: nothing that goes wrong goes wrong by that many.
const PERIOD: usize = 65_521;
/// A connection on which nothing comes for this long does not live any more.
const SILENCE: Duration = Duration::from_secs(20);

/// A connection with bytes going both ways. Dropped, it ends without a look at how.
#[derive(Debug)]
pub struct Exchange {
    stop: Arc<AtomicBool>,
    /// Bytes that have come to the client, and to the backend.
    come: [Arc<AtomicU64>; 2],
    threads: Vec<JoinHandle<Result<u64>>>,
}

impl Exchange {
    /// Begins on a connection on which no other bytes are sent.
    ///
    /// # Errors
    ///
    /// When a socket or thread is refused.
    pub fn start(pair: Pair) -> Result<Self> {
        let Pair { client, server, .. } = pair;
        let mut exchange = Self {
            stop: Arc::default(),
            come: [Arc::default(), Arc::default()],
            threads: Vec::new(),
        };
        let port = client.local_addr().context("its address")?.port();
        for (way, from, to) in [(0, &server, &client), (1, &client, &server)] {
            let bytes = bytes(u64::from(port) * 2 + way);
            let mut sender = from.try_clone().context("share a socket")?;
            let mut receiver = to.try_clone().context("share a socket")?;
            receiver.set_read_timeout(Some(SILENCE))?;
            let (stop, said) = (Arc::clone(&exchange.stop), bytes.clone());
            exchange.spawn(move || send(&mut sender, &said, &stop))?;
            let (stop, [client, server]) = (Arc::clone(&exchange.stop), exchange.come.clone());
            let come = if way == 0 { client } else { server };
            exchange.spawn(move || receive(&mut receiver, &bytes, (&stop, &come)))?;
        }
        Ok(exchange)
    }

    /// Waits until bytes have gone both ways that were written after this was called.
    ///
    /// # Errors
    ///
    /// When the connection has ended, other bytes have come, or none in time.
    pub fn goes_on(&self) -> Result<()> {
        let come = || {
            self.come
                .each_ref()
                .map(|come| come.load(Ordering::Acquire))
        };
        // What is on its way already, and what is in buffers, is less.
        let wanted = come().map(|come| come + 4 * u64::try_from(BLOCK).unwrap_or_default());
        poll::until("bytes both ways", SILENCE, || {
            ensure!(!self.is_over(), "an exchange has ended");
            let come = come();
            Ok((come[0] >= wanted[0] && come[1] >= wanted[1]).then_some(()))
        })
    }

    fn is_over(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Ends it; how many bytes have gone.
    ///
    /// # Errors
    ///
    /// When it has ended before, or other bytes have come than went.
    pub fn end(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Release);
        let mut all = 0;
        for thread in self.threads.drain(..) {
            let bytes = thread.join();
            all += bytes.map_err(|_| anyhow!("an exchange panicked"))??;
        }
        Ok(all)
    }

    fn spawn(&mut self, work: impl FnOnce() -> Result<u64> + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().spawn(work);
        self.threads.push(thread.context("start a thread")?);
        Ok(())
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

/// Two periods of bytes that no other connection and way has.
fn bytes(seed: u64) -> Vec<u8> {
    let mut dice = Dice::new(seed);
    let byte = || u8::try_from(dice.below(256)).unwrap_or_default();
    let once: Vec<u8> = std::iter::repeat_with(byte).take(PERIOD).collect();
    once.repeat(2)
}

/// Writes until it is to stop, and closes this side; none of these bytes count.
fn send(to: &mut TcpStream, bytes: &[u8], stop: &AtomicBool) -> Result<u64> {
    let mut at = 0;
    while !stop.load(Ordering::Acquire) {
        let block = bytes.get(at..at + BLOCK).context("two periods")?;
        to.write_all(block).context("send")?;
        at = (at + BLOCK) % PERIOD;
        thread::sleep(PAUSE);
    }
    to.shutdown(Shutdown::Write).context("close this side")?;
    Ok(0)
}

fn receive(
    from: &mut TcpStream,
    bytes: &[u8],
    (stop, come): (&AtomicBool, &AtomicU64),
) -> Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut all: u64 = 0;
    loop {
        let read = from.read(&mut block);
        let read = read.with_context(|| format!("receive; {all} bytes have come"))?;
        if read == 0 {
            ensure!(stop.load(Ordering::Acquire), "closed after {all} bytes");
            return Ok(all);
        }
        let at = usize::try_from(all % u64::try_from(PERIOD)?)?;
        let same = bytes.get(at..at + read) == block.get(..read);
        ensure!(same, "other bytes after {all}");
        all += u64::try_from(read)?;
        come.store(all, Ordering::Release);
    }
}
