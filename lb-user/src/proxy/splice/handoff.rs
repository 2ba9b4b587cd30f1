//! Hand-off: a connection that has a backend becomes a flow of the data plane, before the backend has had
//! a byte of it. Afterwards none of its bytes passes through this process.
//!
//! Neither socket has sent data so far: the client's has received the hello, if there is one, and the
//! backend's nothing. So what their numbers differ by is known before the hello is sent on, behind a
//! proxy's header where the backend wants one. The order:
//!
//! 1. The backend's end is read, while nothing comes from there.
//! 2. What the client sends from now on is dropped (it sends it again), and what its socket sends stays in
//!    the cell. The client's end is read when all has been taken from it that it has acknowledged.
//! 3. The splice is written. The backend's segments go to the client from here on; if one had come before,
//!    this is taken back.
//! 4. The client's segments go to the backend, and its socket is closed without a FIN or a reset.
//! 5. The hello is sent. When the backend has acknowledged it, that socket is closed in the same way.
//!
//! Whatever does not hold before 4 leaves the connection with its two sockets.

use std::{io, os::fd::AsRawFd as _};

use lb_common::maps::splice::{Numbers, Splice};
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv},
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::sleep};

use super::{
    port_lease::{PortLease, Refused},
    prelude::Prelude,
    saved_syn::Syn,
    tcp_repair::{Repair, Snapshot, close_silently},
};
use crate::{
    dataplane::splices::BackendSynAck,
    proxy::{
        connections::Leg,
        sockets::{FIRST_POLL_INTERVAL, MAX_POLL_INTERVAL},
    },
};

/// How often what has come meanwhile is read of a client that goes on sending.
const READS: usize = 4;
/// Most bytes that are sent on in one go; more are copied.
const MAX_PRELUDE: usize = 1 << 16;
/// Bytes of the headers of IPv4 and TCP without options.
const HEADERS: u32 = 40;
/// Bytes of a segment that its timestamps take (RFC 7323 appendix A).
const TIMES: u32 = 12;
/// Bytes that are read in one go.
const CHUNK: usize = 4096;

/// Why a connection stays with its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotSpliced {
    /// Its backend's socket has no port of a flow: there was none, or a network is the host's.
    NoPort,
    /// Its first segment is not known.
    NoSyn,
    /// The kernel does not let us see its numbers.
    Refused,
    /// Its ends have agreed on different options.
    Options,
    /// The backend takes smaller segments than the client got as MSS.
    BackendTakesLess,
    /// The client takes smaller ones than the backend got.
    ClientTakesLess,
    /// The client has closed its side, or sends more and more.
    Client,
    /// The backend has spoken first, or has closed.
    Backend,
    /// Another flow has its tuple.
    Taken,
    /// As many connections as may be have been handed over: `limits.handed_over`.
    NoRoom,
    /// It is to end.
    Cut,
    /// Each of its requests is looked at.
    Requests,
}

impl NotSpliced {
    /// The value of a metric's label. It stays the same from one version to the next.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::NoPort => "no_port",
            Self::NoSyn => "no_syn",
            Self::Refused => "kernel",
            Self::Options => "options",
            Self::BackendTakesLess | Self::ClientTakesLess => "segment_size",
            Self::Client => "client_goes_on",
            Self::Backend => "backend_spoke",
            Self::Taken => "flow_taken",
            Self::NoRoom => "no_room",
            Self::Cut => "cut",
            Self::Requests => "requests",
        }
    }
}

/// A connection that is the data plane's. Its backend's socket is here until that has the hello.
#[derive(Debug)]
pub(crate) struct Handed {
    backend: TcpStream,
    sent_on: Vec<u8>,
    lease: PortLease,
}

/// The two ends, and what the client has sent so far.
pub(crate) struct SplicedEnds<'s> {
    pub(crate) client: &'s TcpStream,
    pub(crate) backend: &'s TcpStream,
    pub(crate) said: &'s mut Prelude,
}

impl<'s> SplicedEnds<'s> {
    /// Does what comes before step 4. Afterwards the client's packets are dropped until [`PortLease::release`],
    /// and its socket is in repair.
    pub(crate) fn splice(
        &mut self,
        lease: &mut PortLease,
        leg: &Leg,
        syn: Syn,
    ) -> Result<(), NotSpliced> {
        let back = Repair::enter(self.backend).and_then(|repair| repair.snapshot());
        let back = back.map_err(|_| NotSpliced::Refused)?;
        if !is_silent(self.backend) || back.unacked > 0 || !back.is_established {
            return Err(NotSpliced::Backend);
        }
        // Known before anything is held.
        if syn.time.is_none() && back.time.is_some() {
            return Err(NotSpliced::Options);
        }
        let held = lease.hold().map_err(|_| NotSpliced::Taken);
        let spliced = held.and_then(|()| self.splice_held(lease, &syn, &back, leg));
        if spliced.is_err() {
            lease.let_go();
        }
        spliced
    }

    fn splice_held(
        &mut self,
        lease: &mut PortLease,
        syn: &Syn,
        back: &Snapshot,
        leg: &Leg,
    ) -> Result<(), NotSpliced> {
        let (front, repair) = self.settle(syn)?;
        let splice = splice(syn, &front, back, lease.backend_syn_ack(), self.said)?;
        let mac = syn.source_mac.ok_or(NotSpliced::NoSyn)?;
        let spliced = lease.splice(&splice, mac, [back.received, back.sent], leg);
        spliced.map_err(|refused| match refused {
            Refused::Lost => NotSpliced::Taken,
            Refused::NoRoom => NotSpliced::NoRoom,
        })?;
        let received = Repair::enter(self.backend).and_then(|repair| repair.received());
        // A cut looks at legs first: a connection that is not cut now will be found as a flow.
        let why = match received {
            Ok(received) if received == back.received && !leg.was_cut() => {
                repair.stay();
                return Ok(());
            }
            Ok(_) if leg.was_cut() => NotSpliced::Cut,
            _ => NotSpliced::Backend,
        };
        lease.unsplice();
        Err(why)
    }

    /// The client's end, when all has been read that it has acknowledged.
    ///
    /// If it is handed over, it stays in repair to its end: a socket that leaves repair does not share the
    /// VIP's port until that is set again. If this process were killed in between, the next one could not
    /// listen there for minutes, as nothing that this socket sends leaves the cell.
    fn settle(&mut self, syn: &Syn) -> Result<(Snapshot, Repair<'s>), NotSpliced> {
        for _ in 0..READS {
            self.read().map_err(|_| NotSpliced::Client)?;
            let repair = Repair::enter(self.client).map_err(|_| NotSpliced::Refused)?;
            let front = repair.snapshot().map_err(|_| NotSpliced::Refused)?;
            let read = u32::try_from(self.said.bytes.len()).map_err(|_| NotSpliced::Client)?;
            if front.received == begin(syn).wrapping_add(read) && front.is_established {
                return match (front.unacked, front.unsent) {
                    (0, 0) => Ok((front, repair)),
                    _ => Err(NotSpliced::Client),
                };
            }
        }
        Err(NotSpliced::Client)
    }

    /// Reads what is there.
    fn read(&mut self) -> io::Result<()> {
        let bytes = &mut self.said.bytes;
        while bytes.len() < MAX_PRELUDE {
            bytes.reserve(CHUNK);
            let left = MAX_PRELUDE - bytes.len();
            let mut chunk = [0; CHUNK];
            let most = left.min(CHUNK);
            let Some(room) = chunk.get_mut(..most) else {
                break;
            };
            match recv(self.client.as_raw_fd(), room, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => bytes.extend_from_slice(room.get(..read).unwrap_or_default()),
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::ErrorKind::FileTooLarge.into())
    }
}

/// Whether nothing has come from a backend.
fn is_silent(backend: &TcpStream) -> bool {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
    recv(backend.as_raw_fd(), &mut [0], flags) == Err(Errno::EAGAIN)
}

/// The number of the client's first byte.
const fn begin(syn: &Syn) -> u32 {
    syn.sequence.wrapping_add(1)
}

/// What the numbers of both ends become, if they have agreed on the same.
fn splice(
    syn: &Syn,
    front: &Snapshot,
    back: &Snapshot,
    syn_ack: BackendSynAck,
    said: &Prelude,
) -> Result<Splice, NotSpliced> {
    let (there, again) = match (syn.time, front.time, back.time) {
        (Some(syn), Some(front), Some(back)) => {
            (back.wrapping_sub(syn), front.wrapping_sub(syn_ack.time))
        }
        (_, None, None) => (0, 0),
        _ => return Err(NotSpliced::Options),
    };
    if front.has_sack != back.has_sack || front.has_ecn != back.has_ecn {
        return Err(NotSpliced::Options);
    }
    let announced = match syn.announced {
        Some(mss) => u32::from(mss).saturating_sub(stamp_bytes(front)),
        None => front.advertised_mss,
    };
    if announced > takes(back, syn_ack.mss) {
        return Err(NotSpliced::BackendTakesLess);
    }
    if back.advertised_mss > takes(front, syn.takes()) {
        return Err(NotSpliced::ClientTakesLess);
    }
    let sent_on = u32::try_from(said.sent_on()).map_err(|_| NotSpliced::Client)?;
    let shift = said.shift().ok_or(NotSpliced::Client)?;
    Ok(Splice {
        sent_end: back.sent.wrapping_add(sent_on),
        received: back.received,
        to_backend: Numbers {
            sequence: back.sent.wrapping_add(shift).wrapping_sub(begin(syn)),
            time: there,
            scale: front.send_scale.into(),
            promised: back.receive_scale.into(),
        },
        to_client: Numbers {
            sequence: front.sent.wrapping_sub(back.received),
            time: again,
            scale: back.send_scale.into(),
            promised: front.receive_scale.into(),
        },
        ..Splice::default()
    })
}

/// How large the segments may be that an end takes, whose MSS was `mss` when it opened the connection, and
/// that the path to it carries; without the bytes of timestamps, as [`Snapshot::advertised_mss`].
fn takes(end: &Snapshot, mss: u16) -> u32 {
    let carried = end.path_mtu.saturating_sub(HEADERS);
    u32::from(mss).min(carried).saturating_sub(stamp_bytes(end))
}

/// Bytes that timestamps take of each segment.
const fn stamp_bytes(end: &Snapshot) -> u32 {
    if end.time.is_some() { TIMES } else { 0 }
}

/// Steps 4 and the first half of 5: from here on there is no way back.
pub(crate) fn hand_over(
    client: TcpStream,
    backend: TcpStream,
    said: Prelude,
    mut lease: PortLease,
) -> Handed {
    // If the backend has reset it meanwhile, the client knows that already.
    let _over = lease.release();
    if let Err(error) = close_silently(client) {
        tracing::debug!("close the client's socket after the hand-over without a FIN: {error}");
    }
    Handed {
        backend,
        sent_on: said.into_sent_on(),
        lease,
    }
}

impl Handed {
    /// Sends the hello, and closes when the backend has it.
    pub(crate) async fn finish(self) {
        let Self {
            mut backend,
            sent_on,
            lease,
        } = self;
        // A backend that has reset it has reset the client as well.
        let _reset = backend.write_all(&sent_on).await;
        drop(sent_on);
        let mut look = FIRST_POLL_INTERVAL;
        while !lease.is_done() {
            sleep(look).await;
            look = (look * 2).min(MAX_POLL_INTERVAL);
        }
        if let Err(error) = close_silently(backend) {
            tracing::debug!(
                "close the backend's socket after the hand-over without a FIN: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: Syn = Syn {
        source_mac: None,
        sequence: 0xffff_fff0,
        time: Some(5000),
        mss: Some(1460),
        scale: Some(7),
        announced: None,
    };

    fn snapshot(sent: u32, received: u32) -> Snapshot {
        Snapshot {
            sent,
            received,
            time: Some(100),
            has_sack: true,
            has_ecn: false,
            send_scale: 7,
            receive_scale: 9,
            unacked: 0,
            unsent: 0,
            path_mtu: 1500,
            advertised_mss: 1448,
            is_established: true,
        }
    }

    fn hello() -> Prelude {
        Prelude {
            bytes: vec![0; 500],
            ..Prelude::default()
        }
    }

    /// A hello of 500 bytes, of a client whose first byte has the number 0xffff_fff1.
    fn ends() -> (Snapshot, Snapshot) {
        let front = Snapshot {
            send_scale: 2,
            ..snapshot(7001, 485)
        };
        let back = Snapshot {
            time: Some(900),
            receive_scale: 5,
            ..snapshot(2001, 3001)
        };
        (front, back)
    }

    fn syn_ack(mss: u16) -> BackendSynAck {
        BackendSynAck { time: 70, mss }
    }

    #[test]
    fn each_end_gets_the_numbers_that_it_has_been_promised() {
        let (front, back) = ends();
        let splice = splice(&SYN, &front, &back, syn_ack(1460), &hello()).unwrap();
        assert_eq!((splice.sent_end, splice.received), (2501, 3001));
        let Splice {
            to_backend: there,
            to_client: again,
            ..
        } = splice;
        // The first byte of the hello, and the next one of the backend.
        assert_eq!(0xffff_fff1_u32.wrapping_add(there.sequence), 2001);
        assert_eq!(3001_u32.wrapping_add(again.sequence), 7001);
        // The values of the SYN and the SYN-ACK are now.
        assert_eq!(5000_u32.wrapping_add(there.time), 900);
        assert_eq!(70_u32.wrapping_add(again.time), 100);
        assert_eq!((there.scale, there.promised), (2, 5));
        assert_eq!((again.scale, again.promised), (7, 9));
    }

    /// A header that was for us, and one that the backend gets: the first byte of the hello is where the
    /// backend expects it.
    #[test]
    fn headers_of_proxies_move_the_numbers() {
        let (front, back) = ends();
        let said = Prelude {
            for_us: 28,
            preface: vec![1; 70],
            ..hello()
        };
        let splice = splice(&SYN, &front, &back, syn_ack(1460), &said).unwrap();
        assert_eq!(splice.sent_end, 2001 + 70 + 500 - 28);
        let first = 0xffff_fff1_u32.wrapping_add(28);
        assert_eq!(first.wrapping_add(splice.to_backend.sequence), 2001 + 70);
    }

    #[test]
    fn ends_that_have_agreed_on_different_things_stay() {
        let (front, back) = ends();
        let without = |end: Snapshot| Snapshot { time: None, ..end };
        // The path to that end does not carry as much.
        let small = |end: Snapshot| Snapshot {
            path_mtu: 1499,
            ..end
        };
        let sack = Snapshot {
            has_sack: false,
            ..front
        };
        let ecn = Snapshot {
            has_ecn: true,
            ..back
        };
        for (front, back, why) in [
            (front, without(back), NotSpliced::Options),
            (without(front), back, NotSpliced::Options),
            (sack, back, NotSpliced::Options),
            (front, ecn, NotSpliced::Options),
            (small(front), back, NotSpliced::ClientTakesLess),
            (front, small(back), NotSpliced::BackendTakesLess),
        ] {
            assert_eq!(
                splice(&SYN, &front, &back, syn_ack(1460), &hello()),
                Err(why)
            );
        }
        let plain = splice(
            &SYN,
            &without(front),
            &without(back),
            syn_ack(1460),
            &hello(),
        )
        .unwrap();
        assert_eq!((plain.to_backend.time, plain.to_client.time), (0, 0));
    }

    /// An end may send what its peer's socket has announced, so the other end must take that.
    #[test]
    fn no_end_gets_larger_segments_than_it_takes() {
        let (front, back) = ends();
        let told = |advertised_mss, end: Snapshot| Snapshot {
            advertised_mss,
            ..end
        };
        let joined = |front: Snapshot, back: Snapshot, mss: [u16; 2]| {
            let syn = Syn {
                mss: Some(mss[0]),
                ..SYN
            };
            splice(&syn, &front, &back, syn_ack(mss[1]), &hello()).err()
        };
        assert_eq!(joined(front, back, [1460, 1460]), None);
        // The backend takes less than the client got as MSS; and the same where it got that.
        let less = [1460, 1360];
        assert_eq!(
            joined(front, back, less),
            Some(NotSpliced::BackendTakesLess)
        );
        assert_eq!(joined(told(1348, front), back, less), None);
        // The same with a client that takes less.
        let less = [1200, 1460];
        assert_eq!(joined(front, back, less), Some(NotSpliced::ClientTakesLess));
        assert_eq!(joined(front, told(1188, back), less), None);
        // Both would take more than our own networks carry.
        let large = [8960, 8960];
        assert_eq!(joined(front, back, large), None);
        let far = Snapshot {
            path_mtu: 9000,
            ..told(8948, front)
        };
        assert_eq!(joined(far, back, large), Some(NotSpliced::BackendTakesLess));
        // A client without an MSS option takes little.
        let silent = Syn { mss: None, ..SYN };
        let said = splice(&silent, &front, &back, syn_ack(1460), &hello());
        assert_eq!(said, Err(NotSpliced::ClientTakesLess));
    }
}
