//! TCP segments as they were on a wire, for what only their numbers show.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::oracle::wire;

/// Bytes of an Ethernet header without a tag.
const ETHERNET: usize = 14;
const TCP: u8 = 6;

/// A TCP segment of an untagged frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Segment {
    /// Its sender.
    pub from: SocketAddrV4,
    /// Its receiver.
    pub to: SocketAddrV4,
    /// Its sequence number.
    pub sequence: u32,
    /// What it acknowledges.
    pub acknowledgment: u32,
    /// Its flags.
    pub flags: u8,
    /// Bytes of its payload.
    pub payload: u32,
}

impl Segment {
    /// Reads a frame; `None` for one that has no TCP segment.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let (source, destination) = wire::ipv4(frame)?;
        let ip = frame.get(ETHERNET..)?;
        let header = usize::from(ip.first()? & 15) * 4;
        let total = usize::from(u16::from_be_bytes(ip.get(2..4)?.try_into().ok()?));
        (*ip.get(9)? == TCP).then_some(())?;
        let tcp = ip.get(header..total)?;
        let port = |at: usize| Some(u16::from_be_bytes(tcp.get(at..at + 2)?.try_into().ok()?));
        let word = |at: usize| Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?));
        let end = |address: Ipv4Addr, at| Some(SocketAddrV4::new(address, port(at)?));
        let data = usize::from(tcp.get(12)? >> 4) * 4;
        Some(Self {
            from: end(source, 0)?,
            to: end(destination, 2)?,
            sequence: word(4)?,
            acknowledgment: word(8)?,
            flags: *tcp.get(13)?,
            payload: u32::try_from(tcp.len().checked_sub(data)?).ok()?,
        })
    }

    /// The sequence number that follows its payload.
    pub const fn next(&self) -> u32 {
        self.sequence.wrapping_add(self.payload)
    }
}

/// The largest segment that the sender of a SYN wants to get, as the frame says it; `None` where it
/// says nothing.
pub fn maximum(frame: &[u8]) -> Option<u16> {
    const END: u8 = 0;
    const NOTHING: u8 = 1;
    const MAXIMUM: u8 = 2;
    Segment::read(frame)?;
    let ip = frame.get(ETHERNET..)?;
    let tcp = ip.get(usize::from(ip.first()? & 15) * 4..)?;
    let mut options = tcp.get(20..usize::from(tcp.get(12)? >> 4) * 4)?;
    loop {
        options = match options {
            [END, ..] | [] => return None,
            [NOTHING, rest @ ..] => rest,
            [MAXIMUM, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [_, length, ..] => options.get(usize::from(*length).max(2)..)?,
            [_] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::packet;

    #[test]
    fn a_segment_is_read_as_it_was_built() {
        let frame = packet::tcp("10.0.0.1:1000", "10.0.0.2:80", 0x18)
            .numbers(7, u32::MAX)
            .payload(b"abc")
            .padding(6);
        let segment = Segment::read(&frame.bytes()).expect("a segment");
        assert_eq!(segment.from.to_string(), "10.0.0.1:1000");
        assert_eq!(segment.to.to_string(), "10.0.0.2:80");
        assert_eq!((segment.sequence, segment.acknowledgment), (7, u32::MAX));
        assert_eq!((segment.flags, segment.payload), (0x18, 3));
        assert_eq!(segment.next(), 10);
        let datagram = packet::udp("10.0.0.1:1000", "10.0.0.2:80").bytes();
        assert_eq!(Segment::read(&datagram), None);
    }

    #[test]
    fn the_maximum_is_found_behind_other_options() {
        let options = [1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 2, 4, 0x05, 0xb4, 0];
        let frame = packet::tcp("10.0.0.1:1000", "10.0.0.2:80", 2).payload(&options);
        let mut bytes = frame.bytes();
        assert_eq!(maximum(&bytes), None, "payload is no option");
        bytes[packet::L4 + 12] = 0x90;
        assert_eq!(maximum(&bytes), Some(1460));
        bytes[packet::L4 + 20 + 2] = 200;
        assert_eq!(maximum(&bytes), None, "an option longer than all of them");
    }
}
