//! The way back: of the numbers of a connection that the data plane has opened by a cookie, a socket is made, as if the
//! kernel had accepted it; with what the client has sent so far to be read. In TCP repair mode (`tcp_repair`) nothing is
//! sent for this. What is read first makes the kernel acknowledge it, and open the window.

use std::{
    io,
    net::SocketAddrV4,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use lb_common::{
    maps::{
        flow::FlowKey,
        hello::{HELLO_HAS_SUMS, HELLO_HAS_TIMES, HelloHead, MAX_HELLO_AGE},
    },
    syn_cookie::{
        answer::{MAX_WINDOW, PROMISED_SCALE},
        offer::SynOffer,
        payload,
    },
};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, MsgFlags, SockFlag, SockType, SockaddrIn, bind, connect, send, setsockopt,
        socket,
        sockopt::{ReuseAddr, TcpMaxSeg},
    },
};
use tokio::net::TcpStream;

use super::{
    saved_syn::Syn,
    tcp_repair::{self, Agreement, Windows},
};
use crate::dataplane::{flows::coarse_now, hellos::HelloRecord};

/// Units of coarse time in 2^20 microseconds, and milliseconds of the kernel's clock of timestamps.
const MICROSECONDS_SHIFT: u32 = 20;
const _: () = assert!(lb_common::maps::flow::TIME_SHIFT == MICROSECONDS_SHIFT);

/// Whether it has waited too long for this process: its client was reset.
pub(crate) fn is_late(hello: &HelloRecord) -> bool {
    coarse_now().is_ok_and(|now| now.wrapping_sub(hello.head.seen) > MAX_HELLO_AGE)
}

/// Whether the bytes are those that the client's checksums are of.
pub(crate) fn is_whole(hello: &HelloRecord) -> bool {
    let HelloHead {
        flags,
        sums,
        lengths,
        ..
    } = hello.head;
    let mut rest = hello.bytes.as_slice();
    flags & HELLO_HAS_SUMS == 0
        || sums.into_iter().zip(lengths).all(|(sum, length)| {
            let Some((piece, behind)) = rest.split_at_checked(length.into()) else {
                return false;
            };
            rest = behind;
            length == 0 || payload::is_whole(piece, sum)
        })
}

/// Ends of the connection: the VIP, and the client.
pub(crate) fn ends(key: &FlowKey) -> (SocketAddrV4, SocketAddrV4) {
    (
        SocketAddrV4::new(key.vip.into(), key.vip_port.get()),
        SocketAddrV4::new(key.client.into(), key.client_port.get()),
    )
}

/// What the client's SYN was, as far as it is known.
pub(crate) fn syn(head: &HelloHead) -> Syn {
    let offer = SynOffer::from_bits(number_bits(head));
    Syn {
        source_mac: Some(head.mac),
        sequence: head.isn,
        time: (head.flags & HELLO_HAS_TIMES != 0).then_some(head.time),
        mss: Some(head.mss),
        scale: offer.scale,
        announced: Some(head.announced),
    }
}

/// The bits of a cookie that have the offer: its lowest ones.
fn number_bits(head: &HelloHead) -> u8 {
    let [bits, ..] = head.number.to_le_bytes();
    bits
}

/// Makes the socket, in the namespace of the calling thread.
///
/// # Errors
///
/// The kernel's: `EADDRNOTAVAIL` where it still has a connection of the same tuple.
pub(crate) fn rebuild(hello: &HelloRecord) -> io::Result<TcpStream> {
    let socket = open(hello)?;
    TcpStream::from_std(std::net::TcpStream::from(socket))
}

fn open(hello: &HelloRecord) -> Result<OwnedFd, Errno> {
    let HelloRecord { head, bytes } = hello;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    let (vip, client) = ends(&head.key);
    let offer = SynOffer::from_bits(number_bits(head));
    // The kernel works out its segments when it connects, and not when it learns what was agreed on.
    setsockopt(&socket, TcpMaxSeg, &u32::from(head.mss))?;
    tcp_repair::begin(
        &socket.as_fd(),
        head.number.wrapping_add(1),
        head.isn.wrapping_add(1),
    )?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(vip))?;
    connect(socket.as_raw_fd(), &SockaddrIn::from(client))?;
    let has_times = head.flags & HELLO_HAS_TIMES != 0;
    tcp_repair::agree(
        &socket.as_fd(),
        &Agreement {
            mss: head.mss,
            scales: offer.scale.map_or((0, 0), |scale| (scale, PROMISED_SCALE)),
            has_sack: offer.has_sack,
            clock: has_times.then(|| clock(head)),
        },
    )?;
    tcp_repair::receive(&socket.as_fd(), |socket| {
        send(socket.as_raw_fd(), bytes, MsgFlags::empty())
    })?;
    let window = u32::from(head.window) << offer.scale.unwrap_or(0);
    let double = head.announced.saturating_mul(2).min(MAX_WINDOW);
    tcp_repair::end(
        &socket.as_fd(),
        Windows {
            first: head.isn.wrapping_add(1),
            theirs: window,
            ours: double.into(),
        },
    )?;
    // As a socket that was accepted: a listener may be opened beside it.
    setsockopt(&socket, ReuseAddr, &true)?;
    Ok(socket)
}

/// Our clock for the client's eyes, in milliseconds. It has gone on since the data plane has looked; a unit more than
/// that, because the kernel wants an even number, which stands for a clock of milliseconds since Linux 6.7, and a clock
/// never goes back.
fn clock(head: &HelloHead) -> u32 {
    let elapsed = coarse_now().map_or(0, |now| now.wrapping_sub(head.seen));
    let elapsed = (u64::from(elapsed) << MICROSECONDS_SHIFT) / 1_000_000;
    let elapsed = u32::try_from(elapsed).unwrap_or(u32::MAX);
    head.clock.wrapping_add(elapsed).wrapping_add(2) & !1
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{Ipv4Addr, TcpListener, TcpStream},
        time::Duration,
    };

    use lb_common::addr::Be16;
    use nix::unistd::geteuid;

    use super::*;
    use crate::system::tcp_info::{Info, SACK, TIMESTAMPS};

    const HERE: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 79, 0, 3), Ipv4Addr::new(127, 79, 0, 4)];
    /// The bits of an offer: what the network carries, SACK, a scale of 7.
    const OFFER: u32 = 0xf7;
    const NUMBER: u32 = 0xffff_ff00 | OFFER;

    /// What the end at one address knows, whose peer's first number is this, and its own one that.
    fn record(us: usize, ports: [u16; 2], numbers: [u32; 2], bytes: &[u8]) -> HelloRecord {
        let [isn, number] = numbers;
        let (vip, client) = (HERE[us], HERE[1 - us]);
        HelloRecord {
            head: HelloHead {
                key: FlowKey {
                    client: client.into(),
                    vip: vip.into(),
                    client_port: Be16::new(ports[1 - us]),
                    vip_port: Be16::new(ports[us]),
                    network: 1,
                    protocol: 6,
                },
                isn,
                number,
                time: 77,
                clock: 1_000_000,
                seen: coarse_now().unwrap(),
                lengths: [u16::try_from(bytes.len()).unwrap(), 0],
                window: 500,
                mss: 1460,
                announced: 1460,
                flags: HELLO_HAS_TIMES,
                ..HelloHead::default()
            },
            bytes: bytes.to_vec(),
        }
    }

    /// Two ends of one connection, of which none has been opened: the one has sent these bytes, which the other has not
    /// read yet.
    fn pair(sent: &[u8]) -> Option<(TcpStream, TcpStream)> {
        let free = |address| {
            TcpListener::bind((address, 0))
                .unwrap()
                .local_addr()
                .unwrap()
                .port()
        };
        let ports = HERE.map(free);
        let length = u32::try_from(sent.len()).unwrap();
        // Behind what it has sent its own number has the bits of the offer as well.
        let client = NUMBER.wrapping_add(0x1000);
        let first = client.wrapping_sub(length);
        let server = open(&record(0, ports, [first, NUMBER], sent));
        let client = open(&record(1, ports, [NUMBER, client], &[]));
        let (server, client) = match (server, client) {
            (Ok(server), Ok(client)) => (TcpStream::from(server), TcpStream::from(client)),
            (Err(error), _) | (_, Err(error)) => {
                assert_eq!(error, Errno::EPERM);
                assert!(!geteuid().is_root(), "root is refused");
                return None;
            }
        };
        for end in [&server, &client] {
            end.set_nonblocking(false).unwrap();
            end.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        }
        Some((server, client))
    }

    #[test]
    fn of_its_numbers_a_connection_is_made_that_goes_on() {
        let Some((mut server, mut client)) = pair(b"hello") else {
            return;
        };
        for end in [&server, &client] {
            let info = Info::of(end).unwrap();
            assert!(info.is_established() && info.has(TIMESTAMPS) && info.has(SACK));
            assert_eq!(info.scales(), (7, PROMISED_SCALE));
        }
        let mut bytes = [0; 5];
        server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        server.write_all(b"world").unwrap();
        client.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"world");
        let many: Vec<u8> = (0..200_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        client.write_all(&many).unwrap();
        let mut read = vec![0; many.len()];
        server.read_exact(&mut read).unwrap();
        assert!(read == many);
        drop(client);
        assert_eq!(server.read(&mut bytes).unwrap(), 0);
    }

    #[test]
    fn a_tuple_has_one_connection() {
        let Some((server, _client)) = pair(b"x") else {
            return;
        };
        let (ours, theirs) = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        let ports = [ours.port(), theirs.port()];
        let again = open(&record(0, ports, [7, NUMBER], b"y")).unwrap_err();
        assert_eq!(again, Errno::EADDRNOTAVAIL);
    }

    #[test]
    fn bytes_that_are_not_the_clients_are_known() {
        let sum = |piece: &[u8]| !lb_common::wire::checksum::full(piece, 0).raw();
        let whole = |change: &dyn Fn(&mut HelloRecord)| {
            let mut hello = record(0, [1, 2], [0, 0], b"hello, world");
            hello.head.lengths = [5, 7];
            hello.head.sums = [sum(b"hello"), sum(b", world")];
            hello.head.flags |= HELLO_HAS_SUMS;
            change(&mut hello);
            is_whole(&hello)
        };
        assert!(whole(&|_| {}));
        assert!(!whole(&|hello| hello.bytes[2] ^= 1) && !whole(&|hello| hello.bytes[11] ^= 1));
        assert!(!whole(&|hello| hello.head.lengths = [5, 8]));
        // A kernel that has not computed them yet has not sent them over any wire.
        assert!(whole(&|hello| {
            hello.head.flags = 0;
            hello.bytes[0] ^= 1;
        }));
        assert!(!is_late(&record(0, [1, 2], [0, 0], b"")));
        let mut late = record(0, [1, 2], [0, 0], b"");
        late.head.seen = late.head.seen.wrapping_sub(MAX_HELLO_AGE + 10);
        assert!(is_late(&late));
    }
}
