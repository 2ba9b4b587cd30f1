//! What a tenant does to another one: steps at a rate.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Result, anyhow, ensure};
use lb_common::addr::Mac;
use lb_tests::{
    frames::raw::RawPort,
    topology::{ECHO, Host},
    traffic::{
        flood::Flood,
        pace::{Done, Pace},
    },
};

/// The station of addresses that no host has: what is sent there reaches no stack.
pub(super) const NOWHERE: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);
/// From the first step to the first connection of the victim.
const LEAD: Duration = Duration::from_secs(1);
/// How long a client of an attack waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A step that is done again and again.
pub(super) struct Attack<'a> {
    pub(super) name: &'static str,
    pub(super) pace: Pace,
    /// How long it goes on before the victim is measured.
    pub(super) lead: Duration,
    step: Box<dyn Fn(u64) -> Result<()> + Sync + 'a>,
}

impl<'a> Attack<'a> {
    /// So many steps a second, by one thread; a step is given its number.
    pub(super) fn new(
        name: &'static str,
        per_second: u32,
        step: impl Fn(u64) -> Result<()> + Sync + 'a,
    ) -> Self {
        Self {
            name,
            pace: Pace {
                per_second,
                threads: 1,
            },
            lead: LEAD,
            step: Box::new(step),
        }
    }

    /// These frames in turn, again and again.
    pub(super) fn frames(
        name: &'static str,
        per_second: u32,
        from: &Host,
        frames: Vec<Vec<u8>>,
    ) -> Result<Self> {
        ensure!(!frames.is_empty(), "an attack has frames");
        let port = RawPort::open(&from.netns, "eth0")?;
        Ok(Self::new(name, per_second, move |number| {
            let turn = usize::try_from(number)? % frames.len();
            port.send(&frames[turn])
        }))
    }

    /// The frames of a flood.
    pub(super) fn flood(
        name: &'static str,
        per_second: u32,
        from: &Host,
        flood: Flood,
    ) -> Result<Self> {
        let port = RawPort::open(&from.netns, "eth0")?;
        let flood = Mutex::new(flood);
        Ok(Self::new(name, per_second, move |_| {
            let mut flood = flood.lock().map_err(|_| anyhow!("a step panicked"))?;
            flood.send(&port, 1)
        }))
    }

    /// By so many threads: steps wait for answers.
    pub(super) fn by(mut self, threads: u32) -> Self {
        self.pace.threads = threads;
        self
    }

    /// With this long before the victim is measured.
    pub(super) fn after(self, lead: Duration) -> Self {
        Self { lead, ..self }
    }

    /// Goes on until `work` has ended.
    pub(super) fn beside<T>(
        &self,
        attacker: &Host,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Done)> {
        self.pace.beside(&attacker.netns, &*self.step, work)
    }
}

/// Addresses of the tenants' network that no host has.
pub(super) fn nowhere() -> Vec<Ipv4Addr> {
    let address = |host| Ipv4Addr::new(192, 168, 203, host);
    (120..250).map(address).collect()
}

/// A connection of an attacker that waits for nothing for long.
pub(super) fn connect(to: SocketAddrV4) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to.into(), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

/// One whole connection to the L4 VIP, closed by the client or by the backend first.
pub(super) fn come_and_go(by_client: bool) -> Result<()> {
    let mut stream = connect(ECHO)?;
    if by_client {
        stream.write_all(b"who\n")?;
        BufReader::new(&stream).read_line(&mut String::new())?;
        stream.shutdown(Shutdown::Write)?;
    } else {
        // No first line that the server knows: it closes.
        stream.write_all(b"\n")?;
    }
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}
