//! Clients without a kernel: each SYN-ACK that comes to their station is acknowledged, so that raw SYNs
//! become connections.

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use anyhow::{Context as _, Result, anyhow};
use lb_common::{
    addr::Mac,
    wire::header::{ACK, RST, SYN},
};
use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    sys::{
        socket::{
            AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt,
            socket, sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

use crate::{
    frames::{packet, raw::RawPort, segment::Segment},
    process::complain,
    topology::Host,
};

/// How long is waited for a frame before the end is looked for.
const LOOK_MILLIS: i64 = 50;
/// Longer than any SYN-ACK.
const LONGEST: usize = 256;
/// Frames of a burst that wait until this thread runs, in bytes.
const ROOM: usize = 16 << 20;

/// What follows the acknowledgment of a SYN-ACK.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Then {
    /// Nothing: the connection stands.
    Silence,
    /// A reset whose number is one above the next one: a server challenges it (RFC 5961 section 3.2), and
    /// the connection stands.
    ResetAhead,
}

/// The clients at one station, until this is dropped.
#[derive(Debug)]
pub struct Shadow {
    stop: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Shadow {
    /// Acknowledges what comes to `mac` behind the `eth0` of a host.
    ///
    /// # Errors
    ///
    /// When a socket or thread is refused.
    pub fn start(host: &Host, mac: Mac, then: Then) -> Result<Self> {
        let (stop, opened) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let port = RawPort::open(&host.netns, "eth0")?;
        let socket = host.netns.inside(receiver)??;
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&opened));
        let thread = host.netns.spawn(move || {
            let mut room = [0; LONGEST];
            while !stopped.load(Ordering::Acquire) {
                let length = match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut room) {
                    Err(Errno::EAGAIN | Errno::EINTR) => continue,
                    received => received.context("receive a frame")?.0,
                };
                let frame = room.get(..length).unwrap_or_default();
                for answer in answers(frame, mac, then) {
                    port.send(&answer)?;
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        })?;
        Ok(Self {
            stop,
            opened,
            thread: Some(thread),
        })
    }

    /// How many frames have answered SYN-ACKs.
    pub fn answers(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        let ended = ended.unwrap_or(Ok(Ok(())));
        if let Err(error) = ended.unwrap_or_else(|_| Err(anyhow!("panicked"))) {
            complain(format_args!("clients without a kernel: {error:#}"));
        }
    }
}

/// All IPv4 frames of `eth0`, also those to other stations.
fn receiver() -> Result<OwnedFd> {
    let socket = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::EthIp,
    );
    let socket = socket.context("make a packet socket")?;
    let interface = getifaddrs()
        .context("list the interfaces")?
        .filter(|found| found.interface_name == "eth0")
        .find_map(|found| found.address?.as_link_addr().copied())
        .context("no eth0")?;
    setsockopt(&socket, sockopt::RcvBufForce, &ROOM).context("make room")?;
    let look = TimeVal::milliseconds(LOOK_MILLIS);
    setsockopt(&socket, sockopt::ReceiveTimeout, &look).context("set the receive timeout")?;
    bind(socket.as_raw_fd(), &interface).context("bind to eth0")?;
    Ok(socket)
}

/// What a SYN-ACK to this station is answered with.
fn answers(frame: &[u8], mac: Mac, then: Then) -> Vec<Vec<u8>> {
    let (Some(to), Some(from)) = (frame.first_chunk::<6>(), frame.get(6..12)) else {
        return Vec::new();
    };
    let Some(segment) = Segment::read(frame) else {
        return Vec::new();
    };
    if *to != mac.bytes() || segment.flags != SYN | ACK {
        return Vec::new();
    }
    let mut next = [0; 6];
    next.copy_from_slice(from);
    let number = segment.acknowledgment;
    let answer = |flags, number| {
        let (client, server) = (segment.to.to_string(), segment.from.to_string());
        packet::tcp(&client, &server, flags)
            .numbers(number, segment.sequence.wrapping_add(1))
            .between(mac, Mac::new(next))
            .bytes()
    };
    match then {
        Then::Silence => vec![answer(ACK, number)],
        Then::ResetAhead => vec![answer(ACK, number), answer(RST, number.wrapping_add(1))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac::new([2, 0, 0, 0, 0x57, 9]);
    const SERVER: Mac = Mac::new([2, 0, 0, 0, 0x57, 1]);

    #[test]
    fn only_a_syn_ack_to_the_station_is_answered() {
        let frame = |flags, to| {
            packet::tcp("10.0.0.9:80", "10.0.0.1:1000", flags)
                .numbers(7, 100)
                .between(SERVER, to)
                .bytes()
        };
        let answered = answers(&frame(SYN | ACK, MAC), MAC, Then::ResetAhead);
        let read: Vec<_> = answered
            .iter()
            .map(|frame| Segment::read(frame).expect("a segment"))
            .map(|segment| (segment.flags, segment.sequence, segment.acknowledgment))
            .collect();
        assert_eq!(read, [(ACK, 100, 8), (RST, 101, 8)]);
        assert_eq!(answered[0][..6], SERVER.bytes());
        for other in [frame(ACK, MAC), frame(SYN | ACK, SERVER), Vec::new()] {
            assert!(answers(&other, MAC, Then::Silence).is_empty());
        }
    }
}
