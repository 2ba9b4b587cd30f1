//! A SYN or SYN-ACK, or the reset that takes it back, which is written over another segment.

use network_types::ip::IpProto;

use crate::{
    addr::{Be16, Be32},
    reject::v4::{ReplyAddresses, write_ip},
    wire::{
        N32, Packet,
        checksum::Sum,
        header::{Ethernet, Ipv4, Tcp},
    },
};

const HEADERS: usize = size_of::<Ethernet>() + size_of::<Ipv4>() + size_of::<Tcp>();
const TCP_BYTES: u16 = size_of::<Tcp>() as u16;

/// What it has. Its stations are to be set by the caller.
#[derive(Clone, Copy, Debug)]
pub struct OpeningSegment {
    /// Its sender, and its receiver.
    pub from: (Be32, Be16),
    /// The same.
    pub to: (Be32, Be16),
    /// Its number.
    pub sequence: u32,
    /// What it acknowledges; 0 in a SYN.
    pub acknowledgment: u32,
    /// TCP flags.
    pub flags: u8,
    /// The window, which is not shifted.
    pub window: u16,
    /// Its options.
    pub options: OpeningOptions,
}

/// The options of a SYN or SYN-ACK that is written.
#[derive(Clone, Copy, Debug)]
pub struct OpeningOptions {
    /// Most bytes in a segment to the sender; none: nothing is announced.
    pub mss: Option<u16>,
    /// How far the sender's windows will be shifted.
    pub scale: Option<u8>,
    /// Whether the sender understands selective acknowledgments.
    pub has_sack: bool,
    /// The sender's clock, and the receiver's as seen last.
    pub times: Option<(Be32, Be32)>,
}

/// Bytes of the options, in words.
const SIZE: u32 = 0x0204_0000;
const SCALE: u32 = 0x0103_0300;
const SACK: u32 = 0x0101_0402;
const SACK_AND_TIMESTAMPS: u32 = 0x0402_080a;
const TIMESTAMPS: u32 = 0x0101_080a;

impl OpeningOptions {
    /// Those of a reset.
    pub const NONE: Self = Self {
        mss: None,
        scale: None,
        has_sack: false,
        times: None,
    };

    /// Bytes of the frame, without padding.
    #[inline(always)]
    pub const fn frame_bytes(&self) -> usize {
        HEADERS + self.bytes() as usize
    }

    #[inline(always)]
    const fn bytes(&self) -> u16 {
        let size = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.scale.is_some() { 4 } else { 0 };
        let rest = match self.times {
            Some(_) => 12,
            None if self.has_sack => 4,
            None => 0,
        };
        size + scale + rest
    }

    /// Writes them behind the header; the sum with them.
    #[inline(always)]
    fn write<P: Packet>(&self, packet: &P, sum: Sum) -> Option<Sum> {
        let mut sum = sum;
        let mut at = HEADERS;
        let mut put = |at: usize, word: Be32| {
            let place: &N32 = packet.header(at)?;
            place.set(word);
            sum = sum.add32(word);
            Some(at + 4)
        };
        if let Some(mss) = self.mss {
            at = put(at, Be32::new(SIZE | mss as u32))?;
        }
        if let Some(scale) = self.scale {
            at = put(at, Be32::new(SCALE | scale as u32))?;
        }
        match self.times {
            Some((own, echo)) => {
                let kinds = if self.has_sack {
                    SACK_AND_TIMESTAMPS
                } else {
                    TIMESTAMPS
                };
                at = put(at, Be32::new(kinds))?;
                at = put(at, own)?;
                put(at, echo)?;
            }
            None if self.has_sack => {
                put(at, Be32::new(SACK))?;
            }
            None => {}
        }
        Some(sum)
    }
}

impl OpeningSegment {
    /// Writes it over a segment that has come over IPv4 without IP options, in a frame of at least as many bytes. The
    /// checksum stays open, for the kernel to compute, where `is_open`.
    #[inline(always)]
    pub fn write<P: Packet>(&self, packet: &P, is_open: bool) -> Option<()> {
        let bytes = TCP_BYTES + self.options.bytes();
        let ((from, from_port), (to, to_port)) = (self.from, self.to);
        let ip: &Ipv4 = packet.header(size_of::<Ethernet>())?;
        write_ip(ip, ReplyAddresses { from, to }, bytes, IpProto::Tcp as u8);
        let tcp: &Tcp = packet.header(HEADERS - size_of::<Tcp>())?;
        let (sequence, acknowledgment) = (Be32::new(self.sequence), Be32::new(self.acknowledgment));
        let offset = ((bytes / 4) as u8) << 4;
        let window = Be16::new(self.window);
        tcp.source.set(from_port);
        tcp.destination.set(to_port);
        tcp.sequence.set(sequence);
        tcp.acknowledgment.set(acknowledgment);
        tcp.data_offset.set(offset);
        tcp.flags.set(self.flags);
        tcp.window.set(window);
        tcp.urgent.set(Be16::default());
        let pseudo = Sum::default()
            .add32(from)
            .add32(to)
            .add16(Be16::new(IpProto::Tcp as u16))
            .add16(Be16::new(bytes));
        let sum = pseudo
            .add16(from_port)
            .add16(to_port)
            .add32(sequence)
            .add32(acknowledgment)
            .add16(Be16::new(u16::from(offset) << 8 | u16::from(self.flags)))
            .add16(window);
        let sum = self.options.write(packet, sum)?;
        tcp.checksum.set(if is_open {
            pseudo.open()
        } else {
            sum.checksum()
        });
        Some(())
    }
}
