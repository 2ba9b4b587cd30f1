//! Many connections to an echo server in one thread, of which each has a secret: all that comes back has it, from the
//! server that answered first.

use std::{
    collections::BTreeSet,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{SocketAddrV4, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::{
    topology::Host,
    traffic::client::{self, Answer},
};

/// How long a first answer may take.
const OPEN: Duration = Duration::from_secs(20);
/// Between two looks for answers.
const LOOK: Duration = Duration::from_millis(2);

/// Connections that are silent until [`Talks::exchange`].
#[derive(Debug)]
pub struct Talks(Vec<Talk>);

impl Talks {
    /// Opens so many; each is known to its server by its secret, which begins with `name`, when this returns.
    ///
    /// # Errors
    ///
    /// When one has no answer.
    pub fn open(from: &Host, to: SocketAddrV4, count: usize, name: &str) -> Result<Self> {
        let open = |number| {
            Talk::open(to, format!("{name}-{number}")).with_context(|| format!("{name} {number}"))
        };
        let talks: Result<_> = from.netns.inside(|| (0..count).map(open).collect())?;
        Ok(Self(talks?))
    }

    /// What servers see them as.
    pub fn peers(&self) -> BTreeSet<SocketAddrV4> {
        self.0.iter().map(|talk| talk.answer.peer).collect()
    }

    /// The servers that have answered.
    pub fn nodes(&self) -> BTreeSet<String> {
        self.0.iter().map(|talk| talk.answer.node.clone()).collect()
    }

    /// One line each, and what came of them within `limit`.
    pub fn exchange(&mut self, limit: Duration) -> Talked {
        let start = Instant::now();
        let mut talked = Talked::default();
        for talk in &mut self.0 {
            let said = talk.say();
            talked.note(talk, said.map(|()| None));
        }
        while self.0.iter().any(Talk::waits) && start.elapsed() < limit {
            self.hear(&mut talked);
            thread::sleep(LOOK);
        }
        for talk in self.0.iter_mut().filter(|talk| talk.waits()) {
            talked.note(talk, Err(anyhow!("no answer")));
        }
        talked
    }

    /// From now on each sends a line, with this pause after each answer.
    ///
    /// # Errors
    ///
    /// When no thread can be started.
    pub fn keep_busy(mut self, from: &Host, pause: Duration) -> Result<Busy> {
        let talked = Arc::<Mutex<Talked>>::default();
        let stop = Arc::<AtomicBool>::default();
        let (shared, stopped) = (Arc::clone(&talked), Arc::clone(&stop));
        let thread = from.netns.spawn(move || {
            let begun = Instant::now();
            self.0.iter_mut().for_each(|talk| talk.heard_at = begun);
            while !stopped.load(Ordering::Relaxed) {
                self.turn(pause, &mut lock(&shared));
                thread::sleep(LOOK);
            }
            Ok(())
        })?;
        Ok(Busy {
            talked,
            stop,
            thread: Some(thread),
        })
    }

    fn turn(&mut self, pause: Duration, talked: &mut Talked) {
        for talk in &mut self.0 {
            if talk.is_open() && !talk.waits() && talk.heard_at.elapsed() >= pause {
                let said = talk.say();
                talked.note(talk, said.map(|()| None));
            }
        }
        self.hear(talked);
    }

    fn hear(&mut self, talked: &mut Talked) {
        for talk in self.0.iter_mut().filter(|talk| talk.waits()) {
            let heard = talk.hear();
            talked.note(talk, heard);
        }
    }
}

/// Connections that talk all the time, until this is dropped.
#[derive(Debug)]
pub struct Busy {
    talked: Arc<Mutex<Talked>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Busy {
    /// What has come of them since this was asked last.
    pub fn take(&self) -> Talked {
        std::mem::take(&mut lock(&self.talked))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It returns no error.
            let _ended = thread.join();
        }
    }
}

/// What came of lines.
#[derive(Clone, Debug, Default)]
pub struct Talked {
    /// Lines that came back.
    pub answers: u64,
    /// The longest time from an answer to the next one on the same connection.
    pub longest: Duration,
    /// How connections were broken: each is once in here.
    pub broken: Vec<String>,
}

impl Talked {
    /// Fails unless all were answered.
    ///
    /// # Errors
    ///
    /// With how many are broken, and how the first of them were.
    pub fn ensure_whole(&self) -> Result<()> {
        let first: Vec<_> = self.broken.iter().take(5).collect();
        ensure!(
            first.is_empty(),
            "{} are broken: {first:#?}",
            self.broken.len()
        );
        Ok(())
    }

    fn note(&mut self, talk: &mut Talk, result: Result<Option<Duration>>) {
        match result {
            Ok(None) => {}
            Ok(Some(gap)) => {
                self.answers += 1;
                self.longest = self.longest.max(gap);
            }
            Err(error) => {
                let (secret, peer) = (&talk.secret, talk.answer.peer);
                self.broken.push(format!("{secret}, {peer}: {error:#}"));
                talk.state = State::Broken;
            }
        }
    }
}

#[derive(Debug, Eq, PartialEq)]
enum State {
    Silent,
    Waiting,
    Broken,
}

#[derive(Debug)]
struct Talk {
    stream: TcpStream,
    secret: String,
    answer: Answer,
    round: u64,
    state: State,
    heard: Vec<u8>,
    heard_at: Instant,
}

impl Talk {
    fn open(to: SocketAddrV4, secret: String) -> Result<Self> {
        let stream = client::open(None, to)?;
        stream.set_read_timeout(Some(OPEN))?;
        (&stream).write_all(format!("secret {secret}\n").as_bytes())?;
        let mut line = String::new();
        // The server says nothing more before it is asked.
        BufReader::new(&stream).read_line(&mut line)?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            secret,
            answer: Answer::read(&line)?,
            round: 0,
            state: State::Silent,
            heard: Vec::new(),
            heard_at: Instant::now(),
        })
    }

    fn is_open(&self) -> bool {
        self.state != State::Broken
    }

    fn waits(&self) -> bool {
        self.state == State::Waiting
    }

    fn line(&self) -> String {
        format!("{} {}\n", self.secret, self.round)
    }

    fn say(&mut self) -> Result<()> {
        if !self.is_open() {
            return Ok(());
        }
        self.round += 1;
        let line = self.line();
        self.stream.write_all(line.as_bytes()).context("send")?;
        self.heard.clear();
        self.state = State::Waiting;
        Ok(())
    }

    /// The time since the answer before, once all of this one is there.
    fn hear(&mut self) -> Result<Option<Duration>> {
        let mut some = [0; 64];
        let length = match self.stream.read(&mut some) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            read => read.context("receive")?,
        };
        ensure!(length > 0, "closed by the server");
        let some = some.get(..length).unwrap_or_default();
        self.heard.extend_from_slice(some);
        let line = self.line();
        ensure!(
            line.as_bytes().starts_with(&self.heard),
            "{:?} came of {line:?}",
            String::from_utf8_lossy(&self.heard)
        );
        if self.heard.len() < line.len() {
            return Ok(None);
        }
        self.state = State::Silent;
        let gap = self.heard_at.elapsed();
        self.heard_at = Instant::now();
        Ok(Some(gap))
    }
}

fn lock(talked: &Mutex<Talked>) -> std::sync::MutexGuard<'_, Talked> {
    talked.lock().unwrap_or_else(PoisonError::into_inner)
}
