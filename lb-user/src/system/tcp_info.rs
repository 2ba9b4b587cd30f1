//! What the kernel reports of any connection, whatever its socket is doing.

use std::{io, mem, os::fd::AsFd};

use nix::{
    getsockopt_impl, libc,
    sys::socket::{getsockopt, sockopt::GetStruct},
};

/// Bits of `tcpi_options` (`include/uapi/linux/tcp.h`).
pub(crate) const TIMESTAMPS: u8 = 1;
pub(crate) const SACK: u8 = 2;
pub(crate) const SCALE: u8 = 4;
pub(crate) const ECN: u8 = 8;

/// Bytes that timestamps take in each segment.
pub(crate) const STAMP_BYTES: u32 = 12;

/// Values of `tcpi_state` (`include/net/tcp_states.h`).
const ESTABLISHED: u8 = 1;
const CLOSED: u8 = 7;

/// Those that a connection with two sockets here must have on both sides to be one without them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TcpOptions(u8);

impl TcpOptions {
    /// With all of them.
    #[cfg(test)]
    pub(crate) const ALL: Self = Self(TIMESTAMPS | SACK | ECN);
}

/// The beginning of `struct tcp_info`, as far as it is needed: every kernel since 4.6 has that much,
/// while libc's grows, and nix panics where a kernel has less.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Info {
    state: u8,
    _congestion: [u8; 4],
    options: u8,
    scales: u8,
    _bits: u8,
    _timeouts: [u32; 2],
    /// Most bytes of data in a segment to the peer.
    pub(crate) send_mss: u32,
    _receive_mss: u32,
    pub(crate) unacked: u32,
    _measured: [u32; 8],
    pub(crate) path_mtu: u32,
    _windows: [u32; 5],
    pub(crate) advertised_mss: u32,
    _counted: [u32; 14],
    pub(crate) unsent: u32,
}

const _: () = assert!(
    mem::offset_of!(Info, options) == mem::offset_of!(libc::tcp_info, tcpi_options)
        && mem::offset_of!(Info, scales) == mem::offset_of!(libc::tcp_info, tcpi_snd_rcv_wscale)
        && mem::offset_of!(Info, send_mss) == mem::offset_of!(libc::tcp_info, tcpi_snd_mss)
        && mem::offset_of!(Info, unacked) == mem::offset_of!(libc::tcp_info, tcpi_unacked)
        && mem::offset_of!(Info, path_mtu) == mem::offset_of!(libc::tcp_info, tcpi_pmtu)
        && mem::offset_of!(Info, advertised_mss) == mem::offset_of!(libc::tcp_info, tcpi_advmss)
        && mem::offset_of!(Info, unsent) == mem::offset_of!(libc::tcp_info, tcpi_notsent_bytes)
);

/// The option that has it.
#[derive(Clone, Copy, Debug)]
struct TcpInfoSockopt;

getsockopt_impl!(
    TcpInfoSockopt,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    Info,
    GetStruct<Info>
);

impl Info {
    /// # Errors
    ///
    /// If the socket is none of TCP's.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        Ok(getsockopt(&socket.as_fd(), TcpInfoSockopt)?)
    }

    /// Whether neither end has closed its side.
    pub(crate) const fn is_established(&self) -> bool {
        self.state == ESTABLISHED
    }

    /// Whether nothing is left of the connection but, at the end that has closed first, TIME_WAIT.
    pub(crate) const fn is_closed(&self) -> bool {
        self.state == CLOSED
    }

    /// What both ends have agreed on.
    pub(crate) const fn options(&self) -> TcpOptions {
        TcpOptions(self.options & (TIMESTAMPS | SACK | ECN))
    }

    /// Whether both ends have agreed on this option.
    pub(crate) const fn has(&self, option: u8) -> bool {
        self.options & option != 0
    }

    /// The peer's scale and ours: two fields of four bits, which begin at the lowest bit only where
    /// bytes do as well.
    pub(crate) fn scales(&self) -> (u8, u8) {
        let (low, high) = (self.scales & 15, self.scales >> 4);
        if cfg!(target_endian = "little") {
            (low, high)
        } else {
            (high, low)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        net::{Shutdown, TcpListener, TcpStream},
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.79.0.2", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    /// Whichever end closes first, both know when it is over.
    #[test]
    fn a_connection_is_established_half_closed_and_closed() {
        let (one, mut other) = pair();
        let [ours, theirs] = [Info::of(&one).unwrap(), Info::of(&other).unwrap()];
        assert!(ours.is_established() && theirs.is_established());
        assert_eq!(ours.has(SACK), theirs.has(SACK));
        one.shutdown(Shutdown::Write).unwrap();
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        for end in [&one, &other] {
            let info = Info::of(end).unwrap();
            assert!(!info.is_established() && !info.is_closed());
        }
        other.shutdown(Shutdown::Write).unwrap();
        let start = Instant::now();
        let are_closed = || {
            let mut ends = [&one, &other].into_iter();
            ends.all(|end| Info::of(end).unwrap().is_closed())
        };
        while !are_closed() {
            assert!(start.elapsed() < Duration::from_secs(5));
            thread::sleep(Duration::from_millis(1));
        }
    }
}
