//! Announcements of stations: one that has another MAC now announces it to all, by gratuitous ARP or by an
//! unsolicited neighbour advertisement (RFC 4861 section 7.2.6). What a network shares with the host goes to
//! the host, and never to the cell, so it is read there.
#![expect(
    unsafe_code,
    reason = "tokio waits for a file only if it is promised to stay, and nix sets no filter"
)]

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd as _, OwnedFd},
    ptr,
};

use nix::{
    errno::Errno,
    libc::{self, c_int, sock_filter, sock_fprog},
    sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, socket},
};
use tokio::{io::unix::AsyncFd, select};

use super::raw;

/// How an ARP message about IPv4 addresses on Ethernet begins.
const ARP_HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];

/// Bytes of an advertisement up to its options: an IPv6 header, and 24 (RFC 4861 section 4.4).
const ADVERTISEMENT: usize = 64;
/// What makes an IPv6 packet one that is sent to a group: each byte and its place. No extension headers, a
/// hop limit of 255, type 136 and code 0.
const ADVERTISES: [(u8, u8); 5] = [(6, 58), (7, 255), (24, 255), (40, 136), (41, 0)];

/// The sockets that receive both.
#[derive(Debug)]
pub(super) struct Ears {
    arp: OwnedFd,
    advertisements: OwnedFd,
}

/// The same for the runtime of a thread.
pub(super) struct Registered {
    arp: AsyncFd<OwnedFd>,
    advertisements: AsyncFd<OwnedFd>,
}

/// Opens the sockets that receive all which comes to the stack of the calling thread's namespace.
///
/// # Errors
///
/// If the kernel refuses.
pub(super) fn open() -> nix::Result<Ears> {
    let arp = packet_socket()?;
    listen(&arp, libc::ETH_P_ARP)?;
    let advertisements = packet_socket()?;
    // First: it must not get all that the host receives by IPv6.
    hear_advertisements(&advertisements)?;
    listen(&advertisements, libc::ETH_P_IPV6)?;
    Ok(Ears {
        arp,
        advertisements,
    })
}

impl Ears {
    /// Lets the runtime of the calling thread wait for them.
    ///
    /// # Errors
    ///
    /// If it cannot.
    pub(super) fn register(&self) -> io::Result<Registered> {
        Ok(Registered {
            arp: register(&self.arp)?,
            advertisements: register(&self.advertisements)?,
        })
    }
}

impl Registered {
    /// The next station that announces itself.
    ///
    /// # Errors
    ///
    /// If a socket fails.
    pub(super) async fn next(&self) -> io::Result<IpAddr> {
        select! {
            station = next(&self.arp, arp_station) => station,
            station = next(&self.advertisements, advertiser) => station,
        }
    }
}

/// One that receives nothing yet.
fn packet_socket() -> nix::Result<OwnedFd> {
    socket(
        AddressFamily::Packet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None::<SockProtocol>,
    )
}

/// Receives a protocol; without an index on all interfaces, also on those that come.
fn listen(socket: &OwnedFd, protocol: c_int) -> nix::Result<()> {
    bind(socket.as_raw_fd(), &raw::link_address(0, protocol)?)
}

/// Has the kernel drop, for this socket, what is no advertisement to a group.
fn hear_advertisements(socket: &OwnedFd) -> nix::Result<()> {
    let mut filter = filter();
    let program = sock_fprog {
        len: u16::try_from(filter.len()).map_err(|_| Errno::EINVAL)?,
        filter: filter.as_mut_ptr(),
    };
    let length = u32::try_from(size_of_val(&program)).map_err(|_| Errno::EINVAL)?;
    let (fd, program) = (socket.as_raw_fd(), ptr::from_ref(&program).cast());
    // SAFETY: the kernel copies a live sock_fprog of this length, and the live instructions behind it.
    let set = unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            program,
            length,
        )
    };
    Errno::result(set).map(drop)
}

/// [`ADVERTISES`] as a classic BPF program over a packet from its IPv6 header on: each byte is loaded, and
/// where it is another one the program jumps to its last instruction.
fn filter() -> Vec<sock_filter> {
    // BPF_LD | BPF_B | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K.
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let instruction = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    let mut program = Vec::with_capacity(2 * ADVERTISES.len() + 2);
    for (after, &(place, byte)) in (0..).zip(ADVERTISES.iter().rev()) {
        // Behind this comparison there are two instructions for each that follows, and the first return.
        program.push(instruction(JUMP_IF_EQUAL, 2 * after + 1, byte.into()));
        program.push(instruction(LOAD_BYTE, 0, place.into()));
    }
    program.reverse();
    program.push(instruction(RETURN, 0, u32::MAX));
    program.push(instruction(RETURN, 0, 0));
    program
}

fn register(socket: &OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    let socket = socket.try_clone()?;
    // SAFETY: an owned descriptor is the same one until it is dropped, and open until then.
    Ok(unsafe { AsyncFd::register(socket) }?)
}

/// The next message of which `station` knows whose it is. None is lost if this is given up.
async fn next(
    socket: &AsyncFd<OwnedFd>,
    station: impl Fn(&[u8]) -> Option<IpAddr>,
) -> io::Result<IpAddr> {
    loop {
        let mut ready = socket.readable().await?;
        let mut message = [0; ADVERTISEMENT];
        let received = ready.try_io(|socket| {
            let flags = MsgFlags::MSG_DONTWAIT;
            Ok(recv(socket.as_raw_fd(), &mut message, flags)?)
        });
        // Else there was none.
        if let Ok(length) = received
            && let Some(station) = message.get(..length?).and_then(&station)
        {
            return Ok(station);
        }
    }
}

/// The sender of an ARP message, if it announces itself. Behind it a short frame is filled up.
fn arp_station(message: &[u8]) -> Option<IpAddr> {
    let address = |at: usize| {
        let bytes: [u8; 4] = message.get(at..at + 4)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    };
    let (sender, target) = (address(14)?, address(24)?);
    (message.starts_with(&ARP_HEADER) && sender == target).then_some(sender.into())
}

/// Whose advertisement it is.
fn advertiser(packet: &[u8]) -> Option<IpAddr> {
    let has = |(place, byte): (u8, u8)| packet.get(usize::from(place)) == Some(&byte);
    let target: [u8; 16] = packet.get(48..ADVERTISEMENT)?.try_into().ok()?;
    ADVERTISES
        .into_iter()
        .all(has)
        .then_some(Ipv6Addr::from(target).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_speaks_of_himself_is_a_station() {
        let node = [10, 32, 96, 105];
        let message = |sender: [u8; 4], target: [u8; 4]| {
            let mut message = [0; 28];
            message[..6].copy_from_slice(&ARP_HEADER);
            message[7] = 1;
            message[14..18].copy_from_slice(&sender);
            message[24..].copy_from_slice(&target);
            message
        };
        assert_eq!(arp_station(&message(node, node)), Some(IpAddr::from(node)));
        assert_eq!(arp_station(&message(node, [10, 32, 96, 50])), None);
        let mut other = message(node, node);
        other[1] = 6;
        assert_eq!(arp_station(&other), None, "not of Ethernet");
    }

    /// From `target` to all nodes.
    fn advertisement(target: Ipv6Addr) -> [u8; ADVERTISEMENT + 8] {
        let mut packet = [0; ADVERTISEMENT + 8];
        packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 32, 58, 255]);
        packet[8..24].copy_from_slice(&target.octets());
        packet[24..40].copy_from_slice(&"ff02::1".parse::<Ipv6Addr>().unwrap().octets());
        packet[40] = 136;
        packet[44] = 0x20;
        packet[48..64].copy_from_slice(&target.octets());
        packet[64..].copy_from_slice(&[2, 1, 2, 0, 0, 0, 0x77, 1]);
        packet
    }

    /// What the kernel makes of the program: bytes that are accepted, 0 of a packet that is dropped.
    fn run(program: &[sock_filter], packet: &[u8]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let instruction = program[at];
            at += 1;
            match instruction.code {
                0x30 => match packet.get(instruction.k as usize) {
                    Some(&byte) => loaded = u32::from(byte),
                    None => return 0,
                },
                0x15 if loaded != instruction.k => at += usize::from(instruction.jf),
                0x15 => at += usize::from(instruction.jt),
                _ => return instruction.k,
            }
        }
    }

    #[test]
    fn only_an_advertisement_to_a_group_is_heard() {
        let node = "2001:db8::105".parse::<Ipv6Addr>().unwrap();
        let filter = filter();
        let packet = advertisement(node);
        assert_eq!(advertiser(&packet), Some(IpAddr::from(node)));
        assert_ne!(run(&filter, &packet), 0);
        for (place, _) in ADVERTISES {
            let mut other = packet;
            other[usize::from(place)] ^= 1;
            assert_eq!(advertiser(&other), None, "byte {place}");
            assert_eq!(run(&filter, &other), 0, "byte {place}");
        }
        for length in 0..ADVERTISEMENT {
            assert_eq!(advertiser(&packet[..length]), None, "{length} bytes");
        }
        assert_eq!(run(&filter, &packet[..40]), 0);
    }
}
