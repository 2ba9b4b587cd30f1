//! A flood of SYNs, or of first segments with data, whose sources are other hosts' addresses.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use lb_common::{
    addr::Mac,
    wire::{
        checksum::{full, pseudo_header},
        header::{ACK, SYN},
    },
};

use crate::frames::{packet, raw::RawPort};

/// Where things stand in a frame without tag and options.
const IP: usize = 14;
const TCP: usize = 34;

/// Segments to one address, each from another source address and port and with other numbers than the one before.
#[derive(Clone, Debug)]
pub struct Flood {
    frame: Vec<u8>,
    sources: Vec<Ipv4Addr>,
    to: SocketAddrV4,
    sent: u64,
}

impl Flood {
    /// SYNs between two stations, from `sources` in turn.
    ///
    /// # Panics
    ///
    /// When there are no sources.
    pub fn new([from, next]: [Mac; 2], sources: Vec<Ipv4Addr>, to: SocketAddrV4) -> Self {
        let frame = packet::tcp("0.0.0.0:0", &to.to_string(), SYN).between(from, next);
        Self::of(frame.bytes(), sources, to)
    }

    /// The same of segments with this data, each of which acknowledges a number that it makes up.
    ///
    /// # Panics
    ///
    /// As for [`Self::new`].
    pub fn guessing(
        [from, next]: [Mac; 2],
        sources: Vec<Ipv4Addr>,
        to: SocketAddrV4,
        data: &[u8],
    ) -> Self {
        let frame = packet::tcp("0.0.0.0:0", &to.to_string(), ACK).between(from, next);
        Self::of(frame.payload(data).bytes(), sources, to)
    }

    fn of(frame: Vec<u8>, sources: Vec<Ipv4Addr>, to: SocketAddrV4) -> Self {
        assert!(!sources.is_empty(), "a flood comes from somewhere");
        Self {
            frame,
            sources,
            to,
            sent: 0,
        }
    }

    /// Sends the next `count` of them.
    ///
    /// # Errors
    ///
    /// When the interface does not take one.
    pub fn send(&mut self, port: &RawPort, count: u64) -> Result<()> {
        for _ in 0..count {
            self.turn();
            port.send(&self.frame)?;
        }
        Ok(())
    }

    /// How many were sent.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Makes the next frame.
    fn turn(&mut self) {
        let Self {
            frame,
            sources,
            to,
            sent,
        } = self;
        let round = usize::try_from(*sent).unwrap_or_default();
        let source = sources[round % sources.len()];
        let port = u16::try_from(1024 + (round / sources.len()) % 60_000).unwrap_or(u16::MAX);
        let number = u32::try_from(*sent & 0xffff_ffff).unwrap_or_default();
        *sent += 1;
        frame[IP + 10..IP + 12].fill(0);
        frame[IP + 12..IP + 16].copy_from_slice(&source.octets());
        let sum = full(&frame[IP..TCP], 0).get().to_be_bytes();
        frame[IP + 10..IP + 12].copy_from_slice(&sum);
        frame[TCP..TCP + 2].copy_from_slice(&port.to_be_bytes());
        frame[TCP + 4..TCP + 8].copy_from_slice(&number.wrapping_mul(0x9e37_79b1).to_be_bytes());
        if frame[TCP + 13] & ACK != 0 {
            let guess = number.wrapping_mul(0x85eb_ca6b);
            frame[TCP + 8..TCP + 12].copy_from_slice(&guess.to_be_bytes());
        }
        frame[TCP + 16..TCP + 18].fill(0);
        let length = u16::try_from(frame.len() - TCP).unwrap_or(u16::MAX);
        let pseudo = pseudo_header(source.into(), (*to.ip()).into(), 6, length);
        let sum = full(&frame[TCP..], pseudo).get().to_be_bytes();
        frame[TCP + 16..TCP + 18].copy_from_slice(&sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::segment::Segment;

    #[test]
    fn every_frame_is_another_one_with_right_checksums() {
        let sources = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().expect("an address"));
        let to = "10.0.0.9:80".parse().expect("an address and port");
        let stations = [Mac::default(); 2];
        let expected = [
            "10.0.0.1:1024",
            "10.0.0.2:1024",
            "10.0.0.1:1025",
            "10.0.0.2:1025",
        ];
        for (mut flood, flags, bytes) in [
            (Flood::new(stations, sources.to_vec(), to), SYN, 0),
            (
                Flood::guessing(stations, sources.to_vec(), to, b"hello"),
                ACK,
                5,
            ),
        ] {
            let (mut seen, mut guesses) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                flood.turn();
                let segment = Segment::read(&flood.frame).expect("a segment");
                let length = 20 + bytes;
                let pseudo =
                    pseudo_header((*segment.from.ip()).into(), (*to.ip()).into(), 6, length);
                assert_eq!(full(&flood.frame[IP..TCP], 0).raw(), 0);
                assert_eq!(full(&flood.frame[TCP..], pseudo).raw(), 0);
                assert_eq!((segment.to, segment.flags), (to, flags));
                assert_eq!(segment.payload, u32::from(bytes));
                seen.push(segment.from.to_string());
                guesses.push(segment.acknowledgment);
            }
            assert_eq!(seen, expected);
            guesses.dedup();
            assert_eq!(guesses.len(), if flags == SYN { 1 } else { 4 });
        }
    }
}
