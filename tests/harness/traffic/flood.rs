//! A flood of SYNs whose sources are other hosts' addresses.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use lb_common::{
    addr::Mac,
    wire::{
        checksum::{full, pseudo_header},
        header::SYN,
    },
};

use crate::frames::{packet, raw::RawPort};

/// Where things stand in a frame without tag and options.
const IP: usize = 14;
const TCP: usize = 34;
const END: usize = 54;

/// SYNs to one address, each from another source address, port and number than the one before.
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
        assert!(!sources.is_empty(), "a flood comes from somewhere");
        let frame = packet::tcp("0.0.0.0:0", &to.to_string(), SYN).between(from, next);
        Self {
            frame: frame.bytes(),
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
        frame[TCP + 16..TCP + 18].fill(0);
        let pseudo = pseudo_header(source.into(), (*to.ip()).into(), 6, 20);
        let sum = full(&frame[TCP..END], pseudo).get().to_be_bytes();
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
        let mut flood = Flood::new([Mac::default(); 2], sources.to_vec(), to);
        let mut seen = Vec::new();
        for _ in 0..4 {
            flood.turn();
            let segment = Segment::read(&flood.frame).expect("a segment");
            let pseudo = pseudo_header((*segment.from.ip()).into(), (*to.ip()).into(), 6, 20);
            assert_eq!(full(&flood.frame[IP..TCP], 0).raw(), 0);
            assert_eq!(full(&flood.frame[TCP..END], pseudo).raw(), 0);
            assert_eq!((segment.to, segment.flags), (to, SYN));
            seen.push(segment.from.to_string());
        }
        let expected = [
            "10.0.0.1:1024",
            "10.0.0.2:1024",
            "10.0.0.1:1025",
            "10.0.0.2:1025",
        ];
        assert_eq!(seen, expected);
    }
}
