//! The connection between both hosts: a line of JSON for what is asked, and one for what came of it.

use std::{
    fmt,
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result, anyhow, bail, ensure};
use lb_tests::fault::interrupt::Interrupt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::path::segments::{Came, Stream, Wanted};

/// How long the other host may take to accept.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take: longer than any stream.
const ANSWER: Duration = Duration::from_secs(600);
/// How often the bench looks whether it is to end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What the generator sends of itself to each bench that connects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    pub(super) kernel: String,
    /// The model of its CPUs.
    pub(super) cpu: String,
    /// How many of them send.
    pub(super) senders: usize,
}

impl fmt::Display for Greeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus = match self.senders {
            1 => "CPU that sends",
            _ => "CPUs that send",
        };
        write!(
            f,
            "{}, Linux {}, {} {cpus}",
            self.cpu, self.kernel, self.senders
        )
    }
}

/// What to send.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) stream: Stream,
    pub(super) wanted: Wanted,
    pub(super) segments: u32,
    /// Bytes of a frame.
    pub(super) length: usize,
    /// MAC address to send to.
    pub(super) gateway: [u8; 6],
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) came: Came,
    /// How long sending took.
    pub(super) seconds: f64,
}

/// The generator's host, as the bench sees it.
pub(super) struct Line<'i> {
    stream: BufReader<TcpStream>,
    interrupt: &'i Interrupt,
}

impl<'i> Line<'i> {
    /// Connects to `HOST:PORT`.
    ///
    /// # Errors
    ///
    /// When no process listens there, or one that is no generator.
    pub(super) fn connect(to: &str, interrupt: &'i Interrupt) -> Result<(Self, Greeting)> {
        let stream = reach(to).with_context(|| format!("reach `lb-bench generator` at {to}"))?;
        stream
            .set_read_timeout(Some(POLL_INTERVAL))
            .context("set how long to wait for the generator")?;
        let mut line = Self {
            stream: BufReader::new(stream),
            interrupt,
        };
        let greeting = line
            .hear(CONNECT)
            .with_context(|| format!("{to} does not greet as `lb-bench generator` does"))?;
        Ok((line, greeting))
    }

    /// Has it send.
    ///
    /// # Errors
    ///
    /// When it cannot, or is gone, and when the bench is to end.
    pub(super) fn ask(&mut self, ask: &Ask) -> Result<Answer> {
        say(self.stream.get_ref(), ask).context("ask the generator")?;
        let answer: Result<Answer, String> = self.hear(ANSWER).context("hear the generator")?;
        answer.map_err(|problem| anyhow!("the generator's host: {problem}"))
    }

    fn hear<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T> {
        let begun = Instant::now();
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            self.interrupt.check()?;
            match self.stream.read_until(b'\n', &mut line) {
                Ok(0) => bail!("it has hung up"),
                Ok(_) => {}
                Err(error) if is_late(&error) => ensure!(
                    begun.elapsed() < limit,
                    "not a word in {} s",
                    limit.as_secs()
                ),
                Err(error) => return Err(error.into()),
            }
        }
        serde_json::from_slice(&line).context("understand it")
    }
}

/// Says one line.
///
/// # Errors
///
/// When no generator reads it.
pub(super) fn say(mut stream: &TcpStream, what: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    Ok(stream.write_all(&line)?)
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The first of a host's addresses that accepts.
fn reach(to: &str) -> Result<TcpStream> {
    let mut failed: Error = anyhow!("it has no address");
    let addresses: Vec<SocketAddr> = to.to_socket_addrs()?.collect();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error.into(),
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_listener_is_an_error_with_the_reason() {
        // The discard port of this host, which no system of today serves.
        let error = reach("127.0.0.1:9").unwrap_err();
        assert!(format!("{error:#}").contains("refused"), "{error:#}");
        assert!(reach("127.0.0.1").is_err(), "a port is needed");
    }

    #[test]
    fn what_is_asked_arrives_as_it_was_said() {
        let answer: Result<Answer, String> = Ok(Answer {
            came: Came::opening(250, 249),
            seconds: 0.5,
        });
        let text = serde_json::to_string(&answer).unwrap();
        let heard: Result<Answer, String> = serde_json::from_str(&text).unwrap();
        assert_eq!(heard.unwrap().came, Came::opening(250, 249));
    }
}
