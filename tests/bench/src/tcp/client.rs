//! The end that asks: a process of its own in the client's namespace, which checks every byte that comes back.

use std::{
    cell::{Cell, RefCell},
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    rc::Rc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpSocket,
    runtime,
    task::{JoinSet, LocalSet},
    time::timeout,
};

use crate::tcp::{
    answer::{self, Content, Speech, Wish},
    http,
};

/// Bytes of one read.
const READ: usize = 1 << 17;
/// Ports of one address, from the first on.
const FIRST_PORT: u16 = 2000;
const PORTS: u64 = 60_000;
/// How much longer than planned the last connections may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Where to; with more than one of these, to that many addresses in turn.
    pub(crate) to: SocketAddrV4,
    pub(crate) backends: u8,
    /// Where from: that many addresses in turn.
    pub(crate) from: Ipv4Addr,
    pub(crate) clients: u8,
    pub(crate) speech: Speech,
    /// Bytes of an answer.
    pub(crate) answer: u64,
    /// Connections at a time.
    pub(crate) concurrency: u16,
    /// How long new ones are opened; if not at all, each of those at a time is one.
    pub(crate) millis: u64,
    /// The number of the first, above all that were before.
    pub(crate) first: u64,
}

/// What came of it; every connection was right.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) connections: u64,
    /// Of answers.
    pub(crate) bytes: u64,
    /// From the first connection to the end of the last, and the process's CPU time in it.
    pub(crate) seconds: f64,
    pub(crate) cpu: f64,
    /// From before a connection is opened until its end has come.
    pub(crate) whole: Times,
    /// Until it is connected: the TCP handshake alone.
    pub(crate) handshake: Times,
}

/// What half of all times, 99 of 100, and all of them are no longer than, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Times {
    pub(crate) half: f64,
    pub(crate) most: f64,
    pub(crate) longest: f64,
}

impl Times {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let micros =
            |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e6);
        let part = |part: usize| micros(times.get(times.len() * part / 100));
        Self {
            half: part(50),
            most: part(99),
            longest: micros(times.last()),
        }
    }
}

/// Opens connections, and prints what came of them.
///
/// # Errors
///
/// When one of them failed, or what came was not right.
pub(crate) fn run(load: &str) -> Result<()> {
    let load: Load = serde_json::from_str(load).context("read what to ask")?;
    let mut runtime = runtime::Builder::new_current_thread();
    let runtime = runtime.enable_io().enable_time().build();
    let runtime = runtime.context("start the runtime")?;
    let told = LocalSet::new().block_on(&runtime, all(load))?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&told)?)?;
    Ok(())
}

/// What the connections of a run share.
struct Run {
    load: Load,
    request: Vec<u8>,
    content: Content,
    next: Cell<u64>,
    until: Instant,
    whole: RefCell<Vec<Duration>>,
    handshakes: RefCell<Vec<Duration>>,
}

async fn all(load: Load) -> Result<Told> {
    let request = answer::request(load.speech)?;
    let content = Content::new();
    let planned = Duration::from_millis(load.millis);
    let (cpu, begun) = (spent()?, Instant::now());
    let run = Rc::new(Run {
        request,
        content,
        next: Cell::new(load.first),
        until: begun + planned,
        whole: RefCell::default(),
        handshakes: RefCell::default(),
        load,
    });
    let mut lines = JoinSet::new();
    for _ in 0..run.load.concurrency {
        let run = Rc::clone(&run);
        lines.spawn_local(async move { run.line().await });
    }
    let wait = async {
        while let Some(line) = lines.join_next().await {
            line.context("a task has ended")??;
        }
        anyhow::Ok(())
    };
    let waited = timeout(planned + TIMEOUT, wait).await;
    waited.context("connections that do not end")??;
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), spent()? - cpu);
    let whole = run.whole.take();
    let connections = u64::try_from(whole.len())?;
    ensure!(connections > 0, "no connection");
    Ok(Told {
        connections,
        bytes: connections * run.load.answer,
        seconds,
        cpu,
        whole: Times::of(whole),
        handshake: Times::of(run.handshakes.take()),
    })
}

impl Run {
    /// One connection after the other.
    async fn line(&self) -> Result<()> {
        let mut request = self.request.clone();
        let mut room = vec![0; READ];
        loop {
            let number = self.next.get();
            self.next.set(number + 1);
            let wish = Wish {
                bytes: self.load.answer,
                number,
            };
            match self.load.speech {
                Speech::Bytes(_) => wish.put(&mut request)?,
                Speech::Http => request = http::request(wish),
            }
            let begun = Instant::now();
            let one = self.one(wish, &request, &mut room).await;
            one.with_context(|| format!("connection {number} to {}", self.load.to))?;
            self.whole.borrow_mut().push(begun.elapsed());
            if Instant::now() >= self.until {
                return Ok(());
            }
        }
    }

    /// Asks, reads the answer to its end, and closes after the server.
    async fn one(&self, wish: Wish, request: &[u8], room: &mut [u8]) -> Result<()> {
        let socket = TcpSocket::new_v4().context("make a socket")?;
        socket.set_reuseaddr(true)?;
        let [from, to] = self.ends(wish.number)?;
        socket.bind(from).with_context(|| format!("bind {from}"))?;
        let begun = Instant::now();
        let mut stream = socket.connect(to).await.context("connect")?;
        self.handshakes.borrow_mut().push(begun.elapsed());
        stream.write_all(request).await.context("ask")?;
        let mut came = 0;
        if self.load.speech == Speech::Http {
            let (head, rest) = http::read_head(&mut stream).await?;
            ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
            came += self.count(wish, came, &rest)?;
        }
        loop {
            let read = stream.read(room).await.context("read the answer")?;
            if read == 0 {
                break;
            }
            came += self.count(wish, came, room.get(..read).unwrap_or_default())?;
        }
        ensure!(came == wish.bytes, "{came} bytes of {}", wish.bytes);
        Ok(())
    }

    /// How many bytes of an answer these are, which came behind so many.
    fn count(&self, wish: Wish, came: u64, bytes: &[u8]) -> Result<u64> {
        let right = self.content.at(wish, came).get(..bytes.len());
        ensure!(Some(bytes) == right, "wrong bytes behind {came}");
        Ok(u64::try_from(bytes.len())?)
    }

    /// Where a connection comes from, which none before it had, and where it goes.
    fn ends(&self, number: u64) -> Result<[SocketAddr; 2]> {
        let (clients, backends) = (u64::from(self.load.clients), u64::from(self.load.backends));
        let near = u32::from(self.load.from) + u32::try_from(number % clients)?;
        let port = FIRST_PORT + u16::try_from(number / clients % PORTS)?;
        let far = u32::from(*self.load.to.ip()) + u32::try_from(number % backends)?;
        Ok([
            (Ipv4Addr::from(near), port).into(),
            (Ipv4Addr::from(far), self.load.to.port()).into(),
        ])
    }
}

/// The CPU time of this process, in seconds.
fn spent() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID);
    Ok(Duration::from(time.context("read the process's clock")?).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, net::TcpListener, thread};

    use super::*;
    use crate::tcp::answer::PLAIN;

    const ANSWER: u64 = 300;

    /// What comes of two connections to a server that sends this instead of each answer.
    fn asked(answer: impl Fn(Wish, Vec<u8>) -> Vec<u8> + Send) -> Result<Told> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let SocketAddr::V4(to) = listener.local_addr()? else {
            anyhow::bail!("an IPv4 address")
        };
        let load = Load {
            to,
            backends: 1,
            from: Ipv4Addr::new(127, 0, 0, 2),
            clients: 2,
            speech: PLAIN,
            answer: ANSWER,
            concurrency: 2,
            millis: 0,
            first: u64::from(to.port()),
        };
        thread::scope(|scope| {
            scope.spawn(move || -> Result<()> {
                for _ in 0..2 {
                    let (mut stream, _) = listener.accept()?;
                    let mut request = vec![0; answer::request(PLAIN)?.len()];
                    stream.read_exact(&mut request)?;
                    let wish = Wish::of(&request)?;
                    let right = Content::new().at(wish, 0)[..usize::try_from(ANSWER)?].to_vec();
                    stream.write_all(&answer(wish, right))?;
                }
                Ok(())
            });
            let runtime = runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            LocalSet::new().block_on(&runtime, all(load))
        })
    }

    #[test]
    fn right_answers_are_counted() {
        let told = asked(|_, right| right).expect("right answers");
        assert_eq!((told.connections, told.bytes), (2, 2 * ANSWER));
        assert!(told.handshake.half > 0.0 && told.handshake.most <= told.whole.most);
    }

    #[test]
    fn half_of_all_times_99_of_100_and_the_longest() {
        let times = (1..=100).rev().map(Duration::from_micros).collect();
        let rounded = |times: Times| [times.half, times.most, times.longest].map(f64::round);
        assert_eq!(rounded(Times::of(times)), [51.0, 100.0, 100.0]);
        let times = (0..200).map(Duration::from_micros).collect();
        assert_eq!(rounded(Times::of(times)), [100.0, 198.0, 199.0]);
    }

    #[test]
    fn a_wrong_byte_fails_the_run() {
        let error = asked(|_, mut right| {
            right[200] ^= 1;
            right
        });
        assert!(format!("{:#}", error.expect_err("a wrong byte")).contains("wrong bytes"));
    }

    #[test]
    fn an_answer_that_is_short_or_of_another_connection_fails_the_run() {
        let short = asked(|_, right| right[..299].to_vec());
        assert!(format!("{:#}", short.expect_err("short")).contains("299 bytes of 300"));
        let other = asked(|wish, right| {
            let number = wish.number + 1;
            Content::new().at(Wish { number, ..wish }, 0)[..right.len()].to_vec()
        });
        assert!(other.is_err());
    }
}
