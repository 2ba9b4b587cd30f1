//! The SYN of an accepted connection, as it came: the kernel keeps it for a listener with `TCP_SAVE_SYN`, and
//! returns it once. It has what no socket reports afterwards: where the first number and the client's clock
//! began, what the client offered, and which station on our link sent it.

#![expect(
    unsafe_code,
    reason = "no safe getter is for a socket option whose length is not known before"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
};

use lb_common::{
    addr::Mac,
    splice::DEFAULT_MSS,
    wire::{
        Packet as _, Slice,
        header::{ACK, Ethernet, Ipv4, SYN, Tcp},
    },
};
use nix::{
    errno::Errno,
    libc,
    libc::c_int,
    setsockopt_impl,
    sys::socket::{setsockopt, sockopt::SetStruct},
};

/// Value of `TCP_SAVE_SYN`: from the link's header on, not from IP's (Linux 5.10).
const WITH_LINK: c_int = 2;

const IPV4: u16 = 0x0800;
const TCP: u8 = 6;

/// Kinds of options (RFC 9293 section 3.2, RFC 7323).
const END: u8 = 0;
const PADDING: u8 = 1;
const MAXIMUM: u8 = 2;
const SCALE: u8 = 3;
const TIMESTAMPS: u8 = 8;
/// The largest shift there is (RFC 7323 section 2.3): the kernel takes any larger one for it.
const MAX_SCALE: u8 = 14;

/// Whether SYNs are kept.
#[derive(Clone, Copy, Debug)]
struct Save;

setsockopt_impl!(
    Save,
    libc::IPPROTO_TCP,
    libc::TCP_SAVE_SYN,
    c_int,
    SetStruct<'_, c_int>
);

/// Most bytes of a SYN's headers: a link's (Ethernet's have 14), and the longest ones of IP and TCP.
const MAX_SYN: usize = 40 + 60 + 60;

/// The bytes of the SYN that is kept for a socket, of which there are none if no SYN is.
fn headers(socket: &impl AsFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; MAX_SYN];
    let mut length = libc::socklen_t::try_from(MAX_SYN).map_err(io::Error::other)?;
    // SAFETY: the kernel writes at most `length` bytes, which is how many there are, and returns how many.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SAVED_SYN,
            bytes.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(done)?;
    bytes.truncate(usize::try_from(length).map_err(io::Error::other)?);
    Ok(bytes)
}

/// Has the kernel keep the SYNs of the connections that a listener will take; those that it has taken
/// already have none. Each costs its headers' size until it is read or the connection closed.
///
/// # Errors
///
/// If the socket is none of TCP's, or the kernel is older than 5.10.
pub(crate) fn save(listener: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(listener, Save, &WITH_LINK)?)
}

/// The SYN of an accepted connection. `None` if the kernel has kept none: the listener had not the option,
/// the answer was a cookie, memory was short, or it has been read before; and if it did not come over IPv4
/// and Ethernet.
///
/// # Errors
///
/// If the socket is none of TCP's.
pub(super) fn saved(socket: &impl AsFd) -> io::Result<Option<Syn>> {
    Ok(Syn::parse(&mut headers(socket)?))
}

/// What a client sent first. Whether its offers hold is up to both ends: the socket reports what has come of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Syn {
    /// The station that sent it to us on the link. None on loopback.
    pub(super) source_mac: Option<Mac>,
    /// The number of the SYN itself, before that of the first byte.
    pub(super) sequence: u32,
    /// The client's clock, if it offers timestamps.
    pub(super) time: Option<u32>,
    /// Most bytes of data in a segment to the client.
    pub(super) mss: Option<u16>,
    /// How far the windows will be shifted that the client announces.
    pub(super) scale: Option<u8>,
    /// Most bytes of data in a segment from the client, as our SYN-ACK had it; none: the socket reports it.
    pub(super) announced: Option<u16>,
}

impl Syn {
    /// The number of the SYN itself.
    pub(crate) const fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Most bytes of data in a segment that the client takes, whether it has sent an MSS or not.
    pub(crate) fn takes(&self) -> u16 {
        self.mss.unwrap_or(DEFAULT_MSS)
    }

    /// From headers without what is behind TCP's, whatever the length in IP's is.
    fn parse(headers: &mut [u8]) -> Option<Self> {
        let packet = Slice::new(headers);
        let ethernet: &Ethernet = packet.header(0)?;
        let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
        if ethernet.ethertype.get().get() != IPV4
            || ip.version_ihl.get() >> 4 != 4
            || ip.header_bytes() < size_of::<Ipv4>()
            || ip.protocol.get() != TCP
            || ip.is_fragment()
        {
            return None;
        }
        let offset = size_of::<Ethernet>() + ip.header_bytes();
        let tcp: &Tcp = packet.header(offset)?;
        if tcp.flags.get() & (SYN | ACK) != SYN {
            return None;
        }
        let source_mac = ethernet.source.get();
        let sequence = tcp.sequence.get().get();
        let end = offset + usize::from(tcp.data_offset.get() >> 4) * 4;
        let mut syn = Self {
            source_mac: (!source_mac.is_none()).then_some(source_mac),
            sequence,
            time: None,
            mss: None,
            scale: None,
            announced: None,
        };
        syn.read(headers.get(offset + size_of::<Tcp>()..end)?);
        Some(syn)
    }

    /// Reads a list of options as the kernel does (`tcp_parse_options`): of one that breaks off counts
    /// what came before, of an option that comes twice the second, and one of a strange length not at
    /// all.
    fn read(&mut self, mut options: &[u8]) {
        loop {
            options = match options {
                [PADDING, rest @ ..] => rest,
                [] | [_] | [END, ..] => return,
                [_, length, ..] => {
                    let Some((option, rest)) = options.split_at_checked((*length).into()) else {
                        return;
                    };
                    match *option {
                        [] | [_] => return,
                        [MAXIMUM, _, high, low] if (high, low) != (0, 0) => {
                            self.mss = Some(u16::from_be_bytes([high, low]));
                        }
                        [SCALE, _, shift] => self.scale = Some(shift.min(MAX_SCALE)),
                        [TIMESTAMPS, _, a, b, c, d, _, _, _, _] => {
                            self.time = Some(u32::from_be_bytes([a, b, c, d]));
                        }
                        _ => {}
                    }
                    rest
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use nix::unistd::geteuid;

    use super::{super::tcp_repair::Repair, *};

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const HERE: (Ipv4Addr, u16) = (Ipv4Addr::new(127, 79, 0, 2), 0);

    /// What Linux sends.
    const OFFERS: [u8; 20] = [
        2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
    ];

    /// The headers of a SYN with these options of IP and of TCP.
    fn headers(ip: &[u8], tcp: &[u8]) -> Vec<u8> {
        let words = |bytes: &[u8]| u8::try_from(5 + bytes.len() / 4).unwrap();
        let mut bytes = Vec::from([2, 0, 0, 0, 0, 1]);
        bytes.extend(MAC);
        // The packet has ten bytes of data as well, which are not here.
        let total = u8::try_from(50 + ip.len() + tcp.len()).unwrap();
        bytes.extend([8, 0, 0x40 | words(ip), 0, 0, total, 0, 1, 0x40, 0, 64, TCP]);
        bytes.extend([0, 0, 192, 168, 203, 50, 192, 168, 203, 110]);
        bytes.extend(ip);
        bytes.extend([0x9c, 0x40, 0x19, 0x2b, 0xfe, 0xdc, 0xba, 0x98, 0, 0, 0, 0]);
        bytes.extend([words(tcp) << 4, SYN, 0xff, 0xff, 0, 0, 0, 0]);
        bytes.extend(tcp);
        bytes
    }

    const BARE: Syn = Syn {
        source_mac: Some(Mac::new(MAC)),
        sequence: 0xfedc_ba98,
        time: None,
        mss: None,
        scale: None,
        announced: None,
    };

    const WHOLE: Syn = Syn {
        time: Some(0x0102_0304),
        mss: Some(1460),
        scale: Some(7),
        ..BARE
    };

    fn parse(ip: &[u8], tcp: &[u8]) -> Option<Syn> {
        Syn::parse(&mut headers(ip, tcp))
    }

    #[test]
    fn a_syn_says_who_sent_it_and_what_is_offered() {
        assert_eq!(parse(&[], &OFFERS), Some(WHOLE));
        assert_eq!(parse(&[], &[]), Some(BARE));
        let mut looped = headers(&[], &OFFERS);
        looped[..12].fill(0);
        let source_mac = None;
        assert_eq!(
            Syn::parse(&mut looped),
            Some(Syn {
                source_mac,
                ..WHOLE
            })
        );
    }

    #[test]
    fn ip_options_move_the_rest() {
        assert_eq!(parse(&[148, 4, 0, 0], &OFFERS), Some(WHOLE));
        assert_eq!(parse(&[1; 40], &OFFERS), Some(WHOLE));
    }

    #[test]
    fn of_broken_options_counts_what_came_before() {
        let mss = Some(1460);
        let some = Some(Syn { mss, ..BARE });
        for options in [
            &[2, 4, 5, 0xb4, 3, 0, 7, 0][..],
            &[2, 4, 5, 0xb4, 3, 1, 7, 0],
            &[2, 4, 5, 0xb4, 3, 5, 7, 0],
            &[2, 4, 5, 0xb4, 3, 255, 7, 0],
            &[2, 4, 5, 0xb4, 1, 1, 1, 3],
            // Behind the end.
            &[2, 4, 5, 0xb4, 0, 3, 3, 7],
            // Of another length than theirs.
            &[2, 4, 5, 0xb4, 3, 4, 7, 0],
            &[2, 4, 5, 0xb4, 8, 6, 1, 2, 3, 4, 1, 1],
            &[2, 4, 5, 0xb4, 2, 3, 9, 1],
            // None at all, and the second one.
            &[2, 4, 5, 0xb4, 2, 4, 0, 0],
            &[2, 4, 1, 0xb4, 2, 4, 5, 0xb4],
        ] {
            assert_eq!(parse(&[], options), some, "{options:?}");
        }
        let scale = Some(MAX_SCALE);
        assert_eq!(parse(&[], &[3, 3, 200, 0]), Some(Syn { scale, ..BARE }));
    }

    #[test]
    fn what_is_no_syn_over_ethernet_is_none() {
        let whole = headers(&[], &OFFERS);
        for length in 0..whole.len() {
            assert_eq!(Syn::parse(&mut whole[..length].to_vec()), None, "{length}");
        }
        // Nothing of the link: a tunnel.
        assert_eq!(Syn::parse(&mut whole[14..].to_vec()), None);
        let cases = [
            ("ethertype", 12, 0x86),
            ("version", 14, 0x65),
            ("header length", 14, 0x44),
            ("fragment", 20, 0x20),
            ("protocol", 23, 17),
            ("data offset", 46, 4 << 4),
            ("SYN-ACK", 47, SYN | ACK),
            ("ACK", 47, ACK),
        ];
        for (what, at, value) in cases {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(Syn::parse(&mut other), None, "{what}");
        }
    }

    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        (client, accepted)
    }

    #[test]
    fn an_accepted_connection_has_its_syn_once() {
        let listener = TcpListener::bind(HERE).unwrap();
        let (_client, early) = connect(&listener);
        assert_eq!(saved(&early).unwrap(), None);
        save(&listener).unwrap();
        let (client, accepted) = connect(&listener);
        let syn = saved(&accepted).unwrap().unwrap();
        assert_eq!(syn.source_mac, None);
        assert_eq!(syn.mss, Some(65495));
        assert_eq!(saved(&accepted).unwrap(), None);
        let repairs = Repair::enter(&client).and_then(|ours| Ok((ours, Repair::enter(&accepted)?)));
        let (ours, theirs) = match repairs {
            Ok((ours, theirs)) => (ours.snapshot().unwrap(), theirs.snapshot().unwrap()),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::EPERM as i32));
                assert!(!geteuid().is_root(), "root is refused");
                return;
            }
        };
        assert_eq!(theirs.received, syn.sequence.wrapping_add(1));
        assert_eq!(syn.scale.unwrap_or(0), theirs.send_scale);
        assert_eq!(syn.time.is_some(), theirs.time.is_some());
        // The client's clock since.
        if let (Some(first), Some(now)) = (syn.time, ours.time) {
            assert!(now.wrapping_sub(first) < 60_000_000, "{first} {now}");
        }
    }
}
