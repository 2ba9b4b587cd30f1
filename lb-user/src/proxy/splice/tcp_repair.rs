//! What the kernel knows of a connection, read while its socket is in TCP repair mode, and a close that sends
//! the peer nothing. That mode needs `CAP_NET_ADMIN` in the user namespace that owns the socket's network.
//!
//! Repair mode is no standstill: what arrives is taken and acknowledged as before, so two numbers that are
//! read one after the other may belong to different moments. Only the socket's owner is stopped: until it is
//! out of repair the owner can neither read nor write (`EPERM`, `EINVAL`).

use std::{
    io, mem,
    os::fd::{AsFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    getsockopt_impl, libc,
    libc::c_int,
    setsockopt_impl,
    sys::socket::{
        getsockopt, setsockopt,
        sockopt::{GetStruct, ReuseAddr, SetStruct},
    },
};
use tokio::net::TcpStream;

use crate::system::tcp_info::{ECN, Info, SACK, TIMESTAMPS};

/// Values of `TCP_REPAIR` (`include/uapi/linux/tcp.h`, as all that is defined here). To leave with 0
/// would send a window probe.
const ON: c_int = 1;
const OFF_WITHOUT_PROBE: c_int = -1;

/// Values of `TCP_REPAIR_QUEUE`.
const NO_QUEUE: c_int = 0;
const RECEIVE_QUEUE: c_int = 1;
const SEND_QUEUE: c_int = 2;

/// Whether a socket is in repair.
#[derive(Clone, Copy, Debug)]
struct RepairMode;

setsockopt_impl!(
    RepairMode,
    libc::IPPROTO_TCP,
    libc::TCP_REPAIR,
    c_int,
    SetStruct<'_, c_int>
);

/// Which queue the next option is about.
#[derive(Clone, Copy, Debug)]
struct Queue;

setsockopt_impl!(
    Queue,
    libc::IPPROTO_TCP,
    libc::TCP_REPAIR_QUEUE,
    c_int,
    SetStruct<'_, c_int>
);

/// The sequence number behind the last byte of that queue.
#[derive(Clone, Copy, Debug)]
struct Sequence;

getsockopt_impl!(
    Sequence,
    libc::IPPROTO_TCP,
    libc::TCP_QUEUE_SEQ,
    u32,
    GetStruct<u32>
);

/// The same, set.
#[derive(Clone, Copy, Debug)]
struct SetSequence;

/// The clock of a socket's timestamps.
#[derive(Clone, Copy, Debug)]
struct TimestampClock;

/// The same, set.
#[derive(Clone, Copy, Debug)]
struct SetClock;

getsockopt_impl!(
    TimestampClock,
    libc::IPPROTO_TCP,
    libc::TCP_TIMESTAMP,
    u32,
    GetStruct<u32>
);

setsockopt_impl!(
    SetSequence,
    libc::IPPROTO_TCP,
    libc::TCP_QUEUE_SEQ,
    u32,
    SetStruct<'_, u32>
);

setsockopt_impl!(
    SetClock,
    libc::IPPROTO_TCP,
    libc::TCP_TIMESTAMP,
    u32,
    SetStruct<'_, u32>
);

/// What two ends have agreed on: `struct tcp_repair_opt`, a kind of option and its value.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct AgreedOption {
    kind: u32,
    value: u32,
}

/// Most of them.
const OPTIONS: usize = 4;

/// All of them; one that is there twice changes nothing.
#[derive(Clone, Copy, Debug)]
struct AgreedOptions;

setsockopt_impl!(
    AgreedOptions,
    libc::IPPROTO_TCP,
    libc::TCP_REPAIR_OPTIONS,
    [AgreedOption; OPTIONS],
    SetStruct<'_, [AgreedOption; OPTIONS]>
);

/// Kinds of options, as in a SYN.
const SIZE: u32 = 2;
const SCALE: u32 = 3;
const SACK_PERMITTED: u32 = 4;
const TIMES: u32 = 8;

/// Both windows: `struct tcp_repair_window`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RepairWindow {
    /// The number of the segment that announced the peer's one last.
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    /// What was announced to the peer, from `rcv_wup` on.
    rcv_wnd: u32,
    rcv_wup: u32,
}

#[derive(Clone, Copy, Debug)]
struct SetWindow;

/// Value of the option (`include/uapi/linux/tcp.h`), which libc has not for every target.
const TCP_REPAIR_WINDOW: c_int = 29;

setsockopt_impl!(
    SetWindow,
    libc::IPPROTO_TCP,
    TCP_REPAIR_WINDOW,
    RepairWindow,
    SetStruct<'_, RepairWindow>
);

/// Puts a socket without a connection into repair: what it binds and connects to from now on is a connection that
/// has got as far as these numbers, that of the next byte to the peer and that of the next one from there.
pub(super) fn begin(socket: &BorrowedFd<'_>, sent: u32, received: u32) -> Result<(), Errno> {
    setsockopt(socket, RepairMode, &ON)?;
    for (queue, sequence) in [(SEND_QUEUE, sent), (RECEIVE_QUEUE, received)] {
        setsockopt(socket, Queue, &queue)?;
        setsockopt(socket, SetSequence, &sequence)?;
    }
    setsockopt(socket, Queue, &NO_QUEUE)
}

/// What the ends of a connection have agreed on.
pub(super) struct Agreement {
    /// Most bytes in a segment to the peer.
    pub(super) mss: u16,
    /// How far the peer's windows are shifted, and ours; not at all without scales. The kernel would shift ours otherwise by
    /// what it would have offered.
    pub(super) scales: (u8, u8),
    /// Whether both have selective acknowledgments.
    pub(super) has_sack: bool,
    /// Our clock, if both have timestamps.
    pub(super) clock: Option<u32>,
}

/// Has a socket in repair, which is connected, agree on this.
pub(super) fn agree(socket: &BorrowedFd<'_>, agreement: &Agreement) -> Result<(), Errno> {
    let option = |kind, value| AgreedOption { kind, value };
    let mut options = [option(SIZE, agreement.mss.into()); OPTIONS];
    let (theirs, ours) = agreement.scales;
    let others = [
        Some(option(
            SCALE,
            u32::from(theirs) | u32::from(ours) << u16::BITS,
        )),
        agreement.has_sack.then_some(option(SACK_PERMITTED, 0)),
        agreement.clock.map(|_| option(TIMES, 0)),
    ];
    for (place, other) in options.iter_mut().skip(1).zip(others.into_iter().flatten()) {
        *place = other;
    }
    setsockopt(socket, AgreedOptions, &options)?;
    match agreement.clock {
        Some(clock) => setsockopt(socket, SetClock, &clock),
        None => Ok(()),
    }
}

/// Has what is written meanwhile come from the peer.
pub(super) fn receive(
    socket: &BorrowedFd<'_>,
    write: impl FnOnce(&BorrowedFd<'_>) -> Result<usize, Errno>,
) -> Result<(), Errno> {
    setsockopt(socket, Queue, &RECEIVE_QUEUE)?;
    write(socket)?;
    setsockopt(socket, Queue, &NO_QUEUE)
}

/// The windows of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Windows {
    /// The number of the peer's first byte.
    pub(super) first: u32,
    /// Bytes that the peer takes.
    pub(super) theirs: u32,
    /// Bytes that it may send from its first one on.
    pub(super) ours: u32,
}

/// Takes a socket out of repair. Nothing is sent.
pub(super) fn end(socket: &BorrowedFd<'_>, windows: Windows) -> Result<(), Errno> {
    let Windows {
        first,
        theirs,
        ours,
    } = windows;
    let window = RepairWindow {
        snd_wl1: first,
        snd_wnd: theirs,
        max_window: theirs,
        rcv_wnd: ours,
        rcv_wup: first,
    };
    setsockopt(socket, SetWindow, &window)?;
    setsockopt(socket, RepairMode, &OFF_WITHOUT_PROBE)
}

/// A socket in repair, until this is dropped. Nothing is sent either time.
#[derive(Debug)]
pub(super) struct Repair<'s> {
    socket: BorrowedFd<'s>,
    /// Whether others may bind its port.
    shares: bool,
}

impl<'s> Repair<'s> {
    /// # Errors
    ///
    /// `EPERM` without the capability, or for a listener.
    pub(super) fn enter(socket: &'s impl AsFd) -> io::Result<Self> {
        let socket = socket.as_fd();
        let shares = getsockopt(&socket, ReuseAddr)?;
        setsockopt(&socket, RepairMode, &ON)?;
        Ok(Self { socket, shares })
    }

    /// # Errors
    ///
    /// The kernel's error; nothing is known that would make it refuse.
    pub(super) fn snapshot(&self) -> io::Result<Snapshot> {
        let info = Info::of(&self.socket)?;
        let (send_scale, receive_scale) = info.scales();
        let time = info.has(TIMESTAMPS).then(|| self.time());
        Ok(Snapshot {
            sent: self.sequence(SEND_QUEUE)?,
            received: self.received()?,
            time: time.transpose()?,
            has_sack: info.has(SACK),
            has_ecn: info.has(ECN),
            send_scale,
            receive_scale,
            unacked: info.unacked,
            unsent: info.unsent,
            path_mtu: info.path_mtu,
            advertised_mss: info.advertised_mss,
            is_established: info.is_established(),
        })
    }

    /// The sequence number that is expected from the peer next.
    ///
    /// # Errors
    ///
    /// As for the snapshot.
    pub(super) fn received(&self) -> io::Result<u32> {
        self.sequence(RECEIVE_QUEUE)
    }

    /// The number of a queue, which is not left chosen: as long as the send queue is, the kernel takes
    /// what it would send for sent, and sends it only when that has not been acknowledged in time.
    fn sequence(&self, queue: c_int) -> io::Result<u32> {
        setsockopt(&self.socket, Queue, &queue)?;
        let sequence = getsockopt(&self.socket, Sequence);
        setsockopt(&self.socket, Queue, &NO_QUEUE)?;
        Ok(sequence?)
    }

    /// Since Linux 6.7 the lowest bit is no part of the time: it is set where the clock counts microseconds,
    /// and clear where it counts milliseconds. So it is always set here.
    fn time(&self) -> io::Result<u32> {
        Ok(getsockopt(&self.socket, TimestampClock)? | 1)
    }

    /// Does not leave repair any more.
    pub(super) fn stay(self) {
        mem::forget(self);
    }
}

impl Drop for Repair<'_> {
    fn drop(&mut self) {
        // Refused only without the capability, which was there.
        let _refused = setsockopt(&self.socket, RepairMode, &OFF_WITHOUT_PROBE);
        // A socket that leaves repair does not share its port any more: no other connection could be opened
        // from the port, and no listener at it, while this one is there.
        let _refused = setsockopt(&self.socket, ReuseAddr, &self.shares);
    }
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// The sequence number of the next byte that is written; of the next one that is sent if none are
    /// `unsent`.
    pub(super) sent: u32,
    /// The one that is expected from the peer next, whether or not what came before has been read. The peer's
    /// FIN counts, after which the connection is not established any more.
    pub(super) received: u32,
    /// The timestamp of a segment that were sent now, if both ends send them: at most one more than it would
    /// have, and never less. So a clock that goes on from here never goes back, for which the peer would
    /// throw segments away (RFC 7323 section 5.3); one too many cancels out where the same is taken off the
    /// peer's echoes. A socket that is paced may have stamped a segment ahead of its time.
    pub(super) time: Option<u32>,
    /// Whether both ends understand selective acknowledgments.
    pub(super) has_sack: bool,
    /// Whether both ends understand congestion marks.
    pub(super) has_ecn: bool,
    /// How far windows are shifted that the peer announces: 0 if it offered no scale.
    pub(super) send_scale: u8,
    /// How far those are that we announce, as the peer got it.
    pub(super) receive_scale: u8,
    /// Segments that were sent and not yet acknowledged.
    pub(super) unacked: u32,
    /// Bytes that were written and not yet sent.
    pub(super) unsent: u32,
    /// The largest packet that the path to the peer carries, as far as is known.
    pub(super) path_mtu: u32,
    /// Most bytes of data in a segment from the peer: the MSS of our SYN, less the twelve bytes that
    /// timestamps take.
    pub(super) advertised_mss: u32,
    /// Whether neither end has closed its side.
    pub(super) is_established: bool,
}

/// Closes a connection without sending the peer anything: no FIN, and no reset even if bytes are unread. The
/// kernel does not know it any more and answers with a reset what still comes, unless that is kept from it;
/// and it does not close while there is another descriptor of the socket.
///
/// # Errors
///
/// If the socket cannot be put into repair: then it was closed as any other.
pub(super) fn close_silently(socket: TcpStream) -> io::Result<()> {
    Repair::enter(&socket)?.stay();
    drop(socket);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{self, Ipv4Addr, SocketAddr, TcpListener},
        thread,
        time::Duration,
    };

    use nix::{sys::socket::sockopt::RcvBuf, unistd::geteuid};

    use super::*;

    const HERE: (Ipv4Addr, u16) = (Ipv4Addr::new(127, 79, 0, 1), 0);

    fn pair() -> (net::TcpStream, net::TcpStream, SocketAddr) {
        let listener = TcpListener::bind(HERE).unwrap();
        let address = listener.local_addr().unwrap();
        let client = net::TcpStream::connect(address).unwrap();
        let (server, _) = listener.accept().unwrap();
        (client, server, address)
    }

    /// A user without the capability is refused, and tests nothing more.
    fn enter(socket: &impl AsFd) -> Option<Repair<'_>> {
        match Repair::enter(socket) {
            Ok(repair) => Some(repair),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::EPERM as i32));
                assert!(!geteuid().is_root(), "root is refused");
                None
            }
        }
    }

    fn snapshot(socket: &impl AsFd) -> Option<Snapshot> {
        Some(enter(socket)?.snapshot().unwrap())
    }

    #[test]
    fn each_end_knows_what_the_other_one_does() {
        let (mut client, mut server, _) = pair();
        let (Some(ours), Some(theirs)) = (snapshot(&client), snapshot(&server)) else {
            return;
        };
        for (one, other) in [(ours, theirs), (theirs, ours)] {
            assert_eq!(one.sent, other.received);
            assert_eq!(one.send_scale, other.receive_scale);
            assert_eq!(one.time.is_some(), other.time.is_some());
            assert_eq!(one.has_sack, other.has_sack);
            assert_eq!(one.has_ecn, other.has_ecn);
            assert!((1..=14).contains(&one.send_scale), "{one:?}");
            assert!(one.is_established && one.unsent == 0);
            let stamped = if one.time.is_some() { 12 } else { 0 };
            assert_eq!(one.advertised_mss, 65495 - stamped);
            assert!(one.path_mtu >= one.advertised_mss + stamped + 40, "{one:?}");
        }
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        let (later, received) = (snapshot(&client).unwrap(), snapshot(&server).unwrap());
        assert_eq!(later.sent, ours.sent.wrapping_add(1000));
        assert_eq!(received.received, later.sent);
        assert_eq!(
            (later.received, received.sent),
            (ours.received, theirs.sent)
        );
        // A clock goes on.
        if let (Some(earlier), Some(later)) = (ours.time, later.time) {
            thread::sleep(Duration::from_millis(20));
            let now = snapshot(&client).unwrap().time.unwrap();
            assert!(later.wrapping_sub(earlier) < 60_000_000);
            assert!((18..60_000_000).contains(&now.wrapping_sub(later)));
        }
        // A FIN has a number too.
        drop(client);
        let closed = snapshot(&server).unwrap();
        assert_eq!(closed.received, later.sent.wrapping_add(1));
        assert!(!closed.is_established);
    }

    /// A socket with little room needs no scale.
    #[test]
    fn the_scales_are_told_apart() {
        let listener = TcpListener::bind(HERE).unwrap();
        setsockopt(&listener, RcvBuf, &4096).unwrap();
        let near = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let (Some(near), Some(far)) = (snapshot(&near), snapshot(&far)) else {
            return;
        };
        assert_eq!((near.send_scale, far.receive_scale), (0, 0));
        assert_eq!(near.receive_scale, far.send_scale);
        assert!(far.send_scale > 0);
    }

    #[test]
    fn what_is_not_sent_yet_counts_as_written() {
        let (mut client, server, _) = pair();
        client.set_nonblocking(true).unwrap();
        while client.write(&[7; 65536]).is_ok() {}
        let (Some(ours), Some(theirs)) = (snapshot(&client), snapshot(&server)) else {
            return;
        };
        assert!(ours.unsent > 0);
        assert!(ours.sent.wrapping_sub(theirs.received) >= ours.unsent);
    }

    #[test]
    fn what_arrives_in_repair_is_taken() {
        let (mut client, mut server, _) = pair();
        let Some(repair) = enter(&server) else {
            return;
        };
        let before = repair.received().unwrap();
        client.write_all(b"taken").unwrap();
        assert_eq!(repair.received().unwrap(), before.wrapping_add(5));
        let mut bytes = [0; 5];
        let refused = (&server).read(&mut bytes).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::EPERM as i32));
        let refused = (&server).write(b"refused").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::EINVAL as i32));
        drop(repair);
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"taken");
        server.write_all(b"given").unwrap();
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"given");
    }

    /// Else no listener could be opened again beside the connections of an earlier one.
    #[test]
    fn a_port_is_shared_after_repair_as_before() {
        let (client, server, address) = pair();
        let option = |socket| getsockopt(socket, ReuseAddr).unwrap();
        let before = (option(&client), option(&server));
        assert_eq!(before, (false, true));
        if enter(&client).is_none() || enter(&server).is_none() {
            return;
        }
        assert_eq!((option(&client), option(&server)), before);
        TcpListener::bind(address).unwrap();
    }

    #[tokio::test]
    async fn who_is_left_silently_hears_nothing() {
        let (mut client, mut server, _) = pair();
        if enter(&server).is_none() {
            return;
        }
        server.write_all(b"last").unwrap();
        client.read_exact(&mut [0; 4]).unwrap();
        // Bytes that are not read would have it sent a reset.
        client.write_all(b"unread").unwrap();
        client.set_nonblocking(true).unwrap();
        server.set_nonblocking(true).unwrap();
        close_silently(TcpStream::from_std(server).unwrap()).unwrap();
        thread::sleep(Duration::from_millis(50));
        let heard = client.read(&mut [0]).unwrap_err();
        assert_eq!(heard.kind(), io::ErrorKind::WouldBlock);
        assert!(snapshot(&client).unwrap().is_established);
        // What still comes is not read by any socket.
        client.write_all(b"late").unwrap();
        let heard = client.read(&mut [0]).unwrap_err();
        assert_eq!(heard.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_listener_cannot_be_repaired() {
        let listener = TcpListener::bind(HERE).unwrap();
        let refused = Repair::enter(&listener).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::EPERM as i32));
    }
}
