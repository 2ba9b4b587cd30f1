//! The host of the generator: it sends into the tenant's network and receives in that of the backends.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd as _,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use lb_tests::product::cpu;
use nix::sys::socket::{MsgFlags, recv};

use super::{
    line::{Answer, Ask, Greeting, say},
    nic,
};
use crate::{
    machine::Machine,
    path::programs::Programs,
    path::segments::{CALL, Came, Stream, parts},
    path::wire::joined,
};

/// How long nothing may come until no more is waited for.
const QUIET: Duration = Duration::from_millis(100);
/// How often it is looked what has come.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// How long a bench may leave the connection without a question: while it starts lb, nothing is asked.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Its words.
#[derive(Debug, clap::Args)]
pub(crate) struct Far {
    /// The interface in the network of the clients
    #[arg(long, value_name = "NIC")]
    from: String,
    /// The interface in the network of the backends, which has their addresses
    #[arg(long, value_name = "NIC")]
    to: String,
    /// Where it takes requests; a host that reaches it can have segments sent, so not on a network of others
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: SocketAddr,
    /// How many CPUs send: more than one where one is not enough for the path
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    cpus: u8,
}

/// Sends and receives for each bench that connects, until it is ended.
///
/// # Errors
///
/// When an interface takes no program, or the address is taken.
pub(crate) fn serve(far: &Far) -> Result<()> {
    ensure!(
        far.from != far.to,
        "--from and --to are one interface: the networks of clients and backends need one each"
    );
    let (from, to) = (nic::find(&far.from)?, nic::find(&far.to)?);
    let mut checks = Programs::new()?;
    for (program, name, link) in [("back", &far.from, &from), ("sink", &far.to, &to)] {
        checks
            .attach(program, link.ifindex)
            .map_err(|error| nic::refused(name, error))?;
    }
    let machine = Machine::look()?;
    let mut ends = Ends {
        checks,
        senders: senders(far.cpus.into())?,
        port: from.ifindex,
        mac: from.mac.bytes(),
    };
    let greeting = Greeting {
        kernel: machine.kernel,
        cpu: machine.cpu,
        senders: ends.senders.len(),
    };
    let listener =
        TcpListener::bind(far.listen).with_context(|| format!("listen at {}", far.listen))?;
    writeln!(io::stdout(), "ready: {} -> {}", far.from, far.to)?;
    loop {
        let (peer, address) = listener.accept().context("be asked")?;
        // One that goes away is no reason to end.
        if let Err(error) = ends.attend(&peer, &greeting) {
            lb_tests::process::complain(format_args!("{address}: {error:#}"));
        }
    }
}

/// Programs for so many CPUs, the last ones: a NIC's interrupts are on the first ones more often.
fn senders(count: usize) -> Result<Vec<Sender>> {
    let mut cpus = cpu::all()?;
    let spare = cpus.len().checked_sub(count);
    let spare = spare.with_context(|| format!("--cpus {count}: there are {}", cpus.len()))?;
    let ours = cpus.split_off(spare).into_iter();
    ours.map(|cpu| {
        let programs = Programs::new()?;
        Ok(Sender { programs, cpu })
    })
    .collect()
}

/// One CPU that sends.
struct Sender {
    programs: Programs,
    cpu: usize,
}

struct Ends {
    /// The programs at both interfaces, which check what comes.
    checks: Programs,
    senders: Vec<Sender>,
    /// Index of the interface that is sent from.
    port: u32,
    /// Its address.
    mac: [u8; 6],
}

impl Ends {
    fn attend(&mut self, peer: &TcpStream, greeting: &Greeting) -> Result<()> {
        peer.set_read_timeout(Some(TIMEOUT))?;
        say(peer, greeting)?;
        for line in BufReader::new(peer).lines() {
            let line = line.context("hear what is asked")?;
            let ask: Ask = serde_json::from_str(&line).context("understand what is asked")?;
            let answer = self.send(&ask, peer).map_err(|error| format!("{error:#}"));
            say(peer, &answer)?;
        }
        Ok(())
    }

    fn send(&mut self, ask: &Ask, peer: &TcpStream) -> Result<Answer> {
        ensure!(
            (60..=1514).contains(&ask.length),
            "frames of {} bytes are none of Ethernet's",
            ask.length
        );
        let stream = Stream {
            macs: joined(ask.gateway, self.mac),
            ..ask.stream
        };
        self.checks.expect(&stream, &ask.wanted)?;
        let before = self.checks.came()?;
        let parts = parts(&stream, ask.segments, self.senders.len())?;
        for (sender, (stream, _)) in self.senders.iter_mut().zip(&parts) {
            sender.programs.expect(stream, &ask.wanted)?;
        }
        let begun = Instant::now();
        let port = self.port;
        thread::scope(|scope| {
            let senders = self.senders.iter_mut().zip(&parts);
            let threads: Vec<_> = senders
                .map(|(sender, &(_, segments))| {
                    scope.spawn(move || sender.send(port, segments, ask.length, peer))
                })
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let ended = thread.join();
                ended.unwrap_or_else(|_| Err(anyhow::anyhow!("a sender has panicked")))
            })
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let answers = u64::from(ask.wanted.answers);
        let came = self.wait(&before, u64::from(ask.segments) * (1 + answers))?;
        Ok(Answer { came, seconds })
    }

    /// Waits until so many segments have come, or no more do.
    fn wait(&mut self, before: &Came, all: u64) -> Result<Came> {
        let mut last = self.checks.came()?;
        let mut since = Instant::now();
        while last.since(before).all() < all && since.elapsed() < QUIET {
            thread::sleep(POLL_INTERVAL);
            let now = self.checks.came()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last.since(before))
    }
}

impl Sender {
    fn send(&mut self, port: u32, segments: u32, length: usize, peer: &TcpStream) -> Result<()> {
        cpu::bind(self.cpu)?;
        let mut left = segments;
        while left > 0 {
            ensure!(!is_gone(peer), "the bench has hung up");
            let now = left.min(CALL);
            self.programs.make("generate", port, now, length)?;
            left -= now;
        }
        Ok(())
    }
}

/// Whether no bench waits for an answer any more.
fn is_gone(peer: &TcpStream) -> bool {
    let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
    recv(peer.as_raw_fd(), &mut [0], flags) == Ok(0)
}
